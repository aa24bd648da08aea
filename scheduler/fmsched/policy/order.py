"""The order of the queue: priority first, then age. A job that cannot be placed now does not hold up those behind it."""

from __future__ import annotations

from collections.abc import Iterable

from fmsched.model.hardware import JobId
from fmsched.model.job import Request
from fmsched.model.record import Job


def waiting_in_order(jobs: Iterable[Job]) -> tuple[Job, ...]:
    """The wanted jobs that wait for a placement, the next one first."""
    waiting = [job for job in jobs if job.wanted and job.status.state.waits and job.decision is None]
    return tuple(sorted(waiting, key=lambda job: (-job.spec.priority, job.spec.submitted_ms, job.id)))


def ahead_of(job: Job, queue: Iterable[Job]) -> tuple[JobId, ...]:
    """The jobs that stand before `job`."""
    ahead = []
    for other in queue:
        if other.id == job.id:
            break
        ahead.append(other.id)
    return tuple(ahead)


def question(request: Request) -> tuple[object, ...]:
    """What a request asks, whoever asks it: two waiting jobs with one question have one answer."""
    return (request.groups, request.replicas, request.avoid_nodes)
