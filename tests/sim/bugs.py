"""Bugs planted on purpose: the simulation must find each. A bug is a rule of the product left out, by replacing one function for the
time of a run.

Tried, and not here because another guard masks them, as designed:
- the ledger's guard alone left out: one leader places one job after the other and waits to see its own commit, so the guard matters
  only with a stale picture (`commit_unguarded` takes both away);
- a write retried without reading: every write is guarded by revisions, so the retry is a conflict;
- an agent's writes without guards, or a wish forgotten while another write is under way: an agent reads its keys back every few beats
  and mends them. Both were found (seeds 40 and 59) before it did;
- an agent that starts a stopped attempt again: no order of that attempt comes back, and its report, its record and the order's
  absence would each have to be forgotten;
- an older attempt's report taken for the present one's: a node's report goes before the decision does, and on a lost node, where it stays,
  the report itself holds the GPUs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from fmagent import loop as agent_loop
from fmagent import reconcile
from fmagent.orders import Order, RunState, Stage
from fmproto import keys
from fmproto.kv import Conflict, Guard, Op
from fmsched import picture
from fmsched.lifecycle import step
from fmsched.lifecycle.liveness import Liveness, LivenessLimits, Sign, judge
from fmsched.model.hardware import JobId, NodeName
from fmsched.model.record import Decision, Job, Phase, RunPhase, Status
from fmsched.store import ledger
from fmsched.store.mirror import Mirror

Swap = tuple[Any, str, Any]


@dataclass(frozen=True, slots=True)
class Bug:
    name: str
    sentence: str
    swaps: Callable[[], Sequence[Swap]]

    @contextmanager
    def planted(self) -> Iterator[None]:
        with ExitStack() as undo:
            for owner, name, value in self.swaps():
                undo.callback(setattr, owner, name, getattr(owner, name))
                setattr(owner, name, value)
            yield


def _commit_unguarded() -> Sequence[Swap]:
    write = ledger.Ledger._write

    async def without_ledger(self: ledger.Ledger, guards: Sequence[Guard], ops: Sequence[Op]) -> int | Conflict:
        return await write(self, [guard for guard in guards if guard.key != keys.LEDGER], ops)

    async def at_once(_self: Mirror, _revision: int) -> None:
        """Does not wait for the picture to be as new as its own write."""

    return [(ledger.Ledger, "_write", without_ledger), (Mirror, "reached", at_once)]


def _guards_taken_late() -> Sequence[Swap]:
    commit, put_status = ledger.Ledger.commit, ledger.Ledger.put_status

    async def commit_late(
        self: ledger.Ledger, job: JobId, decision: Decision, status: Status, _basis: ledger.Basis
    ) -> int | Conflict:
        return await commit(self, job, decision, status, self.basis(job))

    async def put_late(self: ledger.Ledger, job: JobId, status: Status, _basis: ledger.Basis) -> int | Conflict:
        return await put_status(self, job, status, self.basis(job))

    return [(ledger.Ledger, "commit", commit_late), (ledger.Ledger, "put_status", put_late)]


def _leader_unguarded() -> Sequence[Swap]:
    async def without_leadership(self: ledger.Ledger, guards: Sequence[Guard], ops: Sequence[Op]) -> int | Conflict:
        return await self._kv.write(guards, ops)

    return [(ledger.Ledger, "_write", without_leadership)]


def _start_early() -> Sequence[Swap]:
    go_on = step._go_on

    def with_one_prepared(job: Job, decision: Decision, world: step.World) -> step.Next:
        prepared = [run for run in step._current_runs(job, decision).values() if run.phase is RunPhase.PREPARED]
        after = go_on(job, decision, world)
        if decision.start or not prepared:
            return after
        return step.Next(after.status, replace(decision, start=True, master_port=prepared[0].held_port), Phase.START)

    return [(step, "_go_on", with_one_prepared)]


def _dropped_early() -> Sequence[Swap]:
    return [(step, "still_busy", lambda _job, _decision, _world: ())]


def _lost_before_fence() -> Sequence[Swap]:
    def impatient(signs: Mapping[NodeName, Sign], limits: LivenessLimits) -> Liveness:
        alive = judge(signs, limits)
        silent = step.NodeState.UNREACHABLE
        return replace(alive, states={n: step.NodeState.LOST if s is silent else s for n, s in alive.states.items()})

    return [(picture, "judge", impatient)]


def _job_unguarded() -> Sequence[Swap]:
    write = ledger.Ledger._write

    async def without_job(self: ledger.Ledger, guards: Sequence[Guard], ops: Sequence[Op]) -> int | Conflict:
        return await write(self, [guard for guard in guards if not guard.key.startswith(keys.JOBS)], ops)

    return [(ledger.Ledger, "_write", without_job)]


def _unsynced_is_empty() -> Sequence[Swap]:
    view = agent_loop.AgentLoop._world

    def hasty(self: agent_loop.AgentLoop, runs: tuple[RunState, ...]) -> reconcile.World:
        world = view(self, runs)
        return world if world.desired is not None else replace(world, desired={})

    return [(agent_loop.AgentLoop, "_world", hasty)]


def _released_early() -> Sequence[Swap]:
    def hasty(run: RunState, reason: str = "") -> Iterator[reconcile.Action]:
        if run.gone or run.stop_ordered:
            yield reconcile.Release(run.job, run.attempt)
        else:
            yield reconcile.Stop(run.job, run.attempt, run.grace_period_s, reason)

    return [(reconcile, "_unwanted", hasty)]


def _stop_forgotten() -> Sequence[Swap]:
    def only_release(run: RunState, _reason: str = "") -> Iterator[reconcile.Action]:
        if run.gone:
            yield reconcile.Release(run.job, run.attempt)

    return [(reconcile, "_unwanted", only_release)]


def _start_unordered() -> Sequence[Swap]:
    def eager(order: Order, run: RunState, *, fenced: bool) -> Iterator[reconcile.Action]:
        if run.stage is Stage.PREPARED and not run.start_ordered and not run.stop_ordered and not fenced:
            yield reconcile.Start(run.job, run.attempt, order.master_address, order.master_port or run.held_port)

    return [(reconcile, "_advance", eager)]


BUGS = (
    Bug("commit_unguarded", "a commit is guarded by no other commit, and decided on a stale picture", _commit_unguarded),
    Bug(
        "guards_taken_late",
        "what was solved is guarded by the picture after the solve, not by the one it saw",
        _guards_taken_late,
    ),
    Bug("leader_unguarded", "a scheduler's writes do not depend on its leadership", _leader_unguarded),
    Bug("start_early", "the gang starts when one node has prepared", _start_early),
    Bug("dropped_early", "a decision is deleted before its nodes were seen free", _dropped_early),
    Bug("lost_before_fence", "a node counts as lost before its agent's fence has stopped its ranks", _lost_before_fence),
    Bug("job_unguarded", "what becomes of a job is written whatever became of it meanwhile", _job_unguarded),
    Bug("unsynced_is_empty", "an agent takes a store that it has not heard yet for one without orders", _unsynced_is_empty),
    Bug("released_early", "an agent forgets a run that it has told to stop", _released_early),
    Bug("stop_forgotten", "an agent does not stop a run whose order is gone", _stop_forgotten),
    Bug("start_unordered", "an agent starts its ranks as soon as it has prepared", _start_unordered),
)
