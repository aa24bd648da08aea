"""solve against trying everything: the same feasibility and the same value of every term, on random small clusters."""

from __future__ import annotations

from random import Random

import pytest
from fmsched.model.placement import Budget, Placement, Unplaceable
from fmsched.place.check import check
from fmsched.place.solve import solve

from tests.support import brute, random_cases

SEEDS_PER_BATCH = 40
BATCHES = 10


@pytest.mark.parametrize("batch", range(BATCHES))
def test_equals_exhaustive_search(batch: int) -> None:
    compared = 0
    for seed in range(batch * SEEDS_PER_BATCH, (batch + 1) * SEEDS_PER_BATCH):
        compared += _compare(seed)
    assert compared >= SEEDS_PER_BATCH * 3 // 4, "too many cases were too big to try everything"


def _compare(seed: int) -> bool:
    rng = Random(seed)
    topology = random_cases.cluster(rng)
    snapshot, request = random_cases.snapshot(rng, topology), random_cases.request(rng, topology.nodes)
    try:
        best = brute.best(snapshot, request)
    except brute.TooManyError:
        return False
    verdict = solve(snapshot, request, Budget(explain_solves_max=0))
    if best is None:
        assert isinstance(verdict, Unplaceable), f"seed {seed}: placed where nothing is allowed: {verdict}"
        return True
    assert isinstance(verdict, Placement), f"seed {seed}: {verdict}, but {best} is possible"
    assert check(snapshot, request, verdict) == (), f"seed {seed}"
    found = tuple(int(term.value) for term in verdict.objective.terms)
    assert found == best, (
        f"seed {seed}: {[(t.name, t.value, b) for t, b in zip(verdict.objective.terms, best, strict=True)]}"
    )
    assert verdict.objective.optimal, f"seed {seed}: not proven"
    return True
