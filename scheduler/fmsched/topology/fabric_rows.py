"""Cables, one by one, as the few link rows of a Cluster file: ends that are joined alike share a row. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from fmsched.topology.clusterfile import CABLES_MAX, LEVEL_MAX, LinkRow
from fmsched.topology.imported_names import natural, ranges


@dataclass(frozen=True, slots=True)
class Cable:
    """`count` cables of `gbps` each from a host, or the lower switch, to a switch. `hca`: the adapter on the host's side."""

    a: str
    b: str
    gbps: float
    count: int = 1
    down: bool = False
    hca: str = ""


def link_rows(cables: Iterable[Cable]) -> tuple[LinkRow, ...]:
    """Rows that stand for exactly these cables, those of hosts first. Equal cables of one pair add up.

    All ends `a` with the same set of far ends, at the same rate, count and adapter, share a row: a leaf's hosts, a pod's leaves.
    """
    totals: dict[tuple[str, str, float, bool, str], int] = {}
    for cable in cables:
        key = (cable.a, cable.b, cable.gbps, cable.down, cable.hca)
        totals[key] = totals.get(key, 0) + cable.count
    far: dict[tuple[float, int, bool, str], dict[str, set[str]]] = {}
    for (a, b, gbps, down, hca), total in totals.items():
        # No two switches have more cables between them than a row may say.
        far.setdefault((gbps, min(total, CABLES_MAX), down, hca), {}).setdefault(a, set()).add(b)
    rows = [row for key, ends in far.items() for row in _rows(key, ends)]
    return tuple(sorted(rows, key=lambda row: (natural(row.b), natural(row.a), natural(row.hca), row.down, row.gbps)))


def _rows(key: tuple[float, int, bool, str], ends: Mapping[str, set[str]]) -> Iterator[LinkRow]:
    gbps, count, down, hca = key
    alike: dict[frozenset[str], list[str]] = {}
    for a, others in ends.items():
        alike.setdefault(frozenset(others), []).append(a)
    for joined, members in alike.items():
        for far in ranges(joined):
            for near in ranges(members):
                yield LinkRow(near, far, gbps, count, down, hca)


def levels(switches: Mapping[str, int | None], with_hosts: set[str], links: Iterable[tuple[str, str]]) -> dict[str, int]:
    """The level of each switch: as its file says, else 0 where hosts hang on it, else its distance from such a switch."""
    neighbours: dict[str, list[str]] = {name: [] for name in switches}
    for a, b in links:
        neighbours[a].append(b)
        neighbours[b].append(a)
    found = {name: min(LEVEL_MAX, max(0, level)) for name, level in switches.items() if level is not None}
    found |= {name: 0 for name in switches if name in with_hosts and name not in found}
    frontier = [name for name in switches if found.get(name) == 0]
    level = 0
    seen = set(frontier)
    while frontier:  # ends: each round takes switches that were not seen yet
        level += 1
        frontier = list(dict.fromkeys(n for name in frontier for n in neighbours[name] if n not in seen))
        seen.update(frontier)
        for name in frontier:
            found.setdefault(name, min(LEVEL_MAX, level))
    return {name: found.get(name, 0) for name in switches}


def switch_rows(level_of: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    """(range, level), the lowest level first."""
    by_level: dict[int, list[str]] = {}
    for name, level in level_of.items():
        by_level.setdefault(level, []).append(name)
    return tuple((text, level) for level, names in sorted(by_level.items()) for text in ranges(names))
