"""Where things that must be near one another may lie together: zones.

A zone is a largest set of leaf groups that are pairwise near enough and joined fast enough, with room on the links between them
for what is reserved; any set of pairwise compatible leaf groups lies in one. On trees zones are disjoint. On rings and other
fabrics, where nearness does not pass on from pair to pair, they overlap: they are the maximal cliques. A node that can reach
nobody (slow ports, or a cap of 0 switches) is a zone of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import networkx as nx
import numpy as np
import numpy.typing as npt

from fmsched.model.fabric import Topology
from fmsched.model.job import Reach
from fmsched.place.hosts import Bin
from fmsched.place.links import Room
from fmsched.place.relations import hop_cap

ZONES_MAX = 2000  # maximal cliques of a fabric that is no tree can be many; beyond this some placements are not looked at


@dataclass(frozen=True, slots=True)
class Zones:
    """of_bin[b]: the zones that bin b lies in; at least one, more than one only where zones overlap."""

    of_bin: tuple[tuple[int, ...], ...]
    count: int
    disjoint: bool
    complete: bool  # false where ZONES_MAX cut the list


def zones_of(topology: Topology, bins: Sequence[Bin], reaches: Sequence[Reach], room: Room | None = None) -> Zones:
    """The zones of the bins' leaf groups under all of `reaches`. Bins of nodes that reach nobody must hold one node each.

    room    what is left on the links, where any of them reserves something
    """
    alone = shapes_alone(bins, reaches)
    leaves = sorted({item.leaf for item in bins if id(item.shape) not in alone})
    cliques, disjoint, complete = _cliques(_compatible(topology, leaves, reaches, room))
    zones_of_leaf: dict[int, list[int]] = {leaf: [] for leaf in leaves}
    for number, clique in enumerate(cliques):
        for position in clique:
            zones_of_leaf[leaves[position]].append(number)
    count = len(cliques)
    of_bin: list[tuple[int, ...]] = []
    for item in bins:
        if id(item.shape) in alone:
            of_bin.append((count,))
            count += 1
        else:
            of_bin.append(tuple(zones_of_leaf[item.leaf]))
    return Zones(tuple(of_bin), count, disjoint, complete)


def shapes_alone(bins: Sequence[Bin], reaches: Sequence[Reach]) -> frozenset[int]:
    """By identity, the shapes of nodes that can keep up none of `reaches` with any other node."""
    shapes = {id(item.shape): item.shape for item in bins}
    return frozenset(
        number
        for number, shape in shapes.items()
        if any(hop_cap(reach) < 1 or shape.link_gbps < reach.min_link_gbps for reach in reaches)
    )


def _compatible(
    topology: Topology, leaves: Sequence[int], reaches: Sequence[Reach], room: Room | None
) -> npt.NDArray[np.bool_]:
    index = np.array(leaves, dtype=np.int64)
    grid = np.ix_(index, index)
    allowed = np.ones((len(leaves), len(leaves)), dtype=np.bool_)
    for reach in reaches:
        allowed &= topology.hops[grid] <= hop_cap(reach)
        allowed &= topology.path_gbps[grid] >= reach.min_link_gbps
        if room is not None and reach.reserve_gbps > 0:
            allowed &= room.headroom[grid] >= reach.reserve_gbps
    return allowed


def _cliques(allowed: npt.NDArray[np.bool_]) -> tuple[list[list[int]], bool, bool]:
    if not len(allowed):
        return [], True, True
    first = allowed.argmax(axis=1)  # the diagonal is true, so every row has one
    if np.array_equal(allowed, first[:, None] == first[None, :]):
        return [np.flatnonzero(first == label).tolist() for label in np.unique(first)], True, True
    graph: nx.Graph[int] = nx.Graph()
    graph.add_nodes_from(range(len(allowed)))
    graph.add_edges_from((int(a), int(b)) for a, b in np.argwhere(np.triu(allowed, 1)))
    found: list[list[int]] = []
    for clique in nx.find_cliques(graph):
        if len(found) == ZONES_MAX:
            return found, False, False
        found.append(sorted(clique))
    return sorted(found), False, True
