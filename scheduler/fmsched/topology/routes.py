"""Which links traffic between two leaf groups crosses, and what part of it each carries: shares, static, once per topology.

Traffic takes all shortest ways. It starts in equal parts at those of a group's switches from which a shortest way leads, and every
switch splits it evenly over the switches that are next on a shortest way (ECMP, adaptive routing); parallel cables between two
switches are one link. Over a link that the two directions load unlike, the greater share counts. In a tree every link crossed
carries all of it: share 1. Cables between nodes and switches are not in it.

Groups whose switches have the same neighbours (the leaves of a pod) are twins: the fabric looks the same with them swapped. So
ways are walked once for each pair of kinds of twins, and the links at a twin's own switches are looked up by its number.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from fmsched.model.fabric import Fabric, Topology
from fmsched.topology.graph import switch_graph

Edge = tuple[str, str]  # two switches, names in order
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

TOPOLOGIES_KEPT = 8


def edge(a: str, b: str) -> Edge:
    return (a, b) if a <= b else (b, a)


def measured_of(fabric: Fabric) -> dict[Edge, float]:
    """Gb/s of traffic seen between switches; links without any are left out."""
    found: dict[Edge, float] = {}
    switches = {switch.name for switch in fabric.switches}
    for link in fabric.links:
        if link.measured_gbps > 0 and not link.down and link.a in switches and link.b in switches:
            found[edge(link.a, link.b)] = found.get(edge(link.a, link.b), 0.0) + link.measured_gbps
    return found


@dataclass(frozen=True, slots=True)
class _Twins:
    """Leaf groups that are alike. ends[i, neighbour]: by member, the link from its switch number i to that neighbour."""

    members: Ints
    position: Mapping[int, int]
    ends: Mapping[tuple[int, int], Ints]


@dataclass(frozen=True, slots=True)
class _Ways:
    """Shares of what goes from a group of one kind to a group of another: on links in between, on those at either end's switches."""

    inner: tuple[tuple[int, float], ...]
    first: tuple[tuple[Ints, float], ...]  # (link by member of the kind it starts from, share)
    last: tuple[tuple[Ints, float], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Routes:
    """links[i] has gbps[i] of live cables. By leaf group: the number of its kind, -1 where it has no switch."""

    links: tuple[Edge, ...]
    gbps: Floats
    number: Mapping[Edge, int]
    kind_of: tuple[int, ...]
    kinds: tuple[_Twins, ...]
    ways: Mapping[tuple[int, int], _Ways] = field(repr=False)

    def shares(self, ours: Collection[int], theirs: Collection[int]) -> Floats:
        """By link: the greatest share over all pairs of one of our leaf groups and another one of theirs."""
        found = np.zeros(len(self.links))
        for start, end in ((ours, theirs), (theirs, ours)):
            from_kind, to_kind = self._by_kind(start), self._by_kind(end)
            for a, starts in from_kind.items():
                for b, ends in to_kind.items():
                    self._mark(found, a, b, starts, ends)
        return found

    def _by_kind(self, groups: Collection[int]) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        for group in sorted(set(groups)):
            if self.kind_of[group] >= 0:
                found.setdefault(self.kind_of[group], []).append(group)
        return found

    def _mark(self, found: Floats, a: int, b: int, starts: list[int], ends: list[int]) -> None:
        ways = self.ways.get((a, b))
        if a == b:  # nothing is crossed from a group to itself
            starts, ends = (
                [each for each in starts if len(ends) > 1 or ends[0] != each],
                [each for each in ends if len(starts) > 1 or starts[0] != each],
            )
        if ways is None or not starts or not ends:
            return
        for link, share in ways.inner:
            found[link] = max(found[link], share)
        for (of, chosen), rows in (((a, starts), ways.first), ((b, ends), ways.last)):
            at = [self.kinds[of].position[each] for each in chosen]
            for by_member, share in rows:
                found[by_member[at]] = np.maximum(found[by_member[at]], share)

    def headroom(self, left: Floats) -> Floats:
        """[a, b]: how much may go between two leaf groups where links[i] has left[i] left; inf where no link is crossed. Gb/s."""
        count = len(self.kind_of)
        found = np.full((count, count), np.inf)
        for (a, b), ways in self.ways.items():
            rows, columns = self.kinds[a].members, self.kinds[b].members
            inner = min((left[link] / share for link, share in ways.inner), default=np.inf)
            first, last = np.full(len(rows), inner), np.full(len(columns), inner)
            for ends, row in ((first, ways.first), (last, ways.last)):
                for by_member, share in row:
                    np.minimum(ends, left[by_member] / share, out=ends)
            found[np.ix_(rows, columns)] = np.minimum(first[:, None], last[None, :])
        both: Floats = np.minimum(found, found.T)
        np.fill_diagonal(both, np.inf)
        return both


@lru_cache(maxsize=TOPOLOGIES_KEPT)
def routes_of(topology: Topology) -> Routes:
    """Computed once per topology."""
    return _Walk(topology).routes()


class _Walk:
    """The switch graph by numbers, and the walks over it."""

    def __init__(self, topology: Topology) -> None:
        graph = switch_graph(topology.fabric)
        self._switch = {name: i for i, name in enumerate(graph)}
        self._near: list[list[int]] = [sorted(self._switch[other] for other in graph[name]) for name in graph]
        self._links = tuple(sorted(edge(a, b) for a, b in graph.edges))
        self._gbps = np.array([float(graph.edges[link]["gbps"]) for link in self._links], dtype=np.float64)
        number = {link: i for i, link in enumerate(self._links)}
        self._number = number
        self._link_of = {(self._switch[x], self._switch[y]): i for (a, b), i in number.items() for x, y in ((a, b), (b, a))}
        # In an order by which the switches of twins match.
        self._attached = [
            tuple(sorted(switches, key=lambda switch: (self._near[switch], switch)))
            for switches in _attached(topology, self._switch)
        ]
        self._distances: dict[int, list[int]] = {}

    def routes(self) -> Routes:
        kinds = [self._twins(members) for members in self._kinds()]
        kind_of = [-1] * len(self._attached)
        for number, twins in enumerate(kinds):
            for member in twins.members:
                kind_of[int(member)] = number
        ways = {}
        for a, start in enumerate(kinds):
            for b, end in enumerate(kinds):
                if a != b or len(start.members) > 1:
                    found = self._ways(start, end, int(start.members[0]), int(end.members[int(a == b)]))
                    if found is not None:
                        ways[a, b] = found
        return Routes(self._links, self._gbps, self._number, tuple(kind_of), tuple(kinds), ways)

    def _kinds(self) -> list[list[int]]:
        """Twins together: groups whose switches are theirs alone, join no other group's switch, and have equal neighbours."""
        users: dict[int, int] = {}
        for switches in self._attached:
            for switch in switches:
                users[switch] = users.get(switch, 0) + 1
        found: dict[tuple[object, ...], list[int]] = {}
        for group, switches in enumerate(self._attached):
            if not switches:
                continue
            own = all(users[switch] == 1 and not any(n in users for n in self._near[switch]) for switch in switches)
            key = ("alike", tuple(tuple(self._near[switch]) for switch in switches)) if own else ("single", group)
            found.setdefault(key, []).append(group)
        return list(found.values())

    def _twins(self, members: list[int]) -> _Twins:
        ends: dict[tuple[int, int], Ints] = {}
        if len(members) > 1:
            for i, switch in enumerate(self._attached[members[0]]):
                for near in self._near[switch]:
                    links = [self._link_of[self._attached[member][i], near] for member in members]
                    ends[i, near] = np.array(links, dtype=np.int64)
        return _Twins(np.array(members, dtype=np.int64), {member: i for i, member in enumerate(members)}, ends)

    def _ways(self, start: _Twins, end: _Twins, a: int, b: int) -> _Ways | None:
        inner: dict[int, float] = {}
        first: dict[tuple[int, int], float] = {}
        last: dict[tuple[int, int], float] = {}
        mine = {switch: i for i, switch in enumerate(self._attached[a])} if start.ends else {}
        theirs = {switch: i for i, switch in enumerate(self._attached[b])} if end.ends else {}
        for x, y, share in self._walk(a, b):
            if x in mine:
                first[mine[x], y] = first.get((mine[x], y), 0.0) + share
            elif y in theirs:
                last[theirs[y], x] = last.get((theirs[y], x), 0.0) + share
            else:
                inner[self._link_of[x, y]] = inner.get(self._link_of[x, y], 0.0) + share
        if not (inner or first or last):
            return None
        return _Ways(
            tuple(sorted(inner.items())),
            tuple((start.ends[key], share) for key, share in sorted(first.items())),
            tuple((end.ends[key], share) for key, share in sorted(last.items())),
        )

    def _walk(self, a: int, b: int) -> Iterator[tuple[int, int, float]]:
        """(switch, next switch, share of what goes from a to b), each link once."""
        to_go = self._distances_to(b)
        reached = [switch for switch in self._attached[a] if to_go[switch] >= 0]
        if not reached:
            return
        nearest = min(to_go[switch] for switch in reached)
        starts = [switch for switch in reached if to_go[switch] == nearest]
        flow = dict.fromkeys(starts, 1.0 / len(starts))
        for left in range(nearest, 0, -1):
            after: dict[int, float] = {}
            for switch, share in flow.items():
                following = [near for near in self._near[switch] if to_go[near] == left - 1]
                for near in following:
                    yield switch, near, share / len(following)
                    after[near] = after.get(near, 0.0) + share / len(following)
            flow = after

    def _distances_to(self, group: int) -> list[int]:
        """By switch: links to the nearest of the group's switches; -1 without a way."""
        if group not in self._distances:
            found = [-1] * len(self._near)
            frontier = list(self._attached[group])
            for switch in frontier:
                found[switch] = 0
            while frontier:  # ends: a switch enters once
                after = []
                for switch in frontier:
                    for near in self._near[switch]:
                        if found[near] < 0:
                            found[near] = found[switch] + 1
                            after.append(near)
                frontier = after
            self._distances[group] = found
        return self._distances[group]


def _attached(topology: Topology, switch: Mapping[str, int]) -> list[set[int]]:
    """By leaf group: its switches."""
    of_group: list[set[int]] = [set() for _ in topology.leaves]
    for link in topology.fabric.links:
        if link.down:
            continue
        for node, other in ((link.a, link.b), (link.b, link.a)):
            if node in topology.index and other in switch:
                of_group[int(topology.leaf_of[topology.index[node]])].add(switch[other])
    return of_group
