"""Logs of a job: asked of the agents of its nodes, passed on as they come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import grpc

from fmproto.channel import client_options
from fmproto.etcd_tls import Tls
from fmproto.v1 import agent_pb2, agent_pb2_grpc
from fmproto.v1 import scheduler_pb2 as pb
from fmsched.loop import Scheduler
from fmsched.model.hardware import JobId, NodeName
from fmsched.service.errors import ServiceError

# Chunks of all nodes together that wait for a slow reader; agents are held back beyond it. A chunk has up to 256 KiB.
CHUNKS_WAITING_MAX = 8


class Logs:
    """`tls` is how the agents' servers are reached; None: in plain text."""

    def __init__(self, scheduler: Scheduler, tls: Tls | None = None) -> None:
        self._scheduler = scheduler
        self._tls = tls

    async def stream(self, job: JobId, call: pb.LogsRequest) -> AsyncIterator[pb.LogChunk]:
        """Chunks of all asked ranks, each rank's in order. Raises ServiceError."""
        status = self._scheduler.mirror.statuses[job]
        nodes = self._nodes(job, call)
        if not nodes:
            raise ServiceError(
                grpc.StatusCode.FAILED_PRECONDITION, f"{job} has not run yet: it is {status.state} ({status.reason})"
            )
        chunks: asyncio.Queue[pb.LogChunk | ServiceError | None] = asyncio.Queue(CHUNKS_WAITING_MAX)
        readers = [asyncio.create_task(self._read(node, job, call, chunks)) for node in nodes]
        errors = []
        try:
            left = len(readers)
            while left:
                chunk = await chunks.get()
                if isinstance(chunk, pb.LogChunk):
                    yield chunk
                    continue
                left -= 1
                if chunk is not None:
                    errors.append(chunk)
        finally:
            for reader in readers:
                reader.cancel()
            await asyncio.gather(*readers, return_exceptions=True)
        # One node's trouble does not spoil the others' logs, and is told after them. Nodes that have none of the asked ranks, or have
        # dropped old logs, are trouble only where all are.
        missing = [error for error in errors if error.code is grpc.StatusCode.NOT_FOUND]
        if len(missing) == len(nodes):
            raise missing[0]
        for error in errors:
            if error not in missing:
                raise error

    def _nodes(self, job: JobId, call: pb.LogsRequest) -> tuple[NodeName, ...]:
        decision = self._scheduler.mirror.decisions.get(job)
        if decision is None or not call.ranks:
            return self._scheduler.mirror.statuses[job].nodes
        ranks = {rank.rank: rank.node for rank in decision.placement.running}
        for rank in call.ranks:
            if rank not in ranks:
                highest = len(ranks) - 1
                raise ServiceError(grpc.StatusCode.NOT_FOUND, f"{job} has no rank {rank}; it has 0 to {highest}")
        return tuple(dict.fromkeys(ranks[rank] for rank in call.ranks))

    async def _read(
        self, node: NodeName, job: JobId, call: pb.LogsRequest, chunks: asyncio.Queue[pb.LogChunk | ServiceError | None]
    ) -> None:
        inventory = self._scheduler.mirror.inventories.get(node)
        if inventory is None or not inventory.agent_address:
            await chunks.put(
                ServiceError(grpc.StatusCode.FAILED_PRECONDITION, f"node {node} has no agent that could be asked for logs")
            )
            return
        ask = agent_pb2.AgentLogsRequest(
            job=job, attempt=call.attempt, ranks=call.ranks, follow=call.follow, tail_lines=call.tail_lines
        )
        try:
            opened = _channel(inventory.agent_address, self._tls)
        except OSError as error:
            text = f"node {node} cannot be asked for logs: tls.agents: {error.filename}: {error.strerror}"
            await chunks.put(ServiceError(grpc.StatusCode.FAILED_PRECONDITION, text))
            return
        async with opened as channel:
            try:
                async for chunk in agent_pb2_grpc.AgentStub(channel).Logs(ask):
                    await chunks.put(chunk)
                await chunks.put(None)
            except grpc.aio.AioRpcError as error:
                if error.code() is grpc.StatusCode.NOT_FOUND:
                    await chunks.put(
                        ServiceError(grpc.StatusCode.NOT_FOUND, error.details() or f"node {node} has no logs of {job}")
                    )
                    return
                # Not UNAVAILABLE: to a client that would mean this scheduler.
                reason = f"node {node}: its agent at {inventory.agent_address} does not give the logs: {error.details()}"
                await chunks.put(ServiceError(grpc.StatusCode.FAILED_PRECONDITION, reason))


def _channel(address: str, tls: Tls | None) -> grpc.aio.Channel:
    """The files are read again for each channel, so that renewed certificates are used. Raises OSError where one cannot be read."""
    if tls is None:
        return grpc.aio.insecure_channel(address, options=client_options())
    return grpc.aio.secure_channel(address, tls.credentials(), options=client_options())
