"""Which zones of a request are domains of the fabric, so that the tables can keep to them; None where some are not."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from fmsched.place.problem import Problem, apart_domains
from fmsched.place.zones import Zones


@dataclass(frozen=True, slots=True)
class Limits:
    """Zones that are domains: by level of Topology.domains, groups that lie whole in one, pairs with as many in each, and what the
    instances in each are a multiple of (folded stages)."""

    whole: Mapping[int, tuple[int, ...]]
    equal: Mapping[int, tuple[tuple[int, int], ...]]
    apart: Mapping[int, tuple[int, ...]]  # groups with one instance in a domain at most
    multiple: Mapping[int, int]


def limits_of(problem: Problem) -> Limits | None:
    if not _nested(problem):
        return None
    whole: defaultdict[int, list[int]] = defaultdict(list)
    equal: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    for g, zones in enumerate(problem.group_zones):
        if zones is not None and len({zone for of_bin in zones.of_bin for zone in of_bin}) > 1:
            level = _level_of(problem, zones)
            if level is None:
                return None
            whole[level].append(g)
    for stage in problem.stages:
        if len({zone for of_bin in stage.zones.of_bin for zone in of_bin}) > 1:
            level = _level_of(problem, stage.zones)
            if level is None:
                return None
            equal[level].append((stage.first, stage.second))
    apart: defaultdict[int, list[int]] = defaultdict(list)
    for g, domains in apart_domains(problem).items():
        level = next((at for at in problem.ruler.levels if problem.snapshot.topology.domains[at].tolist() == domains), None)
        if level is None:
            return None  # one domain in all: the count model says what that means
        apart[level].append(g)
    multiple: dict[int, int] = {}
    chains = problem.chains
    if chains is not None and chains.zones is not None and len({z for zones in chains.zones.of_bin for z in zones}) > 1:
        level = _level_of(problem, chains.zones)
        if level is None:
            return None
        multiple[level] = chains.length * chains.gpus
    return Limits(
        {k: tuple(v) for k, v in whole.items()},
        {k: tuple(v) for k, v in equal.items()},
        {k: tuple(v) for k, v in apart.items()},
        multiple,
    )


def _nested(problem: Problem) -> bool:
    domains = problem.snapshot.topology.domains
    levels = problem.ruler.levels
    return all(
        len({(int(a), int(b)) for a, b in zip(domains[low], domains[high], strict=True)}) == len(set(domains[low].tolist()))
        for low, high in pairwise(levels)
    )


def _level_of(problem: Problem, zones: Zones) -> int | None:
    """The level whose domains are exactly these zones, on the leaf groups in use."""
    if any(len(of_bin) != 1 for of_bin in zones.of_bin):
        return None
    for level in problem.ruler.levels:
        domain = problem.snapshot.topology.domains[level]
        pairs = {(int(domain[item.leaf]), of_bin[0]) for item, of_bin in zip(problem.bins, zones.of_bin, strict=True)}
        if len(pairs) == len({a for a, _ in pairs}) == len({b for _, b in pairs}):
            return level
    return None
