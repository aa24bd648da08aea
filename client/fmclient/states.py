"""A job's states, grouped by what a caller may conclude, and in people's words."""

from __future__ import annotations

from fmproto.v1 import job_pb2 as pb
from fmproto.v1.scheduler_pb2 import Job

WORDS: dict[int, str] = {
    pb.JOB_STATE_UNSPECIFIED: "unknown",
    pb.JOB_STATE_SUBMITTED: "submitted",
    pb.JOB_STATE_QUEUED: "waiting",
    pb.JOB_STATE_COMMITTED: "placed",
    pb.JOB_STATE_PREPARING: "preparing",
    pb.JOB_STATE_RUNNING: "running",
    pb.JOB_STATE_CHECKPOINTING: "saving a checkpoint",
    pb.JOB_STATE_PREEMPTED: "preempted, waiting",
    pb.JOB_STATE_RECOVERING: "recovering",
    pb.JOB_STATE_STOPPING: "stopping",
    pb.JOB_STATE_SUCCEEDED: "succeeded",
    pb.JOB_STATE_FAILED: "failed",
    pb.JOB_STATE_CANCELLED: "cancelled",
}
ENDED = frozenset({pb.JOB_STATE_SUCCEEDED, pb.JOB_STATE_FAILED, pb.JOB_STATE_CANCELLED})
# The gang's processes live, or the allocation's GPUs are the caller's.
RUNNING = frozenset({pb.JOB_STATE_RUNNING, pb.JOB_STATE_CHECKPOINTING})
WAITING = frozenset({pb.JOB_STATE_SUBMITTED, pb.JOB_STATE_QUEUED, pb.JOB_STATE_PREEMPTED, pb.JOB_STATE_RECOVERING})


def words(state: int) -> str:
    """A state that a newer service may have added is shown by its number."""
    return WORDS.get(state, f"state {state}")


def in_words(name: str) -> str:
    """People's word for a state that the service names as its code does ("queued"); the name itself where it is none."""
    number = pb.JobState.DESCRIPTOR.values_by_name.get(f"JOB_STATE_{name.upper()}")
    return name if number is None else words(number.number)


def has_ended(job: Job) -> bool:
    return job.status.state in ENDED


def is_running(job: Job) -> bool:
    return job.status.state in RUNNING
