"""The CP-SAT model by counts: how many nodes of each bin are used in each way, and how many instances of each group lie there.

Variables: ways[b, way] nodes of bin b used that way; whole[b, item, g] instances of group g wholly on nodes of bin b; part[b,
item, g, zone] GPUs there of instances that span nodes; pools, which turn the parts of one zone and GPU model back into
instances, inside a leaf group where they can, across leaf groups where they must. Terms add Booleans that say which domains are touched.
No variable names a GPU or a rank, and equal nodes are never told apart.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from ortools.sat.python import cp_model

from fmsched.place.chains import rectangles
from fmsched.place.hosts import mask_indices
from fmsched.place.objective import preference_step
from fmsched.place.power import watts_of
from fmsched.place.problem import Problem, StagePair, apart_domains
from fmsched.place.zones import Zones

Expr = cp_model.LinearExprT
PoolKey = tuple[int, str, int, str]  # group, GPU model, zone, multi-node NVLink domain
Seat = tuple[int, int, tuple[int, ...]]  # group, replica, where


@dataclass(slots=True)
class Linear:
    """A sum of variable × coefficient, gathered before it becomes an expression."""

    variables: list[cp_model.IntVar] = field(default_factory=list)
    factors: list[int] = field(default_factory=list)

    def add(self, variable: cp_model.IntVar, factor: int = 1) -> None:
        if factor:
            self.variables.append(variable)
            self.factors.append(factor)

    def expression(self) -> Expr:
        return cp_model.LinearExpr.weighted_sum(self.variables, self.factors)

    @property
    def empty(self) -> bool:
        return not self.variables


@dataclass(slots=True)
class CountModel:
    """The model and the meaning of its variables; keys as the module's docstring says."""

    problem: Problem
    model: cp_model.CpModel = field(default_factory=cp_model.CpModel)
    ways: dict[tuple[int, int], cp_model.IntVar] = field(default_factory=dict)
    whole: dict[tuple[int, int, int], cp_model.IntVar] = field(default_factory=dict)
    part: dict[tuple[int, int, int, int], cp_model.IntVar] = field(default_factory=dict)
    pool_leaf: dict[tuple[PoolKey, int], cp_model.IntVar] = field(default_factory=dict)
    pool_zone: dict[PoolKey, cp_model.IntVar] = field(default_factory=dict)
    rest: dict[tuple[PoolKey, int], cp_model.IntVar] = field(
        default_factory=dict
    )  # GPUs of a pool's instances across leaf groups
    seats: dict[Seat, cp_model.IntVar] = field(default_factory=dict)  # identities.py
    chain_spread: dict[int, Linear] = field(
        default_factory=dict
    )  # by level: domains spanned by the chains, where they are known


def build(problem: Problem) -> CountModel | None:
    """The model of everything hard; None where counting alone shows that a group cannot be placed."""
    built = CountModel(problem)
    for b in range(len(problem.bins)):
        _bin(built, b)
    _pools(built)
    if not _demand(built):
        return None
    _group_zones(built)
    _feeds(built)
    _apart(built)
    for stage in problem.stages:
        _stage(built, stage)
    if problem.chains is not None and problem.chains.zones is not None:
        for inside in _in_zones(built, 0, problem.chains.zones).values():
            chains = built.model.new_int_var(0, problem.asked.replicas, "")
            built.model.add(inside.expression() == problem.chains.length * chains)
    return built


def _bin(built: CountModel, b: int) -> None:
    problem, model = built.problem, built.model
    item_of, count = problem.ways[b], problem.bins[b].count
    chosen = [model.new_int_var(0, count, "") for _ in item_of.ways]
    for w, variable in enumerate(chosen):
        built.ways[b, w] = variable
    if len(chosen) > 1:
        model.add(cp_model.LinearExpr.sum(chosen) <= count)
    taken = []
    for i, item in enumerate(item_of.items):
        mine = Linear()
        most = max(way.counts[i] if way.counts else way.gpus // (1 if item.fragment else item.size) for way in item_of.ways)
        for g in item.groups:
            if item.fragment:
                for zone, _ in problem.span_zones[g][b]:
                    variable = built.part[b, i, g, zone] = model.new_int_var(0, min(most, item.size) * count, "")
                    mine.add(variable)
            else:
                variable = built.whole[b, i, g] = model.new_int_var(0, min(problem.request.replicas, most * count), "")
                mine.add(variable)
        taken.append(mine)
        if not item_of.chain:
            model.add(mine.expression() == sum(way.counts[i] * chosen[w] for w, way in enumerate(item_of.ways)))
    if item_of.chain:
        _chain(built, b, chosen, taken)


def _chain(built: CountModel, b: int, chosen: list[cp_model.IntVar], taken: list[Linear]) -> None:
    """Items of sizes that divide one another fit exactly when each size, with all above it, fits into its whole multiples."""
    items, ways = built.problem.ways[b].items, built.problem.ways[b].ways
    sizes = sorted({1 if item.fragment else item.size for item in items}, reverse=True)
    for size in sizes:
        load = Linear()
        for item, mine in zip(items, taken, strict=True):
            unit = 1 if item.fragment else item.size
            for variable in mine.variables if unit >= size else ():
                load.add(variable, unit // size)
        room = Linear()
        for way, variable in zip(ways, chosen, strict=True):
            room.add(variable, way.gpus // size)
        built.model.add(load.expression() <= room.expression())
    used, given = Linear(), Linear()
    for item, mine in zip(items, taken, strict=True):
        for variable in mine.variables:
            used.add(variable, 1 if item.fragment else item.size)
    for way, variable in zip(ways, chosen, strict=True):
        given.add(variable, way.gpus)
    built.model.add(used.expression() == given.expression())


def _pools(built: CountModel) -> None:
    """Parts of one zone and model add up to instances: inside each leaf group first, what is over across leaf groups."""
    problem, model = built.problem, built.model
    parts: defaultdict[PoolKey, defaultdict[int, Linear]] = defaultdict(lambda: defaultdict(Linear))
    for (b, i, g, zone), variable in built.part.items():
        domain = dict(problem.span_zones[g][b])[zone]
        key = (g, problem.ways[b].items[i].model, zone, domain)
        parts[key][problem.bins[b].leaf].add(variable)
    replicas = problem.request.replicas
    for key, leaves in parts.items():
        size = problem.request.groups[key[0]].gpus
        over = Linear()
        for leaf, mine in leaves.items():
            inside = built.pool_leaf[key, leaf] = model.new_int_var(0, replicas, "")
            if len(leaves) == 1:
                model.add(mine.expression() == size * inside)
                continue
            rest = built.rest[key, leaf] = model.new_int_var(0, size * replicas, "")
            model.add(mine.expression() == size * inside + rest)
            over.add(rest)
        if len(leaves) > 1:
            across = built.pool_zone[key] = model.new_int_var(0, replicas, "")
            model.add(over.expression() == size * across)


def _demand(built: CountModel) -> bool:
    supply = [Linear() for _ in built.problem.request.groups]
    for (_, _, g), variable in built.whole.items():
        supply[g].add(variable)
    for (key, _), variable in built.pool_leaf.items():
        supply[key[0]].add(variable)
    for key, variable in built.pool_zone.items():
        supply[key[0]].add(variable)
    if any(mine.empty for mine in supply):
        return False
    for mine in supply:
        built.model.add(mine.expression() == built.problem.request.replicas)
    return True


def group_variables(built: CountModel, g: int) -> dict[int, list[tuple[cp_model.IntVar, int]]]:
    """By bin: the variables that put GPUs of group g there, each with its upper bound."""
    found: defaultdict[int, list[tuple[cp_model.IntVar, int]]] = defaultdict(list)
    replicas, size = built.problem.request.replicas, built.problem.request.groups[g].gpus
    for (b, i, of), variable in built.whole.items():
        if of == g:
            room = built.problem.bins[b].most // built.problem.ways[b].items[i].size
            found[b].append((variable, min(replicas, room * built.problem.bins[b].count)))
    for (b, _, of, _), variable in built.part.items():
        if of == g:
            found[b].append((variable, min(size * replicas, built.problem.bins[b].most * built.problem.bins[b].count)))
    return found


def _group_zones(built: CountModel) -> None:
    """A whole group in one zone."""
    for g, zones in enumerate(built.problem.group_zones):
        if zones is None or len({zone for of_bin in zones.of_bin for zone in of_bin}) < 2:
            continue
        chosen = {
            zone: built.model.new_bool_var("") for zone in sorted({zone for of_bin in zones.of_bin for zone in of_bin})
        }
        built.model.add_exactly_one(chosen.values())
        for b, variables in group_variables(built, g).items():
            inside = cp_model.LinearExpr.sum([chosen[zone] for zone in zones.of_bin[b]])
            for variable, most in variables:
                built.model.add(variable <= most * inside)


def _apart(built: CountModel) -> None:
    """At most one instance of such a group in a leaf group or pod; on a node, the ways see to it."""
    for g, domains in apart_domains(built.problem).items():
        inside: defaultdict[int, Linear] = defaultdict(Linear)
        for (b, _, of), variable in built.whole.items():
            if of == g:
                inside[domains[built.problem.bins[b].leaf]].add(variable)
        for load in inside.values():
            built.model.add(load.expression() <= 1)


def _feeds(built: CountModel) -> None:
    """No more power than each feed has left."""
    for feed in built.problem.feeds:
        load = Linear()
        for (b, w), variable in built.ways.items():
            if built.problem.bins[b].nodes[0] in feed.nodes:
                load.add(variable, way_watts(built.problem, b, w))
        if not load.empty:
            built.model.add(load.expression() <= feed.left_w)


def within_feeds(problem: Problem, ways: Mapping[tuple[int, int], int]) -> bool:
    """Whether so many nodes of these bins used in these ways keep to the power budgets."""
    for feed in problem.feeds:
        watts = sum(n * way_watts(problem, b, w) for (b, w), n in ways.items() if problem.bins[b].nodes[0] in feed.nodes)
        if watts and watts > feed.left_w:
            return False
    return True


def way_watts(problem: Problem, b: int, w: int) -> int:
    """W of the GPUs that one node of bin b gives when it is used in way w."""
    shape, way = problem.bins[b].shape, problem.ways[b].ways[w]
    if not way.sets:
        return way.gpus * watts_of(shape.gpus[0])  # a uniform shape
    return sum(watts_of(shape.gpus[i]) for _, mask in way.sets for i in mask_indices(mask))


def _stage(built: CountModel, stage: StagePair) -> None:
    """As many instances of both stages in every zone: then each finds its neighbour in its own zone."""
    sides = [_in_zones(built, g, stage.zones) for g in (stage.first, stage.second)]
    for zone in sorted(sides[0].keys() | sides[1].keys()):
        built.model.add(sides[0][zone].expression() == sides[1][zone].expression())


def pool_homes(built: CountModel, g: int, zones: Zones) -> dict[PoolKey, int]:
    """The zone in which the instances of each pool of the group lie: where there are pools, zones do not overlap."""
    problem = built.problem
    return {
        (g, problem.ways[b].items[i].model, zone, dict(problem.span_zones[g][b])[zone]): zones.of_bin[b][0]
        for (b, i, of, zone) in built.part
        if of == g
    }


def _in_zones(built: CountModel, g: int, zones: Zones) -> defaultdict[int, Linear]:
    """By zone: the instances of group g that lie in it."""
    in_zone: defaultdict[int, Linear] = defaultdict(Linear)
    for (b, _, of), variable in built.whole.items():
        if of == g:
            _spread(built, variable, zones.of_bin[b], in_zone)
    home = pool_homes(built, g, zones)
    for (key, _), variable in built.pool_leaf.items():
        if key[0] == g:
            in_zone[home[key]].add(variable)
    for key, variable in built.pool_zone.items():
        if key[0] == g:
            in_zone[home[key]].add(variable)
    return in_zone


def _spread(
    built: CountModel, variable: cp_model.IntVar, zones: tuple[int, ...], in_zone: defaultdict[int, Linear]
) -> None:
    if len(zones) == 1:
        in_zone[zones[0]].add(variable)
        return
    shares = [built.model.new_int_var(0, built.problem.request.replicas, "") for _ in zones]
    built.model.add(cp_model.LinearExpr.sum(shares) == variable)
    for zone, share in zip(zones, shares, strict=True):
        in_zone[zone].add(share)


def term_expressions(built: CountModel) -> list[Linear]:
    """The objective's terms, in the order of Ruler.names, constants left out. Adds the variables that say what is touched."""
    problem = built.problem
    across_leaves, across_nodes = Linear(), Linear()
    for variable in built.pool_zone.values():
        across_leaves.add(variable)
        across_nodes.add(variable)
    for variable in built.pool_leaf.values():
        across_nodes.add(variable)
    terms = [_preference(built), *([across_leaves] if problem.ruler.levels else []), across_nodes]
    domains = {level: _touched(built, level) for level in problem.ruler.levels}
    for level in reversed(problem.ruler.levels):
        job, groups = Linear(), Linear()
        for (g, _), variable in domains[level].items():
            (job if g < 0 else groups).add(variable)
        # With one group, its domains are the job's.
        groups = groups if len(problem.request.groups) > 1 else job
        terms += [job, groups if problem.chains is None else _spread_of_chains(built, level, groups)]
    nodes, strength, cells, left, missing, cut = (Linear() for _ in range(6))
    for (b, w), variable in built.ways.items():
        way = problem.ways[b].ways[w]
        nodes.add(variable)
        for term, factor in (
            (strength, way.strength),
            (cells, way.cells),
            (left, way.left),
            (missing, way.missing),
            (cut, way.cut),
        ):
            term.add(variable, factor)
    for (b, i, _), variable in built.whole.items():
        missing.add(variable, problem.ways[b].items[i].missing)
    left_in = []
    for level in problem.ruler.levels:
        free: defaultdict[int, int] = defaultdict(int)
        for leaf, gpus in enumerate(problem.leaf_free):
            free[int(problem.snapshot.topology.domains[level][leaf])] += gpus
        term = Linear()
        for (g, domain), variable in domains[level].items():
            term.add(variable, free[domain] if g < 0 else 0)
        left_in.append(term)
    return [*terms, nodes, strength, cells, left, *left_in, missing, cut, *([_cost(built)] if problem.ruler.cost else [])]


def _cost(built: CountModel) -> Linear:
    term, cost = Linear(), built.problem.ruler.cost
    for (b, i, _), variable in built.whole.items():
        item = built.problem.ways[b].items[i]
        term.add(variable, item.size * cost[item.model])
    for (b, i, _, _), variable in built.part.items():
        term.add(variable, cost[built.problem.ways[b].items[i].model])
    return term


def _spread_of_chains(built: CountModel, level: int, groups: Linear) -> Linear:
    """The spread of stages and chains: at least (see chains.py), or exactly, where identities.py has told the replicas apart."""
    chains, term = built.problem.chains, Linear()
    assert chains is not None
    replicas = chains.asked.replicas
    if level in built.chain_spread:
        for variable in built.chain_spread[level].variables:
            term.add(variable, chains.length)
    elif level in chains.whole:  # whole replicas: what they add is the same wherever they are
        replicas *= chains.length
    elif chains.folded:
        _rectangles(built, level, term)
        return term
    else:
        _most_of_a_stage(built, level, term)
    for variable in groups.variables:
        term.add(variable, replicas)
    return term


def _gpus_inside(built: CountModel, g: int, level: int) -> dict[int, Linear]:
    """By domain of the level: GPUs of the group there."""
    problem = built.problem
    domain = problem.snapshot.topology.domains[level]
    inside: defaultdict[int, Linear] = defaultdict(Linear)
    for (b, _, of), variable in built.whole.items():
        if of == g:
            inside[int(domain[problem.bins[b].leaf])].add(variable, problem.request.groups[g].gpus)
    for (b, _, of, _), variable in built.part.items():
        if of == g:
            inside[int(domain[problem.bins[b].leaf])].add(variable)
    return dict(sorted(inside.items()))


def _rectangles(built: CountModel, level: int, term: Linear) -> None:
    """Folded stages: in every domain a rectangle of the grid that has room for what lies there."""
    chains, size = built.problem.chains, built.problem.request.groups[0].gpus
    assert chains is not None
    for gpus in _gpus_inside(built, 0, level).values():
        room = Linear()
        for n, least in rectangles(chains.asked.replicas, chains.length):
            variable = built.model.new_bool_var("")
            room.add(variable, n * size)
            term.add(variable, least)
        built.model.add(gpus.expression() <= room.expression())


def _most_of_a_stage(built: CountModel, level: int, term: Linear) -> None:
    """A domain is touched by as many replicas as it has instances of any one stage, at least."""
    problem, chains = built.problem, built.problem.chains
    assert chains is not None
    replicas_in: dict[int, cp_model.IntVar] = {}
    for g in chains.stages:
        for domain, gpus in _gpus_inside(built, g, level).items():
            if domain not in replicas_in:
                replicas_in[domain] = built.model.new_int_var(0, problem.request.replicas, "")
                term.add(replicas_in[domain], chains.length)
            built.model.add(gpus.expression() <= problem.request.groups[g].gpus * replicas_in[domain])


def _preference(built: CountModel) -> Linear:
    term, groups = Linear(), built.problem.request.groups
    for (b, i, g), variable in built.whole.items():
        term.add(variable, groups[g].gpus * preference_step(groups[g], built.problem.ways[b].items[i].spec))
    for (b, i, g, _), variable in built.part.items():
        term.add(variable, preference_step(groups[g], built.problem.ways[b].items[i].spec))
    return term


def _touched(built: CountModel, level: int) -> dict[tuple[int, int], cp_model.IntVar]:
    """By (group, domain of the level), the job being group -1: 1 where something lies there."""
    problem, model = built.problem, built.model
    domain_of = [int(domain) for domain in problem.snapshot.topology.domains[level]]
    several = len(problem.request.groups) > 1
    found: dict[tuple[int, int], cp_model.IntVar] = {}
    for g in range(len(problem.request.groups)):
        inside: defaultdict[int, list[tuple[cp_model.IntVar, int]]] = defaultdict(list)
        for b, variables in group_variables(built, g).items():
            inside[domain_of[problem.bins[b].leaf]] += variables
        key = g if several else -1
        for domain, variables in sorted(inside.items()):
            mine = found[key, domain] = model.new_bool_var("")
            for variable, most in variables:
                model.add(variable <= most * mine)
            _cap(built, g, variables, mine)
    if several:
        for domain in sorted({domain for _, domain in found}):
            job = found[-1, domain] = model.new_bool_var("")
            for g in range(len(problem.request.groups)):
                if (g, domain) in found:
                    model.add_implication(found[g, domain], job)
    return found


def _cap(built: CountModel, g: int, variables: list[tuple[cp_model.IntVar, int]], touched: cp_model.IntVar) -> None:
    """No more of the group in a domain than the group has, and that only where it is touched: what makes the bound tight."""
    group, replicas = built.problem.request.groups[g], built.problem.request.replicas
    if group.gpus == 1 or not built.part:
        most = min(replicas, sum(upper for _, upper in variables))
        built.model.add(cp_model.LinearExpr.sum([variable for variable, _ in variables]) <= most * touched)
