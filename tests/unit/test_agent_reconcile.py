"""Every decision of the agent, as tables: what is wanted and seen, and what is done about it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fmagent.orders import Command, Order, RankOrder, RunState, Stage
from fmagent.reconcile import (
    Action,
    Announce,
    DeclareLost,
    Decline,
    Ignore,
    Prepare,
    Published,
    Release,
    Seen,
    Start,
    Stop,
    Withdraw,
    World,
    foreign,
    note,
    reconcile,
    restored,
)

GPUS = {f"GPU-{index}": "" for index in range(4)}


def order(job: str = "a", *gpus: int, **values: object) -> Order:
    base = Order(
        job=job,
        attempt=1,
        term=1,
        revision=1,
        start=False,
        node_rank=0,
        node_count=1,
        world_size=1,
        ranks=tuple(RankOrder(gpu, gpu, "g", 0, 0, gpu, f"GPU-{gpu}") for gpu in gpus or (0,)),
        command=Command(("true",)),
        grace_period_s=30.0,
    )
    return replace(base, **values)  # type: ignore[arg-type]


def run(job: str = "a", stage: Stage = Stage.RUNNING, **values: object) -> RunState:
    return replace(RunState(job, 1, stage, gpus=("GPU-0",), grace_period_s=30.0), **values)  # type: ignore[arg-type]


def world(orders: list[Order] | None = None, runs: list[RunState] | None = None, **values: object) -> World:
    reports = {state.job: Published(state.attempt, state.stage, confirmed=True) for state in runs or []}
    base = World({each.job: each for each in orders or []}, tuple(runs or ()), reports=reports, gpus=GPUS)
    return replace(base, **values)  # type: ignore[arg-type]


def unseen(*runs: RunState, **values: object) -> World:
    return world([], list(runs), desired=None, **values)


ANNOUNCED = {"a": Published(1, Stage.PREPARING, confirmed=True)}
A = order()
LATER = Seen(term=2, term_revision=5)
TOO_OLD = "its term 1 is older than 2, which was seen earlier"
STARTED = order(start=True, master_address="10.0.0.1", master_port=20001)

TABLE: list[tuple[str, World, tuple[Action, ...]]] = [
    ("a new order is announced first", world([A]), (Announce(A),)),
    ("nothing before the store has the report", world([A], reports={"a": Published(1, Stage.PREPARING, confirmed=False)}), (Announce(A),)),
    ("announced, it is prepared", world([A], reports=ANNOUNCED), (Prepare(A),)),
    ("nothing before the devices were read", world([A], reports=ANNOUNCED, gpus=None), ()),
    ("prepared, it waits", world([A], [run(stage=Stage.PREPARED)]), ()),
    ("prepared and ordered, it starts", world([STARTED], [run(stage=Stage.PREPARED)]), (Start("a", 1, "10.0.0.1", 20001),)),
    ("a start is given once", world([STARTED], [run(stage=Stage.PREPARED, start_ordered=True)]), ()),
    ("running, it runs on", world([STARTED], [run()]), ()),
    ("exited, it waits for its withdrawal", world([STARTED], [run(stage=Stage.EXITED, gone=True)]), ()),
    ("withdrawn, it is stopped", world([], [run()]), (Stop("a", 1, 30.0, "its assignment was withdrawn"),)),
    ("a stop is given once", world([], [run(stage=Stage.STOPPING, stop_ordered=True)]), ()),
    ("exited with leftovers, it is not released", world([], [run(stage=Stage.EXITED, stop_ordered=True)]), ()),
    ("gone, it is released and withdrawn", world([], [run(stage=Stage.EXITED, gone=True)]), (Release("a", 1), Withdraw("a"))),
    ("a report of nobody is withdrawn", world([], reports=ANNOUNCED), (Withdraw("a"),)),
    ("no view, no stop", unseen(run()), ()),
    ("an unreadable order stops nothing", world([], [run()], unreadable=frozenset({"a"})), ()),
    (
        "fenced, everything stops, also without a view",
        unseen(run(), run("b", Stage.PREPARED), run("c", Stage.EXITED), fenced="silence", fence_grace_s=5.0),
        (Stop("a", 1, 5.0, "silence", device_fault=True), Stop("b", 1, 5.0, "silence", device_fault=True)),
    ),
    ("fenced, nothing begins", world([A], reports=ANNOUNCED, fenced="silence"), ()),
    (
        "fenced, nothing starts",
        world([STARTED], [run(stage=Stage.PREPARED, stop_ordered=True)], fenced="silence"),
        (),
    ),
    (
        "a newer attempt stops the older run first",
        world([order(attempt=2)], [run()]),
        (Stop("a", 1, 30.0, "attempt 2 was ordered"),),
    ),
    ("a newer attempt follows when the older run is gone", world([order(attempt=2)], [run(gone=True)]), (Release("a", 1),)),
    (
        "a newer attempt is announced over the older report",
        world([order(attempt=2)], reports={"a": Published(1, Stage.EXITED, confirmed=True)}),
        (Announce(order(attempt=2)),),
    ),
    (
        "an older attempt changes nothing",
        world([A], [run(attempt=2)]),
        (Ignore(A, "its attempt 1 is older than 2, which this node has begun"),),
    ),
    (
        "an older attempt is refused when the newer one is over",
        world([A], seen=Seen(attempts={"a": 2})),
        (Decline(A, "its attempt 1 is older than 2, which this node has begun", device_fault=True),),
    ),
    (
        "an older attempt hides no report of the newer one",
        world([A], seen=Seen(attempts={"a": 2}), reports={"a": Published(2, Stage.EXITED, confirmed=True)}),
        (Ignore(A, "its attempt 1 is older than 2, which this node has begun"),),
    ),
    (
        "a deposed leader's late order is refused where nothing runs",
        world([order(revision=9)], seen=LATER),
        (Decline(order(revision=9), TOO_OLD, device_fault=True),),
    ),
    (
        "a deposed leader's late order is refused once",
        world([order(revision=9)], seen=LATER, reports={"a": Published(1, Stage.REFUSED, confirmed=True)}),
        (),
    ),
    (
        "a deposed leader's late order is refused after its announcement",
        world([order(revision=9)], seen=LATER, reports=ANNOUNCED),
        (Decline(order(revision=9), TOO_OLD, device_fault=True),),
    ),
    (
        "a deposed leader's late order changes no run",
        world([order(revision=9)], [run()], seen=LATER),
        (Ignore(order(revision=9), TOO_OLD),),
    ),
    (
        "a run without a record is told to be lost, whoever orders",
        world([order(revision=9)], seen=LATER, reports={"a": Published(1, Stage.RUNNING, confirmed=True)}),
        (DeclareLost(order(revision=9), "this node has no record of the run that it reported as running"),),
    ),
    ("what a former leader wrote in its time stands", world([order(revision=4)], seen=Seen(2, 5)), (Announce(order(revision=4)),)),
    (
        "a sick GPU is the node's fault",
        world([order("a", 0, 1)], gpus=GPUS | {"GPU-1": "GPU is lost"}),
        (Decline(order("a", 0, 1), "GPU 1 (GPU-1): GPU is lost", device_fault=True),),
    ),
    (
        "an unknown GPU is the node's fault",
        world([order("a", 9)]),
        (Decline(order("a", 9), "GPU 9 (GPU-9): this node has no such GPU", device_fault=True),),
    ),
    ("a full disk is the node's fault", world([A], node_fault="disk full"), (Decline(A, "disk full", device_fault=True),)),
    (
        "an empty command is the job's fault",
        world([order(command=Command(()))]),
        (Decline(order(command=Command(())), "template.command is empty: a bare process needs one", device_fault=False),),
    ),
    (
        "an image is the job's fault",
        world([order(command=Command(("true",), image="x:1"))]),
        (
            Decline(
                order(command=Command(("true",), image="x:1")),
                "template.image is 'x:1': this agent runs bare processes only, without an image",
                device_fault=False,
            ),
        ),
    ),
    (
        "volumes are the job's fault",
        world([order(command=Command(("true",), volumes=("/a:/b", "/c:/d")))]),
        (
            Decline(
                order(command=Command(("true",), volumes=("/a:/b", "/c:/d"))),
                "template.volumes is '/a:/b, /c:/d': this agent runs bare processes only, "
                "which see the node's own file systems and mount nothing",
                device_fault=False,
            ),
        ),
    ),
    ("an allocation needs no command", world([order(command=None)], reports=ANNOUNCED), (Prepare(order(command=None)),)),
    ("refused, it stays so", world([A], reports={"a": Published(1, Stage.REFUSED, confirmed=True)}), ()),
    (
        "a run without a record is told to be lost",
        world([STARTED], reports={"a": Published(1, Stage.RUNNING, confirmed=True)}),
        (DeclareLost(STARTED, "this node has no record of the run that it reported as running"),),
    ),
    (
        "a start without a prepare is told to be lost",
        world([STARTED]),
        (DeclareLost(STARTED, "the start was ordered, and this node has no record of having prepared"),),
    ),
    (
        "a GPU that another run still holds is waited for",
        world([order("b", 1, 0)], [run(stage=Stage.STOPPING, stop_ordered=True)]),
        (Announce(order("b", 1, 0), "waits: GPU 0 is still held by job a, attempt 1 (stopping)"),),
    ),
    (
        "a GPU that is granted twice is started once",
        world([order("a"), order("b", revision=2)], reports={job: Published(1, Stage.PREPARING, confirmed=True) for job in "ab"}),
        (Prepare(A), Announce(order("b", revision=2), "waits: GPU 0 is still held by job a, attempt 1 (preparing)")),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("seen", "expected"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_the_table(seen: World, expected: tuple[Action, ...]) -> None:
    assert reconcile(seen) == expected


def test_the_highest_term_is_noted_with_its_revision() -> None:
    orders = {
        "a": order("a", term=3, revision=7),
        "b": order("b", term=5, revision=9),
        "c": order("c", term=5, revision=12),
    }
    assert note(Seen(attempts={"x": 1}), orders) == Seen(5, 9, {"x": 1})
    assert note(Seen(8, 2), orders) == Seen(8, 2)


def test_a_late_order_of_a_deposed_leader_does_not_become_the_newest_term() -> None:
    late = order(term=3, revision=20)
    seen = note(Seen(5, 9), {"a": late})
    assert [type(action) for action in reconcile(world([late], seen=seen))] == [Decline]


@pytest.mark.parametrize(("revision", "said"), [(8, "restored from a backup"), (9, ""), (10, "")])
def test_a_store_that_is_earlier_than_what_was_seen_was_restored(revision: int, said: str) -> None:
    reason = restored(Seen(5, 9), revision)
    assert said in reason
    assert bool(reason) == bool(said)


@pytest.mark.parametrize(
    ("holders", "said"),
    [
        ({}, ""),
        ({"GPU-0": ()}, ""),
        ({"GPU-0": (1, 2)}, ""),
        ({"GPU-0": (1,), "GPU-1": (2, 7, 8)}, "GPU GPU-1 is in use by process 7, 8"),
    ],
)
def test_processes_of_nobody_here(holders: dict[str, tuple[int, ...]], said: str) -> None:
    assert foreign(holders, frozenset({1, 2})).startswith(said)
    assert bool(foreign(holders, frozenset({1, 2}))) == bool(said)
