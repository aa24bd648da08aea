"""A Scheduler service that keeps jobs in memory, records the calls it gets and refuses them as a test scripts it: for what the
client does when the service misbehaves, which a well-behaved service cannot show. It is a real grpc.aio server on a real port.
"""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Self

import grpc
import grpc.aio
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.message import Message
from google.rpc.error_details_pb2 import BadRequest
from google.rpc.status_pb2 import Status

from fmproto.channel import server_options
from fmproto.v1 import job_pb2, scheduler_pb2, scheduler_pb2_grpc
from fmproto.v1.scheduler_pb2 import Job, JobChange


@dataclass(frozen=True)
class Refusal:
    """What a scripted call answers instead of its result. `after_work`: the work is done first, only the answer is lost."""

    code: grpc.StatusCode
    words: str = "scripted"
    leader: str = ""
    details: tuple[Message, ...] = ()
    after_work: bool = False

    def trailing(self) -> tuple[tuple[str, str | bytes], ...]:
        found: list[tuple[str, str | bytes]] = []
        if self.leader:
            found.append(("fmsched-leader", self.leader))
        if self.details:
            status = Status(code=self.code.value[0], message=self.words)
            for detail in self.details:
                packed = AnyMessage()
                packed.Pack(detail)
                status.details.append(packed)
            found.append(("grpc-status-details-bin", status.SerializeToString()))
        return tuple(found)


def bad_request(*faults: tuple[str, str]) -> BadRequest:
    return BadRequest(field_violations=[BadRequest.FieldViolation(field=path, description=words) for path, words in faults])


def job(name: str, state: int = job_pb2.JOB_STATE_QUEUED, **status: Any) -> Job:
    """A job whose id is its name."""
    spec = job_pb2.JobSpec(id=name, name=name, replica_count=1, submitted_ms=1_700_000_000_000)
    known: Any = state
    return Job(spec=spec, status=job_pb2.JobStatus(id=name, state=known, since_ms=1_700_000_000_000, **status))


def placed(name: str, ranks: int = 2, attempt: int = 1) -> Job:
    """A running job with `ranks` ranks, two on a node."""
    found = job(name, job_pb2.JOB_STATE_RUNNING, attempt=attempt, started_ms=1_700_000_001_000)
    found.decision.CopyFrom(
        job_pb2.Decision(job=name, attempt=attempt, master_node="n0", master_address="127.0.0.1", master_port=4000)
    )
    for rank in range(ranks):
        found.decision.ranks.add(
            rank=rank, group="workers", node=f"n{rank // 2}", local_rank=rank % 2, gpu_index=rank % 2,
            gpu_uuid=f"GPU-{rank}", hcas=[f"mlx5_{rank % 2}"],
        )  # fmt: skip
    return found


@dataclass
class Scheduler(scheduler_pb2_grpc.SchedulerServicer):
    """`refusals`: per call name, used up in order. `calls`: name and request of each call received."""

    jobs: dict[str, Job] = field(default_factory=dict)
    refusals: dict[str, list[Refusal]] = field(default_factory=dict)
    calls: list[tuple[str, Any]] = field(default_factory=list)
    log_chunks: list[scheduler_pb2.LogChunk] = field(default_factory=list)
    nodes: scheduler_pb2.ListNodesResponse = field(default_factory=scheduler_pb2.ListNodesResponse)
    log_ends: bool = True
    state_after_cancel: job_pb2.JobState = job_pb2.JOB_STATE_CANCELLED
    plan_json: str = "{}"
    delay_s: float = 0.0
    on_submit: Callable[[scheduler_pb2.SubmitRequest], Job] = field(default=lambda request: job("job-1"))
    _streams: set[asyncio.Queue[JobChange | Refusal]] = field(default_factory=set)

    def names(self) -> list[str]:
        return [name for name, _ in self.calls]

    def requests(self, name: str) -> list[Any]:
        return [request for called, request in self.calls if called == name]

    async def put(self, changed: Job) -> None:
        self.jobs[changed.spec.id] = changed
        for queue in self._streams:
            queue.put_nowait(JobChange(job=changed))

    async def forget(self, name: str, tell: bool = True) -> None:
        gone = self.jobs.pop(name)
        for queue in self._streams if tell else ():
            queue.put_nowait(JobChange(job=gone, deleted=True))

    async def cut_streams(self, refusal: Refusal) -> None:
        for queue in self._streams:
            queue.put_nowait(refusal)

    async def streams(self) -> int:
        return len(self._streams)

    async def Submit(self, request: scheduler_pb2.SubmitRequest, context: Any) -> Any:
        def work() -> scheduler_pb2.SubmitResponse:
            known = next((each for each in self.jobs.values() if each.spec.request_id == request.request_id), None)
            if known is None:
                made = self.on_submit(request)
                made.spec.request_id = request.request_id
                self.jobs[made.spec.id] = made
                return scheduler_pb2.SubmitResponse(job=made)
            return scheduler_pb2.SubmitResponse(job=known, existed=True)

        return await self._answer("Submit", request, context, work)

    async def Validate(self, request: Any, context: Any) -> Any:
        return await self._answer("Validate", request, context, lambda: scheduler_pb2.ValidateResponse(name="v", gpus=8))

    async def Plan(self, request: Any, context: Any) -> Any:
        return await self._answer("Plan", request, context, lambda: scheduler_pb2.PlanResponse(json=self.plan_json))

    async def GetJob(self, request: Any, context: Any) -> Any:
        await self._known(request.id, context)
        return await self._answer("GetJob", request, context, lambda: self.jobs[request.id])

    async def ListJobs(self, request: Any, context: Any) -> Any:
        return await self._answer(
            "ListJobs", request, context, lambda: scheduler_pb2.ListJobsResponse(jobs=self.jobs.values())
        )

    async def Explain(self, request: Any, context: Any) -> Any:
        await self._known(request.id, context)
        status = self.jobs[request.id].status
        answer = scheduler_pb2.ExplainResponse(
            id=request.id, state=status.state, summary=status.reason, why=status.why, never=status.never
        )
        return await self._answer("Explain", request, context, lambda: answer)

    async def Cancel(self, request: Any, context: Any) -> Any:
        await self._known(request.id, context)

        def work() -> scheduler_pb2.CancelResponse:
            self.jobs[request.id].status.state = self.state_after_cancel
            return scheduler_pb2.CancelResponse(job=self.jobs[request.id])

        answer = await self._answer("Cancel", request, context, work)
        await self.put(self.jobs[request.id])
        return answer

    async def ListNodes(self, request: Any, context: Any) -> Any:
        return await self._answer("ListNodes", request, context, lambda: self.nodes)

    async def Drain(self, request: Any, context: Any) -> Any:
        node = scheduler_pb2.Node(name=request.node, state="drained", reason=request.reason)
        return await self._answer("Drain", request, context, lambda: scheduler_pb2.DrainResponse(node=node))

    async def Undrain(self, request: Any, context: Any) -> Any:
        node = scheduler_pb2.Node(name=request.node, state="ready")
        return await self._answer("Undrain", request, context, lambda: scheduler_pb2.DrainResponse(node=node))

    async def GetVersion(self, request: Any, context: Any) -> Any:
        answer = scheduler_pb2.VersionInfo(version="0.1.0", leader=True, leader_address="here:1", store="ok")
        return await self._answer("GetVersion", request, context, lambda: answer)

    async def Logs(self, request: Any, context: Any) -> AsyncIterator[scheduler_pb2.LogChunk]:
        await self._answer("Logs", request, context, lambda: None)
        for chunk in self.log_chunks:
            yield chunk
        await self._refuse("Logs/end", context)
        if not self.log_ends:
            await asyncio.Event().wait()

    async def WatchJobs(self, request: Any, context: Any) -> AsyncIterator[JobChange]:
        async for change in self._follow("WatchJobs", request, context):
            yield change

    async def Hold(self, request: Any, context: Any) -> AsyncIterator[JobChange]:
        async for change in self._follow("Hold", request, context):
            yield change

    async def _follow(self, name: str, request: Any, context: Any) -> AsyncIterator[JobChange]:
        await self._answer(name, request, context, lambda: None)
        if request.id:
            await self._known(request.id, context)
        queue: asyncio.Queue[JobChange | Refusal] = asyncio.Queue()
        for each in self.jobs.values():
            queue.put_nowait(JobChange(job=each, initial=True))
        self._streams.add(queue)
        try:
            while True:
                item = await queue.get()
                if isinstance(item, Refusal):
                    await self._abort(item, context)
                elif request.id in ("", item.job.spec.id):
                    yield item
        finally:
            self._streams.discard(queue)

    async def _answer(self, name: str, request: Any, context: Any, work: Callable[[], Any]) -> Any:
        self.calls.append((name, request))
        await asyncio.sleep(self.delay_s)
        queued = self.refusals.get(name)
        if queued and queued[0].after_work:
            work()
        await self._refuse(name, context)
        return work()

    async def _refuse(self, name: str, context: Any) -> None:
        if self.refusals.get(name):
            await self._abort(self.refusals[name].pop(0), context)

    async def _abort(self, refusal: Refusal, context: Any) -> None:
        await context.abort(refusal.code, refusal.words, refusal.trailing())

    async def _known(self, name: str, context: Any) -> None:
        if name not in self.jobs:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"no job {name}")


class Served:
    """A Scheduler on 127.0.0.1, on an event loop of its own, so that blocking clients and fmctl can call it from the test."""

    def __init__(self, scheduler: Scheduler, port: int = 0, credentials: grpc.ServerCredentials | None = None) -> None:
        self.scheduler = scheduler
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="scripted-scheduler")
        self._thread.start()
        self._server, self.port = self.run(self._start(port, credentials))

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Runs a coroutine on the server's loop and waits for it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    def stop(self) -> None:
        self.run(self._server.stop(None))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _start(self, port: int, credentials: grpc.ServerCredentials | None) -> tuple[grpc.aio.Server, int]:
        server = grpc.aio.server(options=server_options())
        scheduler_pb2_grpc.add_SchedulerServicer_to_server(self.scheduler, server)
        address = f"127.0.0.1:{port}"
        bound = server.add_secure_port(address, credentials) if credentials else server.add_insecure_port(address)
        await server.start()
        return server, bound

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


@contextmanager
def serving(**parts: Any) -> Iterator[Served]:
    with Served(Scheduler(**parts)) as served:
        yield served


def unused_port() -> int:
    """Free a moment ago; nobody listens there."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def eventually(what: str, probe: Callable[[], Any], within_s: float = 10.0) -> Any:
    """The first truthy answer of `probe`; fails, naming what was expected, when the time is over."""
    deadline_s = time.monotonic() + within_s
    while not (answer := probe()):
        assert time.monotonic() < deadline_s, f"after {within_s:g} s still not: {what}"
        time.sleep(0.01)
    return answer
