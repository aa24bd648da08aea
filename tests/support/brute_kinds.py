"""What a random case has in it, by name, and how often each must occur: a kind that never occurs would otherwise pass unseen."""

from __future__ import annotations

from collections.abc import Iterator

from fmsched.model.fabric import UNREACHABLE_HOPS
from fmsched.model.job import GroupKind, Request, ResourceGroup
from fmsched.model.snapshot import Snapshot

# The least share of the cases, in thousandths. What stands with 0 is not generated yet: shown, not required.
FLOORS = {
    "fabric: one leaf": 50, "fabric: one spine": 80, "fabric: two spines and a core": 80, "fabric: ring": 40,
    "fabric: two, not joined": 40, "fabric: none": 40,
    "nodes of several shapes": 200, "several GPU types": 150, "types mixed in a node": 20, "NVLink domain over nodes": 30,
    "uneven NVLink in a node": 60, "no NVLink": 50,
    "GPUs held": 300, "GPUs sick": 150, "nodes closed": 70, "nodes avoided": 15, "power budgets": 50,
    "node lists": 30, "CPUs asked": 30, "host memory asked": 20,
    "several groups": 300, "several replicas": 300, "pipeline stages": 80,
    "preference": 150, "toleration": 100, "GPU memory asked": 80, "NVLink asked": 80, "NVLink links asked": 15,
    "NVLink aggregate asked": 10, "hops capped": 200, "link rate asked": 200, "anti-affinity": 50,
    "kind TensorParallel": 200, "kind DataParallel": 150, "kind PipelineParallel": 150, "kind ExpertParallel": 60,
    "kind Auxiliary": 60,
    "reservation on links": 0, "links reserved already": 0, "measured link load": 0, "spares": 0,
    "answer: placed": 300, "answer: not now": 50, "answer: never": 50,
}  # fmt: skip


def kinds_of(snapshot: Snapshot, request: Request) -> set[str]:
    """The names of FLOORS, answers apart, that this case has."""
    found = {_fabric(snapshot)} | set(_nodes(snapshot))
    present = {
        "GPUs held": bool(snapshot.held),
        "GPUs sick": bool(snapshot.unfit),
        "nodes closed": bool(snapshot.closed),
        "power budgets": bool(snapshot.power),
        "links reserved already": bool(snapshot.links_held),
        "measured link load": bool(snapshot.links_measured),
        "nodes avoided": bool(request.avoid_nodes),
        "node lists": bool(request.denied_nodes) or request.allowed_nodes is not None,
        "CPUs asked": request.cpus_per_gpu > 0,
        "host memory asked": request.memory_gb_per_gpu > 0,
        "spares": request.spares > 0,
        "several groups": len(request.groups) > 1,
        "several replicas": request.replicas > 1,
        "pipeline stages": sum(group.kind is GroupKind.PIPELINE_PARALLEL for group in request.groups) > 1,
    }
    found |= {name for name, there in present.items() if there}
    for group in request.groups:
        found |= set(_group(group))
    return found


def _fabric(snapshot: Snapshot) -> str:
    topology = snapshot.topology
    fabric = topology.fabric
    if not fabric.links:
        return "fabric: none"
    level = {switch.name: switch.level for switch in fabric.switches}
    if any(level.get(link.a) == 0 and level.get(link.b) == 0 for link in fabric.links):
        return "fabric: ring"
    if len(topology.leaves) > 1 and (topology.hops >= UNREACHABLE_HOPS).any():
        return "fabric: two, not joined"
    if len(topology.leaves) == 1:
        return "fabric: one leaf"
    return "fabric: two spines and a core" if 2 in level.values() else "fabric: one spine"


def _nodes(snapshot: Snapshot) -> Iterator[str]:
    nodes = snapshot.topology.nodes
    shapes = {node.shape for node in nodes}
    if len(shapes) > 1:
        yield "nodes of several shapes"
    if len({spec.family for shape in shapes for spec in shape.gpus}) > 1:
        yield "several GPU types"
    if any(len({spec.model for spec in shape.gpus}) > 1 for shape in shapes):
        yield "types mixed in a node"
    if any(node.nvlink_domain for node in nodes):
        yield "NVLink domain over nodes"
    for shape in shapes:
        of = range(len(shape.gpus))
        speeds = {shape.nvlink[i][j] for i in of for j in of if i != j}
        if len(speeds) > 1:
            yield "uneven NVLink in a node"
        if speeds == {0.0}:
            yield "no NVLink"


def _group(group: ResourceGroup) -> Iterator[str]:
    yield f"kind {group.kind}"
    reach = group.reach
    present = {
        "preference": bool(group.preferred),
        "toleration": bool(group.tolerated),
        "GPU memory asked": group.min_memory_gb > 0,
        "NVLink asked": group.min_nvlink_gbytes_per_s > 0,
        "NVLink links asked": group.min_nvlink_links > 0,
        "NVLink aggregate asked": group.min_nvlink_aggregate_gbytes_per_s > 0,
        "anti-affinity": bool(group.apart),
        "hops capped": reach is not None and reach.max_hops is not None,
        "link rate asked": reach is not None and reach.min_link_gbps > 0,
        "reservation on links": reach is not None and reach.reserve_gbps > 0,
    }
    yield from (name for name, there in present.items() if there)
