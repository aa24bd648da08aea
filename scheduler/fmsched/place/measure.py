"""The value of every term of objective.py on a finished placement, read off it without the solver: the one definition of each term."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import combinations

import numpy as np

from fmsched.model.hardware import NodeShape
from fmsched.model.job import GroupKind, Request
from fmsched.model.placement import RankPlacement
from fmsched.place.hosts import mask_indices, static_of
from fmsched.place.objective import cells_lost, pair_gbytes_per_s, pairs_gbytes_per_s, preference_step
from fmsched.place.problem import Problem


def measure(problem: Problem, ranks: Sequence[RankPlacement]) -> tuple[int, ...]:
    """In the order of ruler.names. GPUs that the ranks take are free in problem.masks."""
    topology, ruler = problem.snapshot.topology, problem.ruler
    leaf_of = static_of(topology).leaf_of
    leaf = {name: leaf_of[topology.index[name]] for name in {rank.node for rank in ranks}}
    nodes_of: defaultdict[tuple[str, int], set[str]] = defaultdict(set)
    taken: defaultdict[str, int] = defaultdict(int)
    for rank in ranks:
        nodes_of[rank.group, rank.replica].add(rank.node)
        taken[rank.node] |= 1 << rank.gpu
    job_leaves = set(leaf.values())
    spans = []
    for level in reversed(ruler.levels):
        domain = topology.domains[level]
        spans.append(len({int(domain[each]) for each in job_leaves}))
        at = {node: int(domain[each]) for node, each in leaf.items()}
        spans.append(_spread(problem.asked, {key: {at[node] for node in nodes} for key, nodes in nodes_of.items()}))
    across_leaves = sum(len({leaf[node] for node in nodes}) > 1 for nodes in nodes_of.values())
    kinds = Counter((rank.group, rank.node, topology.node(rank.node).shape.gpus[rank.gpu]) for rank in ranks)
    groups = {group.name: group for group in problem.asked.groups}
    pairs = _Pairs(ruler.best_pair)
    return (
        sum(count * preference_step(groups[name], spec) for (name, _, spec), count in kinds.items()),
        *((across_leaves,) if ruler.levels else ()),
        sum(len(nodes) > 1 for nodes in nodes_of.values()),
        *spans,
        len(taken),
        sum(count * ruler.strength[spec.model] for (_, _, spec), count in kinds.items()),
        *_left_behind(problem, taken, job_leaves, len(ranks)),
        _missing(problem, ranks, nodes_of, pairs),
        _cut(problem, taken, pairs),
        *((sum(count * ruler.cost[spec.model] for (_, _, spec), count in kinds.items()),) if ruler.cost else ()),
    )


def _spread(request: Request, domains_of: Mapping[tuple[str, int], set[int]]) -> int:
    """Domains that each communicating group spans, by the domains of each (group, replica).

    The instances of a resource group talk across replicas; where the job has several pipeline stages, those of one replica talk
    too. Then each group's domains count once per member, so that the mean spread of both kinds weighs alike.
    """
    of_group: defaultdict[str, set[int]] = defaultdict(set)
    of_replica: defaultdict[int, set[int]] = defaultdict(set)
    stages = {group.name for group in request.groups if group.kind is GroupKind.PIPELINE_PARALLEL}
    for (name, replica), domains in domains_of.items():
        of_group[name] |= domains
        if name in stages:
            of_replica[replica] |= domains
    groups = sum(map(len, of_group.values()))
    if len(stages) < 2:
        return groups
    return request.replicas * groups + len(stages) * sum(map(len, of_replica.values()))


def _left_behind(problem: Problem, taken: Mapping[str, int], job_leaves: set[int], ranks: int) -> tuple[int, ...]:
    topology = problem.snapshot.topology
    cells = left_on_nodes = 0
    for name, mine in taken.items():
        shape, free = topology.node(name).shape, problem.masks[topology.index[name]]
        left_on_nodes += (free & ~mine).bit_count()
        for model in {shape.gpus[i].model for i in mask_indices(mine)}:
            of_model = _mask_of(shape, model)
            cells += cells_lost(of_model.bit_count(), (free & of_model).bit_count(), (mine & of_model).bit_count())
    left_in = []
    for level in problem.ruler.levels:
        domain = topology.domains[level]
        touched = np.isin(domain, [int(domain[each]) for each in job_leaves])
        left_in.append(sum(problem.leaf_free[each] for each in np.flatnonzero(touched)) - ranks)
    return (cells, left_on_nodes, *left_in)


def _mask_of(shape: NodeShape, model: str) -> int:
    return sum(1 << i for i, spec in enumerate(shape.gpus) if spec.model == model)


class _Pairs:
    """NVLink of a shape's GPU sets, each set once. By identity: a shape is shared by its nodes, and its hash is dear."""

    def __init__(self, best_pair: int) -> None:
        self._best_pair = best_pair
        self._known: dict[tuple[int, int], tuple[int, int]] = {}

    def of(self, shape: NodeShape, mask: int) -> tuple[int, int]:
        """(GB/s over all pairs of one model, GB/s short of the best pair over all pairs)."""
        key = id(shape), mask
        if key not in self._known:
            gpus = mask_indices(mask)
            short = sum(self._best_pair - pair_gbytes_per_s(shape, a, b) for a, b in combinations(gpus, 2))
            self._known[key] = pairs_gbytes_per_s(shape, gpus), short
        return self._known[key]


def _missing(
    problem: Problem, ranks: Sequence[RankPlacement], nodes_of: Mapping[tuple[str, int], set[str]], pairs: _Pairs
) -> int:
    """Inside instances that lie on one node: GB/s short of the best pair, over all their pairs."""
    cells: defaultdict[tuple[str, int], int] = defaultdict(int)
    for rank in ranks:
        cells[rank.group, rank.replica] |= 1 << rank.gpu
    missing = 0
    for key, mask in cells.items():
        if len(nodes_of[key]) == 1:
            (name,) = nodes_of[key]
            missing += pairs.of(problem.snapshot.topology.node(name).shape, mask)[1]
    return missing


def _cut(problem: Problem, taken: Mapping[str, int], pairs: _Pairs) -> int:
    cut = 0
    for name, mine in taken.items():
        shape = problem.snapshot.topology.node(name).shape
        free = problem.masks[problem.snapshot.topology.index[name]]
        cut += pairs.of(shape, free)[0] - pairs.of(shape, free & ~mine)[0]
    return cut
