"""etcd's RPCs, one coroutine each: what is asked, and whether it may be asked twice. Answers are etcd's messages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from etcd3 import etcdrpc

from fmproto import etcd_codec
from fmproto.etcd_pool import END_OF_STREAM, Connection, Metadata, Pool
from fmproto.kv import Guard, LeaseGone, Op, StoreUnavailable

# The wire types and their stubs are generated at run time and untyped.
Message = Any
Method = Callable[[Connection], Any]


class Requests:
    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def range(self, first: bytes, range_end: bytes, *, limit: int = 0, revision: int = 0) -> Message:
        """The keys from `first` up to `range_end` (empty: only `first`), in key order, as of a revision (0: now)."""
        request = etcdrpc.RangeRequest(key=first, range_end=range_end, limit=limit, revision=revision)
        return await self._ask(lambda at: at.kv.Range, request, repeatable=True, linearizable=True)

    async def transaction(self, guards: Sequence[Guard], ops: Sequence[Op]) -> Message:
        request = etcd_codec.transaction(guards, ops)
        return await self._ask(lambda at: at.kv.Txn, request, repeatable=False, linearizable=True)

    async def delete(self, key: str) -> Message:
        request = etcdrpc.DeleteRangeRequest(key=etcd_codec.to_bytes(key))
        return await self._ask(lambda at: at.kv.DeleteRange, request, repeatable=False, linearizable=True)

    async def compact(self, revision: int) -> None:
        await self._ask(lambda at: at.kv.Compact, etcdrpc.CompactionRequest(revision=revision), repeatable=True)

    async def grant(self, ttl_s: int) -> Message:
        return await self._ask(lambda at: at.lease.LeaseGrant, etcdrpc.LeaseGrantRequest(TTL=ttl_s), repeatable=False)

    async def revoke(self, lease: int) -> None:
        await self._ask(lambda at: at.lease.LeaseRevoke, etcdrpc.LeaseRevokeRequest(ID=lease), repeatable=True)

    async def status(self) -> Message:
        return await self._ask(lambda at: at.maintenance.Status, etcdrpc.StatusRequest(), repeatable=True)

    async def renew(self, lease: int) -> None:
        """One keep-alive on a stream of its own: leases are renewed seldom enough, and no stream is left to hang. Raises
        LeaseGone."""
        request = etcdrpc.LeaseKeepAliveRequest(ID=lease)

        async def send(connection: Connection, timeout_s: float, metadata: Metadata) -> Message:
            stream = connection.lease.LeaseKeepAlive(timeout=timeout_s, metadata=metadata)
            try:
                return await _ask_once(stream, request)
            finally:
                stream.cancel()

        answer = await self._pool.call(send, repeatable=True)
        if answer.TTL <= 0:
            raise LeaseGone(f"lease {lease:x} has ended")

    async def _ask(self, method: Method, request: Message, *, repeatable: bool, linearizable: bool = False) -> Message:
        async def send(connection: Connection, timeout_s: float, metadata: Metadata) -> Message:
            return await method(connection)(request, timeout=timeout_s, metadata=metadata)

        return await self._pool.call(send, repeatable=repeatable, linearizable=linearizable)


async def _ask_once(stream: Any, request: Message) -> Message:
    # Raised where the call has ended already; the read says why.
    with suppress(asyncio.InvalidStateError):
        await stream.write(request)
    answer = await stream.read()
    if answer is END_OF_STREAM:
        raise StoreUnavailable("etcd: a keep-alive stream ended without an answer")
    return answer
