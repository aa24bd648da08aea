"""`fmctl topo generate`, a made-up cluster as a Cluster file; and a Cluster file as what the service answers of a live cluster."""

from __future__ import annotations

import random

from fmproto.described import node_messages
from fmproto.v1 import scheduler_pb2
from fmsched.offline.errors import OfflineError, refuse
from fmsched.service.links import link_messages
from fmsched.store.codec import fabric_message
from fmsched.topology.clusterfile import ClusterFile, named_devices, parse, to_snapshot
from fmsched.topology.generate import Plan
from fmsched.topology.generate import generate as generate_text


def generate(pods: int, leaves: int, nodes_per_leaf: int, type: str, busy: float, seed: int) -> str:  # noqa: A002
    """The text: `leaves` are those of each pod, `busy` is a share from 0 to 1. Raises OfflineError for figures that cannot be."""
    try:
        plan = Plan(pods, leaves, nodes_per_leaf, type, busy)
    except ValueError as error:
        raise OfflineError([str(error)]) from error
    return generate_text(plan, random.Random(seed))  # noqa: S311  # a reproducible cluster, not a secret


def view(source: bytes, where: str) -> scheduler_pb2.ListNodesResponse:
    """The nodes of a Cluster file as the service would list them, so that one drawing serves both. Raises OfflineError."""
    cluster = read_cluster(source, where)
    snapshot = to_snapshot(cluster)
    topology = snapshot.topology
    named = named_devices(cluster)
    holders: dict[str, dict[int, str]] = {}
    for gpu, job in snapshot.held.items():
        holders.setdefault(gpu.node, {})[gpu.index] = job
    answer = scheduler_pb2.ListNodesResponse(fabric=fabric_message(topology.fabric, where))
    if snapshot.links_held or snapshot.links_measured:
        answer.links.extend(link_messages(topology, snapshot.links_held, snapshot.links_measured))
    for name in cluster.described.entry_of:
        inventory, health = node_messages(cluster.described, name, named.get(name, ()))
        answer.nodes.add(
            name=name,
            inventory=inventory,
            health=health,
            state="drained" if name in snapshot.closed else "ready",
            reason=snapshot.closed.get(name, ""),
            holders=holders.get(name, {}),
            leaf=topology.leaves[int(topology.leaf_of[topology.index[name]])],
        )
    return answer


def read_cluster(source: bytes, where: str) -> ClusterFile:
    """Raises OfflineError with every fault."""
    cluster = parse(source)
    if not isinstance(cluster, ClusterFile):
        raise refuse(where, cluster)
    return cluster
