"""Whose adapter is it: host names from node descriptions, and from files that join host names to GUIDs.

The kernel's driver sets an adapter's description to "HOST mlx5_0" (rdma-ndd) or "HOST HCA-1" (older OFED scripts). Before either has
run, the description is the firmware's: "MT4129 ConnectX7   Mellanox Technologies". Such a name belongs to nobody.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from fmproto.dumptext import Problem, Problems, lines_of
from fmsched.topology.readers.found import CableFound, FabricFound, HostFound
from fmsched.topology.readers.ib_lines import parse_head, parse_port

# What an adapter is called after the host's name: by OFED's scripts, by a driver, or by udev's rules (rdma_rename).
_ADAPTER = re.compile(
    r"(?:HCA-?\d{1,3}|(?:mlx|hfi|qedr|bnxt_re|irdma|efa|siw|rxe|mana|hns|ibsim|qib|ipath|mthca|ehca|nes|cxgb|ocrdma|usnic|vmw_pvrdma)"
    r"[\w.-]{0,24}|(?:ib|roce|rdma|opa|iw)[psoxb]?[\w.-]{1,24})",
    re.IGNORECASE,
)
# Words of firmware and drivers: a description that has one is no host's.
_VENDORS = re.compile(
    r"technologies|mellanox|nvidia|infinihost|connectx|connect-ib|bluefield|qlogic|pseudo|\bMT\d{4,6}\b", re.IGNORECASE
)
# Alone, or before an adapter's name, these are a firmware's words; a host may well be called nvidia-01.
_FIRMWARE = re.compile(
    r"mellanox|nvidia|qlogic|technologies|MT\d{4,6}[\w.-]{0,40}|(?:connectx|connect-ib|infinihost|bluefield)-?\d?",
    re.IGNORECASE,
)
# The qib driver puts the host behind its own words (qib_verbs.c of Linux).
_QIB = re.compile(r"(?:Intel|QLogic) Infini[Bb]and HCA (\S+)")
# What a machine says of itself before it has a name.
_NAMELESS = frozenset({"localhost", "localhost.localdomain", "(none)", "none", "unknown", "hca", "n/a"})
# SHARP: the switch's own end for reductions; it looks like an adapter and is no host.
AGGREGATION = "Aggregation Node"
NAME_MAX = 253  # characters of a host's name, as DNS allows

_GUID = re.compile(
    r"(?<![\w:.-])(?:0x([0-9a-fA-F]{12,16})|([0-9a-fA-F]{12,16})|([0-9a-fA-F]{4}(?::[0-9a-fA-F]{4}){3}))(?![\w:.-])"
)
_LABEL = re.compile(r"\b(?:(?:node|port|system image|sys image|ca|sm|base)[ _]?)?guid\b", re.IGNORECASE)
_HOST_WORD = re.compile(r"\b(?:vm_)?(?:hostname|host|node|name|server|vm)\b(?:[ \t]*[:=])?[ \t]+(?=\S)", re.IGNORECASE)
_HOST_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")
_SEPARATORS = " \t,;:=|\"'[]{}()"


def host_of(text: str) -> tuple[str, str] | None:
    """(host, adapter's name or "") of a node description; None where it names no host."""
    if (qib := _QIB.fullmatch(text)) and len(qib[1]) <= NAME_MAX and qib[1].lower() not in _NAMELESS:
        return qib[1], ""
    words = text.split()
    if not words or words[0].lower() in _NAMELESS or len(words[0]) > NAME_MAX or _FIRMWARE.fullmatch(words[0]):
        return None
    if len(words) > 1:
        return (words[0], words[1]) if _ADAPTER.fullmatch(words[1]) else None
    return None if _ADAPTER.fullmatch(words[0]) else (words[0], "")


def switch_name(text: str) -> str:
    """A switch's name for people: "MF0;leaf-1:MQM8700/U1" is leaf-1, "MF0;core:CS8500/L01/U1" core/L01/U1; "" for a firmware's text."""
    text = text.strip()
    if text.startswith("MF0;"):
        box, _, place = text.removeprefix("MF0;").partition(":")
        _, _, inside = place.partition("/")
        name = box if inside in {"", "U1"} else f"{box}/{inside}"
    else:
        name = "" if _VENDORS.search(text) else text
    return name[:NAME_MAX]


def chassis_of(text: str) -> str:
    """The box of a director's board ("MF0;core:CS8500/L01/U1" → core); "" for a switch that is a box of its own."""
    if not text.startswith("MF0;"):
        return ""
    box, _, place = text.removeprefix("MF0;").partition(":")
    return box if re.search(r"/[LS]\d{1,3}(?:/|$)", place) else ""


@dataclass(frozen=True, slots=True)
class HostGuids:
    """`host_of` maps node or port GUIDs (16 small hex digits) to host names."""

    file: str
    host_of: Mapping[str, str]
    problems: tuple[Problem, ...] = ()


def read_host_guids(text: str, file: str) -> HostGuids:
    """A map that joins host names to GUIDs: a line "VM_hostname NAME" (or "NAME:") followed by GUIDs, "NAME: GUID, GUID" in one line,
    or a node name map ("0xGUID "NAME HCA-1""). Raises ReaderError where no GUID is joined to a host.
    """
    problems = Problems(file)
    found: dict[str, str] = {}
    host, names, strange = "", 0, 0
    for number, line in lines_of(text, problems):
        if not line or line.lstrip().startswith(("#", "//")):
            continue
        if parse_head(line) or parse_port(line):
            raise problems.refuse("found a topology file; allowed: lines that join host names to GUIDs", line, number)
        guids = [_normal(match) for match in _GUID.finditer(line)]
        named = _name_in(_GUID.sub(" ", line))
        if named is None:
            problems.add(number, line, "neither a host's name nor GUIDs; allowed: NAME, GUID, or NAME: GUID, GUID")
            host, strange = "", strange + 1
            continue
        names += bool(named)
        host = named or host
        if guids and not host:
            problems.add(number, line, "GUIDs before any host's name")
            continue
        for guid in guids:
            if found.setdefault(guid, host) != host:
                problems.add(number, f"{guid} of {host}", f"the GUID is {found[guid]}'s already; allowed: one host")
    if not found or strange > len(found):
        why = (
            "names hosts, but has no GUID"
            if names and not found and not strange
            else "has no line that joins a host's name to GUIDs"
        )
        raise problems.refuse(f"{why}; allowed: NAME: GUID, GUID, or NAME and GUIDs on the lines after it")
    return HostGuids(file, found, problems.found())


def _normal(match: re.Match[str]) -> str:
    return (match[1] or match[2] or match[3].replace(":", "")).lower().zfill(16)


def _name_in(rest: str) -> str | None:
    """The host's name in what is left of a line without its GUIDs; "" for none; None where the text is no name."""
    rest = _LABEL.sub(" ", rest)
    rest = _HOST_WORD.sub("", rest, count=1).strip(_SEPARATORS)
    if not rest:
        return ""
    words = rest.split()
    name = words[0].strip(_SEPARATORS)
    if len(words) > 1 and not all(_ADAPTER.fullmatch(word.strip(_SEPARATORS)) or word in _SEPARATORS for word in words[1:]):
        return None
    return name if _HOST_NAME.fullmatch(name) else None


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose adapter a GUID is. `hca`: what the host calls it; empty: not known, and the file's own word stays."""

    host: str
    hca: str = ""


def apply_host_guids(found: FabricFound, guids: HostGuids) -> FabricFound:
    """`found` with the hosts that the map names."""
    owners = {guid: Owner(host) for guid, host in guids.host_of.items()}
    named = name_hosts(found, owners)
    return replace(named, problems=(*named.problems, *guids.problems))


def name_hosts(found: FabricFound, owners: Mapping[str, Owner]) -> FabricFound:
    """`found` with hosts renamed by the GUIDs of their adapters, and merged where several turn out to be one. A host whose adapters
    belong to several owners is no single machine: it goes to the owner of most of them, and a problem says so.
    """
    problems: list[Problem] = []
    new_id: dict[str, str] = {}
    hca_of: dict[tuple[str, str], str] = {}
    taken = {switch.id for switch in found.switches}
    for host in found.hosts:
        said = [(adapter, owner) for adapter, guid in host.guids if (owner := owners.get(guid)) is not None]
        counts = Counter(owner.host for _, owner in said)
        if not counts:
            new_id[host.id] = host.id
            continue
        name = counts.most_common(1)[0][0]
        if len(counts) > 1:
            why = f"its adapters belong to {', '.join(sorted(counts)[:4])}; taken as {name}"
            problems.append(Problem(found.file, 0, f"host {host.name}", why))
        new_id[host.id] = f"{name} (host)" if name in taken else name
        hca_of |= _adapters(host, [(adapter, owner) for adapter, owner in said if owner.host == name])
    cables = [_moved(cable, new_id, hca_of) for cable in found.cables]
    inside = [cable for cable in cables if cable.a == cable.b]
    if inside:
        why = f"{len(inside)} cables join adapters of one host, {inside[0].a} the first: they are left out"
        problems.append(Problem(found.file, 0, "cables inside a host", why))
    return replace(
        found,
        hosts=tuple(_merged(found, new_id, hca_of, owners)),
        cables=tuple(cable for cable in cables if cable.a != cable.b),
        problems=(*found.problems, *problems),
    )


def _adapters(host: HostFound, said: list[tuple[str, Owner]]) -> dict[tuple[str, str], str]:
    """(host id, the file's word for an adapter) → the owner's word, where the file's word stands for one adapter only."""
    often = Counter(adapter for adapter, _ in host.guids)
    return {(host.id, adapter): owner.hca for adapter, owner in said if owner.hca and often[adapter] == 1}


def _merged(
    found: FabricFound, new_id: Mapping[str, str], hca_of: Mapping[tuple[str, str], str], owners: Mapping[str, Owner]
) -> Iterator[HostFound]:
    groups: dict[str, list[HostFound]] = {}
    for host in found.hosts:
        groups.setdefault(new_id[host.id], []).append(host)
    for identity, members in groups.items():
        renamed = [host for host in members if any(guid in owners for _, guid in host.guids)]
        name = identity.removesuffix(" (host)") if renamed else members[0].name
        pairs = {(hca_of.get((host.id, adapter), adapter), guid): None for host in members for adapter, guid in host.guids}
        named = bool(renamed) or members[0].named
        domain = next((host.nvlink_domain for host in members if host.nvlink_domain), "")
        yield HostFound(identity, name, tuple(pairs), domain, named)


def _moved(cable: CableFound, new_id: Mapping[str, str], hca_of: Mapping[tuple[str, str], str]) -> CableFound:
    owner = cable.b if cable.b in new_id else cable.a
    hca = hca_of.get((owner, cable.hca), cable.hca)
    return replace(cable, a=new_id.get(cable.a, cable.a), b=new_id.get(cable.b, cable.b), hca=hca)
