"""The store port: what every process may ask of durable state. etcd (fmproto.etcd) and memory (fmsched.store.memory) satisfy
it, under one contract suite (tests/contract). Keys are text, values bytes, revisions those of the whole store.

A write that raises StoreUnavailable has an unknown result: read before writing again.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Protocol

# etcd's default --max-txn-ops; compares, and operations, are each held to it.
OPERATIONS_MAX = 128


class StoreUnavailable(Exception):
    """The store did not answer in time. A write may or may not have been applied."""


class StoreFull(Exception):
    """The store refuses whatever grows it (etcd: NOSPACE). Reads, deletes and lease renewals still work. Nothing was applied."""


class LeaseGone(Exception):
    """The lease has ended: its keys are gone. Grant a new one and write them again."""


@dataclass(frozen=True, slots=True)
class Entry:
    key: str
    value: bytes
    create_revision: int
    mod_revision: int
    lease: int = 0


@dataclass(frozen=True, slots=True)
class Page:
    """Every entry under a prefix, in key order, as of one revision."""

    entries: tuple[Entry, ...]
    revision: int


@dataclass(frozen=True, slots=True)
class Guard:
    """What must hold for a write to be applied; 0 means that the key is absent."""

    key: str
    mod_revision: int | None = None
    create_revision: int | None = None


@dataclass(frozen=True, slots=True)
class Put:
    key: str
    value: bytes
    lease: int = 0


@dataclass(frozen=True, slots=True)
class Delete:
    key: str


Op = Put | Delete


@dataclass(frozen=True, slots=True)
class Conflict:
    """A guard did not hold; nothing was applied. A lost race is a value, not an error."""

    revision: int


@dataclass(frozen=True, slots=True)
class Change:
    """One key as it is now: `entry` is None where it was deleted."""

    key: str
    entry: Entry | None
    revision: int


@dataclass(frozen=True, slots=True)
class Resync:
    """The whole picture: replaces whatever the follower knew."""

    entries: tuple[Entry, ...]
    revision: int


@dataclass(frozen=True, slots=True)
class Changes:
    """What changed since the last item, oldest first, each event once. May be empty: proof that the watch is alive."""

    changes: tuple[Change, ...]
    revision: int


@dataclass(frozen=True, slots=True)
class StoreStatus:
    version: str
    db_bytes: int
    full: bool
    cluster_id: int


class KV(Protocol):
    """All methods may raise StoreUnavailable; none blocks longer than the adapter's request timeout."""

    async def read(self, prefix: str) -> Page: ...

    async def get(self, key: str) -> Entry | None: ...

    async def write(self, guards: Sequence[Guard], ops: Sequence[Op]) -> int | Conflict:
        """All or nothing; answers the revision. Raises StoreFull, LeaseGone (a put names an ended lease), ValueError over
        OPERATIONS_MAX guards or operations."""
        ...

    def follow(self, prefix: str) -> AsyncGenerator[Resync | Changes, None]:
        """First a Resync, then Changes for ever. Survives lost connections, frozen servers and compaction by itself: it
        resumes from its revision, and sends a new Resync where it cannot. While the store is unreachable it sends
        nothing; while it is reachable it sends at least an empty Changes every few seconds."""
        ...

    async def grant(self, ttl_s: float) -> int:
        """A lease. Raises StoreFull: a full etcd renews leases but grants none."""
        ...

    async def renew(self, lease: int) -> None:
        """Raises LeaseGone."""
        ...

    async def revoke(self, lease: int) -> None: ...

    async def compact(self, revision: int) -> None: ...

    async def status(self) -> StoreStatus: ...

    async def close(self) -> None: ...
