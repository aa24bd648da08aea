"""One prefix followed over every fault of the store: list, watch from there, notice silence, resume.
fmproto.etcd.Etcd.follow.

Why a watch needs a rule of its own against silence: a frozen server, or a path that drops packets, ends no stream, and a
transport's keepalive is answered by a server that has stopped telling. So the stream is asked for its progress whenever
it was quiet for a period, and given up after SILENT_PERIODS_MAX periods without any message.

Progress answers prove life and nothing else. Their revision is not used to resume: etcd before 3.4.25 and 3.5.8 may send
it ahead of events that are still on their way (etcd-io/etcd#15220).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any, Protocol

import grpc

from fmproto import etcd_codec
from fmproto.etcd_faults import CompactedError, StoreReplaced, TokenRefusedError
from fmproto.etcd_pool import END_OF_STREAM, REQUIRE_LEADER, Connection, Pool
from fmproto.kv import Changes, Page, Resync, StoreUnavailable

# etcd's messages and grpc's stream calls; the wire types are untyped.
Message = Any
Stream = Any

SILENT_PERIODS_MAX = 3
BACKOFF_S_MIN = 0.05
# Short enough that an event written during a fault is known 2 s after the fault ends.
BACKOFF_S_MAX = 1.0


class Source(Protocol):
    """What following needs from whoever reads keys."""

    async def read(self, prefix: str) -> Page: ...

    async def probe(self, prefix: str) -> None:
        """One linearizable answer: raises StoreReplaced where the store is not the one known."""
        ...


async def follow(pool: Pool, source: Source, prefix: str, period_s: float) -> AsyncGenerator[Resync | Changes, None]:
    """See fmproto.kv.KV.follow. Raises StoreReplaced, and StoreUnavailable only once the pool is closed."""
    at: int | None = None
    backoff_s = BACKOFF_S_MIN
    # For ever, because a follower outlives every fault of the store; each round that failed waits.
    while True:
        try:
            if at is None:
                page = await source.read(prefix)
                at = page.revision
                yield Resync(page.entries, page.revision)
            else:
                await source.probe(prefix)
            async with aclosing(_batches(pool, prefix, at, period_s)) as batches:
                async for batch in batches:
                    backoff_s = BACKOFF_S_MIN
                    at = batch.revision
                    yield batch
        except CompactedError:
            at = None
        except StoreReplaced:
            raise
        except StoreUnavailable:
            if pool.closed:
                raise
        # Jitter: thousands of followers lose a member at the same moment.
        await asyncio.sleep(backoff_s * random.uniform(0.5, 1.0))  # noqa: S311  no secret
        backoff_s = min(backoff_s * 2, BACKOFF_S_MAX)


async def _batches(pool: Pool, prefix: str, at: int, period_s: float) -> AsyncGenerator[Changes, None]:
    """What one stream tells after revision `at`. Ends only by an exception: CompactedError, or a StoreUnavailable."""
    async with _open(pool, prefix, at + 1, period_s) as (connection, stream):
        events: list[Message] = []
        while True:
            response = await stream.receive()
            pool.check_stream(response.header, connection)
            if response.canceled:
                raise _ended(pool, connection, response)
            events.extend(response.events)
            # A revision may be split over fragments, and resuming counts whole revisions: nothing is told before the last.
            if etcd_codec.is_fragment(response):
                continue
            changes = tuple(change for change in etcd_codec.changes(events) if change.revision > at)
            events.clear()
            if changes:
                at = changes[-1].revision
                pool.saw(at)
            yield Changes(changes, at)


def _ended(pool: Pool, connection: Connection, response: Message) -> Exception:
    if response.compact_revision:
        return CompactedError(f"compacted at revision {response.compact_revision}")
    # With an expired token etcd does not refuse the stream but ends the watch, in 3.4 as "permission denied".
    pool.forget_token()
    pool.move_on(connection, retire=False)
    return StoreUnavailable(f"etcd at {connection.endpoint}: watch ended: {response.cancel_reason or 'no reason given'}")


@asynccontextmanager
async def _open(pool: Pool, prefix: str, start_revision: int, period_s: float) -> AsyncIterator[tuple[Connection, _Stream]]:
    async with pool.connection(pool.timeout_s) as connection:
        stream: _Stream | None = None
        try:
            call = connection.watch.Watch(metadata=(*await pool.metadata(connection, pool.timeout_s), *REQUIRE_LEADER))
            stream = _Stream(call, period_s)
            await stream.send(etcd_codec.watch_create(prefix, start_revision))
            yield connection, stream
        except grpc.aio.AioRpcError as error:
            meaning = pool.failed(connection, error)
            if isinstance(meaning, TokenRefusedError):
                pool.forget_token()
                meaning = StoreUnavailable(f"etcd at {connection.endpoint}: not authenticated: {meaning}")
            raise meaning from error
        except _SilentError as error:
            pool.move_on(connection, retire=True)
            raise StoreUnavailable(f"etcd at {connection.endpoint}: watch: {error}") from None
        finally:
            if stream is not None:
                await stream.close()


class _SilentError(Exception):
    """The stream told nothing for SILENT_PERIODS_MAX periods."""


class _Stream:
    """A watch stream that asks for a sign of life when it is quiet, and raises _SilentError where none comes."""

    def __init__(self, call: Stream, period_s: float) -> None:
        self._call = call
        self._period_s = period_s
        # One read is always under way. It is a task because cancelling a read of grpc.aio ends the whole call.
        self._reading = self._read()

    def _read(self) -> asyncio.Task[Message]:
        return asyncio.get_running_loop().create_task(self._call.read())

    async def send(self, request: Message) -> None:
        try:
            async with asyncio.timeout(self._period_s):
                await self._call.write(request)
        except TimeoutError:
            raise _SilentError(f"takes no request for {self._period_s} s") from None
        except asyncio.InvalidStateError:
            # The call has ended; the read says why.
            return

    async def receive(self) -> Message:
        for _ in range(SILENT_PERIODS_MAX):
            done, _pending = await asyncio.wait({self._reading}, timeout=self._period_s)
            if done:
                break
            await self.send(etcd_codec.watch_progress())
        else:
            raise _SilentError(f"silent for {SILENT_PERIODS_MAX} periods of {self._period_s} s")
        if self._reading.cancelled():
            raise _SilentError("its connection was closed")
        response = self._reading.result()
        if response is END_OF_STREAM:
            raise _SilentError("the server ended it without a reason")
        self._reading = self._read()
        return response

    async def close(self) -> None:
        self._call.cancel()
        # The read ends with the call; awaiting it here keeps its exception from being reported as lost.
        await asyncio.gather(self._reading, return_exceptions=True)
