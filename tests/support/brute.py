"""The best placement by trying them all: an oracle for solve, written without it. Only for clusters of about ten GPUs.

Rules come from check (which has its own tests); the terms of the objective are computed here a second time, over plain sets.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import combinations

from fmsched.catalogue import strength_tflops
from fmsched.model.hardware import GpuId, GpuSpec
from fmsched.model.job import GroupKind, Request
from fmsched.model.placement import Objective, Placement, RankPlacement
from fmsched.model.snapshot import Snapshot
from fmsched.place.check import check
from fmsched.predict import Training, Unpredicted, predict

Cell = tuple[GpuId, ...]
Choice = tuple[tuple[Cell, ...], ...]  # by group, by replica
CHOICES_MAX = 12_000


class TooManyError(Exception):
    """The case is too big to try everything."""


def ranks_of(snapshot: Snapshot, request: Request, choice: Choice) -> Placement:
    ranks: list[RankPlacement] = []
    stays = {(rank.group, rank.replica, rank.gpu_id): rank for rank in request.kept}
    for g, cells in enumerate(choice):
        for replica, cell in enumerate(cells):
            for gpu in cell:
                if (rank := stays.get((request.groups[g].name, replica, gpu))) is not None:
                    ranks.append(rank)
                    continue
                local = sum(rank.node == gpu.node for rank in ranks)
                if request.kept:  # beside those that stay: any number that nobody has
                    numbers = {rank.local_rank for rank in (*ranks, *request.kept) if rank.node == gpu.node}
                    local = min(set(range(len(numbers) + 1)) - numbers)
                uuid = snapshot.topology.node(gpu.node).uuids[gpu.index]
                number = g * request.replicas + replica
                ranks.append(
                    RankPlacement(len(ranks), request.groups[g].name, replica, number, local, gpu.node, gpu.index, uuid)
                )
    return Placement(request.job, tuple(ranks), Objective(0, 0))


def choices(snapshot: Snapshot, request: Request) -> Iterator[Choice]:
    """Every allowed choice of GPU sets, equal ones (instances swapped inside a group that no stage is tied to) once."""
    request = replace(request, replicas=request.replicas + request.spares, spares=0)
    free = [GpuId(node.name, i) for node in snapshot.topology.nodes for i in snapshot.free_indices(node.name)]
    stays = {
        (g, replica): tuple(rank.gpu_id for rank in request.kept if (rank.group, rank.replica) == (group.name, replica))
        for g, group in enumerate(request.groups)
        for replica in range(request.replicas)
    }
    valid: list[list[Cell]] = []
    for group in request.groups:
        alone = replace(request, groups=(group,), replicas=1, kept=())
        sets = combinations(free, group.gpus)
        valid.append([cell for cell in sets if not check(snapshot, alone, ranks_of(snapshot, alone, ((cell,),)))])
    if any(not cells and not all(stays[g, r] for r in range(request.replicas)) for g, cells in enumerate(valid)):
        return
    stages = [g for g, group in enumerate(request.groups) if group.kind is GroupKind.PIPELINE_PARALLEL]
    ordered = set(stages[1:])  # the first stage's replicas can be taken in one order
    slots = [g for g in range(len(request.groups)) for _ in range(request.replicas)]
    tried = 0

    def extend(chosen: list[Cell], used: frozenset[GpuId]) -> Iterator[list[Cell]]:
        nonlocal tried
        if len(chosen) == len(slots):
            yield chosen
            return
        g = slots[len(chosen)]
        first = chosen[-1] if chosen and len(chosen) % request.replicas and g not in ordered and not request.kept else ()
        if stay := stays[g, len(chosen) % request.replicas]:
            yield from extend([*chosen, stay], used)
            return
        for cell in valid[g]:
            tried += 1
            if tried > CHOICES_MAX:
                raise TooManyError
            if cell > first and used.isdisjoint(cell):
                yield from extend([*chosen, cell], used | frozenset(cell))

    for flat in extend([], frozenset(rank.gpu_id for rank in request.kept)):
        choice = tuple(tuple(flat[g * request.replicas : (g + 1) * request.replicas]) for g in range(len(request.groups)))
        if not check(snapshot, request, ranks_of(snapshot, request, choice)):
            yield choice


def score(snapshot: Snapshot, request: Request, choice: Choice) -> dict[str, int]:
    """Every term by name, in order of importance."""
    topology = snapshot.topology
    job = {gpu for cells in choice for cell in cells for gpu in cell}
    found: dict[str, int] = {"preference": 0}
    cost = sum(price(snapshot, topology.node(gpu.node).shape.gpus[gpu.index]) for gpu in job)
    for group, cells in zip(request.groups, choice, strict=True):
        for cell in cells:
            for gpu in cell:
                family = topology.node(gpu.node).shape.gpus[gpu.index].family
                found["preference"] += (
                    list(group.preferred).index(family) if family in group.preferred else len(group.preferred)
                )

    def domains(gpus: set[GpuId], level: int) -> int:
        return len({int(topology.domains[level][topology.leaf_of[topology.index[gpu.node]]]) for gpu in gpus})

    levels = _levels(snapshot)
    every = [cell for cells in choice for cell in cells]
    if levels:
        found["across leaves"] = sum(domains(set(cell), 0) > 1 for cell in every)
    found["across nodes"] = sum(len({gpu.node for gpu in cell}) > 1 for cell in every)
    for level in reversed(levels):
        found[f"job {level}"] = domains(job, level)
        found[f"groups {level}"] = sum(
            members * domains(talking, level) for members, talking in _communicating(request, choice)
        )
    nodes = {gpu.node for gpu in job}
    found["nodes"] = len(nodes)
    strengths = sorted({strength_tflops(spec) for node in topology.nodes for spec in node.shape.gpus})
    found["strength"] = sum(strengths.index(strength_tflops(topology.node(gpu.node).shape.gpus[gpu.index])) for gpu in job)
    found |= _behind(snapshot, job, nodes, levels)
    pairs = [
        min(node.shape.nvlink[i][j], node.shape.nvlink[j][i])
        for node in topology.nodes
        for i, j in combinations(range(len(node.shape.gpus)), 2)
    ]
    best = max((round(value) for value in pairs), default=0)
    found["missing"] = sum(
        best - _bandwidth(snapshot, a, b)
        for cell in every
        if len({gpu.node for gpu in cell}) == 1
        for a, b in combinations(cell, 2)
    )
    found["cut"] = _cut(snapshot, job, nodes)
    if by_cost(request):
        found["preference"] = cost  # it stands there instead
    elif snapshot.prices:
        found["cost"] = cost
    return found


def by_cost(request: Request) -> bool:
    return request.policy == "cheapest" or (request.policy == "balanced" and request.work is not None)


def price(snapshot: Snapshot, spec: GpuSpec) -> int:
    """Thousandths of what the GPU costs an hour: as given, or as many TFLOP/s cost in the models that have a price."""
    if spec.family in snapshot.prices:
        return round(1000 * snapshot.prices[spec.family])
    models = {each.model: each for node in snapshot.topology.nodes for each in node.shape.gpus}
    rates = [
        snapshot.prices[each.family] / max(1, strength_tflops(each))
        for _, each in sorted(models.items())
        if each.family in snapshot.prices
    ]
    return round(1000 * sum(rates) / len(rates) * strength_tflops(spec)) if rates else strength_tflops(spec)


def _communicating(request: Request, choice: Choice) -> list[tuple[int, set[GpuId]]]:
    """(weight, GPUs) of every set of ranks that talk: a group over all replicas; with several stages, also a replica over all stages.

    The weight is how many instances talk there; without several stages it is 1."""
    found = [(1, {gpu for cell in cells for gpu in cell}) for cells in choice]
    piped = [cells for group, cells in zip(request.groups, choice, strict=True) if "Pipeline" in group.kind]
    if len(piped) > 1:
        found = [(request.replicas, gpus) for _, gpus in found]
        found += [(len(piped), {gpu for cell in chain for gpu in cell}) for chain in zip(*piped, strict=True)]
    return found


def _levels(snapshot: Snapshot) -> list[int]:
    seen: list[list[int]] = []
    levels = []
    for level, domain in enumerate(snapshot.topology.domains):
        if len(set(domain.tolist())) > 1 and (not seen or seen[-1] != domain.tolist()):
            levels.append(level)
            seen.append(domain.tolist())
    return levels


def _behind(snapshot: Snapshot, job: set[GpuId], nodes: set[str], levels: list[int]) -> dict[str, int]:
    topology = snapshot.topology
    lost = left = 0
    for name in nodes:
        shape = topology.node(name).shape
        free = set(snapshot.free_indices(name))
        after = free - {gpu.index for gpu in job if gpu.node == name}
        left += len(after)
        for model in {spec.model for spec in shape.gpus}:
            mine = {i for i, spec in enumerate(shape.gpus) if spec.model == model}
            for size in (2, 4, 8, 16):
                if size <= len(mine):
                    lost += size * (len(free & mine) // size - len(after & mine) // size)
    found = {"cells": lost, "left on nodes": left}
    for level in levels:
        of = {node.name: int(topology.domains[level][topology.leaf_of[i]]) for i, node in enumerate(topology.nodes)}
        touched = {of[name] for name in nodes}
        found[f"left in {level}"] = sum(len(snapshot.free_indices(n)) for n in of if of[n] in touched) - len(job)
    return found


def _bandwidth(snapshot: Snapshot, a: GpuId, b: GpuId) -> int:
    matrix = snapshot.topology.node(a.node).shape.nvlink
    return round(min(matrix[a.index][b.index], matrix[b.index][a.index]))


def _cut(snapshot: Snapshot, job: set[GpuId], nodes: set[str]) -> int:
    total = 0
    for name in nodes:
        shape = snapshot.topology.node(name).shape
        free = [GpuId(name, i) for i in snapshot.free_indices(name)]
        for a, b in combinations(free, 2):
            if (a in job or b in job) and shape.gpus[a.index].model == shape.gpus[b.index].model:
                total += _bandwidth(snapshot, a, b)
    return total


def best(snapshot: Snapshot, request: Request) -> tuple[int, ...] | None:
    """The terms of the best placement; None where there is none. Raises TooManyError."""
    request = replace(request, replicas=request.replicas + request.spares, spares=0)
    scored = cache(lambda choice: tuple(score(snapshot, request, choice).values()))
    return min((scored(choice) for choice in choices(snapshot, request)), default=None)


def step_us(snapshot: Snapshot, request: Request, choice: Choice, training: Training) -> float:
    """Microseconds of a step with these GPUs, its replicas in this order; inf where it cannot be said."""
    found = predict(snapshot.topology, ranks_of(snapshot, request, choice).ranks, training)
    return math.inf if isinstance(found, Unpredicted) else math.floor(found.step_s * 1e6 + 0.5)


def best_with_step(snapshot: Snapshot, request: Request, training: Training, *, first: bool) -> tuple[float, ...] | None:
    """The terms of the best placement, the step time first or after the preference list. Raises TooManyError."""

    def key(choice: Choice) -> tuple[float, ...]:
        preference, *rest = score(snapshot, request, choice).values()
        step = step_us(snapshot, request, choice, training)
        if request.policy == "balanced" and step < math.inf:
            gpus = [gpu for cells in choice for cell in cells for gpu in cell]
            cost = sum(price(snapshot, snapshot.topology.node(gpu.node).shape.gpus[gpu.index]) for gpu in gpus)
            step = int(step) * cost // 3_600_000
        return (step, preference, *rest) if first else (preference, step, *rest)

    return min(map(key, choices(snapshot, request)), default=None)
