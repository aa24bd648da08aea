"""Which nodes a request may use at all, and how many of its ranks one of them can carry: node lists, CPUs, host memory.

A node that says nothing of its CPUs or its memory (0) has no limit of that kind: what is not known cannot be counted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from math import floor

from fmsched.model.hardware import NodeShape
from fmsched.model.job import Request
from fmsched.model.snapshot import Snapshot

# So many ranks on one node are no limit.
ANY_NUMBER = 1 << 30
# Figures such as 0.1 CPUs a rank are not whole in binary: a rank is not lost for that.
ROUNDING = 1e-9


def excluded(snapshot: Snapshot, request: Request) -> frozenset[str]:
    """The nodes that the request may not use, whatever they have: its lists, and where an earlier attempt failed."""
    out = request.avoid_nodes | request.denied_nodes
    if request.allowed_nodes is not None:
        out |= {node.name for node in snapshot.topology.nodes if node.name not in request.allowed_nodes}
    return out


def host_held(snapshot: Snapshot) -> Mapping[str, tuple[float, float]]:
    """By node: (CPUs, GB of memory) that running jobs have of it; nodes where none has any are left out."""
    found: defaultdict[str, tuple[float, float]] = defaultdict(lambda: (0.0, 0.0))
    for gpu, job in snapshot.held.items() if snapshot.per_gpu else ():
        share = snapshot.per_gpu.get(job)
        if share is not None:
            cpus, memory_gb = found[gpu.node]
            found[gpu.node] = cpus + share.cpus, memory_gb + share.memory_gb
    return found


def ranks_max(shape: NodeShape, request: Request, held: tuple[float, float] = (0.0, 0.0)) -> int:
    """How many ranks of the request the CPUs and the memory that are left on a node can carry."""
    figures = (shape.cpus, held[0], request.cpus_per_gpu), (shape.memory_gb, held[1], request.memory_gb_per_gpu)
    return min(
        ANY_NUMBER if not each or not has else max(0, floor((has - taken) / each + ROUNDING))
        for has, taken, each in figures
    )


def caps(snapshot: Snapshot, request: Request) -> Mapping[int, int]:
    """By position of a node: ranks_max, where it is less than the node's GPUs; other nodes are left out."""
    if not request.cpus_per_gpu and not request.memory_gb_per_gpu:
        return {}
    held = host_held(snapshot)
    found = {}
    fresh: dict[int, int] = {}  # by identity of a shape: of a node of which nothing is taken
    for position, node in enumerate(snapshot.topology.nodes):
        taken = held.get(node.name)
        if taken is not None:
            most = ranks_max(node.shape, request, taken)
        elif (most := fresh.get(id(node.shape), -1)) < 0:
            most = fresh[id(node.shape)] = ranks_max(node.shape, request)
        if most < len(node.shape.gpus):
            found[position] = most
    return found
