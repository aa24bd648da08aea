"""What is shown of queues: each summed up from its live jobs. Pure, from messages."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from fmclient.cli.human import age
from fmclient.cli.jobs import first_why, gpus_asked
from fmclient.cli.output import Column
from fmclient.states import is_running
from fmproto.v1.scheduler_pb2 import Job

# Jobs whose manifest names no queue.
DEFAULT_QUEUE = "default"
COLUMNS = (
    Column("QUEUE"),
    Column("RUNNING", right=True),
    Column("GPUS HELD", right=True),
    Column("WAITING", right=True),
    Column("GPUS ASKED", right=True),
    Column("OLDEST", right=True, age=True),
    Column("NEXT"),
    Column("WHY", wide=True),
)


@dataclass(frozen=True, slots=True)
class Queue:
    """`running`: jobs that run, or save a checkpoint. `gpus_held`: by all jobs with a placement, those that start or stop
    included. `gpus_asked`: by the waiting. `oldest_waiting_ms`: since when the one waits that has waited longest (Unix
    time); 0 where none waits. `next_job`: the id of the first in line; `next_why` its first reason, as a sentence.
    """

    name: str
    running: int = 0
    gpus_held: int = 0
    waiting: int = 0
    gpus_asked: int = 0
    oldest_waiting_ms: int = 0
    next_job: str = ""
    next_why: str = ""


def queues_of(jobs: Iterable[Job], also: Iterable[str] = ()) -> list[Queue]:
    """By name. `also`: queues to name even where no job is in them."""
    members: dict[str, list[Job]] = {name: [] for name in also}
    for job in jobs:
        members.setdefault(job.spec.queue or DEFAULT_QUEUE, []).append(job)
    return [_queue(name, members[name]) for name in sorted(members)]


def waits(job: Job) -> bool:
    """As the service counts: no longer once it is placed, or told to end."""
    return job.queue_position > 0


def waiting_since_ms(job: Job) -> int:
    """When it began to wait, which is later than its submission where it had run before. Unix time."""
    return job.status.since_ms or job.spec.submitted_ms


def _queue(name: str, jobs: list[Job]) -> Queue:
    line = sorted((job for job in jobs if waits(job)), key=lambda job: job.queue_position)
    return Queue(
        name=name,
        running=sum(is_running(job) for job in jobs),
        gpus_held=sum(len(job.decision.ranks) for job in jobs),
        waiting=len(line),
        gpus_asked=sum(gpus_asked(job) for job in line),
        oldest_waiting_ms=min((waiting_since_ms(job) for job in line), default=0),
        next_job=line[0].spec.id if line else "",
        next_why=first_why(line[0]) if line else "",
    )


def row(queue: Queue, now_ms: int) -> tuple[str, ...]:
    return (
        queue.name,
        str(queue.running),
        str(queue.gpus_held),
        str(queue.waiting),
        str(queue.gpus_asked),
        age(queue.oldest_waiting_ms, now_ms),
        queue.next_job or "-",
        queue.next_why or "-",
    )


def data(queue: Queue) -> dict[str, Any]:
    """In the form of protobuf's JSON: a 64-bit integer is a string."""
    return {
        "name": queue.name,
        "running": queue.running,
        "gpusHeld": queue.gpus_held,
        "waiting": queue.waiting,
        "gpusAsked": queue.gpus_asked,
        "oldestWaitingMs": str(queue.oldest_waiting_ms),
        "nextJob": queue.next_job,
        "nextWhy": queue.next_why,
    }
