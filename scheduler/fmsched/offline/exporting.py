"""`fmctl topo export`: a cluster, out of a Cluster file or as the service lists it, in the notation of another tool."""

from __future__ import annotations

from fmproto.fields import name_hint
from fmproto.v1 import scheduler_pb2
from fmsched.model.fabric import Topology
from fmsched.model.hardware import NodeShape
from fmsched.offline.errors import OfflineError
from fmsched.offline.topo import read_cluster
from fmsched.store import codec
from fmsched.topology import export_graphml, export_nccl, export_slurm
from fmsched.topology.clusterfile import to_snapshot
from fmsched.topology.graph import build_topology

SLURM, NCCL, GRAPHML = "slurm-topology", "nccl-topo", "graphml"
KINDS = (SLURM, NCCL, GRAPHML)


def run(kind: str, source: tuple[bytes, str] | scheduler_pb2.ListNodesResponse, node: str = "") -> str:
    """The text. `source`: (a Cluster file's text, its name), or what the service answered. `node`: which, for nccl-topo.

    Raises OfflineError where the file cannot be read, the node is unknown, or the cluster cannot be said in that notation.
    """
    if kind not in KINDS:
        raise OfflineError([f"--kind: found {kind!r}; allowed: {', '.join(KINDS)}"])
    topology = to_snapshot(read_cluster(*source)).topology if isinstance(source, tuple) else _live(source)
    try:
        if kind == NCCL:
            return export_nccl.write(topology.node(_chosen(topology, node)))
        return export_slurm.write(topology) if kind == SLURM else export_graphml.write(topology)
    except ValueError as error:
        raise OfflineError([f"{kind}: {error}"]) from error


def _chosen(topology: Topology, node: str) -> str:
    names = [each.name for each in topology.nodes]
    if node in topology.index:
        return node
    if not node and len(names) == 1:
        return names[0]
    found = f"found no node {node!r}" if node else f"found {len(names)} nodes, and a topology file is of one"
    raise OfflineError([f"--node: {found}; {name_hint(node, names)}"])


def _live(answer: scheduler_pb2.ListNodesResponse) -> Topology:
    shapes: dict[NodeShape, NodeShape] = {}
    nodes = [codec.node_of(each.inventory, codec.dead_ports_of(each.health), shapes) for each in answer.nodes]
    try:
        return build_topology(nodes, codec.fabric_of(answer.fabric))
    except ValueError as error:
        raise OfflineError([str(error)]) from error
