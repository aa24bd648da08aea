"""The weakest link of a group, and what collectives cost over it."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from fmsched.model.fabric import Fabric, Link, Switch
from fmsched.model.hardware import NodeShape
from fmsched.predict.collectives import START_S, Span, all_gather, all_reduce, all_to_all, send
from fmsched.predict.links import NETWORK_SHARE, NVLINK_SHARE, Links, NoPathError, Weakest, nvlink_rate
from fmsched.topology.graph import build_topology
from tests.support.clusters import BRIDGED, DGX_1V, HGX_A100, HGX_H100, L40S_BOX, NVL72_TRAY, linked, shape
from tests.support.predicting import cluster, equal, node, on, packed

# Ten microseconds a step inside, twenty between; 100 and 10 GB/s.
FAR = Span(8, 8, 1, 1e-5, 1e11, 2e-5, 1e10)
NEAR = Span(8, 1, 8, 1e-5, 1e11, 1e-5, 1e11)
SPREAD = Span(8, 2, 4, 1e-5, 1e11, 2e-5, 1e10)


def span_of(shape_: NodeShape, gpus: list[tuple[int, int]], nodes: int = 2, per_leaf: int = 8) -> tuple[Span, Weakest]:
    topology = equal(shape_, nodes, per_leaf)
    return Links(topology, on(topology, gpus)).span(np.arange(len(gpus)))


def test_large_messages_cost_what_bus_bandwidth_says() -> None:
    size = 1e12
    assert all_reduce(NEAR, size) == pytest.approx(2 * 7 / 8 * size / 1e11, rel=1e-3)
    assert all_gather(NEAR, size) == pytest.approx(7 / 8 * size / 1e11, rel=1e-3)
    assert all_to_all(NEAR, size) == pytest.approx(7 / 8 * size / 1e11, rel=1e-3)
    assert all_reduce(FAR, size) == pytest.approx(2 * 7 / 8 * size / 1e10, rel=1e-3)
    # Four members on each island: four ways out at once.
    assert all_reduce(SPREAD, size) == pytest.approx(2 * 7 / 8 * size / 4e10, rel=1e-3)
    # Of eight parts each GPU keeps one, sends three inside and four out.
    assert all_to_all(SPREAD, size) == pytest.approx(size / 8 * (3 / 1e11 + 4 / 1e10), rel=1e-3)


def test_small_messages_cost_steps() -> None:
    assert all_reduce(NEAR, 0) == pytest.approx(START_S + 2 * 3 * 1e-5)  # a tree of eight
    assert all_reduce(SPREAD, 0) == pytest.approx(START_S + 2 * (2 * 1e-5 + 2e-5))
    assert all_gather(SPREAD, 0) == pytest.approx(START_S + 6 * 1e-5 + 2e-5)  # a ring: six steps inside, one between
    assert all_to_all(FAR, 0) == pytest.approx(START_S + 3 * 2e-5)
    assert send(FAR, 0) == 2e-5
    assert send(NEAR, 1e11) == pytest.approx(1 + 1e-5)


def test_a_group_of_one_says_nothing() -> None:
    alone = replace(NEAR, ranks=1, fewest=1)
    assert all_reduce(alone, 1e9) == all_gather(alone, 1e9) == all_to_all(alone, 1e9) == 0


def test_inside_a_box_nvlink_is_the_weakest_link() -> None:
    span, weakest = span_of(HGX_H100, [(0, i) for i in range(8)])
    assert span.islands == 1
    assert span.bus_bytes_per_s == pytest.approx(450e9 * NVLINK_SHARE)
    assert weakest == Weakest("NVLink", "n0", "n0", 0, 3600, 3600)


def test_between_boxes_each_gpu_has_its_adapters() -> None:
    span, weakest = span_of(HGX_H100, [(0, 0), (1, 0)])
    assert weakest == Weakest("network", "n0", "n1", 1, 400, 400)
    assert span.bus_bytes_per_s == pytest.approx(50e9 * NETWORK_SHARE)
    half = NodeShape("half", HGX_H100.gpus, HGX_H100.nvlink, HGX_H100.hcas[:4])
    assert span_of(half, [(0, 0), (1, 0)])[1].gbps == 200
    storage = replace(HGX_H100, hcas=(*HGX_H100.hcas, replace(HGX_H100.hcas[0], name="storage", rate_gbps=100)))
    assert span_of(storage, [(0, 0), (1, 0)])[1].gbps == 400


def test_all_members_of_a_box_share_the_way_out() -> None:
    whole, _ = span_of(HGX_H100, [(i, gpu) for i in range(2) for gpu in range(8)])
    one, _ = span_of(HGX_H100, [(0, 0), (1, 0)])
    assert whole.bus_bytes_per_s == pytest.approx(min(8 * one.bus_bytes_per_s, 450e9 * NVLINK_SHARE))


def test_the_weakest_cable_is_found_and_named() -> None:
    owners = [(node("a", HGX_H100), 0), (node("b", HGX_H100), 0), (node("c", HGX_H100), 1)]
    topology = cluster(owners, uplink_gbps=100)
    links = Links(topology, on(topology, [(0, 0), (1, 0), (2, 0)]))
    assert links.span(np.array([0, 1]))[1] == Weakest("network", "a", "b", 1, 400, 400)
    _, weakest = links.span(np.array([0, 1, 2]))
    assert (weakest.hops, weakest.link_gbps) == (3, 100)
    assert "c" in (weakest.a, weakest.b)


def test_latency_is_that_of_the_longest_way_also_where_another_is_narrower() -> None:
    owners = [node(f"n{i}", HGX_H100) for i in range(3)]
    links = [Link(f"n{i}", f"leaf{i}", 400, hca=hca.name) for i in range(3) for hca in HGX_H100.hcas]
    links += [Link(f"leaf{i}", "spine", 400) for i in range(3)]
    links += [Link("leaf0", "leaf1", 10)]  # straight, and narrow
    switches = (*(Switch(f"leaf{i}") for i in range(3)), Switch("spine", 1))
    topology = build_topology(owners, Fabric(switches, tuple(links)))
    _, weakest = Links(topology, on(topology, [(i, 0) for i in range(3)])).span(np.arange(3))
    assert weakest == Weakest("network", "n0", "n1", 3, 10, 10)


def test_a_slow_port_is_found_and_named() -> None:
    topology = cluster([(node("fast", HGX_H100), 0), (node("other", HGX_H100), 0), (node("slow", HGX_A100), 0)])
    span, weakest = Links(topology, on(topology, [(0, 0), (1, 0), (2, 0)])).span(np.arange(3))
    assert weakest.link_gbps == 200
    assert "slow" in (weakest.a, weakest.b)
    assert span.outer_bytes_per_s == pytest.approx(25e9 * NETWORK_SHARE)


def test_a_multi_node_nvlink_domain_is_one_island() -> None:
    trays = [(node(f"t{i}", NVL72_TRAY, "rack1" if i < 2 else "rack2"), 0) for i in range(3)]
    topology = cluster(trays)
    links = Links(topology, packed(topology, 12))
    span, weakest = links.span(np.arange(8))
    assert (span.islands, weakest.kind, weakest.gbps) == (1, "NVLink", 7200)
    assert (weakest.a, weakest.b) != ("t2", "t2")
    assert links.span(np.arange(12))[0].islands == 2


def test_pairs_of_bridges_reach_one_another_by_pcie() -> None:
    assert span_of(BRIDGED, [(0, 0), (0, 1)])[1].kind == "NVLink"
    assert span_of(BRIDGED, [(0, 1), (0, 2)])[1].kind == "PCIe"
    assert span_of(BRIDGED, [(0, i) for i in range(4)])[1].kind == "PCIe"
    assert span_of(L40S_BOX, [(0, 0), (0, 3)])[1].kind == "PCIe"


def test_direct_links_are_used_all_at_once() -> None:
    assert nvlink_rate(DGX_1V, range(8)) == 300  # six bricks of 50 GB/s on each GPU, and no cut has fewer
    assert nvlink_rate(DGX_1V, (0, 1)) == 50
    assert nvlink_rate(DGX_1V, (0, 3)) == 100
    assert nvlink_rate(DGX_1V, (0, 5)) == 0
    # Two pairs of 100, joined by two links of 50: the cut between them counts, not the links of each GPU.
    square = shape("square", HGX_A100.gpus[:4], linked(4, {(0, 1): 100, (2, 3): 100, (0, 2): 10, (1, 3): 10}))
    assert nvlink_rate(square, range(4)) == 20


def test_a_degraded_gpu_behind_nvswitch_counts() -> None:
    worn = [[0.0 if i == j else 800.0 if 3 in (i, j) else 900.0 for j in range(8)] for i in range(8)]
    box = replace(HGX_H100, nvlink=tuple(map(tuple, worn)))
    assert nvlink_rate(box, range(8)) == 800
    assert nvlink_rate(box, range(3)) == 900


def test_the_least_cut_is_the_least_of_all_cuts() -> None:
    chance = np.random.default_rng(7)
    for _ in range(60):
        n = int(chance.integers(2, 7))
        upper = np.triu(chance.integers(0, 4, (n, n)) * 25.0, 1)
        matrix = upper + upper.T
        sides = [[i for i in range(n) if mask >> i & 1] for mask in range(1, 2**n - 1)]
        least = min(sum(matrix[i, j] for i in side for j in range(n) if j not in side) for side in sides)
        box = shape("mesh", HGX_A100.gpus[:1] * n, tuple(map(tuple, matrix.tolist())))
        assert nvlink_rate(box, range(n)) == min(least, 600) or matrix[~np.eye(n, dtype=bool)].min() > 300


def test_no_path_is_told_with_the_nodes() -> None:
    topology = build_topology([node("a", HGX_H100), node("b", HGX_H100)], Fabric())
    with pytest.raises(NoPathError, match="a and b"):
        Links(topology, on(topology, [(0, 0), (1, 0)])).span(np.arange(2))


def test_latency_grows_with_switches() -> None:
    same, _ = span_of(HGX_H100, [(0, 0), (1, 0)], per_leaf=2)
    other, _ = span_of(HGX_H100, [(0, 0), (1, 0)], per_leaf=1)
    assert same.inner_alpha_s < same.outer_alpha_s < other.outer_alpha_s
    assert math.isclose(same.bus_bytes_per_s, other.bus_bytes_per_s)


def test_groups_that_lie_alike_are_one_answer_and_none_is_lost() -> None:
    chance = np.random.default_rng(11)
    boxes = (HGX_H100, HGX_A100, L40S_BOX, DGX_1V, BRIDGED)
    for trial in range(40):
        owners = [(node(f"n{i}", boxes[int(chance.integers(len(boxes)))]), int(chance.integers(3))) for i in range(6)]
        topology = cluster(owners, uplink_gbps=float(chance.integers(50, 900)))
        every = [(i, gpu) for i, (owner, _) in enumerate(owners) for gpu in range(len(owner.shape.gpus))]
        order = range(len(every)) if trial % 2 else chance.permutation(len(every)).tolist()
        size = int(chance.integers(2, 9))
        groups = np.array(order[: len(every) // size * size], dtype=np.int64).reshape(-1, size)
        links = Links(topology, on(topology, every))
        assert set(links.spans(groups)) == {links.span(row)[0] for row in groups}


def test_between_islands_the_network_is_never_the_stronger_link() -> None:
    """So the weakest link of a group that touches several islands is the network's."""
    for box in (HGX_H100, HGX_A100, L40S_BOX, DGX_1V, BRIDGED, shape("fat", L40S_BOX.gpus, 0, gbps=1600)):
        span, weakest = span_of(box, [(i, gpu) for i in range(2) for gpu in range(len(box.gpus))])
        assert weakest.kind == "network"
        assert span.outer_bytes_per_s <= span.inner_bytes_per_s
