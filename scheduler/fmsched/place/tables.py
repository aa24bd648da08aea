"""The same question as cpsat's, by dynamic programming: exact, and faster where instances keep to nodes and groups are few.

All terms of the objective are sums over nodes, leaf groups and wider domains. So the best way to lay n instances (a vector, one
number per group) into a domain is the best split of n over its parts, and tables of "best cost by n" are merged upwards: node
by node inside all leaf groups at once, leaf groups into pods, pods into wider domains. The tables answer with a proof, so no
search follows. They do not apply (None) where instances span nodes, where zones are not domains of the fabric, and where there
are more states than are worth it; then the count model decides.

A cost is the whole lexicographic objective, packed into as few 64-bit numbers ("limbs") as hold it, compared limb by limb.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import gcd, prod

import numpy as np
import numpy.typing as npt

from fmsched.place.cpsat import Counts, Found, Infeasible
from fmsched.place.objective import LEFT_IN, preference_step
from fmsched.place.problem import Problem
from fmsched.place.ways import Item, Way, Ways
from fmsched.place.zones import Zones

STATES_MAX = 4096  # entries of one table: the product of (replicas + 1) over the groups
OPTIONS_MAX = 400  # mixtures of groups on one kind of node
WORK_MAX = 60_000_000  # table entries touched: about a second
LIMB_BITS = 60
NONE = 1 << 61  # no such placement; a sum of two still fits 64 bits

Ints = npt.NDArray[np.int64]
Vector = tuple[int, ...]
Limbs = list[Ints]


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


@dataclass(frozen=True, slots=True)
class Step:
    """One node more in some leaf groups; choice[i, state]: option taken (0: none, else number + 1) in leaf group rows[i]."""

    kind: Kind
    position: int  # which of the leaf group's nodes of this kind
    row_of: Mapping[int, int]
    choice: npt.NDArray[np.int16]


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

    def pack(self, values: Mapping[int, int]) -> Vector:
        """By limb, the cost of these term values."""
        found = [0] * self.count
        for term, value in values.items():
            limb, weight = self._limb[term]
            found[limb] += weight * (value // self._units[term])
        return tuple(found)


def search(problem: Problem) -> Found | Infeasible | None:
    """The best counts, proven; None where the tables do not apply."""
    shape = tuple(problem.request.replicas + 1 for _ in problem.request.groups)
    if not problem.bins or prod(shape) > STATES_MAX:
        return None
    if problem.spans:
        return None
    limits = _limits(problem)
    if limits is None:
        return None
    raw = _raw_options(problem)
    if raw is None:
        return None
    leaves = sorted({item.leaf for item in problem.bins})
    packing = _packing(problem, raw)
    kinds = _kinds(problem, raw, packing, leaves)
    if _work(kinds, len(leaves), prod(shape)) > WORK_MAX:
        return None
    return _Tables(problem, packing, kinds, leaves, limits, shape).run()


def _work(kinds: Sequence[Kind], leaves: int, states: int) -> int:
    steps = sum(max(map(len, kind.bins)) * len(kind.options) for kind in kinds)
    return steps * leaves * states + leaves * states * states // 2


# --- what applies ---


@dataclass(frozen=True, slots=True)
class Limits:
    """Zones that are domains: by level of Topology.domains, groups that lie whole in one, and pairs with as many in each."""

    whole: Mapping[int, tuple[int, ...]]
    equal: Mapping[int, tuple[tuple[int, int], ...]]


def _limits(problem: Problem) -> Limits | None:
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
    return Limits({k: tuple(v) for k, v in whole.items()}, {k: tuple(v) for k, v in equal.items()})


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


# --- options of one node ---

Raw = dict[int, list[tuple[Vector, dict[int, int], int, tuple[tuple[int, int, int], ...]]]]  # by id of Ways


def _raw_options(problem: Problem) -> Raw | None:
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
    preference = missing = 0
    for i, g, n in whole:
        item: Item = ways.items[i]
        group = problem.request.groups[g]
        preference += n * item.size * preference_step(group, item.spec)
        missing += n * item.missing
    nodes = names.index("nodes")
    return {
        0: preference,
        nodes: 1,
        nodes + 1: way.strength,
        nodes + 2: way.cells,
        nodes + 3: way.left,
        len(names) - 2: missing + way.missing,
        len(names) - 1: way.cut,
    }


def _packing(problem: Problem, raw: Raw) -> Packing:
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
            most.append(instances * 2)
    return Packing(units, most)


def _kinds(problem: Problem, raw: Raw, packing: Packing, leaves: Sequence[int]) -> list[Kind]:
    row = {leaf: at for at, leaf in enumerate(leaves)}
    useful = problem.request.replicas * len(problem.request.groups)
    bins: dict[int, list[list[int]]] = {}
    for b, item in enumerate(problem.bins):
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


# --- tables ---


@dataclass(frozen=True, slots=True)
class Merge:
    """One part more in some domains; choice[i, state]: the part's share, as a flat state, in domain rows[i]."""

    part_of: Mapping[int, int]  # domain's row → row of the part in the table below
    row_of: Mapping[int, int]
    choice: npt.NDArray[np.int32]


@dataclass(slots=True)
class Level:
    merges: list[Merge]
    domain_of: dict[int, int]  # row below → row here


class _Tables:
    """The tables of one request, and the way back from the best entry to counts."""

    def __init__(
        self,
        problem: Problem,
        packing: Packing,
        kinds: Sequence[Kind],
        leaves: Sequence[int],
        limits: Limits,
        shape: Vector,
    ) -> None:
        self._problem, self._packing, self._kinds = problem, packing, kinds
        self._leaves, self._limits, self._shape = leaves, limits, shape
        self._steps: list[Step] = []
        self._levels: list[Level] = []
        self._groups = len(problem.request.groups)

    def run(self) -> Found | Infeasible:
        tables = self._leaf_tables()
        topology, levels = self._problem.snapshot.topology, self._problem.ruler.levels
        labels = list(self._leaves)
        for at, level in enumerate(levels):
            domains = [int(topology.domains[level][leaf]) for leaf in labels]
            if at > 0:
                tables, labels = self._merge(tables, domains, labels)
            self._close(tables, level, labels)
        if len(labels) > 1:
            tables = self._merge_last(tables, labels)
        if tables[0].reshape(len(tables[0]), -1)[0, -1] >= NONE:
            return Infeasible()
        return Found(self._counts(), None, self._packing.value(0, [int(limb.reshape(-1)[-1]) for limb in tables]))

    def _empty(self, rows: int) -> Limbs:
        """Nothing placed costs nothing; nothing else is known."""
        limbs = [np.zeros((rows, *self._shape), dtype=np.int64) for _ in range(self._packing.count)]
        limbs[0][...] = NONE
        limbs[0].reshape(rows, -1)[:, 0] = 0
        return limbs

    def _leaf_tables(self) -> Limbs:
        tables = self._empty(len(self._leaves))
        for kind in self._kinds:
            for position in range(max(map(len, kind.bins))):
                rows = [row for row, bins in enumerate(kind.bins) if len(bins) > position]
                before = [limb[rows] for limb in tables]
                after = [limb.copy() for limb in before]
                choice = np.zeros(after[0].shape, dtype=np.int16)
                for number, option in enumerate(kind.options):
                    self._offer(after, before, choice, option.vector, [np.int64(cost) for cost in option.cost], number + 1)
                for limb, new in zip(tables, after, strict=True):
                    limb[rows] = new
                self._steps.append(Step(kind, position, {row: i for i, row in enumerate(rows)}, choice))
        return tables

    def _offer(
        self,
        after: Limbs,
        before: Limbs,
        choice: npt.NDArray[np.signedinteger],
        vector: Vector,
        cost: Sequence[np.int64 | Ints],
        label: int,
    ) -> None:
        """Entry n of `after` becomes entry n - vector of `before` plus cost, where that is better."""
        to = (slice(None), *(slice(n, None) for n in vector))
        of = (slice(None), *(slice(0, size - n) for n, size in zip(vector, self._shape, strict=True)))
        offered = [limb[of] + each for limb, each in zip(before, cost, strict=True)]
        standing = [limb[to] for limb in after]
        better = offered[-1] < standing[-1]
        for new, old in zip(reversed(offered[:-1]), reversed(standing[:-1]), strict=True):
            better = (new < old) | ((new == old) & better)
        better &= offered[0] < NONE
        if better.any():
            for new, old in zip(offered, standing, strict=True):
                np.copyto(old, new, where=better)
            np.copyto(choice[to], label, where=better, casting="same_kind")

    def _close(self, tables: Limbs, level: int, labels: Sequence[int]) -> None:
        """What a whole domain adds, and what must hold in it."""
        problem = self._problem
        names, at = problem.ruler.names, problem.ruler.levels.index(level)
        job = names.index(f"{problem.ruler.level_names[at]} spanned by the job")
        left = names.index(LEFT_IN + problem.ruler.level_names[at])
        domain = problem.snapshot.topology.domains[level]
        free: defaultdict[int, int] = defaultdict(int)
        for leaf, gpus in enumerate(problem.leaf_free):
            free[int(domain[leaf])] += gpus
        numbers = np.indices(self._shape)
        something = numbers.any(axis=0)
        for row, label in enumerate(labels):
            each = self._packing.pack({job: 1, left: free[int(domain[label])]})
            for limb, cost in zip(tables, each, strict=True):
                limb[row][something] += cost
        for g in range(self._groups):
            for limb, cost in zip(tables, self._packing.pack({job + 1: 1}), strict=True):
                limb[:, numbers[g] > 0] += cost
        for g in self._limits.whole.get(level, ()):
            tables[0][:, (numbers[g] > 0) & (numbers[g] < problem.request.replicas)] = NONE
        for first, second in self._limits.equal.get(level, ()):
            tables[0][:, numbers[first] != numbers[second]] = NONE
        tables[0][tables[0] >= NONE] = NONE

    def _merge(self, tables: Limbs, domains: Sequence[int], labels: Sequence[int]) -> tuple[Limbs, list[int]]:
        """Tables of domains from those of their parts; also one leaf group of each, to know it by."""
        order = list(dict.fromkeys(domains))
        parts = [[row for row, domain in enumerate(domains) if domain == wanted] for wanted in order]
        merged = self._empty(len(order))
        merges = [self._add_part(merged, tables, parts, position) for position in range(max(map(len, parts)))]
        self._levels.append(Level(merges, {row: at for at, mine in enumerate(parts) for row in mine}))
        return merged, [labels[mine[0]] for mine in parts]

    def _add_part(self, merged: Limbs, tables: Limbs, parts: Sequence[Sequence[int]], position: int) -> Merge:
        rows = [at for at, mine in enumerate(parts) if len(mine) > position]
        below = [parts[at][position] for at in rows]
        before = [limb[rows] for limb in merged]
        after = [limb.copy() for limb in before]
        choice = np.zeros(after[0].shape, dtype=np.int32)
        part = [limb[below].reshape(len(rows), -1) for limb in tables]
        lift = (slice(None), *(None for _ in self._shape))
        for state in np.flatnonzero((part[0] < NONE).any(axis=0)).tolist():
            if state:
                vector = tuple(int(n) for n in np.unravel_index(state, self._shape))
                self._offer(after, before, choice, vector, [limb[:, state][lift] for limb in part], state)
        for limb, new in zip(merged, after, strict=True):
            limb[rows] = new
        return Merge(dict(zip(rows, below, strict=True)), {row: i for i, row in enumerate(rows)}, choice)

    def _merge_last(self, tables: Limbs, labels: Sequence[int]) -> Limbs:
        """All domains into one. Where one alone holds the job on its preferred GPUs, two can only be worse."""
        last = [limb.reshape(len(labels), -1)[:, -1].tolist() for limb in tables]
        best = min(range(len(labels)), key=lambda row: tuple(limb[row] for limb in last))
        job = self._problem.ruler.names.index(f"{self._problem.ruler.level_names[-1]} spanned by the job")
        if tuple(limb[best] for limb in last) < self._packing.pack({job: 2}):
            merge = Merge({0: best}, {0: 0}, np.zeros((1, *self._shape), dtype=np.int32))
            merge.choice.reshape(-1)[-1] = prod(self._shape) - 1
            self._levels.append(Level([merge], {}))
            return [limb[best : best + 1] for limb in tables]
        return self._merge(tables, [0] * len(labels), labels)[0]

    def _counts(self) -> Counts:
        """Back down from the full vector in the one last domain."""
        wanted = {0: prod(self._shape) - 1}
        for level in reversed(self._levels):
            below: dict[int, int] = {}
            for merge in reversed(level.merges):
                for row, part in merge.part_of.items():
                    state = wanted.get(row, 0)
                    share = int(merge.choice[merge.row_of[row]].reshape(-1)[state])
                    below[part] = share
                    wanted[row] = self._minus(state, share)
            wanted = below
        ways: defaultdict[tuple[int, int], int] = defaultdict(int)
        whole: defaultdict[tuple[int, int, int], int] = defaultdict(int)
        for step in reversed(self._steps):
            for row, i in step.row_of.items():
                state = wanted.get(row, 0)
                taken = int(step.choice[i].reshape(-1)[state]) if state else 0
                if taken:
                    option = step.kind.options[taken - 1]
                    b = step.kind.bins[row][step.position]
                    ways[b, option.way] += 1
                    for item, g, n in option.whole:
                        whole[b, item, g] += n
                    wanted[row] = self._minus(state, int(np.ravel_multi_index(option.vector, self._shape)))
        assert not any(wanted.values()), "every table entry was made from smaller ones"
        return Counts(dict(ways), dict(whole), {}, {})

    def _minus(self, state: int, share: int) -> int:
        """Flat states subtract digit by digit, and no digit of the share is greater."""
        return state - share
