"""The Cluster file: the one description of a cluster that simulation, tests, `fmctl plan` and bug reports share.

parse() keeps what is written in its compact form; to_snapshot() spells it out. The notation is in docs/cluster-file.md; its
node part is read by fmproto.described, which agents use too. write() is in clustertext.py.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from fmproto.described import (
    Described,
    DeviceFault,
    NodeEntry,
    device_faults,
    gpu_uuids,
    load_cluster,
    read_described,
    read_header,
    type_faults,
)
from fmproto.dumptext import Problem
from fmproto.fields import Faults, Fields, TooManyFaultsError, name_hint
from fmproto.hostlist import expand, split
from fmproto.nodetypes import GBPS_MAX, NodeType
from fmproto.yamltext import Fault, Items, Scalar, Table, Tree, describe, join, shown
from fmsched.model.fabric import Fabric, Link, Switch
from fmsched.model.hardware import GpuId, GpuSpec, HcaSpec, JobId, Node, NodeName, NodeShape
from fmsched.model.snapshot import PowerBudget, Snapshot
from fmsched.topology.graph import build_topology
from fmsched.topology.reserved_rows import ReservedRow, links_held, read_reserved
from fmsched.topology.routes import measured_of

LEVEL_MAX = 8
CABLES_MAX = 1024
LINKS_MAX = 5_000_000  # spelled out, over all rows
WATTS_MAX = 1e12
PRICE_MAX = 1e6
FAMILY = re.compile(r"[a-z0-9][a-z0-9._-]{0,31}")
LINE_MAX = 1 << 31  # a line's number in `problems`

Sick = Mapping[NodeName, tuple[DeviceFault, ...]]


@dataclass(frozen=True, slots=True)
class LinkRow:
    """Every end that `a` names is joined to every end that `b` names, by `count` cables of `gbps` each.

    measured_gbps   traffic seen between each such pair, on all its cables together, beside what jobs reserve
    """

    a: str
    b: str
    gbps: float
    count: int = 1
    down: bool = False
    hca: str = ""
    measured_gbps: float = 0.0


@dataclass(frozen=True, slots=True)
class ClusterFile:
    """What the text says, compact. `described` has the nodes; `switches` are (range, level); `busy` is (job, GPUs); `closed` is
    (range, reason).
    """

    name: str
    described: Described
    switches: tuple[tuple[str, int], ...] = ()
    links: tuple[LinkRow, ...] = ()
    busy: tuple[tuple[JobId, tuple[str, ...]], ...] = ()
    closed: tuple[tuple[str, str], ...] = ()
    problems: tuple[Problem, ...] = ()  # of an import: what was set aside
    power: tuple[tuple[str, str, float], ...] = ()  # (name, range of nodes, W)
    reserved: tuple[ReservedRow, ...] = ()
    level_of: Mapping[str, int] = field(default_factory=dict)  # by switch name, implied switches too
    prices: tuple[tuple[str, float], ...] = ()  # of a GPU-hour, by family

    @property
    def fabric(self) -> Fabric:
        """Switches and links spelled out; made anew at each call."""
        return to_fabric(self)


def parse(source: str | bytes) -> ClusterFile | tuple[Fault, ...]:
    """The Cluster file in a text (YAML or JSON), or every fault in it. Never raises."""
    tree = load_cluster(source)
    if isinstance(tree, tuple):
        return tree
    faults = Faults()
    try:
        cluster = _read(Fields(tree, "", faults))
    except TooManyFaultsError:
        return faults.sorted()
    return faults.sorted() or cluster


def _read(top: Fields) -> ClusterFile:
    name = read_header(top)
    described = read_described(top)
    fabric = top.table("fabric", "{switches, links}")
    switches, level_of = _read_switches(fabric, described) if fabric is not None else ((), {})
    leaves = _read_leaves(top, described, level_of)
    links: tuple[LinkRow, ...] = ()
    if fabric is not None:
        links = _read_links(fabric, described, level_of)
        fabric.finish()
    if not switches:
        level_of = _implied_levels(links, leaves, described)
    busy = _read_busy(top, described)
    closed = _read_closed(top, described)
    problems = _read_problems(top)
    power = _read_power(top, described)
    reserved = read_reserved(top, level_of)
    prices = _read_prices(top)
    top.finish()
    return ClusterFile(name, described, switches, links, busy, closed, problems, power, reserved, level_of, prices)


def _expand_into(fields: Fields, line: int, path: str, text: str) -> tuple[str, ...]:
    try:
        return expand(text)
    except ValueError as error:
        fields.faults.add(line, path, str(error))
        return ()


def _read_switches(fields: Fields, described: Described) -> tuple[tuple[tuple[str, int], ...], dict[str, int]]:
    """(rows as written, level of each switch)."""
    rows = []
    level_of: dict[str, int] = {}
    for key, line, text in fields.scalars_by_name("switches", "a mapping of switch names (or ranges) to their level"):
        path = join(fields.at("switches"), key)
        value = Scalar(line, text).value
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= LEVEL_MAX:
            fields.faults.add(line, path, f"found {shown(text)}; allowed: a level from 0 (leaf) to {LEVEL_MAX}")
            continue
        for name in _expand_into(fields, line, path, key):
            if name in level_of:
                fields.faults.add(line, path, f"switch {name} is named twice; allowed: once")
            elif name in described.entry_of:
                fields.faults.add(line, path, f"{name} is a node's name too; allowed: a name of its own")
            level_of[name] = value
        rows.append((key, value))
    return tuple(rows), level_of


def _read_links(fields: Fields, described: Described, level_of: Mapping[str, int]) -> tuple[LinkRow, ...]:
    rows = []
    total = 0
    for path, tree in fields.items("links", "a list of {between, gbps, count}"):
        row = Fields(tree, path, fields.faults)
        texts = _read_between(row)
        ends = [_read_end(row, text, described, level_of) for text in texts]
        total += len(ends[0]) * len(ends[1])
        if shared := set(ends[0]) & set(ends[1]):
            row.faults.add(tree.line, row.at("between"), f"joins {min(shared)} to itself; allowed: two different ends")
        rows.append(
            LinkRow(
                a=texts[0],
                b=texts[1],
                gbps=row.number("gbps", "Gb/s", GBPS_MAX, required=True),
                count=row.whole("count", 1, CABLES_MAX, default=1),
                down=row.flag("down"),
                hca=row.text("hca", "an adapter's name"),
                measured_gbps=row.number("measuredGbps", "Gb/s", GBPS_MAX * CABLES_MAX),
            )
        )
        row.finish()
    if total > LINKS_MAX:
        fields.faults.add(fields.line_of("links"), fields.at("links"), f"found {total} links; allowed: at most {LINKS_MAX}")
        return ()
    return tuple(rows)


def _read_between(row: Fields) -> tuple[str, str]:
    allowed = "two ends, each a switch, a node, or a range of them: [leaf1, spine1]"
    tree = row.raw("between", allowed, required=True)
    if tree is None:
        return "", ""
    texts = _scalars(tree)
    if not isinstance(tree, Items) or texts is None or len(texts) != 2:
        row.wrong(tree, row.at("between"), allowed)
        return "", ""
    return texts[0], texts[1]


def _read_end(row: Fields, text: str, described: Described, level_of: Mapping[str, int]) -> tuple[str, ...]:
    if not text:
        return ()
    line, path = row.line_of("between"), row.at("between")
    names = _expand_into(row, line, path, text)
    if not level_of:
        return names  # no switches are listed: whatever is no node is a switch
    for name in names:
        if name not in level_of and name not in described.entry_of:
            hint = name_hint(name, [*level_of, *described.entry_of])
            row.faults.add(line, path, f"found {shown(name)}, neither a switch nor a node; {hint}")
            return ()
    return names


def _implied_levels(links: tuple[LinkRow, ...], leaves: tuple[str, ...], described: Described) -> dict[str, int]:
    """Levels of switches that are not listed: 0 for the leaf of a node, else one above the lowest neighbour."""
    neighbours: dict[str, dict[str, None]] = {name: {} for name in leaves}
    attached: dict[str, None] = dict.fromkeys(leaves)
    for row in links:
        near, far = _names(row.a), _names(row.b)
        for one, others in ((near, far), (far, near)):
            for name in one:
                if name not in described.entry_of:
                    neighbours.setdefault(name, {}).update(dict.fromkeys(others))
                    if any(other in described.entry_of for other in others):
                        attached[name] = None
    level_of = dict.fromkeys(attached, 0)
    frontier = list(level_of)
    while frontier:  # ends: each round takes switches that have no level yet
        above = dict.fromkeys(n for name in frontier for n in neighbours[name] if n in neighbours and n not in level_of)
        level_of.update((name, min(LEVEL_MAX, level_of[frontier[0]] + 1)) for name in above)
        frontier = list(above)
    level_of.update((name, 0) for name in neighbours if name not in level_of)
    return level_of


def _names(text: str) -> tuple[str, ...]:
    """Those of a range that may have been refused."""
    try:
        return expand(text)
    except ValueError:
        return ()


def _read_leaves(top: Fields, described: Described, level_of: Mapping[str, int]) -> tuple[str, ...]:
    """Every leaf switch that nodes name, each once."""
    tree = top.raw("nodes")
    rows = tree.items if isinstance(tree, Items) else []
    if len(rows) != len(described.entries):
        return ()  # an entry was refused: its faults are there already
    found: dict[str, None] = {}
    for number, (entry, row) in enumerate(zip(described.entries, rows, strict=True)):
        fields = Fields(row, f"nodes[{number}]", top.faults)
        line, path = fields.line_of("leaf"), fields.at("leaf")
        if not entry.leaf:
            if entry.nodes_per_leaf:
                top.faults.add(line, path, "found nothing; allowed: the leaf switches that nodesPerLeaf fills")
            continue
        leaves = [name for text in entry.leaf for name in _expand_into(fields, line, path, text)]
        if level_of and (unknown := next((name for name in leaves if name not in level_of), None)):
            hint = name_hint(unknown, list(level_of))
            top.faults.add(line, path, f"found {shown(unknown)}, which fabric.switches does not name; {hint}")
        elif node := next((name for name in leaves if name in described.entry_of), None):
            top.faults.add(line, path, f"{node} is a node's name; allowed: a switch")
        elif problem := _leaf_problem(entry, described.types[entry.type], leaves):
            top.faults.add(line, path, problem)
        found.update(dict.fromkeys(leaves))
    return tuple(found)


def _leaf_problem(entry: NodeEntry, kind: NodeType, leaves: list[str]) -> str:
    ports = len(kind.fabric_ports)
    if ports == 0:
        return f"type {kind.name} has no adapter; allowed: no leaf"
    if entry.nodes_per_leaf:
        count = len(expand(entry.names)) if entry.names else 0
        if count > entry.nodes_per_leaf * len(leaves):
            return f"found {len(leaves)} leaf switches of {entry.nodes_per_leaf} nodes; allowed: enough for {count} nodes"
        return ""
    if len(leaves) > ports:
        return f"found {len(leaves)} leaf switches; allowed: at most {ports}, one for each adapter port of type {kind.name}"
    return ""


def _read_busy(top: Fields, described: Described) -> tuple[tuple[JobId, tuple[str, ...]], ...]:
    allowed = "a mapping of jobs to their GPUs, such as n[0001-0004] or n0005/gpu[0-3]"
    tree = top.raw("busy")
    if tree is None:
        return ()
    if not isinstance(tree, Table):
        top.wrong(tree, top.at("busy"), allowed)
        return ()
    held: dict[GpuId, JobId] = {}
    rows = []
    for job, (line, value) in tree.fields.items():
        path = join(top.at("busy"), job)
        texts = _scalars(value)
        if texts is None or not job:
            top.faults.add(
                line, path, f"found {describe(value)}; allowed: GPUs of a job, such as n[0001-0004] or n0005/gpu[0-3]"
            )
            continue
        try:
            for gpu in _gpus(texts, described):
                if gpu in held:
                    raise ValueError(f"{gpu} is held by {held[gpu]} already; allowed: one job")
                held[gpu] = job
        except ValueError as error:
            top.faults.add(line, path, str(error))
        rows.append((job, texts))
    return tuple(rows)


def _scalars(tree: Tree) -> tuple[str, ...] | None:
    if isinstance(tree, Scalar):
        return None if tree.value is None else (tree.text,)
    if isinstance(tree, Items) and tree.items and all(isinstance(item, Scalar) for item in tree.items):
        return tuple(item.text for item in tree.items if isinstance(item, Scalar))
    return None


def _gpus(texts: tuple[str, ...], described: Described) -> Iterator[GpuId]:
    """The GPUs that `n[1-4]` (all of a node) and `n5/gpu[0-3]` name. Raises ValueError where one does not exist."""
    for part in (part for text in texts for part in split(text)):
        names, slash, devices = part.partition("/")
        wanted = expand(devices) if slash else ()
        for node in expand(names):
            if node not in described.entry_of:
                raise ValueError(f"found no node {shown(node)}; {name_hint(node, list(described.entry_of))}")
            count = len(described.types[described.entry_of[node].type].gpus)
            index_of = {f"gpu{i}": i for i in range(count)}
            for device in wanted or index_of:
                if device not in index_of:
                    allowed = f"gpu0 to gpu{count - 1}" if count else "nothing: the node has no GPU"
                    raise ValueError(f"found {shown(f'{node}/{device}')}; allowed: {allowed}")
                yield GpuId(node, index_of[device])


def _read_closed(top: Fields, described: Described) -> tuple[tuple[str, str], ...]:
    rows = []
    for names, line, reason in top.scalars_by_name("closed", "a mapping of nodes (or ranges) to reasons"):
        path = join(top.at("closed"), names)
        for name in _expand_into(top, line, path, names):
            if name not in described.entry_of:
                hint = name_hint(name, list(described.entry_of))
                top.faults.add(line, path, f"found no node {shown(name)}; {hint}")
                break
        rows.append((names, reason))
    return tuple(rows)


def _read_power(top: Fields, described: Described) -> tuple[tuple[str, str, float], ...]:
    rows: dict[str, tuple[str, str, float]] = {}
    for path, tree in top.items("power", "a list of {name, nodes, watts}"):
        row = Fields(tree, path, top.faults)
        name = row.name("name", required=True)
        names = row.text("nodes", "nodes or a range of them: n[01-16]", required=True)
        if name in rows:
            top.faults.add(row.line_of("name"), row.at("name"), f"found {name} again; allowed: a name once")
        for node in _expand_into(row, row.line_of("nodes"), row.at("nodes"), names) if names else ():
            if node not in described.entry_of:
                hint = name_hint(node, list(described.entry_of))
                top.faults.add(row.line_of("nodes"), row.at("nodes"), f"found no node {shown(node)}; {hint}")
                break
        rows[name] = name, names, row.number("watts", "W", WATTS_MAX, required=True)
        row.finish()
    return tuple(rows.values())


def _read_prices(top: Fields) -> tuple[tuple[str, float], ...]:
    tree, row = top.raw("prices"), top.table("prices", "a mapping of GPU families to what a GPU-hour costs")
    if row is None or not isinstance(tree, Table):
        return ()
    for family, (line, _) in tree.fields.items():
        if not FAMILY.fullmatch(family):
            top.faults.add(
                line, row.at(family), f"found {shown(family)}; allowed: a GPU family in lower case, such as h100"
            )
    return tuple((family, row.number(family, "a price of a GPU-hour", PRICE_MAX)) for family in tree.fields)


def _read_problems(top: Fields) -> tuple[Problem, ...]:
    """What an import set aside: kept and written again, without meaning for the cluster."""
    problems = []
    for path, tree in top.items("problems", "a list of {file, line, what, why}"):
        row = Fields(tree, path, top.faults)
        file, what, why = (" ".join(row.strings(name, "a string", single=True)) for name in ("file", "what", "why"))
        problems.append(Problem(file, row.whole("line", 0, LINE_MAX), what, why))
        row.finish()
    return tuple(problems)


def named_devices(cluster: ClusterFile) -> Sick:
    """What `faults` names, by node; nodes without such devices are left out."""
    described = cluster.described
    return {name: sick for entry in described.entries for name, sick in device_faults(described, entry).items()}


def sick_devices(cluster: ClusterFile) -> Sick:
    """What `faults` and the node types say cannot be used, by node; nodes without such devices are left out."""
    sick: dict[NodeName, tuple[DeviceFault, ...]] = {}
    for entry in cluster.described.entries:
        if always := type_faults(cluster.described.types[entry.type]):
            sick.update(dict.fromkeys(expand(entry.names), always))
    for name, named in named_devices(cluster).items():
        sick[name] = (*sick.get(name, ()), *named)
    return sick


def to_snapshot(cluster: ClusterFile) -> Snapshot:
    """The cluster as a decision sees it: `busy` GPUs held, sick ones unfit, `closed` nodes closed. The revision is 0."""
    described = cluster.described
    sick = sick_devices(cluster)
    shapes: dict[tuple[str, frozenset[tuple[str, int]]], NodeShape] = {}  # equal nodes share one
    nodes = []
    for name, entry in described.entry_of.items():
        dead = frozenset((each.hca, each.port) for each in sick.get(name, ()) if each.gpu < 0)
        if (entry.type, dead) not in shapes:
            shapes[entry.type, dead] = shape_of(described.types[entry.type], dead)
        nodes.append(_node(name, entry, shapes[entry.type, dead]))
    topology = build_topology(nodes, to_fabric(cluster))
    unfit = {GpuId(name, each.gpu): each.reason for name, found in sick.items() for each in found if each.gpu >= 0}
    held = {gpu: job for job, texts in cluster.busy for gpu in _gpus(texts, described)}
    closed: dict[NodeName, str] = {name: reason for names, reason in cluster.closed for name in expand(names)}
    power = tuple(PowerBudget(name, frozenset(expand(names)), watts) for name, names, watts in cluster.power)
    return Snapshot(
        revision=0,
        topology=topology,
        held=held,
        unfit=unfit,
        closed=closed,
        power=power,
        links_held=links_held(cluster.reserved),
        links_measured=measured_of(topology.fabric),
        prices=dict(cluster.prices),
    )


def shape_of(kind: NodeType, dead: frozenset[tuple[str, int]] = frozenset()) -> NodeShape:
    """`dead`: ports (adapter, number) that nothing can be placed over; they are left out, as Ethernet ports beside InfiniBand are."""
    return NodeShape(
        name=kind.name,
        gpus=tuple(GpuSpec(gpu.model or gpu.name, gpu.family, gpu.memory_gb) for gpu in kind.gpus),
        nvlink=kind.nvlink,
        hcas=tuple(
            HcaSpec(hca.name, hca.port, hca.rate_gbps, hca.near)
            for hca in kind.fabric_ports
            if (hca.name, hca.port) not in dead
        ),
        cpus=kind.cpus,
        memory_gb=kind.memory_gb,
        domain_nvlink_gbytes_per_s=kind.domain_nvlink_gbytes_per_s,
    )


def _node(name: NodeName, entry: NodeEntry, shape: NodeShape) -> Node:
    return Node(
        name=name,
        shape=shape,
        uuids=gpu_uuids(entry, name, len(shape.gpus)),
        nvlink_domain=entry.nvlink_domain,
        address=entry.address,
        socket_interface=entry.socket_interface,
    )


def to_fabric(cluster: ClusterFile) -> Fabric:
    """Switches and links spelled out; a port of a node that `faults` names is a link that is down."""
    switches = tuple(Switch(name, level) for name, level in cluster.level_of.items())
    sick = sick_devices(cluster)
    dead = {(name, each.hca) for name, found in sick.items() for each in found if each.gpu < 0}
    links: list[Link] = []
    for entry in cluster.described.entries:
        links.extend(_node_links(cluster.described, entry, sick))
    for row in cluster.links:
        far = expand(row.b)
        for a in expand(row.a):
            for b in far:
                down = row.down or (bool(row.hca) and ((a, row.hca) in dead or (b, row.hca) in dead))
                links.append(Link(a, b, row.gbps, row.count, down, row.hca, row.measured_gbps))
    return Fabric(switches, tuple(links))


def _node_links(described: Described, entry: NodeEntry, sick: Sick) -> Iterator[Link]:
    if not entry.leaf:
        return
    leaves = [name for text in entry.leaf for name in expand(text)]
    ports = described.types[entry.type].fabric_ports
    for number, node in enumerate(expand(entry.names)):
        near = [leaves[number // entry.nodes_per_leaf]] if entry.nodes_per_leaf else leaves
        down = {(each.hca, each.port) for each in sick.get(node, ()) if each.gpu < 0}
        if len(near) > 1 or down:
            # Port i is on leaf i, counted round: the eight rails of a node with eight adapters.
            for i, port in enumerate(ports):
                dead = (port.name, port.port) in down
                yield Link(node, near[i % len(near)], port.rate_gbps, 1, dead, port.name)
            continue
        # Equal ports to one switch are parallel cables of one link: 12,500 nodes are 12,500 links, not 100,000.
        for rate, count in Counter(port.rate_gbps for port in ports).items():
            yield Link(node, near[0], rate, count)
