"""From counts to GPUs: which nodes of a bin, which GPUs of a node, which parts make an instance. Chooses nothing that counts.

Every choice here is between equals, and falls on the first in the cluster's order: nodes by position, GPUs by index. So the
answer depends on nothing but the snapshot.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from fmsched.place.counts import PoolKey
from fmsched.place.cpsat import Counts
from fmsched.place.hosts import mask_indices
from fmsched.place.problem import Problem
from fmsched.place.together import Chosen
from fmsched.place.ways import Way, Ways

Gpu = tuple[int, int]  # position of the node, index on it
Cells = list[list[list[Gpu]]]  # by group: instances


def cells_of(problem: Problem, counts: Counts) -> Cells:
    """Every instance's GPUs, by group, in no particular order of instances."""
    cells: Cells = [[] for _ in problem.request.groups]
    parts: defaultdict[PoolKey, defaultdict[int, list[Gpu]]] = defaultdict(lambda: defaultdict(list))
    ways: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    for (b, w), n in counts.ways.items():
        ways[b].append((w, n))
    for b in sorted(ways):
        _fill(problem, counts, b, ways[b], cells, parts)
    for key in sorted(parts):
        _join(problem, counts, key, parts[key], cells)
    return cells if counts.chosen is None else _by_replica(problem, counts, counts.chosen, sorted(parts), cells)


def _fill(
    problem: Problem,
    counts: Counts,
    b: int,
    chosen: list[tuple[int, int]],
    cells: Cells,
    parts: Mapping[PoolKey, Mapping[int, list[Gpu]]],
) -> None:
    """Gives the nodes of a bin their ways, fullest first, and each node's GPUs to the bin's instances and parts."""
    of_bin, item = problem.ways[b], problem.bins[b]
    wanted = _wanted(problem, counts, b)
    nodes = iter(item.nodes)
    for w, n in sorted(chosen, key=lambda entry: (-of_bin.ways[entry[0]].gpus, entry[0])):
        for _ in range(n):
            node = next(nodes)
            free = mask_indices(problem.masks[node])
            for number, gpus in _layout(
                of_bin, of_bin.ways[w], free, {i: sum(entry[2] for entry in wanted[i]) for i in wanted}
            ):
                _hand_out(problem, b, number, wanted[number], [(node, gpu) for gpu in gpus], cells, parts)


Wanted = list[list[int]]  # per entry: group, zone (-1: a whole instance), how many are still to be handed out


def _wanted(problem: Problem, counts: Counts, b: int) -> dict[int, Wanted]:
    wanted: dict[int, Wanted] = {i: [] for i in range(len(problem.ways[b].items))}
    for i, item in enumerate(problem.ways[b].items):
        for g in item.groups:
            if item.fragment:
                wanted[i] += [[g, zone, counts.part.get((b, i, g, zone), 0)] for zone, _ in problem.span_zones[g][b]]
            else:
                wanted[i].append([g, -1, counts.whole.get((b, i, g), 0)])
    return wanted


def _layout(of_bin: Ways, way: Way, free: tuple[int, ...], left: Mapping[int, int]) -> list[tuple[int, tuple[int, ...]]]:
    """(item, GPUs) of what one node carries; parts one GPU at a time in uniform shapes."""
    if way.sets:
        return [(number, mask_indices(gpus)) for number, gpus in way.sets]
    found = []
    at = 0
    sizes = [1 if item.fragment else item.size for item in of_bin.items]  # a fragment comes GPU by GPU
    for number, size in sorted(enumerate(sizes), key=lambda entry: -entry[1]):  # first fit by falling size
        most = way.counts[number] if way.counts else min(left[number], (way.gpus - at) // size)
        for _ in range(most):
            found.append((number, free[at : at + size]))
            at += size
    return found


def _hand_out(
    problem: Problem,
    b: int,
    number: int,
    wanted: Wanted,
    gpus: list[Gpu],
    cells: Cells,
    parts: Mapping[PoolKey, Mapping[int, list[Gpu]]],
) -> None:
    item = problem.ways[b].items[number]
    if not item.fragment:
        entry = next(entry for entry in wanted if entry[2] > 0)
        entry[2] -= 1
        cells[entry[0]].append(gpus)
        return
    for gpu in gpus:
        entry = next(entry for entry in wanted if entry[2] > 0)
        entry[2] -= 1
        g, zone, _ = entry
        key = (g, item.model, zone, dict(problem.span_zones[g][b])[zone])
        parts[key][problem.bins[b].leaf].append(gpu)


def _join(problem: Problem, counts: Counts, key: PoolKey, leaves: Mapping[int, list[Gpu]], cells: Cells) -> None:
    """Cuts the parts of a pool into instances: inside leaf groups first, then what is over, leaf group by leaf group."""
    size = problem.request.groups[key[0]].gpus
    over: dict[int, list[Gpu]] = {}
    for leaf in sorted(leaves):
        gpus = _by_weight(leaves[leaf])
        inside = size * counts.pool_leaf.get((key, leaf), 0)
        cells[key[0]] += [gpus[at : at + size] for at in range(0, inside, size)]
        over[leaf] = gpus[inside:]
    if counts.chosen is not None and (wanted := _across(counts.chosen, key)):
        for parts in wanted:
            cells[key[0]].append([over[leaf].pop(0) for leaf, number in parts for _ in range(number)])
        return
    if key in counts.cuts:
        for cut in counts.cuts[key]:
            cells[key[0]].append([over[leaf].pop(0) for leaf in sorted(cut) for _ in range(cut[leaf])])
        return
    rest = [gpu for gpus in over.values() for gpu in gpus]
    cells[key[0]] += [rest[at : at + size] for at in range(0, len(rest), size)]


def _across(chosen: Chosen, key: PoolKey) -> list[tuple[tuple[int, int], ...]]:
    """What each of the pool's instances across leaf groups takes of them, in order of replicas."""
    return [parts for _, (pool, parts) in sorted(chosen.parts.items()) if pool == key]


def _by_replica(problem: Problem, counts: Counts, chosen: Chosen, keys: list[PoolKey], cells: Cells) -> Cells:
    """The instances of groups whose sites were chosen, in the order of their replicas."""
    bin_of = {node: b for b, item in enumerate(problem.bins) for node in item.nodes}
    for g in sorted(chosen.groups):
        at: defaultdict[tuple[int, int, PoolKey | None], list[list[Gpu]]] = defaultdict(list)
        inside = iter(cells[g])
        for _ in range(sum(n for (_, _, of), n in counts.whole.items() if of == g)):
            cell = next(inside)
            b = bin_of[cell[0][0]]
            at[problem.bins[b].leaf, b if problem.bins[b].alone else -1, None].append(cell)
        for key in (key for key in keys if key[0] == g):
            for (of, leaf), n in sorted(counts.pool_leaf.items()):
                for _ in range(n if of == key else 0):
                    at[leaf, -1, key].append(next(inside))
            for _ in _across(chosen, key):
                at[-1, -1, key].append(next(inside))
        sites = [chosen.sites[g, replica] for replica in range(problem.request.replicas)]
        cells[g] = [at[site.leaf, site.alone, site.pool].pop(0) for site in sites]
    return cells


def _by_weight(gpus: list[Gpu]) -> list[Gpu]:
    """Nodes that give most come first, so that instances are cut across few nodes."""
    of_node: defaultdict[int, list[Gpu]] = defaultdict(list)
    for gpu in gpus:
        of_node[gpu[0]].append(gpu)
    return [gpu for node in sorted(of_node, key=lambda node: (-len(of_node[node]), node)) for gpu in sorted(of_node[node])]
