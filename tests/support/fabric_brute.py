"""A slow, obviously right reading of whole fabrics: networkx walks the switches from each set that nodes hang on; nothing of
fmsched.topology.graph is used."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

import networkx as nx

from fmsched.model.fabric import Fabric, Topology

INFINITE = float("inf")


@dataclass(frozen=True, slots=True)
class Reach:
    """Between two nodes: switches crossed (None: no way), and the weakest link of the best of the shortest ways between the switches."""

    hops: int | None
    gbps: float


def switches_of(names: set[str], fabric: Fabric) -> tuple[nx.Graph[str], dict[str, frozenset[str]]]:
    """The live switch graph (edge attribute gbps, parallel cables added), and the switches that each node hangs on."""
    graph: nx.Graph[str] = nx.Graph()
    graph.add_nodes_from(switch.name for switch in fabric.switches)
    attached: dict[str, set[str]] = {name: set() for name in names}
    for link in (link for link in fabric.links if not link.down):
        if link.a in graph and link.b in graph:
            before = graph.get_edge_data(link.a, link.b, {"gbps": 0.0})["gbps"]
            graph.add_edge(link.a, link.b, gbps=before + link.gbps * link.count)
        for one, other in ((link.a, link.b), (link.b, link.a)):
            if one in attached and other in graph:
                attached[one].add(other)
    return graph, {name: frozenset(found) for name, found in attached.items()}


def reaches(graph: nx.Graph[str], sets: list[frozenset[str]]) -> dict[tuple[frozenset[str], frozenset[str]], Reach]:
    """Between every two sets of switches: every start, every end, layer by layer."""
    from_switch = {start: _widest(graph, start) for start in set().union(*sets)}
    found = {}
    for a, b in itertools.product(sets, sets):
        ways = [from_switch[start][end] for start in a for end in b if end in from_switch[start]]
        hops = min((links for links, _ in ways), default=None)
        width = max((gbps for links, gbps in ways if links == hops), default=0.0)
        found[a, b] = Reach(None if hops is None else hops + 1, width)
    return found


def _widest(graph: nx.Graph[str], start: str) -> dict[str, tuple[int, float]]:
    """Switch → (links crossed, weakest link of the best shortest way)."""
    best = {start: (0, INFINITE)}
    for links, layer in enumerate(itertools.islice(nx.bfs_layers(graph, start), 1, None), 1):
        for switch in layer:
            nearer = [near for near in graph[switch] if near in best and best[near][0] == links - 1]
            best[switch] = (links, max(min(best[near][1], graph.edges[near, switch]["gbps"]) for near in nearer))
    return best


def domains(
    hops: Mapping[tuple[str, str], int | None], names: list[str], fabric_of: Mapping[str, object], level: int
) -> list[set[str]]:
    """The sets that "at most 2·level + 1 switches apart, on the same fabrics" joins."""
    near: nx.Graph[str] = nx.Graph()
    near.add_nodes_from(names)
    for a, b in itertools.combinations(names, 2):
        crossed = hops[a, b]
        if crossed is not None and crossed <= 2 * level + 1 and fabric_of[a] == fabric_of[b]:
            near.add_edge(a, b)
    return [set(part) for part in nx.connected_components(near)]


def differences(topology: Topology) -> tuple[int, int, list[str]]:
    """(pairs of nodes compared, domains compared, what differs) between `topology` and this reading of its own fabric."""
    names = [node.name for node in topology.nodes]
    graph, attached = switches_of(set(names), topology.fabric)
    sets = sorted({attached[name] for name in names if attached[name]}, key=sorted)
    table = reaches(graph, sets)
    wrong: list[str] = []
    hops: dict[tuple[str, str], int | None] = {}
    pairs = 0
    for a, b in itertools.combinations(names, 2):
        pairs += 1
        reach = table.get((attached[a], attached[b]), Reach(None, 0.0))
        hops[a, b] = reach.hops
        found = topology.hop_count(a, b), topology.path_gbps[_group(topology, a), _group(topology, b)]
        expected = topology_hops(reach.hops), INFINITE if attached[a] == attached[b] and attached[a] else reach.gbps
        if found != expected:
            wrong.append(f"{a} {b}: found {found}, brute force {expected}")
    parts = {switch: number for number, part in enumerate(nx.connected_components(graph)) for switch in part}
    fabric_of = {name: frozenset(parts[switch] for switch in attached[name]) or name for name in names}
    count = 0
    for level in range(1, len(topology.domains)):
        expected_domains = sorted(map(sorted, domains(hops, names, fabric_of, level)))
        by_number: dict[int, list[str]] = {}
        for name in names:
            by_number.setdefault(int(topology.domains[level][_group(topology, name)]), []).append(name)
        count += len(by_number)
        if sorted(map(sorted, by_number.values())) != expected_domains:
            wrong.append(f"domains of level {level} differ")
    return pairs, count, wrong


def topology_hops(hops: int | None) -> int:
    from fmsched.model.fabric import UNREACHABLE_HOPS

    return UNREACHABLE_HOPS if hops is None else hops


def _group(topology: Topology, name: str) -> int:
    return int(topology.leaf_of[topology.index[name]])
