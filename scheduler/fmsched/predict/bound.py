"""A step time below which no placement of a class lies: every group joined as well as it could be in that class.

A Ground says what a part of a cluster offers at best. Where groups must leave an island (a node, or a multi-node NVLink domain), they
do so over as few islands as hold them, as evenly as the islands' room allows: no other way of lying costs less under the model of
collectives.py, whose costs fall with bandwidth and with the members on the least filled island, and rise with the islands touched. The
arithmetic is that of step.py itself, which rises with each of these costs. So where a placement reaches its bound, nothing is faster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from fmsched.predict.collectives import Span
from fmsched.predict.jobs import Training
from fmsched.predict.links import LEAF_ALPHA_S, NETWORK_SHARE, SWITCH_ALPHA_S
from fmsched.predict.sizes import Unpredicted
from fmsched.predict.step import GroupLink, step_seconds


@dataclass(frozen=True, slots=True)
class Far:
    """The best link between two nodes that lie so far apart: the fewest switches, and the fastest path between them, Gb/s."""

    hops: int = 1
    path_gbps: float = float("inf")


@dataclass(frozen=True, slots=True)
class Ground:
    """What the nodes of a class of placements offer at best.

    flops_per_s                   attained by the slowest GPU of every placement of the class
    rooms                         usable GPUs by island, most first
    inside_alpha_s                the least of any island
    inside_bytes_per_s[k]         the best of a group of two to k GPUs on one island; by k, the last for all above
    outside_gbps                  of one GPU of the best node
    weakest_gbps                  the same of the slowest node of every placement of the class
    adapters_per_gpu              the most of any node
    domains                       some island is several nodes
    slowest_inside_bytes_per_s    as inside_bytes_per_s, of the islands that have a GPU that attains flops_per_s and no more
    """

    flops_per_s: float
    rooms: tuple[int, ...]
    inside_alpha_s: float
    inside_bytes_per_s: tuple[float, ...]
    outside_gbps: float
    weakest_gbps: float
    adapters_per_gpu: float
    domains: bool = False
    slowest_inside_bytes_per_s: tuple[float, ...] = ()


def least_step_s(job: Training, ground: Ground, cell: int, *, whole: bool, far: Far | None) -> float | Unpredicted:
    """Seconds; inf where the class has no placement.

    cell     GPUs of an instance of the groups that train: a multiple of tensor × context × expert where instances hold whole units
    whole    every instance lies on one island; without it, some instance does not
    far      the job's nodes are known to lie at least so far apart; None: nothing is known
    """
    degrees = job.degrees
    unit = degrees.tensor * degrees.context * degrees.expert
    holds_units = cell % unit == 0
    if unit == 1 or (whole and holds_units):
        spreads = _whole(job, ground, unit, far if whole else None)
    else:
        # An instance that is one unit, broken: some group inside it leaves the island, unless islands are wider than nodes.
        spreads = _loose(job, ground, leaves=cell == unit and not whole and not ground.domains)
    best = float("inf")
    for spread in spreads:
        seconds = step_seconds(spread, ground.flops_per_s, job)
        if isinstance(seconds, Unpredicted):
            return seconds
        best = min(best, seconds)
    return best


@dataclass(frozen=True, slots=True)
class _Hoped:
    """By kind, spans of which the worst group's cost is not below any."""

    spans: Mapping[str, Sequence[Span]]

    def worst(self, kind: str, seconds: Callable[[Span], float]) -> float:
        return max((seconds(span) for span in self.spans.get(kind, ())), default=0.0)

    def links(self) -> tuple[GroupLink, ...]:
        return ()


def _whole(job: Training, ground: Ground, unit: int, far: Far | None) -> Iterator[_Hoped]:
    """Units (tensor × context × expert) each on one island: the pipeline stays inside islands too, or some of it does not."""
    degrees = job.degrees
    stages, copies = degrees.pipeline, degrees.data // degrees.expert
    inside = _inside_unit(job, ground)
    whole_pipelines = [room // (unit * stages) for room in ground.rooms]
    ways = [(whole_pipelines, False)]
    if stages > 1:
        ways.append(([room // unit for room in ground.rooms], True))
    for rooms, crosses in ways:
        if crosses and sum(rooms) < stages * copies:
            continue
        packed = _packed(rooms, copies)
        if packed is None:
            continue
        islands, fewest = packed
        leaving = [*(["data"] if islands > 1 else []), *(["pipeline"] if crosses else [])]
        if far is not None and not leaving:
            continue  # all on one island, but the job is known to lie on several
        for wide in leaving if far is not None else [""]:
            at = {kind: far if kind == wide and far is not None else Far() for kind in ("data", "pipeline")}
            yield _Hoped(inside | _between(job, ground, islands, fewest, crosses, at, together=stages == 1))


def _between(
    job: Training, ground: Ground, islands: int, fewest: int, crosses: bool, at: Mapping[str, Far], *, together: bool
) -> dict[str, tuple[Span, ...]]:
    """Data-parallel groups over `islands` islands with at least `fewest` units each, and pairs of pipeline stages.

    together    every group of data-parallel ranks has one in each unit of the job: the farthest and the slowest node are in all of them
    """
    degrees = job.degrees
    copies = degrees.data // degrees.expert
    found: dict[str, tuple[Span, ...]] = {}
    kinds = {"data": degrees.expert * degrees.context} | ({"expert data": degrees.context} if job.model.experts else {})
    for kind, members in kinds.items():
        if copies * members < 2:
            continue
        if islands == 1:
            found[kind] = (_span(ground, copies * members, 1, copies * members),)
            continue

        def lying(far: Far, gbps: float, members: int = members) -> Span:
            return _span(ground, copies * members, islands, fewest * members, far, gbps)

        if together:
            found[kind] = (lying(at["data"], ground.weakest_gbps),)
        else:
            found[kind] = (lying(at["data"], ground.outside_gbps), lying(Far(), ground.weakest_gbps))
    if degrees.pipeline > 1:
        found["pipeline"] = (
            _span(ground, 2, 2, 1, at["pipeline"], ground.outside_gbps) if crosses else _span(ground, 2, 1, 2),
        )
    return found


def _loose(job: Training, ground: Ground, *, leaves: bool) -> Iterator[_Hoped]:
    """Every group by itself as near together as islands allow; with `leaves`, some group inside a unit leaves its island."""
    degrees = job.degrees
    sizes = {"tensor": degrees.tensor, "context": degrees.context, "data": degrees.data * degrees.context}
    if job.model.experts:
        sizes |= {"expert": degrees.expert, "expert data": degrees.data // degrees.expert * degrees.context}
    found: dict[str, tuple[Span, ...]] = {}
    for kind, size in sizes.items():
        if size < 2:
            continue
        packed = _packed(ground.rooms, size)
        if packed is None:
            return
        found[kind] = (_span(ground, size, *packed),)
    if degrees.pipeline > 1:
        found["pipeline"] = (_span(ground, 2, 1, 2),)
    if not leaves:
        yield _Hoped(found)
        return
    for kind in ("tensor", "context", "expert"):
        size = sizes.get(kind, 1)
        if size > 1:
            islands = max(2, found[kind][0].islands)
            yield _Hoped(found | {kind: (_span(ground, size, islands, size // islands),)})
    if degrees.expert > 1 and not job.model.experts:
        yield _Hoped(found)  # spread over experts that the model has not: nothing of the kind is sent


def _inside_unit(job: Training, ground: Ground) -> dict[str, tuple[Span, ...]]:
    degrees = job.degrees
    sizes = {"tensor": degrees.tensor, "context": degrees.context}
    if job.model.experts:
        sizes["expert"] = degrees.expert
    # The slowest GPU has a group of each kind, all of it on its own island.
    inside = ground.slowest_inside_bytes_per_s or ground.inside_bytes_per_s
    mine = replace(ground, inside_bytes_per_s=inside)
    return {kind: (_span(mine, size, 1, size),) for kind, size in sizes.items() if size > 1}


def _packed(rooms: Sequence[int], count: int) -> tuple[int, int] | None:
    """(the fewest islands that hold `count`, the most that the least filled of so many can hold of it); None where all do not."""
    held = 0
    for islands, room in enumerate(sorted(rooms, reverse=True), 1):
        held += room
        if held >= count:
            return islands, min(room, count // islands)
    return None


def _span(
    ground: Ground, ranks: int, islands: int, fewest: int, far: Far | None = None, outside_gbps: float | None = None
) -> Span:
    far = far or Far()
    gbps = min(ground.outside_gbps if outside_gbps is None else outside_gbps, far.path_gbps * ground.adapters_per_gpu)
    outer = gbps / 8 * 1e9 * NETWORK_SHARE
    within = min(ranks if islands == 1 else ranks - islands + 1, len(ground.inside_bytes_per_s) - 1)
    inner = ground.inside_bytes_per_s[within]
    return Span(
        ranks=ranks,
        islands=islands,
        fewest=fewest,
        inner_alpha_s=ground.inside_alpha_s,
        # A group of which no two share an island is never held back by what is inside; nor may its bound be.
        inner_bytes_per_s=inner if islands == 1 else max(inner, outer),
        outer_alpha_s=LEAF_ALPHA_S + SWITCH_ALPHA_S * (far.hops - 1),
        outer_bytes_per_s=outer,
    )
