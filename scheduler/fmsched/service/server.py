"""The gRPC service: each method parses, calls, and maps what it gets. Composition of the parts in service/ is here too."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import structlog
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

import fmproto
from fmproto.channel import server_options
from fmproto.etcd_tls import Tls
from fmproto.kv import Conflict, StoreFull, StoreUnavailable
from fmproto.tls import ServerTls
from fmproto.v1 import hardware_pb2 as hw
from fmproto.v1 import scheduler_pb2 as pb
from fmproto.v1 import scheduler_pb2_grpc
from fmsched.loop import Scheduler
from fmsched.model.hardware import JobId
from fmsched.service.answers import Answers
from fmsched.service.errors import ServiceError, abort, invalid, not_found, not_leader
from fmsched.service.holds import Holds
from fmsched.service.logs import Logs
from fmsched.service.submit import PlanSolver, Submit
from fmsched.solver import TooManyWaiting
from fmsched.store.ledger import Ledger

log = structlog.get_logger(__name__)

STORE_UNAVAILABLE = "the state store does not answer; whether the call took effect is not known: look before repeating it"
STORE_FULL = "the state store is full: nothing was stored; cancel still works, and submit will when there is room again"
# A lost race with the loop's own writes is retried on a newer picture so often.
RACES_MAX = 5

SERVICE_NAME = "fmsched.v1.Scheduler"
# What health is asked about: this service, and the process as a whole.
HEALTH_NAMES = ("", SERVICE_NAME)
# The event loop alone would let its tasks be collected.
_announcing: set[asyncio.Task[None]] = set()

# Of what people say about a cancel or a drain.
WORDS_MAX = 400
# A stream that has nothing to say says so this often.
SIGN_OF_LIFE_S = 5.0

Context = grpc.aio.ServicerContext[Any, Any]


def _mapped(method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """Turns ServiceError and the store's errors into the call's status."""

    @functools.wraps(method)
    async def call(self: SchedulerService, request: Any, context: Context) -> Any:
        try:
            return await method(self, request, context)
        except ServiceError as error:
            await abort(context, error)
        except TooManyWaiting as error:
            await abort(context, ServiceError(grpc.StatusCode.UNAVAILABLE, f"the scheduler is busy: {error}; try again"))
        except StoreUnavailable:
            await abort(context, ServiceError(grpc.StatusCode.UNAVAILABLE, STORE_UNAVAILABLE))
        except StoreFull:
            await abort(context, ServiceError(grpc.StatusCode.RESOURCE_EXHAUSTED, STORE_FULL))

    return call


class SchedulerService(scheduler_pb2_grpc.SchedulerServicer):
    """`leader` gives the address of whoever leads now, None while nobody does. `agents_tls`: how agents are asked for logs."""

    def __init__(
        self,
        scheduler: Scheduler,
        holds: Holds,
        leader: Callable[[], Awaitable[str | None]],
        solver: PlanSolver,
        agents_tls: Tls | None = None,
    ) -> None:
        self._scheduler = scheduler
        self._mirror = scheduler.mirror
        self._answers = Answers(scheduler)
        self._submit = Submit(scheduler, self._answers, solver)
        self._logs = Logs(scheduler, agents_tls)
        self._holds = holds
        self._leader = leader

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()

    async def _ledger(self) -> Ledger:
        if self._scheduler.ledger is None:
            raise not_leader(await self._leader())
        return self._scheduler.ledger

    def _synced(self) -> None:
        if not self._mirror.synced:
            raise ServiceError(grpc.StatusCode.UNAVAILABLE, "this scheduler has not read the state store yet; try again")

    async def announce(self, healths: Any) -> None:
        """Sets the health to SERVING once calls that read can be answered."""
        await self._mirror.reached(1)  # no store has an older revision
        for name in HEALTH_NAMES:
            await healths.set(name, health_pb2.HealthCheckResponse.SERVING)

    # --- submitting

    @_mapped
    async def Submit(self, request: pb.SubmitRequest, context: Context) -> pb.SubmitResponse:
        self._synced()
        await self._ledger()
        return await self._submit.submit(request, await self._leader())

    @_mapped
    async def Validate(self, request: pb.ValidateRequest, context: Context) -> pb.ValidateResponse:
        return await self._submit.validate(request.manifest)

    @_mapped
    async def Plan(self, request: pb.PlanRequest, context: Context) -> pb.PlanResponse:
        self._synced()
        return pb.PlanResponse(json=await self._submit.plan(request.manifest))

    # --- jobs

    @_mapped
    async def GetJob(self, request: pb.GetJobRequest, context: Context) -> pb.Job:
        self._synced()
        return self._answers.job(self._answers.newest(request.id))

    @_mapped
    async def ListJobs(self, request: pb.ListJobsRequest, context: Context) -> pb.ListJobsResponse:
        self._synced()
        return pb.ListJobsResponse(jobs=self._answers.jobs(live_only=request.live_only), revision=self._mirror.revision)

    @_mapped
    async def Explain(self, request: pb.ExplainRequest, context: Context) -> pb.ExplainResponse:
        self._synced()
        job = self._answers.job(self._answers.newest(request.id))
        status = job.status
        ahead = [id_ for id_, position in self._answers.queue().items() if 0 < position < job.queue_position]
        summary = status.reason
        value = self._mirror.job(job.spec.id)
        if value is not None and value.decision is not None and value.decision.stop:
            busy = self._scheduler.busy_nodes(value)
            summary += f"; waits for {', '.join(busy)} to be seen free" if busy else ""
        return pb.ExplainResponse(
            id=job.spec.id, state=status.state, summary=summary, why=status.why, never=status.never, ahead=ahead
        )

    @_mapped
    async def Cancel(self, request: pb.CancelRequest, context: Context) -> pb.CancelResponse:
        self._synced()
        id_ = self._answers.newest(request.id)
        if not self._mirror.statuses[id_].state.ended:
            if request.reason:
                self._scheduler.cancel_reasons[id_] = request.reason[:WORDS_MAX]
            await self._race(lambda ledger: ledger.unwant(id_))
        return pb.CancelResponse(job=self._answers.job(id_))

    async def _race(self, write: Callable[[Ledger], Awaitable[int | Conflict]]) -> None:
        """Writes, and waits until the mirror shows it. Raises ServiceError where this scheduler is deposed."""
        for _ in range(RACES_MAX):
            outcome = await write(await self._ledger())
            if not isinstance(outcome, Conflict):
                await self._mirror.reached(outcome)
                return
            await self._mirror.reached(outcome.revision)
        raise not_leader(await self._leader())

    async def WatchJobs(self, request: pb.WatchJobsRequest, context: Context) -> AsyncIterator[pb.JobChange]:
        try:
            self._synced()
            only = self._answers.newest(request.id) if request.id else None
            async for change in self._changes(only):
                yield change
        except ServiceError as error:
            await abort(context, error)

    async def Hold(self, request: pb.HoldRequest, context: Context) -> AsyncIterator[pb.JobChange]:
        try:
            self._synced()
            await self._ledger()
            id_ = self._answers.newest(request.id)
            with self._holds.held(id_):
                async for change in self._changes(id_):
                    # Only the leader counts holders: one that was deposed must let its holders find the new one.
                    await self._ledger()
                    yield change
                    if change.deleted or self._mirror.statuses[id_].state.ended:
                        return
        except ServiceError as error:
            await abort(context, error)

    async def _changes(self, only: JobId | None) -> AsyncIterator[pb.JobChange]:
        """The picture first, then each change, and an empty message as a sign of life where there is none for a while."""
        subscription, whole = self._mirror.subscribe(only), only is not None
        try:
            queue = self._answers.queue()
            for id_ in [only] if only else sorted(self._mirror.specs):
                if id_ in self._mirror.statuses:
                    yield pb.JobChange(job=self._answers.job(id_, queue, whole=whole), initial=True)
            while True:
                jobs, _ = await subscription.take(SIGN_OF_LIFE_S)
                if not jobs:
                    yield pb.JobChange()
                    continue
                queue = self._answers.queue()
                for id_ in sorted(jobs):
                    if id_ in self._mirror.specs and id_ in self._mirror.statuses:
                        yield pb.JobChange(job=self._answers.job(id_, queue, whole=whole))
                    elif id_ not in self._mirror.specs:
                        gone = pb.JobChange(deleted=True)
                        gone.job.spec.id = id_
                        yield gone
        finally:
            self._mirror.unsubscribe(subscription)

    async def Logs(self, request: pb.LogsRequest, context: Context) -> AsyncIterator[pb.LogChunk]:
        try:
            self._synced()
            async for chunk in self._logs.stream(self._answers.newest(request.id), request):
                yield chunk
        except ServiceError as error:
            await abort(context, error)

    # --- nodes

    @_mapped
    async def ListNodes(self, request: pb.ListNodesRequest, context: Context) -> pb.ListNodesResponse:
        self._synced()
        return pb.ListNodesResponse(
            nodes=self._answers.nodes(self._now_s()),
            revision=self._mirror.revision,
            fabric=self._mirror.fabric,
            links=self._answers.links(),
        )

    @_mapped
    async def Drain(self, request: pb.DrainRequest, context: Context) -> pb.DrainResponse:
        self._known_node(request.node)
        for path, text in (("reason", request.reason), ("by", request.by)):
            if len(text) > WORDS_MAX:
                found = f"found {len(text):,} characters; at most {WORDS_MAX} are allowed"
                raise invalid([pb.FieldViolation(path=path, message=found)])
        intent = hw.NodeIntent(
            node=request.node, drained=True, reason=request.reason, by=request.by, since_ms=self._scheduler.wall_ms()
        )
        await self._race(lambda ledger: ledger.put_intent(intent))
        return pb.DrainResponse(node=self._answers.node(request.node, self._now_s()))

    @_mapped
    async def Undrain(self, request: pb.UndrainRequest, context: Context) -> pb.DrainResponse:
        self._known_node(request.node)
        await self._race(lambda ledger: ledger.drop_intent(request.node))
        return pb.DrainResponse(node=self._answers.node(request.node, self._now_s()))

    def _known_node(self, name: str) -> None:
        self._synced()
        if name not in self._mirror.inventories:
            raise not_found("node", name, self._mirror.inventories)

    @_mapped
    async def GetVersion(self, request: pb.GetVersionRequest, context: Context) -> pb.VersionInfo:
        return pb.VersionInfo(
            version=fmproto.__version__,
            leader=self._scheduler.ledger is not None,
            leader_address=await self._leader() or "",
            store=self._scheduler.store_state,
        )


async def start_server(service: SchedulerService, listen: str, tls: ServerTls | None = None) -> tuple[grpc.aio.Server, int]:
    """Serves on `listen` ("host:port", port 0: any); answers the server and its port. Its health is NOT_SERVING until the store has
    been read once. Raises OSError where the address cannot be had, and ValueError for certificates that cannot be used."""
    server = grpc.aio.server(options=server_options())
    scheduler_pb2_grpc.add_SchedulerServicer_to_server(service, server)
    healths = health.aio.HealthServicer()  # type: ignore[attr-defined]
    health_pb2_grpc.add_HealthServicer_to_server(healths, server)
    names = (SERVICE_NAME, health.SERVICE_NAME, reflection.SERVICE_NAME)
    reflection.enable_server_reflection(names, server)
    try:
        port = server.add_secure_port(listen, tls.credentials()) if tls else server.add_insecure_port(listen)
    except RuntimeError as error:
        raise OSError(f"cannot listen on {listen}: {error}") from error
    if port == 0:
        raise OSError(f"cannot listen on {listen}")
    for name in HEALTH_NAMES:
        await healths.set(name, health_pb2.HealthCheckResponse.NOT_SERVING)
    await server.start()
    announcing = asyncio.create_task(service.announce(healths), name="health")
    _announcing.add(announcing)
    announcing.add_done_callback(_announcing.discard)
    return server, port
