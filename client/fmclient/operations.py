"""What each method of the client does, written once for both clients: generators of effects, with no input or output."""

from __future__ import annotations

import getpass
import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from fmclient import calls
from fmclient.effects import Emit, Op
from fmclient.errors import ServiceFailed
from fmclient.manifest import Manifest, manifest_text
from fmclient.resume import Resumable
from fmclient.retry import Limits, unary
from fmclient.servers import Servers
from fmproto.v1 import scheduler_pb2 as pb


@dataclass(frozen=True, slots=True)
class Session:
    """What every operation needs."""

    servers: Servers
    limits: Limits = field(default_factory=Limits)

    def call(self, call: calls.Call, request: Any, timeout_s: float | None = None) -> Op[Any]:
        return unary(self.servers, self.limits, call, request, timeout_s)

    def stream(self, call: calls.Call, request: Any, deadline_s: float | None = None, once: bool = False) -> Resumable:
        return Resumable(self.servers, self.limits, call, request, deadline_s, once)


def user_name() -> str:
    """Who submits; empty where the system knows no name for the user (a container with a bare uid)."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""


def submit(
    session: Session, manifest: Manifest, request_id: str | None, submitter: str | None, hold_s: float
) -> Op[pb.Job]:
    request = pb.SubmitRequest(
        manifest=manifest_text(manifest),
        request_id=request_id or uuid.uuid4().hex,
        submitter=user_name() if submitter is None else submitter,
        hold_s=hold_s,
    )
    response: pb.SubmitResponse = yield from session.call(calls.SUBMIT, request)
    return response.job


def validate(session: Session, manifest: Manifest) -> Op[pb.ValidateResponse]:
    return cast(
        "pb.ValidateResponse",
        (yield from session.call(calls.VALIDATE, pb.ValidateRequest(manifest=manifest_text(manifest)))),
    )


def plan(session: Session, manifest: Manifest) -> Op[dict[str, Any]]:
    response: pb.PlanResponse = yield from session.call(calls.PLAN, pb.PlanRequest(manifest=manifest_text(manifest)))
    try:
        found = json.loads(response.json)
    except ValueError as error:
        raise ServiceFailed(f"Plan at {session.servers.current}: the answer is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise ServiceFailed(
            f"Plan at {session.servers.current}: the answer is a JSON {type(found).__name__}, not an object"
        )
    return found


def get(session: Session, job: str) -> Op[pb.Job]:
    return cast("pb.Job", (yield from session.call(calls.GET_JOB, pb.GetJobRequest(id=job))))


def list_jobs(session: Session, live_only: bool) -> Op[tuple[pb.Job, ...]]:
    response: pb.ListJobsResponse = yield from session.call(calls.LIST_JOBS, pb.ListJobsRequest(live_only=live_only))
    return tuple(response.jobs)


def explain(session: Session, job: str) -> Op[pb.ExplainResponse]:
    return cast("pb.ExplainResponse", (yield from session.call(calls.EXPLAIN, pb.ExplainRequest(id=job))))


def cancel(session: Session, job: str, reason: str, timeout_s: float | None = None) -> Op[pb.Job]:
    response: pb.CancelResponse = yield from session.call(calls.CANCEL, pb.CancelRequest(id=job, reason=reason), timeout_s)
    return response.job


def nodes(session: Session) -> Op[pb.ListNodesResponse]:
    return cast("pb.ListNodesResponse", (yield from session.call(calls.LIST_NODES, pb.ListNodesRequest())))


def drain(session: Session, node: str, reason: str, by: str | None) -> Op[pb.Node]:
    request = pb.DrainRequest(node=node, reason=reason, by=user_name() if by is None else by)
    response: pb.DrainResponse = yield from session.call(calls.DRAIN, request)
    return response.node


def undrain(session: Session, node: str) -> Op[pb.Node]:
    response: pb.DrainResponse = yield from session.call(calls.UNDRAIN, pb.UndrainRequest(node=node))
    return response.node


def version(session: Session) -> Op[pb.VersionInfo]:
    return cast("pb.VersionInfo", (yield from session.call(calls.GET_VERSION, pb.GetVersionRequest())))


def logs(session: Session, job: str, follow: bool, ranks: Sequence[int], tail: int, attempt: int) -> Op[None]:
    """Emits LogChunks. The opening is tried again; once data has come, a lost connection raises Unreachable: chunks carry
    no offset, so nobody could say which bytes a second stream would repeat.
    """
    request = pb.LogsRequest(id=job, ranks=ranks, follow=follow, tail_lines=tail, attempt=attempt)
    stream = session.stream(calls.LOGS, request, once=True)
    try:
        while (chunk := (yield from stream.read())) is not None:
            yield Emit(chunk)
    finally:
        stream.cancel()
