"""What makes one allowed placement better than another: named terms, in order of importance, lower is better.

The order is lexicographic: a later term only decides between placements that are equal in all earlier ones. measure.py reads
the value of every term off a finished placement, without the solver, and so is the one definition of each term:

1. steps down the preference list    per GPU: position of its family among `preferred`; tolerated families stand after these
2. instances across leaf groups, then instances across nodes (an instance counts once, however far it spreads): the ranks of
   an instance talk most, and a cell broken over nodes costs more than a job over one leaf group more
3. for each level of the fabric, widest first: domains spanned by the job, then by its groups that communicate: the sum over its
   resource groups, whose instances talk across replicas. In a job of several pipeline stages each replica's chain of stages talks
   too: then it is the sum over stages and chains of members × domains, so that mean data and mean pipeline spread weigh alike
4. nodes
5. steps up in GPU strength          per GPU: how many weaker models (TFLOP/s) the cluster has; keeps scarce big GPUs free
6. GPUs that leave whole cells       free cells of 2, 4, 8… GPUs of one model that a node loses, times their size
7. free GPUs left on its nodes       best fit: broken nodes are used up before whole ones are broken
8. free GPUs left in its leaf groups, then in its wider domains
9. NVLink missing inside instances   GB/s, over the pairs of each instance that lies on one node, against the best pair known
10. NVLink cut from free GPUs        GB/s, pairs of free GPUs of one model on one node that are no longer both free
11. cost                             where the operator has given prices (price.py); with `policy: cheapest` it stands for term 1

Above these, or after the first where the job orders its GPU types, stands the predicted step time of a job that says what it trains
(fastest.py). Terms that cannot differ (a level with one domain) are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import combinations

import numpy as np

from fmsched.catalogue import strength_tflops
from fmsched.model.fabric import Topology
from fmsched.model.hardware import GpuSpec, NodeShape
from fmsched.model.job import GroupKind, Request, ResourceGroup
from fmsched.model.placement import Objective, Term
from fmsched.model.snapshot import Snapshot

TOPOLOGIES_KEPT = 8  # a service has one, tests and what-if questions a few
PREFERENCE = "steps down the preference list"
COST = "cost"
CUT = "NVLink GB/s cut from free GPUs"
LEFT_IN = "free GPUs left in its "
LEVEL_NAMES = ("leaf groups", "pods", "cores")


@dataclass(frozen=True, slots=True)
class Ruler:
    """What the terms of one request on one topology are measured with."""

    levels: tuple[int, ...]  # levels of Topology.domains that can make a difference, narrowest first
    level_names: tuple[str, ...]
    strength: dict[str, int]  # by model: how many weaker strengths there are in the cluster
    best_pair: int  # GB/s: the fastest pair inside any node shape
    first: str = PREFERENCE  # what preference_step() counts
    cost: Mapping[str, int] = field(
        default_factory=dict
    )  # by model, where the cost is the last term; empty: it is not a term there

    @property
    def names(self) -> tuple[str, ...]:
        """Of all terms, in order of importance."""
        wide_first = [
            name
            for level in reversed(self.level_names)
            for name in (f"{level} spanned by the job", f"{level} spanned by its groups")
        ]
        return (
            self.first,
            *(("instances across leaf groups",) if self.levels else ()),
            "instances across nodes",
            *wide_first,
            "nodes",
            "steps up in GPU strength",
            "GPUs that leave whole cells",
            "free GPUs left on its nodes",
            *(LEFT_IN + level for level in self.level_names),
            "NVLink GB/s missing inside instances",
            CUT,
            *((COST,) if self.cost else ()),
        )


@lru_cache(maxsize=TOPOLOGIES_KEPT)
def ruler_of(topology: Topology) -> Ruler:
    """The ruler of a cluster; the same for every request, and computed once per topology."""
    shapes = list(dict.fromkeys(node.shape for node in topology.nodes))
    specs = {spec.model: spec for shape in shapes for spec in shape.gpus}
    tflops = {model: strength_tflops(spec) for model, spec in specs.items()}
    steps = {value: i for i, value in enumerate(sorted(set(tflops.values())))}
    best = max(
        (pair_gbytes_per_s(shape, i, j) for shape in shapes for i, j in combinations(range(len(shape.gpus)), 2)), default=0
    )
    levels: list[int] = []
    for level, domains in enumerate(topology.domains):
        if len(np.unique(domains)) > 1 and not (levels and np.array_equal(domains, topology.domains[levels[-1]])):
            levels.append(level)
    names = tuple(LEVEL_NAMES[level] if level < len(LEVEL_NAMES) else f"domains of level {level}" for level in levels)
    return Ruler(tuple(levels), names, {model: steps[value] for model, value in tflops.items()}, best)


def pair_gbytes_per_s(shape: NodeShape, i: int, j: int) -> int:
    """NVLink between two GPUs of a node, whole GB/s: finer differences decide nothing."""
    return round(min(shape.nvlink[i][j], shape.nvlink[j][i]))


def preference_step(group: ResourceGroup, spec: GpuSpec) -> int:
    """Position of the GPU's family in the group's order; tolerated families share the place after the preferred ones. Where the group
    has costs, what the GPU costs above the cheapest."""
    if group.costs:
        return dict(group.costs)[spec.model]
    return group.preferred.index(spec.family) if spec.family in group.preferred else len(group.preferred)


def cells_lost(shape_gpus: int, free: int, taken: int) -> int:
    """GPUs that are no longer part of a whole free cell of 2, 4, 8… (up to the node's size), summed over the sizes."""
    lost = 0
    size = 2
    while size <= shape_gpus:
        lost += size * (free // size - (free - taken) // size)
        size *= 2
    return lost


def pairs_gbytes_per_s(shape: NodeShape, gpus: Iterable[int]) -> int:
    """NVLink between all pairs of GPUs of one model among `gpus` of a node, GB/s."""
    pairs = combinations(sorted(gpus), 2)
    return sum(pair_gbytes_per_s(shape, i, j) for i, j in pairs if shape.gpus[i].model == shape.gpus[j].model)


@dataclass(frozen=True, slots=True)
class _Size:
    """Of a cluster: GPUs of its biggest node and of all nodes, and how many domains each level has."""

    biggest: int
    gpus: int
    domains: tuple[int, ...]


@lru_cache(maxsize=TOPOLOGIES_KEPT)
def _size_of(topology: Topology) -> _Size:
    counts = [len(node.shape.gpus) for node in topology.nodes]
    return _Size(max(counts, default=0), sum(counts), tuple(len(np.unique(level)) for level in topology.domains))


def terms_max(snapshot: Snapshot, request: Request, ruler: Ruler) -> tuple[int, ...]:
    """No placement of the request has a term above these; in the order of ruler.names. They make the weights."""
    topology = snapshot.topology
    gpus, groups, instances = request.gpus, request.groups, request.replicas * len(request.groups)
    size = _size_of(topology)
    biggest, total = size.biggest, size.gpus
    nodes = min(gpus, len(topology.nodes))
    chain = [group for group in groups if group.kind is GroupKind.PIPELINE_PARALLEL]
    spans = []
    for level in reversed(ruler.levels):
        count = size.domains[level]
        of_groups = sum(min(count, group.gpus * request.replicas) for group in groups)
        if len(chain) > 1:
            of_chain = min(count, sum(group.gpus for group in chain))
            of_groups = request.replicas * of_groups + len(chain) * request.replicas * of_chain
        spans += [min(count, gpus), of_groups]
    pairs = biggest * (biggest - 1) // 2
    return (
        sum(
            request.replicas * group.gpus * max((cost for _, cost in group.costs), default=len(group.preferred))
            for group in groups
        ),
        *((instances,) if ruler.levels else ()),
        instances,
        *spans,
        nodes,
        gpus * max(ruler.strength.values(), default=0),
        nodes * biggest * max(1, biggest.bit_length()),
        nodes * biggest,
        *(total for _ in ruler.levels),
        sum(request.replicas * group.gpus * (group.gpus - 1) // 2 for group in groups) * ruler.best_pair,
        nodes * pairs * ruler.best_pair,
        *((gpus * max(ruler.cost.values()),) if ruler.cost else ()),
    )


def weights(maxima: Sequence[int]) -> tuple[int, ...]:
    """Weights under which one step of a term outweighs all later terms together; the last weighs 1."""
    found = [1]
    for most in reversed(maxima[1:]):
        found.append(found[-1] * (most + 1))
    return tuple(reversed(found))


def objective(ruler: Ruler, maxima: Sequence[int], values: Sequence[int], bound: int | None) -> Objective:
    """The value of a placement with its proven bound, a weighted sum of terms; None: the placement is proven best."""
    scale = weights(maxima)
    terms = tuple(Term(name, float(w), float(v)) for name, w, v in zip(ruler.names, scale, values, strict=True))
    value = sum(w * v for w, v in zip(scale, values, strict=True))
    proven = bound is None or bound >= value
    return Objective(float(value), below(float(bound or 0), float(value), proven=proven), terms)


def left_out(ruler: Ruler, maxima: Sequence[int], gpus: int) -> int:
    """What the count model leaves out of the weighted sum: it counts free GPUs in touched domains before the job's are taken."""
    scale = weights(maxima)
    return sum(weight * gpus for weight, name in zip(scale, ruler.names, strict=True) if name.startswith(LEFT_IN))


def below(bound: float, value: float, *, proven: bool) -> float:
    """Rounding must never make an unproven bound look like a proof."""
    if proven:
        return value
    return min(bound, float(np.nextafter(value, -np.inf)))
