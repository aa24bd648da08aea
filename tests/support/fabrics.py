"""Small fabrics of many forms, and a slow, obviously right reading of them, for the tests of topology."""

from __future__ import annotations

import itertools

import networkx as nx
from hypothesis import strategies as st

from fmsched.model.fabric import UNREACHABLE_HOPS, Fabric, Link, Switch
from fmsched.model.hardware import GpuSpec, HcaSpec, Node, NodeShape

SHAPE = NodeShape(
    name="one-gpu",
    gpus=(GpuSpec("H100-SXM5-80GB", "h100", 80.0),),
    nvlink=((0.0,),),
    hcas=(HcaSpec("mlx5_0", 1, 1e9),),  # never the weakest: what is compared is the fabric
)


def node(name: str) -> Node:
    return Node(name=name, shape=SHAPE, uuids=(f"GPU-{name}",))


def brute_force(nodes: list[Node], fabric: Fabric) -> dict[tuple[str, str], tuple[int, float]]:
    """(switches crossed, weakest link of the best shortest way between the switches), by listing every shortest path."""
    switches = {switch.name for switch in fabric.switches}
    names = {node.name for node in nodes}
    between: nx.Graph[str] = nx.Graph()
    between.add_nodes_from(switches)
    attached: dict[str, set[str]] = {name: set() for name in names}
    for link in fabric.links:
        if link.down:
            continue
        if link.a in switches and link.b in switches:
            old = between.edges[link.a, link.b]["gbps"] if between.has_edge(link.a, link.b) else 0.0
            between.add_edge(link.a, link.b, gbps=old + link.gbps * link.count)
        elif link.a in names and link.b in switches:
            attached[link.a].add(link.b)
        elif link.b in names and link.a in switches:
            attached[link.b].add(link.a)
    answer: dict[tuple[str, str], tuple[int, float]] = {}
    for a, b in itertools.combinations(sorted(names), 2):
        found: list[tuple[int, float]] = []
        for start, end in itertools.product(attached[a], attached[b]):
            if nx.has_path(between, start, end):
                for path in nx.all_shortest_paths(between, start, end):
                    weakest = min((between.edges[u, v]["gbps"] for u, v in itertools.pairwise(path)), default=float("inf"))
                    found.append((len(path), weakest))
        if not found:
            answer[a, b] = (UNREACHABLE_HOPS, 0.0)
            continue
        fewest = min(length for length, _ in found)
        answer[a, b] = (fewest, max(weakest for length, weakest in found if length == fewest))
    return answer


@st.composite
def _links(draw: st.DrawFn, pairs: list[tuple[str, str]]) -> list[Link]:
    made = []
    for a, b in pairs:
        ends = (a, b) if draw(st.booleans()) else (b, a)
        rate = draw(st.sampled_from([100.0, 200.0, 400.0]))
        made.append(Link(*ends, gbps=rate, count=draw(st.integers(1, 3)), down=draw(st.integers(0, 9)) == 0))
        if draw(st.integers(0, 5)) == 0:  # a second row of parallel cables
            made.append(Link(b, a, gbps=100.0, count=1))
    return made


@st.composite
def fat_trees(draw: st.DrawFn) -> tuple[list[Node], Fabric]:
    """Two or three levels, one or several roots, cables of several rates, some of them down."""
    pods, leaves, spines, cores = (draw(st.integers(1, high)) for high in (3, 3, 2, 2))
    switches, pairs, nodes = [Switch(f"c{c}", 2) for c in range(cores)], [], []
    for pod in range(pods):
        spine_names = [f"p{pod}s{s}" for s in range(spines)]
        switches += [Switch(name, 1) for name in spine_names]
        pairs += [(spine, f"c{c}") for spine in spine_names for c in range(cores)]
        for leaf in range(leaves):
            name = f"p{pod}l{leaf}"
            switches.append(Switch(name))
            pairs += [(name, spine) for spine in spine_names]
            for n in range(draw(st.integers(0, 2))):
                nodes.append(node(f"n{pod}-{leaf}-{n}"))
                pairs.append((nodes[-1].name, name))
    return nodes, Fabric(tuple(switches), tuple(draw(_links(pairs))))


@st.composite
def rail_fabrics(draw: st.DrawFn) -> tuple[list[Node], Fabric]:
    """Units of nodes on eight leaf switches each; the leaves of one rail share spines, which do not meet other rails."""
    units, rails = draw(st.integers(1, 3)), 8
    switches = [Switch(f"s{rail}", 1) for rail in range(rails)]
    pairs, nodes = [], []
    for unit in range(units):
        switches += [Switch(f"u{unit}r{rail}") for rail in range(rails)]
        pairs += [(f"u{unit}r{rail}", f"s{rail}") for rail in range(rails)]
        for n in range(draw(st.integers(1, 2))):
            nodes.append(node(f"n{unit}-{n}"))
            pairs += [(nodes[-1].name, f"u{unit}r{rail}") for rail in range(rails)]
    return nodes, Fabric(tuple(switches), tuple(draw(_links(pairs))))


@st.composite
def rings(draw: st.DrawFn) -> tuple[list[Node], Fabric]:
    count = draw(st.integers(2, 9))
    pairs = [(f"s{i}", f"s{(i + 1) % count}") for i in range(count)]
    nodes = [node(f"n{i}") for i in range(count)]
    pairs += [(f"n{i}", f"s{i}") for i in range(count)]
    return nodes, Fabric(tuple(Switch(f"s{i}") for i in range(count)), tuple(draw(_links(pairs))))


@st.composite
def tangles(draw: st.DrawFn) -> tuple[list[Node], Fabric]:
    """Any switches, any cables, nodes on any number of switches or none: several fabrics in one map come out of it."""
    names = [f"s{i}" for i in range(draw(st.integers(1, 8)))]
    nodes = [node(f"n{i}") for i in range(draw(st.integers(0, 6)))]
    between = st.tuples(st.sampled_from(names), st.sampled_from(names)).filter(lambda pair: pair[0] != pair[1])
    pairs = draw(st.lists(between, max_size=14)) if len(names) > 1 else []
    for one in nodes:
        pairs += [(one.name, name) for name in draw(st.lists(st.sampled_from(names), max_size=3, unique=True))]
    return nodes, Fabric(tuple(Switch(name) for name in names), tuple(draw(_links(pairs))))


def fabrics() -> st.SearchStrategy[tuple[list[Node], Fabric]]:
    return st.one_of(fat_trees(), rail_fabrics(), rings(), tangles())
