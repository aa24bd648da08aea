"""Every error that the client raises, and nothing else. Those that a call raises are raised from its gRPC error.

FmschedError                everything below; catch this to catch all
 ├── InvalidManifest        the manifest has faults: .violations, one per fault; nothing was stored
 ├── InvalidArgument        a request that the service does not accept, manifest aside
 ├── NotFound               no such job, node or rank
 ├── AlreadyExists          the name or id is taken
 ├── CannotBePlaced         the job can never run on this cluster: .why
 ├── Refused                understood, but not in this state (the logs of an allocation, for one)
 ├── Denied                 the caller may not do this, or did not prove who it is
 ├── StoreFull              the state store takes no writes; nothing was stored
 ├── Unreachable            no scheduler answered, after the retries; of a write: the result is unknown
 │    └── NotServing        one answered that it cannot serve now: nobody leads, or the state store does not answer
 ├── DeadlineExceeded       a scheduler was reached and did not answer in time; of a write: the result is unknown
 │    └── StillWaiting      wait() or allocate() ran out of time: .job is the newest known, or None
 ├── JobEnded               the job failed or was cancelled before it ran: .job
 ├── Unsupported            the service does not know this call: it is older than the client
 └── ServiceFailed          a fault inside the service, or an answer that cannot be read
"""

from __future__ import annotations

from collections.abc import Sequence

from fmproto.v1.job_pb2 import Why
from fmproto.v1.scheduler_pb2 import FieldViolation, Job


class FmschedError(Exception):
    """The root. str() is one line for a person."""


class InvalidManifest(FmschedError):
    """`violations`: line (1-based, 0: the whole document), path and message of each fault."""

    def __init__(self, message: str, violations: Sequence[FieldViolation]) -> None:
        super().__init__(message)
        self.violations = tuple(violations)


class InvalidArgument(FmschedError):
    pass


class NotFound(FmschedError):
    pass


class AlreadyExists(FmschedError):
    pass


class CannotBePlaced(FmschedError):
    """`why`: a minimal set of constraints that conflict; empty where the service sent only a sentence."""

    def __init__(self, message: str, why: Sequence[Why] = ()) -> None:
        super().__init__(message)
        self.why = tuple(why)


class Refused(FmschedError):
    pass


class Denied(FmschedError):
    pass


class StoreFull(FmschedError):
    pass


class Unreachable(FmschedError):
    pass


class NotServing(Unreachable):
    pass


class DeadlineExceeded(FmschedError):
    pass


class StillWaiting(DeadlineExceeded):
    def __init__(self, message: str, job: Job | None) -> None:
        super().__init__(message)
        self.job = job


class JobEnded(FmschedError):
    def __init__(self, message: str, job: Job) -> None:
        super().__init__(message)
        self.job = job


class Unsupported(FmschedError):
    pass


class ServiceFailed(FmschedError):
    pass
