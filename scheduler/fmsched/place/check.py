"""Is this placement allowed? Naive, slow, obviously right; shares no search with solve. Tests, commit and simulation rely on it.

One small function per hard rule; each looks at every GPU, or every pair, and says what it found and what is allowed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations

from fmsched.model.hardware import GpuId, GpuSpec, Node
from fmsched.model.job import Reach, Request
from fmsched.model.placement import Placement, RankPlacement, Violation
from fmsched.model.snapshot import HostShare, Snapshot
from fmsched.place import nvlink, relations
from fmsched.place.check_links import overbooked
from fmsched.place.kept import given_back
from fmsched.place.power import overdrawn

Instances = dict[tuple[int, int], list[RankPlacement]]  # by (group number, replica)


def check(snapshot: Snapshot, request: Request, placement: Placement) -> tuple[Violation, ...]:
    """Every broken rule; empty: the placement may be committed. A placement that names GPUs that do not exist is only told that."""
    unknown = tuple(_exists(snapshot, request, placement))
    if unknown:
        return unknown
    request = replace(request, replicas=request.replicas + request.spares)  # spares keep to every rule
    instances = _instances(request, placement)
    snapshot = given_back(snapshot, request)
    rules: tuple[Callable[[], Iterable[Violation]], ...] = (
        lambda: _usable(snapshot, request, placement),
        lambda: _stays(request, placement),
        lambda: _once(placement),
        lambda: _power(snapshot, placement),
        lambda: _host(snapshot, request, placement),
        lambda: _apart(snapshot, request, instances),
        lambda: _counts(request, placement),
        lambda: _numbers(request, placement),
        lambda: _adapters(snapshot, placement),
        lambda: _gpus(snapshot, request, instances),
        lambda: _nvlink(snapshot, request, instances),
        lambda: _own_nvlink(snapshot, request, instances),
        lambda: _spans(snapshot, request, instances),
        lambda: _instance_reach(snapshot, request, instances),
        lambda: _group_reach(snapshot, request, instances),
        lambda: _stage_reach(snapshot, request, instances),
        lambda: _bandwidth(snapshot, request, instances),
    )
    return tuple(violation for rule in rules for violation in rule())


def _exists(snapshot: Snapshot, request: Request, placement: Placement) -> Iterator[Violation]:
    names = [group.name for group in request.groups]
    if placement.job != request.job:
        yield Violation("job", placement.job, f"the placement is of job {placement.job}, the request of job {request.job}")
    for rank in placement.ranks:
        where = f"rank {rank.rank}"
        if rank.group not in names:
            yield Violation("group", where, f"group {rank.group!r} is not one of {', '.join(names)}")
        if rank.node not in snapshot.topology.index:
            yield Violation("node", where, f"node {rank.node!r} is not in the cluster")
        elif not 0 <= rank.gpu < len(snapshot.topology.node(rank.node).shape.gpus):
            yield Violation("GPU", where, f"{rank.gpu_id} does not exist")
        elif (uuid := snapshot.topology.node(rank.node).uuids[rank.gpu]) != rank.uuid:
            yield Violation("uuid", where, f"{rank.gpu_id} is {uuid}, not {rank.uuid}")


def _instances(request: Request, placement: Placement) -> Instances:
    number = {group.name: i for i, group in enumerate(request.groups)}
    found: Instances = {}
    for rank in placement.ranks:
        found.setdefault((number[rank.group], rank.replica), []).append(rank)
    return found


def _usable(snapshot: Snapshot, request: Request, placement: Placement) -> Iterator[Violation]:
    stays = {rank.gpu_id for rank in request.kept}
    for rank in placement.ranks:
        gpu = rank.gpu_id
        if gpu in snapshot.held:
            yield Violation("free GPUs", f"rank {rank.rank}", f"{gpu} is held by job {snapshot.held[gpu]}")
        if gpu in snapshot.unfit:
            yield Violation("healthy GPUs", f"rank {rank.rank}", f"{gpu} is unfit: {snapshot.unfit[gpu]}")
        if rank.node in snapshot.closed:
            yield Violation("open nodes", f"rank {rank.rank}", f"node {rank.node} is closed: {snapshot.closed[rank.node]}")
        if gpu in stays:
            continue  # lists and earlier attempts say where a rank may go, not whether it may stay
        if rank.node in request.avoid_nodes:
            yield Violation("avoided nodes", f"rank {rank.rank}", f"node {rank.node} is to be avoided")
        allowed = request.allowed_nodes is None or rank.node in request.allowed_nodes
        if rank.node in request.denied_nodes or not allowed:
            yield Violation("node list", f"rank {rank.rank}", f"the manifest's lists do not allow node {rank.node}")


def _host(snapshot: Snapshot, request: Request, placement: Placement) -> Iterator[Violation]:
    """CPUs and memory of each node; a node that says 0 has no limit."""
    for name, ranks in Counter(rank.node for rank in placement.ranks).items():
        shape = snapshot.topology.node(name).shape
        others = [snapshot.per_gpu.get(job, HostShare()) for gpu, job in snapshot.held.items() if gpu.node == name]
        cpus = ranks * request.cpus_per_gpu + sum(share.cpus for share in others)
        memory_gb = ranks * request.memory_gb_per_gpu + sum(share.memory_gb for share in others)
        if request.cpus_per_gpu and shape.cpus and cpus > shape.cpus + 1e-6:
            yield Violation("CPUs", name, f"{cpus:g} CPUs would be used, the node has {shape.cpus}")
        if request.memory_gb_per_gpu and shape.memory_gb and memory_gb > shape.memory_gb + 1e-6:
            yield Violation("host memory", name, f"{memory_gb:g} GB would be used, the node has {shape.memory_gb:g} GB")


def _apart(snapshot: Snapshot, request: Request, instances: Instances) -> Iterator[Violation]:
    for (g, replica), ranks in instances.items():
        if request.groups[g].apart and len({rank.node for rank in ranks}) > 1:
            where = f"group {request.groups[g].name} replica {replica}"
            yield Violation("anti-affinity", where, f"{_names(ranks)} are not on one node")
    for a, b in combinations(sorted(instances), 2):
        group = request.groups[a[0]]
        if a[0] == b[0] and group.apart:
            ours, theirs = (_places(snapshot, group.apart, instances[of]) for of in (a, b))
            if ours & theirs:
                where = f"group {group.name} replicas {a[1]} and {b[1]}"
                yield Violation("anti-affinity", where, f"share a {group.apart}")


def _places(snapshot: Snapshot, apart: str, ranks: Sequence[RankPlacement]) -> set[str | int]:
    topology = snapshot.topology
    if apart == "node":
        return {rank.node for rank in ranks}
    level = topology.domains[min(len(topology.domains) - 1, 1 if apart == "pod" else 0)]
    return {int(level[topology.leaf_of[topology.index[rank.node]]]) for rank in ranks}


def _stays(request: Request, placement: Placement) -> Iterator[Violation]:
    """A rank that stays keeps its number, its place and its number on the node; others take numbers that it does not have."""
    numbers = {rank.rank: rank for rank in placement.ranks}
    for rank in request.kept:
        found = numbers.get(rank.rank)
        if found != rank:
            now = "not there" if found is None else f"{found.gpu_id}, local rank {found.local_rank}"
            yield Violation("kept ranks", f"rank {rank.rank}", f"is {now}, should stay {rank.gpu_id}, {rank.local_rank}")
    if request.kept:
        for (node, local), times in Counter((rank.node, rank.local_rank) for rank in placement.ranks).items():
            if times > 1:
                yield Violation("local rank", node, f"{times} ranks are local rank {local} of {node}")


def _once(placement: Placement) -> Iterator[Violation]:
    for gpu, times in Counter(rank.gpu_id for rank in placement.ranks).items():
        if times > 1:
            yield Violation("one rank per GPU", str(gpu), f"{gpu} carries {times} ranks")


def _power(snapshot: Snapshot, placement: Placement) -> Iterator[Violation]:
    for budget, held_w, asked_w in overdrawn(snapshot, [rank.gpu_id for rank in placement.ranks]):
        message = f"{held_w} W are drawn and {asked_w} W more asked, allowed {budget.watts:g} W"
        yield Violation("power budget", budget.name, message)


def _counts(request: Request, placement: Placement) -> Iterator[Violation]:
    found = Counter((rank.group, rank.replica) for rank in placement.ranks)
    wanted = {(group.name, replica): group.gpus for group in request.groups for replica in range(request.replicas)}
    for key in sorted(found.keys() | wanted.keys()):
        if found[key] != wanted.get(key, 0):
            where = f"group {key[0]} replica {key[1]}"
            yield Violation("GPU count", where, f"has {found[key]} GPUs, the request asks for {wanted.get(key, 0)}")


def _numbers(request: Request, placement: Placement) -> Iterator[Violation]:
    number = {group.name: i for i, group in enumerate(request.groups)}
    on_node: Counter[str] = Counter()
    running = request.replicas - request.spares
    order = [(rank.spare, number[rank.group], rank.replica) for rank in placement.ranks]
    if order != sorted(order):
        yield Violation("rank order", request.job, "ranks are not in order of group, then replica, spares last")
    for position, rank in enumerate(placement.ranks):
        if rank.rank != position:
            yield Violation("rank order", f"rank {rank.rank}", f"stands at position {position}")
        if rank.local_rank != on_node[rank.node] and not request.kept:  # _stays says what holds beside ranks that stay
            yield Violation(
                "local rank", f"rank {rank.rank}", f"is {rank.local_rank}, should be {on_node[rank.node]} on {rank.node}"
            )
        if rank.spare != (rank.replica >= running):
            yield Violation(
                "spares", f"rank {rank.rank}", f"replica {rank.replica} of {running} that run, spare: {rank.spare}"
            )
        cell = number[rank.group] * running + rank.replica
        if rank.spare:
            cell = running * len(number) + number[rank.group] * request.spares + rank.replica - running
        if rank.cell != cell:
            yield Violation("cell", f"rank {rank.rank}", f"is {rank.cell}, should be {cell}")
        on_node[rank.node] += 1


def _adapters(snapshot: Snapshot, placement: Placement) -> Iterator[Violation]:
    for rank in placement.ranks:
        hcas = snapshot.topology.node(rank.node).shape.hcas
        known = {hca.name for hca in hcas} | {f"{hca.name}:{hca.port}" for hca in hcas}
        for name in rank.hcas:
            if name not in known:
                yield Violation("adapter", f"rank {rank.rank}", f"node {rank.node} has no adapter {name}")


def _gpus(snapshot: Snapshot, request: Request, instances: Instances) -> Iterator[Violation]:
    for (g, replica), ranks in instances.items():
        group = request.groups[g]
        where = f"group {group.name} replica {replica}"
        specs = [_spec(snapshot, rank.gpu_id) for rank in ranks]
        if len({spec.model for spec in specs}) > 1:
            yield Violation("one GPU type", where, f"mixes {', '.join(sorted({spec.model for spec in specs}))}")
        for rank, spec in zip(ranks, specs, strict=True):
            if group.families and spec.family not in group.families:
                yield Violation("GPU type", where, f"{rank.gpu_id} is {spec.family}, allowed: {', '.join(group.families)}")
            if spec.memory_gb < group.min_memory_gb:
                message = f"{rank.gpu_id} has {spec.memory_gb:g} GB, asked {group.min_memory_gb:g} GB"
                yield Violation("memory", where, message)


def _spec(snapshot: Snapshot, gpu: GpuId) -> GpuSpec:
    return snapshot.topology.node(gpu.node).shape.gpus[gpu.index]


def _nvlink(snapshot: Snapshot, request: Request, instances: Instances) -> Iterator[Violation]:
    for (g, replica), ranks in instances.items():
        asked = request.groups[g].min_nvlink_gbytes_per_s
        for a, b in combinations(ranks, 2) if asked > 0 else ():
            found = snapshot.topology.nvlink_gbytes_per_s(a.node, a.gpu, b.node, b.gpu)
            if found < asked:
                where = f"group {request.groups[g].name} replica {replica}"
                yield Violation("NVLink", where, f"{a.gpu_id} and {b.gpu_id}: {found:g} GB/s, asked {asked:g} GB/s")


def _own_nvlink(snapshot: Snapshot, request: Request, instances: Instances) -> Iterator[Violation]:
    between = snapshot.topology.nvlink_gbytes_per_s
    for (g, replica), ranks in instances.items():
        group, each = request.groups[g], {}
        for a in ranks if len(ranks) > 1 else ():
            pairs = [
                min(between(a.node, a.gpu, b.node, b.gpu), between(b.node, b.gpu, a.node, a.gpu))
                for b in ranks
                if b is not a
            ]
            if len({rank.node for rank in ranks}) > 1:
                domain = snapshot.topology.node(a.node).nvlink_domain
                members = [node for node in snapshot.topology.nodes if node.nvlink_domain == domain]
                pairs = [min(node.shape.domain_nvlink_gbytes_per_s for node in members) if domain else 0.0]
            each[a.gpu_id] = nvlink.own(_spec(snapshot, a.gpu_id), pairs)
        where = f"group {group.name} replica {replica}"
        if nvlink.asks(group) and not _together([snapshot.topology.node(rank.node) for rank in ranks]):
            message = f"{_names(ranks)} are not on one node or in one multi-node NVLink domain"
            yield Violation("NVLink links" if group.min_nvlink_links else "NVLink aggregate", where, message)
        for gpu, own in each.items():
            if own.links < group.min_nvlink_links:
                message = f"{gpu} has {own.links} NVLink links to the others, asked {group.min_nvlink_links}"
                yield Violation("NVLink links", where, message)
        found, asked = sum(own.gbytes_per_s for own in each.values()) / 2, group.min_nvlink_aggregate_gbytes_per_s
        if each and found + nvlink.ROUNDING < asked:
            yield Violation("NVLink aggregate", where, f"its GPUs have {found:g} GB/s together, asked {asked:g} GB/s")


def _spans(snapshot: Snapshot, request: Request, instances: Instances) -> Iterator[Violation]:
    for (g, replica), ranks in instances.items():
        group = request.groups[g]
        where = f"group {group.name} replica {replica}"
        gpus = [(snapshot.topology.node(rank.node), rank.gpu) for rank in ranks]
        if relations.stays_in_domain(group) and not relations.one_nvlink_domain(gpus):
            yield Violation("NVLink domain", where, f"{_names(ranks)} are not in one NVLink domain")
        elif group.kind in relations.BOUND_KINDS and group.reach is None and not _together([node for node, _ in gpus]):
            yield Violation(
                "one node", where, f"{_names(ranks)} are not on one node; only interNodeConnectivity allows that"
            )


def _together(nodes: Sequence[Node]) -> bool:
    domains = {node.nvlink_domain for node in nodes}
    return len({node.name for node in nodes}) == 1 or (len(domains) == 1 and domains != {""})


def _names(ranks: Sequence[RankPlacement]) -> str:
    return ", ".join(str(rank.gpu_id) for rank in ranks)


def _instance_reach(snapshot: Snapshot, request: Request, instances: Instances) -> Iterator[Violation]:
    for (g, replica), ranks in instances.items():
        group = request.groups[g]
        nodes = {rank.node for rank in ranks}
        for a, b in combinations(sorted(nodes), 2):
            yield from _pair(snapshot, relations.instance_reaches(group), f"group {group.name} replica {replica}", a, b)


def _group_reach(snapshot: Snapshot, request: Request, instances: Instances) -> Iterator[Violation]:
    for g, group in enumerate(request.groups):
        nodes = {rank.node for (of, _), ranks in instances.items() if of == g for rank in ranks}
        for a, b in combinations(sorted(nodes), 2):
            yield from _pair(snapshot, relations.group_reaches(group), f"group {group.name}", a, b)


def _stage_reach(snapshot: Snapshot, request: Request, instances: Instances) -> Iterator[Violation]:
    for first, second, reaches in relations.stage_pairs(request):
        for replica in range(request.replicas):
            where = f"groups {request.groups[first].name} and {request.groups[second].name} replica {replica}"
            ours = {rank.node for rank in instances.get((first, replica), ())}
            theirs = {rank.node for rank in instances.get((second, replica), ())}
            for a in sorted(ours):
                for b in sorted(theirs):
                    yield from _pair(snapshot, reaches, where, a, b)


def _bandwidth(snapshot: Snapshot, request: Request, instances: Instances) -> Iterator[Violation]:
    nodes = {key: {rank.node for rank in ranks} for key, ranks in instances.items()}
    for (a, b), needed, left in overbooked(snapshot, request, nodes):
        yield Violation("reserved bandwidth", f"{a}–{b}", f"the job needs {needed:g} Gb/s there, {left:g} Gb/s is left")


def _pair(snapshot: Snapshot, reaches: Sequence[Reach], where: str, a: str, b: str) -> Iterator[Violation]:
    topology = snapshot.topology
    if not relations.hops_ok(topology, reaches, a, b):
        allowed = min(relations.hop_cap(reach) for reach in reaches)
        yield Violation("hops", where, f"{a} and {b} are {topology.hop_count(a, b)} switches apart, allowed {allowed}")
    if not relations.rate_ok(topology, reaches, a, b):
        asked = max(reach.min_link_gbps for reach in reaches)
        yield Violation("link rate", where, f"{a} and {b}: {topology.link_gbps(a, b):g} Gb/s, asked {asked:g} Gb/s")
