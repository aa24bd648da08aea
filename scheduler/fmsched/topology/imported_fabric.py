"""Fabrics out of dumps, merged: hosts and switches under allowed names, and the cables between them. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from fmproto.nodetypes import GBPS_MAX, HCA_NAME
from fmsched.topology.fabric_rows import Cable, levels
from fmsched.topology.imported_names import Notes, allowed_name, unique_names
from fmsched.topology.readers.found import CableFound, FabricFound, HostFound, SwitchFound

EXAMPLES_MAX = 4  # names that a message lists


@dataclass(slots=True)
class HostMerged:
    """A node on the fabric. `cables` are its own, `a` being its name; `hca` empty where its file does not say."""

    name: str
    nvlink_domain: str = ""
    file: str = ""
    cables: list[tuple[Cable, int]] = field(default_factory=list)  # with the adapter's port number; 0: not said


@dataclass(slots=True)
class FabricMerged:
    """`trunks` join switches. Names are allowed ones, and unique over hosts and switches."""

    hosts: dict[str, HostMerged] = field(default_factory=dict)
    level_of: dict[str, int] = field(default_factory=dict)
    trunks: list[Cable] = field(default_factory=list)


def merge_fabrics(founds: Sequence[FabricFound], gbps: float, nodes: set[str], notes: Notes) -> FabricMerged:
    """Switches are the same by id, hosts by name. A pair of ends that two files join is told by the first of them that knows a rate.
    `gbps`: the rate of cables whose file has none; `nodes`: names that no switch may have."""
    switches: dict[str, SwitchFound] = {}
    for found in founds:
        for switch in found.switches:
            before = switches.setdefault(switch.id, switch)
            if before.level is None or not before.name:
                switches[switch.id] = replace(
                    before, level=switch.level if before.level is None else before.level, name=before.name or switch.name
                )
    merged = FabricMerged()
    host_names = [_name_hosts(found, notes) for found in founds]
    for found, names in zip(founds, host_names, strict=True):
        for host in found.hosts:
            _take_host(host, names[host.id], found.file, merged, notes)
    files = ", ".join(dict.fromkeys(found.file for found in founds))[:200]
    switch_names = unique_names(
        {id_: switch.name or id_ for id_, switch in switches.items()},
        merged.hosts.keys() | nodes,
        "switch",
        lambda name, new: notes.add(files, f"switch {name}", f"{_few(new)}: so that each switch has a name of its own"),
    )
    cables = _pairs(founds, host_names, switch_names, gbps, notes)
    _place(cables, merged, {switch_names[id_]: switch.level for id_, switch in switches.items()})
    return merged


def _few(names: Sequence[str]) -> str:
    more = f" and {len(names) - EXAMPLES_MAX} more" if len(names) > EXAMPLES_MAX else ""
    return f"written as {', '.join(names[:EXAMPLES_MAX])}{more}"


def _name_hosts(found: FabricFound, notes: Notes) -> dict[str, str]:
    """Allowed names by id. Two hosts of one file with one name are two; their ids tell them apart."""
    return unique_names(
        {host.id: host.name or host.id for host in found.hosts},
        (),
        "host",
        lambda name, new: notes.add(found.file, f"host {name}", f"{_few(new)}: so that each host has a name of its own"),
    )


def _take_host(host: HostFound, name: str, file: str, merged: FabricMerged, notes: Notes) -> None:
    domain = " ".join("".join(c if c.isprintable() else " " for c in host.nvlink_domain).split())[:200]
    known = merged.hosts.setdefault(name, HostMerged(name, domain, file))
    if domain and known.nvlink_domain and domain != known.nvlink_domain:
        notes.add(file, f"{name} in NVLink domain {domain}", f"{known.file} says {known.nvlink_domain}; that stands")
    known.nvlink_domain = known.nvlink_domain or domain


Ends = tuple[tuple[bool, str], tuple[bool, str]]  # (is a switch, name), a host first


def _pairs(
    founds: Sequence[FabricFound],
    host_names: Sequence[Mapping[str, str]],
    switch_names: Mapping[str, str],
    gbps: float,
    notes: Notes,
) -> dict[Ends, list[tuple[CableFound, int]]]:
    """The cables of each pair of ends, as one file tells of it; a cable's own ends are ids."""
    chosen: dict[Ends, list[CableFound]] = {}
    chosen_file: dict[Ends, str] = {}
    for found, names in zip(founds, host_names, strict=True):
        here: dict[Ends, list[CableFound]] = {}
        for cable in found.cables:
            ends = _ends(cable, names, switch_names)
            if ends is None:
                notes.add(
                    found.file,
                    f"cable {cable.a} to {cable.b}",
                    "one end is neither a switch nor a host of the file: set aside",
                )
            elif ends[0] == ends[1]:
                notes.add(found.file, f"cable {cable.a} to {cable.b}", "joins an end to itself: set aside")
            elif cable.count > 0:
                here.setdefault(ends, []).append(cable)
        for ends, cables in here.items():
            if ends not in chosen or (not _rate(chosen[ends]) and _rate(cables)):
                chosen[ends], chosen_file[ends] = cables, found.file
            elif _rate(cables) and _rate(cables) != _rate(chosen[ends]):
                what = f"{ends[0][1]} to {ends[1][1]}: {_rate(cables):g} Gb/s"
                notes.add(found.file, what, f"{chosen_file[ends]} says {_rate(chosen[ends]):g} Gb/s; that stands")
    return {
        ends: [(replace(cable, gbps=min(GBPS_MAX, max(0.0, cable.gbps or gbps))), cable.hca_port) for cable in cables]
        for ends, cables in chosen.items()
    }


def _rate(cables: Iterable[CableFound]) -> float:
    return sum(cable.gbps * cable.count for cable in cables)


def _ends(cable: CableFound, hosts: Mapping[str, str], switches: Mapping[str, str]) -> Ends | None:
    ends = []
    for end in (cable.a, cable.b):
        if end in switches:
            ends.append((True, switches[end]))
        elif end in hosts:
            ends.append((False, hosts[end]))
        else:
            return None
    one, other = sorted(ends)
    return one, other


def _place(
    cables: Mapping[Ends, list[tuple[CableFound, int]]], merged: FabricMerged, switches: Mapping[str, int | None]
) -> None:
    with_hosts = {b for (a_switch, _), (b_switch, b) in cables if b_switch and not a_switch}
    trunks = [(a, b) for (a_switch, a), (b_switch, b) in cables if a_switch and b_switch]
    merged.level_of = levels(switches, with_hosts, trunks)
    for ((a_switch, a), (b_switch, b)), found in cables.items():
        for cable, hca_port in found:
            if a_switch:
                low, high = sorted((a, b), key=lambda name: (merged.level_of[name], name))
                merged.trunks.append(Cable(low, high, cable.gbps, cable.count, cable.down))
                continue
            hca = cable.hca if HCA_NAME.fullmatch(cable.hca) else allowed_name(cable.hca, "")[:63]
            hca = hca if HCA_NAME.fullmatch(hca) else ""
            # A cable straight between two hosts belongs to the first; one adapter's name says nothing of the other's.
            merged.hosts[a].cables.append(
                (Cable(a, b, cable.gbps, cable.count, cable.down, hca if b_switch else ""), hca_port)
            )


def cable_counts(host: HostMerged) -> Counter[float]:
    """How many cables of each rate a host has."""
    counts: Counter[float] = Counter()
    for cable, _ in host.cables:
        counts[cable.gbps] += cable.count
    return counts
