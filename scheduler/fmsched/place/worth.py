"""Which leaf groups can hold a part of a best placement at all. Counting alone says it, for jobs of one group.

The first terms of the objective are the preference list, then the domains spanned, widest first. Where the whole job fits on its most
preferred GPUs, a best placement therefore spans as few domains of the widest level as can hold it, among those as few of the next,
and so on down. How many instances a domain holds is a plain sum over its nodes, so both are known before any table is made.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from fmsched.place.options import Raw
from fmsched.place.problem import Problem


@dataclass(frozen=True, slots=True)
class Worth:
    """The leaf groups that some best placement may use. Where it takes several domains of a level inside one wider domain, how many it
    takes: `level` is the position in ruler.levels (-1: not known), `number` how many."""

    leaves: frozenset[int]
    level: int = -1
    number: int = 0
    room: Mapping[int, int] = field(
        default_factory=dict
    )  # by leaf group, instances on the most preferred GPUs; empty: not all fit there


def leaves_worth(
    problem: Problem, raw: Raw, whole: frozenset[int], unit: int = 1, multiple: Mapping[int, int] | None = None
) -> Worth:
    """`whole`: levels in one domain of which the job must lie. Every leaf group takes a multiple of `unit` instances, every domain of
    a level in `multiple` one of that.

    All leaf groups where the job has several groups, or does not fit on its most preferred GPUs.
    """
    every = Worth(frozenset(item.leaf for item in problem.bins))
    if len(problem.request.groups) > 1:
        return every
    room = {leaf: size - size % unit for leaf, size in _room(problem, raw).items()}
    candidates: list[Sequence[int]] = [sorted(room)]
    bands_room = room if problem.chains is None else {}  # bands.py knows nothing of the spread of chains
    levels = problem.ruler.levels

    def held(part: Iterable[int], at: int) -> int:
        """The instances that a domain of level number `at` holds, at most."""
        for level, of in (multiple or {}).items():
            if level in levels[: at + 1]:
                return sum(
                    size - size % of
                    for inner in _domains(problem, level, part)
                    if (size := sum(room[leaf] for leaf in inner))
                )
        return sum(room[leaf] for leaf in part)

    for at in reversed(range(len(levels))):
        one = any(level in whole for level in levels[: at + 1])
        parts = [_domains(problem, levels[at], leaves) for leaves in candidates]
        fewest = [_fewest([held(part, at) for part in mine], problem.request.replicas) for mine in parts]
        allowed = [number for number in fewest if number is not None and (number == 1 or not one)]
        if not allowed:
            return every
        best = min(allowed)
        if best > 1:
            kept = [
                part
                for mine, number in zip(parts, fewest, strict=True)
                if number == best
                for part in _of_use(problem, [held(part, at) for part in mine], mine, best)
            ]
            return Worth(frozenset(leaf for part in kept for leaf in part), at, best, bands_room)
        candidates = [part for mine in parts for part in mine if held(part, at) >= problem.request.replicas]
    found = frozenset(leaf for leaves in candidates for leaf in leaves)
    return Worth(found, room=bands_room) if found else every


def _room(problem: Problem, raw: Raw) -> dict[int, int]:
    """By leaf group: how many instances its nodes hold on the job's most preferred GPUs."""
    most = {
        key: max((vector[0] for vector, terms, _, _ in options if not terms[0]), default=0) for key, options in raw.items()
    }
    room: defaultdict[int, int] = defaultdict(int)
    for item, ways in zip(problem.bins, problem.ways, strict=True):
        room[item.leaf] += item.count * most[id(ways)]
    return dict(room)


def _domains(problem: Problem, level: int, leaves: Iterable[int]) -> list[list[int]]:
    domain = problem.snapshot.topology.domains[level]
    parts: defaultdict[int, list[int]] = defaultdict(list)
    for leaf in leaves:
        parts[int(domain[leaf])].append(leaf)
    return list(parts.values())


def _fewest(sizes: Iterable[int], wanted: int) -> int | None:
    """How many of the largest hold `wanted` together; None where all of them do not."""
    held = 0
    for number, size in enumerate(sorted(sizes, reverse=True), 1):
        held += size
        if held >= wanted:
            return number
    return None


def _of_use(problem: Problem, sizes: Sequence[int], parts: list[list[int]], number: int) -> list[list[int]]:
    """The parts, of these sizes, that can be one of `number` that hold the job: with the largest others they do."""
    largest = sorted(sizes, reverse=True)
    found = []
    for part, size in zip(parts, sizes, strict=True):
        others = sum(largest[:number]) - size if size >= largest[number - 1] else sum(largest[: number - 1])
        if size + others >= problem.request.replicas:
            found.append(part)
    return found
