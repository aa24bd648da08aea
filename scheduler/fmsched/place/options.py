"""What one node can do for a request, as tables.py merges it: how many instances of each group, and the cost of that, packed.

A cost is the whole lexicographic objective, packed into as few 64-bit numbers ("limbs") as hold it, compared limb by limb.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import gcd

import numpy as np
import numpy.typing as npt

from fmsched.place.chains import spread_most
from fmsched.place.objective import CUT, LEFT_IN, preference_step
from fmsched.place.problem import Problem
from fmsched.place.ways import Item, Way, Ways

OPTIONS_MAX = 400  # mixtures of groups on one kind of node
LIMB_BITS = 60

Vector = tuple[int, ...]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Option:
    """One way to use one node: how many instances of each group, the cost by limb, and what that is in the count model."""

    vector: Vector
    cost: Vector
    way: int
    whole: tuple[tuple[int, int, int], ...]  # (item, group, how many)


@dataclass(frozen=True, slots=True)
class Kind:
    """Nodes with equal options: by leaf group (position among those in use), the bin of each such node."""

    options: tuple[Option, ...]
    bins: tuple[tuple[int, ...], ...]


class Packing:
    """How terms are laid into limbs: exact, by the greatest value that each can reach."""

    def __init__(self, units: Sequence[int], most: Sequence[int]) -> None:
        self._units, self._most = units, most
        self._limb: list[tuple[int, int]] = [(0, 0)] * len(units)
        limb, weight = 0, 1
        sizes: list[list[int]] = [[]]
        for term, top in enumerate(most):
            if weight * (top + 1) >= 1 << LIMB_BITS and sizes[limb]:
                limb, weight = limb + 1, 1
                sizes.append([])
            sizes[limb].append(term)
            weight *= top + 1
        self.count = len(sizes)
        for number, terms in enumerate(sizes):
            weight = 1
            for term in reversed(terms):
                self._limb[term] = number, weight
                weight *= most[term] + 1

    def value(self, term: int, cost: Sequence[int]) -> int:
        """The value of one term of a packed cost."""
        limb, weight = self._limb[term]
        return cost[limb] // weight % (self._most[term] + 1) * self._units[term]

    @property
    def terms(self) -> int:
        """How many terms there are."""
        return len(self._most)

    def steps(self, term: int, cost: Sequence[int]) -> int:
        """The value of one term, in its unit."""
        return self.value(term, cost) // self._units[term]

    def values(self, cost: Sequence[int]) -> dict[int, int]:
        """The values of all terms of a packed cost."""
        return {term: self.value(term, cost) for term in range(self.terms)}

    def resized(self, most: Sequence[int]) -> Packing:
        """The same terms in the same units, for other greatest values."""
        return Packing(self._units, most)

    def spread(self, costs: Ints, packed: Packing, none: int) -> list[Ints]:
        """By limb, costs that another packing of the same terms holds in one limb; `none` and above stay `none`."""
        found = [np.zeros_like(costs) for _ in range(self.count)]
        for term, (limb, weight) in enumerate(self._limb):
            size = packed._most[term] + 1
            if size > 1:
                found[limb] += costs // packed._limb[term][1] % size * weight
        found[0][costs >= none] = none
        return found

    def pack(self, values: Mapping[int, int]) -> Vector:
        """By limb, the cost of these term values."""
        found = [0] * self.count
        for term, value in values.items():
            limb, weight = self._limb[term]
            found[limb] += weight * (value // self._units[term])
        return tuple(found)


Raw = dict[int, list[tuple[Vector, dict[int, int], int, tuple[tuple[int, int, int], ...]]]]  # by id of Ways


def raw_options(problem: Problem) -> Raw | None:
    found: Raw = {}
    for ways in problem.ways:
        if id(ways) in found:
            continue
        mine = found[id(ways)] = []
        for w, way in enumerate(ways.ways):
            for whole in _splits(ways, way, problem.request.replicas):
                vector = _vector(problem, whole)
                if max(vector) > problem.request.replicas:
                    continue
                mine.append((vector, _terms(problem, ways, way, whole), w, whole))
                if len(mine) > OPTIONS_MAX:
                    return None
    return found


def _splits(ways: Ways, way: Way, replicas: int) -> Iterable[tuple[tuple[int, int, int], ...]]:
    """All (item, group, how many) that use a node in this way."""
    slots = [(i, g, item) for i, item in enumerate(ways.items) for g in item.groups]

    def extend(at: int, left: int, counts: Vector) -> Iterable[tuple[tuple[int, int, int], ...]]:
        if at == len(slots):
            if left == 0 and not any(counts):
                yield ()
            return
        i, g, item = slots[at]
        most = min(left // item.size, replicas, counts[i] if counts else left)
        for n in range(most + 1):
            rest = (*counts[:i], counts[i] - n, *counts[i + 1 :]) if counts else counts
            for tail in extend(at + 1, left - n * item.size, rest):
                yield ((i, g, n), *tail) if n else tail

    return extend(0, way.gpus, way.counts)


def _vector(problem: Problem, whole: Iterable[tuple[int, int, int]]) -> Vector:
    vector = [0] * len(problem.request.groups)
    for _, g, n in whole:
        vector[g] += n
    return tuple(vector)


def _terms(problem: Problem, ways: Ways, way: Way, whole: Iterable[tuple[int, int, int]]) -> dict[int, int]:
    """What a node used so adds to each term; by position of the term."""
    names = problem.ruler.names
    preference = missing = cost = 0
    for i, g, n in whole:
        item: Item = ways.items[i]
        group = problem.request.groups[g]
        preference += n * item.size * preference_step(group, item.spec)
        missing += n * item.missing
        cost += n * item.size * problem.ruler.cost.get(item.model, 0)
    nodes = names.index("nodes")
    last = names.index(CUT)
    found = {
        0: preference,
        nodes: 1,
        nodes + 1: way.strength,
        nodes + 2: way.cells,
        nodes + 3: way.left,
        last - 1: missing + way.missing,
        last: way.cut,
    }
    return found | {last + 1: cost} if problem.ruler.cost else found


def packing(problem: Problem, raw: Raw) -> Packing:
    """Units and greatest values of all terms: no more nodes are touched than there are instances."""
    instances = problem.request.replicas * len(problem.request.groups)
    terms: defaultdict[int, list[int]] = defaultdict(list)
    for options in raw.values():
        for _, values, _, _ in options:
            for term, value in values.items():
                terms[term].append(value)
    units, most = [], []
    for term, name in enumerate(problem.ruler.names):
        if name.startswith(LEFT_IN):
            units.append(1)
            most.append(sum(problem.leaf_free))
        elif term in terms:
            unit = gcd(*terms[term]) or 1
            units.append(unit)
            most.append(instances * max(terms[term]) // unit)
        else:
            units.append(1)
            most.append(2 * spread_most(problem.chains, instances))
    return Packing(units, _tighter(problem, terms, most))


def _tighter(problem: Problem, terms: Collection[int], most: Sequence[int]) -> list[int]:
    """With one group: no more nodes and domains than there are."""
    if len(problem.request.groups) > 1:
        return list(most)
    instances = problem.request.replicas
    nodes = min(instances, sum(item.count for item in problem.bins))
    found = [top // instances * nodes if term in terms else top for term, top in enumerate(most)]
    for level, name in zip(problem.ruler.levels, problem.ruler.level_names, strict=True):
        domain = problem.snapshot.topology.domains[level]
        job = problem.ruler.names.index(f"{name} spanned by the job")
        domains = max(2, len({int(domain[item.leaf]) for item in problem.bins}))  # 2: the least that several are
        for term in (job, job + 1) if problem.chains is None else (job,):
            found[term] = min(found[term], domains)
    return found


def kinds(problem: Problem, raw: Raw, packing: Packing, leaves: Sequence[int]) -> list[Kind]:
    """By kind of node, its options and where such nodes are; leaf groups that are not in `leaves` are left out."""
    row = {leaf: at for at, leaf in enumerate(leaves)}
    useful = problem.request.replicas * len(problem.request.groups)
    bins: dict[int, list[list[int]]] = {}
    for b, item in enumerate(problem.bins):
        if item.leaf not in row:
            continue
        mine = bins.setdefault(id(problem.ways[b]), [[] for _ in leaves])[row[item.leaf]]
        mine.extend([b] * min(item.count, useful - len(mine)))
    found = []
    for key, of_leaf in bins.items():
        best: dict[Vector, Option] = {}
        for vector, values, way, whole in raw[key]:
            option = Option(vector, packing.pack(values), way, whole)
            if vector not in best or option.cost < best[vector].cost:
                best[vector] = option
        found.append(Kind(tuple(best.values()), tuple(map(tuple, of_leaf))))
    return found
