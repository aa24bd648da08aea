"""advance(): what each look at a job concludes. One world per test, no store, no clock."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fmsched.lifecycle.step import Limits, NodeState, World, advance, still_busy
from fmsched.model.hardware import GpuId
from fmsched.model.record import Job, Phase, RunPhase, State
from tests.support.jobs import decision, job, run, spec

READY = {"n1": NodeState.READY, "n2": NodeState.READY}
LIMITS = Limits(prepare_s=10, start_s=10)


def look(one: Job, **changes: object) -> object:
    return advance(one, World(**{"nodes": READY, "now_ms": 1000, **changes}), LIMITS)  # type: ignore[arg-type]


def test_committed_is_prepared_on_every_node() -> None:
    held = decision()
    after = advance(job(State.COMMITTED, held=held), World(nodes=READY), LIMITS)
    assert (after.status.state, after.decision, after.orders) == (State.PREPARING, held, Phase.PREPARE)


def test_starts_only_when_all_have_prepared_with_the_port_of_rank_0() -> None:
    held = decision()
    one = job(State.PREPARING, held=held, orders=Phase.PREPARE, runs={"n1": run(RunPhase.PREPARED, held_port=20007)})
    assert advance(one, World(nodes=READY), LIMITS).orders is Phase.PREPARE
    both = replace(one, runs={**one.runs, "n2": run(RunPhase.PREPARED)})
    after = advance(both, World(nodes=READY), LIMITS)
    assert after.orders is Phase.START
    assert after.decision == replace(held, start=True, master_port=20007)


def test_a_report_of_an_older_attempt_does_not_count() -> None:
    held = decision(attempt=2)
    old = {node: run(RunPhase.PREPARED, attempt=1) for node in READY}
    assert advance(job(State.PREPARING, held=held, runs=old, attempt=2), World(nodes=READY), LIMITS).orders is Phase.PREPARE


def test_runs_when_every_node_says_so() -> None:
    held = decision(start=True)
    runs = {"n1": run(RunPhase.RUNNING), "n2": run(RunPhase.PREPARED)}
    one = job(State.PREPARING, held=held, orders=Phase.START, runs=runs)
    assert advance(one, World(nodes=READY), LIMITS).status.state is State.PREPARING
    both = replace(one, runs={**runs, "n2": run(RunPhase.RUNNING)})
    after = advance(both, World(nodes=READY, now_ms=9), LIMITS)
    assert (after.status.state, after.status.started_ms) == (State.RUNNING, 9)


def test_a_failed_rank_stops_the_gang_and_the_first_failure_is_named() -> None:
    held = decision(start=True)
    runs = {
        "n1": run(RunPhase.RUNNING, (0, 143), first_failed_ms=20),
        "n2": run(RunPhase.RUNNING, (1, 3), first_failed_ms=10),
    }
    after = advance(job(State.RUNNING, held=held, orders=Phase.START, runs=runs), World(nodes=READY), LIMITS)
    assert after.status.state is State.STOPPING
    assert after.status.outcome is State.FAILED
    assert after.status.failure is not None
    assert (after.status.failure.node, after.status.failure.rank, after.status.failure.exit_code) == ("n2", 1, 3)
    assert after.orders is None
    assert after.decision is not None
    assert after.decision.stop


def test_success_needs_every_rank_and_frees_only_what_was_seen_free() -> None:
    held = decision(start=True)
    runs = {"n1": run(RunPhase.EXITED, (0, 0)), "n2": run(RunPhase.RUNNING)}
    one = job(State.RUNNING, held=held, orders=Phase.START, runs=runs)
    assert advance(one, World(nodes=READY), LIMITS).status.state is State.RUNNING
    done = replace(one, runs={**runs, "n2": run(RunPhase.EXITED, (1, 0))})
    stopping = advance(done, World(nodes=READY), LIMITS)
    assert (stopping.status.outcome, stopping.orders) == (State.SUCCEEDED, None)
    waiting = replace(done, status=stopping.status, decision=stopping.decision, orders={})
    assert advance(waiting, World(nodes=READY), LIMITS).decision is not None
    free = replace(waiting, runs={})
    after = advance(free, World(nodes=READY, now_ms=77), LIMITS)
    assert (after.status.state, after.decision, after.status.finished_ms) == (State.SUCCEEDED, None, 77)


@pytest.mark.parametrize("state", [State.COMMITTED, State.PREPARING, State.RUNNING])
def test_cancel_stops_whatever_it_does(state: State) -> None:
    after = advance(job(state, held=decision(), orders=Phase.PREPARE, wanted=False), World(nodes=READY), LIMITS)
    assert (after.status.state, after.status.outcome, after.orders) == (State.STOPPING, State.CANCELLED, None)


def test_cancel_of_a_waiting_job_needs_nobody() -> None:
    after = advance(job(State.QUEUED, wanted=False), World(), LIMITS)
    assert after.status.state is State.CANCELLED


def test_cancel_while_it_recovers() -> None:
    held = decision(stop=True)
    one = job(State.RECOVERING, held=held, wanted=False, outcome=State.QUEUED)
    assert advance(one, World(nodes=READY), LIMITS).status.state is State.CANCELLED


def test_an_allocation_given_back_has_succeeded() -> None:
    one = job(State.RUNNING, held=decision(start=True), wanted=False, spec_=spec(allocation=True))
    assert advance(one, World(nodes=READY), LIMITS).status.outcome is State.SUCCEEDED


def test_a_failed_gpu_moves_the_gang_even_if_its_rank_died_of_it() -> None:
    held = decision(start=True)
    runs = {"n1": run(RunPhase.RUNNING, (0, 1)), "n2": run(RunPhase.RUNNING)}
    one = job(State.RUNNING, held=held, orders=Phase.START, runs=runs)
    after = advance(one, World(nodes=READY, failed_gpus={GpuId("n1", 0): "Xid 79"}), LIMITS)
    assert (after.status.state, after.status.outcome, after.status.restarts) == (State.RECOVERING, State.QUEUED, 1)
    assert "n1/gpu0 failed: Xid 79" in after.status.reason


def test_a_gpu_that_fails_after_its_rank_ended_well_moves_nobody() -> None:
    held = decision(start=True)
    runs = {"n1": run(RunPhase.EXITED, (0, 0)), "n2": run(RunPhase.RUNNING)}
    one = job(State.RUNNING, held=held, orders=Phase.START, runs=runs)
    assert advance(one, World(nodes=READY, failed_gpus={GpuId("n1", 0): "x"}), LIMITS).status.state is State.RUNNING


def test_a_lost_node_moves_the_gang_and_is_not_waited_for() -> None:
    held = decision(start=True)
    runs = {"n1": run(RunPhase.RUNNING), "n2": run(RunPhase.RUNNING)}
    lost = World(nodes={"n1": NodeState.READY, "n2": NodeState.LOST})
    one = job(State.RUNNING, held=held, orders=Phase.START, runs=runs)
    after = advance(one, lost, LIMITS)
    assert after.status.state is State.RECOVERING
    gone = replace(one, status=after.status, decision=after.decision, orders={}, runs={"n2": runs["n2"]})
    again = advance(gone, lost, LIMITS)
    assert (again.status.state, again.decision) == (State.QUEUED, None)


def test_an_unreachable_node_is_waited_for() -> None:
    held = decision(start=True, stop=True)
    world = World(nodes={"n1": NodeState.READY, "n2": NodeState.UNREACHABLE})
    one = job(State.RECOVERING, held=held, runs={"n2": run(RunPhase.RUNNING)}, outcome=State.QUEUED)
    assert still_busy(one, held, world) == ("n2",)
    assert advance(one, world, LIMITS).decision == held


def test_restarts_are_limited() -> None:
    one = job(State.RUNNING, held=decision(start=True), orders=Phase.START, spec_=spec(max_restarts=2), restarts=2)
    after = advance(one, World(nodes={"n1": NodeState.READY, "n2": NodeState.LOST}), LIMITS)
    assert (after.status.state, after.status.outcome) == (State.STOPPING, State.FAILED)
    assert "which is its limit" in after.status.reason


def test_a_node_that_cannot_prepare_is_avoided_next_time() -> None:
    runs = {"n2": run(RunPhase.REFUSED, reason="disk full", device_fault=True)}
    after = advance(job(State.PREPARING, held=decision(), orders=Phase.PREPARE, runs=runs), World(nodes=READY), LIMITS)
    assert (after.status.state, after.status.avoid) == (State.RECOVERING, ("n2",))


def test_a_command_that_cannot_start_is_the_jobs_fault() -> None:
    runs = {"n2": run(RunPhase.REFUSED, reason="no such command: trian.py")}
    after = advance(job(State.PREPARING, held=decision(), orders=Phase.PREPARE, runs=runs), World(nodes=READY), LIMITS)
    assert after.status.outcome is State.FAILED
    assert "trian.py" in after.status.reason


@pytest.mark.parametrize(("start", "limit_s", "word"), [(False, 10, "prepare"), (True, 10, "start")])
def test_phases_end_in_time(start: bool, limit_s: float, word: str) -> None:
    one = job(State.PREPARING, held=decision(start=start), orders=Phase.PREPARE)
    assert advance(one, World(nodes=READY, age_s=limit_s - 0.1), LIMITS).status.state is State.PREPARING
    late = advance(one, World(nodes=READY, age_s=limit_s + 0.1), LIMITS)
    assert late.status.state is State.RECOVERING
    assert f"did not {word} within" in late.status.reason
    assert set(late.status.avoid) == {"n1", "n2"}


def test_max_runtime() -> None:
    one = job(
        State.RUNNING,
        held=decision(start=True),
        orders=Phase.START,
        spec_=spec(max_runtime_s=5),
        started_ms=1000,
        runs={node: run(RunPhase.RUNNING) for node in READY},
    )
    assert advance(one, World(nodes=READY, now_ms=6000), LIMITS).status.state is State.RUNNING
    assert advance(one, World(nodes=READY, now_ms=6001), LIMITS).status.outcome is State.FAILED


def test_an_ended_job_keeps_nothing() -> None:
    after = advance(job(State.FAILED, held=decision(), orders=Phase.START), World(nodes=READY), LIMITS)
    assert (after.decision, after.orders) == (None, None)


def test_looking_twice_changes_nothing() -> None:
    held = decision(start=True)
    one = job(State.RUNNING, held=held, orders=Phase.START, runs={node: run(RunPhase.RUNNING) for node in READY})
    after = advance(one, World(nodes=READY, now_ms=5), LIMITS)
    assert (after.status, after.decision, after.orders) == (one.status, held, Phase.START)


def test_who_cancelled_it_is_said() -> None:
    one = job(State.RUNNING, held=decision(start=True), wanted=False)
    assert advance(one, World(nodes=READY, cancel_reason="by its user"), LIMITS).status.reason == "cancelled: by its user"


def test_a_node_of_which_nothing_is_known_is_not_concluded_to_be_lost() -> None:
    one = job(State.RUNNING, held=decision(start=True), orders=Phase.START, runs={n: run(RunPhase.RUNNING) for n in READY})
    assert advance(one, World(nodes={}), LIMITS).status.state is State.RUNNING


def test_a_removed_decision_does_not_let_two_attempts_run_at_once() -> None:
    runs = {"n1": run(RunPhase.RUNNING), "n2": run(RunPhase.RUNNING)}
    one = job(State.RUNNING, runs=runs)
    after = advance(one, World(nodes=READY), LIMITS)
    assert (after.status.state, after.orders) == (State.RECOVERING, None)
    waiting = replace(one, status=after.status)
    assert advance(waiting, World(nodes=READY), LIMITS).status.state is State.RECOVERING
    assert advance(replace(waiting, runs={}), World(nodes=READY), LIMITS).status.state is State.QUEUED


def test_the_start_limit_is_over_once_it_runs() -> None:
    one = job(State.RUNNING, held=decision(start=True), orders=Phase.START, runs={"n1": run(RunPhase.RUNNING)})
    assert advance(one, World(nodes=READY, age_s=1000), LIMITS).status.state is State.RUNNING
