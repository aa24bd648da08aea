"""One node out of several dumps of it, as a node type and an entry of a Cluster file. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from fmproto.described import NodeEntry, made_uuid
from fmproto.nodetypes import (
    ACTIVE,
    CPUS_MAX,
    ETHERNET,
    GBPS_MAX,
    HCA_NAME,
    HCAS_MAX,
    INFINIBAND,
    MEMORY_GB_MAX,
    PORTS_MAX,
    HcaType,
    NodeType,
)
from fmsched.topology.imported_gpus import Gpus, merge_gpus, pci_key, type_of, uuid_allowed
from fmsched.topology.imported_names import Notes, allowed_name, natural
from fmsched.topology.imported_nvlink import merge_nvlink, nvlink_domain
from fmsched.topology.readers.found import NodeFound, PortFound

# From a GPU to an adapter, the nearest first. An adapter is near the GPUs behind its PCIe switch, else those of its NUMA node.
_SWITCH, _NUMA = ("PIX", "PXB", "PSB"), ("PHB", "NODE", "C2C")
_GPU_KEY = re.compile(r"(?:GPU)?([0-9]{1,3})", re.IGNORECASE)

PortKey = tuple[str, int]


@dataclass(frozen=True, slots=True)
class NodeMerged:
    """What all dumps of one node say together. `faults` are (device, reason); `ports` by adapter and number."""

    name: str
    kind: NodeType  # its name is not given yet
    uuids: tuple[str, ...]
    faults: tuple[tuple[str, str], ...]
    ports: Mapping[PortKey, PortFound] = field(default_factory=dict)
    nvlink_domain: str = ""


def merge_node(name: str, founds: Sequence[NodeFound], notes: Notes) -> NodeMerged:
    """`name` is an allowed one. What contradicts goes to `notes`; the first file stands."""
    gpus = merge_gpus(founds, notes)
    ports = _merge_ports(founds, gpus, notes)
    slots = [gpus.slots[index] for index in range(len(gpus.slots))]
    domain, domain_rate = nvlink_domain(gpus, founds[0].file, notes)
    kind = NodeType(
        name="",
        gpus=tuple(type_of(gpu, founds[0].file, notes) for gpu in slots),
        nvlink=merge_nvlink(founds, gpus, notes),
        hcas=tuple(_hca(port) for port in ports.values()),
        cpus=min(CPUS_MAX, _first("CPUs", ((found.file, max(0, found.cpus)) for found in founds), notes)),
        memory_gb=min(
            MEMORY_GB_MAX, _first("GB of memory", ((found.file, max(0.0, found.memory_gb)) for found in founds), notes)
        ),
        domain_nvlink_gbytes_per_s=domain_rate,
    )
    faults = [(f"gpu{gpu.index}", _reason(gpu.fault)) for gpu in slots if gpu.fault]
    faults += [(_port_name(port, ports), _port_state(port)) for port in ports.values() if port.state not in ("", ACTIVE)]
    return NodeMerged(name, kind, _uuids(name, gpus, founds[0].file, notes), tuple(faults), ports, domain)


def _first(what: str, said: Iterator[tuple[str, float]], notes: Notes) -> int:
    chosen, chosen_file = 0.0, ""
    for file, value in said:
        if not chosen:
            chosen, chosen_file = value, file
        elif value and abs(value - chosen) > 0.02 * chosen:
            notes.add(file, f"{value:g} {what}", f"{chosen_file} says {chosen:g}; that stands")
    return round(chosen)


def _reason(text: str) -> str:
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())[:200]


def _uuids(name: str, gpus: Gpus, file: str, notes: Notes) -> tuple[str, ...]:
    """One for each GPU, or none at all. A GPU without one, or with one that cannot stand, gets that which its place makes."""
    found: list[str] = []
    said = 0
    for index in range(len(gpus.slots)):
        uuid = gpus.slots[index].uuid
        usable = uuid_allowed(uuid) and uuid not in found
        if uuid and not usable:
            notes.add(
                file, f"GPU {index}: UUID {uuid}", "not one of its own, as GPU-… that nvidia-smi -L prints; one is made"
            )
        said += usable
        found.append(uuid if usable else made_uuid(name, index))
    return tuple(found) if said else ()


def _merge_ports(founds: Sequence[NodeFound], gpus: Gpus, notes: Notes) -> dict[PortKey, PortFound]:
    merged: dict[PortKey, PortFound] = {}
    said_in: dict[PortKey, str] = {}
    near: dict[str, tuple[int, ...]] = {}
    names = {pci_key(port.pci): port.hca for found in founds for port in found.ports if port.hca and pci_key(port.pci)}
    for found, place in zip(founds, gpus.places, strict=True):
        for port in found.ports:
            said = port.hca or names.get(pci_key(port.pci)) or _made_name(port, names)
            name = said if HCA_NAME.fullmatch(said) else allowed_name(said, "")[:63]
            if not HCA_NAME.fullmatch(name) or not 1 <= port.port <= PORTS_MAX:
                why = f"allowed: a name such as mlx5_0, and ports 1 to {PORTS_MAX}. The port is set aside"
                notes.add(found.file, f"port {port.port} of {said}", why)
                continue
            own = tuple(sorted({place[i] for i in port.near if i in place}))
            if own:
                near.setdefault(name, own)
            key = (name, port.port)
            here = replace(port, hca=name, near=())
            merged[key] = _joined(merged[key], here, said_in[key], found.file, notes) if key in merged else here
            said_in.setdefault(key, found.file)
        for hca, indices in _near_by_path(found, place):
            near.setdefault(hca, indices)
    ordered = sorted(merged, key=lambda key: (natural(key[0]), key[1]))
    if len(ordered) > HCAS_MAX:
        notes.add(founds[0].file, f"{len(ordered)} adapter ports", f"allowed: {HCAS_MAX}; the others are set aside")
    return {key: replace(merged[key], near=near.get(key[0], ())) for key in ordered[:HCAS_MAX]}


def _made_name(port: PortFound, names: dict[tuple[int, ...], str]) -> str:
    """nic0 and up, for an adapter that NCCL's topology files know by its PCI address only; `names` keeps it for other files."""
    made = f"nic{sum(name.startswith('nic') for name in names.values())}"
    names[pci_key(port.pci) or (len(names),)] = made
    return made


def _joined(one: PortFound, other: PortFound, first: str, file: str, notes: Notes) -> PortFound:
    what = f"port {one.port} of {one.hca}"
    for mine, theirs in ((one.state, other.state), (one.link_layer, other.link_layer)):
        if mine and theirs and mine != theirs:
            notes.add(file, f"{what}: {theirs}", f"{first} says {mine}; that stands")
    if one.rate_gbps > 0 and other.rate_gbps > 0 and one.rate_gbps != other.rate_gbps:
        notes.add(file, f"{what}: {other.rate_gbps:g} Gb/s", f"{first} says {one.rate_gbps:g} Gb/s; that stands")
    state, physical = (one.state, one.physical_state) if one.state else (other.state, other.physical_state)
    return replace(
        one,
        state=state,
        physical_state=physical,
        rate_gbps=one.rate_gbps or other.rate_gbps,
        link_layer=one.link_layer or other.link_layer,
        port_guid=one.port_guid or other.port_guid,
        node_guid=one.node_guid or other.node_guid,
        hca_type=one.hca_type or other.hca_type,
    )


def _near_by_path(found: NodeFound, place: Mapping[int, int]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """(adapter, GPUs near it) by the paths between them."""
    ways: dict[str, dict[int, str]] = {}
    for (one, other), path in found.paths.items():
        for gpu, device in ((one, other), (other, one)):
            match = _GPU_KEY.fullmatch(gpu)
            if match and not _GPU_KEY.fullmatch(device) and int(match[1]) in place:
                ways.setdefault(device, {})[place[int(match[1])]] = path
    for device, paths in ways.items():
        for kinds in (_SWITCH, _NUMA):
            if indices := tuple(sorted(index for index, path in paths.items() if path in kinds)):
                yield device, indices
                break


def _hca(port: PortFound) -> HcaType:
    layer = ETHERNET if port.link_layer.lower() in ("ethernet", "roce", "eth") else INFINIBAND
    return HcaType(port.hca, port.port, min(GBPS_MAX, max(0.0, port.rate_gbps)), port.near, layer)


def _port_name(port: PortFound, ports: Mapping[PortKey, PortFound]) -> str:
    several = sum(key[0] == port.hca for key in ports) > 1
    return f"{port.hca}/{port.port}" if several or port.port != 1 else port.hca


def _port_state(port: PortFound) -> str:
    words = [re.sub(r"[^A-Za-z0-9_]", "", word) for word in (port.state, port.physical_state)]
    return "/".join(word for word in words if word)[:60] or "Down"


def entry_of(node: NodeMerged, type_name: str, domain: str = "") -> NodeEntry:
    """`domain`: the NVLink domain by which a fabric's file calls it and its neighbours; it goes before the driver's own name."""
    domain = domain or node.nvlink_domain
    return NodeEntry(names=node.name, type=type_name, nvlink_domain=domain, uuids=node.uuids, faults=node.faults)


def type_base(kind: NodeType) -> str:
    """A name for people: "8xH100-SXM5-80GB", "host-8x400", "host"."""
    if kind.gpus:
        model = kind.gpus[0].model or kind.gpus[0].name
        alike = all((gpu.model or gpu.name) == model for gpu in kind.gpus)
        return f"{len(kind.gpus)}x{allowed_name(model, 'GPU')[:40]}" if alike else f"{len(kind.gpus)}xmixed"
    rates = sorted({hca.rate_gbps for hca in kind.hcas})
    if not rates:
        return "host"
    return f"host-{len(kind.hcas)}x{rates[0]:g}" if len(rates) == 1 else f"host-{len(kind.hcas)}xmixed"
