"""What must hold at every revision of the store and at every start and end of a rank. Each rule has one method; the first broken rule ends
the run. The store's history comes from one watch that begins before the first write.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

from fmproto import keys
from fmproto.kv import Change, Changes, Resync
from fmproto.v1 import job_pb2 as pb
from fmsched.lifecycle.table import NEXT
from fmsched.model.record import State, Status
from fmsched.store import codec
from fmsched.store.memory import MemoryStore
from tests.sim.network import Request, done_at_once

Attempt = tuple[str, int]  # job, attempt number
Gpu = tuple[str, int]  # node, index


@dataclass(slots=True)
class Granted:
    """A decision as it stands. `stopped_s`: since when it is to be stopped."""

    attempt: int
    gpus: frozenset[Gpu]
    nodes: tuple[str, ...]
    start: bool
    stop: bool
    stopped_s: float | None = None


@dataclass(slots=True)
class History:
    """What the store has said so far."""

    granted: dict[str, Granted] = field(default_factory=dict)
    owner: dict[Gpu, str] = field(default_factory=dict)
    attempts: dict[str, int] = field(default_factory=dict)
    prepared: set[tuple[str, int, str]] = field(default_factory=set)
    start_ordered: set[tuple[str, int, str]] = field(default_factory=set)
    orders: dict[tuple[str, str], pb.Assignment] = field(default_factory=dict)
    statuses: dict[str, Status] = field(default_factory=dict)
    reports: dict[tuple[str, str], int] = field(default_factory=dict)  # (node, job) → attempt
    term_written: int = 0


class Safety:
    """`wrong` is told of the first broken rule; `now_s` is virtual time; `linger_max_s` bounds how long a rank may outlive the
    order to stop, with the fence, the silence of a watch and the job's grace in it."""

    def __init__(
        self, store: MemoryStore, now_s: Callable[[], float], wrong: Callable[[str], None], linger_max_s: float
    ) -> None:
        self._store = store
        self._watch = store.follow("")
        self._now_s = now_s
        self._wrong = wrong
        self._linger_max_s = linger_max_s
        self.revision = 0
        self.seen = History()
        self.live: dict[Gpu, Counter[Attempt]] = defaultdict(Counter)
        self.running: dict[str, Counter[int]] = defaultdict(Counter)  # job → ranks alive, by attempt
        self.on_change: Callable[[Change], None] = lambda _change: None

    # --- the store

    def catch_up(self) -> None:
        """Looks at what was written since the last call. A no-op while nothing can be read."""
        if not self._store.reachable:
            return
        revision = done_at_once(self._store.read("\0")).revision
        if revision == self.revision:
            return
        self.revision = revision
        item = self._next()
        assert isinstance(item, Changes) or not self.seen.statuses, "the checker's own watch fell behind a compaction"
        for change in item.changes if isinstance(item, Changes) else ():
            self.on_change(change)
            self._look(change)
        self._check_whole()

    def _next(self) -> Resync | Changes:
        try:
            self._watch.__anext__().send(None)
        except StopIteration as stop:
            item: Resync | Changes = stop.value
            return item
        raise AssertionError("the checker's watch has nothing to tell although the revision has grown")

    def _look(self, change: Change) -> None:
        parts = change.key.removeprefix(keys.ROOT).split("/")
        value = None if change.entry is None else change.entry.value
        match parts:
            case ["decisions", job]:
                self._decision(job, value)
            case ["assignments", node, job]:
                self._order(node, job, value)
            case ["jobs", job, "status"] if value is not None:
                self._status(job, codec.status_of(pb.JobStatus.FromString(value)))
            case ["nodes", node, "runs", job]:
                self._report(node, job, value)
            case _:
                pass

    def _decision(self, job: str, value: bytes | None) -> None:
        seen = self.seen
        before = seen.granted.pop(job, None)
        for gpu in before.gpus if before is not None else ():
            if seen.owner.get(gpu) == job:
                del seen.owner[gpu]
        if value is None:
            if before is not None and self.running[job][before.attempt]:
                self._wrong(f"the decision of {job}.{before.attempt} was deleted while ranks of it run")
            return
        message = pb.Decision.FromString(value)
        gpus = frozenset((rank.node, rank.gpu_index) for rank in message.ranks)
        nodes = tuple(dict.fromkeys(rank.node for rank in message.ranks))
        now = Granted(message.attempt, gpus, nodes, message.start, message.stop)
        if before is not None and before.attempt == now.attempt:
            self._same_attempt(job, before, now)
        elif before is not None:
            self._wrong(f"{job}: attempt {now.attempt} was written over attempt {before.attempt}")
        elif now.attempt <= seen.attempts.get(job, 0):
            self._wrong(f"{job}: attempt {now.attempt} was decided again after attempt {seen.attempts[job]}")
        if now.start and not (before is not None and before.start):
            self._all_prepared(job, now, "the start was decided")
        if now.stop:
            now.stopped_s = before.stopped_s if before is not None and before.stop else self._now_s()
        seen.attempts[job] = now.attempt
        seen.granted[job] = now

    def _same_attempt(self, job: str, before: Granted, now: Granted) -> None:
        if before.gpus != now.gpus:
            self._wrong(f"{job}.{now.attempt}: its GPUs changed after the commit")
        if (before.start and not now.start) or (before.stop and not now.stop):
            self._wrong(f"{job}.{now.attempt}: start or stop was taken back")

    def _all_prepared(self, job: str, granted: Granted, what: str) -> None:
        for node in granted.nodes:
            if (job, granted.attempt, node) not in self.seen.prepared:
                self._wrong(f"{job}.{granted.attempt}: {what}, and {node} has never reported that it is prepared")

    def _order(self, node: str, job: str, value: bytes | None) -> None:
        if value is None:
            self.seen.orders.pop((node, job), None)
            return
        order = pb.Assignment.FromString(value)
        self.seen.orders[node, job] = order
        if order.phase == pb.PHASE_START:
            self.seen.start_ordered.add((job, order.attempt, node))

    def _status(self, job: str, now: Status) -> None:
        before = self.seen.statuses.get(job)
        self.seen.statuses[job] = now
        chain = _new_states(before, now)
        state = before.state if before is not None else State.SUBMITTED
        for following in chain:
            if following not in NEXT[state]:
                self._wrong(f"{job}: {state} → {following} is not in the table of transitions")
            state = following
        if state is not now.state:
            self._wrong(f"{job}: its status says {now.state}, its events end in {state}")
        if before is not None and now.attempt < before.attempt:
            self._wrong(f"{job}: its attempt went back from {before.attempt} to {now.attempt}")

    def _report(self, node: str, job: str, value: bytes | None) -> None:
        if value is None:
            attempt = self.seen.reports.pop((node, job), None)
            alive = [gpu for gpu, live in self.live.items() if gpu[0] == node and any(one[0] == job for one in live)]
            if attempt is not None and alive:
                self._wrong(f"{node} withdrew its report of {job} while ranks of it run on {alive}")
            return
        report = pb.RunReport.FromString(value)
        self.seen.reports[node, job] = report.attempt
        if report.phase == pb.RUN_PHASE_PREPARED:
            self.seen.prepared.add((job, report.attempt, node))

    def _check_whole(self) -> None:
        """What holds between keys, after all changes of a revision."""
        seen = self.seen
        for job, granted in seen.granted.items():
            for gpu in granted.gpus:
                other = seen.owner.setdefault(gpu, job)
                if other != job:
                    self._wrong(f"GPU {gpu} is granted to {job} and to {other}")
        for (node, job), order in seen.orders.items():
            self._check_order(node, job, order)

    def _check_order(self, node: str, job: str, order: pb.Assignment) -> None:
        granted = self.seen.granted.get(job)
        if granted is None or granted.attempt != order.attempt or node not in granted.nodes:
            self._wrong(f"{node} has an order for {job}.{order.attempt}, which no decision stands behind")
        elif order.phase == pb.PHASE_START and not granted.start:
            self._wrong(f"{node} has the order to start {job}.{order.attempt}, whose start was not decided")

    def request(self, request: Request) -> None:
        """A scheduler's write: none of an old term may be applied once a newer leader has written."""
        if not request.applied or request.term == 0 or all(op.key.startswith(keys.ELECTION) for op in request.ops):
            return
        if request.term < self.seen.term_written:
            what = ", ".join(op.key for op in request.ops[:3])
            self._wrong(
                f"{request.sender} wrote {what} under term {request.term} after term {self.seen.term_written} had written"
            )
        self.seen.term_written = max(self.seen.term_written, request.term)

    # --- the nodes

    def rank_started(self, gpu: Gpu, job: str, attempt: int) -> None:
        self.catch_up()
        me = (job, attempt)
        others = [one for one, ranks in self.live[gpu].items() if ranks]
        if others:
            self._wrong(f"GPU {gpu} runs {job}.{attempt} beside {others}")
        if any(ranks and other != attempt for other, ranks in self.running[job].items()):
            self._wrong(f"attempt {attempt} of {job} starts while another runs: {dict(self.running[job])}")
        if (job, attempt, gpu[0]) not in self.seen.start_ordered:
            self._wrong(f"{job}.{attempt} starts on {gpu[0]} without the order to start")
        granted = self.seen.granted.get(job)
        if granted is None or granted.attempt != attempt or gpu not in granted.gpus:
            self._wrong(f"{job}.{attempt} starts on {gpu}, which no decision grants it")
        self.live[gpu][me] += 1
        self.running[job][attempt] += 1

    def rank_ended(self, gpu: Gpu, job: str, attempt: int) -> None:
        self.live[gpu] -= Counter([(job, attempt)])
        self.running[job] -= Counter([attempt])

    def told_to_stop(self, node: str, job: str, attempt: int, reason: str) -> None:
        """An agent stops what the store no longer orders, and nothing else: an order that went does not come back."""
        self.catch_up()
        order = self.seen.orders.get((node, job))
        if self._store.reachable and order is not None and order.attempt == attempt:
            self._wrong(f"{node} stops {job}.{attempt} ({reason}), which is still ordered")

    def lingering(self) -> None:
        """No rank outlives the order to stop by more than the bound. Called now and then."""
        for job, granted in self.seen.granted.items():
            late_s = self._now_s() - granted.stopped_s if granted.stopped_s is not None else 0.0
            if late_s > self._linger_max_s and self.running[job][granted.attempt]:
                self._wrong(f"{job}.{granted.attempt} still runs {late_s:.1f} s after the order to stop")


def _new_states(before: Status | None, now: Status) -> list[State]:
    """The states that were gone through since `before`: events are only ever appended, and the oldest dropped."""
    if before is None:
        return [event.state for event in now.events[1:]]
    old = before.events
    for dropped in range(len(old) + 1):
        kept = old[dropped:]
        if now.events[: len(kept)] == kept:
            return [event.state for event in now.events[len(kept) :]]
    return [event.state for event in now.events]
