"""The tables and the count model are two ways to one answer: the same objective on clusters that are too large for brute force."""

from __future__ import annotations

import random

import pytest

from fmsched.model.job import GroupKind, Reach, Request, ResourceGroup
from fmsched.model.placement import Budget, Placement, Unplaceable
from fmsched.model.snapshot import Snapshot
from fmsched.place import spanning, tables
from fmsched.place.check import check
from fmsched.place.solve import solve
from fmsched.topology.clusterfile import ClusterFile, parse, to_snapshot
from fmsched.topology.generate import Plan, generate


def cluster(chance: random.Random) -> Snapshot:
    pods, leaves, nodes = chance.choice([(1, 5, 4), (2, 3, 4), (3, 2, 3), (4, 3, 2)])
    kind = chance.choice(["hgx-h100", "hgx-h100", "dgx-1v", "h100-nvl-4"])
    found = parse(generate(Plan(pods, leaves, nodes, kind, chance.choice([0.0, 0.3, 0.6, 0.8])), chance))
    assert isinstance(found, ClusterFile)
    return to_snapshot(found)


def request(chance: random.Random, free: int) -> Request:
    cell = chance.choice([1, 1, 2, 4, 8])
    kind = chance.choice([GroupKind.TENSOR_PARALLEL, GroupKind.DATA_PARALLEL])
    reach = Reach(chance.choice([1, 3, 5])) if kind is GroupKind.DATA_PARALLEL else None
    group = ResourceGroup("cell", kind, cell, preferred=chance.choice([(), ("h100",), ("v100", "h100")]), reach=reach)
    return Request("job", (group,), max(1, round(chance.random() * free / cell)))


@pytest.mark.parametrize("seed", range(60))
def test_the_count_model_finds_no_better_placement_than_the_tables(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(seed)
    snapshot = cluster(chance)
    free = sum(len(snapshot.free_indices(node.name)) for node in snapshot.topology.nodes)
    asked = request(chance, max(free, 1))
    ours = solve(snapshot, asked, Budget())
    monkeypatch.setattr(tables, "STATES_MAX", 0)
    theirs = solve(snapshot, asked, Budget(deterministic_s=20.0))
    if isinstance(ours, Unplaceable):
        assert isinstance(theirs, Unplaceable)
        return
    assert isinstance(ours, Placement)
    assert isinstance(theirs, Placement)
    assert not check(snapshot, asked, ours)
    assert ours.objective.optimal
    assert ours.objective.value <= theirs.objective.value
    if theirs.objective.optimal:
        assert ours.objective.value == theirs.objective.value


@pytest.mark.parametrize("seed", range(40))
def test_nor_for_instances_that_are_larger_than_a_node(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(1000 + seed)
    found = parse(generate(Plan(2, 2, 4, "hgx-h100", chance.choice([0.0, 0.3, 0.6])), chance))
    assert isinstance(found, ClusterFile)
    snapshot = to_snapshot(found)
    free = sum(len(snapshot.free_indices(node.name)) for node in snapshot.topology.nodes)
    cell = chance.choice([9, 12, 16, 24])
    group = ResourceGroup("cell", GroupKind.TENSOR_PARALLEL, cell, reach=Reach(chance.choice([1, 3, 5])))
    asked = Request("job", (group,), max(1, round(chance.random() * free / cell)))
    ours = solve(snapshot, asked, Budget())
    monkeypatch.setattr(spanning, "search", lambda _: None)
    theirs = solve(snapshot, asked, Budget(deterministic_s=30.0))
    assert type(ours) is type(theirs)
    if isinstance(ours, Placement) and isinstance(theirs, Placement):
        assert not check(snapshot, asked, ours)
        assert ours.objective.value <= theirs.objective.value
        if theirs.objective.optimal:
            assert ours.objective.optimal
            assert ours.objective.value == theirs.objective.value
