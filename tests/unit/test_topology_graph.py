"""build_topology on fabrics small enough to draw, and its limits."""

from __future__ import annotations

import time

import numpy as np
import pytest

from fmsched.model.fabric import UNREACHABLE_HOPS, Fabric, Link, Switch
from fmsched.topology.graph import build_topology, switch_graph
from tests.support.fabrics import node

#        spine
#       /     \       two cables of 200 to leaf0, one of 400 to leaf1
#   leaf0     leaf1
#   n0 n1     n2       n3 has no cable
TWO_LEAVES = Fabric(
    switches=(Switch("leaf0"), Switch("leaf1"), Switch("spine", 1)),
    links=(
        Link("n0", "leaf0", 400.0, count=8),
        Link("leaf0", "n1", 400.0),
        Link("n2", "leaf1", 400.0),
        Link("leaf0", "spine", 200.0, count=2),
        Link("spine", "leaf1", 400.0),
    ),
)


def test_two_leaves() -> None:
    topology = build_topology([node(f"n{i}") for i in range(4)], TWO_LEAVES)
    assert topology.leaves == ("leaf0", "leaf1", "n3")
    assert list(topology.leaf_of) == [0, 0, 1, 2]
    assert [topology.hop_count("n0", f"n{i}") for i in range(4)] == [0, 1, 3, UNREACHABLE_HOPS]
    assert topology.path_gbps[0, 1] == 400.0
    assert topology.path_gbps[0, 2] == 0.0
    assert [list(level) for level in topology.domains] == [[0, 1, 2], [0, 0, 1]]


def test_links_that_are_down_do_not_exist() -> None:
    cut = Fabric(TWO_LEAVES.switches, (*TWO_LEAVES.links[:4], Link("spine", "leaf1", 400.0, down=True)))
    topology = build_topology([node("n0"), node("n2")], cut)
    assert topology.hop_count("n0", "n2") == UNREACHABLE_HOPS
    assert len(topology.domains) == 1


def test_a_rail_optimised_unit_is_one_leaf_group() -> None:
    rails = tuple(Switch(f"rail{i}") for i in range(1, 9))
    links = tuple(Link(name, rail.name, 400.0, hca=f"mlx5_{i}") for name in ("n0", "n1") for i, rail in enumerate(rails))
    topology = build_topology([node("n0"), node("n1")], Fabric(rails, links))
    assert topology.leaves == ("rail[1-8]",)
    assert topology.hop_count("n0", "n1") == 1


def test_a_cable_between_two_nodes_crosses_no_switch_and_hosts_without_agent_are_left_out() -> None:
    links = (Link("n0", "n1", 400.0), Link("stranger", "leaf0", 400.0), Link("n0", "leaf0", 100.0))
    fabric = Fabric((Switch("leaf0"),), links)
    topology = build_topology([node("n0"), node("n1")], fabric)
    assert topology.leaves == ("leaf0", "n1")
    assert topology.hop_count("n0", "n1") == UNREACHABLE_HOPS


def test_a_node_on_two_unconnected_fabrics_is_kept_apart() -> None:
    links = (Link("n0", "a", 400.0), Link("n1", "a", 400.0), Link("n1", "b", 400.0), Link("n2", "b", 400.0))
    topology = build_topology([node("n0"), node("n1"), node("n2")], Fabric((Switch("a"), Switch("b")), links))
    assert topology.leaves == ("a", "a,b", "b")
    assert topology.hop_count("n0", "n1") == topology.hop_count("n1", "n2") == 1
    assert topology.hop_count("n0", "n2") == UNREACHABLE_HOPS
    assert [list(level) for level in topology.domains] == [[0, 1, 2]]


def test_nothing_at_all() -> None:
    topology = build_topology([], Fabric())
    assert topology.hops.shape == (0, 0)
    assert topology.leaves == ()


def test_shared_names_are_refused() -> None:
    with pytest.raises(ValueError, match="a node name is used twice"):
        build_topology([node("n0"), node("n0")], Fabric())
    with pytest.raises(ValueError, match="a switch name is used twice"):
        build_topology([], Fabric((Switch("a"), Switch("a"))))
    with pytest.raises(ValueError, match="both a node and a switch are named a"):
        build_topology([node("a")], Fabric((Switch("a"),)))


def test_parallel_cables_add_up() -> None:
    fabric = Fabric((Switch("a"), Switch("b")), (Link("a", "b", 100.0, count=2), Link("b", "a", 50.0)))
    assert switch_graph(fabric).edges["a", "b"]["gbps"] == 250.0


def three_levels(pods: int, leaves: int, spines: int, cores: int, nodes_per_leaf: int) -> tuple[int, Fabric]:
    switches = [Switch(f"c{c}", 2) for c in range(cores)]
    links = []
    for pod in range(pods):
        switches += [Switch(f"p{pod}s{s}", 1) for s in range(spines)]
        links += [Link(f"p{pod}s{s}", f"c{c}", 400.0) for s in range(spines) for c in range(cores)]
        for leaf in range(leaves):
            name = f"p{pod}l{leaf}"
            switches.append(Switch(name))
            links += [Link(name, f"p{pod}s{s}", 400.0) for s in range(spines)]
            first = (pod * leaves + leaf) * nodes_per_leaf
            links += [Link(f"n{first + i}", name, 400.0, count=8) for i in range(nodes_per_leaf)]
    return pods * leaves * nodes_per_leaf, Fabric(tuple(switches), tuple(links))


@pytest.mark.parametrize(("size", "limit_s"), [((2, 20, 8, 8, 32), 1.0), ((20, 20, 16, 16, 32), 6.0)])
def test_large_fabrics_are_built_in_seconds(size: tuple[int, int, int, int, int], limit_s: float) -> None:
    count, fabric = three_levels(*size)
    nodes = [node(f"n{i}") for i in range(count)]
    start = time.process_time()
    topology = build_topology(nodes, fabric)
    taken_s = time.process_time() - start
    assert taken_s < limit_s
    assert len(topology.leaves) == size[0] * size[1]
    assert topology.hop_count("n0", f"n{count - 1}") == 5
    assert len(topology.domains) == 3
    assert np.bincount(topology.domains[1]).tolist() == [size[1]] * size[0]
