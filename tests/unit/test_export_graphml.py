"""GraphML that networkx reads back as the graph that was written."""

from __future__ import annotations

import io
from dataclasses import replace

import networkx as nx
from hypothesis import given, settings

from fmsched.model.fabric import Fabric, Link, Switch
from fmsched.model.hardware import GpuSpec, HcaSpec, Node, NodeShape
from fmsched.topology.export_graphml import graph_of, write
from fmsched.topology.graph import build_topology
from tests.support.fabrics import fabrics

SHAPE = NodeShape(
    name="pair <A&B>",
    gpus=(GpuSpec("A100-PCIE-40GB", "a100", 40.0), GpuSpec("A100-PCIE-40GB", "a100", 40.0)),
    nvlink=((0.0, 600.0), (600.0, 0.0)),
    hcas=(HcaSpec("mlx5_0", 1, 200.0, near=(0, 1)), HcaSpec("mlx5_1", 2, 100.0)),
    cpus=64,
    memory_gb=512.0,
)


def back(text: str) -> nx.MultiGraph[str]:
    return nx.read_graphml(io.BytesIO(text.encode()), force_multigraph=True, edge_key_type=int)


def same(a: nx.MultiGraph[str], b: nx.MultiGraph[str]) -> bool:
    """Nodes, edges, keys and attributes; not the defaults that reading notes on the graph itself."""
    return dict(a.nodes(data=True)) == dict(b.nodes(data=True)) and a.adj == b.adj


def test_nodes_switches_and_links_with_what_they_are() -> None:
    nodes = [Node("n1", SHAPE, ("GPU-1", "GPU-2"), nvlink_domain="rack 'ü'")]
    links = (
        Link("n1", "s1", 200.0, hca="mlx5_0"),
        Link("s1", "n1", 100.0, count=2, down=True),
        Link("s1", "stranger", 25.0),
    )
    graph = back(write(build_topology(nodes, Fabric((Switch("s1", 0),), links))))
    assert graph.nodes["n1"] == {
        "kind": "node",
        "shape": "pair <A&B>",
        "leaf_group": "s1",
        "gpus": 2,
        "gpu_models": "2 x A100-PCIE-40GB",
        "gpu_memory_gb": 80.0,
        "gpu_uuids": "GPU-1 GPU-2",
        "nvlink_domain": "rack 'ü'",
        "nvlink_gbytes_per_s": 600.0,
        "hcas": 2,
        "hca_ports": "mlx5_0/1, mlx5_1/2",
        "hca_rates_gbps": "200, 100",
        "hca_near_gpus": "0 1; ",
        "cpus": 64,
        "memory_gb": 512.0,
    }
    assert graph.nodes["s1"] == {"kind": "switch", "level": 0}
    assert graph.nodes["stranger"] == {"kind": "unknown"}
    assert graph.number_of_edges("n1", "s1") == 2
    assert graph.edges["n1", "s1", 0] == {"gbps": 200.0, "count": 1, "down": False, "hca": "mlx5_0"}
    assert graph.edges["n1", "s1", 1] == {"gbps": 100.0, "count": 2, "down": True, "hca": ""}


@settings(max_examples=60, deadline=None)
@given(fabrics())
def test_every_fabric_comes_back_equal(cluster: tuple[list[Node], Fabric]) -> None:
    topology = build_topology(*cluster)
    assert same(back(write(topology)), graph_of(topology))


def test_a_node_without_gpus_is_written_too() -> None:
    bare = replace(SHAPE, name="bare", gpus=(), nvlink=(), hcas=())
    topology = build_topology([Node("c1", bare, ())], Fabric((Switch("s"),), (Link("c1", "s", 10.0),)))
    assert same(back(write(topology)), graph_of(topology))
