"""What fmctl top shows, as values: one picture of the cluster, its rows and its data. Pure, from messages."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from fmclient.cli.draw import MARK_CLOSED, MARK_FREE, MARK_SICK
from fmclient.cli.human import age, count, few
from fmclient.cli.jobs import first_why, gpus_asked, nodes_of
from fmclient.cli.nodes import CLOSED, DEGRADED, IN_USE, READY, gpu_views, is_free, trouble
from fmclient.cli.output import Column
from fmclient.states import is_running, words
from fmproto.v1.scheduler_pb2 import Job, Node, VersionInfo

NODE_COLUMNS = (Column("NODE"), Column("STATE"), Column("HELD", right=True), Column("GPUS"), Column("REASON"))
JOB_COLUMNS = (
    Column("JOB"),
    Column("NAME"),
    Column("STATE"),
    Column("GPUS", right=True),
    Column("AGE", right=True),
    Column("NODES (REASON)"),
)
MARK_HELD = "█"
# A mark for each GPU up to so many; beyond, a mark stands for several.
BAR_WIDTH_MAX = 16


@dataclass(frozen=True, slots=True)
class NodeLoad:
    """GPUs of one node, counted as `topo show` does: one that failed or is closed is not usable, also while it is held."""

    name: str
    state: str
    reason: str
    held: int
    free: int
    failed: int
    closed: int

    @property
    def gpus(self) -> int:
        return self.held + self.free + self.failed + self.closed


@dataclass(frozen=True, slots=True)
class JobLoad:
    """A live job. `gpus_held`: 0 while it has no placement. `since_ms`: its submission, Unix time."""

    id: str
    name: str
    state: str
    gpus_held: int
    gpus_asked: int
    since_ms: int
    nodes: tuple[str, ...]
    reason: str
    queue_position: int
    running: bool


@dataclass(frozen=True, slots=True)
class Picture:
    """Nodes: those in trouble first, then by GPUs held. Jobs: by GPUs held, then in the order of the queue."""

    nodes: tuple[NodeLoad, ...]
    jobs: tuple[JobLoad, ...]
    store: str
    leader: str

    @property
    def running(self) -> int:
        return sum(job.running for job in self.jobs)

    @property
    def waiting(self) -> int:
        return sum(job.queue_position > 0 for job in self.jobs)

    @property
    def moving(self) -> int:
        """Jobs that start, stop or recover: they neither run nor wait."""
        return len(self.jobs) - self.running - self.waiting

    @property
    def ready(self) -> int:
        return sum(node.state == READY for node in self.nodes)

    @property
    def held(self) -> int:
        return sum(node.held for node in self.nodes)

    @property
    def free(self) -> int:
        return sum(node.free for node in self.nodes)

    @property
    def not_usable(self) -> int:
        return sum(node.failed + node.closed for node in self.nodes)


def picture_of(nodes: Iterable[Node], jobs: Iterable[Job], version: VersionInfo) -> Picture:
    loads = sorted((_node(node) for node in nodes), key=lambda node: (not _in_trouble(node), -node.held, node.name))
    live = sorted((_job(job) for job in jobs), key=lambda job: (-job.gpus_held, job.queue_position, job.since_ms, job.id))
    return Picture(tuple(loads), tuple(live), version.store or "unknown", version.leader_address)


def cluster_lines(picture: Picture) -> tuple[str, ...]:
    """Nodes and GPUs; jobs; the state store and who leads."""
    gpus = picture.held + picture.free + picture.not_usable
    held = f"{count(gpus, 'GPU')}: {picture.held:,} held, {picture.free:,} free, {picture.not_usable:,} not usable"
    moving = f", {picture.moving:,} starting or stopping" if picture.moving else ""
    return (
        f"nodes: {picture.ready:,} of {len(picture.nodes):,} ready   {held}",
        f"jobs: {picture.running:,} running, {picture.waiting:,} waiting{moving}",
        f"state store: {picture.store}   leader: {picture.leader or 'none'}",
    )


def bar(node: NodeLoad) -> str:
    """ "██··!-": held, free, failed, closed. On a node of many GPUs, a part that is not empty has at least one mark."""
    parts = ((node.held, MARK_HELD), (node.free, MARK_FREE), (node.failed, MARK_SICK), (node.closed, MARK_CLOSED))
    if node.gpus <= BAR_WIDTH_MAX:
        return "".join(mark * number for number, mark in parts)
    widths = [max(1, number * BAR_WIDTH_MAX // node.gpus) if number else 0 for number, _ in parts]
    widths[widths.index(max(widths))] += BAR_WIDTH_MAX - sum(widths)
    return "".join(mark * width for width, (_, mark) in zip(widths, parts, strict=True))


def node_row(node: NodeLoad) -> tuple[str, ...]:
    return node.name, node.state, f"{node.held}/{node.gpus}", bar(node) or "-", node.reason or "-"


def job_row(job: JobLoad, now_ms: int) -> tuple[str, ...]:
    """Of a waiting job the GPUs that it asks, and why it waits."""
    where = few(job.nodes) if job.nodes else f"({job.reason})" if job.reason else "-"
    return job.id, job.name, job.state, str(job.gpus_held or job.gpus_asked), age(job.since_ms, now_ms), where


def data(picture: Picture) -> dict[str, Any]:
    """In the form of protobuf's JSON: a 64-bit integer is a string."""
    return {
        "cluster": {
            "nodes": {"ready": picture.ready, "all": len(picture.nodes)},
            "gpus": {"held": picture.held, "free": picture.free, "notUsable": picture.not_usable},
            "jobs": {"running": picture.running, "waiting": picture.waiting, "startingOrStopping": picture.moving},
            "store": picture.store,
            "leader": picture.leader,
        },
        "nodes": [
            {
                "name": node.name,
                "state": node.state,
                "reason": node.reason,
                "gpus": {"held": node.held, "free": node.free, "failed": node.failed, "closed": node.closed},
            }
            for node in picture.nodes
        ],
        "jobs": [
            {
                "id": job.id,
                "name": job.name,
                "state": job.state,
                "gpusHeld": job.gpus_held,
                "gpusAsked": job.gpus_asked,
                "submittedMs": str(job.since_ms),
                "nodes": list(job.nodes),
                "reason": job.reason,
                "queuePosition": job.queue_position,
            }
            for job in picture.jobs
        ],
    }


def _node(node: Node) -> NodeLoad:
    views = gpu_views(node)
    held = sum(bool(view.job) and view.state in (IN_USE, DEGRADED) for view in views)
    free = sum(is_free(node, view) for view in views)
    closed = sum(view.state == CLOSED for view in views)
    return NodeLoad(node.name, node.state, trouble(node), held, free, len(views) - held - free - closed, closed)


def _in_trouble(node: NodeLoad) -> bool:
    return node.state != READY or node.failed > 0


def _job(job: Job) -> JobLoad:
    return JobLoad(
        id=job.spec.id,
        name=job.spec.name,
        state=words(job.status.state),
        gpus_held=len(job.decision.ranks),
        gpus_asked=gpus_asked(job),
        since_ms=job.spec.submitted_ms,
        nodes=nodes_of(job),
        reason=first_why(job),
        queue_position=job.queue_position,
        running=is_running(job),
    )
