"""What lies between a process and the store: latency, lost requests, lost answers, cuts, silent watches. One store, one FaultyKV per
incarnation of a process; requests travel in the world's time, so that one that was sent may arrive after its sender has died.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from fmproto.kv import (
    Changes,
    Entry,
    Guard,
    LeaseGone,
    Op,
    Page,
    Resync,
    StoreFull,
    StoreStatus,
    StoreUnavailable,
)
from fmsched.store.memory import MemoryStore
from tests.sim.clock import Process, VirtualLoop

# As an adapter's request timeout, seconds of virtual time.
REQUEST_TIMEOUT_S = 0.8
# A request of the memory store gives way to others at most so often.
GIVES_WAY_MAX = 4

T = TypeVar("T")


def done_at_once(coro: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that waits for nothing: MemoryStore's requests only give way (sleep(0)), which is skipped here."""
    for _ in range(GIVES_WAY_MAX):
        try:
            waits_for = coro.send(None)
        except StopIteration as stop:
            result: T = stop.value
            return result
        if waits_for is not None:
            break
    coro.close()
    raise AssertionError("a request of the memory store waited for something")


@dataclass(frozen=True, slots=True)
class Weather:
    """Chances of a request's fate, and seconds."""

    lost_request: float = 0.0
    lost_answer: float = 0.0
    late: float = 0.0  # applied after the sender gave up
    latency_max_s: float = 0.02
    watch_lag_max_s: float = 0.02


@dataclass(eq=False, slots=True)
class Host:
    """A machine's link to the store. `cut`: nothing passes; `silent`: watches hear nothing, requests pass."""

    name: str
    cut: bool = False
    silent: bool = False
    opened: asyncio.Event = field(default_factory=asyncio.Event)

    def set(self, *, cut: bool | None = None, silent: bool | None = None) -> None:
        self.cut = self.cut if cut is None else cut
        self.silent = self.silent if silent is None else silent
        if self.cut or self.silent:
            self.opened.clear()
        else:
            self.opened.set()


@dataclass(slots=True)
class Fuse:
    """Kills a process at its n-th call of a port: before the call has an effect, or right after, before it returns."""

    calls: int
    after: bool


@dataclass(frozen=True, slots=True)
class Request:
    """One that has reached the store: what it was to change, and under which term its sender believed to lead (0: no scheduler)."""

    sender: str
    ops: tuple[Op, ...]
    term: int
    applied: bool


class Network:
    """`on_request` is called after every request that reached the store, before anything else happens."""

    def __init__(
        self,
        loop: VirtualLoop,
        store: MemoryStore,
        weather: Weather,
        on_request: Callable[[Request], None],
        kill: Callable[[Process], None],
    ) -> None:
        self.loop = loop
        self.store = store
        self.weather = weather
        self.on_request = on_request
        self.kill = kill
        self.calm = False  # the faults are over
        self.over = False  # the run is over: processes only unwind


class FaultyKV:
    """Satisfies fmproto.kv.KV for one incarnation."""

    def __init__(self, network: Network, host: Host, process: Process, rng: random.Random) -> None:
        self._network = network
        self._host = host
        self._rng = rng
        self.process = process
        self.fuse: Fuse | None = None
        self.term_of_sender: Callable[[], int] = lambda: 0

    async def step(self) -> None:
        """To be awaited at every call of a port: here the fuse burns."""
        if self._burnt():
            self._network.kill(self.process)
            await self._network.loop.create_future()

    def _burnt(self) -> bool:
        if self.fuse is None or self.process.dead:
            return False
        self.fuse.calls -= 1
        return self.fuse.calls == 0

    async def _ask(self, make: Callable[[], Coroutine[Any, Any, T]], ops: Sequence[Op] = ()) -> T:
        network, rng = self._network, self._rng
        if network.over:
            raise StoreUnavailable("sim: the run is over")
        if self.fuse is not None and not self.fuse.after:
            await self.step()
        loop = network.loop
        answer: asyncio.Future[T] = loop.create_future()
        weather = network.weather
        out_s, back_s = rng.random() * weather.latency_max_s, rng.random() * weather.latency_max_s
        fate = rng.random() if not network.calm else 1.0
        lost_request = fate < weather.lost_request
        lost_answer = weather.lost_request <= fate < weather.lost_request + weather.lost_answer
        if weather.lost_request + weather.lost_answer <= fate < weather.lost_request + weather.lost_answer + weather.late:
            out_s = REQUEST_TIMEOUT_S * (1.01 + 3 * rng.random())
        term = self.term_of_sender()

        def arrive() -> None:
            if lost_request or self._host.cut or not network.store.reachable or network.over:
                return
            try:
                result: T | Exception = done_at_once(make())
            except (StoreFull, LeaseGone, ValueError) as error:
                result = error
            network.on_request(Request(self.process.name, tuple(ops), term, bool(ops) and isinstance(result, int)))
            if self.fuse is not None and self.fuse.after and self._burnt():
                network.kill(self.process)
            if not lost_answer:
                loop.later(back_s, deliver, result)

        def deliver(result: T | Exception) -> None:
            if answer.done() or self._host.cut:
                return
            if isinstance(result, Exception):
                answer.set_exception(result)
            else:
                answer.set_result(result)

        loop.later(out_s, arrive)
        patience = loop.call_later(REQUEST_TIMEOUT_S, _give_up, answer)
        try:
            return await answer
        finally:
            patience.cancel()

    async def read(self, prefix: str) -> Page:
        return await self._ask(lambda: self._network.store.read(prefix))

    async def get(self, key: str) -> Entry | None:
        return await self._ask(lambda: self._network.store.get(key))

    async def write(self, guards: Sequence[Guard], ops: Sequence[Op]) -> Any:
        return await self._ask(lambda: self._network.store.write(guards, ops), ops)

    async def grant(self, ttl_s: float) -> int:
        return await self._ask(lambda: self._network.store.grant(ttl_s))

    async def renew(self, lease: int) -> None:
        await self._ask(lambda: self._network.store.renew(lease))

    async def revoke(self, lease: int) -> None:
        await self._ask(lambda: self._network.store.revoke(lease))

    async def compact(self, revision: int) -> None:
        await self._ask(lambda: self._network.store.compact(revision))

    async def status(self) -> StoreStatus:
        return await self._ask(self._network.store.status)

    async def close(self) -> None:
        """Nothing is held open."""

    async def follow(self, prefix: str) -> AsyncGenerator[Resync | Changes, None]:
        """What the store tells, later by a lag, and held back while the host is cut off or the watch is silent. After a compaction the
        store itself starts anew with a Resync."""
        host = self._host
        source = self._network.store.follow(prefix)
        try:
            async for item in source:
                lag_s = self._network.weather.watch_lag_max_s if not self._network.calm else 0.01
                await asyncio.sleep(self._rng.random() * lag_s)
                while host.cut or host.silent:
                    await host.opened.wait()
                yield item
        finally:
            await source.aclose()


def _give_up(answer: asyncio.Future[Any]) -> None:
    if not answer.done():
        answer.set_exception(StoreUnavailable(f"sim: no answer within {REQUEST_TIMEOUT_S:g} s"))
