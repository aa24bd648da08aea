"""Refusals in people's words: what was asked, the best there is, and where. Counts only; claims nothing that needs a search."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from fmsched.model.fabric import UNREACHABLE_HOPS
from fmsched.model.hardware import NodeShape
from fmsched.model.job import GroupKind, Request, ResourceGroup
from fmsched.model.placement import Why
from fmsched.model.snapshot import Snapshot
from fmsched.place.atoms import Atom, Constraint
from fmsched.place.hosts import free_masks, mask_indices, static_of
from fmsched.place.links import left_on, talks_max
from fmsched.place.nodes import excluded, host_held
from fmsched.place.nvlink import own
from fmsched.place.power import drawn, watts_of
from fmsched.place.relations import hop_cap
from fmsched.place.ways import eligible
from fmsched.topology.routes import routes_of

APART_PLACES = {"node": "node", "leaf": "leaf group", "pod": "pod"}
NAMES_MAX = 4  # names in one phrase; the rest is counted


def gpus(count: int) -> str:
    return f"{count} GPU" if count == 1 else f"{count} GPUs"


def listed(names: Sequence[str]) -> str:
    """At most NAMES_MAX names, then how many more."""
    more = len(names) - NAMES_MAX
    return ", ".join(names[:NAMES_MAX]) + (f" and {more} more" if more > 0 else "")


def title(request: Request, atom: Atom) -> str:
    """The constraint's name. An ExpertParallel instance that may not span is bound to a node, not to NVLink."""
    if atom.constraint is Constraint.DOMAIN and request.groups[atom.group].kind is GroupKind.EXPERT_PARALLEL:
        return "one node"
    return str(atom.constraint)


def too_small(snapshot: Snapshot, request: Request, fewer: int) -> Why:
    """The whole cluster cannot hold the job, whatever is lifted."""
    total = Counter(spec.family for node in snapshot.topology.nodes for spec in node.shape.gpus)
    best = ", ".join(f"{count} {family.upper()}" for family, count in sorted(total.items())) or "no GPUs"
    where = "in the whole cluster" + ("; one instance never mixes GPU types" if len(total) > 1 else "")
    return Why("GPU count", "", _sum(request), best, where, _less(request, fewer) if fewer else "")


def fewer_replicas(request: Request, fewer: int) -> Why:
    """The count of replicas is part of every conflict; the most that fit now are worth telling."""
    best = f"{fewer} replicas fit" if fewer > 1 else "1 replica fits"
    return Why("replicas", "", _sum(request), best, "", _less(request, fewer))


def _less(request: Request, fewer: int) -> str:
    less = request.replicas - fewer
    if 0 < less <= request.spares:
        return f"{less} fewer spare{'s' if less > 1 else ''}"
    if request.spares:
        less -= request.spares
        return f"no spares and {less} fewer replica{'s' if less > 1 else ''}"
    return f"{less} fewer replica{'s' if less > 1 else ''}"


def _sum(request: Request) -> str:
    parts = " + ".join(str(group.gpus) for group in request.groups)
    if len(request.groups) > 1:
        parts = f"({parts})"
    return f"{request.replicas} × {parts} = {gpus(request.gpus)}" if request.replicas > 1 else gpus(request.gpus)


def describe(snapshot: Snapshot, request: Request, atom: Atom) -> tuple[str, str, str]:
    """(asked, best, where) of one constraint."""
    match atom.constraint:
        case Constraint.FREE:
            return _free(snapshot, request)
        case Constraint.HEALTHY:
            sick = sorted(snapshot.unfit)
            where = listed([f"{gpu}: {snapshot.unfit[gpu]}" for gpu in sick])
            return f"{_sum(request)} healthy", f"{gpus(len(sick))} unhealthy", where
        case Constraint.OPEN:
            shut = sorted(name for name in snapshot.closed if name in snapshot.topology.index)
            return (
                f"{_sum(request)} on open nodes",
                f"{len(shut)} node{'s' if len(shut) > 1 else ''} closed",
                listed([f"{n}: {snapshot.closed[n]}" for n in shut]),
            )
        case Constraint.POWER:
            return _power(snapshot, request)
        case Constraint.NODE_LIST:
            return _lists(snapshot, request)
        case Constraint.CPUS | Constraint.HOST_MEMORY:
            return _host(snapshot, request, atom.constraint)
        case Constraint.FREE_LINKS | Constraint.BANDWIDTH:
            return _links(snapshot, request, atom)
        case Constraint.AVOIDED:
            names = sorted(name for name in request.avoid_nodes if name in snapshot.topology.index)
            return "nodes where an earlier attempt could be prepared", f"{len(names)} nodes could not", listed(names)
        case _:
            return _of_group(snapshot, request.groups[atom.group], request.replicas, atom.constraint)


def _free(snapshot: Snapshot, request: Request) -> tuple[str, str, str]:
    families = list(dict.fromkeys(family for group in request.groups for family in group.families))
    if not all(group.families for group in request.groups):
        families = []
    static = static_of(snapshot.topology)
    total: Counter[str] = Counter()
    for shape, nodes in Counter(static.shape_of).items():
        for spec in static.shapes[shape].gpus:
            if not families or spec.family in families:
                total[spec.family] += nodes
    free: Counter[str] = Counter()
    for (shape, mask), nodes in Counter(zip(static.shape_of, free_masks(snapshot), strict=True)).items():
        for i in mask_indices(mask):
            if (family := static.shapes[shape].gpus[i].family) in total:
                free[family] += nodes
    best = (
        ", ".join(f"{free[family]} of {count} {family.upper()} free" for family, count in sorted(total.items()))
        or "no such GPU"
    )
    holders: Counter[str] = Counter()
    on: dict[str, dict[str, None]] = {}
    fitting = [tuple(not families or spec.family in families for spec in shape.gpus) for shape in static.shapes]
    index, shape_of = snapshot.topology.index, static.shape_of
    for gpu, job in snapshot.held.items():
        node = index.get(gpu.node)
        if node is not None and fitting[shape_of[node]][gpu.index]:
            holders[job] += 1
            on.setdefault(job, {})[gpu.node] = None
    jobs = [
        f"job {job} holds {count} on {listed(sorted(on[job]))}"
        for job, count in sorted(holders.items(), key=lambda entry: (-entry[1], entry[0]))
        if count
    ]
    sick = [f"{gpu} is unhealthy: {reason}" for gpu, reason in sorted(snapshot.unfit.items())]
    return f"{_sum(request)} free", best, "; ".join(part for part in (listed(jobs), listed(sick)) if part)


def _lists(snapshot: Snapshot, request: Request) -> tuple[str, str, str]:
    known = {node.name for node in snapshot.topology.nodes}
    out = excluded(snapshot, replace(request, avoid_nodes=frozenset()))
    left = len(known) - len(out & known)
    asked = f"{_sum(request)} on the nodes that the manifest's lists allow"
    return asked, f"{left} of {len(known)} nodes allowed", f"not allowed: {listed(sorted(out & known))}"


def _host(snapshot: Snapshot, request: Request, constraint: Constraint) -> tuple[str, str, str]:
    cpus = constraint is Constraint.CPUS
    unit, position = ("CPUs", 0) if cpus else ("GB", 1)
    each = request.cpus_per_gpu if cpus else request.memory_gb_per_gpu
    held, rows = host_held(snapshot), []
    for node in snapshot.topology.nodes:
        has = node.shape.cpus if cpus else node.shape.memory_gb
        if has:
            rows.append((has - held.get(node.name, (0.0, 0.0))[position], has, node.name))
    most = max(rows, key=lambda row: row[0], default=(0.0, 0.0, ""))
    return f"{each:g} {unit} for each of {gpus(request.gpus)}", f"{most[0]:g} of {most[1]:g} {unit} left", f"on {most[2]}"


def _power(snapshot: Snapshot, request: Request) -> tuple[str, str, str]:
    left = [(b, b.watts - drawn(snapshot, b, snapshot.held)) for b in snapshot.power]
    most = max(watts_of(spec) for node in snapshot.topology.nodes for spec in node.shape.gpus)
    asked = f"power for {_sum(request)}, up to {most} W each"
    rows = [f"{b.name}: {watts:g} of {b.watts:g} W left" for b, watts in sorted(left, key=lambda e: (-e[1], e[0].name))]
    return asked, listed(rows), ""


def _links(snapshot: Snapshot, request: Request, atom: Atom) -> tuple[str, str, str]:
    """The links with least left, and who has the rest."""
    _, total = talks_max(request, spanning=True)
    routes, left = routes_of(snapshot.topology), left_on(snapshot)
    order = sorted(range(len(routes.links)), key=lambda i: (left[i], routes.links[i]))
    scarce = [i for i in order if left[i] < total][:NAMES_MAX] or order[:1]
    rows = [f"{'–'.join(routes.links[i])}: {max(0.0, left[i]):g} of {routes.gbps[i]:g} Gb/s left" for i in scarce]
    rates = sorted({group.reach.reserve_gbps for group in request.groups if group.reach is not None} - {0.0})
    if atom.group >= 0 and (reach := request.groups[atom.group].reach) is not None:
        rates = [reach.reserve_gbps]
    asked = f"{' and '.join(f'{rate:g}' for rate in rates)} Gb/s on every link crossed"
    takers: dict[str, float] = {}
    for job, links in snapshot.links_held.items():
        takers[f"job {job} reserves"] = max((links.get(routes.links[i], 0.0) for i in scarce), default=0.0)
    takers["other traffic is"] = max((snapshot.links_measured.get(routes.links[i], 0.0) for i in scarce), default=0.0)
    who = [f"{name} {gbps:g} Gb/s" for name, gbps in sorted(takers.items(), key=lambda e: (-e[1], e[0])) if gbps > 0]
    return asked, listed(rows), listed(who)


def _of_group(snapshot: Snapshot, group: ResourceGroup, replicas: int, constraint: Constraint) -> tuple[str, str, str]:
    topology = snapshot.topology
    shapes = list(dict.fromkeys(node.shape for node in topology.nodes))
    wanted = f"{replicas} × {gpus(group.gpus)}" if replicas > 1 else gpus(group.gpus)
    match constraint:
        case Constraint.TYPE:
            return f"{wanted} of type {_types(group)}", *_families(snapshot, group)
        case Constraint.MEMORY:
            biggest = max((spec for shape in shapes for spec in shape.gpus), key=lambda spec: spec.memory_gb)
            return f"{group.min_memory_gb:g} GB a GPU", f"{biggest.memory_gb:g} GB", f"on {biggest.family.upper()}"
        case Constraint.NVLINK:
            pairs = [(max(max(row) for row in shape.nvlink), shape.name) for shape in shapes if len(shape.gpus) > 1]
            value, name = max(pairs, default=(0.0, ""))
            asked = f"{group.min_nvlink_gbytes_per_s:g} GB/s between every two of {gpus(group.gpus)}"
            if value < group.min_nvlink_gbytes_per_s:
                return asked, f"a pair has {value:g} GB/s", f"in {name}" if name else ""
            roomy = sum(count >= group.gpus for count, _ in _fitting(snapshot, group))
            return asked, f"{roomy} node{'s have' if roomy != 1 else ' has'} {gpus(group.gpus)} free that fit", ""
        case Constraint.DOMAIN:
            most, name = _largest_node(snapshot, group)
            near = "on one node" if group.kind is GroupKind.EXPERT_PARALLEL else "in one NVLink domain"
            return f"{gpus(group.gpus)} {near}", f"{gpus(most)} fit for it", f"on {name}" if name else ""
        case Constraint.HOPS:
            return _hops(snapshot, group, wanted)
        case Constraint.LINKS:
            return f"{group.min_nvlink_links} NVLink links from each of {gpus(group.gpus)} to the others", *_own(
                shapes, True
            )
        case Constraint.AGGREGATE:
            asked = f"{group.min_nvlink_aggregate_gbytes_per_s:g} GB/s of NVLink among {gpus(group.gpus)}"
            return asked, *_own(shapes, False)
        case Constraint.APART:
            return _apart(snapshot, group, replicas)
        case _:
            rate = max(
                (shape.link_gbps for shape in shapes if any(eligible(group, spec) for spec in shape.gpus)), default=0.0
            )
            least = group.reach.min_link_gbps if group.reach else 0.0
            return f"{least:g} Gb/s between nodes", f"ports of {rate:g} Gb/s, the weakest link on the way counts", ""


def _own(shapes: Sequence[NodeShape], links: bool) -> tuple[str, str]:
    """The most NVLink that a GPU of any shape has to the others of its node."""
    best, name = 0.0, ""
    for shape in shapes:
        for gpu in range(len(shape.gpus)):
            found = own(shape.gpus[gpu], [shape.nvlink[gpu][j] for j in range(len(shape.gpus)) if j != gpu])
            figure = found.links if links else found.gbytes_per_s
            if figure > best:
                best, name = figure, shape.name
    return f"a GPU has {best:g} {'links' if links else 'GB/s'} to the others of its node", f"in {name}" if name else ""


def _apart(snapshot: Snapshot, group: ResourceGroup, replicas: int) -> tuple[str, str, str]:
    topology, place = snapshot.topology, APART_PLACES[group.apart]
    nodes = {topology.index[name] for count, name in _fitting(snapshot, group) if count >= group.gpus}
    level = topology.domains[min(1, len(topology.domains) - 1) if group.apart == "pod" else 0]
    found = len(nodes if group.apart == "node" else {int(level[topology.leaf_of[node]]) for node in nodes})
    have = f"{found} {place} has" if found == 1 else f"{found} {place}s have"
    room = f"a node with {gpus(group.gpus)} free" if group.apart != "node" else f"{gpus(group.gpus)} free"
    return f"{replicas} instances, each on one node, no two in one {place}", f"{have} {room}", ""


def _families(snapshot: Snapshot, group: ResourceGroup) -> tuple[str, str]:
    of: dict[str, list[str]] = {}
    right = 0
    for node, mask in zip(snapshot.topology.nodes, free_masks(snapshot), strict=True):
        right += sum(node.shape.gpus[i].family in group.families for i in mask_indices(mask))
        for family in sorted({spec.family for spec in node.shape.gpus} - set(group.families)):
            of.setdefault(family, []).append(node.name)
    where = "; ".join(
        f"{listed(names)} ha{'ve' if len(names) > 1 else 's'} {family.upper()}" for family, names in sorted(of.items())
    )
    return f"{right} free {_types(group)}", where


def _types(group: ResourceGroup) -> str:
    return " or ".join(family.upper() for family in group.families)


def _largest_node(snapshot: Snapshot, group: ResourceGroup) -> tuple[int, str]:
    return max(_fitting(snapshot, group), key=lambda entry: entry[0], default=(0, ""))


def _fitting(snapshot: Snapshot, group: ResourceGroup) -> list[tuple[int, str]]:
    """(free GPUs that fit the group, node), for every node that has any."""
    found = []
    for node, mask in zip(snapshot.topology.nodes, free_masks(snapshot), strict=True):
        count = sum(eligible(group, node.shape.gpus[i]) for i in mask_indices(mask))
        if count:
            found.append((count, node.name))
    return found


def _hops(snapshot: Snapshot, group: ResourceGroup, wanted: str) -> tuple[str, str, str]:
    """The most free, fitting GPUs within the cap of one leaf group, that leaf group included."""
    topology, reach = snapshot.topology, group.reach
    cap = hop_cap(reach) if reach is not None else UNREACHABLE_HOPS
    if cap < 1:
        most, name = _largest_node(snapshot, group)
        return f"{wanted} on one node", f"{most} free {_types(group) or 'fitting GPUs'}", f"on {name}" if name else ""
    by_leaf = [0] * len(topology.leaves)
    for node, leaf, mask in zip(topology.nodes, topology.leaf_of, free_masks(snapshot), strict=True):
        by_leaf[int(leaf)] += sum(eligible(group, node.shape.gpus[i]) for i in mask_indices(mask))
    within = [
        sum(n for other, n in enumerate(by_leaf) if topology.hops[leaf, other] <= cap) for leaf in range(len(by_leaf))
    ]
    leaf = max(range(len(within)), key=lambda at: (within[at], -at))
    near = {other for other in range(len(by_leaf)) if topology.hops[leaf, other] <= cap}
    nodes = sum(int(topology.leaf_of[topology.index[name]]) in near for _, name in _fitting(snapshot, group))
    asked = (
        f"{wanted} with a path between them"
        if cap >= UNREACHABLE_HOPS - 1
        else f"{wanted}, at most {cap} switch{'es' if cap != 1 else ''} apart"
    )
    kind = _types(group) or "fitting GPUs"
    name = topology.leaves[leaf]
    place = f"within {cap} switches of {name}" if cap < UNREACHABLE_HOPS - 1 else f"in the fabric of {name}"
    if cap <= 1:
        place = f"under {name}"
    return asked, f"{within[leaf]} free {kind} on {nodes} node{'s' if nodes != 1 else ''}", place
