"""Whether a job fits at all, by counting: exact for jobs of one group, and far cheaper than any search. What explanations ask again and
again. Of jobs of several groups counting can only tell that they do not fit.

On one node, instances of one group lie side by side without harm, so nodes hold what they hold, and a zone holds the sum. Instances that
may span nodes take any GPUs of one model in their zone (and NVLink domain) where all GPUs of a node are alike: then the pool's GPUs,
divided by the size of an instance, say how many.
"""

from __future__ import annotations

from collections import defaultdict

from fmsched.place.problem import Problem
from fmsched.place.ways import Ways


def fits(problem: Problem) -> bool | None:
    """Whether the request has a placement; None where counting cannot tell."""
    if _short_of_gpus(problem):
        return False
    if len(problem.request.groups) > 1 or not all(ways.exact for ways in problem.ways):
        return None
    room = _room_by_zone(problem)
    if room is None:
        return None
    return max(room.values(), default=0) >= problem.request.replicas


def _short_of_gpus(problem: Problem) -> bool:
    """Whether instances of some size and more need more room than all nodes together have, wherever they may lie."""
    request = problem.request
    sizes = {1} if problem.spans else {1, *(group.gpus for group in request.groups)}
    for size in sizes:
        asked = request.replicas * sum(group.gpus // size for group in request.groups)
        if asked > sum(item.count * (len(item.free) // size) for item in problem.bins):
            return True
    return False


def _room_by_zone(problem: Problem) -> dict[int, int] | None:
    """By zone in which the whole group must lie (one zone where it need not): how many instances there is room for."""
    zones, size = problem.group_zones[0], problem.request.groups[0].gpus
    if zones is not None and not zones.complete:
        return None
    room: defaultdict[int, int] = defaultdict(int)
    pools: defaultdict[tuple[int, int, str, str], int] = defaultdict(
        int
    )  # (the group's zone, the instance's, domain, model): GPUs
    for b, (item, ways) in enumerate(zip(problem.bins, problem.ways, strict=True)):
        homes = zones.of_bin[b] if zones is not None else (0,)
        spans = problem.span_zones[0][b]
        if not spans or not any(each.fragment for each in ways.items):
            for zone in homes:
                room[zone] += item.count * _whole(ways, size)
            continue
        if len(spans) > 1 or not ways.chain:
            return None  # zones that overlap, or GPUs of a node that are not alike
        zone, domain = spans[0]
        for home in homes if zones is None else (zone,):
            pools[home, zone, domain, ways.items[0].model] += item.count * max(way.gpus for way in ways.ways)
    for (home, _, _, _), gpus in pools.items():
        room[home] += gpus // size
    return room


def _whole(ways: Ways, size: int) -> int:
    """The most instances of the group that lie wholly on one such node."""
    if ways.chain:
        return max(way.gpus for way in ways.ways) // size
    whole = [i for i, item in enumerate(ways.items) if not item.fragment]
    return max((sum(way.counts[i] for i in whole) for way in ways.ways), default=0)
