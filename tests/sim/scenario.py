"""What a seed means: the cluster, the jobs, the weather of the network and the faults, all drawn before anything runs."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from functools import cache

from fmproto.v1 import hardware_pb2 as hw
from fmproto.v1 import job_pb2 as pb
from tests.sim.network import Weather
from tests.sim.nodes import PreparePlan, RankPlan

# Unix time at the start, ms.
WALL_START_MS = 1_700_000_000_000
# Seconds of virtual time. Faults come before CALM_S, then everything is healed and has SETTLE_S to come to its end.
CALM_S = 32.0
SETTLE_S = 120.0

FAULTS = (
    "kill_scheduler",
    "fuse_scheduler",
    "pause_scheduler",
    "cut_scheduler",
    "silence_scheduler",
    "kill_agent",
    "fuse_agent",
    "pause_agent",
    "cut_node",
    "silence_node",
    "power_cut",
    "kill_supervisor",
    "fail_gpu",
    "drain",
    "store_gone",
    "store_full",
    "compact",
)


@dataclass(frozen=True, slots=True)
class Fault:
    """`victim` and `size` are in [0, 1): which of the possible victims, and how long or how much."""

    at_s: float
    kind: str
    victim: float
    size: float


@dataclass(frozen=True, slots=True)
class JobPlan:
    spec: pb.JobSpec
    at_s: float
    cancel_s: float | None  # after the submission
    hold_s: float  # an allocation is given back so long after it was granted
    runs_s: float
    fails: bool


@dataclass(frozen=True, slots=True)
class Scenario:
    seed: int
    inventories: tuple[hw.Inventory, ...]
    fabric: hw.Fabric
    schedulers: int
    jobs: tuple[JobPlan, ...]
    weather: Weather
    faults: tuple[Fault, ...]
    refusals: float  # chance that a node refuses to prepare


def scenario(seed: int) -> Scenario:
    rng = random.Random(f"{seed}:scenario")
    node_count, gpus = rng.choice((1, 2, 2, 3, 3, 4, 4, 5, 6)), rng.choice((2, 3, 4))
    return Scenario(
        seed=seed,
        inventories=tuple(_inventory(i, gpus) for i in range(node_count)),
        fabric=_fabric(node_count),
        schedulers=rng.choice((1, 2, 2, 2)),
        jobs=tuple(_job(rng, number, node_count * gpus, gpus) for number in range(rng.randint(2, 7))),
        weather=_weather(rng),
        faults=_faults(rng),
        refusals=rng.choice((0.0, 0.0, 0.1)),
    )


@cache
def _inventory(number: int, gpus: int) -> hw.Inventory:
    name = f"n{number}"
    inventory = hw.Inventory(node=name, address=f"10.0.0.{number + 1}", socket_interface="eth0", source="described")
    for index in range(gpus):
        inventory.gpus.add(
            index=index, uuid=f"GPU-{name}-{index}", name="H100", model="H100-SXM5-80GB", memory_gb=80.0, family="h100"
        )
        for other in range(index):
            inventory.nvlinks.add(gpu_a=other, gpu_b=index, gbytes_per_s=900.0)
    inventory.hca_ports.add(hca="mlx5_0", port=1, state="Active", rate_gbps=400.0, near_gpus=range(gpus))
    return inventory


@cache
def _fabric(node_count: int) -> hw.Fabric:
    """Two leaf switches under one spine; nodes alternate."""
    fabric = hw.Fabric(source="simulation")
    for name, level in (("leaf0", 0), ("leaf1", 0), ("spine0", 1)):
        fabric.switches.add(name=name, level=level)
    for leaf in ("leaf0", "leaf1"):
        fabric.links.add(a=leaf, b="spine0", gbps=400.0, count=2)
    for number in range(node_count):
        fabric.links.add(a=f"n{number}", b=f"leaf{number % 2}", gbps=400.0, count=1)
    return fabric


def _job(rng: random.Random, number: int, gpus_in_all: int, gpus_per_node: int) -> JobPlan:
    spec = pb.JobSpec(
        id=f"j{number}",
        name=f"job {number}",
        priority=rng.choice((100, 500, 500, 900)),
        grace_period_s=rng.choice((0.5, 1.0, 3.0)),
        max_restarts=rng.choice((0, 3, 3, 6)),
    )
    size = rng.randint(1, min(4, gpus_per_node))
    spec.replica_count = rng.randint(1, max(1, min(6, gpus_in_all // size + (rng.random() < 0.1))))
    group = spec.groups.add(name="workers", gpus_per_group=size)
    group.kind = pb.GROUP_KIND_TENSOR_PARALLEL if size > 1 else pb.GROUP_KIND_DATA_PARALLEL
    if size == 1 and rng.random() < 0.3:
        group.connectivity.max_hops = rng.choice((1, 3))
    if rng.random() < 0.05:
        group.preferred_types.append("a100")  # which this cluster has not
    if rng.random() < 0.75:
        spec.template.command.append("train")
    elif rng.random() < 0.3:
        spec.hold_s = rng.uniform(2.0, 12.0)  # nobody holds it: the scheduler gives it back
    return JobPlan(
        spec=spec,
        at_s=rng.uniform(0.0, CALM_S * 0.6),
        cancel_s=rng.uniform(0.0, 15.0) if rng.random() < 0.25 else None,
        hold_s=rng.uniform(0.5, 8.0),
        runs_s=rng.choice((0.05, 1.0, 3.0, 10.0, 25.0)) * rng.uniform(0.5, 1.5),
        fails=rng.random() < 0.2,
    )


def _weather(rng: random.Random) -> Weather:
    if rng.random() < 0.3:
        return Weather()
    return Weather(
        lost_request=rng.choice((0.0, 0.02, 0.08)),
        lost_answer=rng.choice((0.0, 0.02, 0.08)),
        late=rng.choice((0.0, 0.02, 0.1)),
        latency_max_s=rng.choice((0.01, 0.05, 0.2)),
        watch_lag_max_s=rng.choice((0.01, 0.1, 0.8)),
    )


def _faults(rng: random.Random) -> tuple[Fault, ...]:
    """Of a few kinds only, so that each combination of kinds comes up among the seeds."""
    kinds = [kind for kind in FAULTS if rng.random() < 0.35]
    if not kinds or rng.random() < 0.05:
        return ()
    times = sorted(rng.uniform(1.0, CALM_S - 2.0) for _ in range(rng.randint(1, 10)))
    return tuple(Fault(at_s, rng.choice(kinds), rng.random(), rng.random()) for at_s in times)


class SeededScript:
    """What becomes of ranks and preparations; satisfies nodes.Script."""

    def __init__(self, plan: Scenario) -> None:
        self._plan = plan
        self._jobs = {job.spec.id: job for job in plan.jobs}
        self._ranks: dict[tuple[str, int, int], RankPlan] = {}

    def rank(self, job: str, attempt: int, rank: int) -> RankPlan:
        key = (job, attempt, rank)
        if key not in self._ranks:
            self._ranks[key] = self._draw(self._rng("rank", *key), self._jobs[job])
        return self._ranks[key]

    def prepare(self, job: str, attempt: int, node: str) -> PreparePlan:
        rng = self._rng("prepare", job, attempt, node)
        plan = PreparePlan(takes_s=rng.choice((0.01, 0.05, 0.5)) * rng.uniform(0.5, 1.5))
        if rng.random() < self._plan.refusals:
            plan = replace(plan, refused="the image is not there", device_fault=rng.random() < 0.7)
        return plan

    def _rng(self, *what: object) -> random.Random:
        return random.Random(f"{self._plan.seed}:{what}")

    def _draw(self, rng: random.Random, job: JobPlan) -> RankPlan:
        code = 1 if job.fails and rng.random() < 0.5 else 0
        stops_s = rng.uniform(0.01, 1.5) if rng.random() < 0.7 else None
        return RankPlan(job.runs_s * rng.uniform(0.9, 1.2), code, stops_s)
