"""The one map from what can go wrong to gRPC status codes, used as the gRPC documentation means them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NoReturn

import grpc
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2

from fmproto.v1 import scheduler_pb2 as pb

LEADER_METADATA = "fmsched-leader"
# Error texts travel in headers, which are small.
NAME_SHOWN_MAX = 80
DETAILS_METADATA = "grpc-status-details-bin"


class ServiceError(Exception):
    """Ends a call with `code`, a message, and details for programs."""

    def __init__(
        self,
        code: grpc.StatusCode,
        message: str,
        violations: Iterable[pb.FieldViolation] = (),
        metadata: Iterable[tuple[str, str]] = (),
        details: Iterable[Message] = (),
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.violations = tuple(violations)
        self.metadata = tuple(metadata)
        self.details = tuple(details)


def _place(violation: pb.FieldViolation) -> str:
    """ "line 12: spec.replicaCount", without what is not known."""
    return ": ".join(part for part in (f"line {violation.line}" if violation.line else "", violation.path) if part)


def invalid(violations: Iterable[pb.FieldViolation]) -> ServiceError:
    found = tuple(violations)
    lines = "; ".join(
        ": ".join(part for part in (f"line {v.line}" if v.line else "", v.path, v.message) if part) for v in found[:3]
    )
    more = f" (and {len(found) - 3} more)" if len(found) > 3 else ""
    return ServiceError(grpc.StatusCode.INVALID_ARGUMENT, f"the request is not valid: {lines}{more}", found)


def not_found(what: str, name: str, known: Iterable[str] = ()) -> ServiceError:
    examples = ", ".join(sorted(known)[:5])
    return ServiceError(
        grpc.StatusCode.NOT_FOUND, f"no {what} named {name!r}" + (f"; there are: {examples}" if examples else "")
    )


def not_leader(leader: str | None) -> ServiceError:
    """UNAVAILABLE: the client tries again, at the leader where it is known."""
    metadata = ((LEADER_METADATA, leader),) if leader else ()
    return ServiceError(
        grpc.StatusCode.UNAVAILABLE, f"this scheduler does not lead; {leader or 'nobody'} does", metadata=metadata
    )


async def abort(context: grpc.aio.ServicerContext[Message, Message], error: ServiceError) -> NoReturn:
    """Ends the call; a google.rpc.BadRequest stands first among the details where fields are at fault."""
    metadata: list[tuple[str, str | bytes]] = list(error.metadata)
    details = list(error.details)
    if error.violations:
        violations = [
            error_details_pb2.BadRequest.FieldViolation(field=_place(v), description=v.message) for v in error.violations
        ]
        details.insert(0, error_details_pb2.BadRequest(field_violations=violations))
    if details:
        status = status_pb2.Status(code=error.code.value[0], message=error.message)
        for detail in details:
            status.details.add().Pack(detail)
        metadata.append((DETAILS_METADATA, status.SerializeToString()))
    await context.abort(error.code, error.message, tuple(metadata))
    raise AssertionError("abort returned")
