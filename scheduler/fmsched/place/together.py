"""Talks of one job that meet on a link, in the count model: which instance lies where, and what all talks load a link with together.

Only what reserves is told apart. Neighbouring stages: each instance gets a site (nodes of a leaf group, or a pool across leaf
groups), and replica r's sites are neighbours. Other instances that reserve: which parts of a pool are one instance. A DataParallel
group is one talk however it lies. Only links matter that all talks together could overload.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import combinations, product
from math import floor

import numpy as np
from ortools.sat.python import cp_model

from fmsched.place import relations
from fmsched.place.counts import CountModel, Linear, PoolKey, group_variables, pool_homes
from fmsched.place.links import SLACK_GBPS, Room, reserve_of, talks_max
from fmsched.place.problem import Problem

SCALE = 1_000_000  # loads are whole numbers of 1e-6 Gb/s, far below the slack
ROWS_MAX = 60_000  # constraints; beyond it the question is not asked this way

Touch = dict[int, list[cp_model.IntVar]]  # by leaf group: variables whose sum is 1 where the instance lies there, else 0


@dataclass(frozen=True, slots=True)
class Site:
    """Where an instance of a stage may lie. leaf -1: across leaf groups, from `pool`.

    alone   the bin of a node with slow links, which stands apart in its leaf group; -1: none
    """

    leaf: int
    alone: int
    pool: PoolKey | None
    zones: tuple[frozenset[int], ...]  # by stage pair


@dataclass(slots=True)
class Sites:
    """What is added to the model. All by (group, replica)."""

    sites: dict[int, list[Site]] = field(default_factory=dict)  # by group
    at: dict[tuple[int, int], list[cp_model.IntVar]] = field(default_factory=dict)  # one per site of the group
    across: dict[tuple[int, int, PoolKey], cp_model.IntVar] = field(default_factory=dict)
    parts: dict[tuple[int, int, PoolKey, int], cp_model.IntVar] = field(default_factory=dict)  # GPUs in a leaf group


@dataclass(frozen=True, slots=True)
class Chosen:
    """Which instance lies where.

    sites   of stages, by (group, replica)
    parts   of instances across leaf groups, by (group, replica): their pool, and (leaf group, GPUs there)
    """

    sites: Mapping[tuple[int, int], Site]
    parts: Mapping[tuple[int, int], tuple[PoolKey, tuple[tuple[int, int], ...]]]

    @property
    def groups(self) -> frozenset[int]:
        """The groups whose instances stand in order of their replicas."""
        return frozenset(g for g, _ in self.sites)


def rows(problem: Problem) -> int:
    """About how many constraints add() makes."""
    assert problem.room is not None
    leaves = len({item.leaf for item in problem.bins})
    spanning = any(any(of_bin) for of_bin in problem.span_zones)
    count, _ = talks_max(problem.request, spanning=spanning)
    bins = len(problem.bins)
    return count * leaves * leaves * (1 + min(4, len(_tight(problem.room, problem)[0]))) + count * bins


def add(built: CountModel) -> Sites:
    """Adds to the model that all talks together keep to what is left on every link."""
    problem = built.problem
    room, found = problem.room, Sites()
    assert room is not None
    loads = _Loads(built, room)
    staged = sorted({g for a, b, _ in relations.stage_pairs(problem.request) for g in (a, b)})
    if not any(reserve_of(reaches) > 0 for _, _, reaches in relations.stage_pairs(problem.request)):
        staged = []
    touch: dict[tuple[int, int], Touch] = {}
    for g in staged:
        _stage_sites(built, found, g, touch)
    for g, group in enumerate(problem.request.groups):
        if reserve_of(relations.instance_reaches(group)) > 0:
            _pool_instances(built, found, g, touch)
            for replica in range(problem.request.replicas):
                mine = touch.get((g, replica), {})
                loads.talk(reserve_of(relations.instance_reaches(group)), mine, mine)
        if (gbps := reserve_of(relations.group_reaches(group))) > 0:
            whole = _group_touch(built, g)
            loads.talk(gbps, whole, whole)
    for number, (a, b, reaches) in enumerate(relations.stage_pairs(problem.request)):
        for replica in range(problem.request.replicas) if staged else ():
            _neighbours(built, found, a, b, number, replica)
            loads.talk(reserve_of(reaches), touch[a, replica], touch[b, replica])
    loads.close()
    return found


def chosen(found: Sites, values: list[int]) -> Chosen:
    """What a solution says."""
    sites = {
        key: found.sites[key[0]][next(i for i, variable in enumerate(at) if values[variable.index])]
        for key, at in found.at.items()
    }
    parts: defaultdict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    pools = {(g, replica): key for (g, replica, key), variable in found.across.items() if values[variable.index]}
    for (g, replica, key, leaf), variable in found.parts.items():
        if values[variable.index] and pools.get((g, replica)) == key:
            parts[g, replica].append((leaf, values[variable.index]))
    return Chosen(sites, {key: (pool, tuple(sorted(parts[key]))) for key, pool in pools.items()})


def _tight(room: Room, problem: Problem) -> tuple[list[int], list[int]]:
    """(links that all talks together could overload, what is left there in units of 1 / SCALE)."""
    _, total = talks_max(problem.request, spanning=True)
    links = np.flatnonzero(room.left + SLACK_GBPS < total)
    return links.tolist(), [max(0, floor((float(room.left[i]) + SLACK_GBPS) * SCALE)) for i in links]


class _Loads:
    """Gathers what talks load the tight links with."""

    def __init__(self, built: CountModel, room: Room) -> None:
        self._model, self._room = built.model, room
        self._links, self._left = _tight(room, built.problem)
        self._on: list[Linear] = [Linear() for _ in self._links]
        self._known: dict[tuple[int, int], list[tuple[int, float]]] = {}

    def _shares(self, a: int, b: int) -> list[tuple[int, float]]:
        key = (min(a, b), max(a, b))
        if key not in self._known:
            shares = self._room.routes.shares([a], [b])[np.array(self._links, dtype=np.int64)]
            self._known[key] = [(int(i), float(shares[i])) for i in np.flatnonzero(shares > 0)]
        return self._known[key]

    def talk(self, gbps: float, ours: Touch, theirs: Touch) -> None:
        pairs = combinations(sorted(ours), 2) if ours is theirs else product(sorted(ours), sorted(theirs))
        mine: dict[int, cp_model.IntVar] = {}
        for a, b in pairs if gbps > 0 else ():
            shares = self._shares(a, b) if a != b else []
            if not shares:
                continue
            both = self._model.new_bool_var("")
            terms = [*ours[a], *theirs[b]]
            self._model.add(cp_model.LinearExpr.sum(terms) <= 1 + both)
            for i, share in shares:
                needed = round(gbps * share * SCALE)
                if i not in mine:
                    mine[i] = self._model.new_int_var(0, self._left[i], "")
                    self._on[i].add(mine[i])
                self._model.add(mine[i] >= needed * both)

    def close(self) -> None:
        for on, left in zip(self._on, self._left, strict=True):
            if len(on.variables) > 1:
                self._model.add(on.expression() <= left)


def _group_touch(built: CountModel, g: int) -> Touch:
    found: Touch = {}
    for b, variables in group_variables(built, g).items():
        leaf = built.problem.bins[b].leaf
        if leaf not in found:
            found[leaf] = [built.model.new_bool_var("")]
        for variable, most in variables:
            built.model.add(variable <= most * found[leaf][0])
    return found


def _across(built: CountModel, found: Sites, g: int, replica: int, key: PoolKey, touch: Touch) -> cp_model.IntVar:
    """Whether the instance is one of the pool's across leaf groups, and what it then takes in each."""
    model, size = built.model, built.problem.request.groups[g].gpus
    is_it = found.across[g, replica, key] = model.new_bool_var("")
    total = Linear()
    for of, leaf in built.rest:
        if of == key:
            part = found.parts[g, replica, key, leaf] = model.new_int_var(0, size, "")
            there = model.new_bool_var("")
            model.add(part <= size * there)
            model.add(there <= part)
            touch.setdefault(leaf, []).append(there)
            total.add(part)
    model.add(total.expression() == size * is_it)
    return is_it


def _pools_add_up(built: CountModel, found: Sites, g: int) -> None:
    replicas = range(built.problem.request.replicas)
    for key, pool in built.pool_zone.items():
        if key[0] == g:
            built.model.add(cp_model.LinearExpr.sum([found.across[g, replica, key] for replica in replicas]) == pool)
    for (key, leaf), rest in built.rest.items():
        if key[0] == g:
            built.model.add(cp_model.LinearExpr.sum([found.parts[g, r, key, leaf] for r in replicas]) == rest)


def _pool_instances(built: CountModel, found: Sites, g: int, touch: dict[tuple[int, int], Touch]) -> None:
    """Of instances that are no stages only those across leaf groups cross anything."""
    keys = [key for key in built.pool_zone if key[0] == g]
    before: cp_model.LinearExprT | None = None
    for replica in range(built.problem.request.replicas):
        mine = touch.setdefault((g, replica), {})
        across = [_across(built, found, g, replica, key, mine) for key in keys]
        if across:
            count = cp_model.LinearExpr.sum(across)
            built.model.add(count <= 1)
            if before is not None:
                built.model.add(count <= before)  # replicas are alike: those across leaf groups come first
            before = count
    _pools_add_up(built, found, g)


def _stage_sites(built: CountModel, found: Sites, g: int, touch: dict[tuple[int, int], Touch]) -> None:
    problem, model = built.problem, built.model
    supply: defaultdict[Site, Linear] = defaultdict(Linear)
    for (b, _, of), variable in built.whole.items():
        if of == g:
            item = problem.bins[b]
            zones = tuple(frozenset(stage.zones.of_bin[b]) for stage in problem.stages)
            supply[Site(item.leaf, b if item.alone else -1, None, zones)].add(variable)
    homes = [pool_homes(built, g, stage.zones) for stage in problem.stages]
    for (key, leaf), variable in built.pool_leaf.items():
        if key[0] == g:
            supply[Site(leaf, -1, key, tuple(frozenset({home[key]}) for home in homes))].add(variable)
    sites = list(supply)
    pools = [key for key in built.pool_zone if key[0] == g]
    found.sites[g] = [*sites, *(Site(-1, -1, key, tuple(frozenset({home[key]}) for home in homes)) for key in pools)]
    for replica in range(problem.request.replicas):
        mine: Touch = touch.setdefault((g, replica), {})
        at = [model.new_bool_var("") for _ in sites]
        for site, variable in zip(sites, at, strict=True):
            mine.setdefault(site.leaf, []).append(variable)
        at += [_across(built, found, g, replica, key, mine) for key in pools]
        model.add_exactly_one(at)
        found.at[g, replica] = at
    for i, site in enumerate(sites):
        of_all = [found.at[g, replica][i] for replica in range(problem.request.replicas)]
        model.add(cp_model.LinearExpr.sum(of_all) == supply[site].expression())
    _pools_add_up(built, found, g)


def _neighbours(built: CountModel, found: Sites, a: int, b: int, number: int, replica: int) -> None:
    """The replica's two stages lie in one zone."""
    for i, ours in enumerate(found.sites[a]):
        near = [
            found.at[b, replica][j] for j, theirs in enumerate(found.sites[b]) if ours.zones[number] & theirs.zones[number]
        ]
        if len(near) < len(found.sites[b]):
            built.model.add(found.at[a, replica][i] <= _sum(near))


def _sum(variables: Iterable[cp_model.IntVar]) -> cp_model.LinearExprT:
    return cp_model.LinearExpr.sum(list(variables))
