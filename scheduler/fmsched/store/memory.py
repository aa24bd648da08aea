"""The store port in memory, with etcd's semantics: for simulation, tests and trials without etcd. One process, nothing
durable.

Time is the running event loop's, so leases end rightly under a loop whose time is simulated; there are no threads and no
randomness. Two switches break it on purpose: `full` (as etcd over its quota) and `reachable` (as etcd behind a cut
network).
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right, insort
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import islice, takewhile

from fmproto.etcd_rules import check_ttl, check_write
from fmproto.kv import (
    Change,
    Changes,
    Conflict,
    Delete,
    Entry,
    Guard,
    LeaseGone,
    Op,
    Page,
    Put,
    Resync,
    StoreFull,
    StoreStatus,
    StoreUnavailable,
)

FOLLOW_PERIOD_S = 2.0
CLUSTER_ID = 1
# Beyond this the older half is compacted, as an etcd with automatic compaction does; a follower so far behind gets a
# Resync.
HISTORY_CHANGES_MAX = 200_000


@dataclass(slots=True)
class _Lease:
    ttl_s: int
    ends_at_s: float = 0.0
    keys: set[str] = field(default_factory=set)


@dataclass(eq=False, slots=True)
class _Follower:
    """`told_to` is the revision of the last item told; `read_to`, up to where the history is known to hold nothing more
    for it."""

    prefix: str
    waker: asyncio.Event
    told_at_s: float = 0.0
    told_to: int = -1
    read_to: int = -1


class MemoryStore:
    """One process's connection to a store in memory; satisfies fmproto.kv.KV. `beside()` makes another to the same store.
    Any number of followers; one event loop. `follow_period_s` is the longest silence of a follower."""

    def __init__(self, *, follow_period_s: float = FOLLOW_PERIOD_S, _world: _World | None = None) -> None:
        self._world = _World() if _world is None else _world
        self._reachable = True
        self._closed = False
        self._follow_period_s = follow_period_s
        self._followers: set[_Follower] = set()

    def beside(self) -> MemoryStore:
        """Another process's connection to the same store, which can be cut and closed by itself."""
        return MemoryStore(follow_period_s=self._follow_period_s, _world=self._world)

    @property
    def full(self) -> bool:
        """While true, puts and grants raise StoreFull on every connection; deletes, renewals and reads work."""
        return self._world.full

    @full.setter
    def full(self, full: bool) -> None:
        self._world.full = full

    @property
    def reachable(self) -> bool:
        """While false, requests of this connection raise StoreUnavailable, nothing of them is applied, and its followers
        are told nothing. Leases run on."""
        return self._reachable

    @reachable.setter
    def reachable(self, reachable: bool) -> None:
        self._reachable = reachable
        for follower in self._followers:
            follower.waker.set()

    async def read(self, prefix: str) -> Page:
        world = await self._asked()
        return Page(world.under(prefix), world.revision)

    async def get(self, key: str) -> Entry | None:
        return (await self._asked()).entries.get(key)

    async def write(self, guards: Sequence[Guard], ops: Sequence[Op]) -> int | Conflict:
        check_write(guards, ops)
        world = await self._asked()
        if world.full and any(isinstance(op, Put) for op in ops):
            # etcd refuses before it looks at the guards.
            raise StoreFull("memory: the store is full")
        if not all(world.holds(guard) for guard in guards):
            return Conflict(world.revision)
        for op in ops:
            if isinstance(op, Put) and op.lease and op.lease not in world.leases:
                raise LeaseGone(f"lease {op.lease:x} has ended")
        world.apply(ops)
        return world.revision

    async def follow(self, prefix: str) -> AsyncGenerator[Resync | Changes, None]:
        follower = _Follower(prefix, asyncio.Event())
        self._followers.add(follower)
        self._world.followers.add(follower)
        try:
            while True:
                follower.waker.clear()
                item = self._news(follower)
                if item is not None:
                    follower.told_at_s = _now_s()
                    yield item
                else:
                    await self._quiet(follower)
        finally:
            self._followers.discard(follower)
            self._world.followers.discard(follower)

    async def grant(self, ttl_s: float) -> int:
        whole_s = check_ttl(ttl_s)
        world = await self._asked()
        if world.full:
            raise StoreFull("memory: the store is full")
        return world.grant(whole_s)

    async def renew(self, lease: int) -> None:
        world = await self._asked()
        if lease not in world.leases:
            raise LeaseGone(f"lease {lease:x} has ended")
        world.run_on(lease)

    async def revoke(self, lease: int) -> None:
        world = await self._asked()
        if lease in world.leases:
            world.end(lease)

    async def compact(self, revision: int) -> None:
        world = await self._asked()
        if revision > world.revision:
            raise ValueError(f"memory: revision {revision} is a future revision; the store is at {world.revision}")
        world.forget_before(revision)

    async def status(self) -> StoreStatus:
        world = await self._asked()
        db_bytes = sum(len(entry.key) + len(entry.value) for entry in world.entries.values())
        return StoreStatus("memory", db_bytes, world.full, CLUSTER_ID)

    async def close(self) -> None:
        """Ends this connection's followers with StoreUnavailable, as etcd's client does. The store stays."""
        self._closed = True
        for follower in self._followers:
            follower.waker.set()

    async def _asked(self) -> _World:
        """The store as a request finds it. Others run first, as they do while a real request is on its way."""
        await asyncio.sleep(0)
        return self._now()

    def _now(self) -> _World:
        """The store as it is: leases end by the clock, not when the loop gets round to their timer."""
        if self._closed or not self._reachable:
            raise StoreUnavailable("memory: the store is closed" if self._closed else "memory: the store cannot be reached")
        self._world.end_leases()
        return self._world

    def _news(self, follower: _Follower) -> Resync | Changes | None:
        """What this follower should be told now, if anything."""
        if not self._reachable and not self._closed:
            # What was read but not told is lost with the connection: it resumes from the last change told.
            follower.read_to = follower.told_to
            return None
        world = self._now()
        if follower.read_to + 1 < world.oldest_watchable:
            follower.read_to = follower.told_to = world.revision
            return Resync(world.under(follower.prefix), world.revision)
        changes = world.changes_after(follower.read_to, follower.prefix)
        follower.read_to = world.revision
        if changes:
            follower.told_to = changes[-1].revision
        elif _now_s() < follower.told_at_s + self._follow_period_s:
            return None
        # As from etcd, an empty item claims no newer revision than the last change told.
        return Changes(changes, follower.told_to)

    async def _quiet(self, follower: _Follower) -> None:
        """Until something may be new, or a sign of life is due."""
        due_s = follower.told_at_s + self._follow_period_s if self._reachable else None
        with suppress(TimeoutError):
            async with asyncio.timeout_at(due_s):
                await follower.waker.wait()


class _World:
    """The state of one store."""

    def __init__(self) -> None:
        self.full = False
        # An empty etcd is at revision 1 too.
        self.revision = 1
        self.entries: dict[str, Entry] = {}
        self.leases: dict[int, _Lease] = {}
        self.followers: set[_Follower] = set()
        self._compacted = 0
        self._keys: list[str] = []
        self._history: list[Change] = []
        self._lease_last = 0
        self._ends: list[tuple[float, int]] = []
        self._timer: asyncio.TimerHandle | None = None

    @property
    def oldest_watchable(self) -> int:
        """The first revision that a watch may start from."""
        return max(self._compacted, 1)

    def under(self, prefix: str) -> tuple[Entry, ...]:
        first = bisect_left(self._keys, prefix)
        keys = takewhile(lambda key: key.startswith(prefix), islice(self._keys, first, None))
        return tuple(self.entries[key] for key in keys)

    def changes_after(self, revision: int, prefix: str) -> tuple[Change, ...]:
        news = islice(self._history, bisect_right(self._history, revision, key=_revision_of), None)
        return tuple(change for change in news if change.key.startswith(prefix))

    def holds(self, guard: Guard) -> bool:
        entry = self.entries.get(guard.key)
        mod, create = (entry.mod_revision, entry.create_revision) if entry is not None else (0, 0)
        return guard.mod_revision in (None, mod) and guard.create_revision in (None, create)

    def apply(self, ops: Sequence[Op]) -> None:
        """One revision for all; none where nothing changes (a deletion of absent keys), as in etcd."""
        revision = self.revision + 1
        changes = [change for op in ops if (change := self._change(op, revision)) is not None]
        if not changes:
            return
        self.revision = revision
        self._history += changes
        if len(self._history) > HISTORY_CHANGES_MAX:
            self.forget_before(self._history[HISTORY_CHANGES_MAX // 2].revision)
        for follower in self.followers:
            if any(change.key.startswith(follower.prefix) for change in changes):
                follower.waker.set()

    def forget_before(self, revision: int) -> None:
        self._compacted = max(self._compacted, revision)
        del self._history[: bisect_left(self._history, self._compacted, key=_revision_of)]

    def grant(self, ttl_s: int) -> int:
        self._lease_last += 1
        self.leases[self._lease_last] = _Lease(ttl_s)
        self.run_on(self._lease_last)
        return self._lease_last

    def run_on(self, lease: int) -> None:
        """From now for a full time to live."""
        held = self.leases[lease]
        held.ends_at_s = _now_s() + held.ttl_s
        heappush(self._ends, (held.ends_at_s, lease))
        self._set_timer()

    def end_leases(self) -> None:
        now_s = _now_s()
        while self._ends and self._ends[0][0] <= now_s:
            _, lease = heappop(self._ends)
            # A renewal leaves the older end in the heap.
            if lease in self.leases and self.leases[lease].ends_at_s <= now_s:
                self.end(lease)

    def end(self, lease: int) -> None:
        """Its keys go in one revision."""
        keys = sorted(self.leases.pop(lease).keys)
        self.apply([Delete(key) for key in keys])

    def _change(self, op: Op, revision: int) -> Change | None:
        old = self.entries.get(op.key)
        if old is not None and old.lease in self.leases:
            self.leases[old.lease].keys.discard(op.key)
        if isinstance(op, Put):
            entry = Entry(op.key, op.value, old.create_revision if old else revision, revision, op.lease)
            self.entries[op.key] = entry
            if old is None:
                insort(self._keys, op.key)
            if op.lease:
                self.leases[op.lease].keys.add(op.key)
            return Change(op.key, entry, revision)
        if old is None:
            return None
        del self.entries[op.key]
        del self._keys[bisect_left(self._keys, op.key)]
        return Change(op.key, None, revision)

    def _set_timer(self) -> None:
        """One timer for the earliest end, so that followers hear of it though nobody asks."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(self._ends[0][0], self._on_timer) if self._ends else None

    def _on_timer(self) -> None:
        self.end_leases()
        self._set_timer()


def _now_s() -> float:
    return asyncio.get_running_loop().time()


def _revision_of(change: Change) -> int:
    return change.revision
