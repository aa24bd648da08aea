"""Placement as other schedulers do it, for comparison: first fit, best fit by leaf, greedy packing, buddy cells. Small on purpose.

Each is a function of a snapshot and a request of one resource group whose instances (cells) lie on one node; it answers a placement,
or None where it finds none. Cells are numbered in the order in which the method takes them, which is its naive rank order. The
objective of these placements is left empty: `terms_of` measures any placement with the ruler of fmsched.place.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import combinations

import numpy as np
import numpy.typing as npt

from fmsched.model.hardware import NodeShape
from fmsched.model.job import Request, ResourceGroup
from fmsched.model.placement import Objective, Placement, RankPlacement
from fmsched.model.snapshot import Snapshot
from fmsched.place.hosts import free_masks, mask_indices
from fmsched.place.measure import measure
from fmsched.place.objective import ruler_of
from fmsched.place.problem import problem_of

Cell = tuple[int, ...]  # GPU indices on one node
Taken = list[tuple[int, Cell]]  # position of the node, its GPUs: one entry a cell
Method = Callable[[Snapshot, Request], Placement | None]


def first_fit(snapshot: Snapshot, request: Request) -> Placement | None:
    """Nodes in the cluster's order, each filled with as many cells as fit."""
    room = _room(snapshot, request)
    return _placement(snapshot, request, _take(room, range(len(room)), request.replicas))


def best_fit_by_leaf(snapshot: Snapshot, request: Request) -> Placement | None:
    """The leaf group with the least room that still holds the whole job. Where none does: the one with the most room, and again with
    what is left. (Slurm's topology/tree picks leaves so: "best fit", then as many leaves as it takes.)"""
    room = _room(snapshot, request)
    leaves = _by_leaf(snapshot, room)
    taken: Taken = []
    while len(taken) < request.replicas and leaves:  # ends: a leaf group goes each round
        left = request.replicas - len(taken)
        size = {leaf: sum(len(room[node]) for node in nodes) for leaf, nodes in leaves.items()}
        holding = [leaf for leaf in leaves if size[leaf] >= left]
        chosen = min(holding, key=lambda leaf: (size[leaf], leaf)) if holding else max(leaves, key=lambda leaf: size[leaf])
        taken += _take(room, _fullest_first(room, leaves.pop(chosen)), left) or []
    return _placement(snapshot, request, taken)


def greedy_packing(snapshot: Snapshot, request: Request) -> Placement | None:
    """As few domains as a greedy choice gives: the pod with the most room first, in it the leaf group with the most room, in it the nodes
    with the least room."""
    room = _room(snapshot, request)
    leaves = _by_leaf(snapshot, room)
    domains = snapshot.topology.domains
    pod = domains[1] if len(domains) > 1 else domains[0]
    of_leaf = {leaf: sum(len(room[node]) for node in nodes) for leaf, nodes in leaves.items()}
    of_pod: Counter[int] = Counter()
    for leaf, cells in of_leaf.items():
        of_pod[int(pod[leaf])] += cells
    order = sorted(leaves, key=lambda leaf: (-of_pod[int(pod[leaf])], int(pod[leaf]), -of_leaf[leaf], leaf))
    nodes = [node for leaf in order for node in _fullest_first(room, leaves[leaf])]
    return _placement(snapshot, request, _take(room, nodes, request.replicas))


def buddy_cells(snapshot: Snapshot, request: Request) -> Placement | None:
    """Aligned blocks of 1, 2, 4, 8… GPUs, then nodes, leaf groups and pods, as a buddy allocator keeps them (HiveD, OSDI 2020: a cell is
    split only where no smaller free one will do). A job takes the smallest free block that holds it, else two of half the size."""
    group = _only_group(request)
    slots = _slots(snapshot)
    masks, topology = free_masks(snapshot), snapshot.topology
    free = np.zeros(len(slots), dtype=np.bool_)
    for at, (node, gpu) in enumerate(slots):
        free[at] = node >= 0 and bool(masks[node] >> gpu & 1) and _fits(group, topology.nodes[node].shape, gpu)
    tree = _Buddies(free)
    smallest = (group.gpus - 1).bit_length()
    blocks: list[int] = []
    left = request.replicas
    while left > 0:  # ends: every round places at least one cell, or gives up
        size = left.bit_length() - 1
        found = tree.take(smallest + size, smallest)
        if found is None:
            return None
        blocks += found
        left -= 1 << size
    taken: Taken = []
    for first in blocks:
        cell = [slots[first + i] for i in range(group.gpus)]
        taken.append((cell[0][0], tuple(gpu for _, gpu in cell)))
    if not all(_linked(group, topology.nodes[node].shape, gpus) for node, gpus in taken):
        return None  # the blocks know nothing of uneven links
    return _placement(snapshot, request, taken)


METHODS: dict[str, Method] = {
    "first fit": first_fit,
    "best fit by leaf": best_fit_by_leaf,
    "greedy packing": greedy_packing,
    "buddy cells": buddy_cells,
}


def terms_of(snapshot: Snapshot, request: Request, placement: Placement) -> dict[str, int]:
    """Every term of the objective on a placement of this request, by name, in order of importance. Lower is better."""
    ruler = ruler_of(snapshot.topology)
    problem = problem_of(snapshot, request, ruler, spanning=False)
    return dict(zip(ruler.names, measure(problem, placement.ranks), strict=True))


# --- what the methods share


def _only_group(request: Request) -> ResourceGroup:
    if len(request.groups) != 1:
        raise ValueError(f"job {request.job}: found {len(request.groups)} groups; the baselines place one")
    return request.groups[0]


def _fits(group: ResourceGroup, shape: NodeShape, gpu: int) -> bool:
    spec = shape.gpus[gpu]
    return (not group.families or spec.family in group.families) and spec.memory_gb >= group.min_memory_gb


def _linked(group: ResourceGroup, shape: NodeShape, gpus: Sequence[int]) -> bool:
    wanted = group.min_nvlink_gbytes_per_s
    return all(min(shape.nvlink[a][b], shape.nvlink[b][a]) >= wanted for a, b in combinations(gpus, 2))


def _room(snapshot: Snapshot, request: Request) -> list[tuple[Cell, ...]]:
    """By node: the cells that it can take, first fit."""
    group = _only_group(request)
    known: dict[tuple[int, int], tuple[Cell, ...]] = {}
    room = []
    for node, mask in zip(snapshot.topology.nodes, free_masks(snapshot), strict=True):
        key = id(node.shape), mask
        if key not in known:
            known[key] = tuple(_cells(group, node.shape, mask))
        room.append(() if node.name in request.avoid_nodes else known[key])
    return room


def _cells(group: ResourceGroup, shape: NodeShape, mask: int) -> Iterator[Cell]:
    left = [gpu for gpu in mask_indices(mask) if _fits(group, shape, gpu)]
    while len(left) >= group.gpus:  # ends: every round takes GPUs away, or returns
        cell = next((gpus for gpus in combinations(left, group.gpus) if _linked(group, shape, gpus)), None)
        if cell is None:
            return
        yield cell
        left = [gpu for gpu in left if gpu not in cell]


def _by_leaf(snapshot: Snapshot, room: Sequence[Sequence[Cell]]) -> dict[int, list[int]]:
    leaves: defaultdict[int, list[int]] = defaultdict(list)
    for node, leaf in enumerate(snapshot.topology.leaf_of):
        if room[node]:
            leaves[int(leaf)].append(node)
    return dict(leaves)


def _fullest_first(room: Sequence[Sequence[Cell]], nodes: Iterable[int]) -> list[int]:
    return sorted(nodes, key=lambda node: (len(room[node]), node))


def _take(room: Sequence[Sequence[Cell]], nodes: Iterable[int], count: int) -> Taken:
    """Up to `count` cells from these nodes, in this order."""
    taken: Taken = []
    for node in nodes:
        taken += [(node, cell) for cell in room[node][: count - len(taken)]]
        if len(taken) >= count:
            break
    return taken


def _placement(snapshot: Snapshot, request: Request, taken: Taken) -> Placement | None:
    if len(taken) < request.replicas:
        return None
    on_node: Counter[int] = Counter()
    ranks: list[RankPlacement] = []
    for replica, (node, gpus) in enumerate(taken):
        owner = snapshot.topology.nodes[node]
        for gpu in gpus:
            ranks.append(
                RankPlacement(
                    rank=len(ranks), group=request.groups[0].name, replica=replica, cell=replica, local_rank=on_node[node],
                    node=owner.name, gpu=gpu, uuid=owner.uuids[gpu],
                )
            )  # fmt: skip
            on_node[node] += 1
    return Placement(request.job, tuple(ranks), Objective(0.0, 0.0))


# --- buddy cells


def _slots(snapshot: Snapshot) -> list[tuple[int, int]]:
    """(node, GPU) in an order in which aligned blocks are parts of nodes, nodes, leaf groups, pods; (-1, 0) fills up to powers of two."""
    topology = snapshot.topology
    pod = topology.domains[1] if len(topology.domains) > 1 else topology.domains[0]
    leaves: defaultdict[int, list[int]] = defaultdict(list)
    for node, leaf in enumerate(topology.leaf_of):
        leaves[int(leaf)].append(node)
    pods: defaultdict[int, list[list[int]]] = defaultdict(list)
    for leaf, nodes in leaves.items():
        pods[int(pod[leaf])].append(nodes)
    gpus = _power(max(len(node.shape.gpus) for node in topology.nodes))
    per_leaf = _power(max(len(nodes) for nodes in leaves.values()))
    per_pod = _power(max(len(of_pod) for of_pod in pods.values()))
    slots: list[tuple[int, int]] = []
    for of_pod in pods.values():
        for nodes in of_pod:
            for node in nodes:
                count = len(topology.nodes[node].shape.gpus)
                slots += [(node, gpu) for gpu in range(count)] + [(-1, 0)] * (gpus - count)
            slots += [(-1, 0)] * (gpus * (per_leaf - len(nodes)))
        slots += [(-1, 0)] * (gpus * per_leaf * (per_pod - len(of_pod)))
    return slots + [(-1, 0)] * (_power(len(slots)) - len(slots))


def _power(count: int) -> int:
    return 1 << (count - 1).bit_length()


class _Buddies:
    """free[k][i]: whether block i of 2^k slots is free."""

    def __init__(self, slots: npt.NDArray[np.bool_]) -> None:
        self._free = [slots]
        while len(self._free[-1]) > 1:  # ends: the length halves
            below = self._free[-1]
            self._free.append(below[0::2] & below[1::2])

    def take(self, level: int, smallest: int) -> list[int] | None:
        """First slots of the blocks of 2^smallest that make up 2^level: one block if there is one, else halves of it, and so on."""
        if level < len(self._free):
            for above in range(level, len(self._free)):
                whole = self._free[above]
                if above + 1 < len(self._free):  # blocks that are not part of a larger free one
                    whole = whole & ~np.repeat(self._free[above + 1], 2)
                if whole.any():
                    first = int(np.argmax(whole)) << above
                    self._mark(first, level)
                    return [first + (i << smallest) for i in range(1 << (level - smallest))]
        if level == smallest:
            return None
        halves = [self.take(level - 1, smallest), None]
        halves[1] = self.take(level - 1, smallest) if halves[0] is not None else None
        return halves[0] + halves[1] if halves[0] is not None and halves[1] is not None else None

    def _mark(self, first: int, level: int) -> None:
        for k, blocks in enumerate(self._free):
            blocks[first >> k : max((first >> k) + 1, (first + (1 << level)) >> k)] = False
