"""What two nodes must be to one another for a group: the meaning of Reach, in one place. Naive; used by check and by zones."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from fmsched.model.fabric import UNREACHABLE_HOPS, Topology
from fmsched.model.hardware import Node, NodeShape
from fmsched.model.job import GroupKind, Reach, Request, ResourceGroup
from fmsched.place import nvlink

# Kinds whose instance may span nodes only where the manifest says so (Reach), or inside one multi-node NVLink domain.
BOUND_KINDS = frozenset({GroupKind.TENSOR_PARALLEL, GroupKind.EXPERT_PARALLEL})


def hop_cap(reach: Reach) -> int:
    """The most switches that may be crossed. Without a cap there must still be a path."""
    return UNREACHABLE_HOPS - 1 if reach.max_hops is None else reach.max_hops


def instance_reaches(group: ResourceGroup) -> tuple[Reach, ...]:
    """What must hold between every two nodes of one instance."""
    return (group.reach,) if group.reach is not None and group.kind in BOUND_KINDS else ()


def group_reaches(group: ResourceGroup) -> tuple[Reach, ...]:
    """What must hold between every two nodes of the whole group."""
    return (group.reach,) if group.reach is not None and group.kind is GroupKind.DATA_PARALLEL else ()


def stage_pairs(request: Request) -> tuple[tuple[int, int, tuple[Reach, ...]], ...]:
    """(group, next group, what must hold between their nodes of one replica) of neighbouring pipeline stages.

    Both groups' reaches hold on the way between them. Pairs that nothing is asked of are left out.
    """
    stages = [i for i, group in enumerate(request.groups) if group.kind is GroupKind.PIPELINE_PARALLEL]
    pairs = []
    for a, b in pairwise(stages):
        reaches = tuple(reach for i in (a, b) if (reach := request.groups[i].reach) is not None)
        if reaches:
            pairs.append((a, b, tuple(dict.fromkeys(reaches))))
    return tuple(pairs)


def stays_in_domain(group: ResourceGroup) -> bool:
    """Whether an instance must lie in one NVLink domain because of its kind."""
    return group.kind is GroupKind.TENSOR_PARALLEL and group.reach is None and group.gpus > 1


def spans_only_by_nvlink(group: ResourceGroup) -> bool:
    """Whether two nodes of one instance must belong to one multi-node NVLink domain."""
    return group.min_nvlink_gbytes_per_s > 0 or nvlink.asks(group) or (group.kind in BOUND_KINDS and group.reach is None)


def nvlink_component(shape: NodeShape, gpu: int) -> frozenset[int]:
    """The GPUs of the node that `gpu` reaches by NVLink, over others too; itself included."""
    found = {gpu}
    frontier = [gpu]
    while frontier:  # ends: a GPU enters once
        i = frontier.pop()
        for j, gbytes_per_s in enumerate(shape.nvlink[i]):
            if j not in found and (gbytes_per_s > 0 or shape.nvlink[j][i] > 0):
                found.add(j)
                frontier.append(j)
    return frozenset(found)


def one_nvlink_domain(gpus: Sequence[tuple[Node, int]]) -> bool:
    """Whether all GPUs lie in one NVLink domain: connected inside one node, or in nodes of one multi-node domain."""
    first_node, first_gpu = gpus[0]
    if first_node.nvlink_domain and all(node.nvlink_domain == first_node.nvlink_domain for node, _ in gpus):
        return True
    component = nvlink_component(first_node.shape, first_gpu)
    return all(node.name == first_node.name and gpu in component for node, gpu in gpus)


def hops_ok(topology: Topology, reaches: Sequence[Reach], a: str, b: str) -> bool:
    """Whether two nodes are near enough."""
    return a == b or all(topology.hop_count(a, b) <= hop_cap(reach) for reach in reaches)


def rate_ok(topology: Topology, reaches: Sequence[Reach], a: str, b: str) -> bool:
    """Whether the weakest link between two nodes is fast enough."""
    return a == b or all(topology.link_gbps(a, b) >= reach.min_link_gbps for reach in reaches)
