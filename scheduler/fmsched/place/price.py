"""What GPUs cost, and what a job's policy makes of it. Whole numbers: thousandths of what a GPU-hour costs.

An operator gives prices by GPU family. A family that has none costs, for each TFLOP/s, what the priced ones of the cluster cost on average;
where none has, a GPU costs its TFLOP/s. `cheapest` puts the cost where the preference list stands otherwise; with `balanced` it does so
below the cost of a step (fastest.py). Without a policy, and with `fastest`, known prices decide last.
"""

from __future__ import annotations

from dataclasses import replace

from fmsched.catalogue import strength_tflops
from fmsched.model.hardware import GpuSpec
from fmsched.model.job import Request, ResourceGroup
from fmsched.model.placement import Placement
from fmsched.model.snapshot import Snapshot
from fmsched.place.objective import COST, Ruler, below, ruler_of
from fmsched.place.ways import eligible

BY_COST = ("cheapest", "balanced")


def costs_of(snapshot: Snapshot) -> dict[str, int]:
    """By GPU model of the cluster, its price an hour in thousandths."""
    specs = _specs(snapshot)
    known = [
        snapshot.prices[spec.family] / max(1, strength_tflops(spec)) for spec in specs if spec.family in snapshot.prices
    ]
    rate = sum(known) / len(known) if known else 1 / 1000
    return {spec.model: round(1000 * snapshot.prices.get(spec.family, rate * strength_tflops(spec))) for spec in specs}


def _specs(snapshot: Snapshot) -> list[GpuSpec]:
    shapes = dict.fromkeys(node.shape for node in snapshot.topology.nodes)
    found = {spec.model: spec for shape in shapes for spec in shape.gpus}
    return [found[model] for model in sorted(found)]


def ruler_for(snapshot: Snapshot, request: Request) -> Ruler:
    """The cluster's ruler, with the cost where the request and the known prices put it."""
    ruler = ruler_of(snapshot.topology)
    if any(group.costs for group in request.groups):
        return replace(ruler, first=COST)
    return replace(ruler, cost=costs_of(snapshot)) if snapshot.prices else ruler


def by_policy(snapshot: Snapshot, request: Request) -> Request:
    """The question that the policy makes of the request: with what its GPUs cost in place of the order of its types, or as it is."""
    if request.policy not in BY_COST or (request.policy == "balanced" and request.work is None):
        return request
    costs, specs = costs_of(snapshot), _specs(snapshot)

    def priced(group: ResourceGroup) -> ResourceGroup:
        least = _least(group, specs, costs)
        return replace(
            group,
            preferred=(),
            tolerated=group.families,
            costs=tuple((model, max(0, cost - least)) for model, cost in sorted(costs.items())),
        )

    return replace(request, groups=tuple(map(priced, request.groups)))


def least_cost(snapshot: Snapshot, request: Request) -> int:
    """The job on the cheapest GPU that each group allows. What `costs` of by_policy() is counted above."""
    costs, specs = costs_of(snapshot), _specs(snapshot)
    return sum(request.replicas * group.gpus * _least(group, specs, costs) for group in request.groups)


def _least(group: ResourceGroup, specs: list[GpuSpec], costs: dict[str, int]) -> int:
    return min((costs[spec.model] for spec in specs if eligible(group, spec)), default=0)


def in_full(snapshot: Snapshot, request: Request, placement: Placement) -> Placement:
    """The answer to by_policy()'s question with its whole cost, not only what is above the cheapest."""
    own = placement.objective
    added = float(least_cost(snapshot, request))
    at = next(i for i, term in enumerate(own.terms) if term.name == COST)
    term = own.terms[at]
    terms = (*own.terms[:at], replace(term, value=term.value + added), *own.terms[at + 1 :])
    value = own.value + term.weight * added
    bound = below(own.bound + term.weight * added, value, proven=own.optimal)
    return replace(placement, objective=replace(own, value=value, bound=bound, terms=terms))
