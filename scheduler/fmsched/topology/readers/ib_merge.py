"""From the records and links of an InfiniBand topology file to a FabricFound: each node once, each cable once, the adapters of a host
together. Both ends of a cable print it; ids may be shared by several nodes (redacted or made up), descriptions may be anybody's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from fmproto.dumptext import Problems
from fmsched.topology.readers.found import CableFound, FabricFound, HostFound, SwitchFound
from fmsched.topology.readers.ib_lines import End, Head, Kind, Link, is_guid
from fmsched.topology.readers.ib_names import AGGREGATION, chassis_of, host_of, switch_name

# A node: its id, and its description where several nodes share the id.
Key = tuple[str, str]


class _Seen(NamedTuple):
    """One sight of a link, from the node `id`, before it is known which sights are one cable."""

    line: int
    id: str
    text: str
    link: Link


@dataclass(slots=True)
class _Node:
    kind: Kind
    text: str = ""
    ports: int = 0
    system: str = ""  # system image GUID: equal for all parts of one box
    chassis: str = ""
    own: bool = False  # it has a record, or lines, of its own


@dataclass(slots=True)
class Gathered:
    """What a reader has seen so far. `port_lines`: from --ports, where every line stands alone and adapters go by port GUIDs."""

    file: str
    problems: Problems
    complete: bool = True
    _current: End | None = None
    _seen: list[_Seen] = field(default_factory=list)
    _heads: dict[str, dict[str, _Node]] = field(default_factory=dict)  # by id, then description

    @property
    def empty(self) -> bool:
        return not self._heads

    @property
    def in_record(self) -> bool:
        return self._current is not None

    def head(self, head: Head, system: str, chassis: str) -> None:
        self._own(End(head.kind, head.id, 0, head.text), head.ports, system, chassis)
        self._current = End(head.kind, head.id, 0, head.text)

    def end_record(self) -> None:
        self._current = None

    def link(self, line: int, link: Link) -> None:
        """A link of the current record."""
        assert self._current is not None, "a link outside a record is the caller's to set aside"
        self._seen.append(_Seen(line, self._current.id, self._current.text, link))

    def forget(self, line: int) -> None:
        """Forgets a link of a line that is cut, unless its far end has a record: what such a line says of a new node is not all of it."""
        if self._seen and self._seen[-1].line == line and self._seen[-1].link.far_id not in self._heads:
            self._seen.pop()

    def port(self, line: int, near: End, far: End | None, gbps: float) -> None:
        """A line that says both of its ends, or that nothing is plugged into the first."""
        self._own(near, near.port, "", "")
        if far is not None:
            self._see(line, near, far, gbps)

    def both(self, line: int, a: End, b: End, gbps: float) -> None:
        """A line that describes both of its ends wholly."""
        self._own(a, a.port, "", "")
        self._own(b, b.port, "", "")
        self._see(line, a, b, gbps)

    def _see(self, line: int, a: End, b: End, gbps: float) -> None:
        self._seen.append(_Seen(line, a.id, a.text, Link(a.port, b.kind, b.id, b.port, b.text, gbps)))

    def _own(self, end: End, ports: int, system: str, chassis: str) -> None:
        node = self._heads.setdefault(end.id, {}).setdefault(end.text, _Node(end.kind, end.text))
        node.own = True
        node.ports = max(node.ports, ports)
        node.system = system or node.system
        node.chassis = chassis or node.chassis

    # --- putting together

    def found(self, kind: str) -> FabricFound:
        nodes = self._nodes()
        cables = self._cables(nodes)
        self._tell_of_nodes_without_links(nodes, cables)
        self._tell_of_ends_without_records(nodes)
        names = _Names(nodes, self.problems)
        return FabricFound(
            kind=kind,
            file=self.file,
            switches=tuple(_switches(nodes, names)),
            hosts=tuple(names.hosts()),
            cables=tuple(self._named(cables, nodes, names)),
            complete=self.complete,
            problems=self.problems.found(),
        )

    def _nodes(self) -> dict[Key, _Node]:
        """Every node by key, those with records first. Settles which ids are shared, so that _key() may be asked."""
        far: dict[str, dict[str, Kind]] = {}
        for _, _, _, link in self._seen:
            far.setdefault(link.far_id, {}).setdefault(link.far_text, link.far_kind)
        for identity, texts in far.items():
            heads = self._heads.setdefault(identity, {})
            # A node name map renames switches in links and not in records: a GUID with a record is one node, whatever links call it.
            if not heads or not is_guid(identity):
                for text, kind in texts.items():
                    if text or not heads:
                        heads.setdefault(text, _Node(kind, text))
            elif len(heads) == 1 and "" in heads:
                heads[""].text = next((text for text in texts if text), "")  # its record is damaged; its links know it
        for identity, heads in self._heads.items():
            if len(heads) > 1 and "" in heads:
                blank = heads.pop("")
                next(iter(heads.values())).own |= blank.own
            if len(heads) > 1:
                why = f"{len(heads)} nodes have this id; they are told apart by their descriptions"
                self.problems.add(0, f"id {identity}", why)
        return {self._key(identity, text): node for identity, heads in self._heads.items() for text, node in heads.items()}

    def _key(self, identity: str, text: str) -> Key:
        heads = self._heads[identity]
        if len(heads) == 1:
            return identity, ""
        return identity, text if text in heads else next(iter(heads))

    def _cables(self, nodes: dict[Key, _Node]) -> dict[tuple[Key, int, Key, int], list[_Seen]]:
        """The sights of each cable, by its two ports."""
        cables: dict[tuple[Key, int, Key, int], list[_Seen]] = {}
        used: dict[tuple[Key, int], tuple[Key, int]] = {}
        for seen in self._seen:
            link = seen.link
            a, b = (self._key(seen.id, seen.text), link.port), (self._key(link.far_id, link.far_text), link.far_port)
            if used.setdefault(a, b) != b or used.setdefault(b, a) != a:
                where = f"port {a[1]} of {a[0][0]} to port {b[1]} of {b[0][0]}"
                self.problems.add(seen.line, where, "one of the ports has another cable already; allowed: one")
                continue
            near, far = (a, b) if a <= b else (b, a)
            cables.setdefault((*near, *far), []).append(seen)
        return cables

    def _tell_of_nodes_without_links(
        self, nodes: dict[Key, _Node], cables: dict[tuple[Key, int, Key, int], list[_Seen]]
    ) -> None:
        linked = {key for a, _, b, _ in cables for key in (a, b)}
        alone = [key for key in nodes if key not in linked]
        if alone:
            self.problems.add(
                0, "nodes without links", f"{len(alone)} records have no link, the first of them {alone[0][0]}"
            )
        if not cables:
            self.complete = False  # a fabric was discovered over some link

    def _tell_of_ends_without_records(self, nodes: dict[Key, _Node]) -> None:
        missing = [key for key, node in nodes.items() if not node.own and AGGREGATION not in node.text]
        if missing:
            self.complete = False
            why = f"{len(missing)} ends of links have no record of their own, the first of them {missing[0][0]}: the file is not whole"
            self.problems.add(0, "links without records", why)

    def _named(
        self, cables: dict[tuple[Key, int, Key, int], list[_Seen]], nodes: dict[Key, _Node], names: _Names
    ) -> Iterator[CableFound]:
        one_sided = 0
        for (near, near_port, far, far_port), sights in cables.items():
            line = sights[0].line
            # Where one end is a host, it comes second.
            hosts_end_last = nodes[far].kind is Kind.HOST
            a, b, b_port = (near, far, far_port) if hosts_end_last else (far, near, near_port)
            one, other = names.end.get(a), names.end.get(b)
            if one is None or other is None:
                if all(key in names.end or AGGREGATION in nodes[key].text for key in (a, b)):
                    continue  # a switch's own end for SHARP reductions
                self.problems.add(
                    line, f"link of {a[0]} to {b[0]}", "neither a record nor the id says what is at its far end"
                )
                continue
            if one[0] == other[0]:
                self.problems.add(line, f"link of {a[0]} to itself", "it joins nothing")
                continue
            rates = {seen.link.gbps for seen in sights if seen.link.gbps}
            if len(rates) > 1:
                self.problems.add(
                    line, f"link of {a[0]} to {b[0]}", f"its ends say {sorted(rates)} Gb/s; the lower one counts"
                )
            one_sided += len(sights) == 1 and nodes[a].own and nodes[b].own
            hca_port = b_port if nodes[b].kind is Kind.HOST else 0
            yield CableFound(one[0], other[0], min(rates, default=0.0), hca=other[1], hca_port=hca_port)
        if one_sided:
            self.problems.add(
                0, "links that one end shows", f"{one_sided} links are in the record of one end only; they are taken"
            )


def _switches(nodes: dict[Key, _Node], names: _Names) -> Iterator[SwitchFound]:
    switches = {key: node for key, node in nodes.items() if node.kind is Kind.SWITCH}
    boxes = Counter(node.system for node in switches.values() if node.system)
    box_names: dict[str, str] = {}
    for node in switches.values():
        if boxes[node.system] > 1:
            box_names.setdefault(node.system, chassis_of(node.text) or _box(node.text) or node.system)
    for key, node in switches.items():
        chassis = node.chassis or box_names.get(node.system, "") or chassis_of(node.text)
        yield SwitchFound(names.end[key][0], switch_name(node.text), chassis=chassis, ports=node.ports)


def _box(text: str) -> str:
    return switch_name(text).partition("/")[0]


class _Names:
    """`end`: for each node that counts, (its id in the result, the adapter's name of a host's end)."""

    def __init__(self, nodes: dict[Key, _Node], problems: Problems) -> None:
        self.end: dict[Key, tuple[str, str]] = {}
        self._adapters: dict[str, list[tuple[str, str]]] = {}
        self._named: dict[str, str] = {}
        self._taken: set[str] = set()
        for key, node in nodes.items():
            if node.kind is Kind.SWITCH:
                self.end[key] = (self._free(key), "")
        self._switches = frozenset(self._taken)
        for key, node in nodes.items():
            if node.kind is Kind.HOST and AGGREGATION not in node.text:
                self._host(key, node)
        nameless = [identity for identity in self._adapters if identity not in self._named]
        if nameless:
            why = f"{len(nameless)} adapters describe themselves by no host's name; each is taken as a host of its own"
            problems.add(0, f"adapter {nameless[0]}", why)
        for identity, adapters in self._adapters.items():
            (adapter, often), *_ = Counter(adapter for adapter, _ in adapters).most_common(1)
            if often > 1 and adapter:
                why = f"{often} adapters of one host have this name; taken as one host"
                problems.add(0, f"{identity} {adapter}", why)

    def _host(self, key: Key, node: _Node) -> None:
        # ibsim's ids are names.
        said = (key[0], "") if not node.text and not is_guid(key[0]) else host_of(node.text)
        if said is None:
            identity, adapter = self._free(key), ""
        else:
            name, adapter = said
            identity = f"{name} (host)" if name in self._switches else name
            self._named[identity] = name
        self.end[key] = (identity, adapter)
        self._adapters.setdefault(identity, []).append((adapter, key[0]))

    def hosts(self) -> Iterator[HostFound]:
        for identity, adapters in self._adapters.items():
            yield HostFound(identity, self._named.get(identity, identity), tuple(adapters), named=identity in self._named)

    def _free(self, key: Key) -> str:
        """The node's id, made unique."""
        identity, text = key
        longer, number = f"{identity} {text}".strip(), 2
        while identity in self._taken:
            identity, longer, number = longer, f"{key[0]} {text} {number}", number + 1
        self._taken.add(identity)
        return identity
