"""The tables of tables.py for jobs of one group, where a state is one number: leaf groups on one 64-bit number, merges in bands only.

Inside a leaf group only few nodes count, so that all terms of their cost fit into one limb. In merges the limbs are compared one after
the other: the first decides nearly always, the others are looked at only where it leaves several splits equal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fmsched.place.bands import Band
from fmsched.place.options import Kind, Packing

NONE = 1 << 61  # no such placement; a sum of two still fits 64 bits
GAP_MAX = 16  # entries that do not matter are filled in where they are fewer than this between two that do
ENTRIES_MAX = 1 << 15  # of one matrix: what stays in the cache

Ints = npt.NDArray[np.int64]
Limbs = list[Ints]


@dataclass(frozen=True, slots=True)
class LeafStep:
    """One node more in some leaf groups, as tables.Step: tables before and after it, by leaf group (row_of) and number of instances."""

    kind: Kind
    position: int
    row_of: Mapping[int, int]
    costs: tuple[int, ...]  # by option
    before: Ints
    after: Ints

    def taken(self, row: int, state: int) -> int:
        """The option taken there; 0: none, else its number + 1."""
        before, value = self.before[self.row_of[row]], int(self.after[self.row_of[row], state])
        if int(before[state]) == value:
            return 0
        return 1 + next(
            number
            for number, (option, cost) in enumerate(zip(self.kind.options, self.costs, strict=True))
            if option.vector[0] <= state and int(before[state - option.vector[0]]) + cost == value
        )


def leaf_tables(kinds: Sequence[Kind], packing: Packing, rows: int, width: int) -> tuple[Limbs, list[LeafStep]] | None:
    """Best cost by leaf group and number of instances, and the way back; None where the cost does not fit into one limb."""
    local = _local(kinds, packing, rows)
    if local.count > 1:
        return None
    table = np.full((rows, width), NONE, dtype=np.int64)
    table[:, 0] = 0
    steps = []
    for kind in kinds:
        costs = tuple(local.pack(packing.values(option.cost))[0] for option in kind.options)
        for position in range(max(map(len, kind.bins))):
            mine = [row for row, bins in enumerate(kind.bins) if len(bins) > position]
            before = table[mine]
            after = before.copy()
            for option, cost in zip(kind.options, costs, strict=True):
                n = option.vector[0]
                if n < width:
                    np.minimum(after[:, n:], before[:, : width - n] + cost, out=after[:, n:])
            table[mine] = after
            steps.append(LeafStep(kind, position, {row: i for i, row in enumerate(mine)}, costs, before, after))
    return packing.spread(table, local, NONE), steps


def _local(kinds: Sequence[Kind], packing: Packing, rows: int) -> Packing:
    """A packing for what one leaf group's nodes can cost together."""
    most = [0] * packing.terms
    for kind in kinds:
        nodes = max((len(bins) for bins in kind.bins), default=0)
        for term in range(packing.terms):
            most[term] += nodes * max((packing.steps(term, option.cost) for option in kind.options), default=0)
    return packing.resized(most)


@dataclass(frozen=True, slots=True)
class CountMerge:
    """One part more in some domains, as tables.Merge."""

    part_of: dict[int, int]  # domain's row → row of the part in the table below
    chosen: dict[int, tuple[Ints, Ints]]  # by domain's row: entries, and the part's share in each

    def share(self, row: int, state: int) -> int:
        """How much of `state` instances lies in the part."""
        if not state or row not in self.chosen:
            return 0
        entries, shares = self.chosen[row]
        return int(shares[int(np.searchsorted(entries, state))])


def merge(
    tables: Limbs, parts: Sequence[Sequence[int]], bands: Sequence[Sequence[Band]], width: int
) -> tuple[Limbs, list[CountMerge]]:
    """Tables of domains from those of their parts; entries outside the bands are left out."""
    padding = len(tables[0][0])  # entries before the first, so that every share of a part can be taken from every entry
    padded = [np.zeros((len(parts), padding + width), dtype=np.int64) for _ in tables]
    padded[0][...] = NONE
    padded[0][:, padding] = 0
    merges = [CountMerge({}, {}) for _ in range(max(map(len, parts)))]
    for row, (mine, of_part) in enumerate(zip(parts, bands, strict=True)):
        here = [limb[row] for limb in padded]
        for position, (part, band) in enumerate(zip(mine, of_part, strict=True)):
            merges[position].part_of[row] = part
            below = [limb[part] for limb in tables]
            shares = band.shares[band.shares < padding]
            shares = shares[below[0][shares] < NONE]
            if len(shares) < 2:
                continue
            runs = _runs(band.entries, width, len(shares))
            costs = [limb[shares] for limb in below]
            found = [_best_split(here, costs, shares, first + padding, last - first + 1) for first, last in runs]
            here[0][padding + 1 :] = NONE
            for (first, last), (values, _) in zip(runs, found, strict=True):
                for limb, best in zip(here, values, strict=True):
                    limb[padding + first : padding + last + 1] = best
            if found:
                entries = np.concatenate([np.arange(first, last + 1) for first, last in runs])
                merges[position].chosen[row] = entries, np.concatenate([chosen for _, chosen in found])
    return [limb[:, padding:] for limb in padded], merges


def _runs(entries: Ints, width: int, shares: int) -> list[tuple[int, int]]:
    """The entries as intervals, none of them too long for one matrix."""
    entries = entries[entries < width]
    if not len(entries):
        return []
    most = max(GAP_MAX, ENTRIES_MAX // shares)
    (breaks,) = (entries[1:] - entries[:-1] > GAP_MAX).nonzero()
    firsts = [int(entries[0]), *entries[breaks + 1].tolist()]
    lasts = [*entries[breaks].tolist(), int(entries[-1])]
    return [
        (start, min(last, start + most - 1))
        for first, last in zip(firsts, lasts, strict=True)
        for start in range(first, last + 1, most)
    ]


def _best_split(before: Limbs, part: Limbs, shares: Ints, first: int, width: int) -> tuple[Limbs, Ints]:
    """For `width` entries of `before` from `first` on: the best cost of before[n - share] + part[share], and the share."""
    top = int(shares[-1])
    window = before[0][first - top : first + width]
    step = window.itemsize
    shifted = np.ndarray((top + 1, width), np.int64, window, strides=(step, step))  # row r: from entry first - top + r on
    offered = shifted[top - shares]
    offered += part[0][:, None]
    best = offered.min(axis=0)
    equal = offered == best
    equal &= best < NONE
    np.minimum(best, NONE, out=best)
    values = [best] + [np.zeros(width, dtype=np.int64) for _ in part[1:]]
    chosen = np.zeros(width, dtype=np.int64)
    column, which = equal.T.nonzero()
    if not len(column):
        return values, chosen
    for old, mine, value in zip(before[1:], part[1:], values[1:], strict=True):
        costs = old[first + column - shares[which]] + mine[which]
        begins = np.concatenate(([True], column[1:] != column[:-1]))
        (starts,) = begins.nonzero()
        if len(starts) == len(column):
            value[column] = costs
            continue
        least = np.minimum.reduceat(costs, starts)
        value[column[starts]] = least
        best_of = costs == least[begins.cumsum() - 1]
        column, which = column[best_of], which[best_of]
    chosen[column[::-1]] = shares[which[::-1]]  # the first of several
    return values, chosen


def default_bands(room: Sequence[int], parts: Sequence[Sequence[int]], full: int, exactly: int) -> list[list[Band]]:
    """Where nothing is known beforehand: no more than a domain holds, and no fewer than all other domains leave over.

    room       by row of the parts, the most instances in it
    exactly    so many parts of one domain hold the job, if it lies in one domain of theirs; 0: not known
    """
    total = sum(room)
    bands: list[list[Band]] = []
    for mine in parts:
        held, found = 0, []
        largest = sorted((room[row] for row in mine), reverse=True)[:exactly]
        for row in mine:
            held += room[row]
            least = 1
            if exactly:
                # With the others full, this one holds the rest.
                others = sum(largest) - (room[row] if room[row] >= largest[-1] else largest[-1])
                least = max(1, full - others)
            entries = np.arange(max(0, full - (total - held)), min(full, held) + 1)
            found.append(Band(entries, np.concatenate(([0], np.arange(least, room[row] + 1)))))
        bands.append(found)
    return bands
