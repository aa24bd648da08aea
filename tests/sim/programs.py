"""The programs under simulation, put together as fm-scheduler and fm-agent put them together, with short times: a minute of real faults
fits into seconds. Their proportions are those of the defaults, and node_lost_s exceeds the fence with its grace as config.py demands.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace

from fmagent.loop import AgentSettings
from fmproto import keys
from fmproto.kv import KV
from fmsched.__main__ import Process as SchedulerProcess
from fmsched.__main__ import loop_config
from fmsched.config import Config, EtcdConfig, Timeouts
from fmsched.model.job import Request
from fmsched.model.placement import Budget, Verdict
from fmsched.model.snapshot import Snapshot
from fmsched.place.solve import solve
from fmsched.policy.order import question
from fmsched.service.holds import Holds

PERIOD_S = 1.0
FENCE_AFTER_S = 4.0
FENCE_GRACE_S = 1.0
ETCD = EtcdConfig(election_ttl_s=3.0)
TIMEOUTS = Timeouts(
    unreachable_after_s=3.0,
    node_lost_after_s=8.0,
    agent_fence_after_s=FENCE_AFTER_S,
    agent_fence_grace_s=FENCE_GRACE_S,
    mass_lost_after_s=14.0,
    prepare_s=8.0,
    start_s=6.0,
)
LOOP_CONFIG = loop_config(Config(timeouts=TIMEOUTS))
# The longest that a solve takes in virtual time: most are short, and a proof may take long.
SOLVES_MAX_S = (0.05, 0.05, 1.5)


def agent_settings(node: str, session: str) -> AgentSettings:
    return AgentSettings(node, session, period_s=PERIOD_S, fence_after_s=FENCE_AFTER_S, fence_grace_s=FENCE_GRACE_S)


# Answers kept over the seeds of one process: small clusters meet the same questions again and again.
ANSWERS_MAX = 50_000
_ANSWERS: dict[object, Verdict] = {}


def answer(snapshot: Snapshot, request: Request, budget: Budget) -> Verdict:
    """place.solve, remembered by everything that it reads."""
    topology = snapshot.topology
    asked = (
        tuple((node.name, len(node.uuids)) for node in topology.nodes),
        topology.leaves,
        tuple(sorted(snapshot.held.items())),
        tuple(sorted(snapshot.unfit.items())),
        tuple(sorted(snapshot.closed.items())),
        question(request),
    )
    verdict = _ANSWERS.get(asked)
    if verdict is None:
        if len(_ANSWERS) >= ANSWERS_MAX:
            _ANSWERS.clear()
        verdict = _ANSWERS[asked] = solve(snapshot, request, budget)
    return replace(verdict, job=request.job)


class Solver:
    """It runs at once and answers later, as a thread would: what changes meanwhile, it does not see."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    async def __call__(self, snapshot: Snapshot, request: Request, budget: Budget) -> tuple[Verdict, float]:
        verdict = answer(snapshot, request, budget)
        took_s = self._rng.random() * self._rng.choice(SOLVES_MAX_S)
        await asyncio.sleep(took_s)
        return verdict, took_s


class SchedulerProgram:
    """fm-scheduler without its gRPC server: what `__main__.Process` runs beside it."""

    def __init__(self, kv: KV, name: str, wall_ms: Callable[[], int], rng: random.Random) -> None:
        process = self._process = SchedulerProcess(Config(name=name, etcd=ETCD, timeouts=TIMEOUTS), kv)
        self.scheduler = process.scheduler
        self.scheduler.solver = Solver(rng)
        self.scheduler.wall_ms = wall_ms

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.scheduler.follow(keys.ROOT))
            tasks.create_task(self._process._lead_for_ever())
            tasks.create_task(Holds(self.scheduler).watch())
