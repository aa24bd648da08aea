"""fmsched.store.memory alone: simulated time, its switches, and what it forgets."""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Coroutine
from typing import Any

import pytest

from fmproto.kv import Delete, LeaseGone, Put, StoreFull, StoreUnavailable
from fmsched.store import memory
from fmsched.store.memory import MemoryStore
from tests.support.following import Following


class SimulatedTime(asyncio.SelectorEventLoop):
    """Instead of waiting, time jumps to the next timer."""

    def __init__(self) -> None:
        super().__init__(_NoWait(self))
        self.now_s = 0.0

    def time(self) -> float:
        return getattr(self, "now_s", 0.0)


class _NoWait(selectors.DefaultSelector):
    def __init__(self, loop: SimulatedTime) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        assert timeout is not None, "nothing is left to wait for"
        self._loop.now_s += max(timeout, 0.0)
        return super().select(0)


def simulate(work: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=SimulatedTime) as runner:
        runner.run(work)


def test_leases_end_by_the_loop_time_and_followers_see_it() -> None:
    async def work() -> None:
        loop = asyncio.get_running_loop()
        store = MemoryStore()
        short, long = await store.grant(10), await store.grant(3_600)
        await store.write([], [Put("/short", b"v", short), Put("/long", b"v", long)])
        async with Following(store, "/") as seen:
            await seen.until(lambda me: "/short" not in me.picture and "/long" in me.picture, within_s=20)
            assert loop.time() == pytest.approx(10.0)
            await seen.until(lambda me: me.picture == {}, within_s=4_000)
            assert loop.time() == pytest.approx(3_600.0)
        with pytest.raises(LeaseGone):
            await store.renew(long)

    started = time.monotonic()
    simulate(work())
    assert time.monotonic() - started < 10, "an hour is simulated, not waited for"


def test_a_renewed_lease_runs_for_a_full_time_again() -> None:
    async def work() -> None:
        store = MemoryStore()
        lease = await store.grant(10)
        await store.write([], [Put("/a", b"v", lease)])
        for _ in range(5):
            await asyncio.sleep(9)
            await store.renew(lease)
        await asyncio.sleep(9.9)
        assert await store.get("/a") is not None
        await asyncio.sleep(0.2)
        assert await store.get("/a") is None

    simulate(work())


def test_a_quiet_follower_is_told_so_each_period() -> None:
    async def work() -> None:
        store = MemoryStore(follow_period_s=2.0)
        async with Following(store, "/") as seen:
            await asyncio.sleep(100)
            assert len(seen.items) == pytest.approx(50, abs=2)
            store.reachable = False
            told = len(seen.items)
            await asyncio.sleep(100)
            assert len(seen.items) == told
            store.reachable = True
            await seen.until(lambda me: len(me.items) > told)

    simulate(work())


async def test_a_full_store_still_reads_deletes_and_renews() -> None:
    store = MemoryStore()
    lease = await store.grant(60)
    await store.write([], [Put("/a", b"1", lease), Put("/b", b"1")])
    store.full = True

    for refused in (store.write([], [Put("/a", b"2")]), store.write([], [Delete("/b"), Put("/c", b"1")]), store.grant(60)):
        with pytest.raises(StoreFull):
            await refused
    await store.renew(lease)
    assert isinstance(await store.write([], [Delete("/b")]), int)
    assert [entry.key for entry in (await store.read("/")).entries] == ["/a"]
    assert (await store.status()).full
    store.full = False
    assert isinstance(await store.write([], [Put("/a", b"2")]), int)


async def test_one_connection_is_cut_and_another_is_not() -> None:
    store = MemoryStore(follow_period_s=0.05)
    other = store.beside()
    async with Following(store, "/") as seen, Following(other, "/") as witness:
        await seen.synced()
        store.reachable = False
        with pytest.raises(StoreUnavailable):
            await store.write([], [Put("/a", b"lost")])
        await other.write([], [Put("/a", b"1")])
        await witness.until(lambda me: me.picture == {"/a": b"1"})
        assert seen.picture == {}
        store.reachable = True
        await seen.until(lambda me: me.picture == {"/a": b"1"})
        await store.close()
        assert isinstance(await seen.ended(), StoreUnavailable)
        await other.write([], [Put("/a", b"2")])
        await witness.until(lambda me: me.picture == {"/a": b"2"})


async def test_history_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "HISTORY_CHANGES_MAX", 100)
    store = MemoryStore()
    follower = store.follow("/")
    await anext(follower)
    for number in range(250):
        await store.write([], [Put(f"/{number % 3}", b"%d" % number)])
    await store.write([], [Delete("/0")])

    item = await anext(follower)

    assert {entry.key: entry.value for entry in item.entries} == {"/1": b"247", "/2": b"248"}  # type: ignore[union-attr]
    await follower.aclose()
