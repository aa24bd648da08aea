"""Pipelines: jobs of several PipelineParallel groups, whose replicas each run a chain of stages, and what a domain with some of their
instances costs in spread.

R replicas of p stages are a grid of R·p instances: a stage's row talks as a data-parallel group, a replica's column as a pipeline. The
spread of all of them together (measure.py) is a sum over domains: a domain that holds instances of s stages and of r replicas adds
R·s + p·r. Which instance is which is settled last (gridmap.py), but a domain with n instances has r·s ≥ n, with n_g of stage g
r ≥ n_g, so what it adds at least is known before. The tables and the count model minimise that.

Stages that are equal in all but their name are folded: one group of R·p instances. Where neighbouring stages must be near each other,
and nearness passes on, each replica lies whole in one zone, and a zone holds a multiple of p.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from fmsched.model.fabric import Topology
from fmsched.model.job import GroupKind, Request, ResourceGroup
from fmsched.place import relations
from fmsched.place.hosts import Bin
from fmsched.place.zones import Zones, zones_of

Ints = npt.NDArray[np.int64]
SHAPES_KEPT = 256


@dataclass(frozen=True, slots=True)
class Chains:
    """The pipelines of a job with several stages.

    asked     the request as it came
    stages    its PipelineParallel groups
    folded    whether the problem's one group stands for all of them
    zones     folded: every replica lies whole in one of these; None: anywhere
    whole     folded: levels of Topology.domains in one domain of which every replica lies whole, because zones do
    gpus      how many of what is counted make one instance: 1, but where GPUs are counted instead of instances
    """

    asked: Request
    stages: tuple[int, ...]
    folded: bool
    zones: Zones | None = None
    whole: frozenset[int] = frozenset()
    gpus: int = 1

    @property
    def length(self) -> int:
        return len(self.stages)


def chains_of(topology: Topology, bins: Sequence[Bin], request: Request, *, fold: bool = True) -> Chains | None:
    """The chains of a request; None where it has fewer than two stages."""
    stages = stages_of(request)
    if len(stages) < 2:
        return None
    if not fold or not _alike(request):
        return Chains(request, stages, folded=False)
    reaches = tuple(dict.fromkeys(reach for _, _, of in relations.stage_pairs(request) for reach in of))
    zones = zones_of(topology, bins, reaches) if reaches else None
    if zones is not None and not (zones.disjoint and zones.complete):
        return Chains(request, stages, folded=False)
    return Chains(request, stages, folded=True, zones=zones)


def kept(chains: Chains, topology: Topology, bins: Sequence[Bin], numbers: Sequence[int]) -> Chains:
    """The chains of a problem that keeps only the bins with these numbers."""
    if chains.zones is None:
        return chains
    zones = Zones(
        tuple(chains.zones.of_bin[b] for b in numbers), chains.zones.count, chains.zones.disjoint, chains.zones.complete
    )
    whole = set()
    for level, domain in enumerate(topology.domains):
        pairs = {(of_bin[0], int(domain[bins[b].leaf])) for of_bin, b in zip(zones.of_bin, numbers, strict=True)}
        if len(pairs) == len({zone for zone, _ in pairs}):
            whole.add(level)
    return replace(chains, zones=zones, whole=frozenset(whole))


def stages_of(request: Request) -> tuple[int, ...]:
    return tuple(g for g, group in enumerate(request.groups) if group.kind is GroupKind.PIPELINE_PARALLEL)


def _alike(request: Request) -> bool:
    """Whether all groups are stages that no rule tells apart. Rules that hold inside one group or along one link keep them apart."""
    first = request.groups[0]
    if first.kind is not GroupKind.PIPELINE_PARALLEL or first.apart or (first.reach and first.reach.reserve_gbps):
        return False
    return all(replace(group, name=first.name) == first for group in request.groups)


def folded(request: Request) -> Request:
    """All stages as one group."""
    group: ResourceGroup = request.groups[0]
    return replace(request, groups=(group,), replicas=request.replicas * len(request.groups))


# --- what a domain adds to the spread, at least


@lru_cache(maxsize=SHAPES_KEPT)
def least_by_count(replicas: int, stages: int) -> Ints:
    """[n]: the least that a domain with n instances adds, over all r ≤ R and s ≤ p with r·s ≥ n."""
    n = np.arange(replicas * stages + 1, dtype=np.int64)[:, None]
    of_stages = np.arange(1, stages + 1, dtype=np.int64)[None, :]
    of_replicas = -(-n // of_stages)
    cost = replicas * of_stages + stages * of_replicas
    cost[of_replicas > replicas] = np.iinfo(np.int64).max
    found: Ints = cost.min(axis=1)
    found[0] = 0
    found.flags.writeable = False
    return found


def rectangles(replicas: int, stages: int) -> list[tuple[int, int]]:
    """(instances, what a domain that holds so many adds at least), only those that no dearer one holds more than."""
    least = least_by_count(replicas, stages).tolist()
    return [(n, least[n]) for n in range(1, len(least)) if n + 1 == len(least) or least[n + 1] > least[n]]


def least_spread(chains: Chains | None, replicas: int, level: int, numbers: Ints) -> Ints:
    """What a domain of a level adds to the spread of the groups, at least.

    numbers[g, …]   instances of group g in it
    replicas        the problem's
    """
    touched: Ints = (numbers > 0).sum(axis=0, dtype=np.int64)
    if chains is None:
        return touched
    if chains.folded:
        if level in chains.whole:
            of_replicas: Ints = numbers[0] // chains.gpus + chains.asked.replicas * chains.length * touched
            return of_replicas
        least = least_by_count(chains.asked.replicas, chains.length)
        found: Ints = least[-(-numbers[0] // chains.gpus)]
        return found
    most: Ints = numbers[list(chains.stages)].max(axis=0)
    every: Ints = replicas * touched + chains.length * most
    return every


def spread_of_one(chains: Chains | None, groups: int) -> int:
    """What the job adds where it lies whole in one domain: the least that there is. `groups`: of the problem."""
    if chains is None:
        return groups
    asked = chains.asked
    return asked.replicas * len(asked.groups) + chains.length * asked.replicas


def spread_most(chains: Chains | None, instances: int) -> int:
    """No sum over domains is greater, with so many instances in the problem."""
    if chains is None:
        return instances
    return instances * (chains.asked.replicas + chains.length)
