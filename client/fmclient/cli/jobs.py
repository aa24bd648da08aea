"""What is shown of jobs: rows and columns. Pure, from messages."""

from __future__ import annotations

from fmclient.cli.human import age, few
from fmclient.cli.output import Column
from fmclient.cli.why import why_line
from fmclient.states import WAITING, words
from fmproto.v1.scheduler_pb2 import Job

COLUMNS = (
    Column("ID"),
    Column("NAME"),
    Column("STATE"),
    Column("GPUS", right=True),
    Column("NODES", right=True),
    Column("QUEUE", right=True),
    Column("AGE", right=True, age=True),
    Column("ATTEMPT", wide=True, right=True),
    Column("TENANT", wide=True),
    Column("PRIORITY", wide=True),
    Column("SUBMITTER", wide=True),
    Column("WHERE", wide=True),
    Column("WHY", wide=True),
)


def gpus_asked(job: Job) -> int:
    return (job.spec.replica_count + job.spec.spares) * sum(group.gpus_per_group for group in job.spec.groups)


def nodes_of(job: Job) -> tuple[str, ...]:
    """In node rank order; none while no decision is held."""
    ranks = sorted((rank for rank in job.decision.ranks if not rank.spare), key=lambda rank: rank.rank)
    return tuple(dict.fromkeys(rank.node for rank in ranks))


def without_pids(job: Job) -> Job:
    """A copy for comparing: ranks are started one by one, and nobody waits for a process's number."""
    copy = Job()
    copy.CopyFrom(job)
    for rank in (rank for run in copy.runs for rank in run.ranks):
        rank.ClearField("pid")
    return copy


def first_why(job: Job) -> str:
    """Of a waiting job the first constraint; of another one its reason."""
    if job.status.state in WAITING and job.status.why:
        return why_line(job.status.why[0])
    return job.status.reason


def row(job: Job, now_ms: int) -> tuple[str, ...]:
    nodes = nodes_of(job)
    spec = job.spec
    return (
        spec.id,
        spec.name,
        words(job.status.state),
        str(gpus_asked(job) or len(job.decision.ranks)),
        str(len(nodes)) if nodes else "-",
        str(job.queue_position) if job.queue_position else "-",
        age(spec.submitted_ms, now_ms),
        str(job.status.attempt) if job.status.attempt else "-",
        spec.tenant or "-",
        spec.priority_class or str(spec.priority),
        spec.submitter or "-",
        few(nodes),
        first_why(job) or "-",
    )
