"""Bandwidth reservation: what a placement sets aside on every link that its traffic crosses, and what is left there for others.

A *talk* is what Reach speaks about: a DataParallel group as a whole; a TensorParallel or ExpertParallel instance; the two
instances of neighbouring pipeline stages of one replica. It is one flow of reserve_gbps at a time. A pair of leaf groups puts a
share of it (0 to 1, topology/routes.py) on each link between switches; a talk loads a link with the greatest share over its pairs;
talks of one job add up, and so do jobs. Cables of nodes are not counted: minInfiniBandBandwidthGbps speaks of ports.

On every link: reserved by all jobs + traffic measured there ≤ its live cables. Reservations are derived from a placement and its
request, and stored nowhere: they are gone with the decision.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from fmsched.model.fabric import Topology
from fmsched.model.hardware import JobId
from fmsched.model.job import Reach, Request
from fmsched.model.placement import RankPlacement
from fmsched.model.snapshot import Snapshot
from fmsched.place import relations
from fmsched.topology.routes import Edge, Floats, Routes, routes_of

SLACK_GBPS = 1e-4  # shares are sums of fractions: what they miss or exceed by rounding decides nothing
ROOMS_KEPT = 32

LeavesOf = Mapping[tuple[int, int], frozenset[int]]  # leaf groups of each instance, by (group number, replica)


@dataclass(frozen=True, slots=True)
class Talk:
    """Nodes of `ours` talk with nodes of `theirs`; leaf groups."""

    gbps: float
    ours: frozenset[int]
    theirs: frozenset[int]

    @property
    def crosses(self) -> bool:
        return len(self.ours | self.theirs) > 1


def reserve_of(reaches: Iterable[Reach]) -> float:
    """Gb/s that must be set aside where all of these hold."""
    return max((reach.reserve_gbps for reach in reaches), default=0.0)


def reserves(request: Request) -> bool:
    """Whether any link could be reserved for the request."""
    return any(group.reach is not None and group.reach.reserve_gbps > 0 for group in request.groups)


def talks(request: Request, leaves: LeavesOf) -> Iterator[Talk]:
    """Every talk that reserves something and is not kept inside one leaf group."""
    for g, group in enumerate(request.groups):
        mine = [where for (of, _), where in sorted(leaves.items()) if of == g]
        if (gbps := reserve_of(relations.group_reaches(group))) > 0:
            whole = frozenset[int]().union(*mine)
            yield from _talk(gbps, whole, whole)
        if (gbps := reserve_of(relations.instance_reaches(group))) > 0:
            for where in mine:
                yield from _talk(gbps, where, where)
    for first, second, reaches in relations.stage_pairs(request):
        if (gbps := reserve_of(reaches)) > 0:
            for (of, replica), where in sorted(leaves.items()):
                if of == first and (second, replica) in leaves:
                    yield from _talk(gbps, where, leaves[second, replica])


def _talk(gbps: float, ours: frozenset[int], theirs: frozenset[int]) -> Iterator[Talk]:
    talk = Talk(gbps, ours, theirs)
    if talk.crosses:
        yield talk


def leaves_of(topology: Topology, request: Request, ranks: Iterable[RankPlacement]) -> LeavesOf:
    """Nodes that have left the cluster cross nothing in it."""
    number = {group.name: g for g, group in enumerate(request.groups)}
    found: dict[tuple[int, int], set[int]] = {}
    for rank in ranks:
        if rank.group not in number:
            continue
        where = found.setdefault((number[rank.group], rank.replica), set())
        if rank.node in topology.index:
            where.add(int(topology.leaf_of[topology.index[rank.node]]))
    return {key: frozenset(where) for key, where in found.items()}


def load(routes: Routes, of: Iterable[Talk]) -> Floats:
    """Gb/s by link."""
    total = np.zeros(len(routes.links))
    for talk in of:
        total += talk.gbps * routes.shares(talk.ours, talk.theirs)
    return total


def reservations(topology: Topology, request: Request, ranks: Iterable[RankPlacement]) -> dict[Edge, float]:
    """What a placement of the request reserves: Gb/s by link; links without any are left out."""
    if not reserves(request):
        return {}
    routes = routes_of(topology)
    total = load(routes, talks(request, leaves_of(topology, request, ranks)))
    return {routes.links[i]: float(total[i]) for i in np.flatnonzero(total > 0)}


def left_on(snapshot: Snapshot) -> Floats:
    """By link of routes_of(topology): Gb/s that may still be reserved. Negative where cables went down under a reservation."""
    routes = routes_of(snapshot.topology)
    left = routes.gbps.copy()
    for taken in (snapshot.links_measured, *snapshot.links_held.values()):
        for link, gbps in taken.items():
            if (number := routes.number.get(link)) is not None:
                left[number] -= gbps
    return left


@dataclass(frozen=True, slots=True)
class LinkUse:
    """A link between two switches, and who has how much of it. Gb/s."""

    link: Edge
    gbps: float
    measured: float
    reserved: tuple[tuple[JobId, float], ...]  # by job, in order of names


def in_use(topology: Topology, held: Mapping[JobId, Mapping[Edge, float]], measured: Mapping[Edge, float]) -> list[LinkUse]:
    """The links on which jobs reserve something, or traffic is measured."""
    routes = routes_of(topology)
    found = []
    for i, link in enumerate(routes.links):
        jobs = tuple((job, gbps) for job, links in sorted(held.items()) if (gbps := links.get(link, 0.0)) > 0)
        if jobs or link in measured:
            found.append(LinkUse(link, float(routes.gbps[i]), measured.get(link, 0.0), jobs))
    return found


@dataclass(frozen=True, slots=True, eq=False)
class Room:
    """What is left on the links. headroom[a, b]: the most that one talk may reserve between two leaf groups; inf: as much as it likes.

    shared   whether talks of the request could meet on a link that has no room for all of them: then no pair alone tells
    """

    routes: Routes
    left: Floats
    headroom: Floats
    shared: bool

    def holds(self, of: Iterable[Talk]) -> bool:
        """Whether there is room for all of these together."""
        total = load(self.routes, of)
        return bool(np.all((total <= 0) | (total <= self.left + SLACK_GBPS)))


def room_of(snapshot: Snapshot, request: Request, *, spanning: bool = True) -> Room | None:
    """None where the request reserves nothing. Without `spanning`, every instance lies on one node."""
    if not reserves(request):
        return None
    left = left_on(snapshot)
    routes = routes_of(snapshot.topology)
    headroom = _headroom(snapshot.topology, left.tobytes())
    count, total = talks_max(request, spanning=spanning)
    return Room(routes, left, headroom, count > 1 and bool(np.any(left + SLACK_GBPS < total)))


@lru_cache(maxsize=ROOMS_KEPT)
def _headroom(topology: Topology, left: bytes) -> Floats:
    return routes_of(topology).headroom(np.frombuffer(left) + SLACK_GBPS)


def talks_max(request: Request, *, spanning: bool) -> tuple[int, float]:
    """(the most talks of the request that can cross links, Gb/s of them together)."""
    count, total = 0, 0.0
    for group in request.groups:
        if (gbps := reserve_of(relations.group_reaches(group))) > 0:
            count, total = count + 1, total + gbps
        if (gbps := reserve_of(relations.instance_reaches(group))) > 0 and spanning and group.gpus > 1:
            count, total = count + request.replicas, total + gbps * request.replicas
    for _, _, reaches in relations.stage_pairs(request):
        if (gbps := reserve_of(reaches)) > 0:
            count, total = count + request.replicas, total + gbps * request.replicas
    return count, total


def stricter(request: Request, *, spanning: bool) -> Request:
    """A request whose every talk alone asks for what all talks of this one ask for together: what it is given holds them all."""
    _, total = talks_max(request, spanning=spanning)
    groups = tuple(
        replace(group, reach=replace(group.reach, reserve_gbps=total))
        if group.reach is not None and group.reach.reserve_gbps > 0
        else group
        for group in request.groups
    )
    return replace(request, groups=groups)


def room_ok(room: Room | None, topology: Topology, reaches: Iterable[Reach], a: str, b: str) -> bool:
    """Whether two nodes alone could talk as these ask."""
    gbps = reserve_of(reaches)
    if room is None or gbps <= 0:
        return True
    return bool(room.headroom[topology.leaf_of[topology.index[a]], topology.leaf_of[topology.index[b]]] >= gbps)
