"""solve against trying everything: the same feasibility and the same value of every term, on random small clusters.

Both engines are held against the same oracle: the count model alone, and the tables wherever they apply.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from fmsched.model.job import Request
from fmsched.model.placement import Budget, Placement, Unplaceable
from fmsched.model.snapshot import Snapshot
from fmsched.place import tables
from fmsched.place.check import check
from fmsched.place.solve import solve
from tests.support import brute, random_cases

SEEDS_PER_BATCH = 45
STATES_MAX = tables.STATES_MAX  # 0 leaves everything to the count model
BATCHES = 8
BATCHES_OF_STAGES = 3


@pytest.mark.parametrize("batch", range(BATCHES))
def test_equals_exhaustive_search(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    _sweep(random_cases.case, batch, monkeypatch)


@pytest.mark.parametrize("batch", range(BATCHES_OF_STAGES))
def test_pipelines_equal_exhaustive_search(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    _sweep(random_cases.staged_case, batch, monkeypatch)


def _sweep(case: Callable[[Random], tuple[Snapshot, Request]], batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
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


def _compare(case: str, snapshot: Snapshot, request: Request, best: tuple[int, ...] | None) -> None:
    verdict = solve(snapshot, request, Budget(explain_solves_max=0))
    if best is None:
        assert isinstance(verdict, Unplaceable), f"{case}: placed where nothing is allowed: {verdict}"
        return
    assert isinstance(verdict, Placement), f"{case}: {verdict}, but {best} is possible"
    assert check(snapshot, request, verdict) == (), case
    found = tuple(int(term.value) for term in verdict.objective.terms)
    assert found == best, f"{case}: {[(t.name, t.value, b) for t, b in zip(verdict.objective.terms, best, strict=True)]}"
    assert verdict.objective.optimal, f"{case}: not proven"
