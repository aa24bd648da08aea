"""Every decision of the agent: what is wanted and what is seen, compared; actions out. Pure: no I/O, no clock, no logging.

Rules that hold throughout, each with a table in tests/unit/test_agent_reconcile.py:
- An absent order stops its run, but only in a synchronised view: a silent scheduler is not an empty desire.
- No process before its report stands in the store (write-ahead), none over a GPU that another local run still holds.
- A run is forgotten, and its report withdrawn, only when no process of it is left.
- Orders that were written after a newer term was seen, or with a lower attempt, start nothing; where no run here could make sense of
  them, their job is told so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from fmagent.orders import Order, RunState, Stage

BARE = "this agent runs bare processes only"


@dataclass(frozen=True, slots=True)
class Published:
    """The newest report of a job: `confirmed` once the store holds it."""

    attempt: int
    stage: Stage
    confirmed: bool


@dataclass(frozen=True, slots=True)
class Seen:
    """The highest term among orders, the store revision it first came with, and the newest attempt begun per job; persisted."""

    term: int = 0
    term_revision: int = 0
    attempts: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class World:
    """Everything a decision may rest on. `desired` is None before the first synchronised view."""

    desired: Mapping[str, Order] | None
    runs: tuple[RunState, ...]
    reports: Mapping[str, Published] = field(default_factory=dict)
    seen: Seen = field(default_factory=Seen)
    gpus: Mapping[str, str] | None = None  # uuid and index → why it is unfit ("" if it is fit); None: not read yet
    node_fault: str = ""  # why nothing may be prepared here: a full disk
    fenced: str = ""  # why everything must stop although no order says so
    fence_grace_s: float = 10.0
    unreadable: frozenset[str] = frozenset()  # jobs whose order is there and cannot be read: left as they are


@dataclass(frozen=True, slots=True)
class Announce:
    """Report PREPARING before any process exists; `reason` where it must wait."""

    order: Order
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Prepare:
    order: Order


@dataclass(frozen=True, slots=True)
class Decline:
    """Report REFUSED: nothing was started, and nothing is left."""

    order: Order
    reason: str
    device_fault: bool


@dataclass(frozen=True, slots=True)
class DeclareLost:
    """Report EXITED: the store says that this node ran the job, and the node has no trace of it."""

    order: Order
    reason: str


@dataclass(frozen=True, slots=True)
class Start:
    job: str
    attempt: int
    master_address: str
    master_port: int


@dataclass(frozen=True, slots=True)
class Stop:
    """SIGTERM to every process of the run, SIGKILL of what is left after `grace_s` seconds."""

    job: str
    attempt: int
    grace_s: float
    reason: str
    device_fault: bool = False


@dataclass(frozen=True, slots=True)
class Release:
    """Forget the run: no process is left. Its logs stay."""

    job: str
    attempt: int


@dataclass(frozen=True, slots=True)
class Withdraw:
    """Delete the report: the node is seen free of the job."""

    job: str


@dataclass(frozen=True, slots=True)
class Ignore:
    """An order that is out of date. It is logged once and changes nothing."""

    order: Order
    reason: str


Action = Announce | Prepare | Decline | DeclareLost | Start | Stop | Release | Withdraw | Ignore


def reconcile(world: World) -> tuple[Action, ...]:
    """What to do now, in order. Doing it and calling again converges: the answer is empty once nothing is left to do."""
    actions: list[Action] = []
    if world.fenced:
        actions += [
            Stop(run.job, run.attempt, min(run.grace_period_s, world.fence_grace_s), world.fenced, device_fault=True)
            for run in world.runs
            if not run.ended and not run.stop_ordered
        ]
    if world.desired is None:
        return tuple(actions)
    runs = {run.job: run for run in world.runs}
    holders = {gpu: run for run in world.runs if not run.gone for gpu in run.gpus}
    for job in sorted({*runs, *world.reports} - set(world.desired) - world.unreadable):
        run = runs.get(job)
        actions += _unwanted(run) if run is not None else ()
        if run is None or run.gone:
            actions.append(Withdraw(job))
    for order in sorted(world.desired.values(), key=lambda order: (order.revision, order.job)):
        run = runs.get(order.job)
        stale = _stale(order, run, world.seen)
        if stale:
            actions += _refused_as_stale(order, run, world, stale)
        elif run is not None and run.attempt < order.attempt:
            actions += _unwanted(run, f"attempt {order.attempt} was ordered")
        elif run is not None:
            actions += _advance(order, run, fenced=bool(world.fenced))
        elif not world.fenced:
            begun = _begin(order, world, holders)
            actions += begun
            if any(isinstance(action, Prepare) for action in begun):
                holders |= dict.fromkeys(order.gpus, _claimed(order))
    return tuple(actions)


def _unwanted(run: RunState, reason: str = "its assignment was withdrawn") -> Iterator[Action]:
    if run.gone:
        yield Release(run.job, run.attempt)
    elif not run.stop_ordered:
        yield Stop(run.job, run.attempt, run.grace_period_s, reason)


def _stale(order: Order, run: RunState | None, seen: Seen) -> str:
    # A deposed leader may still write. What it wrote before its successor's first order stands, and is finished by the successor.
    if order.term < seen.term and order.revision > seen.term_revision:
        return f"its term {order.term} is older than {seen.term}, which was seen earlier"
    newest = max(seen.attempts.get(order.job, 0), run.attempt if run else 0)
    if order.attempt < newest:
        return f"its attempt {order.attempt} is older than {newest}, which this node has begun"
    return ""


def _refused_as_stale(order: Order, run: RunState | None, world: World, reason: str) -> Iterator[Action]:
    """Silence would leave the job waiting for this node for ever: only a run, or a report of a newer attempt, says more."""
    report = world.reports.get(order.job)
    if run is not None or (report is not None and report.attempt > order.attempt):
        yield Ignore(order, reason)
    elif report is None or report.attempt < order.attempt or report.stage is Stage.PREPARING:
        yield Decline(order, reason, device_fault=True)
    elif report.stage not in {Stage.EXITED, Stage.REFUSED}:
        yield DeclareLost(order, f"this node has no record of the run that it reported as {report.stage.value}")


def _advance(order: Order, run: RunState, *, fenced: bool) -> Iterator[Action]:
    if order.start and run.stage is Stage.PREPARED and not run.start_ordered and not run.stop_ordered and not fenced:
        yield Start(run.job, run.attempt, order.master_address, order.master_port)


def _begin(order: Order, world: World, holders: Mapping[str, RunState]) -> list[Action]:
    report = world.reports.get(order.job)
    known = report is not None and report.attempt == order.attempt
    if known and report is not None and report.stage in {Stage.EXITED, Stage.REFUSED}:
        return []
    if known and report is not None and report.stage is not Stage.PREPARING:
        return [DeclareLost(order, f"this node has no record of the run that it reported as {report.stage.value}")]
    if order.start:
        return [DeclareLost(order, "the start was ordered, and this node has no record of having prepared")]
    if world.gpus is None:
        return []
    fault = _fault(order, world)
    if fault is not None:
        return [fault]
    held = _held(order, holders)
    announced = known and report is not None and report.confirmed
    if held or not announced:
        return [Announce(order, held)]
    return [Prepare(order)]


def _fault(order: Order, world: World) -> Decline | None:
    if not order.ranks:
        return Decline(order, "the assignment has no ranks", device_fault=False)
    if order.command is not None and not order.command.argv:
        return Decline(order, "template.command is empty: a bare process needs one", device_fault=False)
    if order.command is not None and order.command.image:
        reason = f"template.image is {order.command.image!r}: {BARE}, without an image"
        return Decline(order, reason, device_fault=False)
    if order.command is not None and order.command.volumes:
        found = ", ".join(order.command.volumes)
        reason = f"template.volumes is {found!r}: {BARE}, which see the node's own file systems and mount nothing"
        return Decline(order, reason, device_fault=False)
    if world.node_fault:
        return Decline(order, world.node_fault, device_fault=True)
    for rank in order.ranks:
        unfit = (world.gpus or {}).get(rank.gpu, "this node has no such GPU")
        if unfit:
            return Decline(order, f"GPU {rank.gpu_index} ({rank.gpu}): {unfit}", device_fault=True)
    return None


def _held(order: Order, holders: Mapping[str, RunState]) -> str:
    for rank in order.ranks:
        holder = holders.get(rank.gpu)
        if holder is not None:
            what = f"job {holder.job}, attempt {holder.attempt} ({holder.stage.value})"
            return f"waits: GPU {rank.gpu_index} is still held by {what}"
    return ""


def _claimed(order: Order) -> RunState:
    return RunState(order.job, order.attempt, Stage.PREPARING, gpus=order.gpus)


def note(seen: Seen, orders: Mapping[str, Order]) -> Seen:
    """`seen` after a look at `orders`: the highest term of orders that are themselves not stale."""
    term, revision = seen.term, seen.term_revision
    for order in sorted(orders.values(), key=lambda order: order.revision):
        if order.term > term:
            term, revision = order.term, order.revision
    return seen if term == seen.term else Seen(term, revision, seen.attempts)


def restored(seen: Seen, revision: int) -> str:
    """Why `seen` means nothing any more, or empty: the whole picture is of a `revision` before the one that a term was seen at, so the
    store was put back to an earlier state. New leaders' terms, and attempts, count on from there."""
    if revision < seen.term_revision:
        return f"the store is at revision {revision}, and was at {seen.term_revision} before: it was restored from a backup"
    return ""


def foreign(holders: Mapping[str, tuple[int, ...]], own: frozenset[int]) -> str:
    """Why the GPUs cannot be taken: a process that belongs to no run here uses one. `holders`: uuid → pids."""
    for gpu, pids in holders.items():
        strangers = [pid for pid in pids if pid not in own]
        if strangers:
            return f"GPU {gpu} is in use by process {', '.join(map(str, strangers))}, which belongs to no run of this node"
    return ""
