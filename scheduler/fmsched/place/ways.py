"""The ways in which one node can be used by a request: what goes where inside a node, before it is asked on which node.

An item is something that takes GPUs of one node: a whole instance of a group, or a fragment of an instance that spans nodes.
Groups whose items are alike (same size, same valid GPU sets) share an item. A way says how many of each item a node carries,
on which GPUs, and what that costs in the objective's terms.

Uniform shapes with sizes that divide one another need no enumeration: a way is then only a number of GPUs, and items fit
together exactly when, for every size, the items at least that big fit into the whole multiples of that size (first fit by
falling size never fails on such sizes). Everything else is enumerated over valid GPU sets, once per kind of node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

from fmsched.model.hardware import GpuSpec, NodeShape
from fmsched.model.job import ResourceGroup
from fmsched.place.nvlink import set_enough
from fmsched.place.objective import Ruler, cells_lost, pair_gbytes_per_s, pairs_gbytes_per_s
from fmsched.place.relations import nvlink_component, stays_in_domain

# GPU sets remembered while the ways of one node are enumerated. 16 GPUs with uneven links and single-GPU items have 65,536
# sets; beyond the limit the set with the better links is kept for each count, and the answer is no longer called proven.
SETS_MAX = 40_000


@dataclass(frozen=True, slots=True)
class Item:
    """Takes `size` GPUs (a fragment: up to size) of one model. `sets` are bit masks; empty in uniform shapes, where any will do."""

    size: int
    fragment: bool
    model: str
    spec: GpuSpec
    groups: tuple[int, ...]
    missing: int  # NVLink GB/s missing inside a whole instance, in uniform shapes
    sets: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Way:
    """One use of a node. counts[i]: how many of item i (a fragment: how many GPUs); empty where any mixture of `gpus` GPUs fits."""

    gpus: int
    strength: int
    cells: int
    left: int
    missing: int
    cut: int
    counts: tuple[int, ...] = ()
    sets: tuple[tuple[int, int], ...] = ()  # (item, GPU mask) of what is carried


@dataclass(frozen=True, slots=True)
class Ways:
    items: tuple[Item, ...]
    ways: tuple[Way, ...]  # at least one GPU each
    chain: bool  # sizes divide one another and any GPU will do: Way.counts is empty
    exact: bool = True


def eligible(group: ResourceGroup, spec: GpuSpec) -> bool:
    """Whether a GPU may carry a rank of the group, whatever stands beside it."""
    if group.models and spec.model not in group.models:
        return False
    return (not group.families or spec.family in group.families) and spec.memory_gb >= group.min_memory_gb


def ways_of(
    shape: NodeShape,
    uniform: bool,
    free: tuple[int, ...],
    domain: bool,
    groups: Sequence[ResourceGroup],
    spans: Sequence[bool],
    ruler: Ruler,
    most: int,
) -> Ways:
    """All ways to use a node of `shape` with `free` GPUs.

    domain    the node belongs to a multi-node NVLink domain, so that its GPUs lie in one domain whatever their own links
    spans     by group: whether instances that span nodes may take GPUs here
    most      GPUs that it can give
    """
    if uniform:
        return _uniform_ways(shape, free, domain, groups, spans, ruler, most)
    return _uneven_ways(shape, free, domain, groups, spans, ruler, most)


def _uniform_ways(
    shape: NodeShape,
    free: tuple[int, ...],
    domain: bool,
    groups: Sequence[ResourceGroup],
    spans: Sequence[bool],
    ruler: Ruler,
    most: int,
) -> Ways:
    spec = shape.gpus[0]
    pair = shape.nvlink[0][1] if len(shape.gpus) > 1 else 0.0
    sizes: dict[tuple[int, bool, int], list[int]] = {}
    for g, group in enumerate(groups):
        linked = group.gpus == 1 or (
            pair >= group.min_nvlink_gbytes_per_s
            and set_enough(shape, range(min(group.gpus, len(shape.gpus))), group)
            and (pair > 0 or domain or not stays_in_domain(group))
        )
        if not eligible(group, spec):
            continue
        if linked and group.gpus <= most:
            sizes.setdefault((group.gpus, False, g if group.apart else -1), []).append(g)
        if spans[g]:
            # GPUs that are not linked to one another can still each be linked to other nodes: one at most, then.
            together = pair >= group.min_nvlink_gbytes_per_s
            sizes.setdefault((min(group.gpus - 1, most) if together else 1, True, -1 if together else g), []).append(g)
    short = ruler.best_pair - (pair_gbytes_per_s(shape, 0, 1) if len(shape.gpus) > 1 else 0)
    items = tuple(
        Item(size, fragment, spec.model, spec, tuple(of), 0 if fragment else short * size * (size - 1) // 2)
        for (size, fragment, _), of in sorted(sizes.items(), reverse=True)
    )
    whole = sorted({item.size for item in items if not item.fragment} | {1 for item in items if item.fragment})
    chain = all(b % a == 0 for a, b in pairwise(whole)) and not any(group.apart for group in groups)
    limited = any(item.fragment and item.size < min(most, *(groups[g].gpus - 1 for g in item.groups)) for item in items)
    if not items:
        return Ways((), (), chain=True)
    if chain and not limited:
        ways = tuple(_uniform_way(shape, free, taken, ruler) for taken in range(min(whole), most + 1))
        return Ways(items, ways, chain=True)
    # Fragments of unlinked GPUs: two instances could take one GPU each, which is not looked at.
    return Ways(items, _mixtures(shape, free, items, groups, ruler, most), chain=False, exact=not limited)


def _uniform_way(shape: NodeShape, free: tuple[int, ...], taken: int, ruler: Ruler, counts: tuple[int, ...] = ()) -> Way:
    pair = pair_gbytes_per_s(shape, 0, 1) if len(shape.gpus) > 1 else 0
    after = len(free) - taken
    cut = pair * (len(free) * (len(free) - 1) - after * (after - 1)) // 2
    strength = taken * ruler.strength[shape.gpus[0].model]
    return Way(taken, strength, cells_lost(len(shape.gpus), len(free), taken), after, 0, cut, counts)


def _mixtures(
    shape: NodeShape,
    free: tuple[int, ...],
    items: tuple[Item, ...],
    groups: Sequence[ResourceGroup],
    ruler: Ruler,
    most: int,
) -> tuple[Way, ...]:
    found: list[tuple[int, ...]] = [()]
    for item in items:
        step = 1 if item.fragment else item.size
        top = item.size * len(item.groups) if item.fragment else most
        top = item.size if _one_only(item, groups) else top
        found = [(*counts, n) for counts in found for n in range(min(top, most - _gpus(items, counts)) // step + 1)]
    mixed = sorted((counts for counts in found if any(counts)), key=lambda counts: (_gpus(items, counts), counts))
    return tuple(_uniform_way(shape, free, _gpus(items, counts), ruler, counts) for counts in mixed)


def _one_only(item: Item, groups: Sequence[ResourceGroup]) -> bool:
    """Whether a node may carry one of the item at most: whatever keeps apart shares no node."""
    return not item.fragment and any(groups[g].apart for g in item.groups)


def _gpus(items: Sequence[Item], counts: Sequence[int]) -> int:
    return sum(n * (1 if item.fragment else item.size) for item, n in zip(items, counts, strict=False))


def _uneven_ways(
    shape: NodeShape,
    free: tuple[int, ...],
    domain: bool,
    groups: Sequence[ResourceGroup],
    spans: Sequence[bool],
    ruler: Ruler,
    most: int,
) -> Ways:
    found: dict[tuple[int, bool, str, int, tuple[int, ...]], list[int]] = {}
    exact = True
    for g, group in enumerate(groups):
        for model in dict.fromkeys(shape.gpus[i].model for i in free):
            mine = tuple(i for i in free if shape.gpus[i].model == model and eligible(group, shape.gpus[i]))
            sets = _whole_sets(shape, mine, group, domain)
            if sets:
                found.setdefault((group.gpus, False, model, g if group.apart else -1, sets), []).append(g)
            pieces = _fragment_sets(shape, mine, group) if spans[g] else ()
            if pieces:
                # Each group has its own: a fragment is one set, and two groups' fragments are two.
                found[min(group.gpus - 1, len(mine)), True, model, g, pieces] = [g]
                exact = exact and (
                    group.min_nvlink_gbytes_per_s <= 0 or _linked(shape, mine, group.min_nvlink_gbytes_per_s)
                )
    items = tuple(
        Item(size, fragment, model, _spec_of(shape, model), tuple(of), 0, sets)
        for (size, fragment, model, _, sets), of in sorted(found.items(), key=lambda entry: (-entry[0][0], entry[0][1:]))
    )
    carried, complete = _enumerate(shape, items, ruler)
    for g in (g for g, group in enumerate(groups) if group.apart):
        its = [number for number, item in enumerate(items) if item.groups == (g,) and not item.fragment]
        carried = {key: value for key, value in carried.items() if sum(key[0][number] for number in its) < 2}
    ways = _best_ways(shape, free, items, carried, ruler, most)
    return Ways(items, ways, chain=False, exact=exact and complete)


def _spec_of(shape: NodeShape, model: str) -> GpuSpec:
    return next(spec for spec in shape.gpus if spec.model == model)


def _linked(shape: NodeShape, gpus: Sequence[int], asked: float) -> bool:
    return all(shape.nvlink[i][j] >= asked and shape.nvlink[j][i] >= asked for i, j in combinations(gpus, 2))


def _whole_sets(shape: NodeShape, gpus: tuple[int, ...], group: ResourceGroup, domain: bool) -> tuple[int, ...]:
    pools: list[tuple[int, ...]] = [gpus]
    if stays_in_domain(group) and not domain:
        components = dict.fromkeys(nvlink_component(shape, i) for i in gpus)
        pools = [tuple(i for i in gpus if i in component) for component in components]
    asked = group.min_nvlink_gbytes_per_s
    return tuple(
        sum(1 << i for i in chosen)
        for pool in pools
        for chosen in combinations(pool, group.gpus)
        if (asked <= 0 or _linked(shape, chosen, asked)) and set_enough(shape, chosen, group)
    )


def _fragment_sets(shape: NodeShape, gpus: tuple[int, ...], group: ResourceGroup) -> tuple[int, ...]:
    asked = group.min_nvlink_gbytes_per_s
    return tuple(
        sum(1 << i for i in chosen)
        for size in range(1, min(group.gpus - 1, len(gpus)) + 1)
        for chosen in combinations(gpus, size)
        if asked <= 0 or _linked(shape, chosen, asked)
    )


Carried = tuple[tuple[int, int], ...]  # (item, GPU mask) of each thing on the node


def _enumerate(
    shape: NodeShape, items: tuple[Item, ...], ruler: Ruler
) -> tuple[dict[tuple[tuple[int, ...], int], tuple[int, Carried]], bool]:
    """By (counts, GPUs used): the least NVLink that is missing, and what is carried where. Also: whether all sets were kept."""
    states: dict[tuple[tuple[int, ...], int], tuple[int, Carried]] = {((0,) * len(items), 0): (0, ())}
    complete = True
    for number, item in enumerate(items):
        short = {gpus: 0 if item.fragment else _short(shape, gpus, ruler) for gpus in item.sets}
        layer = states
        while layer:  # ends: each round takes GPUs that are then used
            grown: dict[tuple[tuple[int, ...], int], tuple[int, Carried]] = {}
            for (counts, used), (missing, carried) in layer.items():
                for gpus in item.sets:
                    if gpus & used:
                        continue
                    n = counts[number] + (gpus.bit_count() if item.fragment else 1)
                    key = (*counts[:number], n, *counts[number + 1 :]), used | gpus
                    value = missing + short[gpus], (*carried, (number, gpus))
                    if key not in grown or value < grown[key]:
                        grown[key] = value
            states = states | grown
            layer = {} if item.fragment else grown
            if len(states) > SETS_MAX:
                complete = False
                states = _thinned(states)
                layer = {key: value for key, value in layer.items() if key in states}
    return states, complete


def _short(shape: NodeShape, gpus: int, ruler: Ruler) -> int:
    chosen = [i for i in range(gpus.bit_length()) if gpus >> i & 1]
    return sum(ruler.best_pair - pair_gbytes_per_s(shape, i, j) for i, j in combinations(chosen, 2))


def _thinned(
    states: Mapping[tuple[tuple[int, ...], int], tuple[int, Carried]],
) -> dict[tuple[tuple[int, ...], int], tuple[int, Carried]]:
    """The best SETS_MAX // 2 by missing NVLink, and the best of each count whatever its rank."""
    order = sorted(states.items(), key=lambda entry: (entry[1][0], entry[0]))
    kept = dict(order[: SETS_MAX // 2])
    seen: set[tuple[int, ...]] = set()
    for (counts, used), value in order:
        if counts not in seen:
            seen.add(counts)
            kept[counts, used] = value
    return kept


def _best_ways(
    shape: NodeShape,
    free: tuple[int, ...],
    items: tuple[Item, ...],
    carried: Mapping[tuple[tuple[int, ...], int], tuple[int, Carried]],
    ruler: Ruler,
    most: int,
) -> tuple[Way, ...]:
    sizes = {spec.model: sum(other.model == spec.model for other in shape.gpus) for spec in shape.gpus}
    before = {model: sum(shape.gpus[i].model == model for i in free) for model in sizes}
    whole = pairs_gbytes_per_s(shape, free)
    best: dict[tuple[int, ...], tuple[tuple[int, ...], Way]] = {}
    for (counts, used), (missing, sets) in carried.items():
        if used == 0 or used.bit_count() > most:
            continue
        gpus = [i for i in free if used >> i & 1]
        taken = {model: sum(shape.gpus[i].model == model for i in gpus) for model in sizes}
        cells = sum(cells_lost(sizes[model], before[model], n) for model, n in taken.items() if n)
        strength = sum(ruler.strength[model] * n for model, n in taken.items())
        cut = whole - pairs_gbytes_per_s(shape, (i for i in free if not used >> i & 1))
        left = len(free) - len(gpus)
        cost = (strength, cells, left, missing, cut, used)
        if counts not in best or cost < best[counts][0]:
            best[counts] = cost, Way(len(gpus), strength, cells, left, missing, cut, counts, sets)
    return tuple(way for _, (_, way) in sorted(best.items(), key=lambda entry: entry[0]))
