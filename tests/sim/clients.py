"""The people: they submit jobs, cancel them, give allocations back, drain nodes. Each asks whoever leads, again and again, until the
store shows what was asked for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from fmproto import keys
from fmproto.kv import StoreFull, StoreUnavailable
from fmproto.v1 import hardware_pb2 as hw
from fmsched.lifecycle.table import submitted
from fmsched.model.record import State
from fmsched.store.ledger import Ledger
from tests.sim.clock import Process
from tests.sim.network import done_at_once
from tests.sim.scenario import WALL_START_MS, JobPlan

if TYPE_CHECKING:
    from tests.sim.world import World

# A client's patience with one call, and its pause between calls, seconds.
CALL_S, RETRY_S = 2.0, 0.3


class Clients:
    def __init__(self, world: World) -> None:
        self._world = world
        self.process = Process("client")

    def _leader(self) -> Ledger | None:
        return next(
            (seat.ledger for seat in self._world.schedulers if seat.ledger is not None and not seat.process.paused), None
        )

    async def _until(self, write: Callable[[Ledger], Coroutine[Any, Any, object]], done: Callable[[], bool]) -> None:
        """Asks whoever leads, again and again, until the store shows it."""
        while not done():
            ledger = self._leader()
            if ledger is not None:
                try:
                    async with asyncio.timeout(CALL_S):
                        await write(ledger)
                except (StoreUnavailable, StoreFull, TimeoutError):
                    pass
            if not done():
                await asyncio.sleep(RETRY_S)

    async def use(self, job: JobPlan) -> None:
        """Submits a job, and perhaps cancels it, or gives it back when it has been had for long enough."""
        await asyncio.sleep(job.at_s)
        spec, statuses = job.spec, self._world.safety.seen.statuses
        spec.submitted_ms = WALL_START_MS + int(self._world.loop.time() * 1000)
        await self._until(lambda ledger: ledger.submit(spec, submitted(spec.submitted_ms)), lambda: spec.id in statuses)
        if job.cancel_s is not None:
            await asyncio.sleep(job.cancel_s)
        elif not spec.HasField("template"):
            while statuses[spec.id].state is not State.RUNNING:
                if statuses[spec.id].state.ended:
                    return
                await asyncio.sleep(RETRY_S)
            await asyncio.sleep(job.hold_s)
        else:
            return
        self._world.note("client: unwant", spec.id)
        await self._until(lambda ledger: ledger.unwant(spec.id), lambda: self._absent(keys.job_wanted(spec.id)))

    async def set_drain(self, node: str, *, drained: bool) -> None:
        """As `fmctl drain` and `fmctl undrain`."""
        key = keys.intent(node)
        if drained:
            intent = hw.NodeIntent(node=node, drained=True, reason="maintenance")
            await self._until(
                lambda ledger: ledger.put_intent(intent), lambda: not self._absent(key) or self._world.network.calm
            )
        else:
            await self._until(lambda ledger: ledger.drop_intent(node), lambda: self._absent(key))

    def _absent(self, key: str) -> bool:
        return self._world.store.reachable and done_at_once(self._world.store.get(key)) is None
