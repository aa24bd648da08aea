"""Who leads: one leased key per candidate under fmproto.keys.ELECTION; the one created first leads.

Nobody is leader by a clock or by an earlier answer. A process may believe that it leads while it does not (it was paused
past its lease); so each state write carries `Leadership.guard()`, and etcd refuses it once the key is gone. The term is
the key's create revision: it grows from leader to leader, so it serves as the fencing token that agents compare.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing, suppress
from dataclasses import dataclass, field

from fmproto import keys
from fmproto.kv import KV, Changes, Conflict, Entry, Guard, LeaseGone, Put, Resync, StoreFull, StoreUnavailable

# Between attempts while the store is full or unreachable. No jitter: candidates are few.
RETRY_S = 1.0
# A renewal that failed is tried again this soon, as the lease runs out meanwhile.
RENEW_RETRY_S = 0.2
RENEWALS_PER_TTL = 3


@dataclass(frozen=True, slots=True)
class Leadership:
    """`term` is the fencing token. `lost` is set once etcd has said that the lease is gone; unset, it proves nothing."""

    key: str
    term: int
    lease: int
    lost: asyncio.Event = field(default_factory=asyncio.Event, compare=False, repr=False)

    def guard(self) -> Guard:
        """To be put into every state write: it holds only while this leadership does."""
        return Guard(self.key, create_revision=self.term)


class Election:
    """One candidate. `address` is where clients reach it (host:port). `ttl_s` bounds how long a dead leader blocks the
    next; it should be at least RENEWALS_PER_TTL request timeouts of the store."""

    def __init__(self, kv: KV, candidate_name: str, address: str, ttl_s: float) -> None:
        self._kv = kv
        self._ttl_s = ttl_s
        self._value = json.dumps({"name": candidate_name, "address": address}).encode()
        self._candidacy: Leadership | None = None
        self._keeping: asyncio.Task[None] | None = None

    async def campaign(self) -> Leadership:
        """Waits, for ever if need be, until this candidate leads; a store that is full or unreachable is tried again.
        When the leadership is lost, campaign again. Cancelled, it withdraws."""
        await self.resign()
        try:
            # For ever: a candidate has nothing else to do.
            while True:
                with suppress(StoreFull, StoreUnavailable, LeaseGone):
                    candidacy = await self._stand()
                    if candidacy is not None and await self._first(candidacy):
                        return candidacy
                await self.resign()
                await asyncio.sleep(RETRY_S)
        except BaseException:
            await self.resign()
            raise

    async def resign(self) -> None:
        """Gives up leadership or candidacy, so that the next need not wait for the lease's end. Best effort: an
        unreachable store ends the lease by itself."""
        candidacy, self._candidacy = self._candidacy, None
        keeping, self._keeping = self._keeping, None
        if keeping is not None:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)
        if candidacy is not None:
            candidacy.lost.set()
            with suppress(StoreUnavailable):
                await self._kv.revoke(candidacy.lease)

    async def leader(self) -> str | None:
        """The address of who leads, by etcd's word; None while nobody does. Raises StoreUnavailable."""
        page = await self._kv.read(keys.ELECTION)
        first = min((entry for entry in page.entries if entry.lease), key=_age, default=None)
        return _address(first) if first is not None else None

    async def _stand(self) -> Leadership | None:
        lease = await self._kv.grant(self._ttl_s)
        key = f"{keys.ELECTION}{lease:016x}"
        # Known before the key is written: if the write's result stays unknown, resign() ends what may have been written.
        self._candidacy = Leadership(key, 0, lease)
        term = await self._kv.write([Guard(key, create_revision=0)], [Put(key, self._value, lease)])
        if isinstance(term, Conflict):
            return None
        self._candidacy = Leadership(key, term, lease)
        self._keeping = asyncio.get_running_loop().create_task(self._keep(self._candidacy))
        return self._candidacy

    async def _first(self, candidacy: Leadership) -> bool:
        """Until no older candidate is left; False where this one's own key went first."""
        items = self._kv.follow(keys.ELECTION)
        standing: dict[str, int] = {}
        async with aclosing(items):
            async for item in items:
                if isinstance(item, Resync):
                    # A key without a lease is no candidate's: it would stand, and lead nobody, for ever.
                    standing = {entry.key: entry.create_revision for entry in item.entries if entry.lease}
                else:
                    _update(standing, item)
                if candidacy.key not in standing:
                    return False
                if min(standing.values()) == candidacy.term:
                    return True
        return False

    async def _keep(self, candidacy: Leadership) -> None:
        """Renews until etcd says that the lease is gone: an unreachable store proves nothing either way."""
        while True:
            try:
                await self._kv.renew(candidacy.lease)
                wait_s = self._ttl_s / RENEWALS_PER_TTL
            except LeaseGone:
                candidacy.lost.set()
                return
            except StoreUnavailable:
                wait_s = RENEW_RETRY_S
            await asyncio.sleep(wait_s)


def _update(standing: dict[str, int], item: Changes) -> None:
    for change in item.changes:
        if change.entry is None:
            standing.pop(change.key, None)
        elif change.entry.lease:
            standing[change.key] = change.entry.create_revision


def _age(entry: Entry) -> int:
    return entry.create_revision


def _address(entry: Entry) -> str | None:
    """None for a value that no fmsched wrote: whoever it is, it cannot be reached."""
    try:
        value = json.loads(entry.value)
    except ValueError:
        return None
    address = value.get("address") if isinstance(value, dict) else None
    return address if isinstance(address, str) else None
