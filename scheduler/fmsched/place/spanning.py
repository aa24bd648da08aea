"""Instances larger than any node, by the same tables: GPU by GPU instead of instance by instance.

Where no instance fits on one node, all of them lie across nodes, and the best they can do is not to lie across leaf groups as well.
Inside a leaf group any GPUs of one model make an instance. So the question is where R × size single GPUs go, with a whole number
of instances in every leaf group; if that has an answer, nothing is better, and if not, the count model decides.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from fmsched.place import tables
from fmsched.place.counts import PoolKey
from fmsched.place.cpsat import Counts, Found, Infeasible
from fmsched.place.problem import Problem
from fmsched.place.room import fits
from fmsched.place.ways import Ways


def search(problem: Problem) -> Found | Infeasible | None:
    """The best counts, proven, or that there are none.

    None where this does not apply, or no placement keeps its instances inside leaf groups.
    """
    if fits(problem) is False:
        return Infeasible()
    if len(problem.request.groups) > 1 or not _applies(problem):
        return None
    size = problem.request.groups[0].gpus
    found = tables.search(_by_gpu(problem), unit=size)
    if not isinstance(found, Found):
        return None
    return replace(found, counts=_counts(problem, found.counts, size))


def _applies(problem: Problem) -> bool:
    """Nodes of equal GPUs, no instance on one node, one zone for each node, no NVLink domain over nodes, one GPU model a leaf group."""
    models: dict[int, str] = {}
    for b, (item, ways) in enumerate(zip(problem.bins, problem.ways, strict=True)):
        spans = problem.span_zones[0][b]
        alike = ways.chain and ways.exact and len(ways.items) == 1 and ways.items[0].fragment
        if not alike or len(spans) != 1 or spans[0][1]:
            return False
        if models.setdefault(item.leaf, ways.items[0].model) != ways.items[0].model:
            return False
    return bool(problem.bins)


def _by_gpu(problem: Problem) -> Problem:
    """The same question for single GPUs."""
    request = problem.request
    group = replace(request.groups[0], gpus=1)
    single: dict[int, Ways] = {}
    for ways in problem.ways:
        if id(ways) not in single:
            single[id(ways)] = replace(ways, items=(replace(ways.items[0], size=1, fragment=False),))
    return replace(
        problem,
        request=replace(request, groups=(group,), replicas=request.replicas * request.groups[0].gpus),
        ways=tuple(single[id(ways)] for ways in problem.ways),
        span_zones=(tuple(() for _ in problem.bins),),
        spans=False,
        chains=replace(problem.chains, gpus=request.groups[0].gpus) if problem.chains is not None else None,
    )


def _counts(problem: Problem, found: Counts, size: int) -> Counts:
    """Back in the count model's words: GPUs of instances that span nodes, and how many instances each leaf group holds."""
    part: dict[tuple[int, int, int, int], int] = {}
    gpus: defaultdict[tuple[PoolKey, int], int] = defaultdict(int)
    for (b, _, _), number in found.whole.items():
        zone = problem.span_zones[0][b][0][0]
        part[b, 0, 0, zone] = number
        gpus[(0, problem.ways[b].items[0].model, zone, ""), problem.bins[b].leaf] += number
    return Counts(found.ways, {}, part, {key: number // size for key, number in gpus.items()})
