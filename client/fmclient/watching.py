"""Operations that follow jobs over time: watch, wait, hold."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from hashlib import blake2b
from typing import Literal

from fmclient import calls
from fmclient.effects import Emit, Op
from fmclient.errors import DeadlineExceeded, JobEnded, NotFound, StillWaiting, Unreachable
from fmclient.operations import Session, get, list_jobs
from fmclient.resume import Resumable
from fmclient.retry import Limits
from fmclient.states import has_ended, is_running, words
from fmproto.v1 import job_pb2
from fmproto.v1.scheduler_pb2 import HoldRequest, Job, JobChange, WatchJobsRequest

Until = Literal["running", "ended"]


class Seen:
    """What a watcher was told last of each job, as digests: jobs carry their manifests."""

    def __init__(self) -> None:
        self._digests: dict[str, bytes] = {}

    def news(self, change: JobChange) -> bool:
        """Notes the change; False where the watcher knows all of it already."""
        job = change.job.spec.id
        if change.deleted:
            return self._digests.pop(job, None) is not None
        digest = blake2b(change.job.SerializeToString(deterministic=True), digest_size=16).digest()
        known = self._digests.get(job)
        self._digests[job] = digest
        return digest != known

    def missing_from(self, jobs: tuple[Job, ...]) -> tuple[str, ...]:
        present = {job.spec.id for job in jobs}
        return tuple(job for job in self._digests if job not in present)


def watch(session: Session, job: str | None) -> Op[None]:
    """Emits JobChanges: the current jobs, then what changes. With `job` it ends after that job's end or deletion; without,
    never by itself. After a lost connection it goes on with what has changed meanwhile, jobs that have gone included.
    """
    wanted = (yield from get(session, job)).spec.id if job else ""
    stream, seen, openings = session.stream(calls.WATCH_JOBS, WatchJobsRequest(id=wanted)), Seen(), 0
    try:
        while True:  # until the caller stops iterating, or read() loses patience
            try:
                change = yield from stream.read()
            except NotFound:
                if not wanted:
                    raise
                change = JobChange(job=_only_id(wanted), deleted=True)
            if openings and stream.openings != openings:
                yield from _emit_gone(session, seen, wanted)
            openings = stream.openings
            if change is None:
                yield from stream.pause()
                continue
            if seen.news(change):
                yield Emit(change)
            if wanted and (change.deleted or has_ended(change.job)):
                return
    finally:
        stream.cancel()


def wait(session: Session, job: str, until: Until, timeout_s: float | None) -> Op[Job]:
    """The job once it runs (or has ended well), or once it has ended. Raises StillWaiting after timeout_s, JobEnded where
    it failed or was cancelled and `until` is "running", NotFound where it is unknown or was deleted.
    """
    deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
    newest: Job = yield from get(session, job)
    stream = session.stream(calls.WATCH_JOBS, WatchJobsRequest(id=newest.spec.id), deadline_s)
    try:
        while not _reached(newest, until):
            change = yield from stream.read()
            if change is None:
                yield from stream.pause()
            elif change.deleted:
                raise NotFound(f"job {newest.spec.id} was deleted while it was waited for")
            elif change.job.spec.id == newest.spec.id:
                newest = change.job
    except DeadlineExceeded as error:
        state = words(newest.status.state)
        raise StillWaiting(
            f"job {newest.spec.id} is {state} after {round(timeout_s or 0.0, 2):g} s; waited for {until}", newest
        ) from error
    finally:
        stream.cancel()
    return newest


def hold_stream(session: Session, job: str) -> Resumable:
    """For hold(). Looks for the service without limit: giving up earlier than the caller could only lose the GPUs."""
    tireless = replace(session, limits=Limits(math.inf, math.inf, math.inf))
    return tireless.stream(calls.HOLD, HoldRequest(id=job))


def hold(stream: Resumable) -> Op[None]:
    """Emits each new Job while the service keeps the allocation; ends with the job."""
    seen = Seen()
    try:
        while True:  # until the job ends, or the caller stops
            change = yield from stream.read()
            if change is None:
                yield from stream.pause()
                continue
            if seen.news(change):
                yield Emit(change.job)
            if change.deleted or has_ended(change.job):
                return
    finally:
        stream.cancel()


def _reached(job: Job, until: Until) -> bool:
    if until == "ended":
        return has_ended(job)
    if has_ended(job) and job.status.state != job_pb2.JOB_STATE_SUCCEEDED:
        reason = f": {job.status.reason}" if job.status.reason else ""
        raise JobEnded(f"job {job.spec.id} {words(job.status.state)}{reason}", job)
    return is_running(job) or has_ended(job)


def _emit_gone(session: Session, seen: Seen, wanted: str) -> Op[None]:
    """Emits the deletion of each job that went while nobody was listening."""
    if wanted:
        return  # its watch answers NOT_FOUND
    try:
        jobs = yield from list_jobs(session, live_only=False)
    except Unreachable:
        return  # the stream is about to be lost again; its next opening asks again
    for gone in seen.missing_from(jobs):
        change = JobChange(job=_only_id(gone), deleted=True)
        if seen.news(change):
            yield Emit(change)


def _only_id(job: str) -> Job:
    return Job(spec=job_pb2.JobSpec(id=job), status=job_pb2.JobStatus(id=job))
