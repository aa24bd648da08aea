"""Power budgets: the GPUs that jobs hold in some nodes, at their highest power limits, draw no more than the nodes' feed gives.

A GPU counts with its highest power limit (catalogue, tdp_w) from when it is granted, whatever it draws at the moment; one that
nobody holds counts nothing, and so does a model that the catalogue lacks. Budgets seldom bind. So a placement is first sought
without them: the best of all placements that also keeps to the budgets is the best that does. Only where it does not, the
count model is asked with them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from math import floor

from fmsched.catalogue import lookup
from fmsched.model.hardware import GpuId, GpuSpec
from fmsched.model.snapshot import PowerBudget, Snapshot


@cache
def watts_of(spec: GpuSpec) -> int:
    """W of one granted GPU."""
    facts = lookup(spec.model)
    return round(facts.tdp_w) if facts is not None else 0


def drawn(snapshot: Snapshot, budget: PowerBudget, gpus: Iterable[GpuId]) -> int:
    """W that those of the GPUs that lie in the budget's nodes draw."""
    topology = snapshot.topology
    return sum(
        watts_of(topology.node(gpu.node).shape.gpus[gpu.index])
        for gpu in gpus
        if gpu.node in budget.nodes and gpu.node in topology.index
    )


@dataclass(frozen=True, slots=True)
class Feed:
    """A budget as one request meets it: what is left of it, and the positions of its nodes."""

    name: str
    left_w: int
    nodes: frozenset[int]


def feeds(snapshot: Snapshot, gpus: int) -> tuple[Feed, ...]:
    """The budgets that a job of so many GPUs can come up against."""
    if not snapshot.power:
        return ()
    topology = snapshot.topology
    most_w = gpus * max((watts_of(spec) for spec in {s for node in topology.nodes for s in node.shape.gpus}), default=0)
    found = []
    for budget in snapshot.power:
        left_w = floor(budget.watts) - drawn(snapshot, budget, snapshot.held)
        if left_w < most_w:
            nodes = frozenset(topology.index[name] for name in budget.nodes if name in topology.index)
            found.append(Feed(budget.name, left_w, nodes))
    return tuple(found)


def labels(feeds: Iterable[Feed]) -> Mapping[int, tuple[int, ...]]:
    """By position of a node, which of the feeds it hangs on; nodes on none are left out."""
    found: dict[int, tuple[int, ...]] = {}
    for number, feed in enumerate(feeds):
        for node in feed.nodes:
            found[node] = (*found.get(node, ()), number)
    return found


def needed(snapshot: Snapshot, budget: PowerBudget, gpus: int) -> int:
    """W with which the budget could not stand in a job's way: what is drawn, and the job's all on its hungriest GPUs."""
    shapes = {id(node.shape): node.shape for node in snapshot.topology.nodes if node.name in budget.nodes}
    most_w = max((watts_of(spec) for shape in shapes.values() for spec in shape.gpus), default=0)
    count = sum(len(node.shape.gpus) for node in snapshot.topology.nodes if node.name in budget.nodes)
    return drawn(snapshot, budget, snapshot.held) + most_w * min(gpus, count)


def overdrawn(snapshot: Snapshot, gpus: Iterable[GpuId]) -> Iterator[tuple[PowerBudget, int, int]]:
    """(budget, W that running jobs draw, W that these GPUs draw) for each budget that both together exceed. Naive."""
    asked = tuple(gpus)
    for budget in snapshot.power:
        held_w, asked_w = drawn(snapshot, budget, snapshot.held), drawn(snapshot, budget, asked)
        if asked_w and held_w + asked_w > budget.watts:
            yield budget, held_w, asked_w
