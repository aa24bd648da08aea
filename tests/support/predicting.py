"""Clusters of equal nodes and placements on them, for the performance model."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fmsched.model.fabric import Fabric, Link, Switch, Topology
from fmsched.model.hardware import Node, NodeShape
from fmsched.model.placement import RankPlacement
from fmsched.predict import Degrees, Model, Predicted, Training, predict
from fmsched.topology.graph import build_topology

NODES_PER_LEAF = 32


def node(name: str, shape: NodeShape, domain: str = "") -> Node:
    return Node(name, shape, tuple(f"{name}.{i}" for i in range(len(shape.gpus))), nvlink_domain=domain)


def cluster(nodes: Sequence[tuple[Node, int]], uplink_gbps: float = 0.0) -> Topology:
    """Nodes with the number of their leaf switch, below one spine. uplink_gbps of a leaf; 0: as much as its nodes have."""
    leaves = sorted({leaf for _, leaf in nodes})
    down = {leaf: sum(hca.rate_gbps for owner, at in nodes if at == leaf for hca in owner.shape.hcas) for leaf in leaves}
    links = [
        Link(owner.name, f"leaf{leaf}", hca.rate_gbps, hca=hca.name) for owner, leaf in nodes for hca in owner.shape.hcas
    ]
    links += [Link(f"leaf{leaf}", "spine", uplink_gbps or max(1.0, down[leaf])) for leaf in leaves]
    switches = (*(Switch(f"leaf{leaf}", 0) for leaf in leaves), Switch("spine", 1))
    return build_topology([owner for owner, _ in nodes], Fabric(switches, tuple(links)))


def equal(shape: NodeShape, count: int, per_leaf: int = NODES_PER_LEAF) -> Topology:
    return cluster([(node(f"n{i}", shape), i // per_leaf) for i in range(count)])


def on(topology: Topology, gpus: Sequence[tuple[int, int]], group: str = "g") -> tuple[RankPlacement, ...]:
    """Ranks in this order of (node, GPU)."""
    found = []
    for rank, (at, gpu) in enumerate(gpus):
        owner = topology.nodes[at]
        found.append(RankPlacement(rank, group, 0, 0, gpu, owner.name, gpu, owner.uuids[gpu]))
    return tuple(found)


def packed(topology: Topology, count: int, group: str = "g") -> tuple[RankPlacement, ...]:
    """`count` ranks on the first nodes, all GPUs of each."""
    every = [(i, gpu) for i, owner in enumerate(topology.nodes) for gpu in range(len(owner.shape.gpus))]
    return on(topology, every[:count], group)


def foreseen(topology: Topology, ranks: Sequence[RankPlacement], job: Training) -> Predicted:
    found = predict(topology, ranks, job)
    assert isinstance(found, Predicted), found
    return found


def on_equal_nodes(shape: NodeShape, job: Training) -> Predicted:
    """The job on as few nodes of one shape as hold it."""
    topology = equal(shape, math.ceil(job.degrees.gpus / len(shape.gpus)))
    return foreseen(topology, packed(topology, job.degrees.gpus), job)


def gpt(layers: int, hidden: int, heads: int, vocabulary: int = 51_200, sequence: int = 2048) -> Model:
    return Model("gpt", layers, hidden, 4 * hidden, heads, heads, vocabulary, sequence, tied=True)


SMALL = gpt(8, 1024, 8)
TINY_MOE = Model("moe", 8, 1024, 4096, 8, 2, 32_000, 2048, gated=True, experts=8, experts_per_token=2, expert_ffn=2048)
ONE = Training(SMALL, Degrees(), global_batch=8)
