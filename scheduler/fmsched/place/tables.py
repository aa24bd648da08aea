"""The same question as cpsat's, by dynamic programming: exact, and faster where instances keep to nodes and groups are few.

All terms of the objective are sums over nodes, leaf groups and wider domains. So the best way to lay n instances (a vector, one
number per group) into a domain is the best split of n over its parts, and tables of "best cost by n" are merged upwards: node
by node inside all leaf groups at once, leaf groups into pods, pods into wider domains. The tables answer with a proof, so no
search follows. They do not apply (None) where instances span nodes, where zones are not domains of the fabric, and where there
are more states than are worth it; then the count model decides.

What one node can do, and how costs are packed into limbs, is in options.py; which leaf groups are worth a table, in worth.py.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import numpy.typing as npt

from fmsched.place.bands import Bands, bands_of, domain_numbers
from fmsched.place.chains import least_spread, spread_of_one
from fmsched.place.cpsat import Counts, Found, Infeasible
from fmsched.place.limits import Limits, limits_of
from fmsched.place.objective import LEFT_IN
from fmsched.place.onegroup import NONE, CountMerge, LeafStep, default_bands, leaf_tables, merge
from fmsched.place.options import Kind, Packing, Vector, kinds, packing, raw_options
from fmsched.place.problem import Problem
from fmsched.place.room import fits
from fmsched.place.worth import Worth, leaves_worth

STATES_MAX = 8192  # entries of one table: the product of (replicas + 1) over the groups
WORK_MAX = 100_000_000  # table entries touched: about a second

Ints = npt.NDArray[np.int64]
Limbs = list[Ints]


@dataclass(frozen=True, slots=True)
class Step:
    """One node more in some leaf groups; choice[i, state]: option taken (0: none, else number + 1) in leaf group rows[i]."""

    kind: Kind
    position: int  # which of the leaf group's nodes of this kind
    row_of: Mapping[int, int]
    choice: npt.NDArray[np.int16]

    def taken(self, row: int, state: int) -> int:
        """The option taken there; 0: none, else its number + 1."""
        return int(self.choice[self.row_of[row]].reshape(-1)[state])


def search(problem: Problem, unit: int = 1) -> Found | Infeasible | None:
    """The best counts, proven, or that there are none; None where the tables do not apply.

    unit    with one group: every leaf group takes a multiple of so many instances
    """
    found = _search(problem, unit)
    return Infeasible() if found is None and fits(problem) is False else found


def _search(problem: Problem, unit: int) -> Found | Infeasible | None:
    shape = tuple(problem.request.replicas + 1 for _ in problem.request.groups)
    if not problem.bins or prod(shape) > STATES_MAX:
        return None
    if problem.spans:
        return None
    limits = limits_of(problem)
    if limits is None:
        return None
    raw = raw_options(problem)
    if raw is None:
        return None
    worth = Worth(frozenset(item.leaf for item in problem.bins))
    if not limits.equal and not limits.apart:
        worth = leaves_worth(problem, raw, frozenset(limits.whole), unit, limits.multiple)
    packed = packing(problem, raw)
    bands = bands_of(problem, sorted(worth.leaves), worth.room) if worth.room else None
    if bands is not None and bands.work <= WORK_MAX:
        nodes = kinds(problem, raw, packed, bands.leaves)
        found = _Tables(problem, packed, nodes, bands.leaves, limits, shape, unit, bands=bands).run()
        if isinstance(found, Found):
            return found
    leaves = sorted(worth.leaves)
    nodes = kinds(problem, raw, packed, leaves)
    if len(shape) == 1 and sum(rooms(nodes, len(leaves))) < problem.request.replicas:
        return Infeasible()
    if _work(problem, nodes, leaves, shape) > WORK_MAX:
        return None
    return _Tables(problem, packed, nodes, leaves, limits, shape, unit, exactly=(worth.level, worth.number)).run()


def _work(problem: Problem, nodes: Sequence[Kind], leaves: Sequence[int], shape: Vector) -> int:
    """Table entries that will be touched, about."""
    steps = sum(max(map(len, kind.bins)) * len(kind.options) for kind in nodes) * len(leaves)
    if len(shape) > 1:
        states = prod(shape)
        return steps * states + len(leaves) * states * states // 2
    room = rooms(nodes, len(leaves))
    work = steps * min(shape[0], max(room, default=0) + 1)
    full = shape[0] - 1
    for level in [*problem.ruler.levels[1:], None]:
        domains = [0 if level is None else int(problem.snapshot.topology.domains[level][leaf]) for leaf in leaves]
        held: dict[int, int] = {}
        for domain, size in zip(domains, room, strict=True):
            held[domain] = held.get(domain, 0) + size
            first, last = _needed(full, sum(room), held[domain])
            work += min(size, full) * max(0, last - first + 1)
        leaves, room = (
            list({domain: leaf for leaf, domain in zip(leaves, domains, strict=True)}.values()),
            list(held.values()),
        )
    return work


def _needed(full: int, total: int, held: int) -> tuple[int, int]:
    """With one group: from how many instances to how many a table is needed that holds `held` of the `total` that all parts can hold. No
    more than it holds, and no fewer than all other parts leave over."""
    return max(0, full - (total - held)), min(full, held)


def rooms(nodes: Sequence[Kind], leaves: int) -> list[int]:
    """With one group: by leaf group, how many instances its nodes hold."""
    room = [0] * leaves
    for kind in nodes:
        most = max((option.vector[0] for option in kind.options), default=0)
        for row, bins in enumerate(kind.bins):
            room[row] += most * len(bins)
    return room


# --- tables ---


@dataclass(frozen=True, slots=True)
class Merge:
    """One part more in some domains; choice[i, state]: the part's share, as a flat state, in domain rows[i]."""

    part_of: Mapping[int, int]  # domain's row → row of the part in the table below
    row_of: Mapping[int, int]
    choice: npt.NDArray[np.int32]

    def share(self, row: int, state: int) -> int:
        """The part's share of the domain's state."""
        return int(self.choice[self.row_of[row]].reshape(-1)[state])


@dataclass(slots=True)
class Level:
    merges: Sequence[Merge | CountMerge]
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
        unit: int,
        *,
        bands: Bands | None = None,
        exactly: tuple[int, int] = (-1, 0),  # so many domains of this level (position in ruler.levels) hold the job
    ) -> None:
        self._problem, self._packing, self._kinds = problem, packing, kinds
        self._leaves, self._limits, self._shape = leaves, limits, shape
        self._bands, self._exactly = bands, exactly
        self._unit = unit
        self._full = prod(shape) - 1  # the flat state in which everything is placed
        self._steps: Sequence[Step | LeafStep] = []
        self._levels: list[Level] = []
        self._free: dict[int, Mapping[int, int]] = {}
        self._groups = len(problem.request.groups)

    def run(self) -> Found | Infeasible:
        tables = self._leaf_tables()
        if self._unit > 1:
            tables[0][:, np.arange(tables[0].shape[1]) % self._unit != 0] = NONE
        topology, levels = self._problem.snapshot.topology, self._problem.ruler.levels
        labels = list(self._leaves)
        for at, level in enumerate(levels):
            domains = [int(topology.domains[level][leaf]) for leaf in labels]
            if at > 0:
                tables, labels = self._merge(tables, domains, labels, at - 1)
            self._close(tables, level, labels)
            alone = self._alone(tables, at, labels)
            if alone is not None:
                self._keep_only(alone)
                return self._found(tables, alone)
            if self._bands is not None and at == len(self._bands.merges):
                return Infeasible()  # not inside the bands
        if len(labels) > 1:
            tables, labels = self._merge(tables, [0] * len(labels), labels, len(levels) - 1)
        if not self._whole(tables) or tables[0].reshape(len(tables[0]), -1)[0, -1] >= NONE:
            return Infeasible()
        return self._found(tables, 0)

    def _whole(self, tables: Limbs) -> bool:
        """Whether the tables go up to the whole job; those of leaf groups end at what a leaf group can hold."""
        return prod(tables[0].shape[1:]) > self._full

    def _found(self, tables: Limbs, row: int) -> Found | Infeasible:
        cost = [int(limb[row].reshape(-1)[-1]) for limb in tables]
        if self._bands is not None and not self._bands.proven(self._problem.ruler, self._packing.values(cost)):
            return Infeasible()
        return Found(self._counts(), None, self._packing.value(0, cost))

    def _alone(self, tables: Limbs, at: int, labels: Sequence[int]) -> int | None:
        """The row of the domain that holds the whole job better than any two of this level could; None where there is none.

        Two domains cost at least a 2 in the spans of this level, whatever else, and in all wider ones a 1, and a 1 for every group.
        """
        if not self._whole(tables):
            return None
        last = [limb.reshape(len(labels), -1)[:, -1].tolist() for limb in tables]
        fit = [row for row in range(len(labels)) if last[0][row] < NONE]
        if not fit:
            return None
        names, level_names = self._problem.ruler.names, self._problem.ruler.level_names
        span = [names.index(f"{name} spanned by the job") for name in level_names]
        wider = [self._wider(at, labels[row]) for row in fit]
        costs = [
            tuple(limb[row] + more for limb, more in zip(last, each, strict=True))
            for row, each in zip(fit, wider, strict=True)
        ]
        best = min(range(len(fit)), key=costs.__getitem__)
        of_groups = {term + 1: self._groups for term in span[at + 1 :]}
        two = self._packing.pack({span[at]: 2, span[at] + 1: 2} | dict.fromkeys(span[at + 1 :], 1) | of_groups)
        return fit[best] if costs[best] < two else None

    def _wider(self, at: int, leaf: int) -> Vector:
        """What the domains above level number `at` will add to a job that lies wholly under this leaf group's."""
        values: dict[int, int] = {}
        ruler = self._problem.ruler
        for level, name in zip(ruler.levels[at + 1 :], ruler.level_names[at + 1 :], strict=True):
            job = ruler.names.index(f"{name} spanned by the job")
            values |= {job: 1, job + 1: spread_of_one(self._problem.chains, self._groups)}
            values[ruler.names.index(LEFT_IN + name)] = self._free_in(level)[
                int(self._problem.snapshot.topology.domains[level][leaf])
            ]
        return self._packing.pack(values)

    def _free_in(self, level: int) -> Mapping[int, int]:
        """Free GPUs by domain of the level."""
        if level not in self._free:
            free: defaultdict[int, int] = defaultdict(int)
            for domain, gpus in zip(
                self._problem.snapshot.topology.domains[level].tolist(), self._problem.leaf_free, strict=True
            ):
                free[domain] += gpus
            self._free[level] = free
        return self._free[level]

    def _keep_only(self, row: int) -> None:
        merge = Merge({0: row}, {0: 0}, np.full((1, *self._shape), self._full, dtype=np.int32))
        self._levels.append(Level([merge], {}))

    def _empty(self, rows: int, shape: Vector) -> Limbs:
        """Nothing placed costs nothing; nothing else is known."""
        limbs = [np.zeros((rows, *shape), dtype=np.int64) for _ in range(self._packing.count)]
        limbs[0][...] = NONE
        limbs[0].reshape(rows, -1)[:, 0] = 0
        return limbs

    def _leaf_shape(self) -> Vector:
        """With one group, no longer than the most that any leaf group holds."""
        if self._groups > 1:
            return self._shape
        return (min(self._full, max(rooms(self._kinds, len(self._leaves)))) + 1,)

    def _leaf_tables(self) -> Limbs:
        shape = self._leaf_shape()
        if self._groups == 1:
            found = leaf_tables(self._kinds, self._packing, len(self._leaves), shape[0])
            if found is not None:
                self._steps = found[1]
                return found[0]
        tables = self._empty(len(self._leaves), shape)
        steps = []
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
                steps.append(Step(kind, position, {row: i for i, row in enumerate(rows)}, choice))
        self._steps = steps
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
        of = (slice(None), *(slice(0, max(0, size - n)) for n, size in zip(vector, after[0].shape[1:], strict=True)))
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
        free = self._free_in(level)
        numbers = np.indices(tables[0].shape[1:])
        something = numbers.any(axis=0)
        for row, label in enumerate(labels):
            each = self._packing.pack({job: 1, left: free[int(domain[label])]})
            for limb, cost in zip(tables, each, strict=True):
                limb[row][something] += cost
        spread = least_spread(problem.chains, problem.request.replicas, level, numbers)
        for limb, cost in zip(tables, self._packing.pack({job + 1: 1}), strict=True):
            np.add(limb, cost * spread, out=limb)
        for g in self._limits.whole.get(level, ()):
            tables[0][:, (numbers[g] > 0) & (numbers[g] < problem.request.replicas)] = NONE
        for first, second in self._limits.equal.get(level, ()):
            tables[0][:, numbers[first] != numbers[second]] = NONE
        # One in a pod is one in each of its leaf groups.
        for g in (g for wider, groups in self._limits.apart.items() if wider >= level for g in groups):
            tables[0][:, numbers[g] > 1] = NONE
        if level in self._limits.multiple:
            tables[0][:, numbers[0] % self._limits.multiple[level] != 0] = NONE
        tables[0][tables[0] >= NONE] = NONE

    def _merge(self, tables: Limbs, domains: Sequence[int], labels: Sequence[int], below: int) -> tuple[Limbs, list[int]]:
        """Tables of domains from those of their parts, which are of level number `below`; also one leaf group of each, to know it by."""
        order = list(dict.fromkeys(domains))
        parts = [[row for row, domain in enumerate(domains) if domain == wanted] for wanted in order]
        merges: Sequence[Merge | CountMerge]
        if self._groups == 1:
            merged, merges = self._merge_counts(tables, parts, order, domain_numbers(self._problem, labels, below), below)
        else:
            merged = self._empty(len(order), self._shape)
            merges = [self._add_part(merged, tables, parts, position) for position in range(max(map(len, parts)))]
        self._levels.append(Level(merges, {row: at for at, mine in enumerate(parts) for row in mine}))
        return merged, [labels[mine[0]] for mine in parts]

    def _merge_counts(
        self, tables: Limbs, parts: Sequence[Sequence[int]], domains: Sequence[int], numbers: Sequence[int], below: int
    ) -> tuple[Limbs, Sequence[CountMerge]]:
        """With one group: only in the bands that matter. Numbers of the domains and, by row, of their parts."""
        room = [int(np.flatnonzero(row < NONE)[-1]) for row in tables[0]]
        width = min(self._full, max(sum(room[row] for row in mine) for mine in parts)) + 1
        if self._bands is not None:
            known = self._bands.merges[below]
            bands = [[known[domain][numbers[row]] for row in mine] for domain, mine in zip(domains, parts, strict=True)]
            return merge(tables, parts, bands, width)
        level, number = self._exactly
        return merge(tables, parts, default_bands(room, parts, self._full, number if below == level else 0), width)

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

    def _counts(self) -> Counts:
        """Back down from the full vector in the one last domain."""
        wanted = {0: self._full}
        for level in reversed(self._levels):
            below: dict[int, int] = {}
            for part_in in reversed(level.merges):
                for row, part in part_in.part_of.items():
                    state = wanted.get(row, 0)
                    share = part_in.share(row, state)
                    below[part] = share
                    wanted[row] = self._minus(state, share)
            wanted = below
        ways: defaultdict[tuple[int, int], int] = defaultdict(int)
        whole: defaultdict[tuple[int, int, int], int] = defaultdict(int)
        for step in reversed(self._steps):
            for row in [row for row, state in wanted.items() if state and row in step.row_of]:
                state = wanted[row]
                taken = step.taken(row, state)
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
