"""Whether a job fits at all, by counting: exact where it answers, and far cheaper than any search. What explanations ask again and again.

It answers for jobs of one group, and for cells beside smaller instances (8 + 1) of which one group may be bound to a zone.

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
    if (
        problem.feeds
        or any(group.apart for group in problem.request.groups)
        or not all(ways.exact for ways in problem.ways)
    ):
        return None
    if problem.chains is not None and problem.chains.zones is not None:
        return None  # whole chains in every zone
    if len(problem.request.groups) > 1:
        return _two_sizes_fit(problem)
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
        if asked > sum(item.count * (item.most // size) for item in problem.bins):
            return True
    return False


def _two_sizes_fit(problem: Problem) -> bool | None:
    """Groups of two sizes, the larger a multiple of the smaller, any GPU for any of them; one group of the smaller size may have to
    lie in one zone. Then the larger ones go elsewhere first, and what they leave of a zone is counted."""
    groups, replicas = problem.request.groups, problem.request.replicas
    bound = [g for g, zones in enumerate(problem.group_zones) if zones is not None and zones.count > 1]
    sizes = sorted({group.gpus for group in groups})
    # A node with room for an instance takes it, of whatever group: else counting over nodes says nothing.
    alike = all(
        ways.chain
        and {g for each in ways.items for g in each.groups}
        == {g for g, group in enumerate(groups) if group.gpus <= item.most}
        for item, ways in zip(problem.bins, problem.ways, strict=True)
    )
    if problem.spans or problem.stages or not alike or len(sizes) > 2 or len(bound) > 1:
        return None
    small, large = sizes[0], sizes[-1]
    if not bound:
        return True  # sizes that divide one another fit exactly when there is room for each size, which was seen
    zones = problem.group_zones[bound[0]]
    if zones is None or not zones.complete or groups[bound[0]].gpus != small:
        return None
    # What is not bound, but of the small size, counts with the large ones only where there is one size in all.
    loose = sum(group.gpus == small for group in groups) - 1
    if loose and small != large:
        return None
    cells = replicas * (loose if small == large else sum(group.gpus == large for group in groups))
    inside: defaultdict[int, tuple[int, int]] = defaultdict(lambda: (0, 0))  # by zone: room for cells, for small ones
    total = 0
    for b, item in enumerate(problem.bins):
        room = item.count * (item.most // large), item.count * (item.most // small)
        total += room[0]
        for zone in zones.of_bin[b]:
            before = inside[zone]
            inside[zone] = before[0] + room[0], before[1] + room[1]
    for for_cells, for_small in inside.values():
        here = max(0, cells - (total - for_cells))
        if here <= for_cells and for_small - here * (large // small) >= replicas:
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
