"""A topology as GraphML, for networkx, Gephi, yEd and the like: nodes and switches with what they are, and every link of the fabric."""

from __future__ import annotations

from collections import Counter

import networkx as nx

from fmsched.model.fabric import Topology
from fmsched.model.hardware import Node

Value = str | int | float | bool


def write(topology: Topology) -> str:
    """GraphML text. `networkx.read_graphml(..., force_multigraph=True, edge_key_type=int)` gives graph_of(topology) again."""
    lines = nx.generate_graphml(graph_of(topology))
    return "\n".join(['<?xml version="1.0" encoding="utf-8"?>', *lines]) + "\n"


def graph_of(topology: Topology) -> nx.MultiGraph[str]:
    """Nodes have `kind`: "node", "switch", or "unknown" for an end of a link that is neither (a host without an agent). Edges are the
    fabric's links with their numbers as keys: `gbps` of one cable (Gb/s), `count` of cables, `down`, `hca` (the adapter, where known)."""
    graph: nx.MultiGraph[str] = nx.MultiGraph()
    for node, group in zip(topology.nodes, topology.leaf_of, strict=True):
        graph.add_node(node.name, **_node(node), leaf_group=topology.leaves[int(group)])
    for switch in topology.fabric.switches:
        graph.add_node(switch.name, kind="switch", level=int(switch.level))
    for number, link in enumerate(topology.fabric.links):
        for end in (link.a, link.b):
            if end not in graph:
                graph.add_node(end, kind="unknown")
        graph.add_edge(
            link.a, link.b, key=number, gbps=float(link.gbps), count=int(link.count), down=bool(link.down), hca=link.hca
        )
    return graph


def _node(node: Node) -> dict[str, Value]:
    shape = node.shape
    models = Counter(gpu.model for gpu in shape.gpus)
    return {
        "kind": "node",
        "shape": shape.name,
        "gpus": len(shape.gpus),
        "gpu_models": ", ".join(f"{count} x {model}" for model, count in models.items()),
        "gpu_memory_gb": float(sum(gpu.memory_gb for gpu in shape.gpus)),
        "gpu_uuids": " ".join(node.uuids),
        "nvlink_domain": node.nvlink_domain,
        "nvlink_gbytes_per_s": float(max((max(row, default=0.0) for row in shape.nvlink), default=0.0)),
        "hcas": len(shape.hcas),
        "hca_ports": ", ".join(f"{hca.name}/{hca.port}" for hca in shape.hcas),
        "hca_rates_gbps": ", ".join(f"{hca.rate_gbps:g}" for hca in shape.hcas),
        "hca_near_gpus": "; ".join(" ".join(map(str, hca.near)) for hca in shape.hcas),
        "cpus": int(shape.cpus),
        "memory_gb": float(shape.memory_gb),
    }
