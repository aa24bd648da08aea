"""Allocations are held by whoever took them: a Hold stream, kept open. When nobody has held one for its hold_s it is given back, so a
launcher that was killed costs that long and no more.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import structlog

from fmproto.kv import StoreFull, StoreUnavailable
from fmsched.loop import Scheduler
from fmsched.model.hardware import JobId

log = structlog.get_logger(__name__)

CHECK_PERIOD_S = 1.0


class Holds:
    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._holders: Counter[JobId] = Counter()
        self._alone_since_s: dict[JobId, float] = {}

    @contextmanager
    def held(self, job: JobId) -> Iterator[None]:
        """While the block runs, `job` has one more holder."""
        self._holders[job] += 1
        try:
            yield
        finally:
            self._holders[job] -= 1
            self._alone_since_s[job] = asyncio.get_running_loop().time()

    async def watch(self) -> None:
        """Gives back what nobody holds; for ever. A new leader starts every count anew: holders need time to find it."""
        while True:
            await asyncio.sleep(CHECK_PERIOD_S)
            ledger = self._scheduler.ledger
            if ledger is None:
                self._alone_since_s.clear()
                continue
            for job in self._overdue(asyncio.get_running_loop().time()):
                log.info("given back: nobody held it", job=job)
                self._scheduler.cancel_reasons[job] = (
                    f"nobody held it for {self._scheduler.mirror.spec_values[job].hold_s:g} s"
                )
                try:
                    await ledger.unwant(job)
                except (StoreUnavailable, StoreFull) as error:
                    log.warning("could not give back", job=job, error=str(error))

    def _overdue(self, now_s: float) -> list[JobId]:
        mirror = self._scheduler.mirror
        overdue = []
        for job in sorted(mirror.wanted):
            spec = mirror.spec_values.get(job)
            if spec is None or not spec.allocation or not spec.hold_s or self._holders[job]:
                continue
            if now_s - self._alone_since_s.setdefault(job, now_s) > spec.hold_s:
                overdue.append(job)
        self._alone_since_s = {job: at_s for job, at_s in self._alone_since_s.items() if job in mirror.wanted}
        return overdue
