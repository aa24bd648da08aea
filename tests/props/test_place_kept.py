"""Repairs against trying everything: some instances of a placed gang are lost, the others stay; the best place for the lost is known."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from fmsched.model.hardware import GpuId
from fmsched.model.job import Request
from fmsched.model.placement import Budget, Placement, Undecided
from fmsched.model.snapshot import Snapshot
from fmsched.place.check import check
from fmsched.place.solve import solve
from tests.support import brute, random_cases

SEEDS_PER_BATCH = 100
BATCHES = 2


def _broken(seed: int) -> tuple[Snapshot, Request] | None:
    """A placed gang that lost one or two instances, whose GPUs are sick, shut, held or free now; None: not placed, or nothing stays."""
    rng = Random(seed)
    snapshot, request = random_cases.case(rng)
    request = replace(request, spares=0)  # spares beside ranks that stay are refused
    verdict = solve(snapshot, request, Budget(explain_solves_max=0))
    if not isinstance(verdict, Placement):
        return None
    instances = sorted({(rank.group, rank.replica) for rank in verdict.ranks})
    gone = set(rng.sample(instances, min(len(instances), rng.choice([1, 1, 2]))))
    kept = tuple(rank for rank in verdict.ranks if (rank.group, rank.replica) not in gone)
    if not kept:
        return None
    held, unfit, closed = dict(snapshot.held), dict(snapshot.unfit), dict(snapshot.closed)
    for rank in verdict.ranks:
        if rank in kept:
            held[rank.gpu_id] = request.job
        elif (chance := rng.random()) < 0.4:
            unfit[rank.gpu_id] = "Xid 79"
        elif chance < 0.5:
            closed[rank.node] = "drained"
        elif chance < 0.6:
            held[rank.gpu_id] = request.job  # not seen free yet
    return replace(snapshot, held=held, unfit=unfit, closed=closed), replace(request, kept=kept)


def _without(snapshot: Snapshot, request: Request) -> Snapshot:
    """What the terms are measured on: the cluster as if the ranks that stay were not there; shut nodes take nothing else."""
    mine = {rank.gpu_id for rank in request.kept}
    at = {gpu.node for gpu in mine}
    others = {
        GpuId(name, i): "shut"
        for name in snapshot.closed
        if name in at
        for i in range(len(snapshot.topology.node(name).shape.gpus))
        if GpuId(name, i) not in mine
    }
    held = {gpu: job for gpu, job in snapshot.held.items() if gpu not in mine}
    closed = {name: reason for name, reason in snapshot.closed.items() if name not in at}
    return replace(snapshot, held=held, closed=closed, unfit={**others, **snapshot.unfit})


@pytest.mark.parametrize("batch", range(BATCHES))
def test_equals_exhaustive_search(batch: int) -> None:
    compared = proven = refused = 0
    for seed in range(batch * SEEDS_PER_BATCH, (batch + 1) * SEEDS_PER_BATCH):
        case = _broken(seed)
        if case is None:
            continue
        snapshot, request = case
        try:
            best = brute.best(_without(snapshot, request), request)
        except brute.TooManyError:
            continue
        verdict = solve(snapshot, request, Budget(explain_solves_max=0))
        if isinstance(verdict, Undecided):
            continue
        compared += 1
        assert isinstance(verdict, Placement) == (best is not None), f"seed {seed}: {verdict}, best {best}"
        if not isinstance(verdict, Placement):
            refused += 1
            continue
        assert best is not None
        assert check(snapshot, request, verdict) == (), f"seed {seed}"
        assert set(request.kept) <= set(verdict.ranks), f"seed {seed}"
        found = tuple(int(term.value) for term in verdict.objective.terms)
        assert found >= best, f"seed {seed}"
        if verdict.objective.optimal:
            proven += 1
            assert found == best, f"seed {seed}: {[(t.name, t.value) for t in verdict.objective.terms]}, but {best}"
    assert compared >= SEEDS_PER_BATCH // 5
    assert proven >= (compared - refused) * 3 // 4, f"{proven} proven of {compared}, {refused} refused"
