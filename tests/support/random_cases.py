"""Random small clusters and requests from a seed, over every kind of topology, fault and group that placement knows."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import networkx as nx

from fmsched.model.fabric import Fabric, Link, Switch, Topology
from fmsched.model.hardware import GpuId, Node, NodeShape
from fmsched.model.job import Reach, Request, ResourceGroup
from fmsched.model.snapshot import HostShare, PowerBudget, Snapshot
from fmsched.place.power import watts_of
from fmsched.topology.graph import build_topology, switch_graph
from fmsched.topology.routes import edge
from tests.support import clusters
from tests.support.clusters import A100, A100_40, GB200, H100, L40S, V100, group, linked, shape

SHAPES = (
    shape("h100x4", [H100] * 4, 900),
    shape("h100x2", [H100] * 2, 900),
    shape("h100x2-slow", [H100] * 2, 900, gbps=200),
    shape("a100x4", [A100] * 4, 600, gbps=200),
    shape("a100x3", [A100] * 3, 600),
    shape("a100-bridges", [A100] * 4, linked(4, {(0, 1): 600, (2, 3): 600}), gbps=200),
    shape("v100-square", [V100] * 4, linked(4, {(0, 1): 100, (1, 2): 50, (2, 3): 100, (0, 3): 50}), gbps=100),
    shape(
        "v100-dead-link", [V100] * 4, linked(4, {(0, 1): 100, (0, 2): 100, (0, 3): 100, (1, 2): 100, (1, 3): 100}), gbps=100
    ),
    shape("l40s", [L40S] * 2, 0, gbps=200),
    shape("mixed", [H100, H100, A100, A100_40], linked(4, {(0, 1): 600, (2, 3): 200})),
)
SMALL = (
    shape("h100x1", [H100], 0),
    shape("h100x1-slow", [H100], 0, gbps=200),
    shape("h100x2", [H100] * 2, 900),
    shape("a100x2", [A100] * 2, 600, gbps=200),
)
TRAYS = (
    shape("tray", [GB200] * 2, 1800, domain_gbytes_per_s=1800),
    shape("tray-slow", [GB200] * 2, 1800, domain_gbytes_per_s=900),
)


def case(rng: Random) -> tuple[Snapshot, Request]:
    """One of two themes: a few nodes whose inside matters, or more nodes of one or two GPUs whose fabric matters."""
    fabric = rng.random() < 0.5
    topology = _cluster(rng, fabric)
    state = _snapshot(rng, topology)
    return priced(rng, *_reserved(rng, state, _request(rng, topology.nodes, fabric)))


def priced(rng: Random, state: Snapshot, asked: Request) -> tuple[Snapshot, Request]:
    """Seldom: with a policy, with prices of some families, or both."""
    if rng.random() < 0.85:
        return state, asked
    families = sorted({spec.family for each in state.topology.nodes for spec in each.shape.gpus})
    prices = {family: rng.choice([0.5, 1.0, 2.5, 4.0]) for family in families if rng.random() < 0.7}
    return replace(state, prices=prices), replace(
        asked, policy=rng.choice(["", "cheapest", "cheapest", "fastest", "balanced"])
    )


def reserving(rng: Random) -> tuple[Snapshot, Request]:
    """The fabric theme, with several groups or instances that reserve on few and narrow links."""
    while True:
        topology = _cluster(rng, fabric=True)
        if len(topology.fabric.switches) < 2:
            continue
        count = rng.choice([1, 2, 2, 2, 3])
        kind = rng.choice(["PP", "PP", "TP", "DP", "EP"])
        groups = tuple(_group(rng, i, topology.nodes, True, kind) for i in range(count))
        # Stages across nodes are not looked at where nearness does not pass on from pair to pair: in a tree it does.
        tree = nx.is_tree(switch_graph(topology.fabric))
        groups = tuple(
            replace(
                each,
                gpus=1 if kind == "PP" and not tree else rng.choice([1, 1, 2, 3]) if count < 3 else each.gpus,
                min_nvlink_gbytes_per_s=0.0,
                reach=Reach(None, 0.0, rng.choice([60.0, 110.0, 150.0, 190.0])) if rng.random() < 0.8 else each.reach,
            )
            for each in groups
        )
        state = _snapshot(rng, topology)
        state = _links_taken(rng, state) if rng.random() < 0.4 else state
        # Most of what is free, so that it cannot all lie in one leaf group.
        free = sum(len(state.free_indices(each.name)) for each in topology.nodes)
        replicas = rng.choice([1, 2, max(1, free // sum(each.gpus for each in groups))])
        return state, clusters.request(*groups, replicas=min(replicas, 4))


def cut_off(rng: Random) -> tuple[Snapshot, Request]:
    """One group that reserves, where links without room cut some leaf groups off from the rest."""
    while True:
        topology = _cluster(rng, fabric=True)
        if len(topology.leaves) < 3:
            continue
        state = _links_taken(rng, _snapshot(rng, topology))
        reserve = rng.choice([60.0, 110.0, 190.0])
        one = group("g0", "DP", rng.choice([1, 1, 1, 2]), reserve=reserve)
        return state, clusters.request(one, replicas=rng.choice([2, 2, 3, 4]))


def _cluster(rng: Random, fabric: bool) -> Topology:
    """Under one leaf, in a tree with one or two spines, in a ring of leaves, on two fabrics, or unconnected."""
    count = rng.randint(4, 6) if fabric else rng.randint(2, 3)
    trays = not fabric and rng.random() < 0.2
    palette: list[NodeShape] = list(TRAYS) if trays else rng.sample(SMALL if fabric else SHAPES, rng.choice([1, 1, 2, 3]))
    nodes = []
    for i in range(count):
        domain = f"rack{rng.randrange(2)}" if trays else ""
        built = rng.choice(palette)
        if rng.random() < 0.2:  # what most say nothing of
            built = replace(built, cpus=rng.choice([4, 8, 16]), memory_gb=rng.choice([0.0, 60.0, 100.0]))
        nodes.append(clusters.node(f"n{i}", built, domain))
    kind = rng.choice(["leaf", "tree", "tree", "pods", "pods", "ring", "apart", "none", "mesh", "rails"])
    leaves = max(
        1, {"leaf": 1, "none": 0, "ring": 4, "mesh": rng.choice([2, 2, 3]), "rails": 4}.get(kind, rng.randint(2, 4))
    )
    links = [Link(each.name, f"leaf{rng.randrange(leaves)}", each.shape.link_gbps) for each in nodes]
    if kind == "rails":  # every node hangs on both leaves of its unit
        other = {f"leaf{i}": f"leaf{i ^ 1}" for i in range(4)}
        links += [Link(link.a, other[link.b], link.gbps) for link in links]
    switches = [Switch(f"leaf{i}") for i in range(leaves)]
    return build_topology(nodes, _fabric(rng, kind, leaves, switches, [] if kind == "none" else links))


def _fabric(rng: Random, kind: str, leaves: int, switches: list[Switch], links: list[Link]) -> Fabric:
    def rate() -> float:
        return rng.choice([200.0, 400.0])

    if kind == "tree":
        switches.append(Switch("spine0", 1))
        links += [Link(f"leaf{i}", "spine0", rate()) for i in range(leaves)]
    elif kind in ("pods", "apart"):
        switches += [Switch("spine0", 1), Switch("spine1", 1)]
        links += [Link(f"leaf{i}", f"spine{i % 2}", rate()) for i in range(leaves)]
        if kind == "pods":
            switches.append(Switch("core0", 2))
            links += [Link("spine0", "core0", rate()), Link("spine1", "core0", rate())]
    elif kind in ("mesh", "rails"):
        spines = 2 if kind == "mesh" else rng.choice([2, 3])
        switches += [Switch(f"spine{i}", 1) for i in range(spines)]
        links += [Link(f"leaf{i}", f"spine{j}", rate()) for i in range(leaves) for j in range(spines) if rng.random() < 0.9]
    elif kind == "ring":
        links += [Link(f"leaf{i}", f"leaf{(i + 1) % leaves}", rate()) for i in range(leaves) if leaves > 1]
    return Fabric(tuple(switches), tuple(links))


def _snapshot(rng: Random, topology: Topology) -> Snapshot:
    every = [GpuId(node.name, i) for node in topology.nodes for i in range(len(node.shape.gpus))]
    busy = rng.choice([0.0, 0.0, 0.1, 0.2, 0.4])
    held = {gpu: f"j{rng.randrange(3)}" for gpu in every if rng.random() < busy}
    unfit = {gpu: "Xid 79" for gpu in every if rng.random() < 0.04}
    closed = {node.name: "drained" for node in topology.nodes if rng.random() < 0.04}
    per_gpu = {job: HostShare(rng.choice([0.0, 2.0, 4.0]), rng.choice([0.0, 20.0])) for job in sorted(set(held.values()))}
    return Snapshot(1, topology, held, unfit, closed, _power(rng, topology, held), per_gpu)


def _power(rng: Random, topology: Topology, held: dict[GpuId, str]) -> tuple[PowerBudget, ...]:
    """Seldom: one or two feeds, overlapping perhaps, with room for some of their GPUs."""
    if rng.random() < 0.88:
        return ()
    found = []
    for number in range(rng.choice([1, 2])):
        nodes = frozenset(node.name for node in topology.nodes if rng.random() < 0.7)
        specs = [spec for node in topology.nodes if node.name in nodes for spec in node.shape.gpus]
        draws = sum(watts_of(spec) for spec in specs)
        used = sum(watts_of(topology.node(g.node).shape.gpus[g.index]) for g in held if g.node in nodes)
        found.append(PowerBudget(f"feed{number}", nodes, used + rng.choice([0.2, 0.4, 0.6, 0.8]) * draws))
    return tuple(found)


def _reserved(rng: Random, state: Snapshot, request: Request) -> tuple[Snapshot, Request]:
    """Some groups reserve bandwidth on links, where other jobs hold some and other traffic takes some."""
    if rng.random() < 0.5 or not any(each.reach for each in request.groups):
        return state, request
    groups = tuple(
        replace(each, reach=replace(each.reach, reserve_gbps=rng.choice([0.0, 50.0, 100.0, 150.0, 200.0, 300.0])))
        if each.reach is not None
        else each
        for each in request.groups
    )
    return _links_taken(rng, state), replace(request, groups=groups)


def _links_taken(rng: Random, state: Snapshot) -> Snapshot:
    names = {switch.name for switch in state.topology.fabric.switches}
    between = sorted({edge(x.a, x.b) for x in state.topology.fabric.links if x.a in names and x.b in names})
    share = rng.choice([0.0, 0.3, 0.7])
    held: dict[str, dict[tuple[str, str], float]] = {}
    for link in between:
        if rng.random() < share:
            held.setdefault(f"j{rng.randrange(3)}", {})[link] = rng.choice([50.0, 100.0, 200.0, 350.0])
    measured = {link: rng.choice([0.5, 50.0, 120.0]) for link in between if rng.random() < share / 3}
    return replace(state, links_held=held, links_measured=measured)


def _request(rng: Random, nodes: tuple[Node, ...], fabric: bool) -> Request:
    count = rng.choice([1, 1, 2, 2, 3])
    staged = fabric and count > 1 and rng.random() < 0.5
    groups = tuple(_group(rng, i, nodes, fabric, "PP" if staged else None) for i in range(count))
    replicas = rng.choice([1, 2, 2, 3] if count < 3 else [1, 2])
    avoid = {rng.choice(nodes).name} if rng.random() < 0.04 else set()
    asked = clusters.request(*groups, replicas=replicas, avoid=avoid)
    names = [each.name for each in nodes]
    return replace(
        asked,
        allowed_nodes=frozenset(rng.sample(names, max(1, len(names) - 1))) if rng.random() < 0.04 else None,
        spares=1 if replicas < 3 and rng.random() < 0.06 else 0,
        denied_nodes=frozenset({rng.choice(names)}) if rng.random() < 0.04 else frozenset(),
        cpus_per_gpu=rng.choice([2.0, 3.0, 5.5]) if rng.random() < 0.08 else 0.0,
        memory_gb_per_gpu=rng.choice([10.0, 25.0]) if rng.random() < 0.06 else 0.0,
        groups=tuple(_more(rng, each) for each in groups),
    )


def _more(rng: Random, of: ResourceGroup) -> ResourceGroup:
    """Seldom: what few groups ask for."""
    if rng.random() < 0.06:
        of = replace(of, apart=rng.choice(["node", "leaf", "pod"]))
    if of.gpus > 1 and rng.random() < 0.08:
        of = replace(of, min_nvlink_links=rng.choice([1, 2, 3, 4, 12, 18]))
    if of.gpus > 1 and rng.random() < 0.06:
        of = replace(of, min_nvlink_aggregate_gbytes_per_s=rng.choice([100.0, 150.0, 300.0, 900.0, 1800.0]))
    return of


def _group(rng: Random, number: int, nodes: tuple[Node, ...], fabric: bool, kind: str | None) -> ResourceGroup:
    # Mostly what the cluster has: a request for what nobody has teaches little.
    present = sorted({spec.family for each in nodes for spec in each.shape.gpus})
    families = [*present, "h200"] if rng.random() < 0.1 else present
    preferred = rng.sample(families, min(len(families), rng.choice([0, 0, 1, 1, 2])))
    reach = rng.random() < (0.7 if fabric else 0.4)
    sizes = [1, 1, 1, 2] if fabric else ([1, 2, 2, 3, 4, 5] if number == 0 else [1, 1, 2, 3])
    return group(
        f"g{number}",
        kind or rng.choice(["TP", "TP", "DP", "DP", "PP", "EP", "AUX"]),
        rng.choice(sizes),
        preferred=preferred,
        tolerated=rng.sample(families, min(len(families), rng.choice([1, 2]))) if preferred and rng.random() < 0.7 else (),
        memory=rng.choice([0, 0, 0, 0, 0, 80]),
        nvlink=rng.choice([0, 0, 0, 0, 100, 600]),
        hops=rng.choice([None, 0, 1, 2, 3, 3]) if reach else None,
        rate=rng.choice([0, 0, 200, 400]) if reach else 0,
        reach=reach,
    )


def staged_case(rng: Random) -> tuple[Snapshot, Request]:
    """A pipeline of two or three stages, mostly alike, on a cluster of small nodes whose fabric matters."""
    count, replicas = rng.choice([(2, 1), (2, 2), (2, 2), (2, 3), (2, 3), (2, 4), (3, 1), (3, 2), (3, 2), (3, 3)])
    nodes = [
        clusters.node(f"n{i}", rng.choice(SMALL if rng.random() < 0.3 else SMALL[:1])) for i in range(rng.randint(5, 9))
    ]
    leaves = rng.randint(2, 5)
    kind = rng.choice(["pods", "pods", "pods", "tree", "tree", "ring", "apart"])
    leaves = 4 if kind == "ring" else leaves
    links = [Link(each.name, f"leaf{rng.randrange(leaves)}", each.shape.link_gbps) for each in nodes]
    topology = build_topology(nodes, _fabric(rng, kind, leaves, [Switch(f"leaf{i}") for i in range(leaves)], links))
    first = replace(_group(rng, 0, topology.nodes, True, "PP"), preferred=(), tolerated=(), min_memory_gb=0)
    if rng.random() < 0.7:
        first = replace(first, reach=None)
    groups = [replace(first, name=f"stage{i}") for i in range(count)]
    if rng.random() < 0.25:
        groups[-1] = replace(groups[-1], gpus=3 - groups[-1].gpus)
    if kind == "ring" and first.reach is not None:
        # Stages over several nodes, where nearness does not pass on, are not looked at: nothing is claimed then.
        groups = [replace(each, gpus=1) for each in groups]
    if rng.random() < 0.1:
        groups.append(group("beside", "AUX", 1))
    return _snapshot(rng, topology), clusters.request(*groups, replicas=replicas)
