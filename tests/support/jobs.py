"""Jobs as values, for tests: every option a test sets is one that matters to it."""

from __future__ import annotations

from collections.abc import Mapping

from fmsched.lifecycle.table import submitted
from fmsched.model.job import GroupKind, Request, ResourceGroup
from fmsched.model.placement import Objective, Placement, RankPlacement
from fmsched.model.record import Decision, Job, Order, Phase, RankRun, Run, RunPhase, Spec, State, Status


def spec(name: str = "train", *, gpus: int = 2, priority: int = 500, at_ms: int = 0, **changes: object) -> Spec:
    group = ResourceGroup("workers", GroupKind.DATA_PARALLEL, 1)
    return Spec(name, name, Request(name, (group,), gpus), priority, at_ms, **changes)  # type: ignore[arg-type]


def placement(job: str, ranks: list[tuple[str, int]]) -> Placement:
    """Rank i on (node, gpu index)."""
    local: dict[str, int] = {}
    placed = []
    for rank, (node, gpu) in enumerate(ranks):
        local[node] = local.get(node, -1) + 1
        placed.append(RankPlacement(rank, "workers", rank, rank, local[node], node, gpu, f"GPU-{node}-{gpu}"))
    return Placement(job, tuple(placed), Objective(1.0, 1.0))


def decision(
    job: str = "train", ranks: list[tuple[str, int]] | None = None, *, attempt: int = 1, **changes: object
) -> Decision:
    return Decision(attempt, 7, placement(job, ranks or [("n1", 0), ("n2", 0)]), 0, **changes)  # type: ignore[arg-type]


def run(phase: RunPhase, *ended: tuple[int, int], attempt: int = 1, **changes: object) -> Run:
    """A node's report; `ended` are (rank, exit code) pairs."""
    return Run(attempt, phase, tuple(RankRun(rank, True, code) for rank, code in ended), **changes)  # type: ignore[arg-type]


def status(state: State, **changes: object) -> Status:
    return Status(state, 0, **{"attempt": 1, **changes})  # type: ignore[arg-type]


def job(
    state: State,
    *,
    held: Decision | None = None,
    runs: Mapping[str, Run] | None = None,
    orders: Phase | None = None,
    wanted: bool = True,
    spec_: Spec | None = None,
    **changes: object,
) -> Job:
    nodes = held.placement.nodes if held else ()
    return Job(
        spec=spec_ or spec(),
        status=submitted(0) if state is State.QUEUED and not changes else status(state, **changes),
        wanted=wanted,
        decision=held,
        orders={node: Order(held.attempt, orders) for node in nodes} if held and orders else {},
        runs=runs or {},
    )
