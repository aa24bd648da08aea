"""One group that must lie whole in one of several zones which are no domains of the fabric: the tables, zone by zone.

So it is where links without room cut some leaf groups off from the rest: each of these is a zone by itself, and the rest is one. All
zones of one whole leaf group are one question; every other zone is a question of its own, without zones. The best answer is the
answer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from fmsched.place import tables
from fmsched.place.cpsat import Counts, Found, Infeasible
from fmsched.place.measure import measure
from fmsched.place.problem import Problem
from fmsched.place.ranks import rank_placements
from fmsched.place.realise import cells_of
from fmsched.place.zones import Zones

QUESTIONS_MAX = 64


def search(problem: Problem) -> Found | Infeasible | None:
    """The best counts, proven; None where this does not apply."""
    zones = problem.group_zones[0]
    if len(problem.request.groups) > 1 or problem.spans or zones is None or zones.count < 2:
        return None
    best: tuple[tuple[int, ...], Found] | None = None
    questions = list(_questions(problem, zones))
    for bins, whole in questions if len(questions) <= QUESTIONS_MAX else ():
        part = _part(problem, bins, whole)
        found = tables.search(part)
        if found is None:
            return None
        if isinstance(found, Found):
            back = replace(found, counts=_back(found.counts, bins))
            values = measure(problem, rank_placements(problem, cells_of(problem, back.counts), back.counts))
            if best is None or values < best[0]:
                best = values, back
    if len(questions) > QUESTIONS_MAX:
        return None
    return best[1] if best is not None else Infeasible()


def _questions(problem: Problem, zones: Zones) -> Iterator[tuple[list[int], Zones | None]]:
    """(bins, zones among them; None: any)."""
    members: defaultdict[int, list[int]] = defaultdict(list)
    of_leaf: defaultdict[int, list[int]] = defaultdict(list)
    for b, item in enumerate(problem.bins):
        of_leaf[item.leaf].append(b)
        for zone in zones.of_bin[b]:
            members[zone].append(b)
    size, replicas = problem.request.groups[0].gpus, problem.request.replicas
    alone: list[int] = []
    for zone in sorted(members):
        bins = members[zone]
        if sum(problem.bins[b].count * (len(problem.bins[b].free) // size) for b in bins) < replicas:
            continue  # no room in it, wherever its GPUs are
        if bins == of_leaf[problem.bins[bins[0]].leaf]:
            alone += bins
        else:
            yield bins, None
    if alone:
        leaves = {leaf: number for number, leaf in enumerate(sorted({problem.bins[b].leaf for b in alone}))}
        of_bin = tuple((leaves[problem.bins[b].leaf],) for b in alone)
        yield alone, Zones(of_bin, len(leaves), True, True)


def _part(problem: Problem, bins: Sequence[int], whole: Zones | None) -> Problem:
    return replace(
        problem,
        bins=tuple(problem.bins[b] for b in bins),
        ways=tuple(problem.ways[b] for b in bins),
        group_zones=(whole,),
        span_zones=(tuple(problem.span_zones[0][b] for b in bins),),
    )


def _back(counts: Counts, bins: Sequence[int]) -> Counts:
    """The same with the bins of the whole problem."""
    ways: Mapping[tuple[int, int], int] = {(bins[b], w): n for (b, w), n in counts.ways.items()}
    return replace(counts, ways=ways, whole={(bins[b], i, g): n for (b, i, g), n in counts.whole.items()})
