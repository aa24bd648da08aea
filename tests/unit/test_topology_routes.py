"""Shares of traffic on links: known by hand for small fabrics, and equal to a walk over every shortest way for random ones."""

from __future__ import annotations

from itertools import combinations
from random import Random

import numpy as np
import pytest

from fmsched.model.fabric import Fabric, Link, Switch, Topology
from fmsched.place.check_links import _shares, _switches
from fmsched.topology.graph import build_topology, switch_graph
from fmsched.topology.routes import measured_of, routes_of
from tests.support import clusters


def fabric(nodes: dict[str, list[str]], between: list[tuple[str, str]], gbps: float = 400) -> Topology:
    """nodes: switches of each node; between: links of switches."""
    names = dict.fromkeys(
        [name for switches in nodes.values() for name in switches] + [n for pair in between for n in pair]
    )
    links = [Link(node, switch, 400) for node, switches in nodes.items() for switch in switches]
    links += [Link(a, b, gbps) for a, b in between]
    made = [clusters.node(node, clusters.SHAPES["h100-x2"]) for node in nodes]
    return build_topology(made, Fabric(tuple(Switch(name) for name in names), tuple(links)))


def shares(topology: Topology, a: str, b: str) -> dict[str, float]:
    routes = routes_of(topology)
    found = routes.shares([int(topology.leaf_of[topology.index[a]])], [int(topology.leaf_of[topology.index[b]])])
    return {"-".join(link): float(share) for link, share in zip(routes.links, found, strict=True) if share}


def test_in_a_tree_every_link_crossed_carries_all() -> None:
    tree = fabric({"n0": ["a"], "n1": ["b"], "n2": ["a"]}, [("a", "s"), ("b", "s")])
    assert shares(tree, "n0", "n1") == {"a-s": 1.0, "b-s": 1.0}
    assert shares(tree, "n0", "n2") == {}


def test_two_spines_carry_half_each() -> None:
    mesh = fabric({"n0": ["a"], "n1": ["b"]}, [("a", "s0"), ("a", "s1"), ("b", "s0"), ("b", "s1")])
    assert shares(mesh, "n0", "n1") == {"a-s0": 0.5, "a-s1": 0.5, "b-s0": 0.5, "b-s1": 0.5}


def test_rails_start_evenly_over_their_switches() -> None:
    rails = fabric(
        {"n0": ["a0", "a1"], "n1": ["b0", "b1"]},
        [("a0", "s0"), ("b0", "s0"), ("a1", "s1"), ("b1", "s1")],
    )
    assert shares(rails, "n0", "n1") == {"a0-s0": 0.5, "a1-s1": 0.5, "b0-s0": 0.5, "b1-s1": 0.5}


def test_the_greater_direction_counts() -> None:
    """From a, one of three ways leads over x; back from b, half of the traffic does."""
    uneven = fabric(
        {"n0": ["a"], "n1": ["b"]},
        [("a", "x"), ("a", "y"), ("a", "z"), ("x", "p"), ("y", "q"), ("z", "q"), ("p", "b"), ("q", "b")],
    )
    found = shares(uneven, "n0", "n1")
    assert found["a-x"] == pytest.approx(0.5)
    assert found["b-q"] == pytest.approx(2 / 3)


def test_headroom_is_what_the_fullest_link_leaves() -> None:
    mesh = fabric({"n0": ["a"], "n1": ["b"]}, [("a", "s0"), ("a", "s1"), ("b", "s0"), ("b", "s1")])
    routes = routes_of(mesh)
    left = np.array([100.0 if link == ("a", "s0") else 400.0 for link in routes.links])
    assert routes.headroom(left)[0, 1] == 200  # half of it crosses the link that has 100 left
    assert routes.headroom(left)[0, 0] == np.inf


def test_measured_traffic_adds_up_over_live_links_between_switches() -> None:
    links = (
        Link("s", "a", 400, measured_gbps=30),
        Link("a", "s", 400, measured_gbps=12.5),
        Link("a", "s", 400, down=True, measured_gbps=5),
        Link("n0", "a", 400, measured_gbps=7),
    )
    assert measured_of(Fabric((Switch("a"), Switch("s", 1)), links)) == {("a", "s"): 42.5}


@pytest.mark.parametrize("seed", range(60))
def test_equals_a_walk_over_every_shortest_way(seed: int) -> None:
    rng = Random(seed)
    spines, leaves = rng.randint(1, 4), rng.randint(2, 6)
    between = [(f"l{i}", f"s{j}") for i in range(leaves) for j in range(spines) if rng.random() < 0.8]
    between += [(f"s{j}", f"c{k}") for j in range(spines) for k in range(rng.randint(0, 2))]
    if rng.random() < 0.3:
        between += [(f"l{i}", f"l{(i + 1) % leaves}") for i in range(leaves) if leaves > 2]
    ports = rng.choice([1, 1, 2])
    nodes = {f"n{i}": sorted({f"l{(i * ports + p) % leaves}" for p in range(ports)}) for i in range(leaves)}
    topology = fabric(nodes, between)
    routes, graph, switches = routes_of(topology), switch_graph(topology.fabric), _switches(topology)
    left = np.array([rng.choice([50.0, 100.0, 400.0]) for _ in routes.links])
    headroom = routes.headroom(left)
    everywhere = np.zeros(len(routes.links))
    for a, b in combinations(range(len(nodes)), 2):
        walked: dict[tuple[str, str], float] = {}
        of_a, of_b = int(topology.leaf_of[a]), int(topology.leaf_of[b])
        if of_a != of_b:
            for start, end in ((a, b), (b, a)):
                for link, share in _shares(graph, switches[f"n{start}"], switches[f"n{end}"]).items():
                    walked[link] = max(walked.get(link, 0.0), share)
        expected = np.array([walked.get(link, 0.0) for link in routes.links])
        assert routes.shares([of_a], [of_b]) == pytest.approx(expected)
        least = min((left[i] / share for i, share in enumerate(expected) if share), default=np.inf)
        assert headroom[of_a, of_b] == pytest.approx(least)
        everywhere = np.maximum(everywhere, expected)
    groups = range(len(topology.leaves))
    assert routes.shares(groups, groups) == pytest.approx(everywhere)
