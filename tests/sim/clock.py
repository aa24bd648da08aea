"""An asyncio event loop in virtual time: it jumps to the next timer when nothing is ready, does no I/O, has no threads, and is
deterministic. Processes live on it: each task and timer belongs to the process in whose context it was made, and a process can be paused
(its callbacks wait) or killed (they never run again: no `finally` of a killed process does anything, as after kill -9).
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import random
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

# Callbacks of one instant, after which the run is taken for a livelock.
STEPS_AT_ONE_INSTANT_MAX = 200_000


class Process:
    """One incarnation of a program. `frozen` holds what would have run."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.paused = False
        self.dead = False
        self.frozen: list[asyncio.Handle] = []
        self.context = contextvars.copy_context()
        self.context.run(OWNER.set, self)


OWNER: contextvars.ContextVar[Process | None] = contextvars.ContextVar("OWNER", default=None)


class Livelock(Exception):
    """Virtual time stands still: some task never waits."""


class VirtualLoop(asyncio.BaseEventLoop):
    """`seed` chooses the order of tasks that are ready at the same instant; time is in seconds, from 0."""

    # What BaseEventLoop keeps; its type stubs do not say so.
    _ready: deque[asyncio.Handle]
    _scheduled: list[asyncio.TimerHandle]

    def __init__(self, seed: str) -> None:
        super().__init__()
        self._rng = random.Random(seed)
        self._now_s = 0.0
        self._steps_now = 0
        self.tasks: set[asyncio.Task[Any]] = set()
        self._tasks_made = 0
        self._numbers: dict[int, int] = {}
        self.set_task_factory(self._make_task)  # type: ignore[arg-type]  # the stubs' protocol demands any awaitable

    def time(self) -> float:
        return self._now_s

    def _make_task(
        self, _loop: asyncio.AbstractEventLoop, coro: Coroutine[Any, Any, Any], context: contextvars.Context | None = None
    ) -> asyncio.Task[Any]:
        task = asyncio.Task(coro, loop=self, context=context)
        self._tasks_made += 1
        self._numbers[id(task)] = self._tasks_made
        self.tasks.add(task)
        task.add_done_callback(self._forget_task)
        return task

    def _forget_task(self, task: asyncio.Task[Any]) -> None:
        self.tasks.discard(task)
        self._numbers.pop(id(task), None)

    def _run_once(self) -> None:
        if not self._ready:
            self._jump()
        batch = list(self._ready)
        self._ready.clear()
        if len(batch) > 1:
            self._order(batch)
        self._steps_now += len(batch)
        if self._steps_now > STEPS_AT_ONE_INSTANT_MAX:
            raise Livelock(f"more than {STEPS_AT_ONE_INSTANT_MAX} steps at {self._now_s:.3f} s; one of them: {batch[0]!r}")
        for position, handle in enumerate(batch):
            if self._stopping:
                self._ready.extendleft(reversed(batch[position:]))
                return
            if handle.cancelled():
                continue
            owner = handle._context.get(OWNER)  # type: ignore[attr-defined]
            if owner is not None and (owner.paused or owner.dead):
                owner.frozen.append(handle)
                continue
            handle._run()

    def _jump(self) -> None:
        """To the next timer, and every timer that is due then."""
        due = self._scheduled
        while due and due[0].cancelled():
            heapq.heappop(due)
        if not due:
            self._stopping = True  # nothing can happen any more
            return
        if due[0].when() > self._now_s:
            self._now_s = due[0].when()
            self._steps_now = 0
        while due and due[0].when() <= self._now_s:
            handle = heapq.heappop(due)
            if not handle.cancelled():
                self._ready.append(handle)

    def _order(self, batch: list[asyncio.Handle]) -> None:
        """Steps of tasks get a seeded order, in place: the order in which they became ready may come from a set of objects, whose
        order is that of addresses. Other callbacks keep their places."""
        places, steps = [], []
        for place, handle in enumerate(batch):
            number = self._numbers.get(id(getattr(handle._callback, "__self__", None)))  # type: ignore[attr-defined]
            if number is not None:
                places.append(place)
                steps.append((number, handle))
        if len(steps) < 2:
            return
        steps.sort(key=lambda step: step[0])
        self._rng.shuffle(steps)
        for place, (_, handle) in zip(places, steps, strict=True):
            batch[place] = handle

    def thaw(self, process: Process) -> None:
        """Lets run what waited while `process` was paused, in its order."""
        frozen, process.frozen = process.frozen, []
        self._ready.extend(frozen)

    def spawn(self, process: Process, coro: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """A task that belongs to `process`."""
        return self.create_task(coro, context=process.context)

    def later(self, delay_s: float, callback: Callable[..., object], *args: Any) -> asyncio.TimerHandle:
        """A callback of the world's own: no process's pause or death holds it up."""
        return self.call_at(self._now_s + delay_s, callback, *args, context=_WORLD)

    def forget_timers(self) -> None:
        """Nothing that waits for a time will happen any more."""
        self._scheduled.clear()

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:  # type: ignore[override]
        raise RuntimeError("simulation: code under simulation asked for a thread, which it must not need")

    def _write_to_self(self) -> None:
        """There is no other thread to wake this one."""

    def _process_events(self, event_list: object) -> None:
        """There is no I/O."""

    # A generator that a killed process left behind just vanishes: closing it later, when the garbage collector likes, would not be
    # deterministic.
    def _asyncgen_firstiter_hook(self, agen: object) -> None: ...
    def _asyncgen_finalizer_hook(self, agen: object) -> None: ...


_WORLD = contextvars.Context()
