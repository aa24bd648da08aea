"""Switches that list what is below them, made a fabric: what topology.conf, topology.yaml and Topograph's models have in common.

The lists need not make a tree. They are read as a graph: a cable that both its ends list is one cable, a cycle is no error, and a node
under several leaves is on all of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from fmproto.dumptext import Problems
from fmsched.topology.readers.found import CableFound, FabricFound, HostFound, SwitchFound
from fmsched.topology.readers.slurm_names import guid_of

STEPS_MAX = 3_000_000  # looking for nodes below switches; a fat tree of 12,500 nodes needs some 50,000
# Where a cluster manager must place a node whose place it does not know (soperator does so).
PLACELESS = "unknown"


@dataclass(slots=True)
class Listed:
    """A switch as the file lists it. `level` where the file says it; `gbps` of its links to what it lists, 0: not said."""

    line: int
    name: str
    level: int | None = None
    gbps: float = 0.0
    defined: bool = False
    nodes: dict[str, None] = field(default_factory=dict)
    children: dict[str, None] = field(default_factory=dict)


class Listing:
    """What a file lists, in its order."""

    def __init__(self, problems: Problems) -> None:
        self._problems = problems
        self.switches: dict[str, Listed] = {}
        self.hosts: dict[str, str] = {}  # name → NVLink domain
        self._guids: set[str] = set()  # hosts that have a GUID in place of a name

    def switch(self, line: int, name: str, label: str = "", level: int | None = None, gbps: float = 0.0) -> Listed:
        """Defines a switch. Defined twice, its lists are joined."""
        found = self.switches.setdefault(name, Listed(line, label or name))
        if found.defined:
            self._problems.add(line, name, f"switch defined twice, first in line {found.line}; what both list is joined")
        found.line, found.name, found.defined = line, label or name, True
        found.level = found.level if level is None else level
        found.gbps = gbps or found.gbps
        return found

    def below(self, switch: str, children: Iterable[str], nodes: Iterable[str]) -> None:
        """`switch` must be defined."""
        found = self.switches[switch]
        for child in children:
            if child == switch:
                self._problems.add(found.line, child, "a switch lists itself; the entry is passed over")
            else:
                found.children[child] = None
                self.switches.setdefault(child, Listed(found.line, child))
        for node in map(self._host_name, nodes):
            found.nodes[node] = None
            self.hosts.setdefault(node, "")

    def domain(self, line: int, domain: str, nodes: Iterable[str]) -> None:
        """Nodes of one NVLink domain; "": of none."""
        twice = []
        for node in map(self._host_name, nodes):
            before = self.hosts.setdefault(node, domain)
            if not before:
                self.hosts[node] = domain
            elif domain and before != domain:
                twice.append(node)
        if twice:
            self._problems.add(
                line,
                f"{domain}: {', '.join(twice[:5])}",
                f"{len(twice)} nodes that are in another block already; they stay there",
            )

    def _host_name(self, name: str) -> str:
        """GUIDs in one spelling."""
        guid = guid_of(name)
        if guid:
            self._guids.add(guid)
        return guid or name

    def found(self, kind: str, *, complete: bool = True) -> FabricFound:
        """Raises ReaderError where the lists are too tangled to follow."""
        for name, listed in self.switches.items():
            if not listed.defined:
                self._problems.add(
                    listed.line, name, "listed as a switch, but the file has no line for it; it is kept without nodes"
                )
        direct = self._direct_nodes()
        ids = self._ids()
        level = _levels(self.switches)
        cables: dict[tuple[str, str], CableFound] = {}
        for name, listed in self.switches.items():
            for child in listed.children:
                ends = (child, name) if child < name else (name, child)
                old = cables.get(ends)
                if old is None or old.gbps < listed.gbps:
                    cables[ends] = CableFound(child, name, gbps=listed.gbps)
            for node in direct[name]:
                cables["", f"{ids[node]}\n{name}"] = CableFound(ids[node], name, gbps=listed.gbps)
        return FabricFound(
            kind=kind,
            file=self._problems.file,
            switches=tuple(
                SwitchFound(name, listed.name, level[name] if listed.level is None else listed.level)
                for name, listed in self.switches.items()
            ),
            hosts=tuple(self._host(ids[name], name, domain) for name, domain in self.hosts.items()),
            cables=tuple(cables.values()),
            complete=complete,
            problems=self._problems.found(),
        )

    def _host(self, host: str, name: str, domain: str) -> HostFound:
        guid = name in self._guids
        return HostFound(host, name, guids=(("", name),) if guid else (), nvlink_domain=domain, named=not guid)

    def _ids(self) -> dict[str, str]:
        """Ids of hosts by name: never a switch's."""
        ids = {name: name for name in self.hosts}
        for name in self.hosts.keys() & self.switches.keys():
            self._problems.add(0, name, f"a node and a switch have this name; the node is kept as 'node {name}'")
            ids[name] = f"node {name}"
        return ids

    def _direct_nodes(self) -> dict[str, list[str]]:
        """Of the nodes that a switch lists, those at its own ports. Slurm prints with an upper switch all nodes below it."""
        direct: dict[str, list[str]] = {}
        steps = 0
        for name, listed in self.switches.items():
            if name.lower().rpartition(".")[2] == PLACELESS and listed.nodes:  # one for each fabric: "ib-b.unknown"
                self._problems.add(
                    listed.line,
                    name,
                    f"no real switch: {len(listed.nodes)} nodes whose place is not known; they get no cable",
                )
                direct[name] = []
                continue
            direct[name] = list(listed.nodes)
            if not listed.nodes or not listed.children:
                continue
            below: set[str] = set()
            seen, stack, missing = {name}, list(listed.children), 0
            while stack:
                switch = stack.pop()
                if switch in seen:
                    continue
                seen.add(switch)
                lower = self.switches[switch]
                missing += not lower.defined
                below.update(lower.nodes)
                stack.extend(lower.children)
                steps += 1 + len(lower.nodes) + len(lower.children)
                if steps > STEPS_MAX:
                    raise self._problems.refuse(
                        "the switches list one another and their nodes too often to be followed", name, listed.line
                    )
            direct[name] = [node for node in listed.nodes if node not in below]
            if missing and direct[name]:
                self._problems.add(
                    listed.line,
                    f"{name}: {', '.join(direct[name][:5])}",
                    f"{len(direct[name])} nodes below it are below no switch that the file has a line for; they get no cable",
                )
                direct[name] = []
        return direct


def _levels(switches: dict[str, Listed]) -> dict[str, int | None]:
    """1 + the highest level below, leaves 0, as Slurm counts; None on and above a cycle."""
    parents: dict[str, list[str]] = {name: [] for name in switches}
    waits = {name: len(listed.children) for name, listed in switches.items()}
    for name, listed in switches.items():
        for child in listed.children:
            parents[child].append(name)
    level: dict[str, int | None] = dict.fromkeys(switches)
    ready = [name for name, count in waits.items() if not count]
    for name in ready:
        level[name] = 0
    while ready:
        name = ready.pop()
        here = level[name] or 0
        for parent in parents[name]:
            level[parent] = max(level[parent] or 0, here + 1)
            waits[parent] -= 1
            if not waits[parent]:
                ready.append(parent)
    return {name: (None if waits[name] else level[name]) for name in switches}
