"""Connections to the members of one etcd cluster: which one is used, when another is tried, who we are, and whether it is
still the same cluster. Knows nothing of keys; fmproto.etcd asks through it.

Failover. A request goes to the current endpoint. Where the connection cannot be made, nothing was sent, so any request
may go to the next endpoint. Once it was sent, only repeatable requests (reads, renewals) go on to the next; any other
ends as StoreUnavailable, its result unknown. A silent or broken connection is retired: new work takes a fresh one (a TCP
connection that lost packets for a minute waits for its retransmission timer as long again after the network heals), and
it is closed when its last user lets go.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
from etcd3 import etcdrpc

from fmproto.channel import Options
from fmproto.etcd_faults import StoreReplaced, TokenRefusedError, fault
from fmproto.etcd_tls import Tls
from fmproto.kv import StoreUnavailable

# The wire types and their stubs are generated at run time and untyped.
Message = Any
# What a stream's read answers at its end; grpc's type stubs do not know it.
END_OF_STREAM: Any = grpc.aio.EOF  # type: ignore[attr-defined]
Metadata = tuple[tuple[str, str], ...]
Send = Callable[["Connection", float, Metadata], Awaitable[Any]]

# A member cut off from its leader keeps watches open and tells nothing; asked so, it ends them
# (clientv3.WithRequireLeader). Not for single requests: those wait for the election's end, which is what their caller
# wants.
REQUIRE_LEADER = (("hasleader", "true"),)

_OWN_OPTIONS: Options = [
    # Channels to one address share a TCP connection unless told otherwise: a fresh channel would wait on the broken one.
    ("grpc.use_local_subchannel_pool", 1),
    # The members are named by the operator; a proxy meant for the web is never on the way to them.
    ("grpc.enable_http_proxy", 0),
]


class _NotSentError(StoreUnavailable):
    """No connection: the request has certainly not reached etcd."""


@dataclass(eq=False, slots=True)
class Connection:
    """One channel to one endpoint, and who uses it."""

    endpoint: str
    channel: grpc.aio.Channel
    users: int = 0
    retired: bool = False
    kv: Any = field(init=False)
    watch: Any = field(init=False)
    lease: Any = field(init=False)
    maintenance: Any = field(init=False)
    auth: Any = field(init=False)

    def __post_init__(self) -> None:
        self.kv = etcdrpc.KVStub(self.channel)
        self.watch = etcdrpc.WatchStub(self.channel)
        self.lease = etcdrpc.LeaseStub(self.channel)
        self.maintenance = etcdrpc.MaintenanceStub(self.channel)
        self.auth = etcdrpc.AuthStub(self.channel)


class Pool:
    def __init__(
        self,
        endpoints: Sequence[str],
        tls: Tls | None,
        login: tuple[str, str] | None,
        timeout_s: float,
        options: Options,
    ) -> None:
        self.endpoints = tuple(endpoints)
        self.timeout_s = timeout_s
        self._tls = tls
        self._login = login
        self._options = [*options, *_OWN_OPTIONS]
        self._at = 0
        # By endpoint, for new work; and every channel that is still open, retired ones included.
        self._connections: dict[int, Connection] = {}
        self._open: set[Connection] = set()
        self._closing: set[asyncio.Task[None]] = set()
        self._token: str | None = None
        self._cluster_id = 0
        self._revision_floor = 0
        self.closed = False

    async def call(self, send: Send, *, repeatable: bool, linearizable: bool = False) -> Message:
        """One request; within timeout_s altogether. `linearizable` says that the answer's revision cannot be older than
        any that was seen before the question."""
        floor = self._revision_floor if linearizable else None
        deadline = _now() + self.timeout_s
        failed: Exception | None = None
        for tries_left in range(len(self.endpoints), 0, -1):
            share_s = _left_s(deadline) / tries_left
            try:
                async with self.connection(share_s) as connection:
                    response = await self._send(send, connection, share_s if repeatable else _left_s(deadline))
            except _NotSentError as error:
                failed = StoreUnavailable(str(error))
            except StoreUnavailable as error:
                failed = error
                if not repeatable:
                    break
            else:
                self._check(response.header, connection.endpoint, floor)
                return response
        assert failed is not None
        raise failed

    @asynccontextmanager
    async def connection(self, within_s: float) -> AsyncIterator[Connection]:
        """A connection that is up. Raises _NotSentError, a StoreUnavailable, where it does not come up in time."""
        connection = self._current()
        connection.users += 1
        try:
            await self._ready(connection, within_s)
            yield connection
        finally:
            connection.users -= 1
            self._close_if_unused(connection)

    async def metadata(self, connection: Connection, timeout_s: float) -> Metadata:
        """Who asks: the auth token, made where there is none yet."""
        if self._login is None:
            return ()
        if self._token is None:
            name, password = self._login
            request = etcdrpc.AuthenticateRequest(name=name, password=password)
            answer = await connection.auth.Authenticate(request, timeout=timeout_s)
            self._token = str(answer.token)
        return (("token", self._token),)

    def forget_token(self) -> None:
        self._token = None

    def move_on(self, connection: Connection, *, retire: bool) -> None:
        """New work goes to the next endpoint; with `retire`, nothing new uses this connection again."""
        if retire:
            self._retire(connection)
        if self.endpoints[self._at] == connection.endpoint:
            self._at = (self._at + 1) % len(self.endpoints)

    def check_stream(self, header: Message, connection: Connection) -> None:
        """A stream's headers may lag behind (they come from one member), so only the cluster is checked."""
        self._check(header, connection.endpoint, floor=None)

    def saw(self, revision: int) -> None:
        """The store has reached this revision: from now on an answer below it comes from another store."""
        self._revision_floor = max(self._revision_floor, revision)

    async def close(self) -> None:
        """Ends whatever is under way."""
        self.closed = True
        self._connections.clear()
        while self._open:
            await self._open.pop().channel.close(None)
        await asyncio.gather(*self._closing)

    def _current(self) -> Connection:
        if self.closed:
            raise StoreUnavailable("etcd: this client is closed")
        connection = self._connections.get(self._at)
        if connection is not None and connection.channel.get_state() == grpc.ChannelConnectivity.TRANSIENT_FAILURE:
            # It waits out a back-off of grpc's own; the member may be back already.
            self._retire(connection)
            connection = None
        if connection is None:
            endpoint = self.endpoints[self._at]
            connection = Connection(endpoint, _channel(endpoint, self._tls, self._options))
            self._connections[self._at] = connection
            self._open.add(connection)
        return connection

    def _retire(self, connection: Connection) -> None:
        if connection.retired:
            return
        connection.retired = True
        self._connections = {at: known for at, known in self._connections.items() if known is not connection}
        self._close_if_unused(connection)

    def _close_if_unused(self, connection: Connection) -> None:
        if connection.retired and connection.users == 0:
            self._open.discard(connection)
            task = asyncio.get_running_loop().create_task(connection.channel.close(None))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def _ready(self, connection: Connection, within_s: float) -> None:
        channel = connection.channel
        if channel.get_state() == grpc.ChannelConnectivity.READY:
            return
        try:
            async with asyncio.timeout(within_s):
                while (state := channel.get_state(try_to_connect=True)) != grpc.ChannelConnectivity.READY:
                    if state in (grpc.ChannelConnectivity.TRANSIENT_FAILURE, grpc.ChannelConnectivity.SHUTDOWN):
                        self.move_on(connection, retire=True)
                        raise _NotSentError(f"etcd at {connection.endpoint}: cannot connect")
                    await channel.wait_for_state_change(state)
        except TimeoutError:
            self.move_on(connection, retire=True)
            raise _NotSentError(f"etcd at {connection.endpoint}: no connection within {within_s:.1f} s") from None

    async def _send(self, send: Send, connection: Connection, timeout_s: float) -> Message:
        """Raises what fmproto.etcd_faults makes of a failure. A refused token is renewed once."""
        deadline = _now() + timeout_s
        for attempt in range(2):
            try:
                return await self._attempt(send, connection, deadline)
            except TokenRefusedError as error:
                self.forget_token()
                if attempt or self._login is None:
                    raise StoreUnavailable(f"etcd at {connection.endpoint}: not authenticated: {error}") from error
        raise AssertionError("unreachable: the second attempt returns or raises")

    async def _attempt(self, send: Send, connection: Connection, deadline: float) -> Message:
        try:
            metadata = await self.metadata(connection, _left_s(deadline))
            return await send(connection, _left_s(deadline), metadata)
        except grpc.aio.AioRpcError as error:
            raise self.failed(connection, error) from error
        except (asyncio.CancelledError, grpc.aio.UsageError):
            if not self.closed or _is_being_cancelled():
                raise
            # How grpc.aio reports that close() ended the call, or came before it.
            raise StoreUnavailable("etcd: this client was closed") from None

    def failed(self, connection: Connection, error: grpc.aio.AioRpcError) -> Exception:
        """What the failure means; the next work goes elsewhere where this endpoint is at fault."""
        meaning = fault(error, connection.endpoint)
        if isinstance(meaning, StoreUnavailable):
            self.move_on(connection, retire=error.code() == grpc.StatusCode.DEADLINE_EXCEEDED)
        return meaning

    def _check(self, header: Message, endpoint: str, floor: int | None) -> None:
        if self._cluster_id == 0:
            self._cluster_id = header.cluster_id
        if header.cluster_id != self._cluster_id:
            raise StoreReplaced(
                f"etcd at {endpoint}: cluster {header.cluster_id:x}; this process knew {self._cluster_id:x}"
            )
        if floor is None:
            return
        if header.revision < floor:
            raise StoreReplaced(f"etcd at {endpoint}: at revision {header.revision}; this process has seen {floor}")
        self.saw(header.revision)


def _now() -> float:
    return asyncio.get_running_loop().time()


def _left_s(deadline: float) -> float:
    """Never 0, which grpc takes for no time limit."""
    return max(deadline - _now(), 0.001)


def _is_being_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _channel(endpoint: str, tls: Tls | None, options: Options) -> grpc.aio.Channel:
    if tls is None:
        return grpc.aio.insecure_channel(endpoint, options)
    try:
        credentials = tls.credentials()
    except OSError as error:
        raise StoreUnavailable(f"etcd at {endpoint}: tls: {error}") from error
    return grpc.aio.secure_channel(endpoint, credentials, options)
