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
    """Satisfies fmproto.kv.KV. Any number of followers; one event loop. `follow_period_s` is the longest silence of a
    follower."""

    def __init__(self, *, follow_period_s: float = FOLLOW_PERIOD_S) -> None:
        # While true, puts and grants raise StoreFull; deletes, renewals and reads work.
        self.full = False
        self._reachable = True
        self._closed = False
        self._follow_period_s = follow_period_s
        # An empty etcd is at revision 1 too.
        self._revision = 1
        self._compacted = 0
        self._entries: dict[str, Entry] = {}
        self._keys: list[str] = []
        self._history: list[Change] = []
        self._leases: dict[int, _Lease] = {}
        self._lease_last = 0
        self._ends: list[tuple[float, int]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._followers: set[_Follower] = set()

    @property
    def reachable(self) -> bool:
        """While false, requests raise StoreUnavailable, nothing is applied, and followers are told nothing. Leases run
        on."""
        return self._reachable

    @reachable.setter
    def reachable(self, reachable: bool) -> None:
        self._reachable = reachable
        self._wake()

    async def read(self, prefix: str) -> Page:
        self._begin()
        return Page(self._under(prefix), self._revision)

    async def get(self, key: str) -> Entry | None:
        self._begin()
        return self._entries.get(key)

    async def write(self, guards: Sequence[Guard], ops: Sequence[Op]) -> int | Conflict:
        check_write(guards, ops)
        self._begin()
        if self.full and any(isinstance(op, Put) for op in ops):
            # etcd refuses before it looks at the guards.
            raise StoreFull("memory: the store is full")
        if not all(self._holds(guard) for guard in guards):
            return Conflict(self._revision)
        for op in ops:
            if isinstance(op, Put) and op.lease and op.lease not in self._leases:
                raise LeaseGone(f"lease {op.lease:x} has ended")
        self._apply(ops)
        return self._revision

    async def follow(self, prefix: str) -> AsyncGenerator[Resync | Changes, None]:
        follower = _Follower(prefix, asyncio.Event())
        self._followers.add(follower)
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

    async def grant(self, ttl_s: float) -> int:
        whole_s = check_ttl(ttl_s)
        self._begin()
        if self.full:
            raise StoreFull("memory: the store is full")
        self._lease_last += 1
        self._leases[self._lease_last] = _Lease(whole_s)
        self._run_on(self._lease_last)
        return self._lease_last

    async def renew(self, lease: int) -> None:
        self._begin()
        if lease not in self._leases:
            raise LeaseGone(f"lease {lease:x} has ended")
        self._run_on(lease)

    async def revoke(self, lease: int) -> None:
        self._begin()
        if lease in self._leases:
            self._end(lease)

    async def compact(self, revision: int) -> None:
        self._begin()
        if revision > self._revision:
            raise ValueError(f"memory: revision {revision} is a future revision; the store is at {self._revision}")
        self._forget_before(revision)

    async def status(self) -> StoreStatus:
        self._begin()
        db_bytes = sum(len(entry.key) + len(entry.value) for entry in self._entries.values())
        return StoreStatus("memory", db_bytes, self.full, CLUSTER_ID)

    async def close(self) -> None:
        """Ends followers with StoreUnavailable, as etcd's client does."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._wake()

    def _begin(self) -> None:
        """Before any request: leases end now, not when the loop gets round to their timer."""
        if self._closed or not self._reachable:
            raise StoreUnavailable("memory: the store is closed" if self._closed else "memory: the store cannot be reached")
        self._end_leases()

    def _under(self, prefix: str) -> tuple[Entry, ...]:
        start = bisect_left(self._keys, prefix)
        return tuple(
            self._entries[key] for key in takewhile(lambda key: key.startswith(prefix), islice(self._keys, start, None))
        )

    def _holds(self, guard: Guard) -> bool:
        entry = self._entries.get(guard.key)
        mod, create = (entry.mod_revision, entry.create_revision) if entry is not None else (0, 0)
        return guard.mod_revision in (None, mod) and guard.create_revision in (None, create)

    def _apply(self, ops: Sequence[Op]) -> None:
        """One revision for all; none where nothing changes (a deletion of absent keys), as in etcd."""
        revision = self._revision + 1
        changes = [change for op in ops if (change := self._change(op, revision)) is not None]
        if not changes:
            return
        self._revision = revision
        self._history += changes
        if len(self._history) > HISTORY_CHANGES_MAX:
            self._forget_before(self._history[HISTORY_CHANGES_MAX // 2].revision)
        self._wake([change.key for change in changes])

    def _change(self, op: Op, revision: int) -> Change | None:
        old = self._entries.get(op.key)
        if old is not None and old.lease in self._leases:
            self._leases[old.lease].keys.discard(op.key)
        if isinstance(op, Put):
            entry = Entry(op.key, op.value, old.create_revision if old else revision, revision, op.lease)
            self._entries[op.key] = entry
            if old is None:
                insort(self._keys, op.key)
            if op.lease:
                self._leases[op.lease].keys.add(op.key)
            return Change(op.key, entry, revision)
        if old is None:
            return None
        del self._entries[op.key]
        del self._keys[bisect_left(self._keys, op.key)]
        return Change(op.key, None, revision)

    def _forget_before(self, revision: int) -> None:
        self._compacted = max(self._compacted, revision)
        del self._history[: bisect_left(self._history, self._compacted, key=_revision_of)]

    # Followers

    def _news(self, follower: _Follower) -> Resync | Changes | None:
        """What this follower should be told now, if anything."""
        if self._closed:
            raise StoreUnavailable("memory: the store is closed")
        self._end_leases()
        if not self._reachable:
            # What was read but not told is lost with the connection: it resumes from the last change told.
            follower.read_to = follower.told_to
            return None
        if follower.read_to + 1 < max(self._compacted, 1):
            follower.read_to = follower.told_to = self._revision
            return Resync(self._under(follower.prefix), self._revision)
        news = islice(self._history, bisect_right(self._history, follower.read_to, key=_revision_of), None)
        changes = tuple(change for change in news if change.key.startswith(follower.prefix))
        follower.read_to = self._revision
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

    def _wake(self, keys: Sequence[str] | None = None) -> None:
        for follower in self._followers:
            if keys is None or any(key.startswith(follower.prefix) for key in keys):
                follower.waker.set()

    # Leases

    def _run_on(self, lease: int) -> None:
        """From now for a full time to live."""
        held = self._leases[lease]
        held.ends_at_s = _now_s() + held.ttl_s
        heappush(self._ends, (held.ends_at_s, lease))
        self._set_timer()

    def _end_leases(self) -> None:
        now_s = _now_s()
        while self._ends and self._ends[0][0] <= now_s:
            _, lease = heappop(self._ends)
            # Renewed leases leave their older ends in the heap.
            if lease in self._leases and self._leases[lease].ends_at_s <= now_s:
                self._end(lease)

    def _end(self, lease: int) -> None:
        keys = sorted(self._leases.pop(lease).keys)
        self._apply([Delete(key) for key in keys])

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(self._ends[0][0], self._on_timer) if self._ends else None

    def _on_timer(self) -> None:
        self._end_leases()
        self._set_timer()


def _now_s() -> float:
    return asyncio.get_running_loop().time()


def _revision_of(change: Change) -> int:
    return change.revision
