"""Hop counts, path bandwidths and domains agree with a brute-force reading of the same fabric."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings

from fmsched.model.fabric import UNREACHABLE_HOPS, Fabric
from fmsched.model.hardware import Node
from fmsched.topology.graph import build_topology
from tests.support.fabrics import brute_force, fabrics, fat_trees, rail_fabrics


@settings(max_examples=300, deadline=None)
@given(fabrics())
def test_distances_are_those_of_brute_force(cluster: tuple[list[Node], Fabric]) -> None:
    nodes, fabric = cluster
    topology = build_topology(nodes, fabric)
    for (a, b), (hops, gbps) in brute_force(nodes, fabric).items():
        assert topology.hop_count(a, b) == topology.hop_count(b, a) == hops, (a, b)
        same_group = topology.leaf_of[topology.index[a]] == topology.leaf_of[topology.index[b]]
        expected = float("inf") if same_group else gbps
        found = topology.path_gbps[topology.leaf_of[topology.index[a]], topology.leaf_of[topology.index[b]]]
        assert found == expected, (a, b)


@settings(max_examples=200, deadline=None)
@given(fabrics())
def test_domains_nest_and_end_in_what_is_joined(cluster: tuple[list[Node], Fabric]) -> None:
    topology = build_topology(*cluster)
    count = len(topology.leaves)
    assert list(topology.domains[0]) == list(range(count))
    for finer, coarser in zip(topology.domains, topology.domains[1:], strict=False):
        for domain in np.unique(finer):
            assert len(np.unique(coarser[finer == domain])) == 1
    assert (topology.hops[topology.domains[-1][:, None] == topology.domains[-1][None, :]] < UNREACHABLE_HOPS).all()


@settings(max_examples=150, deadline=None)
@given(fat_trees())
def test_whatever_is_near_enough_is_in_one_domain(cluster: tuple[list[Node], Fabric]) -> None:
    """Where nodes hang on one switch each. A node on two unconnected fabrics is kept apart, though it reaches both."""
    topology = build_topology(*cluster)
    for level, domain_of in enumerate(topology.domains[1:], start=1):
        near = topology.hops <= 2 * level + 1
        assert (domain_of[:, None] == domain_of[None, :])[near].all()
    last = topology.domains[-1]
    assert np.array_equal(last[:, None] == last[None, :], topology.hops < UNREACHABLE_HOPS)


@settings(max_examples=150, deadline=None)
@given(fat_trees() | rail_fabrics())
def test_in_trees_a_domain_keeps_its_hop_count(cluster: tuple[list[Node], Fabric]) -> None:
    nodes, fabric = cluster
    whole = Fabric(fabric.switches, tuple(link for link in fabric.links if not link.down))
    if len(whole.links) != len(fabric.links):
        return  # a fat tree with cables cut is a tree no more
    topology = build_topology(nodes, whole)
    for level, domain_of in enumerate(topology.domains):
        together = domain_of[:, None] == domain_of[None, :]
        assert (topology.hops[together] <= 2 * level + 1).all()
