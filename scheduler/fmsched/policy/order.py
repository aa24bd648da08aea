"""The order of the queue: priority first, then age. A job that cannot be placed now does not hold up those behind it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from fmsched.model.job import Request
from fmsched.model.record import Job


def waiting_in_order(jobs: Iterable[Job]) -> tuple[Job, ...]:
    """The wanted jobs that wait for a placement, the next one first."""
    waiting = [job for job in jobs if job.wanted and job.status.state.waits and job.decision is None]
    return tuple(sorted(waiting, key=lambda job: (-job.spec.priority, job.spec.submitted_ms, job.id)))


def question(request: Request) -> tuple[object, ...]:
    """What a request asks, whoever asks it: two waiting jobs with one question have one answer."""
    return (replace(request, job=""),)
