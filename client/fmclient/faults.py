"""gRPC errors in, the client's typed errors out: one table, and the reading of what rides in the trailing metadata."""

from __future__ import annotations

import re
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from fmclient import errors
from fmclient.states import in_words
from fmproto.v1.job_pb2 import Why
from fmproto.v1.scheduler_pb2 import FieldViolation

# A follower refuses with UNAVAILABLE and names the leader here.
LEADER_KEY = "fmsched-leader"
DETAILS_KEY = "grpc-status-details-bin"
# gRPC's own words where a message is over max_receive_message_length: that is no full store.
_MESSAGE_TOO_LARGE = "larger than max"
# How the service begins a sentence that goes with UNAVAILABLE: whoever says one of these was reached. gRPC's own words there are
# of connections and begin with none of them.
_SERVICE_OPENINGS = ("this scheduler ", "the scheduler ", "the state store ")
# The service names a job's state as its code does.
_STATE = re.compile(r"(?<=\bit is )[a-z]+(?= \()")
FAULTS_IN_ONE_LINE_MAX = 3
_FIELD = re.compile(r"^(?:line (?P<line>\d+)(?:: ?|$))?(?P<path>.*)$", re.DOTALL)

_TYPE_OF: dict[grpc.StatusCode, type[errors.FmschedError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: errors.InvalidArgument,
    grpc.StatusCode.NOT_FOUND: errors.NotFound,
    grpc.StatusCode.ALREADY_EXISTS: errors.AlreadyExists,
    grpc.StatusCode.FAILED_PRECONDITION: errors.Refused,
    grpc.StatusCode.RESOURCE_EXHAUSTED: errors.StoreFull,
    grpc.StatusCode.PERMISSION_DENIED: errors.Denied,
    grpc.StatusCode.UNAUTHENTICATED: errors.Denied,
    grpc.StatusCode.UNAVAILABLE: errors.Unreachable,
    grpc.StatusCode.CANCELLED: errors.Unreachable,
    grpc.StatusCode.DEADLINE_EXCEEDED: errors.DeadlineExceeded,
    grpc.StatusCode.UNIMPLEMENTED: errors.Unsupported,
}


class Silent(grpc.RpcError):
    """A stream that should have said something by now. Its connection may look well: the server, or what it waits for, hangs."""

    def __init__(self, silence_s: float) -> None:
        super().__init__()
        self._words = f"no sign of life for {silence_s:g} s"

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.UNAVAILABLE

    def details(self) -> str:
        return self._words


def code_of(error: grpc.RpcError) -> grpc.StatusCode:
    code = getattr(error, "code", None)
    return code() if callable(code) else grpc.StatusCode.UNKNOWN


def words_of(error: grpc.RpcError) -> str:
    details = getattr(error, "details", None)
    return (details() if callable(details) else "") or code_of(error).name


def leader_of(error: grpc.RpcError) -> str:
    """host:port that a follower named; empty where it named none."""
    value = _trailing(error).get(LEADER_KEY, "")
    return value if isinstance(value, str) else value.decode("utf-8", "replace")


def typed(error: grpc.RpcError, call: str, server: str, submits: bool = False, tried: str = "") -> errors.FmschedError:
    """The client's error for `error`, which `server` answered or caused.

    submits  FAILED_PRECONDITION then means that the job can never be placed
    tried    all servers that were tried, where that is more than `server`
    """
    code, words = code_of(error), words_of(error)
    details = _details(error)
    if code is grpc.StatusCode.INVALID_ARGUMENT and (violations := _violations(details)):
        return errors.InvalidManifest(_sentence(violations), violations)
    if code is grpc.StatusCode.FAILED_PRECONDITION and submits:
        return errors.CannotBePlaced(words, _why(details))
    kind = _TYPE_OF.get(code, errors.ServiceFailed)
    if kind is errors.StoreFull and _MESSAGE_TOO_LARGE in words:
        kind = errors.ServiceFailed
    if kind is errors.Unreachable:
        return unreachable(words, server, tried or server)
    if kind is errors.DeadlineExceeded:
        return kind(f"{server} did not answer {call} in time")
    if kind in (errors.ServiceFailed, errors.Unsupported):
        return kind(f"{call} at {server}: {code.name}: {words}")
    return kind(_STATE.sub(lambda found: in_words(found[0]), words))


def unreachable(words: str, server: str, tried: str) -> errors.Unreachable:
    """After UNAVAILABLE: what `server` itself said, or that nobody answers at any of `tried`."""
    if words.startswith(_SERVICE_OPENINGS):
        return errors.NotServing(f"the scheduler at {server}: {words}")
    return errors.Unreachable(f"no scheduler answers at {tried}: {words}")


def place(violation: FieldViolation) -> str:
    """ "line 3: spec.x: found 5", without what the fault has not."""
    line = f"line {violation.line}" if violation.line else ""
    return ": ".join(part for part in (line, violation.path, violation.message) if part)


def _sentence(violations: list[FieldViolation]) -> str:
    more = len(violations) - FAULTS_IN_ONE_LINE_MAX
    found = "; ".join(place(each) for each in violations[:FAULTS_IN_ONE_LINE_MAX])
    return f"the manifest is not valid: {found}" + (f" (and {more} more)" if more > 0 else "")


def _trailing(error: grpc.RpcError) -> dict[str, Any]:
    read = getattr(error, "trailing_metadata", None)
    return dict(read() or ()) if callable(read) else {}


def _details(error: grpc.RpcError) -> list[Any]:
    """The google.protobuf.Any messages beside the status; none where there are none or they cannot be read."""
    raw = _trailing(error).get(DETAILS_KEY)
    if not isinstance(raw, bytes):
        return []
    from google.rpc.status_pb2 import Status

    try:
        return list(Status.FromString(raw).details)
    except DecodeError:
        return []


def _violations(details: list[Any]) -> list[FieldViolation]:
    if not details:
        return []
    from google.rpc.error_details_pb2 import BadRequest

    found = []
    for detail in details:
        request = BadRequest()
        if detail.Unpack(request):
            found += [_violation(each.field, each.description) for each in request.field_violations]
    return found


def _violation(field: str, message: str) -> FieldViolation:
    """`field` is "line 12: spec.x[0].y", "spec.x" or empty."""
    match = _FIELD.match(field)
    assert match is not None, "every part of the pattern is optional"
    return FieldViolation(line=int(match["line"] or 0), path=match["path"], message=message)


def _why(details: list[Any]) -> list[Why]:
    found = []
    for detail in details:
        why = Why()
        if detail.Unpack(why):
            found.append(why)
    return found
