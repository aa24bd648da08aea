"""From what readers found to the one Cluster file: dumps of a node become its type and its entry, fabrics become hosts, switches and link
rows, and what was set aside stays in `problems`. Pure.

Several dumps of one node, and several fabric files, are merged: the first file stands where two contradict, and that is a problem.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from fmproto.described import Described, NodeEntry
from fmproto.dumptext import Problem
from fmproto.hostlist import expand
from fmproto.nodetypes import HCAS_MAX, PORTS_MAX, HcaType, NodeType, builtin_types
from fmsched.topology.clusterfile import ClusterFile
from fmsched.topology.fabric_rows import Cable, link_rows, switch_rows
from fmsched.topology.imported_fabric import FabricMerged, HostMerged, cable_counts, merge_fabrics
from fmsched.topology.imported_gpus import is_real_uuid
from fmsched.topology.imported_names import Notes, allowed_name, natural, ranges
from fmsched.topology.imported_nodes import NodeMerged, entry_of, merge_node, type_base
from fmsched.topology.readers.found import FabricFound, Found, NodeFound
from fmsched.topology.readers.ib_names import Owner, name_hosts

NODE = "node"  # the name of a dumped node that neither its file nor the file's name tells


@dataclass(frozen=True, slots=True)
class Choices:
    """What the files cannot say. Raises nothing: whoever makes it has checked the words."""

    name: str = ""  # metadata.name
    node: str = ""  # every node dump is of this node
    node_type: str = ""  # of hosts that no dump tells of: a built-in type, or one that a dump given beside makes
    gbps: float = 0.0  # of each cable whose file has no rate


def to_cluster(found: Sequence[Found], stems: Mapping[str, str], choices: Choices) -> ClusterFile:
    """`stems`: what a node is called by file, where its dump does not say. Raises ValueError where `node_type` names no type."""
    notes = Notes()
    dumps = [one for one in found if isinstance(one, NodeFound)]
    fabrics = [one for one in found if isinstance(one, FabricFound)]
    nodes, fabrics = _name_nodes(dumps, fabrics, stems, choices.node, notes)
    fabric = merge_fabrics(fabrics, choices.gbps, set(nodes), notes)
    merged = [_with_rates(merge_node(name, files, notes), fabric.hosts.get(name)) for name, files in nodes.items()]
    types = _Types()
    type_of = {node.name: types.add(node.kind) for node in merged}
    given = types.named(choices.node_type)
    entries, cables = _Hosts(fabric, {node.name: node for node in merged}, types, given, notes).written(type_of)
    return ClusterFile(
        name=choices.name,
        described=types.described(entries),
        switches=switch_rows(fabric.level_of),
        links=link_rows([*cables, *fabric.trunks]),
        problems=(*_said(dumps), *_said(fabrics), *notes.found()),
        level_of=fabric.level_of,
    )


def _said(found: Iterable[Found]) -> Iterable[Problem]:
    return (problem for one in found for problem in one.problems)


def _name_nodes(
    dumps: Sequence[NodeFound], fabrics: Sequence[FabricFound], stems: Mapping[str, str], given: str, notes: Notes
) -> tuple[dict[str, list[NodeFound]], list[FabricFound]]:
    """Dumps by the name of their node, and the fabrics with the adapters of these nodes given to them.

    A node is called as was said, else as its dump says, else as the fabric calls the host with its GUIDs, else after the file. A dump
    that is called after its file belongs to the node whose GPUs' UUIDs it has.
    """
    hosts = _hosts_by_guid(fabrics)
    nodes: dict[str, list[NodeFound]] = {}
    for sure in (True, False):
        for dump in dumps:
            said = given or dump.name
            if bool(said) is not sure:
                continue
            known = [hosts[guid] for guid in _guids(dump) if hosts.get(guid)]
            name = said or _by_uuid(dump, nodes) or (Counter(known).most_common(1)[0][0] if known else "")
            nodes.setdefault(allowed_name(name or stems.get(dump.file, ""), NODE), []).append(dump)
    order = {id(dump): number for number, dump in enumerate(dumps)}
    nodes = {name: sorted(files, key=lambda dump: order[id(dump)]) for name, files in nodes.items()}
    owners: dict[str, Owner | None] = {}
    for name, files in nodes.items():
        for port in (port for dump in files for port in dump.ports):
            for guid in filter(None, (guid_key(port.node_guid), guid_key(port.port_guid))):
                owner = Owner(name, port.hca)
                known_owner = owners.setdefault(guid, owner)
                if known_owner is not None and known_owner.host != name:
                    owners[guid] = None  # redacted, or copied: it tells nobody apart
    sure_owners = {guid: owner for guid, owner in owners.items() if owner is not None}
    return nodes, [name_hosts(fabric, sure_owners) if sure_owners else fabric for fabric in fabrics]


def guid_key(guid: str) -> str:
    """16 small hex digits; empty where it is no GUID, or all zeros or ones."""
    plain = guid.lower().removeprefix("0x").replace(":", "")
    if not plain or len(plain) > 16 or any(c not in "0123456789abcdef" for c in plain) or len(set(plain)) == 1:
        return ""
    return plain.zfill(16)


def _guids(dump: NodeFound) -> list[str]:
    keys = (guid_key(guid) for port in dump.ports for guid in (port.node_guid, port.port_guid))
    return [key for key in keys if key]


def _hosts_by_guid(fabrics: Iterable[FabricFound]) -> dict[str, str]:
    """Names of named hosts; empty where two hosts have one GUID."""
    found: dict[str, str] = {}
    for host in (host for fabric in fabrics for host in fabric.hosts if host.named):
        for _, guid in host.guids:
            key = guid_key(guid)
            found[key] = host.name if found.get(key, host.name) == host.name else ""
    return found


def _by_uuid(dump: NodeFound, nodes: Mapping[str, Sequence[NodeFound]]) -> str:
    mine = {gpu.uuid.lower() for gpu in dump.gpus if is_real_uuid(gpu.uuid)}
    for name, files in nodes.items():
        if mine & {gpu.uuid.lower() for other in files for gpu in other.gpus}:
            return name
    return ""


class _Types:
    """Node types by name: equal ones are one, and a built-in one keeps its own name."""

    def __init__(self) -> None:
        self._own: dict[str, NodeType] = {}
        self._names = {_nameless(kind): name for name, kind in builtin_types().items()}

    def add(self, kind: NodeType) -> str:
        key = _nameless(kind)
        if key not in self._names:
            base = type_base(kind)[:55]
            name, number = base, 2
            while name in self._own or name in builtin_types():  # ends: one round for each type of that name
                name, number = f"{base}-{number}", number + 1
            self._names[key] = name
            self._own[name] = replace(kind, name=name)
        return self._names[key]

    def named(self, name: str) -> NodeType | None:
        known = {**builtin_types(), **self._own}
        if name and name not in known:
            raise ValueError(f"found no node type {name!r}; known here: {', '.join(known)}")
        return known.get(name)

    def kind(self, name: str) -> NodeType:
        return self._own.get(name) or builtin_types()[name]

    def described(self, entries: Sequence[NodeEntry]) -> Described:
        used = {entry.type for entry in entries}
        own = {name: kind for name, kind in self._own.items() if name in used}
        entry_of_name = {name: entry for entry in entries for name in expand(entry.names)}
        return Described(tuple(own.values()), {**builtin_types(), **own}, tuple(entries), entry_of_name)


def _nameless(kind: NodeType) -> NodeType:
    return replace(kind, name="")


class _Hosts:
    """Every node, dumped or only seen on the fabric: its type, its entry, and the cables that it has."""

    def __init__(
        self, fabric: FabricMerged, nodes: Mapping[str, NodeMerged], types: _Types, given: NodeType | None, notes: Notes
    ) -> None:
        self._fabric = fabric
        self._nodes = nodes
        self._types = types
        self._given = given
        self._notes = notes
        self._other: list[str] = []  # hosts whose cables cannot be those of the given type
        others = [host for name, host in fabric.hosts.items() if name not in nodes]
        # Where no host fits, whoever gave the type knows better than a map that lacks cables.
        self._some_fit = given is not None and any(_fits(host, given) for host in others)
        if given is not None and others and not self._some_fit:
            why = f"none has the cables of {given.name}, which it is said to be; that stands"
            notes.add(others[0].file, f"{len(others)} hosts", why)

    def written(self, type_of: Mapping[str, str]) -> tuple[list[NodeEntry], list[Cable]]:
        """Entries, sorted by name, and the cables between nodes and switches."""
        entries: list[NodeEntry] = []
        cables: list[Cable] = []
        alike: dict[tuple[str, str], list[str]] = {}
        faults: dict[str, tuple[tuple[str, str], ...]] = {}
        for name, node in self._nodes.items():
            host = self._fabric.hosts.get(name)
            if host:
                cables += _renamed(host, node.kind)
            entries.append(entry_of(node, type_of[name], host.nvlink_domain if host else ""))
        for name, host in self._fabric.hosts.items():
            if name in self._nodes:
                continue
            kind_name = self._types.add(self._kind(host))
            own = _renamed(host, self._types.kind(kind_name))
            cables += own
            names = {hca.name for hca in self._types.kind(kind_name).hcas}
            dead = dict.fromkeys(cable.hca for cable in own if cable.down and cable.hca in names)
            faults[name] = tuple((f"{name}/{hca}", "its cable is down") for hca in dead)
            alike.setdefault((kind_name, host.nvlink_domain), []).append(name)
        for (kind_name, domain), members in alike.items():
            entries += _entries(kind_name, domain, members, faults)
        if self._other and self._given:
            examples = ", ".join(sorted(self._other, key=natural)[:5])
            why = f"their cables cannot be those of {self._given.name}; they get types of their own, without GPUs"
            file = self._fabric.hosts[self._other[0]].file
            self._notes.add(file, f"{len(self._other)} hosts, such as {examples}", why)
        return sorted(entries, key=lambda entry: natural(entry.names)), cables

    def _kind(self, host: HostMerged) -> NodeType:
        """The given type where the host's cables can be its, else what its cables tell: adapters and no GPU."""
        if self._given is not None:
            if not self._some_fit or _fits(host, self._given):
                return self._given
            self._other.append(host.name)
        count = sum(cable_counts(host).values())
        if count > HCAS_MAX:
            why = f"allowed: {HCAS_MAX} ports of a node; its type has the first ones"
            self._notes.add(host.file, f"{host.name}: {count} cables", why)
        return NodeType("", hcas=_ports(host))


def _fits(host: HostMerged, kind: NodeType) -> bool:
    """At least half as many cables as the type has ports, and not more: a login node has fewer. Without rates nothing is counted."""
    count, ports = sum(cable_counts(host).values()), len(kind.fabric_ports)
    return not any(cable.gbps for cable, _ in host.cables) or ports <= 2 * count <= 2 * ports


def _ports(host: HostMerged) -> tuple[HcaType, ...]:
    """Adapters by their names and ports; where the file has none, mlx5_0 and up. None where no rate is known: nothing then limits."""
    cables = [(cable, port) for cable, port in host.cables if cable.gbps > 0]
    if cables and all(cable.hca for cable, _ in cables):
        found: dict[tuple[str, int], float] = {}
        for cable, port in cables:
            number = port if 1 <= port <= PORTS_MAX else 1
            for _ in range(min(cable.count, PORTS_MAX)):
                while (cable.hca, number) in found and number < PORTS_MAX:  # ends: counts up to PORTS_MAX
                    number += 1
                found.setdefault((cable.hca, number), cable.gbps)
        ordered = sorted(found, key=lambda key: (natural(key[0]), key[1]))
        return tuple(HcaType(hca, port, found[hca, port]) for hca, port in ordered[:HCAS_MAX])
    rates = [
        rate
        for rate, count in sorted(cable_counts(host).items(), reverse=True)
        if rate > 0
        for _ in range(min(count, HCAS_MAX))
    ]
    return tuple(HcaType(f"mlx5_{i}", 1, rate) for i, rate in enumerate(rates[:HCAS_MAX]))


def _with_rates(node: NodeMerged, host: HostMerged | None) -> NodeMerged:
    """A dumped node with rates that its dumps lack (nvidia-smi topo -m has none) from its cables."""
    kind = node.kind
    if host is None or (kind.hcas and all(hca.rate_gbps > 0 for hca in kind.hcas)):
        return node
    if not kind.hcas:
        return replace(node, kind=replace(kind, hcas=_ports(host)))
    named = {cable.hca: cable.gbps for cable in _renamed(host, kind) if cable.hca}
    hcas = tuple(replace(hca, rate_gbps=hca.rate_gbps or named.get(hca.name, 0.0)) for hca in kind.hcas)
    return replace(node, kind=replace(kind, hcas=hcas))


def _renamed(host: HostMerged, kind: NodeType) -> list[Cable]:
    """The host's cables, each with its adapter's name in the type. Where the file counts adapters in its own way (HCA-1 for mlx5_0) and
    they are as many, they stand in the same order; else the names go."""
    known = {hca.name for hca in kind.hcas}
    said = sorted({cable.hca for cable, _ in host.cables if cable.hca}, key=natural)
    word: dict[str, str] = {hca: hca for hca in said}
    if not known.issuperset(said):
        ports = list(dict.fromkeys(hca.name for hca in kind.fabric_ports))
        word = (
            dict(zip(said, ports, strict=True))
            if len(said) == len(ports)
            else {hca: hca if hca in known else "" for hca in said}
        )
    return [replace(cable, hca=word.get(cable.hca, "")) for cable, _ in host.cables]


def _entries(
    kind_name: str, domain: str, members: Sequence[str], faults: Mapping[str, tuple[tuple[str, str], ...]]
) -> list[NodeEntry]:
    entries = []
    for names in ranges(members):
        own = (
            tuple(fault for name in expand(names) for fault in faults[name])
            if any(faults[name] for name in members)
            else ()
        )
        entries.append(NodeEntry(names=names, type=kind_name, nvlink_domain=domain, faults=own))
    return entries
