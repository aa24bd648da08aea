"""The step time as a term against trying everything, on random small clusters: what is called proven is the best, and a bound is one."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from fmsched.model.job import GroupKind, Request
from fmsched.model.placement import Budget, Placement
from fmsched.model.snapshot import Snapshot
from fmsched.model.work import ModelSizes, Work
from fmsched.place import fastest
from fmsched.place.check import check
from fmsched.place.forecast import training
from fmsched.place.solve import solve
from fmsched.predict import Unpredicted
from tests.support import brute, random_cases

SEEDS_PER_BATCH = 60
BATCHES = 2


def _case(seed: int) -> tuple[Snapshot, Request]:
    """As of random_cases, with something to train on it: dense or of experts, degrees as the groups say or given."""
    rng = Random(seed)
    snapshot, request = random_cases.case(rng)
    gpus = request.replicas * sum(group.gpus for group in request.groups if group.kind is not GroupKind.AUXILIARY)
    degrees = None
    if gpus and rng.random() < 0.4:
        tensor = rng.choice([n for n in (1, 2, 3, 4) if gpus % n == 0])
        degrees = (tensor, 1, gpus // tensor, 1, 1)
    model = rng.choice(["llama-3-8b", "llama-3-70b", "gpt2", "mixtral-8x7b"])
    work = Work(model, ModelSizes(sequence_length=rng.choice([512, 4096])), degrees)
    policy = rng.choice(["", "", "fastest", "cheapest", "balanced"])
    return snapshot, replace(request, work=work, policy=policy)


@pytest.mark.parametrize("batch", range(BATCHES))
def test_proven_is_best_and_the_bound_holds(batch: int) -> None:
    predicted = proven = 0
    for seed in range(batch * SEEDS_PER_BATCH, (batch + 1) * SEEDS_PER_BATCH):
        snapshot, request = _case(seed)
        job = training(request)
        if isinstance(job, Unpredicted):
            continue
        listed = any(group.preferred for group in request.groups) or request.policy == "cheapest"
        first = request.policy in ("fastest", "balanced") or not listed
        try:
            best = brute.best_with_step(snapshot, request, job, first=first)
        except brute.TooManyError:
            continue
        verdict = solve(snapshot, request, Budget(explain_solves_max=0))
        assert isinstance(verdict, Placement) == (best is not None), f"seed {seed}: {verdict}"
        if best is None or not isinstance(verdict, Placement):
            continue
        assert check(snapshot, request, verdict) == (), f"seed {seed}"
        names = [term.name for term in verdict.objective.terms]
        name = fastest.STEP_COST if request.policy == "balanced" else fastest.STEP
        if name not in names:
            continue
        predicted += 1
        values = tuple(int(term.value) for term in verdict.objective.terms)
        assert names.index(name) == (0 if first else 1), f"seed {seed}"
        assert values >= best, f"seed {seed}: {dict(zip(names, values, strict=True))} better than the best of all, {best}"
        weighted = sum(term.weight * value for term, value in zip(verdict.objective.terms, best, strict=True))
        assert verdict.objective.bound <= weighted * (1 + 1e-12), f"seed {seed}: bound above {best}"
        if verdict.objective.optimal:
            proven += 1
            assert values == best, f"seed {seed}: {dict(zip(names, values, strict=True))}, but {best} is possible"
    assert predicted >= SEEDS_PER_BATCH // 8
    assert proven >= predicted // 2, f"only {proven} of {predicted} proven"
