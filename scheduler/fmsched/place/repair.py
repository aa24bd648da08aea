"""A gang some of whose ranks stay where they are: only the lost instances are placed, and each takes the rank numbers that it had.

The few lost instances are tried on every kind of node, not counted: all terms are those of the whole gang, which the ranks that stay have
a share in, and every rule holds between them and the new ones (check.py says so of each answer). What the kinds leave out are instances
across nodes. These come after whole ones, so nothing is lost where a whole one stands as far up the preference list as anything can; else
the answer is called proven by nothing, and where no whole one fits, the solver is asked for the lost instances alone.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from fmsched.model.hardware import GpuId
from fmsched.model.job import GroupKind, Request, ResourceGroup
from fmsched.model.placement import Budget, Objective, Placement, RankPlacement, Undecided, Unplaceable, Why
from fmsched.model.snapshot import Snapshot
from fmsched.place import fastest, relations
from fmsched.place.check import check
from fmsched.place.hosts import mask_indices, static_of
from fmsched.place.kept import Instance, given_back, lost
from fmsched.place.measure import measure
from fmsched.place.nodes import excluded
from fmsched.place.objective import objective, preference_step, terms_max
from fmsched.place.price import ruler_for
from fmsched.place.problem import Problem, problem_of
from fmsched.place.ranks import adapters
from fmsched.place.solve import best
from fmsched.place.ways import eligible

# Ways to place all lost instances: so many, and beyond the few no more than make so many ranks together, which have to be measured.
TRIED_MAX, TRIED_MIN, RANKS_MAX = 3000, 64, 40_000
SETS_MAX = 100  # GPU sets of one node whose GPUs are not alike

Cell = tuple[GpuId, ...]


@dataclass(slots=True)
class _Repair:
    """One repair: the cluster without what stays, the whole job as it is measured, and whether everything was tried."""

    snapshot: Snapshot
    request: Request
    problem: Problem
    lost: tuple[Instance, ...]
    complete: bool = True


def repaired(snapshot: Snapshot, request: Request, budget: Budget) -> Placement | Undecided | None:
    """As solve.best, with request.kept where it is; None: proven, there is no placement.

    Raises ValueError where the kept ranks are not whole instances.
    """
    missing = lost(request)
    free = given_back(snapshot, request)
    ruler = ruler_for(free, request)
    mine = _Repair(free, request, problem_of(free, request, ruler, fold=False), missing)
    if any(not free.usable(rank.gpu_id) for rank in request.kept):
        return None  # what is to stay cannot: another holds it, or it failed
    answer = _best_tried(mine)
    if answer is not None:
        return answer
    spans = any(_may_span(free, request.groups[g]) for g, _ in missing)
    if mine.complete and not spans:
        return None
    return _solved(mine, budget)


def refusal(snapshot: Snapshot, request: Request, budget: Budget) -> Unplaceable:
    """Why the ranks that stay cannot be joined by the rest; never: not even if nobody else were there."""
    missing = lost(request)
    groups = [request.groups[g] for g, _ in missing]
    gpus = sum(group.gpus for group in groups)
    anew = best(given_back(snapshot, request), replace(request, kept=()), budget)
    names = ", ".join(dict.fromkeys(group.name for group in groups))
    why = Why(
        "kept ranks",
        names,
        f"{gpus} GPUs that may join {len(request.kept)} ranks that stay",
        "none that are free, allowed, and near enough to them",
        "",
        "place all ranks anew" if isinstance(anew, Placement) else "",
    )
    return Unplaceable(request.job, repaired(snapshot.emptied(), request, budget) is None, (why,))


# --- every kind of node ---


def _best_tried(mine: _Repair) -> Placement | None:
    """The best that trying finds and check allows; None where there is none of instances on one node each."""
    request, ruler = mine.request, mine.problem.ruler
    step = fastest.job_of(mine.snapshot, request)
    first = fastest.stands_first(request)
    nothing = Objective(0.0, 0.0)
    most = min(TRIED_MAX, max(TRIED_MIN, RANKS_MAX // request.gpus))
    rows: list[tuple[tuple[float, ...], float, Placement, tuple[int, ...]]] = []
    for cells in _choices(mine, (), frozenset(rank.gpu_id for rank in request.kept)):
        if len(rows) == most:
            mine.complete = False
            break
        placement = Placement(request.job, _ranks(mine, cells), nothing)
        values = measure(mine.problem, placement.ranks)
        figure = fastest.figure_of(step, placement) if step is not None else 0.0
        key = (figure, *map(float, values)) if first else (float(values[0]), figure, *map(float, values[1:]))
        rows.append((key, figure, placement, values))
    maxima = terms_max(mine.snapshot, request, ruler)
    for _, figure, placement, values in sorted(rows, key=lambda row: row[0]):
        if check(mine.snapshot, request, placement):
            continue
        proven = _nothing_wider(mine, placement, stepped=step is not None)
        own = objective(ruler, maxima, values, None if proven else 0)
        if step is not None and figure < math.inf:
            least = int(figure) if proven else 0
            own = fastest.with_step(step, own, int(figure), least, own.bound, proven, first=first)
        return replace(placement, objective=own)
    return None


def _nothing_wider(mine: _Repair, placement: Placement, *, stepped: bool) -> bool:
    """Whether an instance across nodes, or what was not tried, could be no better."""
    if not mine.complete:
        return False
    if not any(_may_span(mine.snapshot, mine.request.groups[g]) for g, _ in mine.lost):
        return True
    missing = {(mine.request.groups[g].name, replica) for g, replica in mine.lost}
    groups = {group.name: group for group in mine.request.groups}
    node = mine.snapshot.topology.node
    new = [rank for rank in placement.ranks if (rank.group, rank.replica) in missing]
    return not stepped and not any(
        preference_step(groups[rank.group], node(rank.node).shape.gpus[rank.gpu]) for rank in new
    )


def _may_span(snapshot: Snapshot, group: ResourceGroup) -> bool:
    if group.gpus == 1 or group.apart:
        return False
    return not relations.spans_only_by_nvlink(group) or any(node.nvlink_domain for node in snapshot.topology.nodes)


def _choices(mine: _Repair, chosen: tuple[Cell, ...], used: frozenset[GpuId]) -> Iterator[tuple[Cell, ...]]:
    """All lost instances on kinds of nodes that differ, each on one node."""
    if len(chosen) == len(mine.lost):
        yield chosen
        return
    g, _ = mine.lost[len(chosen)]
    group = mine.request.groups[g]
    # Two lost instances of one group may change places, unless stages or the step's order of ranks tell them apart.
    alike = group.kind is not GroupKind.PIPELINE_PARALLEL and mine.request.work is None
    after = chosen[-1] if chosen and alike and mine.lost[len(chosen) - 1][0] == g else ()
    for cell in _cells(mine, group, used):
        if cell < after:
            continue
        yield from _choices(mine, (*chosen, cell), used | frozenset(cell))


def _cells(mine: _Repair, group: ResourceGroup, used: frozenset[GpuId]) -> Iterator[Cell]:
    """GPU sets for one instance, nodes that nothing tells apart once: those near what the job has first, the fullest of them first."""
    problem, static = mine.problem, static_of(mine.snapshot.topology)
    topology, request = mine.snapshot.topology, mine.request
    touched = {topology.index[gpu.node] for gpu in used}
    leaves = {static.leaf_of[node] for node in touched}
    out = excluded(mine.snapshot, request)
    kinds: dict[Hashable, tuple[tuple[int, ...], int, int]] = {}
    for node, mask in enumerate(problem.masks):
        name = topology.nodes[node].name
        if mask.bit_count() < group.gpus or name in out:
            continue
        if node in touched:
            for gpu in used:
                if topology.index[gpu.node] == node:
                    mask &= ~(1 << gpu.index)  # noqa: PLW2901
        key = _kind(mine, node, mask, alone=node in touched)
        if mask.bit_count() >= group.gpus and key not in kinds:
            kinds[key] = (static.leaf_of[node] not in leaves, mask.bit_count(), node), node, mask
    for _, node, mask in sorted(kinds.values()):
        for gpus in _sets(mine, group, node, mask):
            yield tuple(GpuId(topology.nodes[node].name, i) for i in gpus)


def _kind(mine: _Repair, node: int, mask: int, *, alone: bool) -> Hashable:
    """Nodes of one kind serve a lost instance alike, whatever the rules."""
    topology, static = mine.snapshot.topology, static_of(mine.snapshot.topology)
    owner = topology.nodes[node]
    number = static.shape_of[node]
    feeds = tuple(budget.name for budget in mine.snapshot.power if owner.name in budget.nodes)
    others: tuple[str, ...] = ()
    if mine.request.cpus_per_gpu or mine.request.memory_gb_per_gpu:
        gpus = range(len(owner.shape.gpus))
        others = tuple(sorted(mine.snapshot.held.get(GpuId(owner.name, i), "") for i in gpus))
    state = mask.bit_count() if static.uniform[number] else mask
    return static.leaf_of[node], number, state, owner.nvlink_domain, feeds, others, node if alone else -1


def _sets(mine: _Repair, group: ResourceGroup, node: int, mask: int) -> Iterator[tuple[int, ...]]:
    static = static_of(mine.snapshot.topology)
    number = static.shape_of[node]
    shape = static.shapes[number]
    free = [i for i in mask_indices(mask) if eligible(group, shape.gpus[i])]
    if static.uniform[number]:
        if len(free) >= group.gpus:
            yield tuple(free[: group.gpus])
        return
    found = 0
    for gpus in combinations(free, group.gpus):
        if len({shape.gpus[i].model for i in gpus}) > 1:
            continue
        found += 1
        if found > SETS_MAX:
            mine.complete = False
            return
        yield gpus


# --- ranks ---


def _ranks(mine: _Repair, cells: Sequence[Cell]) -> tuple[RankPlacement, ...]:
    """The whole gang in rank order: what stays as it is, new ranks with the least local numbers that their nodes have left."""
    request, topology = mine.request, mine.snapshot.topology
    new = {instance: sorted(cell) for instance, cell in zip(mine.lost, cells, strict=True)}
    stays: dict[tuple[str, int], list[RankPlacement]] = {}
    numbers: dict[str, set[int]] = {}
    for rank in request.kept:
        stays.setdefault((rank.group, rank.replica), []).append(rank)
        numbers.setdefault(rank.node, set()).add(rank.local_rank)
    ranks: list[RankPlacement] = []
    for g, group in enumerate(request.groups):
        for replica in range(request.replicas):
            if (g, replica) not in new:
                ranks += sorted(stays[group.name, replica], key=lambda rank: rank.rank)
                continue
            for gpu in new[g, replica]:
                owner = topology.node(gpu.node)
                taken = numbers.setdefault(gpu.node, set())
                local = next(n for n in range(len(taken) + 1) if n not in taken)
                taken.add(local)
                ranks.append(
                    RankPlacement(
                        rank=len(ranks),
                        group=group.name,
                        replica=replica,
                        cell=g * request.replicas + replica,
                        local_rank=local,
                        node=gpu.node,
                        gpu=gpu.index,
                        uuid=owner.uuids[gpu.index],
                        hcas=adapters(owner.shape, gpu.index),
                    )
                )
    return tuple(ranks)


# --- across nodes ---


def _solved(mine: _Repair, budget: Budget) -> Placement | Undecided | None:
    """The lost instances alone, of one group, on nodes near enough to all of it that stays. Nothing is proven of where they stand."""
    request = mine.request
    undecided = Undecided(
        request.job, "the lost instances fit on no single nodes, and whether they fit across nodes is not known"
    )
    groups = {g for g, _ in mine.lost}
    if len(groups) > 1:
        return undecided
    g = groups.pop()
    group, topology = request.groups[g], mine.snapshot.topology
    near = relations.group_reaches(group)
    there = sorted({rank.node for rank in request.kept if rank.group == group.name})
    out = {
        node.name
        for node in topology.nodes
        if any(
            not relations.hops_ok(topology, near, node.name, b) or not relations.rate_ok(topology, near, node.name, b)
            for b in there
        )
    }
    taken = {rank.gpu_id: request.job for rank in request.kept}
    alone = replace(request, groups=(group,), replicas=len(mine.lost), kept=(), avoid_nodes=request.avoid_nodes | out)
    answer = best(replace(mine.snapshot, held={**mine.snapshot.held, **taken}), alone, budget)
    if not isinstance(answer, Placement):
        return answer  # without the rules between what stays and what is new there is none either
    cells = [tuple(rank.gpu_id for rank in answer.ranks if rank.replica == number) for number in range(len(mine.lost))]
    placement = Placement(request.job, _ranks(mine, cells), Objective(0.0, 0.0))
    if check(mine.snapshot, request, placement):
        return undecided
    values = measure(mine.problem, placement.ranks)
    own = objective(mine.problem.ruler, terms_max(mine.snapshot, request, mine.problem.ruler), values, 0)
    return replace(placement, objective=own)
