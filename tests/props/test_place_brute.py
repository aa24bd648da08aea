"""solve against trying everything: the same feasibility and the same value of every term, on random small clusters.

Both engines are held against the same oracle: the count model alone, and the tables wherever they apply.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from fmsched.model.job import Request
from fmsched.model.placement import Budget, Placement, Undecided, Unplaceable
from fmsched.model.snapshot import Snapshot
from fmsched.place import by_zone, settle, tables
from fmsched.place.check import check
from fmsched.place.cpsat import Found, Infeasible
from fmsched.place.objective import ruler_of
from fmsched.place.problem import Problem, problem_of
from fmsched.place.solve import solve
from tests.support import brute, random_cases

SEEDS_PER_BATCH = 45
STATES_MAX = tables.STATES_MAX  # 0 leaves everything to the count model
BATCHES = 4
BATCHES_OF_STAGES = 2
Case = Callable[[Random], tuple[Snapshot, Request]]


@pytest.mark.parametrize("make", [random_cases.case, random_cases.reserving])
@pytest.mark.parametrize("batch", range(BATCHES))
def test_equals_exhaustive_search(batch: int, make: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    _sweep(make, batch, monkeypatch)


@pytest.mark.parametrize("batch", range(BATCHES_OF_STAGES))
def test_pipelines_equal_exhaustive_search(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    _sweep(random_cases.staged_case, batch, monkeypatch)


def _sweep(case: Case, batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    compared = 0
    for seed in range(batch * SEEDS_PER_BATCH, (batch + 1) * SEEDS_PER_BATCH):
        snapshot, request = case(Random(seed))
        try:
            best = brute.best(snapshot, request)
        except brute.TooManyError:
            continue
        compared += 1
        for states_max in (0, STATES_MAX):
            monkeypatch.setattr(tables, "STATES_MAX", states_max)
            _compare(f"seed {seed}, tables {'on' if states_max else 'off'}", snapshot, request, best)
    assert compared >= SEEDS_PER_BATCH * 3 // 4, "too many cases were too big to try everything"


@pytest.mark.parametrize("batch", range(3))
def test_talks_that_meet_equal_exhaustive_search(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model of all talks together, also where talks alone would do."""
    asked = 0
    real = settle.search

    def search(*args: Any, **options: Any) -> Any:
        nonlocal asked
        asked += 1
        return real(*args, **options)

    monkeypatch.setattr(settle, "search", search)
    monkeypatch.setattr(settle, "_look", lambda *_: ((object(),), False))  # nothing fits, and nothing is as good
    for seed in range(6_000 + batch * SEEDS_PER_BATCH, 6_000 + (batch + 1) * SEEDS_PER_BATCH):
        snapshot, request = random_cases.reserving(Random(seed))
        with contextlib.suppress(brute.TooManyError):
            _compare(f"seed {seed}", snapshot, request, brute.best(snapshot, request))
    assert asked >= 4


def test_one_group_zone_by_zone_equals_exhaustive_search(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = 0
    real = by_zone.search

    def search(problem: Problem) -> Found | Infeasible | None:
        nonlocal answers
        found = real(problem)
        answers += isinstance(found, Found)
        return found

    monkeypatch.setattr(by_zone, "search", search)
    for seed in range(7_000, 7_075):
        snapshot, request = random_cases.cut_off(Random(seed))
        with contextlib.suppress(brute.TooManyError):
            _compare(f"seed {seed}", snapshot, request, brute.best(snapshot, request))
    assert answers >= 5


def _compare(case: str, snapshot: Snapshot, request: Request, best: tuple[int, ...] | None) -> None:
    verdict = solve(snapshot, request, Budget(explain_solves_max=0))
    exact = problem_of(snapshot, request, ruler_of(snapshot.topology)).exact
    if isinstance(verdict, Undecided):
        assert not exact, f"{case}: undecided, but {best} is possible"
        return  # stages across nodes where nearness does not pass on: nothing is claimed
    if best is None:
        assert isinstance(verdict, Unplaceable), f"{case}: placed where nothing is allowed: {verdict}"
        return
    assert isinstance(verdict, Placement), f"{case}: {verdict}, but {best} is possible"
    assert check(snapshot, request, verdict) == (), case
    found = tuple(int(term.value) for term in verdict.objective.terms)
    if not exact and not verdict.objective.optimal:
        assert found >= best, f"{case}: {found} is better than {best}"
        return
    assert found == best, f"{case}: {[(t.name, t.value, b) for t, b in zip(verdict.objective.terms, best, strict=True)]}"
    assert verdict.objective.optimal, f"{case}: not proven"
