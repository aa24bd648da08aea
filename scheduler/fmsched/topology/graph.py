"""From nodes and a fabric to the Topology that placement reads: leaf groups, hop counts, path bandwidths, domains.

Computed once per topology revision. Exact for any switch graph (breadth first over switches); the domains are exact for
trees and rail-optimised fabrics, and the hop matrix stays the truth where a fabric is neither.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import networkx as nx
import numpy as np
import numpy.typing as npt

from fmproto.hostlist import fold
from fmsched.model.fabric import UNREACHABLE_HOPS, Fabric, Topology
from fmsched.model.hardware import Node

Ints = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float64]


def build_topology(nodes: Sequence[Node], fabric: Fabric) -> Topology:
    """The topology of `nodes` joined by `fabric`.

    Links that are down do not exist. Links that name neither a switch of the fabric nor one of `nodes` are left out: a
    fabric map lists hosts that have no agent. A cable straight between two nodes crosses no switch and joins no leaf group,
    so such a pair counts as unreachable unless switches join it too. A node without a live link is a leaf group of its own.

    Raises ValueError where two nodes, two switches, or a node and a switch have one name.
    """
    index = {node.name: i for i, node in enumerate(nodes)}
    switch_names = {switch.name for switch in fabric.switches}
    _refuse_shared_names(nodes, fabric, index, switch_names)
    groups = _leaf_groups(nodes, fabric, index, switch_names)
    graph = switch_graph(fabric)
    hops, path_gbps = _distances(groups.attached, graph)
    return Topology(
        nodes=tuple(nodes),
        leaves=groups.names,
        leaf_of=groups.leaf_of,
        hops=hops,
        path_gbps=path_gbps,
        domains=_domains(hops, _fabrics(groups.attached, graph)),
        index=index,
        fabric=fabric,
    )


def switch_graph(fabric: Fabric) -> nx.Graph[str]:
    """Switches and the live links between them; attribute `gbps` of an edge is the sum of its parallel cables."""
    graph: nx.Graph[str] = nx.Graph()
    graph.add_nodes_from(switch.name for switch in fabric.switches)
    for link in fabric.links:
        if link.down or link.a == link.b or link.a not in graph or link.b not in graph:
            continue
        before = graph.edges[link.a, link.b]["gbps"] if graph.has_edge(link.a, link.b) else 0.0
        graph.add_edge(link.a, link.b, gbps=before + link.gbps * link.count)
    return graph


def _refuse_shared_names(nodes: Sequence[Node], fabric: Fabric, index: dict[str, int], switch_names: set[str]) -> None:
    if len(index) != len(nodes):
        raise ValueError(f"{len(nodes)} nodes have {len(index)} names: a node name is used twice")
    if len(switch_names) != len(fabric.switches):
        raise ValueError(f"{len(fabric.switches)} switches have {len(switch_names)} names: a switch name is used twice")
    if shared := index.keys() & switch_names:
        raise ValueError(f"both a node and a switch are named {min(shared)}")


@dataclass(frozen=True, slots=True)
class _Groups:
    names: tuple[str, ...]
    attached: tuple[tuple[str, ...], ...]  # switches of each group; empty: no live link
    leaf_of: Ints


def _leaf_groups(nodes: Sequence[Node], fabric: Fabric, index: dict[str, int], switch_names: set[str]) -> _Groups:
    switches_of: list[set[str]] = [set() for _ in nodes]
    for link in fabric.links:
        if link.down:
            continue
        if link.b in switch_names and (i := index.get(link.a)) is not None:
            switches_of[i].add(link.b)
        elif link.a in switch_names and (i := index.get(link.b)) is not None:
            switches_of[i].add(link.a)
    numbers: dict[tuple[str, ...], int] = {}
    leaf_of = np.empty(len(nodes), dtype=np.int32)
    for i, (node, switches) in enumerate(zip(nodes, switches_of, strict=True)):
        # The node's own name keys a group that no other node can share: names of nodes and switches are disjoint.
        key = tuple(sorted(switches)) or (node.name,)
        leaf_of[i] = numbers.setdefault(key, len(numbers))
    attached = tuple(key if key[0] in switch_names else () for key in numbers)
    return _Groups(tuple(fold(key) for key in numbers), attached, leaf_of)


@dataclass(frozen=True, slots=True)
class _Neighbours:
    """The switch graph in compressed rows: the edges of switch s are first[s] up to first[s + 1]."""

    first: npt.NDArray[np.int64]
    to: npt.NDArray[np.int64]
    gbps: Floats

    def edges_from(self, frontier: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """(edge numbers, for each the position of its origin in `frontier`)."""
        counts = self.first[frontier + 1] - self.first[frontier]
        origin = np.repeat(np.arange(len(frontier)), counts)
        before = np.cumsum(counts) - counts
        return np.arange(len(origin)) - before[origin] + self.first[frontier][origin], origin


def _neighbours(graph: nx.Graph[str], number: dict[str, int]) -> _Neighbours:
    ends = [(number[a], number[b], float(graph.edges[a, b]["gbps"])) for a, b in graph.edges]
    a = np.array([end[0] for end in ends], dtype=np.int64)
    b = np.array([end[1] for end in ends], dtype=np.int64)
    gbps: Floats = np.array([end[2] for end in ends], dtype=np.float64)
    origin = np.concatenate((a, b))
    order = np.argsort(origin, kind="stable")
    counts = np.bincount(origin, minlength=len(number))
    first = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(counts)))
    return _Neighbours(first, np.concatenate((b, a))[order], np.concatenate((gbps, gbps))[order])


def _distances(attached: tuple[tuple[str, ...], ...], graph: nx.Graph[str]) -> tuple[Ints, Floats]:
    number = {name: i for i, name in enumerate(graph)}
    neighbours = _neighbours(graph, number)
    count = len(attached)
    hops = np.full((count, count), UNREACHABLE_HOPS, dtype=np.int32)
    path_gbps = np.zeros((count, count), dtype=np.float64)
    members = [np.array([number[name] for name in switches], dtype=np.int64) for switches in attached]
    joined = np.array([g for g in range(count) if attached[g]], dtype=np.int64)
    if len(joined):
        flat = np.concatenate([members[g] for g in joined])
        starts = np.cumsum([0, *(len(members[g]) for g in joined[:-1])])
        sizes = np.array([len(members[g]) for g in joined])
        for group in joined:
            depth, width = _widest_shortest(neighbours, members[group], len(number))
            nearest = np.minimum.reduceat(depth[flat], starts)
            best = np.where(depth[flat] == np.repeat(nearest, sizes), width[flat], 0.0)
            reached = nearest < UNREACHABLE_HOPS
            hops[group, joined] = np.where(reached, nearest + 1, UNREACHABLE_HOPS)
            path_gbps[group, joined] = np.where(reached, np.maximum.reduceat(best, starts), 0.0)
    np.fill_diagonal(hops, 1)
    np.fill_diagonal(path_gbps, np.inf)
    return hops, path_gbps


def _widest_shortest(neighbours: _Neighbours, sources: npt.NDArray[np.int64], count: int) -> tuple[Ints, Floats]:
    """For each switch: links to the nearest source, and the widest of the shortest ways there (its weakest link, Gb/s)."""
    depth = np.full(count, UNREACHABLE_HOPS, dtype=np.int32)
    width = np.zeros(count, dtype=np.float64)
    depth[sources] = 0
    width[sources] = np.inf
    frontier = sources
    for level in range(1, count + 1):  # a shortest way visits no switch twice
        edges, origin = neighbours.edges_from(frontier)
        to = neighbours.to[edges]
        fresh = depth[to] >= level
        if not fresh.any():
            break
        to = to[fresh]
        np.maximum.at(width, to, np.minimum(width[frontier[origin[fresh]]], neighbours.gbps[edges[fresh]]))
        depth[to] = level
        frontier = np.unique(to)
    return depth, width


def _fabrics(attached: tuple[tuple[str, ...], ...], graph: nx.Graph[str]) -> Ints:
    """Numbers of the sets of leaf groups on the same connected fabrics, counted in order of their first member.

    A group on two unconnected fabrics is kept apart from the groups of either: its nodes forward nothing between them.
    """
    component = {name: i for i, members in enumerate(nx.connected_components(graph)) for name in members}
    numbers: dict[frozenset[int], int] = {}
    # A group without a live link gets a key that no switch has.
    keys = [frozenset(component[name] for name in group) or frozenset({-1 - i}) for i, group in enumerate(attached)]
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.int32)


def _domains(hops: Ints, fabric_of: Ints) -> tuple[Ints, ...]:
    """Level 0: each leaf group alone. Level k: closed over pairs at most 2k + 1 switches apart. Last: one fabric."""
    levels: list[Ints] = [np.arange(len(hops), dtype=np.int32)]
    if np.array_equal(levels[-1], fabric_of):
        return tuple(levels)
    same_fabric = fabric_of[:, None] == fabric_of[None, :]
    while not np.array_equal(levels[-1], fabric_of):  # ends: within the greatest finite hop count a fabric is one
        levels.append(_closure(same_fabric & (hops <= 2 * len(levels) + 1)))
    return tuple(levels)


def _closure(near: npt.NDArray[np.bool_]) -> Ints:
    """Numbers of the sets that a symmetric relation joins, counted in order of their first member."""
    label = np.full(len(near), -1, dtype=np.int32)
    number = 0
    for start in range(len(near)):
        if label[start] >= 0:
            continue
        frontier = np.array([start], dtype=np.int64)
        while len(frontier):
            label[frontier] = number
            frontier = np.flatnonzero(near[frontier].any(axis=0) & (label < 0))
        number += 1
    return label
