"""Calls that may hang in the kernel (a driver's sysfs file, statvfs of a dead disk), in a thread that nobody has to wait for. A call that
hangs cannot be ended; so a second one is not started before the first has come back."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

T = TypeVar("T")


class Hung(Exception):
    """The call, or the one before it, has not come back."""


class Looker(Generic[T]):
    """One place that is looked at again and again. `name` is what hangs, for the message."""

    def __init__(self, name: str, timeout_s: float) -> None:
        self._name = name
        self._timeout_s = timeout_s
        self._last: Future[T] | None = None

    def start(self, call: Callable[[], T]) -> Future[T]:
        """The running call. Raises Hung while an earlier one has not come back."""
        if self._last is not None and not self._last.done():
            raise Hung(f"{self._name} hung: an earlier look at it has not come back")
        future: Future[T] = Future()
        future.set_running_or_notify_cancel()  # a waiter that gives up then leaves it be
        # A daemon: the process can end while the call hangs.
        threading.Thread(target=_into, args=(future, call), name=f"look-{self._name}"[:64], daemon=True).start()
        self._last = future
        return future

    def wait(self, future: Future[T], timeout_s: float | None = None) -> T:
        """What the call returns or raises; Hung after the time limit."""
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        try:
            return future.result(limit_s)
        except TimeoutError:
            if future.done():
                raise  # the call's own
            raise self._hung() from None

    async def look(self, call: Callable[[], T]) -> T:
        """As start and wait, without blocking the event loop."""
        waiting = asyncio.wrap_future(self.start(call))
        try:
            done, _ = await asyncio.wait({waiting}, timeout=self._timeout_s)
            if not done:
                raise self._hung()
            return waiting.result()
        finally:
            waiting.cancel()  # the call itself goes on; nobody of this loop hears of it any more

    def _hung(self) -> Hung:
        return Hung(f"{self._name} hung: no answer in {self._timeout_s:g} s")


def _into(future: Future[T], call: Callable[[], T]) -> None:
    try:
        future.set_result(call())
    except BaseException as error:  # noqa: BLE001
        future.set_exception(error)
