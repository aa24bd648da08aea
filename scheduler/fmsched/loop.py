"""The shell: follow the store, look at jobs, place the waiting ones, commit. All decisions are made in place/, policy/ and lifecycle/;
this file loads, calls and writes. It awaits only its ports, so the simulation drives it on a virtual clock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

import structlog

from fmproto import keys
from fmproto.kv import KV, Conflict, StoreFull, StoreUnavailable
from fmsched.lifecycle.liveness import LivenessLimits
from fmsched.lifecycle.step import Limits, World, advance, counted, still_busy
from fmsched.lifecycle.table import InvalidTransition, move
from fmsched.model.hardware import JobId, NodeName
from fmsched.model.job import Request
from fmsched.model.placement import Budget, Placement, Undecided, Unplaceable, Verdict, Why
from fmsched.model.record import Decision, Job, State
from fmsched.model.snapshot import PowerBudget, Snapshot
from fmsched.picture import Picture
from fmsched.place.check import check
from fmsched.policy.order import question, waiting_in_order
from fmsched.store.election import Leadership
from fmsched.store.ledger import Basis, Ledger
from fmsched.store.mirror import Mirror

log = structlog.get_logger(__name__)

# Timeouts of prepare, start and liveness are noticed at least this often without any change in the store.
TICK_S = 1.0
ECHO_S = 2.0
# After an answer that did not come: long enough not to hammer a store in trouble.
UNAVAILABLE_PAUSE_S = 1.0
FULL_PAUSE_S = 2.0
# A question that was left undecided is asked again after so long, even if nothing changed.
UNDECIDED_S = 60.0
# Different questions of waiting jobs whose last answer is remembered.
REFUSALS_MAX = 10_000
# For how long a job keeps off a node that could not prepare it.
AVOID_S = 60.0
# Ended jobs kept for `fmctl get jobs`; the oldest go first.
HISTORY_MAX = 5_000


class Solver(Protocol):
    """place.solve off the event loop."""

    async def __call__(self, snapshot: Snapshot, request: Request, budget: Budget) -> tuple[Verdict, float]:
        """The verdict, and the seconds it took."""
        ...


@dataclass(frozen=True, slots=True)
class LoopConfig:
    limits: Limits = field(default_factory=Limits)
    liveness: LivenessLimits = field(default_factory=LivenessLimits)
    budget: Budget = field(default_factory=Budget)
    history_max: int = HISTORY_MAX
    power: tuple[PowerBudget, ...] = ()
    prices: Mapping[str, float] = field(default_factory=dict)  # of a GPU-hour, by family


class Deposed(Exception):
    """This scheduler's election key is gone."""


@dataclass(slots=True)
class Refusal:
    """The last answer to a question, and the picture it was true of."""

    capacity_version: int
    closed: Mapping[NodeName, str]
    verdict: Unplaceable | Undecided
    at_s: float


class Scheduler:
    """One scheduler process. `wall_ms` gives Unix time in ms; the monotonic clock is the event loop's."""

    def __init__(self, kv: KV, solver: Solver, config: LoopConfig, wall_ms: Callable[[], int]) -> None:
        self.kv = kv
        self.config = config
        self.mirror = Mirror()
        self.picture = Picture(self.mirror, config.liveness, config.power, config.prices)
        self.ledger: Ledger | None = None  # while this one leads
        self.store_state = "unreachable"
        self.solver = solver
        self.wall_ms = wall_ms
        self._first_seen_s: dict[tuple[JobId, int, bool], float] = {}
        self._refusals: dict[tuple[object, ...], Refusal] = {}
        self._revision = 0  # of this one's newest write
        self.cancel_reasons: dict[JobId, str] = {}  # of jobs cancelled through this one and not yet ended

    # --- following

    async def follow(self, prefix: str) -> None:
        """Feeds the mirror for ever."""
        loop = asyncio.get_running_loop()
        async for item in self.kv.follow(prefix):
            await self.mirror.apply(item, loop.time())
            if self.store_state == "unreachable":
                self.store_state = "ok"

    # --- leading

    async def lead(self, leadership: Leadership) -> None:
        """Looks and places until cancelled, or until the store has refused its guard: then it does not lead any more."""
        self.mirror.start_listening(asyncio.get_running_loop().time())
        self._first_seen_s.clear()
        self._refusals.clear()
        ledger = Ledger(self.kv, self.mirror, leadership)
        await self._catch_up(ledger)
        self.ledger = ledger
        log.info("leading", term=leadership.term)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._repeat(self._look, TICK_S))
                tasks.create_task(self._repeat(self._place, TICK_S))
                tasks.create_task(self._echo())
        except* Deposed:
            log.warning("the store says that another leads", term=leadership.term)
        finally:
            self.ledger = None

    async def _catch_up(self, ledger: Ledger) -> None:
        """The one before may have written until its key went: nothing is decided, and nobody is answered, on an older picture."""
        try:
            outcome = await ledger.echo(0)
        except StoreFull:
            # It takes no echo, but it still takes cancels: what it holds is read instead.
            pages = [await self.kv.read(prefix) for prefix in (keys.JOBS, keys.DECISIONS)]
            outcome = max((entry.mod_revision for page in pages for entry in page.entries), default=0)
        if self._wrote(outcome):
            await self.mirror.reached(self._revision)

    async def _repeat(self, work: Callable[[set[JobId], bool], Awaitable[None]], tick_s: float) -> None:
        """Calls `work` on every change and at every tick; a store in trouble only delays it."""
        loop = asyncio.get_running_loop()
        subscription = self.mirror.subscribe()
        everything, tick_at_s = True, loop.time() + tick_s
        try:
            while True:
                jobs: set[JobId] = set()
                nodes: set[str] = set()
                if not everything:
                    jobs, nodes = await subscription.take(max(0.0, tick_at_s - loop.time()))
                if loop.time() >= tick_at_s:
                    everything, tick_at_s = True, loop.time() + tick_s
                try:
                    await self.mirror.reached(self._revision)
                    await work(jobs, everything or bool(nodes))
                    everything = False
                    self.store_state = "ok" if self.store_state == "unreachable" else self.store_state
                except StoreUnavailable as error:
                    self.store_state, everything = "unreachable", True
                    log.warning("the store did not answer", error=str(error))
                    await asyncio.sleep(UNAVAILABLE_PAUSE_S)
                except StoreFull:
                    self.store_state, everything = "full", True
                    log.warning("the store is full: decisions wait; running ranks go on")
                    await asyncio.sleep(FULL_PAUSE_S)
        finally:
            self.mirror.unsubscribe(subscription)

    async def _echo(self) -> None:
        """Writes a beat of its own through the store, for ever: see Mirror.counted_s."""
        assert self.ledger is not None
        number = 0
        while True:
            number += 1
            try:
                if isinstance(await self.ledger.echo(number), Conflict):
                    # It has no guard but leadership, so nothing else can have refused it.
                    raise Deposed
                if self.store_state == "full":
                    self.store_state = "ok"
            except StoreUnavailable:
                self.store_state = "unreachable"
            except StoreFull:
                self.store_state = "full"
                # Agents count a refused beat as contact. No silence may be held against them from before that.
                self.mirror.start_listening(asyncio.get_running_loop().time())
            await asyncio.sleep(ECHO_S)

    def _wrote(self, outcome: int | Conflict | None) -> bool:
        if isinstance(outcome, int):
            self._revision = max(self._revision, outcome)
            return True
        return False

    # --- looking at jobs

    async def _look(self, touched: set[JobId], everything: bool) -> None:
        assert self.ledger is not None
        now_s = asyncio.get_running_loop().time()
        liveness = self.picture.liveness(now_s)
        world = World(nodes=liveness.states, failed_gpus=self.picture.failed_gpus(), now_ms=self.wall_ms())
        full: StoreFull | None = None
        for id_ in self._to_look_at(touched, everything):
            job = self.mirror.job(id_)
            if keys.decision(id_) in self.mirror.unreadable:
                continue  # what it says may be right: nothing of that job is touched
            try:
                if job is None:
                    self._wrote(await self.ledger.clear(id_))
                    continue
                reason = self.cancel_reasons.get(id_, "")
                await self._look_at(job, replace(world, age_s=self._age_s(job, now_s), cancel_reason=reason))
            except (ValueError, InvalidTransition) as error:
                # The store will never take it, or its keys contradict one another: that is this job's misfortune, not everybody's.
                log.error("a job cannot be looked after", job=id_, error=str(error))
            except StoreFull as error:
                # Others may still be served by deletes.
                full = error
                if job is not None and not job.wanted:
                    self._wrote(await self.ledger.withdraw(job))
        if everything:
            self._forget_ages()
            await self._trim_history()
        if full is not None:
            raise full

    def _to_look_at(self, touched: set[JobId], everything: bool) -> list[JobId]:
        if not everything:
            return sorted(touched)
        mirror = self.mirror
        unfinished = {id_ for id_, status in mirror.statuses.items() if not status.state.ended}
        return sorted(unfinished | mirror.wanted | set(mirror.decisions) | set(mirror.orders) | touched)

    async def _look_at(self, job: Job, world: World) -> None:
        assert self.ledger is not None
        after = advance(job, world, self.config.limits)
        outcome = await self.ledger.settle(job, after.status, after.decision, after.orders)
        if outcome is None:
            return
        if not self._wrote(outcome):
            log.info("lost a race", job=job.id, revision=self.mirror.revision)
            return
        if after.status.state is not job.status.state:
            log.info(
                "job", job=job.id, state=str(after.status.state), attempt=after.status.attempt, why=after.status.reason
            )

    def _age_s(self, job: Job, now_s: float) -> float:
        if job.decision is None:
            return 0.0
        key = (job.id, job.decision.attempt, job.decision.start)
        return now_s - self._first_seen_s.setdefault(key, now_s)

    def _forget_ages(self) -> None:
        held = {(id_, d.attempt, d.start) for id_, d in self.mirror.decisions.items()}
        unfinished = {id_ for id_, status in self.mirror.statuses.items() if not status.state.ended}
        self.cancel_reasons = {id_: reason for id_, reason in self.cancel_reasons.items() if id_ in unfinished}
        self._first_seen_s = {key: at_s for key, at_s in self._first_seen_s.items() if key in held}

    async def _trim_history(self) -> None:
        assert self.ledger is not None
        ended = [(status.finished_ms, id_) for id_, status in self.mirror.statuses.items() if status.state.ended]
        for _, id_ in sorted(ended)[: max(0, len(ended) - self.config.history_max)]:
            self._wrote(await self.ledger.forget(id_))

    # --- placing

    async def _place(self, _touched: set[JobId], _everything: bool) -> None:
        blind = [key for key in self.mirror.unreadable if key.startswith(keys.DECISIONS)]
        if blind:
            # What it holds is not known, so nothing is free for certain.
            log.error(
                "nothing is placed while a decision cannot be read", key=blind[0], error=self.mirror.unreadable[blind[0]]
            )
            return
        jobs = (self.mirror.job(id_) for id_ in sorted(self.mirror.wanted))
        for job in waiting_in_order(job for job in jobs if job is not None):
            try:
                if not await self._place_one(job.id):
                    return  # a lost race: the rest of the queue is looked at anew
            except ValueError as error:
                log.error("a decision cannot be written", job=job.id, error=str(error))

    async def _place_one(self, id_: JobId) -> bool:
        """Whether the rest of the queue may go on with the picture as it is."""
        assert self.ledger is not None
        # Job, guards and snapshot are of one moment: nothing awaits between them.
        job, basis = self.mirror.job(id_), self.ledger.basis(id_)
        if job is None or not waiting_in_order([job]):
            return True
        request = replace(job.spec.request, avoid_nodes=self._avoided(job))
        snapshot = self.picture.snapshot(asyncio.get_running_loop().time())
        verdict, solve_s = await self._answer(snapshot, request)
        if not isinstance(verdict, Placement):
            return await self._say_why(job, verdict, basis)
        violations = check(snapshot, request, verdict)
        assert not violations, f"solve() broke its promise for {job.id}: {violations}"
        if check(self.picture.snapshot(asyncio.get_running_loop().time()), request, verdict):
            log.info("the picture changed while it was solved", job=job.id, revision=snapshot.revision)
            return False
        decision = Decision(
            attempt=job.status.attempt + 1,
            term=self.ledger.term,
            placement=verdict,
            decided_ms=self.wall_ms(),
            revision=snapshot.revision,
            solve_s=solve_s,
        )
        objective = verdict.objective
        reason = f"placed on {counted(len(verdict.nodes), 'node')}, " + (
            "proven best" if objective.optimal else f"the best found, gap {objective.gap:.1%}"
        )
        status = move(
            job.status,
            State.COMMITTED,
            decision.decided_ms,
            reason,
            attempt=decision.attempt,
            why=(),
            never=False,
            nodes=verdict.nodes,
        )
        # The attempt number in the event is the new one: move() stamps the status after its changes.
        outcome = await self.ledger.commit(job.id, decision, status, basis)
        if not self._wrote(outcome):
            log.info("lost a race", job=job.id, revision=snapshot.revision)
            return False
        log.info(
            "placed",
            job=job.id,
            attempt=decision.attempt,
            nodes=len(verdict.nodes),
            gpus=len(verdict.ranks),
            value=objective.value,
            bound=objective.bound,
            solve_s=round(solve_s, 4),
            revision=snapshot.revision,
        )
        await self.mirror.reached(self._revision)
        return True

    def _avoided(self, job: Job) -> frozenset[NodeName]:
        """Nodes on which it could not be prepared, for a while: what ailed them may have passed, and they may be all there is."""
        young = self.wall_ms() - job.status.since_ms < AVOID_S * 1000
        return frozenset(job.status.avoid) if young else frozenset()

    async def _answer(self, snapshot: Snapshot, request: Request) -> tuple[Verdict, float]:
        """Solves, unless the same question was refused on the same picture."""
        asked = question(request)
        version = self.mirror.capacity_version
        before = self._refusals.get(asked)
        now_s = asyncio.get_running_loop().time()
        if (
            before
            and before.capacity_version == version
            and before.closed == snapshot.closed
            and (isinstance(before.verdict, Unplaceable) or now_s < before.at_s + UNDECIDED_S)
        ):
            return replace(before.verdict, job=request.job), 0.0
        verdict, solve_s = await self.solver(snapshot, request, self.config.budget)
        if isinstance(verdict, Placement):
            self._refusals.pop(asked, None)
        else:
            self._refusals.pop(asked, None)  # to the end: the oldest goes first
            self._refusals[asked] = Refusal(version, snapshot.closed, verdict, now_s)
            while len(self._refusals) > REFUSALS_MAX:
                del self._refusals[next(iter(self._refusals))]
        return verdict, solve_s

    async def _say_why(self, job: Job, verdict: Unplaceable | Undecided, basis: Basis) -> bool:
        assert self.ledger is not None
        if isinstance(verdict, Undecided):
            why: tuple[Why, ...] = (Why("search limit", "", "a placement or a proof", "neither", verdict.reason),)
            status = replace(job.status, why=why, never=False, reason=f"undecided: {verdict.reason}")
        else:
            status = replace(job.status, why=verdict.why, never=verdict.never, reason=str(verdict))
        if status == job.status:
            return True
        log.info("refused", job=job.id, never=status.never, why=status.reason, revision=self.mirror.revision)
        done = self._wrote(await self.ledger.put_status(job.id, status, basis))
        if done:
            await self.mirror.reached(self._revision)
        return done

    def busy_nodes(self, job: Job) -> tuple[str, ...]:
        """Nodes that a stopping job still waits for."""
        if job.decision is None:
            return ()
        states = self.picture.liveness(asyncio.get_running_loop().time()).states
        return still_busy(job, job.decision, World(nodes=states))
