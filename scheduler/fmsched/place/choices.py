"""What else a job could run on, and when that pays: "16 A100 now, 8 + 8 now, or wait for 16 H100?". For `plan` alone.

One choice for each GPU type that the job allows: the job on that type alone, now where it fits now, else on the cluster once it is
empty. How long a type stays taken is not known here; what is known is how long a wait still pays: with a day's work of the fastest
present choice ahead, a faster type may come as much later as it saves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from fmsched.model.job import Request, ResourceGroup
from fmsched.model.placement import Budget, Placement, Verdict
from fmsched.model.snapshot import Snapshot
from fmsched.place.forecast import forecast
from fmsched.place.price import costs_of
from fmsched.place.solve import solve
from fmsched.place.ways import eligible
from fmsched.predict import Predicted

TYPES_MAX = 4  # a solve or two each
HORIZON_S = 86_400.0  # of work ahead, by which a wait is judged: more work makes a longer wait pay


@dataclass(frozen=True, slots=True)
class Option:
    """One way to run the job.

    gpus                     by family, how many
    cost_per_hour            of its GPUs, where the operator has given prices; None: not known
    pays_if_shorter_than_s   not now: waiting pays where it is shorter, with HORIZON_S of work ahead; 0: it never does
    """

    name: str
    now: bool
    gpus: tuple[tuple[str, int], ...]
    nodes: int
    step_s: float
    tokens_per_s: float
    cost_per_hour: float | None
    pays_if_shorter_than_s: float = 0.0


def options(snapshot: Snapshot, request: Request, budget: Budget, verdict: Verdict) -> tuple[Option, ...]:
    """The ways to run a job that says what it trains: those that can start now first, the fastest first. `verdict` is the plain answer.

    Empty where no step can be predicted, or where there is one way only.
    """
    if request.work is None:
        return ()
    quick = replace(budget, explain_solves_max=0)
    found: dict[tuple[bool, tuple[tuple[str, int], ...]], Option] = {}

    def add(of: Snapshot, answer: Verdict, *, now: bool) -> None:
        option = _option(of, request, answer, now=now)
        if option is not None:
            found.setdefault((now, option.gpus), option)

    add(snapshot, verdict, now=True)
    for family in _families(snapshot, request)[:TYPES_MAX]:
        narrowed = replace(request, groups=tuple(_only(group, family) for group in request.groups))
        answer = solve(snapshot, narrowed, quick)
        if isinstance(answer, Placement):
            add(snapshot, answer, now=True)
        else:
            empty = snapshot.emptied()
            add(empty, solve(empty, replace(narrowed, avoid_nodes=frozenset()), quick), now=False)
    return _judged(list(found.values())) if len(found) > 1 else ()


def _families(snapshot: Snapshot, request: Request) -> list[str]:
    """The GPU types that some group may have, in the order in which the groups name them, then by name."""
    specs = {spec for shape in {node.shape for node in snapshot.topology.nodes} for spec in shape.gpus}
    there = {spec.family for spec in specs if any(eligible(group, spec) for group in request.groups)}
    named = [family for group in request.groups for family in group.preferred if family in there]
    return list(dict.fromkeys([*named, *sorted(there)]))


def _only(group: ResourceGroup, family: str) -> ResourceGroup:
    """The group on this type, where it may have it."""
    return replace(group, preferred=(family,), tolerated=()) if not group.families or family in group.families else group


def _option(snapshot: Snapshot, request: Request, verdict: Verdict, *, now: bool) -> Option | None:
    predicted = forecast(request, snapshot.topology, verdict)
    if not isinstance(verdict, Placement) or not isinstance(predicted, Predicted):
        return None
    specs = [snapshot.topology.node(rank.node).shape.gpus[rank.gpu] for rank in verdict.ranks]
    gpus = tuple(sorted(Counter(spec.family for spec in specs).items()))
    prices = costs_of(snapshot)
    cost = sum(prices[spec.model] for spec in specs) / 1000 if snapshot.prices else None
    name = " + ".join(f"{count} {family.upper()}" for family, count in gpus)
    return Option(name, now, gpus, len(verdict.nodes), predicted.step_s, predicted.tokens_per_s, cost)


def _judged(found: Sequence[Option]) -> tuple[Option, ...]:
    """In order, with what a wait may take. Where nothing can start now, any wait pays, and none is judged."""
    best = max((option.tokens_per_s for option in found if option.now), default=0.0)
    judged = [
        option
        if option.now or not best
        else replace(option, pays_if_shorter_than_s=max(0.0, HORIZON_S * (1 - best / option.tokens_per_s)))
        for option in found
    ]
    return tuple(sorted(judged, key=lambda option: (not option.now, -option.tokens_per_s, option.name)))


def options_json(found: Sequence[Option]) -> list[dict[str, object]]:
    """What `fmctl plan -o json` prints under `choices`."""
    return [
        {
            "name": option.name,
            "now": option.now,
            "gpus": dict(option.gpus),
            "nodes": option.nodes,
            "step_s": round(option.step_s, 9),
            "tokens_per_s": round(option.tokens_per_s, 3),
            "cost_per_hour": None if option.cost_per_hour is None else round(option.cost_per_hour, 3),
            "pays_if_shorter_than_s": None if option.now else round(option.pays_if_shorter_than_s, 1),
        }
        for option in found
    ]
