"""Why there is no placement: a minimal set of constraints that cannot be met together, and single changes that help.

Every claim is proven by solving again. The set: starting from all constraints, each is lifted in turn and stays lifted where the
rest still cannot be met; what remains conflicts, and without any one of it there is a placement. A change is reported only when
the whole request, with that change alone, has a placement. "never" is judged on the cluster emptied and whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from fmsched.model.fabric import UNREACHABLE_HOPS, Topology
from fmsched.model.hardware import GpuId
from fmsched.model.job import Reach, Request, ResourceGroup
from fmsched.model.placement import Budget, Unplaceable, Why
from fmsched.model.snapshot import Snapshot
from fmsched.place import nodes, power, relief, settle, tables, words
from fmsched.place.atoms import PASSING, Atom, Constraint, atoms_of, lift
from fmsched.place.counts import within_feeds
from fmsched.place.cpsat import Found, feasible
from fmsched.place.hosts import free_masks
from fmsched.place.objective import Ruler, ruler_of
from fmsched.place.problem import KnownWays, Problem, problem_of
from fmsched.place.relief import SINGLES_MAX, Change
from fmsched.place.room import fits


class _Oracle:
    """Answers "is there a placement?"; None where the limits leave it open. Nothing is claimed from None."""

    def __init__(self, ruler: Ruler, budget: Budget) -> None:
        self._ruler = ruler
        self._left = budget.explain_solves_max
        self._seconds = budget.deterministic_s
        self._ways: KnownWays = {}
        self._free: tuple[Snapshot, list[int]] | None = None  # of the last snapshot: many questions are about the same one

    def can(self, snapshot: Snapshot, request: Request) -> bool | None:
        if self._left <= 0:
            return None
        self._left -= 1
        return self.judge(snapshot, request)

    def judge(self, snapshot: Snapshot, request: Request) -> bool | None:
        """The same outside the count of solves: what must be known even where no reasons are asked for."""
        if self._free is None or self._free[0] is not snapshot:
            self._free = snapshot, free_masks(snapshot)
        masks = self._free[1]
        if sum(mask.bit_count() for mask in masks) < request.gpus:
            return False
        narrow = problem_of(snapshot, request, self._ruler, spanning=False, masks=masks, known=self._ways)
        counted = fits(narrow)
        if settle.may_meet(narrow):
            if settle.possible(narrow, self._alone, self._seconds):
                return True
        elif counted or (counted is None and self._by_tables(narrow)):
            return True
        wide = problem_of(snapshot, request, self._ruler, masks=masks, known=self._ways)
        if settle.may_meet(wide):
            answer = settle.possible(wide, self._alone, self._seconds)
        else:
            answer = fits(wide) if wide.spans else counted
            if answer is None:
                answer = feasible(wide, self._seconds)
        return None if answer is False and not wide.exact else answer

    def _alone(self, problem: Problem) -> bool | None:
        answer = fits(problem)
        return feasible(problem, self._seconds) if answer is None else answer

    def _by_tables(self, problem: Problem) -> bool:
        found = tables.search(problem)
        return isinstance(found, Found) and within_feeds(problem, found.counts.ways)


def explain(snapshot: Snapshot, request: Request, budget: Budget) -> Unplaceable:
    """The refusal of a request that is known to have no placement on `snapshot`.

    "never" is judged in any case, with one solve. budget.explain_solves_max bounds the solves for reasons: where it runs out,
    the set is a conflict that may be larger than it must be, and changes are missing; with 0, it names types and free GPUs.
    """
    oracle = _Oracle(ruler_of(snapshot.topology), budget)
    passing = [atom for atom in atoms_of(snapshot, request) if atom.constraint in PASSING]
    never = not passing or oracle.judge(*lift(snapshot, request, passing)) is False
    if never:
        snapshot, request = lift(snapshot, request, passing)
    conflict = _telling(snapshot, request) if budget.explain_solves_max <= 0 else _conflict(snapshot, request, oracle)
    return Unplaceable(request.job, never, tuple(_whys(snapshot, request, conflict, oracle)))


def _telling(snapshot: Snapshot, request: Request) -> tuple[Atom, ...]:
    """What a person wants to hear first, where nothing may be searched."""
    atoms = atoms_of(snapshot, request)
    return tuple(atom for atom in atoms if atom.constraint in (Constraint.TYPE, Constraint.FREE)) or atoms


def _conflict(snapshot: Snapshot, request: Request, oracle: _Oracle) -> tuple[Atom, ...]:
    """A minimal conflicting set; empty where the cluster is too small whatever is lifted."""
    atoms = atoms_of(snapshot, request)
    if oracle.can(*lift(snapshot, request, atoms)) is False:
        return ()
    lifted: list[Atom] = []
    for atom in atoms:
        # The last one standing is needed: without it nothing is left, and that was seen to have a placement.
        if len(lifted) < len(atoms) - 1 and oracle.can(*lift(snapshot, request, [*lifted, atom])) is False:
            lifted.append(atom)
    return tuple(atom for atom in atoms if atom not in lifted)


def _whys(snapshot: Snapshot, request: Request, conflict: tuple[Atom, ...], oracle: _Oracle) -> Iterator[Why]:
    if not conflict:
        yield words.too_small(snapshot, request, _fewer(snapshot, request, oracle))
        return
    for atom in reversed(conflict):  # the most telling first
        changes = _changes(snapshot, request, atom)
        if atom.constraint is Constraint.BANDWIDTH:
            changes = relief.lower_reserve(snapshot, request, atom.group, oracle.can)
        relax = next((change.words for change in changes if oracle.can(change.snapshot, change.request)), "")
        asked, best, where = words.describe(snapshot, request, atom)
        group = request.groups[atom.group].name if atom.group >= 0 else ""
        yield Why(words.title(request, atom), group, asked, best, where, relax)
    fewer = _fewer(snapshot, request, oracle)
    if fewer:
        yield words.fewer_replicas(request, fewer)


def _fewer(snapshot: Snapshot, request: Request, oracle: _Oracle) -> int:
    """The most replicas that have a placement; 0: none."""
    low, high = 0, request.replicas  # low has a placement (0: trivially), high has not
    while high - low > 1:  # halves each time
        middle = (low + high) // 2
        if oracle.can(snapshot, replace(request, replicas=middle)):
            low = middle
        else:
            high = middle
    return low


def _changes(snapshot: Snapshot, request: Request, atom: Atom) -> Iterator[Change]:
    """Changes that touch this constraint alone, cheapest first."""
    match atom.constraint:
        case Constraint.FREE:
            yield from _jobs_end(snapshot, request)
        case Constraint.HEALTHY:
            yield from _repairs(snapshot, request)
        case Constraint.OPEN:
            yield from _reopenings(snapshot, request)
        case Constraint.FREE_LINKS:
            yield from relief.links_end(snapshot, request)
        case Constraint.POWER:
            yield from _more_power(snapshot, request)
        case Constraint.NODE_LIST:
            yield from _wider_lists(snapshot, request)
        case Constraint.CPUS | Constraint.HOST_MEMORY:
            yield from _less_of_host(request, snapshot, atom.constraint)
        case Constraint.AVOIDED:
            names = ", ".join(sorted(request.avoid_nodes))
            yield Change(f"allow {names} again", snapshot, replace(request, avoid_nodes=frozenset()))
        case _:
            for text, group in _softer(snapshot.topology, request.groups[atom.group], atom.constraint):
                groups = (*request.groups[: atom.group], group, *request.groups[atom.group + 1 :])
                yield Change(text, snapshot, replace(request, groups=groups))


def _softer(topology: Topology, group: ResourceGroup, constraint: Constraint) -> Iterator[tuple[str, ResourceGroup]]:
    """(words, group that asks for less of this constraint), the least step first."""
    shapes = list(dict.fromkeys(node.shape for node in topology.nodes))
    match constraint:
        case Constraint.TYPE:
            for family in sorted({spec.family for shape in shapes for spec in shape.gpus} - set(group.families)):
                yield f"tolerate {family}", replace(group, tolerated=(*group.tolerated, family))
        case Constraint.MEMORY:
            sizes = {spec.memory_gb for shape in shapes for spec in shape.gpus}
            for size in sorted((size for size in sizes if size < group.min_memory_gb), reverse=True):
                yield f"minMemoryGB {size:g}", replace(group, min_memory_gb=size)
        case Constraint.NVLINK:
            found = {value for shape in shapes for row in shape.nvlink for value in row}
            found |= {shape.domain_nvlink_gbytes_per_s for shape in shapes} | {0.0}
            for value in sorted((value for value in found if value < group.min_nvlink_gbytes_per_s), reverse=True):
                yield f"minNVLinkBandwidthGbpsPerPair {value:g}", replace(group, min_nvlink_gbytes_per_s=value)
        case Constraint.LINKS | Constraint.AGGREGATE:
            yield from _fewer_links(group, constraint)
        case Constraint.APART:
            yield from _nearer(group)
        case Constraint.DOMAIN:
            yield "interNodeConnectivity, so that an instance may span nodes", replace(group, reach=Reach())
        case _:
            yield from _farther(topology, group, constraint)


def _farther(topology: Topology, group: ResourceGroup, constraint: Constraint) -> Iterator[tuple[str, ResourceGroup]]:
    """Longer or slower ways between nodes."""
    reach = group.reach or Reach()
    match constraint:
        case Constraint.HOPS:
            cap = UNREACHABLE_HOPS if reach.max_hops is None else reach.max_hops
            for hops in sorted(int(value) for value in np.unique(topology.hops) if cap < value < UNREACHABLE_HOPS):
                yield f"maxHopCount {hops}", replace(group, reach=replace(reach, max_hops=hops))
        case Constraint.RATE:
            rates = {float(value) for value in np.unique(topology.path_gbps)} | {0.0}
            rates |= {node.shape.link_gbps for node in topology.nodes}
            for rate in sorted((rate for rate in rates if rate < reach.min_link_gbps), reverse=True):
                yield f"minInfiniBandBandwidthGbps {rate:g}", replace(group, reach=replace(reach, min_link_gbps=rate))


def _fewer_links(group: ResourceGroup, constraint: Constraint) -> Iterator[tuple[str, ResourceGroup]]:
    if constraint is Constraint.LINKS:
        for links in reversed(range(group.min_nvlink_links)):
            yield f"minNVLinksPerGPU {links}", replace(group, min_nvlink_links=links)
        return
    for part in (2, 4, 8):
        text = f"{group.min_nvlink_aggregate_gbytes_per_s / part:g}"
        wanted = replace(group, min_nvlink_aggregate_gbytes_per_s=float(text))
        yield f"minNVLinkBandwidthGbpsAggregate {text}", wanted
    yield "no minNVLinkBandwidthGbpsAggregate", replace(group, min_nvlink_aggregate_gbytes_per_s=0.0)


def _nearer(group: ResourceGroup) -> Iterator[tuple[str, ResourceGroup]]:
    for apart in {"pod": ("leaf", "node"), "leaf": ("node",)}.get(group.apart, ()):
        yield f"antiAffinity {apart}", replace(group, apart=apart)
    yield "no antiAffinity", replace(group, apart="")


def _jobs_end(snapshot: Snapshot, request: Request) -> Iterator[Change]:
    holders: dict[str, list[GpuId]] = {}
    for gpu, job in snapshot.held.items():
        holders.setdefault(job, []).append(gpu)
    # The smallest job that could make room for the largest instance is the cheapest to wait for.
    largest = max(group.gpus for group in request.groups)
    jobs = sorted(holders, key=lambda job: (len(holders[job]) < largest, len(holders[job]), job))
    for job in jobs[:SINGLES_MAX]:
        yield Change(
            f"the end of job {job}, which holds {words.gpus(len(holders[job]))}",
            _released(snapshot, holders, [job]),
            request,
        )
    for count in relief.growing(len(jobs)):
        names = words.listed([f"{job} ({len(holders[job])} GPUs)" for job in jobs[:count]])
        yield Change(f"the end of jobs {names}", _released(snapshot, holders, jobs[:count]), request)


def _released(snapshot: Snapshot, holders: Mapping[str, Sequence[GpuId]], jobs: Sequence[str]) -> Snapshot:
    gone = set(jobs)
    if 2 * sum(len(holders[job]) for job in jobs) > len(snapshot.held):
        held = {gpu: job for gpu, job in snapshot.held.items() if job not in gone}
    else:
        held = dict(snapshot.held)  # copied whole, and little taken away: a GPU costs more to enter than to copy
        for job in jobs:
            for gpu in holders[job]:
                del held[gpu]
    links = {job: links for job, links in snapshot.links_held.items() if job not in gone}
    return replace(snapshot, held=held, links_held=links)


def _repairs(snapshot: Snapshot, request: Request) -> Iterator[Change]:
    sick = sorted(snapshot.unfit)
    for gpu in sick[:SINGLES_MAX]:
        rest = {other: reason for other, reason in snapshot.unfit.items() if other != gpu}
        yield Change(f"the repair of {gpu} ({snapshot.unfit[gpu]})", replace(snapshot, unfit=rest), request)
    for count in relief.growing(len(sick)):
        rest = {gpu: snapshot.unfit[gpu] for gpu in sick[count:]}
        yield Change(
            f"the repair of {words.listed([str(gpu) for gpu in sick[:count]])}", replace(snapshot, unfit=rest), request
        )


def _reopenings(snapshot: Snapshot, request: Request) -> Iterator[Change]:
    shut = sorted(name for name in snapshot.closed if name in snapshot.topology.index)
    for name in shut[:SINGLES_MAX]:
        rest = {other: reason for other, reason in snapshot.closed.items() if other != name}
        yield Change(f"node {name} open again ({snapshot.closed[name]})", replace(snapshot, closed=rest), request)
    for count in relief.growing(len(shut)):
        rest = {name: snapshot.closed[name] for name in shut[count:]}
        yield Change(f"nodes {words.listed(shut[:count])} open again", replace(snapshot, closed=rest), request)


def _more_power(snapshot: Snapshot, request: Request) -> Iterator[Change]:
    """What the whole job would draw from one feed is as much as it can need there."""
    for number, budget in enumerate(snapshot.power):
        needed_w = power.needed(snapshot, budget, request.gpus)
        if needed_w > budget.watts:
            rest = (*snapshot.power[:number], replace(budget, watts=needed_w), *snapshot.power[number + 1 :])
            yield Change(f"power budget {budget.name} of {needed_w} W", replace(snapshot, power=rest), request)
    if len(snapshot.power) > 1:
        yield Change("all power budgets lifted", replace(snapshot, power=()), request)


def _wider_lists(snapshot: Snapshot, request: Request) -> Iterator[Change]:
    """One node more on the lists, the first few that they keep out; then all."""
    out = sorted(nodes.excluded(snapshot, replace(request, avoid_nodes=frozenset())))
    for name in out[:SINGLES_MAX]:
        allowed = None if request.allowed_nodes is None else request.allowed_nodes | {name}
        wider = replace(request, allowed_nodes=allowed, denied_nodes=request.denied_nodes - {name})
        yield Change(f"node {name} allowed by the lists", snapshot, wider)
    yield Change("no node lists", snapshot, replace(request, allowed_nodes=None, denied_nodes=frozenset()))


def _less_of_host(request: Request, snapshot: Snapshot, constraint: Constraint) -> Iterator[Change]:
    """Halves of what a rank asks, then nothing."""
    for part in (2, 4, 8):
        if constraint is Constraint.CPUS:
            less = request.cpus_per_gpu / part
            yield Change(f"resources.cpus {less:g}", snapshot, replace(request, cpus_per_gpu=less))
        else:
            less = request.memory_gb_per_gpu / part
            yield Change(f"resources.memoryGB {less:g}", snapshot, replace(request, memory_gb_per_gpu=less))
    if constraint is Constraint.CPUS:
        yield Change("no resources.cpus", snapshot, replace(request, cpus_per_gpu=0.0))
    else:
        yield Change("no resources.memoryGB", snapshot, replace(request, memory_gb_per_gpu=0.0))
