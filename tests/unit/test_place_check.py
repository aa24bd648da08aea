"""check by itself: a good placement passes, and each rule, broken alone, is named."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from fmsched.model.fabric import Topology
from fmsched.model.job import Request, ResourceGroup
from fmsched.model.placement import Objective, Placement, RankPlacement
from fmsched.model.snapshot import Snapshot
from fmsched.place.check import check
from tests.support.clusters import A100, H100, NVL72_TRAY, group, node, request, shape, snapshot, tree

H4 = shape("h100-x4", [H100] * 4, 900)
A4 = shape("a100-x4", [A100] * 4, 600, gbps=200)
PCIE = shape("h100-pcie", [H100] * 4, 0)
MIXED = shape("mixed", [H100, H100, A100, A100], 600)


def cluster() -> Topology:
    """leaf0: n0, n1 (H100)   leaf1: n2 (H100), a0 (A100), p0 (no NVLink), m0 (mixed)   one spine."""
    return tree(
        {
            "leaf0": [node("n0", H4), node("n1", H4)],
            "leaf1": [node("n2", H4), node("a0", A4), node("p0", PCIE), node("m0", MIXED)],
        }
    )


def place(topology: Topology, of: Request, cells: Sequence[Sequence[Sequence[str]]]) -> Placement:
    """cells[group][replica] names GPUs as n0g1."""
    ranks: list[RankPlacement] = []
    for g, replicas in enumerate(cells):
        for replica, names in enumerate(replicas):
            for name in names:
                owner, _, index = name.rpartition("g")
                local = sum(rank.node == owner for rank in ranks)
                uuid = topology.node(owner).uuids[int(index)]
                cell = g * of.replicas + replica
                ranks.append(RankPlacement(len(ranks), of.groups[g].name, replica, cell, local, owner, int(index), uuid))
    return Placement(of.job, tuple(ranks), Objective(0, 0))


def broken(of: Request, cells: Sequence[Sequence[Sequence[str]]], state: Snapshot | None = None) -> set[str]:
    state = state or snapshot(cluster())
    return {violation.constraint for violation in check(state, of, place(state.topology, of, cells))}


TP2 = request(group("tp", "TP", 2))


def test_good_placement_passes() -> None:
    assert (
        broken(request(group("tp", "TP", 2, nvlink=900), group("dp", "DP", 1)), [[["n0g0", "n0g1"]], [["n1g3"]]]) == set()
    )


def test_gpus_in_use_sick_or_on_closed_or_avoided_nodes() -> None:
    topology = cluster()
    cells = [[["n0g0", "n0g1"]]]
    assert broken(TP2, cells, snapshot(topology, held={"other": ["n0g1"]})) == {"free GPUs"}
    assert broken(TP2, cells, snapshot(topology, unfit={"n0g0": "Xid 79"})) == {"healthy GPUs"}
    assert broken(TP2, cells, snapshot(topology, closed={"n0": "drained"})) == {"open nodes"}
    assert broken(replace(TP2, avoid_nodes=frozenset({"n0"})), cells) == {"avoided nodes"}


def test_one_gpu_carries_one_rank() -> None:
    assert broken(request(group("dp", "DP", 1), replicas=2), [[["n0g0"], ["n0g0"]]]) == {"one rank per GPU"}


@pytest.mark.parametrize(
    "cells", [[[["n0g0"]]], [[["n0g0", "n0g1", "n0g2"]]], [[]], [[["n0g0", "n0g1"], ["n1g0", "n1g1"]]]]
)
def test_counts(cells: list[list[list[str]]]) -> None:
    assert "GPU count" in broken(TP2, cells)


def test_types_memory_and_mixtures() -> None:
    assert broken(request(group("tp", "TP", 2, preferred=["h100"])), [[["a0g0", "a0g1"]]]) == {"GPU type"}
    assert broken(request(group("tp", "TP", 2, memory=81)), [[["n0g0", "n0g1"]]]) == {"memory"}
    assert broken(TP2, [[["m0g1", "m0g2"]]]) == {"one GPU type"}


def test_nvlink_between_every_two() -> None:
    asks = request(group("dp", "DP", 2, nvlink=900))
    assert broken(asks, [[["a0g0", "a0g1"]]]) == {"NVLink"}
    assert broken(asks, [[["n0g0", "n1g0"]]]) == {"NVLink"}
    assert broken(request(group("dp", "DP", 1, nvlink=900), replicas=2), [[["p0g0"], ["p0g1"]]]) == set()


def test_tensor_parallel_stays_in_one_nvlink_domain_unless_reach_is_given() -> None:
    assert broken(TP2, [[["p0g0", "p0g1"]]]) == {"NVLink domain"}
    assert broken(TP2, [[["n0g0", "n1g0"]]]) == {"NVLink domain"}
    assert broken(request(group("tp", "TP", 2, hops=1)), [[["n0g0", "n1g0"]]]) == set()
    assert broken(request(group("tp", "TP", 1)), [[["p0g0"]]]) == set()
    assert broken(request(group("ep", "EP", 2)), [[["n0g0", "n1g0"]]]) == {"one node"}
    assert broken(request(group("ep", "EP", 2)), [[["p0g0", "p0g1"]]]) == set()


def test_multi_node_nvlink_domain_is_one_domain() -> None:
    rack = tree({"leaf0": [node("t0", NVL72_TRAY, "a"), node("t1", NVL72_TRAY, "a"), node("t2", NVL72_TRAY, "b")]})
    asks = request(group("tp", "TP", 2, nvlink=1800))
    assert broken(asks, [[["t0g0", "t1g0"]]], snapshot(rack)) == set()
    assert broken(asks, [[["t1g0", "t2g0"]]], snapshot(rack)) == {"NVLink", "NVLink domain"}


@pytest.mark.parametrize(
    ("asks", "cells", "found"),
    [
        (group("tp", "TP", 2, hops=1), [["n0g0", "n2g0"], ["n1g0", "n1g1"]], {"hops"}),
        (group("tp", "TP", 2, hops=1), [["n0g0", "n1g0"], ["n2g0", "n2g1"]], set()),
        (group("dp", "DP", 1, hops=1), [["n0g0"], ["n2g0"]], {"hops"}),
        (group("dp", "DP", 1, hops=1), [["n0g0"], ["n1g0"]], set()),
        (group("dp", "DP", 1, hops=0), [["n0g0"], ["n1g0"]], {"hops"}),
        (group("dp", "DP", 1, hops=0), [["n0g0"], ["n0g1"]], set()),
        (group("dp", "DP", 1, rate=400), [["n2g0"], ["a0g0"]], {"link rate"}),
        (group("dp", "DP", 1, rate=400), [["a0g0"], ["a0g1"]], set()),
        (group("aux", "AUX", 1, hops=0, rate=800), [["n0g0"], ["a0g0"]], set()),
    ],
)
def test_reach(asks: ResourceGroup, cells: list[list[str]], found: set[str]) -> None:
    assert broken(request(asks, replicas=2), [cells]) == found


def test_reach_between_neighbouring_stages_of_a_replica() -> None:
    stages = request(group("s0", "PP", 1, hops=1), group("dp", "DP", 1), group("s1", "PP", 1), replicas=2)
    dp = [["n2g2"], ["n2g3"]]
    assert broken(stages, [[["n0g0"], ["n2g0"]], dp, [["n1g0"], ["n2g1"]]]) == set()
    assert broken(stages, [[["n0g0"], ["n2g0"]], dp, [["n2g1"], ["n1g0"]]]) == {"hops"}


def test_a_reach_without_cap_still_needs_a_path() -> None:
    apart = tree({"leaf0": [node("n0", H4)], "leaf1": [node("n1", H4)]}, {})
    asks = group("dp", "DP", 1, reach=True)
    assert broken(request(asks, replicas=2), [[["n0g0"], ["n1g0"]]], snapshot(apart)) == {"hops"}


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"rank": 5}, "rank order"),
        ({"local_rank": 3}, "local rank"),
        ({"cell": 7}, "cell"),
        ({"uuid": "GPU-other"}, "uuid"),
        ({"node": "nowhere"}, "node"),
        ({"gpu": 9}, "GPU"),
        ({"group": "other"}, "group"),
        ({"hcas": ("mlx5_77",)}, "adapter"),
        ({"hcas": ("mlx5_0", "mlx5_1:1")}, None),
    ],
)
def test_numbers_names_and_adapters(change: dict[str, object], found: str | None) -> None:
    state = snapshot(cluster())
    good = place(state.topology, TP2, [[["n0g0", "n0g1"]]])
    bad = replace(good, ranks=(good.ranks[0], replace(good.ranks[1], **change)))  # type: ignore[arg-type]
    assert {violation.constraint for violation in check(state, TP2, bad)} == ({found} if found else set())


def test_another_jobs_placement_is_refused() -> None:
    state = snapshot(cluster())
    good = place(state.topology, TP2, [[["n0g0", "n0g1"]]])
    assert {violation.constraint for violation in check(state, replace(TP2, job="other"), good)} == {"job"}
