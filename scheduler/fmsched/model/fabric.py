"""How nodes are joined: switches and links as given, and the topology derived from them once per revision.

A leaf group is a set of nodes attached to the same switches (one leaf switch, or the eight of a rail-optimised pod): inside the
fabric its nodes cannot be told apart, so hop counts and path bandwidths are matrices over leaf groups.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from fmsched.model.hardware import Node, NodeName

UNREACHABLE_HOPS = 1 << 15


@dataclass(frozen=True, slots=True)
class Switch:
    name: str
    level: int = 0  # 0 leaf, 1 spine, 2 core


@dataclass(frozen=True, slots=True)
class Link:
    """`count` parallel cables of `gbps` each between two ends: a switch or a node.

    measured_gbps   traffic seen on all of them together, beside what jobs reserve; Gb/s
    """

    a: str
    b: str
    gbps: float
    count: int = 1
    down: bool = False
    hca: str = ""
    measured_gbps: float = 0.0


@dataclass(frozen=True, slots=True)
class Fabric:
    switches: tuple[Switch, ...] = ()
    links: tuple[Link, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Topology:
    """Static and shared: built by fmsched.topology.graph.build_topology, never changed.

    leaf_of[i]        leaf group of node i (index into leaves)
    hops[a, b]        switches crossed between nodes of leaf groups a and b: 1 inside a group, UNREACHABLE_HOPS without a path
    path_gbps[a, b]   weakest link of the best shortest path between the groups' switches, Gb/s; the ports of the two
                      nodes themselves are not in it (NodeShape.link_gbps is); inf inside a group
    domains[level]    for level 0 (leaf group), 1 (pod), 2 (core)…: domain number of each leaf group; nodes of one domain at
                      level k reach one another over at most 2k + 1 switches
    """

    nodes: tuple[Node, ...]
    leaves: tuple[str, ...]
    leaf_of: npt.NDArray[np.int32]
    hops: npt.NDArray[np.int32]
    path_gbps: npt.NDArray[np.float64]
    domains: tuple[npt.NDArray[np.int32], ...]
    index: Mapping[NodeName, int]
    fabric: Fabric = field(default_factory=Fabric)

    def node(self, name: NodeName) -> Node:
        """Raises KeyError for an unknown node."""
        return self.nodes[self.index[name]]

    def hop_count(self, a: NodeName, b: NodeName) -> int:
        """Switches crossed between two nodes; 0 for a node and itself."""
        if a == b:
            return 0
        return int(self.hops[self.leaf_of[self.index[a]], self.leaf_of[self.index[b]]])

    def link_gbps(self, a: NodeName, b: NodeName) -> float:
        """The weakest link between two nodes, their own ports included, Gb/s; inf for a node and itself."""
        if a == b:
            return float("inf")
        i, j = self.index[a], self.index[b]
        path = float(self.path_gbps[self.leaf_of[i], self.leaf_of[j]])
        return min(path, self.nodes[i].shape.link_gbps, self.nodes[j].shape.link_gbps)

    def nvlink_gbytes_per_s(self, a: NodeName, i: int, b: NodeName, j: int) -> float:
        """NVLink bandwidth between GPU i of node a and GPU j of node b, GB/s, both directions together."""
        node_a, node_b = self.node(a), self.node(b)
        if a == b:
            return node_a.shape.nvlink[i][j]
        if node_a.nvlink_domain and node_a.nvlink_domain == node_b.nvlink_domain:
            return min(node_a.shape.domain_nvlink_gbytes_per_s, node_b.shape.domain_nvlink_gbytes_per_s)
        return 0.0
