"""Acts a story on the pure core: jobs come, GPUs fail, jobs end; after each event the waiting jobs are decided in order.

Nothing is committed that check() rejects. Evictions are not decided here: a story's cast gives them (`stop`), and what is tested
is what the evicted are told. The words of a story's checks are held one by one; a word that is not known is an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from fmsched.model.fabric import Fabric, Link, Switch, Topology
from fmsched.model.hardware import GpuId
from fmsched.model.job import Request
from fmsched.model.placement import Budget, Placement, Unplaceable
from fmsched.model.record import Job, Spec, State, Status
from fmsched.model.snapshot import Snapshot
from fmsched.place.check import check
from fmsched.place.solve import solve
from fmsched.policy.order import waiting_in_order
from fmsched.topology.graph import build_topology
from tests.support import brute, clusters

SPECS = {"H100": clusters.H100, "A100": clusters.A100, "L40S": clusters.L40S}
NVLINK = {"H100": 900, "A100": 600, "L40S": 0}


def load(file: Path) -> dict[str, Any]:
    story: dict[str, Any] = YAML(typ="safe").load(file.read_text(encoding="utf-8"))
    return story


def topology_of(cluster: Mapping[str, Any]) -> Topology:
    """Nodes under their leaves, leaves under their spines; spines of one fabric are joined, those of two are not."""
    nodes, links, above = [], [], {}
    for row in cluster["nodes"]:
        kind, leaf = row["gpu"], row.get("leaf", "leaf")
        shape = clusters.shape(f"{kind}x{row['count']}", [SPECS[kind]] * row["count"], NVLINK[kind])
        nodes.append(clusters.node(row["name"], shape))
        links.append(Link(row["name"], leaf, shape.link_gbps))
        above[leaf] = (row.get("spine", f"spine of {row.get('fabric', '')}"), f"core of {row.get('fabric', '')}")
    switches = [Switch(leaf) for leaf in above]
    for spine, core in dict.fromkeys(above.values()):
        switches.append(Switch(spine, 1))
        links.append(Link(spine, core, 400))
    switches += [Switch(core, 2) for core in dict.fromkeys(core for _, core in above.values())]
    links += [Link(leaf, spine, 400) for leaf, (spine, _) in above.items()]
    return build_topology(nodes, Fabric(tuple(switches), tuple(links)))


def request_of(job: Mapping[str, Any]) -> Request:
    """Members as replicas of one group; `same` binds them to one leaf or one fabric."""
    unknown = set(job) - {"job", "members", "gpus", "same", "prefer", "gpu_type", "prio", "limit"}
    assert not unknown, f"job {job['job']}: {sorted(unknown)} is not acted"
    hops = {"leaf": 1, "fabric": None, None: None}[job.get("same")]
    asked = {"preferred": [job["gpu_type"].lower()]} if "gpu_type" in job else {}
    kind = "DP" if "same" in job else "EP"  # EP: each member on one node
    group = clusters.group("members", kind, job["gpus"], hops=hops, reach="same" in job, **asked)
    return clusters.request(group, replicas=job["members"], job=job["job"])


@dataclass
class Stage:
    """The state between events."""

    topology: Topology
    jobs: dict[str, dict[str, Any]] = field(default_factory=dict)
    submitted: dict[str, int] = field(default_factory=dict)
    running: dict[str, Placement] = field(default_factory=dict)
    started: set[str] = field(default_factory=set)
    evicted: set[str] = field(default_factory=set)
    refused: dict[str, Unplaceable] = field(default_factory=dict)
    unfit: dict[GpuId, str] = field(default_factory=dict)
    closed: dict[str, str] = field(default_factory=dict)
    given: set[GpuId] = field(default_factory=set)  # that a new job ever got while sick: must stay empty

    def snapshot(self) -> Snapshot:
        held = {rank.gpu_id: job for job, placement in self.running.items() for rank in placement.ranks}
        return Snapshot(1, self.topology, held, dict(self.unfit), dict(self.closed))

    def act(self, event: Mapping[str, Any]) -> None:
        known = False
        if "submit" in event:
            known, job = True, event["submit"]
            self.jobs[job["job"]], self.submitted[job["job"]] = job, event["t"]
        for name in _names(event.get("end")):
            known = True
            self.running.pop(name, None)
            self.jobs.pop(name)
        for name in _names(event.get("stop")):  # against its will: it waits again
            known = True
            del self.running[name]
            self.evicted.add(name)
        for verb, of in (("gpu_fault", self.unfit), ("drain", self.closed)):
            for name in _names(event.get(verb)):
                known = True
                of[_gpu(name) if verb == "gpu_fault" else name] = verb  # type: ignore[index]
        for name in _names(event.get("gpu_repaired")):
            known = True
            del self.unfit[_gpu(name)]
        for name in _names(event.get("undrain")):
            known = True
            del self.closed[name]
        assert known, f"{event} is not acted"

    def decide(self) -> None:
        """Every waiting job in the order of the queue, each on what those before it left."""
        self.refused.clear()
        for name in self.order():
            snapshot, request = self.snapshot(), request_of(self.jobs[name])
            verdict = solve(snapshot, request, Budget())
            if isinstance(verdict, Placement):
                assert check(snapshot, request, verdict) == ()
                for cell in {rank.cell for rank in verdict.ranks}:
                    assert len({rank.node for rank in verdict.ranks if rank.cell == cell}) == 1, (
                        f"a member of {name} is split"
                    )
                self.given |= {rank.gpu_id for rank in verdict.ranks} & set(self.unfit)
                self.running[name] = verdict
                self.started.add(name)
            else:
                assert isinstance(verdict, Unplaceable), verdict
                self.refused[name] = verdict

    def order(self) -> list[str]:
        queued = Status(State.QUEUED, 0)
        records = [
            Job(Spec(name, name, request_of(job), job.get("prio", 0), self.submitted[name] * 1000), queued)
            for name, job in self.jobs.items()
            if name not in self.running
        ]
        return [record.id for record in waiting_in_order(records)]

    def nodes(self, job: str) -> list[str]:
        """One node a member."""
        return sorted({rank.cell: rank.node for rank in self.running[job].ranks}.values())


def _names(value: Any) -> list[str]:
    return [] if value is None else [value] if isinstance(value, str) else list(value)


def _gpu(name: str) -> GpuId:
    node, _, gpu = name.partition("/g")
    return GpuId(node, int(gpu))


def possible(snapshot: Snapshot, request: Request) -> bool:
    """By trying every choice of nodes for the members. A node's GPUs are alike here: the first free ones stand for all."""
    size, cells = request.groups[0].gpus, []
    for node in snapshot.topology.nodes:
        free = [GpuId(node.name, i) for i in snapshot.free_indices(node.name)]
        cells += [tuple(free[i : i + size]) for i in range(0, len(free) - size + 1, size)]
    tried = (brute.ranks_of(snapshot, request, (chosen,)) for chosen in combinations(cells, request.replicas))
    return any(not check(snapshot, request, placement) for placement in tried)


def play(story: Mapping[str, Any], tells: Mapping[str, list[str]]) -> Stage:
    """The whole story, with every check held. `tells`: job → what its reason must contain, in the product's words."""
    stage = Stage(topology_of(story["cluster"]))
    events, checks = list(story["events"]), story["right"]["checks"]
    held = 0
    for i, event in enumerate(events):
        stage.act(event)
        until = events[i + 1]["t"] if i + 1 < len(events) else float("inf")
        if until > event["t"]:
            stage.decide()
            assert not stage.given, "a sick GPU was given to a new job"
        for word in (each for each in checks if event["t"] <= each["at"] < until):
            hold(stage, word, tells)
            held += 1
    assert held == len(checks), f"{held} of {len(checks)} checks were held"
    return stage


def hold(stage: Stage, words: Mapping[str, Any], tells: Mapping[str, list[str]]) -> None:  # noqa: C901  (one case a word)
    at, snapshot = f"at {words['at']}", stage.snapshot()
    for word, value in words.items():
        match word:
            case "at" | "invariant" | "estimate":
                pass  # invariants: `given` above and the story's own test; estimates: with preemption
            case "running":
                assert set(stage.running) == set(value), f"{at}: {sorted(stage.running)} run"
                for job, nodes in value.items():
                    assert nodes is None or stage.nodes(job) == sorted(nodes), f"{at}: {job} runs on {stage.nodes(job)}"
            case "within":
                for job, lists in value.items():
                    assert any(set(stage.nodes(job)) <= set(nodes) for nodes in lists), f"{at}: {job} on {stage.nodes(job)}"
            case "waiting":
                assert set(stage.refused) >= set(value), f"{at}: {sorted(stage.refused)} wait"
            case "no_room":
                for job in value:
                    assert not possible(snapshot, request_of(stage.jobs[job])), f"{at}: {job} could run"
            case "impossible_even_empty":
                for job in value:
                    assert stage.refused[job].never, f"{at}: {stage.refused[job]}"
                    assert not possible(snapshot.emptied(), request_of(stage.jobs[job])), (
                        f"{at}: {job} could run when empty"
                    )
            case "never_started":
                assert not stage.started & set(value), f"{at}: {sorted(stage.started)} started"
            case "evicted":
                assert stage.evicted == set(value), f"{at}: {sorted(stage.evicted)} evicted"
            case "sick":
                for node, count in value.items():
                    assert sum(gpu.node == node for gpu in stage.unfit) == count, f"{at}: {stage.unfit}"
            case "reason":
                for job in value:
                    for text in tells[job]:
                        assert text in str(stage.refused[job]), (
                            f"{at}: {job} is told {stage.refused[job]}, without {text!r}"
                        )
            case "reason_never":
                for job in value:
                    assert not stage.refused[job].never, f"{at}: {job} is told that it can never run"
            case _:
                raise AssertionError(f"{at}: {word} is not a word that is held")
