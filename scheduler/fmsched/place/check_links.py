"""check's rule for reserved bandwidth. Naive: every pair of nodes, every shortest way between them, and a sum for each link.

It shares nothing with links.py but the slack; topology/routes.py is not used.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import product

import networkx as nx

from fmsched.model.fabric import Topology
from fmsched.model.job import Request
from fmsched.model.snapshot import Snapshot
from fmsched.place import relations
from fmsched.place.links import SLACK_GBPS
from fmsched.topology.graph import switch_graph

Link = tuple[str, str]
NodesOf = Mapping[tuple[int, int], set[str]]  # of each instance, by (group number, replica)
Flows = list[tuple[float, set[str], set[str]]]  # Gb/s, and the nodes that talk with one another


def overbooked(snapshot: Snapshot, request: Request, nodes: NodesOf) -> Iterator[tuple[Link, float, float]]:
    """(link, Gb/s that the job needs there, Gb/s that is left there) of each link without room for the job."""
    flows = _flows(request, nodes)
    if not flows:
        return
    graph = switch_graph(snapshot.topology.fabric)
    switches = _switches(snapshot.topology)
    needed: dict[Link, float] = {}
    known: dict[tuple[frozenset[str], frozenset[str]], dict[Link, float]] = {}
    for gbps, ours, theirs in flows:
        most: dict[Link, float] = {}
        for a, b in {(switches[a], switches[b]) for a, b in product(ours, theirs)}:
            for start, end in ((a, b), (b, a)) if a != b else ():
                if (start, end) not in known:
                    known[start, end] = _shares(graph, start, end)
                for link, share in known[start, end].items():
                    most[link] = max(most.get(link, 0.0), share)
        for link, share in most.items():
            needed[link] = needed.get(link, 0.0) + gbps * share
    for link, gbps in sorted(needed.items()):
        left = float(graph.edges[link]["gbps"]) - snapshot.links_measured.get(link, 0.0)
        left -= sum(of_job.get(link, 0.0) for of_job in snapshot.links_held.values())
        if gbps > left + SLACK_GBPS:
            yield link, gbps, left


def _flows(request: Request, nodes: NodesOf) -> Flows:
    found: Flows = []
    for g, group in enumerate(request.groups):
        mine = [of for (number, _), of in nodes.items() if number == g]
        for reach in relations.group_reaches(group):
            together = set[str]().union(*mine)
            found.append((reach.reserve_gbps, together, together))
        for reach in relations.instance_reaches(group):
            found += [(reach.reserve_gbps, of, of) for of in mine]
    for first, second, reaches in relations.stage_pairs(request):
        gbps = max(reach.reserve_gbps for reach in reaches)
        for (g, replica), of in nodes.items():
            if g == first and (second, replica) in nodes:
                found.append((gbps, of, nodes[second, replica]))
    return [flow for flow in found if flow[0] > 0]


def _switches(topology: Topology) -> dict[str, frozenset[str]]:
    """By node: the switches that its live cables end at."""
    names = {switch.name for switch in topology.fabric.switches}
    found: dict[str, set[str]] = {node.name: set() for node in topology.nodes}
    for link in topology.fabric.links:
        for node, switch in ((link.a, link.b), (link.b, link.a)):
            if not link.down and node in found and switch in names:
                found[node].add(switch)
    return {node: frozenset(switches) for node, switches in found.items()}


def _shares(graph: nx.Graph[str], start: Iterable[str], end: Iterable[str]) -> dict[Link, float]:
    """What part of the traffic from some switches to some others each link carries: all shortest ways, split evenly at every switch."""
    to_go: dict[str, int] = {}
    for switch in end:
        for other, count in nx.single_source_shortest_path_length(graph, switch).items():
            to_go[other] = min(count, to_go.get(other, count))
    nearest = min((to_go[switch] for switch in start if switch in to_go), default=0)
    at = {switch: 1.0 for switch in start if to_go.get(switch) == nearest}
    at = {switch: 1.0 / len(at) for switch in at}
    found: dict[Link, float] = {}
    for _ in range(nearest):
        after: dict[str, float] = {}
        for switch, share in at.items():
            following = [near for near in graph[switch] if to_go[near] == to_go[switch] - 1]
            for near in following:
                link = (switch, near) if switch < near else (near, switch)
                found[link] = found.get(link, 0.0) + share / len(following)
                after[near] = after.get(near, 0.0) + share / len(following)
        at = after
    return found
