"""The hard constraints of a request as separate atoms, each of which can be lifted alone: what explanations are made of.

Lifting an atom never makes anything harder, so sets of atoms can be searched for minimal conflicts. That the job wants so many
GPUs in so many instances is no atom: without it there is no job.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from enum import StrEnum

from fmsched.model.fabric import UNREACHABLE_HOPS
from fmsched.model.job import GroupKind, Reach, Request, ResourceGroup
from fmsched.model.snapshot import Snapshot
from fmsched.place import relations
from fmsched.place.links import reserves


class Constraint(StrEnum):
    """In the order in which a conflict is asked to do without them: the first are the least telling."""

    AVOIDED = "avoided nodes"
    OPEN = "open nodes"
    NODE_LIST = "node list"
    CPUS = "CPUs"
    HOST_MEMORY = "host memory"
    HEALTHY = "healthy GPUs"
    POWER = "power budget"
    MEMORY = "memory"
    APART = "anti-affinity"
    RATE = "link rate"
    BANDWIDTH = "reserved bandwidth"
    HOPS = "hops"
    LINKS = "NVLink links"
    AGGREGATE = "NVLink aggregate"
    NVLINK = "NVLink"
    DOMAIN = "NVLink domain"
    FREE_LINKS = "free links"
    TYPE = "GPU type"
    FREE = "free GPUs"


# What only time decides: an empty, healthy cluster has none of them.
PASSING = frozenset({Constraint.AVOIDED, Constraint.OPEN, Constraint.HEALTHY, Constraint.FREE_LINKS, Constraint.FREE})


@dataclass(frozen=True, slots=True)
class Atom:
    constraint: Constraint
    group: int = -1  # -1: of the whole job


def atoms_of(snapshot: Snapshot, request: Request) -> tuple[Atom, ...]:
    """Every atom that asks for something, in the order of Constraint."""
    found = []
    passing = {
        Constraint.AVOIDED: any(name in snapshot.topology.index for name in request.avoid_nodes),
        Constraint.OPEN: any(name in snapshot.topology.index for name in snapshot.closed),
        Constraint.HEALTHY: bool(snapshot.unfit),
        Constraint.FREE: bool(snapshot.held),
        Constraint.FREE_LINKS: reserves(request) and bool(snapshot.links_held or snapshot.links_measured),
        Constraint.POWER: bool(snapshot.power),
        Constraint.NODE_LIST: bool(request.denied_nodes) or request.allowed_nodes is not None,
        Constraint.CPUS: request.cpus_per_gpu > 0,
        Constraint.HOST_MEMORY: request.memory_gb_per_gpu > 0,
    }
    found += [Atom(constraint) for constraint, present in passing.items() if present]
    staged = {g for first, second, _ in relations.stage_pairs(request) for g in (first, second)}
    for g, group in enumerate(request.groups):
        bound = group.kind in relations.BOUND_KINDS and group.gpus > 1
        reaches = group.reach is not None and (bound or group.kind is GroupKind.DATA_PARALLEL or g in staged)
        present = {
            Constraint.TYPE: bool(group.families),
            Constraint.MEMORY: group.min_memory_gb > 0,
            Constraint.NVLINK: group.min_nvlink_gbytes_per_s > 0 and group.gpus > 1,
            Constraint.APART: bool(group.apart),
            Constraint.LINKS: group.min_nvlink_links > 0,
            Constraint.AGGREGATE: group.min_nvlink_aggregate_gbytes_per_s > 0,
            Constraint.DOMAIN: bound and group.reach is None,
            Constraint.HOPS: reaches,
            Constraint.RATE: reaches and group.reach is not None and group.reach.min_link_gbps > 0,
            Constraint.BANDWIDTH: reaches and group.reach is not None and group.reach.reserve_gbps > 0,
        }
        found += [Atom(constraint, g) for constraint, is_there in present.items() if is_there]
    order = list(Constraint)
    return tuple(sorted(found, key=lambda atom: (order.index(atom.constraint), atom.group)))


def lift(snapshot: Snapshot, request: Request, atoms: Collection[Atom]) -> tuple[Snapshot, Request]:
    """The same question without these constraints."""
    lifted = {atom.constraint for atom in atoms if atom.group < 0}
    if lifted & (PASSING | {Constraint.POWER}):
        snapshot = replace(
            snapshot,
            power=() if Constraint.POWER in lifted else snapshot.power,
            held={} if Constraint.FREE in lifted else snapshot.held,
            unfit={} if Constraint.HEALTHY in lifted else snapshot.unfit,
            closed={} if Constraint.OPEN in lifted else snapshot.closed,
            links_held={} if Constraint.FREE_LINKS in lifted else snapshot.links_held,
            links_measured={} if Constraint.FREE_LINKS in lifted else snapshot.links_measured,
        )
    request = replace(
        request,
        avoid_nodes=frozenset() if Constraint.AVOIDED in lifted else request.avoid_nodes,
        allowed_nodes=None if Constraint.NODE_LIST in lifted else request.allowed_nodes,
        denied_nodes=frozenset() if Constraint.NODE_LIST in lifted else request.denied_nodes,
        cpus_per_gpu=0.0 if Constraint.CPUS in lifted else request.cpus_per_gpu,
        memory_gb_per_gpu=0.0 if Constraint.HOST_MEMORY in lifted else request.memory_gb_per_gpu,
    )
    groups = tuple(
        _without(group, {atom.constraint for atom in atoms if atom.group == g}) for g, group in enumerate(request.groups)
    )
    return snapshot, replace(request, groups=groups)


def _without(group: ResourceGroup, lifted: Collection[Constraint]) -> ResourceGroup:
    if Constraint.TYPE in lifted:
        group = replace(group, preferred=(), tolerated=())
    if Constraint.MEMORY in lifted:
        group = replace(group, min_memory_gb=0.0)
    if Constraint.LINKS in lifted:
        group = replace(group, min_nvlink_links=0)
    if Constraint.AGGREGATE in lifted:
        group = replace(group, min_nvlink_aggregate_gbytes_per_s=0.0)
    if Constraint.APART in lifted:
        group = replace(group, apart="")
    if Constraint.NVLINK in lifted:
        group = replace(group, min_nvlink_gbytes_per_s=0.0)
    if Constraint.DOMAIN in lifted:
        group = replace(group, reach=Reach(max_hops=UNREACHABLE_HOPS))  # any nodes, also without a path between them
    reach = group.reach
    if reach is not None and Constraint.HOPS in lifted:
        reach = replace(reach, max_hops=UNREACHABLE_HOPS)
    if reach is not None and Constraint.RATE in lifted:
        reach = replace(reach, min_link_gbps=0.0)
    if reach is not None and Constraint.BANDWIDTH in lifted:
        reach = replace(reach, reserve_gbps=0.0)
    return replace(group, reach=reach)
