"""One job, one look: what its status, its decision and its nodes' orders should be now. The shell writes the difference.

Level-triggered on purpose: `advance` sees only what the store says, so a new leader goes on where the old one fell, and a lost
answer or a repeated look changes nothing. The order of the questions is the order of precedence.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from fmsched.lifecycle.table import move
from fmsched.model.hardware import GpuId, NodeName
from fmsched.model.record import Decision, Job, Phase, RankFailure, Run, RunPhase, State, Status


class NodeState(StrEnum):
    READY = "ready"
    UNREACHABLE = "unreachable"  # silent, but its ranks may run: nothing is concluded yet
    LOST = "lost"  # silent for longer than its agent's fence: its ranks are stopped


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds, measured by the clock of the scheduler that looks."""

    prepare_s: float = 120.0  # from commit until every node has prepared
    start_s: float = 60.0  # from the start order until every node says that its ranks run
    avoid_max: int = 64  # nodes remembered as unfit for one job


@dataclass(frozen=True, slots=True)
class World:
    """What a job's step may know of the rest."""

    nodes: Mapping[NodeName, NodeState] = field(default_factory=dict)  # absent: nothing is known, nothing is concluded
    failed_gpus: Mapping[GpuId, str] = field(default_factory=dict)
    age_s: float = 0.0  # since this scheduler first saw the decision in its present phase
    now_ms: int = 0
    cancel_reason: str = ""  # of a job that is not wanted any more, where this scheduler was told


@dataclass(frozen=True, slots=True)
class Next:
    """What should be: `orders` is the phase every node of the decision is to have, None for no order at all."""

    status: Status
    decision: Decision | None
    orders: Phase | None


def advance(job: Job, world: World, limits: Limits) -> Next:
    """The next values for a job that is not merely waiting for a placement (policy.plan places those)."""
    if job.status.state.ended:
        # Only what an earlier look could not finish is left: a decision is never kept by an ended job.
        return Next(job.status, None, None)
    if job.decision is None:
        return _without_decision(job, world)
    if job.decision.stop:
        return _release(job, job.decision, world)
    stopped = _reason_to_stop(job, job.decision, world, limits)
    if stopped is not None:
        return stopped
    return _go_on(job, job.decision, world)


def _without_decision(job: Job, world: World) -> Next:
    status = job.status
    if not job.wanted:
        if status.state.waits:
            return Next(
                _ended(status, State.CANCELLED, world.now_ms, _because("cancelled while it waited", world)), None, None
            )
        return Next(_end_of_stop(job, world.now_ms, default=State.CANCELLED), None, None)
    if status.state is State.SUBMITTED:
        return Next(move(status, State.QUEUED, world.now_ms, "waits for its first placement"), None, None)
    if status.state.waits:
        return Next(status, None, None)
    if job.orders or _runs_left(job, world):
        # Somebody removed the decision. What runs by it has to end first, or the next attempt would run beside it.
        if status.state not in (State.RECOVERING, State.STOPPING):
            status = move(status, State.RECOVERING, world.now_ms, "its decision is gone", outcome=State.QUEUED)
        return Next(status, None, None)
    return Next(_end_of_stop(job, world.now_ms, default=State.QUEUED), None, None)


def _runs_left(job: Job, world: World) -> bool:
    return any(world.nodes.get(node) is not NodeState.LOST for node in job.runs)


def _release(job: Job, decision: Decision, world: World) -> Next:
    """Stop was ordered: the decision goes, and with it the hold on its GPUs, when every node has been seen free."""
    status = job.status
    if not job.wanted and status.state is State.RECOVERING:
        status = move(
            status, State.STOPPING, world.now_ms, _because("cancelled while it recovered", world), outcome=State.CANCELLED
        )
    job = replace(job, status=status)
    if job.orders or still_busy(job, decision, world):
        return Next(status, decision, None)
    return Next(_end_of_stop(job, world.now_ms, default=State.QUEUED), None, None)


def still_busy(job: Job, decision: Decision, world: World) -> tuple[NodeName, ...]:
    """Nodes whose agent has not yet deleted its report. A lost node does not count: its agent's fence has stopped the ranks."""
    return tuple(
        node
        for node in decision.placement.nodes
        if node in job.runs and job.runs[node].attempt <= decision.attempt and world.nodes.get(node) is not NodeState.LOST
    )


def _end_of_stop(job: Job, now_ms: int, default: State) -> Status:
    status = job.status
    outcome = status.outcome or default
    if outcome.ended:
        if status.state is not State.STOPPING:
            status = move(status, State.STOPPING, now_ms, status.reason, outcome=outcome)
        return _ended(status, outcome, now_ms, status.reason)
    if status.state is not State.RECOVERING:
        status = move(status, State.RECOVERING, now_ms, status.reason)
    return move(status, State.QUEUED, now_ms, f"placed again: {status.reason}", outcome=None, why=(), started_ms=0)


def _ended(status: Status, state: State, now_ms: int, reason: str) -> Status:
    return move(status, state, now_ms, reason, outcome=None, why=(), finished_ms=now_ms)


def _reason_to_stop(job: Job, decision: Decision, world: World, limits: Limits) -> Next | None:
    runs = _current_runs(job, decision)
    if not job.wanted:
        given_back = job.spec.allocation and job.status.state is State.RUNNING
        if given_back:
            return _stop(job, decision, world, State.SUCCEEDED, _because("the allocation was given back", world))
        return _stop(job, decision, world, State.CANCELLED, _because("cancelled", world))
    # The cluster's faults come first: the ranks beside a lost node or a sick GPU fail in its wake.
    fault = _cluster_fault(job, decision, runs, world, limits)
    if fault is not None:
        return _place_again(job, decision, world, limits, *fault)
    failure = _first_failure(job, decision, runs)
    if failure is not None:
        reason = f"rank {failure.rank} on {failure.node} ended with {failure.exit_code}" + (
            f": {failure.reason}" if failure.reason else ""
        )
        return _stop(job, decision, world, State.FAILED, reason, failure=failure)
    if _all_ended(decision, runs):
        return _stop(job, decision, world, State.SUCCEEDED, "every rank ended with 0")
    limit_s = job.spec.max_runtime_s
    # Wall time on purpose: the limit holds across leaders, and hours dwarf the skew between them.
    if limit_s and job.status.started_ms and world.now_ms - job.status.started_ms > limit_s * 1000:
        return _stop(job, decision, world, State.FAILED, f"its maxRuntime of {limit_s:g} s is over")
    return None


def _current_runs(job: Job, decision: Decision) -> dict[NodeName, Run]:
    return {
        node: job.runs[node]
        for node in decision.placement.nodes
        if node in job.runs and job.runs[node].attempt == decision.attempt
    }


def _first_failure(job: Job, decision: Decision, runs: Mapping[NodeName, Run]) -> RankFailure | None:
    """The failure to blame: a gang's other ranks fail in the wake of the first, so the earliest one named wins."""
    if job.spec.allocation:
        return None
    failures = [
        (run.first_failed_ms, rank.rank, RankFailure(node, rank.rank, rank.exit_code, rank.reason, rank.last_lines))
        for node, run in runs.items()
        if not run.device_fault
        for rank in run.ranks
        if rank.ended and rank.exit_code != 0
    ]
    refusals = [
        (run.first_failed_ms, -1, RankFailure(node, _first_rank(decision, node), 127, run.reason))
        for node, run in runs.items()
        if run.phase is RunPhase.REFUSED and not run.device_fault
    ]
    return min(failures + refusals, key=lambda item: item[:2], default=(0, 0, None))[2]


def _because(what: str, world: World) -> str:
    return f"{what}: {world.cancel_reason}" if world.cancel_reason else what


def counted(number: int, noun: str) -> str:
    """ "1 node", "2 nodes"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _first_rank(decision: Decision, node: NodeName) -> int:
    return min(rank.rank for rank in decision.placement.running if rank.node == node)


def _cluster_fault(
    job: Job, decision: Decision, runs: Mapping[NodeName, Run], world: World, limits: Limits
) -> tuple[str, tuple[NodeName, ...]] | None:
    """What is the cluster's fault and not the job's: the sentence, and the nodes to avoid next time."""
    for rank in decision.placement.running:  # a spare that is lost stops nobody
        if rank.gpu_id in world.failed_gpus and not _rank_done(runs, rank.node, rank.rank):
            return f"{rank.gpu_id} failed: {world.failed_gpus[rank.gpu_id]}", ()
    for node in decision.placement.nodes:
        if world.nodes.get(node) is NodeState.LOST:
            return f"node {node} is lost", ()
        run = runs.get(node)
        if run is not None and run.device_fault:
            return f"node {node}: {run.reason or 'its ranks were lost'}", (node,)
    if decision.start:
        late = [
            n for n in decision.placement.nodes if n not in runs or runs[n].phase in (RunPhase.PREPARED, RunPhase.PREPARING)
        ]
        if late and job.status.state is not State.RUNNING and world.age_s > limits.start_s:
            return f"{late[0]} did not start within {limits.start_s:g} s", tuple(late)
        return None
    late = [n for n in decision.placement.nodes if n not in runs or runs[n].phase is not RunPhase.PREPARED]
    if late and world.age_s > limits.prepare_s:
        return f"{late[0]} did not prepare within {limits.prepare_s:g} s", tuple(late)
    return None


def _rank_done(runs: Mapping[NodeName, Run], node: NodeName, rank: int) -> bool:
    """It ended well: what becomes of its GPU afterwards is not its concern."""
    return node in runs and any(one.rank == rank and one.ended and one.exit_code == 0 for one in runs[node].ranks)


def _all_ended(decision: Decision, runs: Mapping[NodeName, Run]) -> bool:
    return len(runs) == len(decision.placement.nodes) and all(run.phase is RunPhase.EXITED for run in runs.values())


def _stop(
    job: Job, decision: Decision, world: World, outcome: State, reason: str, failure: RankFailure | None = None
) -> Next:
    status = move(job.status, State.STOPPING, world.now_ms, reason, outcome=outcome, failure=failure or job.status.failure)
    return Next(status, replace(decision, stop=True), None)


def _place_again(
    job: Job, decision: Decision, world: World, limits: Limits, reason: str, avoid: tuple[NodeName, ...]
) -> Next:
    restarts = job.status.restarts + 1
    if restarts > job.spec.max_restarts:
        sentence = f"{reason}; placed again {job.spec.max_restarts} times already, which is its limit"
        return _stop(job, decision, world, State.FAILED, sentence)
    remembered = tuple(dict.fromkeys((*job.status.avoid, *avoid)))[-limits.avoid_max :]
    status = move(
        job.status, State.RECOVERING, world.now_ms, reason, outcome=State.QUEUED, restarts=restarts, avoid=remembered
    )
    return Next(status, replace(decision, stop=True), None)


def _go_on(job: Job, decision: Decision, world: World) -> Next:
    runs = _current_runs(job, decision)
    status = job.status
    if not decision.start:
        if status.state is State.COMMITTED:
            status = move(
                status, State.PREPARING, world.now_ms, f"preparing on {counted(len(decision.placement.nodes), 'node')}"
            )
        ready = len(runs) == len(decision.placement.nodes) and all(r.phase is RunPhase.PREPARED for r in runs.values())
        if not ready:
            return Next(status, decision, Phase.PREPARE)
        port = runs[decision.placement.nodes[0]].held_port
        return Next(status, replace(decision, start=True, master_port=port), Phase.START)
    started = (RunPhase.RUNNING, RunPhase.STOPPING, RunPhase.EXITED)
    if status.state is not State.RUNNING and all(
        node in runs and runs[node].phase in started for node in decision.placement.nodes
    ):
        what = "allocated" if job.spec.allocation else "every rank runs"
        status = move(status, State.RUNNING, world.now_ms, what, started_ms=world.now_ms, why=(), avoid=())
    return Next(status, decision, Phase.START)
