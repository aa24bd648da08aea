"""A topology as Slurm's topology.conf (topology.conf(5)): a tree of leaf groups for topology/tree, or NVLink domains as blocks for
topology/block.

Slurm's tree knows one parent a switch and one leaf a node. So a leaf group is one switch, however many real ones its nodes are on (the
eight of a rail-optimised pod), and so is a domain above it, however many spines join it. Real switches that stand for more than one, or
names that Slurm cannot write, are named in the comment above ("# pod1=spine[1-4]"), as Topograph does. Two nodes at 2k + 1 hops have their
first common switch at level k, which is exact on fat trees and rail-optimised fabrics.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import networkx as nx
import numpy as np
import numpy.typing as npt

from fmproto.hostlist import fold
from fmsched.model.fabric import Topology
from fmsched.topology.graph import switch_graph

LEVEL_NAMES = ("leaf", "pod", "core")  # and "level3", ...

_PLAIN = re.compile(r"[^\s,\[\]#\"'=\\]{1,255}")
_NUMBERS = re.compile(r"(\d{1,18})")


def write(topology: Topology) -> str:
    """topology.conf for topology/tree, with a tree for each fabric. A node without a live link is a leaf of its own: its jobs stay on it.
    A cluster without any switch, but with NVLink domains, is written by write_blocks.

    Raises ValueError where there is neither, and for a node's name that no host list can have.
    """
    _refuse_odd_names(topology)
    if not topology.nodes or not topology.fabric.switches:
        if any(node.nvlink_domain for node in topology.nodes):
            return write_blocks(topology)
        raise ValueError(
            "no node that a switch or an NVLink domain could join; Slurm's default, topology/flat, needs no file"
        )
    lines = ["# topology/tree: a leaf is a leaf group (nodes on the same switches), a switch above it a domain."]
    names = _Names(node.name for node in topology.nodes)
    graph = switch_graph(topology.fabric)
    above = _switches_by_level(topology, graph)
    members = _members(topology)
    named: dict[tuple[int, int], str] = {}
    for group, nodes in enumerate(members):
        real = above.get((0, group), [])
        name = names.take(real, LEVEL_NAMES[0] if real else "alone")
        named[0, group] = name
        lines += _comment(name, real)
        lines.append(f"SwitchName={name} Nodes={host_list(nodes)}")
    for level in range(1, len(topology.domains)):
        children: dict[int, dict[int, None]] = {}
        for group in map(int, np.flatnonzero(~_whole(topology, level - 1))):
            below = int(topology.domains[level - 1][group])
            children.setdefault(int(topology.domains[level][group]), {})[below] = None
        for domain, parts in children.items():
            real = above.get((level, domain), [])
            name = names.take(real, LEVEL_NAMES[level] if level < len(LEVEL_NAMES) else f"level{level}x")
            named[level, domain] = name
            lines += _comment(name, real)
            lines.append(f"SwitchName={name} Switches={host_list(named[level - 1, part] for part in parts)}")
    return "\n".join(lines) + "\n"


def write_blocks(topology: Topology) -> str:
    """topology.conf for topology/block: a block for each NVLink domain of several nodes. Block sizes are those of the smallest domain
    and its doublings, up to all of them.

    Raises ValueError where no node is in an NVLink domain, and for a node's name that no host list can have.
    """
    _refuse_odd_names(topology)
    domains: dict[str, list[str]] = {}
    outside = []
    for node in topology.nodes:
        if node.nvlink_domain:
            domains.setdefault(node.nvlink_domain, []).append(node.name)
        else:
            outside.append(node.name)
    if not domains:
        raise ValueError(
            "no node is in an NVLink domain of several nodes; topology/block has nothing to say of this cluster"
        )
    lines = ["# topology/block: a block is an NVLink domain."]
    if outside:
        lines.append(f"# In no NVLink domain: {host_list(outside)}")
    names = _Names(())
    for domain, nodes in sorted(domains.items(), key=lambda item: natural(item[0])):
        name = names.take([domain], "block")
        lines += _comment(name, [domain])
        lines.append(f"BlockName={name} Nodes={host_list(nodes)}")
    base = min(len(nodes) for nodes in domains.values())
    sizes = [base << doubling for doubling in range(len(domains).bit_length()) if 1 << doubling <= len(domains)]
    lines.append(f"BlockSizes={','.join(map(str, sizes))}")
    return "\n".join(lines) + "\n"


def natural(name: str) -> tuple[tuple[str, int, str], ...]:
    """Sorts n2 before n10."""
    return tuple(
        ("", int(part), part) if part.isdigit() and part.isascii() else (part, 0, part) for part in _NUMBERS.split(name)
    )


def host_list(names: Iterable[str]) -> str:
    """Folded for Slurm, which takes a range only at the end of a name: "unit[0-31]rack" is none of its lists."""
    ordered = sorted(names, key=natural)
    ends_in_number = [name for name in ordered if name[-1:].isdigit()]
    others = [name for name in ordered if not name[-1:].isdigit()]
    return ",".join(part for part in (fold(ends_in_number), ",".join(others)) if part)


def _refuse_odd_names(topology: Topology) -> None:
    for node in topology.nodes:
        if not _PLAIN.fullmatch(node.name):
            raise ValueError(f"the node name {node.name!r} has characters that Slurm's host lists cannot have")


def _comment(name: str, real: Sequence[str]) -> list[str]:
    if not real or list(real) == [name]:
        return []
    return [f"# {name}={' '.join(fold(sorted(real, key=natural)).split())[:250]}"]


def _members(topology: Topology) -> list[list[str]]:
    members: list[list[str]] = [[] for _ in topology.leaves]
    for node, group in zip(topology.nodes, topology.leaf_of, strict=True):
        members[int(group)].append(node.name)
    return members


def _whole(topology: Topology, level: int) -> npt.NDArray[np.bool_]:
    """For each leaf group: whether its domain at `level` is its whole fabric, so that nothing is above it. Domains are nested."""
    here, fabric = topology.domains[level], topology.domains[-1]
    return np.asarray(np.bincount(here)[here] == np.bincount(fabric)[fabric])


def _switches_by_level(topology: Topology, graph: nx.Graph[str]) -> dict[tuple[int, int], list[str]]:
    """(level, domain) → real switches: those `level` links above the nearest leaf switch of the domain."""
    nodes = {node.name for node in topology.nodes}
    group_of: dict[str, set[int]] = {}
    for link in topology.fabric.links:
        for node, switch in ((link.a, link.b), (link.b, link.a)):
            if not link.down and node in nodes and switch in graph:
                group_of.setdefault(switch, set()).add(int(topology.leaf_of[topology.index[node]]))
    found: dict[tuple[int, int], list[str]] = {}
    for switch, groups in group_of.items():
        for group in groups:
            found.setdefault((0, group), []).append(switch)
    depth = dict.fromkeys(group_of, 0)
    nearest = {switch: min(groups) for switch, groups in group_of.items()}
    frontier = list(group_of)
    for level in range(1, len(topology.domains)):
        following: list[str] = []
        for switch in frontier:
            for other in graph.neighbors(switch):
                if other not in depth:
                    depth[other], nearest[other] = level, nearest[switch]
                    following.append(other)
                    found.setdefault((level, int(topology.domains[level][nearest[other]])), []).append(other)
        frontier = following
    return found


@dataclass(slots=True)
class _Names:
    """Names of switches: a real one where it stands alone, else a number after a word. None twice, none that a node has."""

    reserved: Iterable[str]
    _used: set[str] = field(default_factory=set)
    _numbers: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._used.update(self.reserved)

    def take(self, real: Sequence[str], word: str) -> str:
        if len(real) == 1 and _PLAIN.fullmatch(real[0]) and real[0] not in self._used:
            self._used.add(real[0])
            return real[0]
        number = self._numbers.get(word, 0) + 1
        while f"{word}{number}" in self._used:  # ends: every name is used once
            number += 1
        self._numbers[word] = number
        self._used.add(f"{word}{number}")
        return f"{word}{number}"
