"""Small pipelines, exactly: the count model with every replica told apart, so that the chains' spread is what it will be.

chains.py knows what a domain adds to the spread at least. Where no order of the instances reaches that (gridmap.py found none), other
counts may be better than those that promised most, and a job that is small enough is asked again: which instance of which stage
is which replica's is now a part of the model.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ortools.sat.python import cp_model

from fmsched.place.counts import CountModel, Linear, PoolKey, build
from fmsched.place.cpsat import Found, Infeasible, LimitReached, search_built
from fmsched.place.problem import Problem
from fmsched.place.realise import Cells, Gpu

SEATS_MAX = 300  # Booleans that say where an instance is: more are not worth the search

Homes = tuple[tuple[int, ...], ...]  # by pair of neighbouring stages that must be near: the zones


@dataclass(frozen=True, slots=True)
class Spots:
    """Where instances can be, by number: a leaf group and the zones there; and pools, from which instances across leaf groups come."""

    spots: tuple[tuple[int, Homes], ...]
    keys: tuple[PoolKey, ...]


def spots_of(problem: Problem) -> Spots:
    spots = sorted({(item.leaf, _homes(problem, b)) for b, item in enumerate(problem.bins)})
    keys = sorted(
        {
            (g, problem.ways[b].items[i].model, zone, domain)
            for b in range(len(problem.bins))
            for i, item in enumerate(problem.ways[b].items)
            for g in item.groups
            if item.fragment
            for zone, domain in problem.span_zones[g][b]
        }
    )
    return Spots(tuple(spots), tuple(keys))


def _homes(problem: Problem, b: int) -> Homes:
    return tuple(stage.zones.of_bin[b] for stage in problem.stages)


def small(problem: Problem) -> bool:
    """Whether a problem of stages that are not folded is worth telling its replicas apart."""
    assert problem.chains is not None
    spots = spots_of(problem)
    places = len(spots.spots) + len(spots.keys) * (1 + len({item.leaf for item in problem.bins}))
    return problem.request.replicas * problem.chains.length * places <= SEATS_MAX


def search(problem: Problem, weights: Sequence[int], deterministic_s: float) -> Found | Infeasible | LimitReached:
    """The best counts and who sits where, in Counts.seats and Counts.cuts. The problem's stages are not folded."""
    built = build(problem)
    if built is None:
        return Infeasible()
    spots = spots_of(problem)
    _seat(built, spots)
    found = search_built(built, weights, deterministic_s)
    if isinstance(found, Found):
        return replace(found, counts=replace(found.counts, cuts=_cuts(spots, found.counts.seats)))
    return found


def _seat(built: CountModel, spots: Spots) -> None:
    """Every instance of every stage gets a replica; domains are touched by replicas."""
    problem, model = built.problem, built.model
    assert problem.chains is not None
    replicas = range(problem.request.replicas)
    for g in problem.chains.stages:
        seated: list[Linear] = [Linear() for _ in replicas]
        for s, supply in _supply(built, spots, g).items():
            mine = Linear()
            for r in replicas:
                seat = built.seats[g, r, (0, s)] = model.new_bool_var("")
                mine.add(seat)
                seated[r].add(seat)
            model.add(mine.expression() == supply.expression())
        for k, key in enumerate(spots.keys):
            if key[0] == g and key in built.pool_zone:
                _seat_across(built, k, key, seated)
        for each in seated:
            model.add(each.expression() == 1)
    _keep_near(built, spots)
    _touch(built, spots)


def _supply(built: CountModel, spots: Spots, g: int) -> dict[int, Linear]:
    """By spot: the instances of the group there."""
    problem = built.problem
    number = {spot: s for s, spot in enumerate(spots.spots)}
    found: defaultdict[int, Linear] = defaultdict(Linear)
    for (b, _, of), variable in built.whole.items():
        if of == g:
            found[number[problem.bins[b].leaf, _homes(problem, b)]].add(variable)
    home = {
        ((g, problem.ways[b].items[i].model, zone, dict(problem.span_zones[g][b])[zone]), problem.bins[b].leaf): b
        for (b, i, of, zone) in built.part
        if of == g
    }
    for (key, leaf), variable in built.pool_leaf.items():
        if key[0] == g:
            found[number[leaf, _homes(problem, home[key, leaf])]].add(variable)
    return dict(found)


def _seat_across(built: CountModel, k: int, key: PoolKey, seated: Sequence[Linear]) -> None:
    """Instances across leaf groups: who has one, and how many GPUs of it lie in which leaf group."""
    problem, model = built.problem, built.model
    g, size = key[0], problem.request.groups[key[0]].gpus
    over: defaultdict[int, Linear] = defaultdict(Linear)
    for (b, i, of, zone), variable in built.part.items():
        if of == g and (g, problem.ways[b].items[i].model, zone, dict(problem.span_zones[g][b])[zone]) == key:
            over[problem.bins[b].leaf].add(variable)
    for leaf, mine in over.items():
        mine.add(built.pool_leaf[key, leaf], -size)
    across = Linear()
    for r, mine in enumerate(seated):
        seat = built.seats[g, r, (1, k)] = model.new_bool_var("")
        mine.add(seat)
        across.add(seat)
        gpus = Linear()
        for leaf in sorted(over):
            there = built.seats[g, r, (2, k, leaf)] = model.new_int_var(0, size, "")
            gpus.add(there)
        model.add(gpus.expression() == size * seat)
    model.add(across.expression() == built.pool_zone[key])
    for leaf, rest in over.items():
        for r in range(len(seated)):
            rest.add(built.seats[g, r, (2, k, leaf)], -1)
        model.add(rest.expression() == 0)


def _keep_near(built: CountModel, spots: Spots) -> None:
    """Both stages of a pair in one zone, in every replica."""
    problem, model = built.problem, built.model
    home: dict[int, Homes] = {}
    for b, i, g, zone in built.part:
        key = (g, problem.ways[b].items[i].model, zone, dict(problem.span_zones[g][b])[zone])
        home.setdefault(spots.keys.index(key), _homes(problem, b))
    for p, stage in enumerate(problem.stages):
        zones = sorted({zone for of_bin in stage.zones.of_bin for zone in of_bin})
        for r in range(problem.request.replicas):
            chosen = {zone: model.new_bool_var("") for zone in zones}
            model.add_exactly_one(chosen.values())
            for (g, of, where), seat in built.seats.items():
                if of != r or g not in (stage.first, stage.second) or where[0] == 2:
                    continue
                homes = spots.spots[where[1]][1] if where[0] == 0 else home[where[1]]
                model.add_bool_or([chosen[zone] for zone in homes[p]] + [seat.negated()])


def _touch(built: CountModel, spots: Spots) -> None:
    problem, model = built.problem, built.model
    for level in problem.ruler.levels:
        domain_of = [int(domain) for domain in problem.snapshot.topology.domains[level]]
        touched: dict[tuple[int, int], cp_model.IntVar] = {}
        term = built.chain_spread[level] = Linear()
        for (g, r, where), seat in built.seats.items():
            if where[0] == 1:
                continue
            domain = domain_of[spots.spots[where[1]][0] if where[0] == 0 else where[2]]
            if (r, domain) not in touched:
                variable = model.new_bool_var("")
                touched[r, domain] = variable
                term.add(variable)
            most = 1 if where[0] == 0 else problem.request.groups[g].gpus
            model.add(seat <= most * touched[r, domain])


def _cuts(spots: Spots, seats: Mapping[tuple[int, int, tuple[int, ...]], int]) -> dict[PoolKey, tuple[dict[int, int], ...]]:
    """By pool: of each instance across leaf groups, its GPUs by leaf group."""
    found: defaultdict[PoolKey, defaultdict[int, dict[int, int]]] = defaultdict(lambda: defaultdict(dict))
    for (_, r, where), gpus in seats.items():
        if where[0] == 2:
            found[spots.keys[where[1]]][r][where[2]] = gpus
    return {key: tuple(of.values()) for key, of in found.items()}


def seated(problem: Problem, seats: Mapping[tuple[int, int, tuple[int, ...]], int], cells: Cells) -> Cells:
    """The cells of every stage in order of replicas, as they were seated."""
    assert problem.chains is not None
    spots = spots_of(problem)
    bin_of = {node: b for b, item in enumerate(problem.bins) for node in item.nodes}
    ordered = list(cells)
    for g in problem.chains.stages:
        waiting: defaultdict[tuple[tuple[int, int], ...], dict[Homes, list[list[Gpu]]]] = defaultdict(dict)
        for cell in cells[g]:
            leaves = tuple(sorted(Counter(problem.bins[bin_of[node]].leaf for node, _ in cell).items()))
            waiting[leaves].setdefault(_homes(problem, bin_of[cell[0][0]]), []).append(cell)
        ordered[g] = []
        for r in range(problem.request.replicas):
            leaves, homes = _where(problem, spots, seats, g, r)
            of = waiting[leaves]
            ordered[g].append((of[homes] if homes is not None else next(each for each in of.values() if each)).pop(0))
    return ordered


def _where(
    problem: Problem, spots: Spots, seats: Mapping[tuple[int, int, tuple[int, ...]], int], g: int, r: int
) -> tuple[tuple[tuple[int, int], ...], Homes | None]:
    """GPUs by leaf group of one instance, and its zones where they matter."""
    gpus: Counter[int] = Counter()
    for (of, replica, where), n in seats.items():
        if (of, replica) != (g, r):
            continue
        if where[0] == 0:
            leaf, homes = spots.spots[where[1]]
            return ((leaf, problem.request.groups[g].gpus),), homes
        if where[0] == 2:
            gpus[where[2]] += n
    return tuple(sorted(gpus.items())), None
