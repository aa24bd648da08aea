"""place.solve in a thread of its own: CP-SAT releases the interpreter, so the event loop goes on while it works. One at a time: the
queue's order is the order of the answers.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from fmsched.model.job import Request
from fmsched.model.placement import Budget, Verdict
from fmsched.model.snapshot import Snapshot
from fmsched.place.choices import Option, options
from fmsched.place.solve import solve

Answer = TypeVar("Answer")


class TooManyWaiting(Exception):
    """More solves wait than this solver was made for."""


class ThreadSolver:
    """`waiting_max`: how many may wait; None: any number."""

    def __init__(self, waiting_max: int | None = None) -> None:
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="solve")
        self._waiting_max = waiting_max
        self._waiting = 0

    async def __call__(self, snapshot: Snapshot, request: Request, budget: Budget) -> tuple[Verdict, float]:
        """Raises TooManyWaiting."""
        return await self._queued(_timed, snapshot, request, budget)

    async def options(self, snapshot: Snapshot, request: Request, budget: Budget, verdict: Verdict) -> tuple[Option, ...]:
        """place.choices.options, in the same queue. Raises TooManyWaiting."""
        return await self._queued(options, snapshot, request, budget, verdict) if request.work is not None else ()

    async def _queued(self, function: Callable[..., Answer], *args: object) -> Answer:
        if self._waiting_max is not None and self._waiting >= self._waiting_max:
            raise TooManyWaiting(f"{self._waiting} solves wait already")
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, function, *args)
        finally:
            self._waiting -= 1

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


def _timed(snapshot: Snapshot, request: Request, budget: Budget) -> tuple[Verdict, float]:
    began_s = time.perf_counter()
    verdict = solve(snapshot, request, budget)
    return verdict, time.perf_counter() - began_s
