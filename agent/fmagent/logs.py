"""The agent's gRPC server: rank output as it was written, a second sign of life, health."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer

from fmagent.runner import files, rundir
from fmproto.channel import server_options
from fmproto.tls import ServerTls
from fmproto.v1 import agent_pb2, agent_pb2_grpc, scheduler_pb2

# Of one message; a file is read in pieces of this size, so that a rank that writes much does not block the others.
CHUNK_BYTES_MAX = 256 * 1024
# How often a follower looks for more, seconds.
FOLLOW_POLL_S = 0.1
SERVICE = "fmsched.v1.Agent"


class LogSource(Protocol):
    """Where runs' output lies: runner.process.ProcessRunner."""

    def log_folder(self, job: str, attempt: int) -> Path | None: ...

    def writes_logs(self, folder: Path) -> bool: ...


@dataclass(slots=True)
class _Cursor:
    rank: int
    path: Path
    stderr: bool
    offset: int = 0

    def read(self) -> bytes:
        try:
            with os.fdopen(files.open_regular(str(self.path)), "rb") as file:
                file.seek(self.offset)
                data = file.read(CHUNK_BYTES_MAX)
        except FileNotFoundError:
            return b""
        self.offset += len(data)
        return data


def tail_offset(path: Path, lines: int) -> int:
    """Where the last `lines` lines begin; an unfinished last line counts as one."""
    try:
        with os.fdopen(files.open_regular(str(path)), "rb") as file:
            end = file.seek(0, os.SEEK_END)
            position, seen = end, 0
            while position > 0:  # ends: every round goes back by at least a byte
                start = max(0, position - CHUNK_BYTES_MAX)
                file.seek(start)
                block = file.read(position - start)
                place = len(block)
                while (place := block.rfind(b"\n", 0, place)) >= 0:
                    if start + place == end - 1:
                        continue  # the newline that ends the last line
                    seen += 1
                    if seen == lines:
                        return start + place + 1
                position = start
    except FileNotFoundError:
        return 0
    return 0


class AgentServicer(agent_pb2_grpc.AgentServicer):
    def __init__(self, source: LogSource, node: str, session: str) -> None:
        self._source = source
        self._node = node
        self._session = session

    async def Ping(
        self, _request: agent_pb2.PingRequest, _context: grpc.aio.ServicerContext[object, object]
    ) -> agent_pb2.PingResponse:
        return agent_pb2.PingResponse(node=self._node, session=self._session)

    async def Logs(
        self, request: agent_pb2.AgentLogsRequest, context: grpc.aio.ServicerContext[object, object]
    ) -> AsyncIterator[scheduler_pb2.LogChunk]:
        folder = self._source.log_folder(request.job, request.attempt)
        record = files.read_json(str(folder / files.RUN_FILE)) if folder is not None else None
        if folder is None or record is None:
            what = f"run of job {request.job}" + (f", attempt {request.attempt}" if request.attempt else "")
            await context.abort(grpc.StatusCode.NOT_FOUND, f"node {self._node} has no {what}")
            return
        ranks = [int(rank["rank"]) for rank in record["ranks"]]
        missing = [rank for rank in request.ranks if rank not in ranks]
        if missing:
            text = f"job {request.job}: node {self._node} has no rank {missing[0]}; it has {', '.join(map(str, ranks))}"
            await context.abort(grpc.StatusCode.NOT_FOUND, text)
        try:
            async for chunk in self._stream(folder, list(request.ranks) or ranks, request):
                yield chunk
        except OSError as error:  # a job may have put something else in its output's place
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"job {request.job}, node {self._node}: {error}")

    async def _stream(
        self, folder: Path, ranks: Sequence[int], request: agent_pb2.AgentLogsRequest
    ) -> AsyncIterator[scheduler_pb2.LogChunk]:
        cursors = []
        for rank in ranks:
            for stderr, name in enumerate(rundir.output_files(rank)):
                path = folder / name
                offset = tail_offset(path, request.tail_lines) if request.tail_lines else 0
                cursors.append(_Cursor(rank, path, bool(stderr), offset))
        while True:  # ends: with the run, or with the caller
            # Asked before reading: what was written before the end is then all there.
            more = request.follow and self._source.writes_logs(folder)
            sent = False
            for cursor in cursors:
                while data := cursor.read():
                    sent = True
                    yield scheduler_pb2.LogChunk(rank=cursor.rank, node=self._node, data=data, stderr=cursor.stderr)
                    if more:
                        break  # one piece of each in turn; the last round reads each to its end
            if not more:
                return
            if not sent:
                await asyncio.sleep(FOLLOW_POLL_S)


@dataclass(frozen=True, slots=True)
class Served:
    """`port` is the one bound; `listen` may have asked for any (0)."""

    server: grpc.aio.Server
    health: HealthServicer
    port: int

    async def ready(self) -> None:
        await self.health.set(SERVICE, health_pb2.HealthCheckResponse.SERVING)
        await self.health.set("", health_pb2.HealthCheckResponse.SERVING)

    async def stop(self, grace_s: float) -> None:
        await self.health.enter_graceful_shutdown()
        await self.server.stop(grace_s)


async def serve(servicer: AgentServicer, listen: str, tls: ServerTls | None = None) -> Served:
    """Raises OSError where the address cannot be listened on, and ValueError for certificates that cannot be used."""
    server = grpc.aio.server(options=server_options())
    agent_pb2_grpc.add_AgentServicer_to_server(servicer, server)
    health = HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(health, server)
    await health.set(SERVICE, health_pb2.HealthCheckResponse.NOT_SERVING)
    try:
        port = server.add_secure_port(listen, tls.credentials()) if tls else server.add_insecure_port(listen)
    except RuntimeError as error:
        raise OSError(f"cannot listen on {listen}: {error}") from error
    if port == 0:
        raise OSError(f"cannot listen on {listen}")
    await server.start()
    return Served(server, health, port)
