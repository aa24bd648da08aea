"""Which instance is which: the map of a pipeline job whose stages are alike onto the instances that were chosen for it.

R replicas × p stages are a grid. A leaf group that holds n of its cells should hold few replicas and few stages: a rectangle, about as
wide to high as the grid is. Good maps come from walking the grid in bands and giving each leaf group its run of cells; swaps of two
cells then improve the best. Nothing is proven here: a map is measured, and best where it reaches what chains.py promised.

Rows and columns may be numbered as one likes. They are sorted, so that neighbouring replicas, and neighbouring stages, lie alike.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fmsched.place.chains import least_by_count
from fmsched.place.hosts import static_of
from fmsched.place.problem import Problem
from fmsched.place.realise import Gpu

SWAPPED_MAX = 300  # cells: all pairs are looked at
SWAPS_MAX = 60  # for each sharpness of the measure
SHARPNESS = (
    0.7,
    0.4,
    0.0,
)  # a row or column with n cells of a domain counts 1 - q^n: a step to fewer then shows before the last is gone
BANDS_MAX = 12  # widths of a band that are tried, each way

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


def arranged(problem: Problem, cells: Sequence[list[Gpu]]) -> list[list[list[Gpu]]]:
    """[stage][replica]: the instances of a folded problem, in which each replica keeps to its zone. `cells` come in order of place."""
    chains = problem.chains
    assert chains is not None
    zone_of: dict[int, int] = {}
    if chains.zones is not None:
        zone_of = {
            node: zones[0] for item, zones in zip(problem.bins, chains.zones.of_bin, strict=True) for node in item.nodes
        }
    of_zone: defaultdict[int, list[list[Gpu]]] = defaultdict(list)
    for cell in cells:
        of_zone[zone_of.get(cell[0][0], 0)].append(cell)
    stages: list[list[list[Gpu]]] = [[] for _ in range(chains.length)]
    for mine in of_zone.values():
        for stage, row in zip(stages, _arranged(problem, mine, chains.length), strict=True):
            stage.extend(row)
    return stages


def _arranged(problem: Problem, cells: Sequence[list[Gpu]], length: int) -> list[list[list[Gpu]]]:
    leaf_of = static_of(problem.snapshot.topology).leaf_of
    waiting: defaultdict[int, list[list[Gpu]]] = defaultdict(list)
    for cell in cells:
        waiting[leaf_of[cell[0][0]]].append(cell)
    order = list(waiting)
    sizes = [len(mine) for mine in waiting.values()]
    levels = [problem.snapshot.topology.domains[level] for level in reversed(problem.ruler.levels)]
    domains = [[int(domain[leaf]) for leaf in order] for domain in levels]
    grid = Mapper(problem.asked.replicas, length, sizes, domains).best()
    stages: list[list[list[Gpu]]] = [[] for _ in range(length)]
    taken = [iter(waiting[leaf]) for leaf in order]
    for replica in _sorted(grid).tolist():
        # Replica by replica: the cells of a node are, as far as they go, one replica's stages, at the same places as in the next node.
        for stage, leaf in zip(stages, replica, strict=True):
            stage.append(next(taken[leaf]))
    return stages


def _sorted(grid: Ints) -> Ints:
    """Rows that lie alike together, then columns."""
    rows: Ints = grid[np.lexsort(grid.T[::-1])]
    found: Ints = rows[:, np.lexsort(rows[::-1])]
    return found


@dataclass(frozen=True, slots=True)
class Worth:
    """Of one map: by level, widest first, the spread and the greatest spread of one stage or replica. Lower is better."""

    spread: tuple[int, ...]
    widest: tuple[int, ...]

    @property
    def key(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return self.spread, self.widest


class Mapper:
    """Maps of a grid of replicas × stages onto leaf groups.

    replicas    of the whole job: they weigh the spread of a stage. The grid may be a part of it, of fewer rows
    sizes       cells in each leaf group, in order of place
    domains     by level, widest first: the domain of each leaf group
    """

    def __init__(self, replicas: int, stages: int, sizes: Sequence[int], domains: Sequence[Sequence[int]]) -> None:
        self._replicas, self._stages, self._sizes = replicas, stages, list(sizes)
        self._rows = sum(sizes) // stages
        # Only levels at which the cells differ; numbered from 0.
        self._of = [np.unique(of, return_inverse=True)[1].astype(np.int64) for of in domains if len(set(of)) > 1]
        least = least_by_count(replicas, stages)
        sums = [np.bincount(of, weights=self._sizes).astype(np.int64) for of in self._of]
        self._goal = tuple(int(least[each].sum()) for each in sums)

    def best(self) -> Ints:
        """[replica, stage]: the number of the leaf group."""
        found: Ints | None = None
        worth = Worth((), ())
        for grid in self._walked():
            mine = self.worth(grid)
            if found is None or mine.key < worth.key:
                found, worth = grid, mine
        assert found is not None
        if worth.spread != self._goal and found.size <= SWAPPED_MAX:
            swapped = self._swapped(found)
            mine = self.worth(swapped)
            if mine.key < worth.key:
                found = swapped
        return found

    def worth(self, grid: Ints) -> Worth:
        spread, widest = [], []
        for of in self._of:
            at = of[grid]
            count = int(of.max()) + 1
            in_rows = np.zeros((len(grid), count), dtype=np.bool_)
            in_rows[np.arange(len(grid))[:, None], at] = True
            in_columns = np.zeros((self._stages, count), dtype=np.bool_)
            in_columns[np.arange(self._stages)[None, :], at] = True
            spread.append(int(self._stages * in_rows.sum() + self._replicas * in_columns.sum()))
            widest.append(int(max(in_rows.sum(axis=1).max(), in_columns.sum(axis=1).max())))
        return Worth(tuple(spread), tuple(widest))

    def _walked(self) -> Iterator[Ints]:
        """Maps by bands of stages, and by bands of replicas, with the leaf groups of a domain together, in several orders."""
        for width in _widths(self._stages):
            for labels in self._runs(width):
                yield _in_bands(labels, self._rows, self._stages, width)
        for width in _widths(self._rows):
            for labels in self._runs(width):
                yield _in_bands(labels, self._stages, self._rows, width).T

    def _runs(self, width: int) -> Iterator[Ints]:
        """The leaf groups, each as often as it has cells: largest first, smallest first, and what fills its part of a band first."""
        numbers = range(len(self._sizes))
        keys = (
            [(-size,) for size in self._sizes],
            [(size,) for size in self._sizes],
            [(size % width != 0, -size) for size in self._sizes],
        )
        for key in keys:
            order = sorted(numbers, key=lambda leaf, key=key: (*(int(of[leaf]) for of in self._of[:-1]), *key[leaf], leaf))  # type: ignore[misc]
            yield np.repeat(np.array(order, dtype=np.int64), [self._sizes[leaf] for leaf in order])

    def _swapped(self, grid: Ints) -> Ints:
        """Swaps of two cells, the best first, while they help; first by a smoothed measure, in the end by the true one."""
        labels = grid.ravel().copy()
        row, column = (axis.ravel() for axis in np.indices(grid.shape))
        for q in SHARPNESS:
            for _ in range(SWAPS_MAX):
                gain = np.zeros((len(labels), len(labels)))
                weight = 1.0
                for of in reversed(self._of):
                    gain += weight * self._gain(of[labels], row, column, q)
                    weight *= 1000.0
                a, b = divmod(int(gain.argmin()), len(labels))
                if gain[a, b] > -1e-6:
                    break
                labels[a], labels[b] = labels[b], labels[a]
        return labels.reshape(grid.shape)

    def _gain(self, at: Ints, row: Ints, column: Ints, q: float) -> Floats:
        """[a, b]: by how much the measure of one level grows when cells a and b are swapped."""
        found = np.zeros((len(at), len(at)))
        for line, weight in ((row, float(self._stages)), (column, float(self._replicas))):
            count = np.zeros((int(line.max()) + 1, int(at.max()) + 1))
            np.add.at(count, (line, at), 1.0)
            more = weight * (_counted(count + 1, q) - _counted(count, q))
            less = weight * (_counted(count - 1, q) - _counted(count, q))
            one_way = less[line, at][:, None] + more[line][:, at]
            both = one_way + one_way.T
            both[line[:, None] == line[None, :]] = 0.0
            found += both
        found[at[:, None] == at[None, :]] = 0.0
        return found


def _counted(count: Floats, q: float) -> Floats:
    return 1.0 - np.power(q, np.maximum(count, 0.0))


def _widths(size: int) -> list[int]:
    """Band widths to try: all where they are few, else those that divide the size and some between."""
    if size <= BANDS_MAX:
        return list(range(1, size + 1))
    dividing = [width for width in range(1, size + 1) if size % width == 0]
    return sorted(set(dividing) | set(range(1, size, size // BANDS_MAX + 1)))


def _in_bands(labels: Ints, rows: int, columns: int, width: int) -> Ints:
    """A grid filled with a run of labels: bands of `width` columns, each row by row, every second one upwards."""
    grid = np.empty((rows, columns), dtype=np.int64)
    at = 0
    for number, left in enumerate(range(0, columns, width)):
        band = min(width, columns - left)
        block = labels[at : at + rows * band].reshape(rows, band)
        grid[:, left : left + band] = block if number % 2 == 0 else block[::-1]
        at += rows * band
    return grid
