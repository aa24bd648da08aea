"""The two clients. Every method is one line over an operation; what it does is written in operations.py and watching.py.

Data comes as the service's own messages (fmproto.v1.scheduler_pb2, job_pb2): Job, JobChange, LogChunk, ... Errors are those
of fmclient.errors. Times are seconds.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from types import TracebackType
from typing import Any, Self

from fmclient import operations, watching
from fmclient.allocation import HOLD_S, Allocation, AsyncAllocation, Terms
from fmclient.manifest import Manifest
from fmclient.operations import Session
from fmclient.retry import PATIENCE_S, RETRY_S, TIMEOUT_S, Limits
from fmclient.servers import Servers, Tls, parse_servers
from fmclient.transport import AsyncTransport, SyncTransport
from fmclient.watching import Until
from fmproto.v1 import scheduler_pb2 as pb

CANCEL_REASON = "cancelled by its user"


def _session(server: str | None, timeout_s: float, retry_s: float, patience_s: float) -> Session:
    return Session(Servers(parse_servers(server)), Limits(timeout_s, retry_s, patience_s))


class Client:
    """Blocks the calling thread; may be shared by threads. A process made by fork() needs a client of its own.

    server      "host:port[,host:port]"; None: $FMSCHED_SERVER, else 127.0.0.1:7070. Any may be a follower: the leader is
                found and followed.
    timeout_s   one call with its retries
    retry_s     within that, how long a call is tried again while no scheduler answers
    patience_s  how long watch() looks for a scheduler after it lost one
    tls         None: plain text

    ValueError for a server that is no host:port.
    """

    def __init__(
        self,
        server: str | None = None,
        timeout_s: float = TIMEOUT_S,
        *,
        retry_s: float = RETRY_S,
        patience_s: float = PATIENCE_S,
        tls: Tls | None = None,
    ) -> None:
        self._session = _session(server, timeout_s, retry_s, patience_s)
        self._transport = SyncTransport(tls)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Ends every call and stream of this client."""
        self._transport.close()

    def submit(
        self, manifest: Manifest, *, request_id: str | None = None, submitter: str | None = None, hold_s: float = 0.0
    ) -> pb.Job:
        """The job as accepted. Calling again with the same `request_id` finds that job and makes no second one.

        manifest  YAML text, its bytes, a Path to it, or the mapping itself
        hold_s    of an allocation: freed when nobody has held it for so long; 0: when cancelled

        Raises InvalidManifest, CannotBePlaced, StoreFull, and those of any call.
        """
        return self._transport.run(operations.submit(self._session, manifest, request_id, submitter, hold_s))

    def validate(self, manifest: Manifest) -> pb.ValidateResponse:
        """Faults and the sum of GPUs; faults are in the answer, not raised. Nothing is stored."""
        return self._transport.run(operations.validate(self._session, manifest))

    def plan(self, manifest: Manifest) -> dict[str, Any]:
        """Where the job would go now: the object that `fmctl plan -o json` prints. Commits nothing."""
        return self._transport.run(operations.plan(self._session, manifest))

    def get(self, job: str) -> pb.Job:
        """By id, or the newest of that name. Raises NotFound."""
        return self._transport.run(operations.get(self._session, job))

    def list(self, live_only: bool = False) -> tuple[pb.Job, ...]:
        return self._transport.run(operations.list_jobs(self._session, live_only))

    def watch(self, job: str | None = None) -> Iterator[pb.JobChange]:
        """The current jobs, then each change. Resumes by itself, repeats nothing unchanged, and tells what was deleted
        meanwhile. Ends after the end of `job`; without one it never ends. Raises Unreachable after `patience_s`.
        """
        return self._transport.iterate(watching.watch(self._session, job))

    def wait(self, job: str, until: Until = "ended", timeout_s: float | None = None) -> pb.Job:
        """The job once it is "running" (or has succeeded), or has "ended" in any way.

        Raises StillWaiting after `timeout_s` (None: no limit), JobEnded where it failed or was cancelled before it ran.
        """
        return self._transport.run(watching.wait(self._session, job, until, timeout_s))

    def explain(self, job: str) -> pb.ExplainResponse:
        """Why the job waits, and what would help."""
        return self._transport.run(operations.explain(self._session, job))

    def cancel(self, job: str, reason: str = CANCEL_REASON) -> pb.Job:
        """Returns as soon as the order is stored; wait(job) sees the end. A job that has ended stays as it is."""
        return self._transport.run(operations.cancel(self._session, job, reason))

    def logs(
        self, job: str, *, follow: bool = False, ranks: Sequence[int] = (), tail: int = 0, attempt: int = 0
    ) -> Iterator[pb.LogChunk]:
        """Chunks in the order in which each rank wrote them; `tail` 0: from the beginning; `attempt` 0: the newest.

        Raises NotFound; Unreachable where the connection is lost after data came: a second stream might repeat bytes.
        """
        return self._transport.iterate(operations.logs(self._session, job, follow, ranks, tail, attempt))

    def allocate(
        self,
        manifest: Manifest,
        *,
        hold_s: float = HOLD_S,
        timeout_s: float | None = None,
        request_id: str | None = None,
        submitter: str | None = None,
    ) -> Allocation:
        """A context manager: inside the block the GPUs of `placement` are the caller's. The manifest has no template.

        hold_s     a holder that died (kill -9, lost machine) loses the GPUs after so long
        timeout_s  how long to wait for the GPUs; then StillWaiting. None: no limit
        """
        return Allocation(self._transport, self._session, Terms(manifest, hold_s, timeout_s, request_id, submitter))

    def nodes(self) -> pb.ListNodesResponse:
        """Nodes with inventory, health and holders, and the fabric."""
        return self._transport.run(operations.nodes(self._session))

    def drain(self, node: str, reason: str = "", by: str | None = None) -> pb.Node:
        """No new job is placed on the node; what runs there goes on. Not tried again after a lost answer."""
        return self._transport.run(operations.drain(self._session, node, reason, by))

    def undrain(self, node: str) -> pb.Node:
        return self._transport.run(operations.undrain(self._session, node))

    def version(self) -> pb.VersionInfo:
        """Of the server that answers, leader or not."""
        return self._transport.run(operations.version(self._session))


class AsyncClient:
    """Client's twin for asyncio: the same methods, awaited, or iterated with `async for`; allocate() with `async with`.

    Belongs to the event loop of its first call. See Client for parameters, results and errors.
    """

    def __init__(
        self,
        server: str | None = None,
        timeout_s: float = TIMEOUT_S,
        *,
        retry_s: float = RETRY_S,
        patience_s: float = PATIENCE_S,
        tls: Tls | None = None,
    ) -> None:
        self._session = _session(server, timeout_s, retry_s, patience_s)
        self._transport = AsyncTransport(tls)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._transport.close()

    async def submit(
        self, manifest: Manifest, *, request_id: str | None = None, submitter: str | None = None, hold_s: float = 0.0
    ) -> pb.Job:
        return await self._transport.run(operations.submit(self._session, manifest, request_id, submitter, hold_s))

    async def validate(self, manifest: Manifest) -> pb.ValidateResponse:
        return await self._transport.run(operations.validate(self._session, manifest))

    async def plan(self, manifest: Manifest) -> dict[str, Any]:
        return await self._transport.run(operations.plan(self._session, manifest))

    async def get(self, job: str) -> pb.Job:
        return await self._transport.run(operations.get(self._session, job))

    async def list(self, live_only: bool = False) -> tuple[pb.Job, ...]:
        return await self._transport.run(operations.list_jobs(self._session, live_only))

    def watch(self, job: str | None = None) -> AsyncIterator[pb.JobChange]:
        return self._transport.iterate(watching.watch(self._session, job))

    async def wait(self, job: str, until: Until = "ended", timeout_s: float | None = None) -> pb.Job:
        return await self._transport.run(watching.wait(self._session, job, until, timeout_s))

    async def explain(self, job: str) -> pb.ExplainResponse:
        return await self._transport.run(operations.explain(self._session, job))

    async def cancel(self, job: str, reason: str = CANCEL_REASON) -> pb.Job:
        return await self._transport.run(operations.cancel(self._session, job, reason))

    def logs(
        self, job: str, *, follow: bool = False, ranks: Sequence[int] = (), tail: int = 0, attempt: int = 0
    ) -> AsyncIterator[pb.LogChunk]:
        return self._transport.iterate(operations.logs(self._session, job, follow, ranks, tail, attempt))

    def allocate(
        self,
        manifest: Manifest,
        *,
        hold_s: float = HOLD_S,
        timeout_s: float | None = None,
        request_id: str | None = None,
        submitter: str | None = None,
    ) -> AsyncAllocation:
        return AsyncAllocation(self._transport, self._session, Terms(manifest, hold_s, timeout_s, request_id, submitter))

    async def nodes(self) -> pb.ListNodesResponse:
        return await self._transport.run(operations.nodes(self._session))

    async def drain(self, node: str, reason: str = "", by: str | None = None) -> pb.Node:
        return await self._transport.run(operations.drain(self._session, node, reason, by))

    async def undrain(self, node: str) -> pb.Node:
        return await self._transport.run(operations.undrain(self._session, node))

    async def version(self) -> pb.VersionInfo:
        return await self._transport.run(operations.version(self._session))
