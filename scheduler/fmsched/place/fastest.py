"""The placement with the least predicted step time, and among equal ones the best by the terms of objective.py. Where a job says what
it trains, this stands above solve's other terms.

A step is as fast as its slowest GPU and its weakest links. So placements fall into few classes: by the slowest GPU that trains, and by
the slowest node's way out. A class lies in a narrower question (only such GPUs and nodes, or better ones), which the solver answers as
any other; and no placement of the class steps faster than predict/bound.py says of it. Classes are asked about in order of that bound,
until the next could not be faster than the best seen. Then the step time is proven, else the least bound of those left stands beside it.

An answer tells more of its class: where it is proven best and has no instance across nodes, none without one lies in fewer domains of the
fabric, so all cross at least its links; and where it has one, all have.

With `policy: balanced` what counts is the cost of a step, its time × the price of the job's GPUs, in the same way: the cheapest answer of
each class is asked for, and the class's bound is that of its step times the least that its GPUs cost.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np

from fmsched.model.fabric import UNREACHABLE_HOPS, Topology
from fmsched.model.job import Request, ResourceGroup
from fmsched.model.placement import Budget, Objective, Placement, Term, Undecided
from fmsched.model.snapshot import Snapshot
from fmsched.place import relations
from fmsched.place.forecast import training
from fmsched.place.hosts import free_masks, mask_indices, static_of
from fmsched.place.objective import TOPOLOGIES_KEPT, below, preference_step
from fmsched.place.price import costs_of
from fmsched.place.solve import best
from fmsched.place.ways import eligible
from fmsched.predict import Training, Unpredicted, predict
from fmsched.predict.bound import Far, Ground, least_step_s
from fmsched.predict.links import Best, best_of
from fmsched.predict.step import attained_flops_per_s

STEP = "microseconds of a predicted step"
STEP_COST = "millionths of what a predicted step costs"
FIGURE_MAX = 10**12  # eleven days of microseconds: what the weight of a term above it is made for
SOLVES_MAX = 4
SLACK = 1 - 1e-12  # sums in another order may differ by so much; a bound may not be above a value for that


@dataclass(frozen=True, slots=True)
class _Class:
    """Placements whose slowest GPU attains `flops_per_s` and whose slowest node has `gbps` for each GPU outside. Its question allows these
    `models` and forbids the nodes `slow`."""

    flops_per_s: float
    gbps: float
    models: tuple[str, ...]
    slow: frozenset[str]
    ground: Ground


@dataclass(slots=True)
class _Seen:
    """What is known of a class: no placement of it has a lower figure than `least`; `answer` is its question's, where it was asked."""

    of: _Class
    least: int
    answer: Placement | None = None
    asked: bool = False


@dataclass(slots=True)
class _Job:
    """One decision: the question, what is trained, and what was found so far. `order` is the question whose terms decide among equals."""

    snapshot: Snapshot
    order: Request
    training: Training
    groups: tuple[ResourceGroup, ...]  # that train
    costs: Mapping[str, int] | None  # by model, where the figure is what a step costs; None: it is the step's time
    solved: dict[tuple[Request, tuple[str, ...], frozenset[str]], Placement | None] = field(default_factory=dict)
    figures: dict[int, tuple[Placement, float]] = field(default_factory=dict)  # by identity: ranks are many to hash

    @property
    def only_training(self) -> bool:
        return len(self.groups) == len(self.order.groups)


def fastest(snapshot: Snapshot, request: Request, budget: Budget) -> Placement | Undecided | None:
    """As solve.best, with the step time among the terms: first where no preference list is given or the policy says so, else after it.

    Without a step time (no such model, sizes that do not fit the groups, GPUs that are not known) the answer is solve.best's.
    """
    plain = best(snapshot, request, budget)
    mine = job_of(snapshot, request)
    if not isinstance(plain, Placement) or mine is None:
        return plain
    classes = _classes(mine)
    if not classes:
        return plain
    if _is_all(mine, classes[0]):
        mine.solved[request, classes[0].models, classes[0].slow] = plain
    listed, first = _listed(request), stands_first(request)
    # Above the list, the order of the list must not hide the fastest.
    unlisted = first and listed and mine.costs is None
    question = replace(request, groups=tuple(map(_unordered, request.groups))) if unlisted else request
    seen = _search(mine, question, classes, budget, listed=listed and not first)
    return _choose(mine, question, seen, budget, first=first) or plain


def job_of(snapshot: Snapshot, request: Request) -> _Job | None:
    """None where the request's job has no step time."""
    job = training(request)
    if isinstance(job, Unpredicted):
        return None
    trained = tuple(group for group in request.groups if not job.groups or group.name in job.groups)
    balanced = request.policy == "balanced" and any(group.costs for group in request.groups)
    return _Job(snapshot, request, job, trained, costs_of(snapshot) if balanced else None)


def stands_first(request: Request) -> bool:
    """Whether the step's figure stands above the preference list, or the cost."""
    return request.policy in ("fastest", "balanced") or not _listed(request)


def _listed(request: Request) -> bool:
    return any(group.preferred or group.costs for group in request.groups)


def _search(job: _Job, question: Request, classes: Sequence[_Class], budget: Budget, *, listed: bool) -> list[_Seen]:
    """Every class with what is known of it. With `listed`, the whole question comes first: only what is as far up the list counts."""
    seen = [_Seen(each, _least_figure(job, each, None)) for each in classes]
    top = seen[0]  # its question holds all the others
    least_preference = math.inf
    found = math.inf
    if listed:
        _ask(job, question, top, budget)
        if top.answer is None:
            return seen
        least_preference = top.answer.objective.terms[0].value
        found = figure_of(job, top.answer)
    for _ in range(SOLVES_MAX):
        open_ = [each for each in seen if not each.asked and each.least <= found]
        if not open_:
            break
        # The whole question is answered already in most cases; a class that may be faster is asked first.
        _ask(job, question, mine := min(open_, key=lambda each: each.least), budget)
        if mine.answer is None:
            continue
        if listed and mine.answer.objective.terms[0].value > least_preference:
            if mine.answer.objective.optimal:
                mine.least = FIGURE_MAX  # nothing of it is as far up the list
            mine.answer = None
            continue
        found = min(found, figure_of(job, mine.answer))
    return seen


def _ask(job: _Job, question: Request, mine: _Seen, budget: Budget) -> None:
    mine.asked = True
    answer = _solved(job, question, mine.of, budget)
    if isinstance(answer, Undecided):
        return
    if answer is None:
        mine.least = FIGURE_MAX
        return
    mine.answer = answer
    mine.least = max(mine.least, _least_figure(job, mine.of, answer))


def _solved(job: _Job, question: Request, of: _Class, budget: Budget) -> Placement | Undecided | None:
    key = question, of.models, of.slow
    if key not in job.solved:
        narrowed = replace(
            question,
            groups=tuple(
                replace(group, models=of.models) if group.name in {each.name for each in job.groups} else group
                for group in question.groups
            ),
            avoid_nodes=question.avoid_nodes | of.slow,
        )
        answer = best(job.snapshot, narrowed, budget)
        if isinstance(answer, Undecided):
            return answer
        job.solved[key] = answer
    return job.solved[key]


def figure_of(job: _Job, placement: Placement) -> float:
    """The step's time, µs, or what it costs; inf where the step of this placement cannot be predicted."""
    known = job.figures.get(id(placement))
    if known is None:
        found = predict(job.snapshot.topology, [rank for rank in placement.ranks if not rank.spare], job.training)
        figure = math.inf if isinstance(found, Unpredicted) else math.floor(found.step_s * 1e6 + 0.5)
        if job.costs is not None and figure < math.inf:
            node = job.snapshot.topology.node
            cost = sum(job.costs[node(rank.node).shape.gpus[rank.gpu].model] for rank in placement.ranks if not rank.spare)
            figure = _step_cost(int(figure), cost)
        known = job.figures[id(placement)] = placement, figure
    return known[1]


def _step_cost(step_us: int, cost: int) -> int:
    """Microseconds × thousandths an hour, in millionths."""
    return step_us * cost // 3_600_000


# --- what is known of a class ---


def _least_figure(job: _Job, of: _Class, answer: Placement | None) -> int:
    """No placement of the class has less. `answer` is its question's best, where that is known."""
    if job.costs is None:
        return _least_us(job, of, answer)
    of_group = [
        sorted({job.costs[model] for model in models})
        for group in job.order.groups
        if (models := [m for m in job.costs if (group not in job.groups or m in of.models) and _allows(job, group, m)])
    ]
    if len(of_group) < len(job.order.groups):
        return 0
    sizes = [job.order.replicas * group.gpus for group in job.order.groups]
    cost = sum(size * costs[0] for size, costs in zip(sizes, of_group, strict=True))
    more = min((costs[1] - costs[0] for costs in of_group if len(costs) > 1), default=None)
    found = _step_cost(_least_us(job, of, answer), cost)
    # What the answer says of its class, it says of the cheapest placements alone: others cost one GPU's difference more.
    return found if more is None else min(found, _step_cost(_least_us(job, of, None), cost + more))


def _allows(job: _Job, group: ResourceGroup, model: str) -> bool:
    shapes = static_of(job.snapshot.topology).shapes
    return any(spec.model == model and eligible(group, spec) for shape in shapes for spec in shape.gpus)


def _least_us(job: _Job, of: _Class, answer: Placement | None) -> int:
    """No placement of the class steps in less."""
    far: Far | None = None
    whole = True
    if answer is not None and answer.objective.optimal and job.only_training:
        terms = {term.name: term.value for term in answer.objective.terms}
        whole = terms["instances across nodes"] == 0
        if whole and not of.ground.domains:
            far = _apart(job.snapshot.topology, answer)
    units = job.training.degrees.tensor * job.training.degrees.context * job.training.degrees.expert
    sizes = [group.gpus for group in job.groups]
    cell = max(sizes) if all(size % units == 0 for size in sizes) else 1
    found = [least_step_s(job.training, of.ground, cell, whole=True, far=far)] if whole else []
    if any(_may_break(group, of.ground) for group in job.groups):
        found.append(least_step_s(job.training, of.ground, cell, whole=False, far=None))
    seconds = [each for each in found if not isinstance(each, Unpredicted) and each < math.inf]
    return math.floor(min(seconds) * 1e6 * SLACK + 0.5) if seconds else 0


def _may_break(group: ResourceGroup, ground: Ground) -> bool:
    return group.gpus > 1 and (ground.domains or not relations.spans_only_by_nvlink(group))


def _apart(topology: Topology, placement: Placement) -> Far | None:
    """How far apart the placement's nodes lie at least, as every placement does that has as many domains."""
    leaves = sorted({int(topology.leaf_of[topology.index[name]]) for name in placement.nodes})
    if len(placement.nodes) == 1:
        return None
    level = next((k for k, domain in enumerate(topology.domains) if len({int(domain[leaf]) for leaf in leaves}) == 1), -1)
    return Far() if level == 0 else _far_between(topology, level)


@lru_cache(maxsize=TOPOLOGIES_KEPT * 4)
def _far_between(topology: Topology, level: int) -> Far:
    """Of leaf groups in two domains of the level below: the fewest switches, the fastest path; level -1: of the widest level."""
    domain = topology.domains[level - 1 if level > 0 else -1]
    apart = (domain[:, None] != domain[None, :]) & (topology.hops < UNREACHABLE_HOPS)
    if not apart.any():
        return Far()
    return Far(int(topology.hops[apart].min()), float(topology.path_gbps[apart].max()))


# --- classes ---


@dataclass(frozen=True, slots=True)
class _Site:
    """A node as training sees it."""

    name: str
    island: str
    by_model: Mapping[str, int]  # usable GPUs
    best: Best
    domain_gbytes_per_s: float


def _classes(job: _Job) -> list[_Class]:
    """The one whose question holds all others first; empty where no GPU that could train is known."""
    sites = _sites(job)
    models_here = sorted(set().union(*(site.by_model for site in sites)))
    speeds = {model: attained_flops_per_s(model, job.training.precision) for model in models_here}
    known = {model: speed for model, speed in speeds.items() if speed is not None}
    # Where others than training groups are placed too, a node may be slow for them alone: then all nodes are of one kind.
    rates = sorted({site.best.outside_gbps for site in sites}) if job.only_training else [0.0]
    found: dict[tuple[tuple[str, ...], frozenset[str]], _Class] = {}
    for speed in sorted(set(known.values())):
        models = tuple(sorted(model for model, other in known.items() if other >= speed))
        for rate in rates:
            inside = [
                site for site in sites if site.best.outside_gbps >= rate and not site.by_model.keys().isdisjoint(models)
            ]
            slow = frozenset(site.name for site in sites if site.best.outside_gbps < rate)
            weakest = {site.best.outside_gbps for site in inside}
            of_speed = any(known[model] == speed for site in inside for model in site.by_model if model in known)
            if not of_speed or (job.only_training and rate not in weakest):
                continue
            slowest = frozenset(model for model in models if known[model] == speed)
            ground = _ground(inside, models, slowest, speed, rate if job.only_training else math.inf)
            found.setdefault((models, slow), _Class(speed, rate, models, slow, ground))
    return list(found.values())


def _is_all(job: _Job, of: _Class) -> bool:
    """Whether the class's question is the job's own."""
    models = {spec.model for shape in static_of(job.snapshot.topology).shapes for spec in shape.gpus}
    may = {model for model in models if attained_flops_per_s(model, job.training.precision) is None}
    return not of.slow and not may


@lru_cache(maxsize=TOPOLOGIES_KEPT)
def _bests(topology: Topology) -> tuple[Best, ...]:
    """By number of the shape."""
    return tuple(best_of(shape) for shape in static_of(topology).shapes)


def _sites(job: _Job) -> list[_Site]:
    """Nodes with a free GPU that may train."""
    topology = job.snapshot.topology
    static, masks = static_of(topology), free_masks(job.snapshot)
    bests = _bests(topology)
    counted: dict[tuple[int, int], dict[str, int]] = {}
    found = []
    for node, (number, mask) in enumerate(zip(static.shape_of, masks, strict=True)):
        if not mask or topology.nodes[node].name in job.order.avoid_nodes:
            continue
        if (number, mask) not in counted:
            mine = counted[number, mask] = {}
            for i in mask_indices(mask):
                spec = static.shapes[number].gpus[i]
                if any(eligible(group, spec) for group in job.groups):
                    mine[spec.model] = mine.get(spec.model, 0) + 1
        if by_model := counted[number, mask]:
            owner, rate = topology.nodes[node], static.shapes[number].domain_nvlink_gbytes_per_s
            joined = owner.nvlink_domain if rate > 0 else ""
            found.append(_Site(owner.name, joined, by_model, bests[number], rate))
    return found


def _ground(sites: Sequence[_Site], models: Sequence[str], slowest: frozenset[str], speed: float, weakest: float) -> Ground:
    rooms: list[int] = []
    joined: dict[str, list[int]] = {}
    for site in sites:
        room = sum(site.by_model.get(model, 0) for model in models)
        if site.island:
            joined.setdefault(site.island, []).append(room)
        else:
            rooms.append(room)
    rooms += [sum(mine) for mine in joined.values()]
    outside = max(site.best.outside_gbps for site in sites)
    slow = [site for site in sites if not slowest.isdisjoint(site.by_model)]
    return Ground(
        flops_per_s=speed,
        rooms=tuple(sorted(rooms, reverse=True)),
        inside_alpha_s=min(site.best.inside_alpha_s for site in sites),
        inside_bytes_per_s=_inside(sites),
        outside_gbps=outside,
        weakest_gbps=min(weakest, outside),
        adapters_per_gpu=max(site.best.adapters_per_gpu for site in sites),
        domains=any(len(mine) > 1 for mine in joined.values()),
        slowest_inside_bytes_per_s=_inside(slow),
    )


def _inside(sites: Sequence[_Site]) -> tuple[float, ...]:
    """The best of a group of two to k GPUs on one island, bytes/s; by k."""
    found: list[float] = [0.0, 0.0]
    for best_here in {id(site.best): site.best for site in sites}.values():
        for size, rate in enumerate(best_here.inside_bytes_per_s):
            if size == len(found):
                found.append(0.0)
            found[size] = max(found[size], rate)
    # A group over several nodes of a domain is joined as its nodes are, or as two of its GPUs on one node.
    domain_rate = max((site.domain_gbytes_per_s for site in sites if site.island), default=0.0) / 2 * 1e9
    return tuple(max(rate, domain_rate) if size > 1 else rate for size, rate in enumerate(np.maximum.accumulate(found)))


# --- the answer ---


def _unordered(group: ResourceGroup) -> ResourceGroup:
    return replace(group, preferred=(), tolerated=group.families)


def _choose(job: _Job, question: Request, seen: Sequence[_Seen], budget: Budget, *, first: bool) -> Placement | None:
    """The best of what was found, with the step time among its terms; None where no step time is known."""
    least = min(each.least for each in seen)
    found = [each.answer for each in seen if each.answer is not None]
    figure = min((figure_of(job, answer) for answer in found), default=math.inf)
    if figure == math.inf:
        return None
    # All classes in which something may step as fast: the best of their questions is the best of all that do, if it does.
    level = [each for each in seen if each.least <= figure]
    answers: list[Placement] = []
    bound: float | None = math.inf
    for each in level:
        answer = _solved(job, job.order, each.of, budget) if each.asked or each.answer is not None else None
        if isinstance(answer, Placement):
            answers.append(answer)
            bound = min(bound, answer.objective.bound) if bound is not None else None
        else:
            bound = None  # not asked, or undecided
    answers += found if question is job.order else [_remeasured(job, answer) for answer in found]
    chosen = min(answers, key=lambda answer: (_key(job, answer, first=first), answer.objective.value))
    own = chosen.objective
    proven = figure_of(job, chosen) == least and bound is not None and own.value <= bound and own.optimal
    objective = with_step(
        job, own, int(figure_of(job, chosen)), least, 0.0 if bound is None else bound, proven, first=first
    )
    return replace(chosen, objective=objective)


def _key(job: _Job, answer: Placement, *, first: bool) -> tuple[float, float]:
    preference, figure = answer.objective.terms[0].value, figure_of(job, answer)
    return (figure, preference) if first else (preference, figure)


def _remeasured(job: _Job, answer: Placement) -> Placement:
    """An answer to the unordered question, with what it is on the job's own list. Nothing is proven of it."""
    groups = {group.name: group for group in job.order.groups}
    node = job.snapshot.topology.node
    steps = sum(preference_step(groups[rank.group], node(rank.node).shape.gpus[rank.gpu]) for rank in answer.ranks)
    own = answer.objective
    terms = (replace(own.terms[0], value=float(steps)), *own.terms[1:])
    value = own.value + own.terms[0].weight * (steps - own.terms[0].value)
    changed = replace(answer, objective=Objective(value, below(0.0, value, proven=False), terms))
    job.figures[id(changed)] = changed, figure_of(job, answer)
    return changed


def with_step(job: _Job, own: Objective, figure: int, least: int, bound: float, proven: bool, *, first: bool) -> Objective:
    """The terms with the step's figure put in; weights grow so that the order holds."""
    name = STEP if job.costs is None else STEP_COST
    preference, rest = own.terms[0], own.terms[1:]
    unit = preference.weight  # one more than all later terms can reach
    if first:
        scale = unit * FIGURE_MAX
        terms = (Term(name, scale, float(figure)), preference, *rest)
        value, low = scale * figure + own.value, scale * least + bound
    else:
        high = unit * FIGURE_MAX
        terms = (replace(preference, weight=high), Term(name, unit, float(figure)), *rest)
        value = high * preference.value + unit * figure + (own.value - unit * preference.value)
        # A bound of the terms alone says how far up the list anything is; what is over it says nothing of the step.
        steps = math.floor(bound / unit)
        low = high * steps + unit * least + (bound - unit * steps if bound > 0 else 0.0)
    return Objective(value, below(low, value, proven=proven), terms)
