"""Which entries of which tables can lie on the way to a best placement at all: known from room alone, before any table is made.

The first terms of the objective, for one group whose whole job fits on its most preferred GPUs, are the domains spanned, widest level
first. The most instances that a domain can hold in so many of its parts is a plain sum of the largest, so the fewest domains of every
level ("spans") are known by counting. A placement that reaches them has little room to spare: where the parts chosen can hold S more
than the job, none of them can be more than S below what it holds. That leaves a few bands of each table. Nothing outside them lies on
the way to a placement with the fewest spans, and nothing with more spans is better than what is found inside.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import numpy.typing as npt

from fmsched.place.objective import Ruler
from fmsched.place.problem import Problem

CELLS_MAX = 20_000  # of one array over counts of domains
STEPS_MAX = 20_000  # array operations at one level
NEVER = -(1 << 40)  # instances in a number of domains that cannot be

WHO = ("the job", "its groups")

Ints = npt.NDArray[np.int64]
Index = tuple[int | slice, ...]


@dataclass(frozen=True, slots=True)
class Parts:
    """How the domains of one level lie in those of the next: by domain, the rows of its parts; and their numbers in Topology.domains."""

    rows: list[list[int]]
    domains: list[int]
    below: list[int]  # by row


@dataclass(frozen=True, slots=True)
class Band:
    """Of one domain's table after one of its parts is in it: the entries that matter, and the shares of the part that do."""

    entries: Ints
    shares: Ints


@dataclass(frozen=True, slots=True)
class Bands:
    """What is left to look at.

    leaves    leaf groups that some best placement may use
    merges    by merge (leaf groups into the next level first), number of the domain and of its part; parts of no use are left out
    spans     by level, narrowest first: the fewest domains that hold the job; the levels above are spanned once
    """

    leaves: tuple[int, ...]
    merges: tuple[dict[int, dict[int, Band]], ...]
    spans: tuple[int, ...]

    @property
    def work(self) -> int:
        """Table entries that merging touches."""
        return sum(
            len(band.entries) * len(band.shares)
            for merge in self.merges
            for mine in merge.values()
            for band in mine.values()
        )

    def proven(self, ruler: Ruler, values: Mapping[int, int]) -> bool:
        """Whether these term values (by position) show that nothing outside the bands is better: the fewest spans, and nothing before
        them."""
        spanned = {
            f"{name} spanned by {who}": n for name, n in zip(ruler.level_names, self.spans, strict=True) for who in WHO
        }
        last = max(term for term, name in enumerate(ruler.names) if name in spanned)
        return all(values[term] <= spanned.get(name, 0) for term, name in enumerate(ruler.names[: last + 1]))


def bands_of(problem: Problem, leaves: Sequence[int], room: Mapping[int, int]) -> Bands | None:
    """The bands of a job of one group; None where counting is too much, or the job does not fit into `room` (by leaf group, instances)."""
    full = problem.request.replicas
    useful = sorted(leaf for leaf in leaves if room[leaf] > 0)
    caps = np.array([room[leaf] for leaf in useful], dtype=np.int64)
    tree, top = _tree(problem, useful, caps, full)
    if top == 0 or sum(room[leaf] for leaf in useful) < full:
        return None
    counted = _count(tree[:top], caps, full)
    if counted is None:
        return None
    fits = np.argwhere((counted[-1].forward[-1] >= full).any(axis=0))
    if not len(fits):
        return None
    spans = tuple(int(n) for n in fits[0])  # the first in lexicographic order
    low = np.full(counted[-1].forward[-1].shape, -NEVER, dtype=np.int64)
    low[_at(spans)] = full
    merges: list[dict[int, dict[int, Band]]] = []
    for level in reversed(counted):
        found = level.bands(low, full)
        if found is None:
            return None
        bands, low = found
        merges.append(bands)
    kept = tuple(leaf for row, leaf in enumerate(useful) if low[row] <= caps[row])
    return Bands(kept, tuple(reversed(merges)), tuple(reversed(spans)) + (1,) * (len(problem.ruler.levels) - top))


def _tree(problem: Problem, leaves: Sequence[int], caps: Ints, full: int) -> tuple[list[Parts], int]:
    """By merge, the parts of every domain; and how many merges there are until one domain holds the job."""
    held, labels = caps.tolist(), list(leaves)
    tree: list[Parts] = []
    numbers = domain_numbers(problem, labels, 0)
    for at in range(1, len(problem.ruler.levels) + 1):
        if max(held, default=0) >= full:
            break
        domains = domain_numbers(problem, labels, at)
        parts: dict[int, list[int]] = {}
        for row, domain in enumerate(domains):
            parts.setdefault(domain, []).append(row)
        tree.append(Parts(list(parts.values()), list(parts), numbers))
        held = [sum(held[row] for row in mine) for mine in parts.values()]
        labels = [labels[mine[0]] for mine in parts.values()]
        numbers = list(parts)
    return tree, len(tree)


def domain_numbers(problem: Problem, leaves: Sequence[int], at: int) -> list[int]:
    """The domains at position `at` of ruler.levels that these leaf groups lie in; 0 above the last."""
    levels = problem.ruler.levels
    if at == len(levels):
        return [0] * len(leaves)
    found: list[int] = problem.snapshot.topology.domains[levels[at]][list(leaves)].tolist()
    return found


@dataclass(frozen=True, slots=True)
class _Level:
    """The domains of one level. Arrays are by domain, then by how many domains of each level below, widest first, are used: the most
    instances that lie in them. forward[j] with the first j parts of each domain, backward[j] with all others."""

    parts: Parts
    room: list[Ints]  # by position: of each domain's part there, by what is used below it
    forward: list[Ints]
    backward: list[Ints]

    def bands(self, low: Ints, full: int) -> tuple[dict[int, dict[int, Band]], Ints] | None:
        """Bands from what is wanted of each domain: at least `low` instances. Also what that wants of the parts, by their row."""
        wanted = [tuple(map(int, each)) for each in np.argwhere((low <= self.forward[-1]).any(axis=0))]
        inside = self.room[0].shape[1:]
        if len(wanted) * prod(inside) * len(self.room) > STEPS_MAX:
            return None
        full = min(full, int(self.forward[-1].max()))
        below = np.full((len(self.parts.below), *inside), -NEVER, dtype=np.int64)
        found: dict[int, dict[int, Band]] = {domain: {} for domain in self.parts.domains}
        for position, room in enumerate(self.room):
            least = np.full(room.shape, -NEVER, dtype=np.int64)
            for target in wanted:
                for used in np.ndindex(*inside):
                    rest = tuple(a - b for a, b in zip(target, (1, *used), strict=True))
                    if min(rest) >= 0:
                        others = _both(self.forward[position], self.backward[position + 1], rest)
                        at = _at(used)
                        least[at] = np.minimum(least[at], np.maximum(low[_at(target)] - others, 1))
            entries = self._entries(position, wanted, low, full)
            shares = _covered(least.reshape(len(room), -1), room.reshape(len(room), -1), full)
            some = np.asarray(shares.any(axis=1))
            shares[:, 0] = True
            for number, (domain, rows) in enumerate(zip(self.parts.domains, self.parts.rows, strict=True)):
                if position < len(rows):
                    below[rows[position]] = least[number]
                    if some[number]:
                        band = Band(np.flatnonzero(entries[number]), np.flatnonzero(shares[number]))
                        found[domain][self.parts.below[rows[position]]] = band
        return found, below

    def _entries(self, position: int, wanted: Sequence[tuple[int, ...]], low: Ints, full: int) -> npt.NDArray[np.bool_]:
        """By domain and number of instances: whether the table matters there once the part at `position` is in it."""
        before, after = self.forward[position + 1], self.backward[position + 1]
        found = np.zeros((len(before), full + 1), dtype=np.bool_)
        for target in wanted:
            cut = _up_to(target)
            held = before[cut].reshape(len(before), -1)
            rest = np.flip(after[cut], axis=tuple(range(1, after.ndim))).reshape(len(before), -1)
            least = low[_at(target)][:, None] - rest
            found |= _covered(np.maximum(least, 0), held, full)
        return found


def _covered(low: Ints, high: Ints, full: int) -> npt.NDArray[np.bool_]:
    """By row, which of 0 to `full` lie in one of the row's intervals."""
    edges = np.zeros((len(low), full + 2), dtype=np.int64)
    high = np.minimum(high, full)
    row, number = np.nonzero(low <= high)
    np.add.at(edges, (row, low[row, number]), 1)
    np.add.at(edges, (row, high[row, number] + 1), -1)
    return edges.cumsum(axis=1)[:, :-1] > 0


def _both(a: Ints, b: Ints, total: tuple[int, ...]) -> Ints:
    """By domain: the most that both hold together in `total` domains."""
    cut = _up_to(total)
    axes = tuple(range(1, a.ndim))
    found: Ints = (a[cut] + np.flip(b[cut], axis=axes)).max(axis=axes)
    return found


def _count(tree: Sequence[Parts], caps: Ints, full: int) -> list[_Level] | None:
    """From the leaf groups up, the most instances in so many domains."""
    levels: list[_Level] = []
    below = caps
    for at, parts in enumerate(tree):
        most = max(map(len, parts.rows))
        if at == len(tree) - 1:
            held = below.reshape(len(below), -1).max(axis=1)
            fewest = [_fewest([int(held[row]) for row in mine], full) for mine in parts.rows]
            if not any(fewest):
                return None
            most = min(number for number in fewest if number)
        dims = (most + 1, *(most * (size - 1) + 1 for size in below.shape[1:]))
        if prod(dims) > CELLS_MAX or prod(dims) * len(parts.rows) > 10 * CELLS_MAX:
            return None
        room = []
        for position in range(max(map(len, parts.rows))):
            mine = np.full((len(parts.rows), *below.shape[1:]), NEVER, dtype=np.int64)
            for number, rows in enumerate(parts.rows):
                if position < len(rows):
                    mine[number] = below[rows[position]]
            room.append(mine)
        if len(room) * prod(below.shape[1:]) > STEPS_MAX:
            return None
        nothing = np.full((len(parts.rows), *dims), NEVER, dtype=np.int64)
        nothing.reshape(len(parts.rows), -1)[:, 0] = 0
        forward, backward = [nothing], [nothing]
        for each in room:
            forward.append(_grown(forward[-1], each))
        for each in reversed(room):
            backward.append(_grown(backward[-1], each))
        levels.append(_Level(parts, room, forward, backward[::-1]))
        below = forward[-1]
    return levels


def _fewest(sizes: Sequence[int], wanted: int) -> int:
    """How many of the largest hold `wanted` together; 0 where all of them do not."""
    held = 0
    for number, size in enumerate(sorted(sizes, reverse=True), 1):
        held += size
        if held >= wanted:
            return number
    return 0


def _grown(held: Ints, part: Ints) -> Ints:
    """With one part more, or without it."""
    found = held.copy()
    for used in np.ndindex(*part.shape[1:]):
        gain = part[_at(used)]
        step = (1, *used)
        if int(gain.max()) <= 0 or any(n >= size for n, size in zip(step, held.shape[1:], strict=True)):
            continue
        to: Index = (slice(None), *(slice(n, None) for n in step))
        of: Index = (slice(None), *(slice(0, size - n) for n, size in zip(step, held.shape[1:], strict=True)))
        np.maximum(found[to], held[of] + gain.reshape(-1, *(1 for _ in step)), out=found[to])
    return found


def _at(counts: tuple[int, ...]) -> Index:
    """These counts, in all domains."""
    return (slice(None), *counts)


def _up_to(counts: tuple[int, ...]) -> Index:
    """Up to these counts, in all domains."""
    return (slice(None), *(slice(0, n + 1) for n in counts))
