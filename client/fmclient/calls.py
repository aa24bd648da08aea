"""The one table of the service's calls: path, messages, and whether a call may be repeated when its answer was lost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from google.protobuf.message import Message

from fmproto.v1 import scheduler_pb2 as pb

_SERVICE = "/fmsched.v1.Scheduler/"


@dataclass(frozen=True, slots=True)
class Call:
    name: str
    request: type[Message]
    response: type[Message]
    repeat: bool  # a second call after a lost answer does no harm
    submits: bool = False  # FAILED_PRECONDITION says: can never be placed

    @property
    def path(self) -> str:
        return _SERVICE + self.name

    def serialize(self, request: Any) -> bytes:
        return bytes(self.request.SerializeToString(request))

    def parse(self, raw: bytes) -> Any:
        return self.response.FromString(raw)


# Safe to repeat: request_id makes the second submit find the job of the first.
SUBMIT = Call("Submit", pb.SubmitRequest, pb.SubmitResponse, repeat=True, submits=True)
# Safe to repeat: these only read.
VALIDATE = Call("Validate", pb.ValidateRequest, pb.ValidateResponse, repeat=True)
PLAN = Call("Plan", pb.PlanRequest, pb.PlanResponse, repeat=True)
GET_JOB = Call("GetJob", pb.GetJobRequest, pb.Job, repeat=True)
LIST_JOBS = Call("ListJobs", pb.ListJobsRequest, pb.ListJobsResponse, repeat=True)
EXPLAIN = Call("Explain", pb.ExplainRequest, pb.ExplainResponse, repeat=True)
LIST_NODES = Call("ListNodes", pb.ListNodesRequest, pb.ListNodesResponse, repeat=True)
GET_VERSION = Call("GetVersion", pb.GetVersionRequest, pb.VersionInfo, repeat=True)
# Safe to repeat: a cancelled job stays cancelled.
CANCEL = Call("Cancel", pb.CancelRequest, pb.CancelResponse, repeat=True)
# Not safe to repeat: between the two calls another operator may have said the opposite, and the newer word must stand.
DRAIN = Call("Drain", pb.DrainRequest, pb.DrainResponse, repeat=False)
UNDRAIN = Call("Undrain", pb.UndrainRequest, pb.DrainResponse, repeat=False)
# Streams: opened again by the operation that reads them.
WATCH_JOBS = Call("WatchJobs", pb.WatchJobsRequest, pb.JobChange, repeat=True)
LOGS = Call("Logs", pb.LogsRequest, pb.LogChunk, repeat=True)
HOLD = Call("Hold", pb.HoldRequest, pb.JobChange, repeat=True)
