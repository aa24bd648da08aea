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
from fmproto.kv import KV, StoreFull, StoreUnavailable
from fmsched.lifecycle.liveness import LivenessLimits
from fmsched.lifecycle.step import Limits
from fmsched.loop import LoopConfig, Scheduler
from fmsched.model.job import Request
from fmsched.model.placement import Budget, Verdict
from fmsched.model.snapshot import Snapshot
from fmsched.place.solve import solve
from fmsched.policy.order import question
from fmsched.store.election import Election, Leadership

PERIOD_S = 1.0
FENCE_AFTER_S = 4.0
FENCE_GRACE_S = 1.0
ELECTION_TTL_S = 3.0
LIVENESS = LivenessLimits(unreachable_s=3.0, node_lost_s=8.0, mass_lost_s=14.0)
LIMITS = Limits(prepare_s=8.0, start_s=6.0)
BUDGET = Budget(deterministic_s=1.0)
LEAD_RETRY_S = 1.0
# The longest that a solve takes in virtual time.
SOLVE_MAX_S = 0.1


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
        took_s = self._rng.random() * SOLVE_MAX_S
        await asyncio.sleep(took_s)
        return verdict, took_s


class SchedulerProgram:
    def __init__(self, kv: KV, name: str, wall_ms: Callable[[], int], rng: random.Random) -> None:
        self.scheduler = Scheduler(kv, Solver(rng), LoopConfig(LIMITS, LIVENESS, BUDGET), wall_ms)
        self._election = Election(kv, name, name, ELECTION_TTL_S)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.scheduler.follow(keys.ROOT))
            tasks.create_task(self._lead_for_ever())

    async def _lead_for_ever(self) -> None:
        while True:
            try:
                leadership = await self._election.campaign()
                work = asyncio.create_task(self._lead(leadership))
                lost = asyncio.create_task(leadership.lost.wait())
                try:
                    await asyncio.wait((work, lost), return_when=asyncio.FIRST_COMPLETED)
                finally:
                    lost.cancel()
                    if not work.done():
                        work.cancel()
                    await asyncio.gather(work, return_exceptions=True)
                if not work.cancelled():
                    error = work.exception()
                    if error is not None:
                        raise error
            except* (StoreUnavailable, StoreFull):
                await asyncio.sleep(LEAD_RETRY_S)

    async def _lead(self, leadership: Leadership) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.scheduler.lead(leadership))
