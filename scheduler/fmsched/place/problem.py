"""A request on a snapshot, made countable: bins of equal nodes, the ways to use each, the zones that groups must keep to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf

from fmsched.model.job import Request, ResourceGroup
from fmsched.model.snapshot import Snapshot
from fmsched.place import nvlink, relations
from fmsched.place.chains import Chains, chains_of, folded
from fmsched.place.chains import kept as kept_chains
from fmsched.place.hosts import Bin, bins_of, free_masks, leaf_free_of
from fmsched.place.links import Room, room_of
from fmsched.place.nodes import caps, excluded
from fmsched.place.objective import Ruler
from fmsched.place.power import Feed, feeds, labels
from fmsched.place.ways import Ways, ways_of
from fmsched.place.zones import Zones, shapes_alone, zones_of

KnownWays = dict[tuple[ResourceGroup, ...], dict[tuple[object, ...], Ways]]
Spans = tuple[tuple[int, str], ...]  # (zone, multi-node NVLink domain; empty where it plays no part)


@dataclass(frozen=True, slots=True)
class StagePair:
    """Two neighbouring pipeline stages that must share a zone in every replica."""

    first: int
    second: int
    zones: Zones


@dataclass(frozen=True, slots=True)
class Problem:
    """Everything the model is built from. By group g and bin b:

    group_zones[g]       the whole group lies in one of these (DataParallel with a reach); None: anywhere
    span_zones[g][b]     zones in which an instance may span nodes, b's among them; empty: not from this bin
    chains               the pipelines of a job with several stages; where these are alike, `request` has one group for all
    """

    snapshot: Snapshot
    request: Request
    ruler: Ruler
    bins: tuple[Bin, ...]
    ways: tuple[Ways, ...]
    group_zones: tuple[Zones | None, ...]
    span_zones: tuple[tuple[Spans, ...], ...]
    stages: tuple[StagePair, ...]
    feeds: tuple[Feed, ...]  # power budgets that may bind
    masks: tuple[int, ...] = field(repr=False)
    leaf_free: tuple[int, ...] = field(repr=False)  # free GPUs by leaf group, avoided nodes included
    spans: bool  # whether some instance may lie on several nodes
    exact: bool  # false where some placements were not looked at: then nothing is called proven
    room: Room | None = field(default=None, repr=False)  # on links; None: the request reserves nothing
    chains: Chains | None = None

    @property
    def asked(self) -> Request:
        """The request as it came."""
        return self.chains.asked if self.chains is not None else self.request


def problem_of(
    snapshot: Snapshot,
    request: Request,
    ruler: Ruler,
    *,
    spanning: bool = True,
    masks: Sequence[int] | None = None,
    known: KnownWays | None = None,
    fold: bool = True,
) -> Problem:
    """Counts what the request could use. No search.

    spanning    without it, every instance lies on one node
    masks       free_masks(snapshot), where they are known already
    known       ways of nodes that earlier questions with the same ruler and topology have found; grows
    fold        stages that are alike become one group
    """
    topology = snapshot.topology
    if masks is None:
        masks = free_masks(snapshot)
    by_domain = any(group.gpus > 1 and relations.spans_only_by_nvlink(group) for group in request.groups)
    may_bind = feeds(snapshot, request.gpus)
    out, most = excluded(snapshot, request), caps(snapshot, request)
    bins = bins_of(topology, masks, out, by_domain, _rate_asked(request), labels(may_bind), most)
    room = room_of(snapshot, request, spanning=spanning)
    chains = chains_of(topology, bins, request, fold=fold)
    if chains is not None and chains.folded:
        request = folded(request)
    group_zones = tuple(
        zones_of(topology, bins, reaches, room) if (reaches := relations.group_reaches(group)) else None
        for group in request.groups
    )
    stages = tuple(
        StagePair(a, b, zones_of(topology, bins, reaches, room)) for a, b, reaches in relations.stage_pairs(request)
    )
    span_zones: list[list[Spans]] = [[() for _ in bins] for _ in request.groups]
    spans_exact = True
    if spanning:
        span_zones, spans_exact = _span_zones(snapshot, request, bins, group_zones, room, chains)
    kept, ways = _ways(request, bins, span_zones, ruler, {} if known is None else known)
    zones = [zones for zones in group_zones if zones is not None] + [stage.zones for stage in stages]
    if chains is not None:
        chains = kept_chains(chains, topology, bins, kept)
    return Problem(
        snapshot,
        request,
        ruler,
        tuple(bins[b] for b in kept),
        ways,
        tuple(_keep(zones, kept) if zones is not None else None for zones in group_zones),
        tuple(tuple(of_bin[b] for b in kept) for of_bin in span_zones),
        tuple(StagePair(stage.first, stage.second, _keep(stage.zones, kept)) for stage in stages),
        may_bind,
        tuple(masks),
        leaf_free_of(topology, masks),
        any(item.fragment for of_kind in {id(each): each for each in ways}.values() for item in of_kind.items),
        spans_exact and all(item.exact for item in ways) and all(item.complete for item in zones),
        chains=chains,
        room=room,
    )


def apart_domains(problem: Problem) -> dict[int, list[int]]:
    """By group whose instances keep apart by leaf group or pod: the domain of each leaf group that can hold one of them."""
    domains = problem.snapshot.topology.domains
    level = {"leaf": 0, "pod": min(1, len(domains) - 1)}
    groups = enumerate(problem.request.groups)
    return {g: domains[level[group.apart]].tolist() for g, group in groups if group.apart in level}


def _rate_asked(request: Request) -> float:
    """Nodes with slower links than this may have to stand alone; inf where a cap of no switches sets every node alone."""
    reaches = [reach for group in request.groups if (reach := group.reach) is not None]
    if any(relations.hop_cap(reach) < 1 for reach in reaches):
        return inf
    return max((reach.min_link_gbps for reach in reaches), default=0.0)


def _span_zones(
    snapshot: Snapshot,
    request: Request,
    bins: Sequence[Bin],
    group_zones: Sequence[Zones | None],
    room: Room | None,
    chains: Chains | None,
) -> tuple[list[list[Spans]], bool]:
    """By group and bin: (zone, NVLink domain) pairs in which an instance with GPUs there may lie."""
    found: list[list[Spans]] = []
    exact = True
    for g, group in enumerate(request.groups):
        reaches = [*relations.instance_reaches(group), *relations.group_reaches(group)]
        together = chains is not None and chains.folded  # then group 0 is every stage
        for a, b, between in relations.stage_pairs(chains.asked if chains is not None else request):
            reaches += between if together or g in (a, b) else ()
        zones = group_zones[g]
        if zones is None and reaches:
            zones = zones_of(snapshot.topology, bins, reaches, room)
            exact = exact and zones.complete
            if group.kind not in relations.BOUND_KINDS and not zones.disjoint and group.gpus > 1:
                # A stage that spans nodes on a fabric where nearness does not pass on: not looked at.
                exact = False
                found.append([() for _ in bins])
                continue
        alone = shapes_alone(bins, reaches)
        spans = [
            () if id(item.shape) in alone else _spans_from(group, item, zones.of_bin[b] if zones else (0,))
            for b, item in enumerate(bins)
        ]
        if nvlink.asks(group):
            fast = [nvlink.domain_enough(snapshot.topology, i.shape, i.nvlink_domain, group) for i in bins]
            spans = [each if enough else () for each, enough in zip(spans, fast, strict=True)]
        found.append(spans)
    return found, exact


def _spans_from(group: ResourceGroup, item: Bin, zones: tuple[int, ...]) -> Spans:
    if group.gpus == 1 or group.apart:
        return ()
    if not relations.spans_only_by_nvlink(group):
        return tuple((zone, "") for zone in zones)
    fast = item.shape.domain_nvlink_gbytes_per_s >= group.min_nvlink_gbytes_per_s
    return tuple((zone, item.nvlink_domain) for zone in zones) if item.nvlink_domain and fast else ()


def _ways(
    request: Request, bins: Sequence[Bin], span_zones: Sequence[Sequence[Spans]], ruler: Ruler, all_known: KnownWays
) -> tuple[list[int], tuple[Ways, ...]]:
    """(bins that are of any use, their ways). Bins of one kind share the computation."""
    known = all_known.setdefault(request.groups, {})
    kept, found = [], []
    for b, item in enumerate(bins):
        spans = tuple(bool(of_bin[b]) for of_bin in span_zones)
        state = len(item.free) if item.uniform else item.free
        key = (id(item.shape), state, item.most, bool(item.nvlink_domain), spans)
        if key not in known:
            known[key] = ways_of(
                item.shape, item.uniform, item.free, bool(item.nvlink_domain), request.groups, spans, ruler, item.most
            )
        if known[key].ways:
            kept.append(b)
            found.append(known[key])
    return kept, tuple(found)


def _keep(zones: Zones, kept: Sequence[int]) -> Zones:
    return Zones(tuple(zones.of_bin[b] for b in kept), zones.count, zones.disjoint, zones.complete)
