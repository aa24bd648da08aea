"""The one connection to etcd: fmproto.kv.KV over grpc.aio, with the wire types and stubs of cslab-etcd3.

Not its client, which is synchronous: it blocks a thread for each watch, its watch is known to hang after a lost connection
(kragniz/python-etcd3#88, #1227), and no call of it can be cancelled while a server is frozen.

grpc and the wire types are imported when the first Etcd is made, so that naming this module costs little. The parts:
etcd_requests (the RPCs), etcd_pool (endpoints, failover, login), etcd_watch (follow), etcd_codec (messages), etcd_faults
(errors), etcd_rules (limits), etcd_tls.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Any

from fmproto.channel import Options, client_options
from fmproto.etcd_faults import CompactedError, StoreReplaced, is_oversized
from fmproto.etcd_rules import check_ttl, check_write
from fmproto.etcd_tls import Tls
from fmproto.kv import Changes, Conflict, Delete, Entry, Guard, LeaseGone, Op, Page, Resync, StoreStatus, StoreUnavailable

__all__ = ["Etcd", "StoreReplaced", "Tls"]

# etcd's messages; the wire types are untyped.
Message = Any

REQUEST_TIMEOUT_S = 5.0
WATCH_PERIOD_S = 2.0

# A long list is read in pages: few keys at first, as values may have 1.5 MB each, then as many as fill PAGE_BYTES.
PAGE_KEYS_FIRST = 32
PAGE_KEYS_MAX = 10_000
PAGE_KEYS_GROWTH = 8
PAGE_BYTES = 4 * 1024 * 1024
# A list whose revision is compacted away under way starts again. Compaction that outruns it five times is a fault of its
# own.
LISTINGS_MAX = 5


class Etcd:
    """One cluster, reached over `endpoints` ("host:port"). Make it inside the event loop that uses it. Times are in
    seconds. `request_timeout_s` holds for one request over all endpoints (of `read`: for each page of the list); a watch
    is given up for another endpoint after three periods of `watch_period_s` without a sign of life.

    Beyond fmproto.kv.KV, every method may raise StoreReplaced, a StoreUnavailable: what answers is not the store known
    before.
    """

    def __init__(
        self,
        endpoints: Sequence[str],
        *,
        tls: Tls | None = None,
        user: str | None = None,
        password: str | None = None,
        request_timeout_s: float = REQUEST_TIMEOUT_S,
        watch_period_s: float = WATCH_PERIOD_S,
        options: Options | None = None,
    ) -> None:
        """Raises ValueError for endpoints or a login that cannot be used. `options` replaces
        fmproto.channel.client_options()."""
        if not endpoints:
            raise ValueError("etcd: no endpoints; give at least one host:port")
        for endpoint in endpoints:
            _check_endpoint(endpoint)
        login = None
        if user is not None and password is not None:
            login = (user, password)
        elif user is not None or password is not None:
            raise ValueError("etcd: one of user and password is missing; give both or neither")
        from fmproto import etcd_codec, etcd_watch
        from fmproto.etcd_pool import Pool
        from fmproto.etcd_requests import Requests

        self._codec = etcd_codec
        self._follow = etcd_watch.follow
        self._watch_period_s = watch_period_s
        self._pool = Pool(endpoints, tls, login, request_timeout_s, client_options() if options is None else options)
        self._requests = Requests(self._pool)

    async def read(self, prefix: str) -> Page:
        for _ in range(LISTINGS_MAX):
            try:
                return await self._list(prefix)
            except CompactedError:
                continue
        raise StoreUnavailable(f"etcd: {prefix!r} was compacted away while it was read, {LISTINGS_MAX} times")

    async def get(self, key: str) -> Entry | None:
        answer = await self._requests.range(self._codec.to_bytes(key), b"")
        return self._codec.entry(answer.kvs[0]) if answer.kvs else None

    async def write(self, guards: Sequence[Guard], ops: Sequence[Op]) -> int | Conflict:
        """A full etcd takes deletions, but before 3.4.20 and 3.5.7 it refuses every transaction, one that only deletes
        included (etcd-io/etcd#13435): there, only a single deletion without guards gets through."""
        check_write(guards, ops)
        if not guards and len(ops) == 1 and isinstance(ops[0], Delete):
            return int((await self._requests.delete(ops[0].key)).header.revision)
        answer = await self._requests.transaction(guards, ops)
        return int(answer.header.revision) if answer.succeeded else Conflict(answer.header.revision)

    def follow(self, prefix: str) -> AsyncGenerator[Resync | Changes, None]:
        return self._follow(self._pool, self, prefix, self._watch_period_s)

    async def grant(self, ttl_s: float) -> int:
        answer = await self._requests.grant(check_ttl(ttl_s))
        return int(answer.ID)

    async def renew(self, lease: int) -> None:
        await self._requests.renew(lease)

    async def revoke(self, lease: int) -> None:
        """Also where it has ended already."""
        try:
            await self._requests.revoke(lease)
        except LeaseGone:
            return

    async def compact(self, revision: int) -> None:
        """Forgets what was before `revision`. Raises ValueError for a revision that is not reached yet."""
        try:
            await self._requests.compact(revision)
        except CompactedError:
            return

    async def status(self) -> StoreStatus:
        """Of the member that answers. `full` is any member's NOSPACE alarm, which holds for the whole cluster."""
        answer = await self._requests.status()
        full = any("NOSPACE" in error for error in self._codec.status_errors(answer))
        return StoreStatus(answer.version, answer.dbSize, full, answer.header.cluster_id)

    async def probe(self, prefix: str) -> None:
        """One linearizable answer: raises StoreReplaced where the store is not the one known."""
        await self._requests.range(self._codec.to_bytes(prefix or "\0"), b"")

    async def close(self) -> None:
        """Ends followers and requests under way with StoreUnavailable."""
        await self._pool.close()

    async def _list(self, prefix: str) -> Page:
        first, range_end = self._codec.prefix_range(prefix)
        entries: list[Entry] = []
        revision, limit = 0, PAGE_KEYS_FIRST
        # Ends: every page holds a key or is the last, and a smaller page is asked for only down to one key.
        while True:
            try:
                answer = await self._requests.range(first, range_end, limit=limit, revision=revision)
            except StoreUnavailable as error:
                if limit == 1 or not is_oversized(error):
                    raise
                limit = 1
                continue
            revision = revision or answer.header.revision
            entries += map(self._codec.entry, answer.kvs)
            if not answer.more:
                return Page(tuple(entries), revision)
            first = answer.kvs[-1].key + b"\0"
            limit = _next_limit(limit, answer.ByteSize() // len(answer.kvs))


def _next_limit(limit: int, key_bytes: int) -> int:
    return max(1, min(limit * PAGE_KEYS_GROWTH, PAGE_KEYS_MAX, PAGE_BYTES // max(key_bytes, 1)))


def _check_endpoint(endpoint: str) -> None:
    host, colon, port = endpoint.rpartition(":")
    if not host or not colon or not port.isdigit() or "/" in endpoint:
        raise ValueError(f"etcd: endpoint {endpoint!r} is not host:port, such as 10.0.0.1:2379 or [fd00::1]:2379")
