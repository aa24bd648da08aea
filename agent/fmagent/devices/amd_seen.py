"""One AMD GPU as a source tells of it, and what becomes of it: the messages and readings that NVIDIA GPUs have too. Pure.

xGMI is to them what NVLink is: `NvLinkPort` and `NvLinkPair` carry it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from fmagent.health.readings import GpuReading, LinkReading
from fmproto.gpus import GpuFacts, lookup
from fmproto.v1 import hardware_pb2 as pb

VENDOR_ID = 0x1002
CABLES_MAX = 8  # between two GPUs; MI250X has four inside a card

# PCI device ids of GPUs for computing (pci.ids, vendor 1002), for sources that tell no name.
NAMES = {
    0x738C: "AMD Instinct MI100",
    0x7408: "AMD Instinct MI250X",
    0x740C: "AMD Instinct MI250X",
    0x740F: "AMD Instinct MI210",
    0x74A0: "AMD Instinct MI300A",
    0x74A1: "AMD Instinct MI300X",
    0x74A2: "AMD Instinct MI308X",
    0x74A5: "AMD Instinct MI325X",
    0x74A9: "AMD Instinct MI300X HF",
    0x74B5: "AMD Instinct MI300X VF",
    0x74B9: "AMD Instinct MI325X VF",
    0x75A0: "AMD Instinct MI350X",
    0x75A3: "AMD Instinct MI355X",
}
_BRACKETS = re.compile(r"\[([^\[\]]{1,128})\]\s*$")
# A whole card passed on as a virtual function, and the frame it sits in, do not change what it is.
_SUFFIX = re.compile(r"\s+(?:vf|hf|oam)$", re.IGNORECASE)
_SERIAL = re.compile(r"(?:0x)?([0-9a-fA-F]{1,16})")


@dataclass(frozen=True, slots=True)
class XgmiLink:
    """From one GPU straight to another, all cables together. `gbytes_per_s`: both directions together; 0: the source does not say."""

    to_pci: str
    gbytes_per_s: float = 0.0

    def rate(self, usual: float) -> float:
        """GB/s. `usual`: of one cable by the catalogue. Drivers count 50 GB/s a cable and way whatever the card: theirs is at least so."""
        return max(self.gbytes_per_s, usual)

    def cables(self, usual: float) -> int:
        return max(1, min(CABLES_MAX, int(self.gbytes_per_s / usual))) if usual else 1


@dataclass(frozen=True, slots=True)
class Seen:
    """None and empty: the source does not say. Bytes, watts, degrees Celsius."""

    pci: str = ""  # "0000:0c:00.0", what sources are joined by
    index: int = -1
    name: str = ""
    uuid: str = ""
    memory_bytes: int | None = None
    memory_used_bytes: int | None = None
    compute_units: int | None = None
    architecture: str = ""  # "gfx942"
    minor: int | None = None  # N of /dev/dri/renderDN
    numa_node: int | None = None
    pcie_gen: int | None = None
    pcie_width: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    power_limit_default_w: float | None = None
    power_limit_max_w: float | None = None
    temperature_c: float | None = None  # of the hottest spot
    slowdown_c: float | None = None
    memory_temperature_c: float | None = None
    throttle: frozenset[str] | None = None
    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None
    retired_pages: int | None = None
    retired_pending: bool | None = None
    links: tuple[XgmiLink, ...] | None = None
    processes: tuple[tuple[int, int], ...] | None = None
    partition: str = ""  # "SPX", "CPX"; empty: whole, or not said
    error: str = ""


@dataclass(frozen=True, slots=True)
class Source:
    """What one source tells. `error`: why it tells nothing; empty and no GPU: it is not there."""

    gpus: tuple[Seen, ...] = ()
    driver_version: str = ""
    error: str = ""


@dataclass(frozen=True, slots=True)
class Built:
    gpus: tuple[pb.Gpu, ...] = ()
    nvlinks: tuple[pb.NvLinkPair, ...] = ()
    readings: tuple[GpuReading, ...] = field(default=())


def joined(better: Sequence[Seen], other: Sequence[Seen]) -> tuple[Seen, ...]:
    """By PCI address; what `better` leaves out is `other`'s, GPUs too."""
    known = {seen.pci: seen for seen in other if seen.pci}
    found = []
    for seen in better:
        second = known.pop(seen.pci, None)
        found.append(filled(seen, second) if second else seen)
    return tuple(found) + tuple(known.values())


def filled(seen: Seen, other: Seen) -> Seen:
    missing = {
        one.name: getattr(other, one.name)
        for one in fields(Seen)
        if getattr(seen, one.name) in (None, "", -1) and one.name != "index"
    }
    return replace(seen, **missing)


def pci_of(text: str) -> str:
    """Lower case, a domain of at least four digits; empty where it is no PCI address."""
    match = re.fullmatch(r"(?:([0-9a-f]{1,8}):)?([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])", text.strip().lower())
    if not match:
        return ""
    return f"{int(match[1] or '0', 16):04x}:{match[2]}:{match[3]}.{match[4]}"


def uuid_of(serial: str) -> str:
    """ "GPU-" and the 16 digits of the card's unique id, as ROCR_VISIBLE_DEVICES takes it (ROCm, "GPU isolation techniques"). The driver's
    unique_id, rocm-smi's "Unique ID" and amd-smi's asic_serial are the same number. Empty where it is none."""
    match = _SERIAL.fullmatch(serial.strip())
    return f"GPU-{int(match[1], 16):016x}" if match and int(match[1], 16) else ""


def plain_name(name: str) -> str:
    """ "Arcturus GL-XL [Instinct MI100]" → "Instinct MI100"."""
    match = _BRACKETS.search(name[:256])
    return match[1].strip() if match else name[:256].strip()


def facts_of(name: str, memory_bytes: int | None) -> GpuFacts | None:
    plain = plain_name(name)
    while (shorter := _SUFFIX.sub("", plain)) != plain:  # ends: each round takes a word away
        plain = shorter
    return lookup(plain, (memory_bytes or 0) / 2**20) if plain else None


def built(seen: Sequence[Seen]) -> Built:
    """Messages and readings, in the order of the PCI addresses; index is the place in it."""
    ordered = sorted(seen, key=lambda one: (one.pci, one.index))
    named = _named(ordered)
    index_of = {one.pci: place for place, one in enumerate(named) if one.pci}
    facts = [facts_of(one.name, one.memory_bytes) for one in named]
    mesh = _is_mesh(named)
    gpus = tuple(_gpu(place, one, facts[place]) for place, one in enumerate(named))
    readings = tuple(_reading(gpu, one, len(named) - 1 if mesh else 0) for gpu, one in zip(gpus, named, strict=True))
    return Built(gpus, tuple(_pairs(named, facts, index_of)), readings)


def _named(seen: Sequence[Seen]) -> list[Seen]:
    """Each with a UUID of its own: partitions of one card share its id, and some cards have none."""
    taken: dict[str, int] = {}
    found = []
    for one in seen:
        uuid = one.uuid or (f"PCI-{one.pci}" if one.pci else "")
        if uuid:
            taken[uuid] = taken.get(uuid, 0) + 1
            if taken[uuid] > 1:
                uuid = f"{uuid}.{taken[uuid] - 1}"
        found.append(replace(one, uuid=uuid))
    return found


def _is_mesh(seen: Sequence[Seen]) -> bool:
    """Whether GPUs of this kind all reach one another straight: at least one of them does. One link that is missing then shows."""
    return len(seen) > 1 and any(len({link.to_pci for link in one.links or ()}) >= len(seen) - 1 for one in seen)


def _gpu(index: int, one: Seen, facts: GpuFacts | None) -> pb.Gpu:
    gpu = pb.Gpu(
        index=index,
        uuid=one.uuid,
        name=one.name,
        vendor="amd",
        pci_address=one.pci,
        memory_bytes=_fit(one.memory_bytes, 2**63),
        sm_count=_fit(one.compute_units),
        compute_capability=one.architecture,
        minor=_fit(index if one.minor is None else one.minor),
        numa_node=_fit(one.numa_node, none=-1),
        power_limit_w=one.power_limit_w or 0.0,
        power_limit_default_w=one.power_limit_default_w or 0.0,
        power_limit_max_w=one.power_limit_max_w or 0.0,
        pcie_gen=_fit(one.pcie_gen),
        pcie_width=_fit(one.pcie_width),
        ecc_enabled=one.ecc_uncorrected is not None,
    )
    if facts is not None:
        gpu.model = "" if facts.guessed else facts.key
        gpu.family, gpu.memory_gb = facts.family, facts.memory_gb
        gpu.sm_count = gpu.sm_count or facts.multiprocessors
        gpu.compute_capability = gpu.compute_capability or facts.compute_capability
    for link in one.links or ():
        for _ in range(link.cables(_usual(facts))):
            gpu.nvlink_ports.add(link=len(gpu.nvlink_ports), active=True, remote="gpu", remote_pci=link.to_pci)
    return gpu


def _fit(value: int | None, most: int = 2**31 - 1, none: int = 0) -> int:
    """What is no number of that kind is not known."""
    return value if value is not None and 0 <= value <= most else none


def _usual(facts: GpuFacts | None) -> float:
    """GB/s of one xGMI cable by the catalogue, both directions together; 0: not known."""
    return facts.nvlink_gbytes_per_s / facts.nvlink_links if facts and facts.nvlink_links else 0.0


def _reading(gpu: pb.Gpu, one: Seen, peers: int) -> GpuReading:
    """`peers`: how many GPUs it should reach straight; 0: not known."""
    return GpuReading(
        uuid=gpu.uuid,
        index=gpu.index,
        error=one.error,
        temperature_c=one.temperature_c,
        slowdown_c=one.slowdown_c,
        memory_temperature_c=one.memory_temperature_c,
        power_w=one.power_w,
        power_limit_w=one.power_limit_w,
        throttle=one.throttle or frozenset(),
        ecc_uncorrected=one.ecc_uncorrected,
        ecc_corrected=one.ecc_corrected,
        retired_pages=one.retired_pages,
        retired_pending=one.retired_pending,
        links=tuple(LinkReading(port.link, active=port.active) for port in gpu.nvlink_ports),
        links_expected=max(peers, len(gpu.nvlink_ports)) if peers else 0,
        memory_used_bytes=one.memory_used_bytes,
        processes=one.processes or (),
    )


def _pairs(seen: Sequence[Seen], facts: Sequence[GpuFacts | None], index_of: Mapping[str, int]) -> list[pb.NvLinkPair]:
    """GB/s both directions together, the weaker side's word; what no source tells is the catalogue's figure for one link."""
    rates: dict[tuple[int, int], list[float]] = {}
    for a, one in enumerate(seen):
        to: dict[int, float] = {}
        for link in one.links or ():
            b = index_of.get(link.to_pci)
            if b is not None and b != a:
                to[b] = max(to.get(b, 0.0), link.rate(_usual(facts[a])))
        for b, rate in to.items():
            rates.setdefault((min(a, b), max(a, b)), []).append(rate)
    # A link that only one end knows of is one that is going.
    both = {pair: min(two) for pair, two in rates.items() if len(two) == 2}
    return [pb.NvLinkPair(gpu_a=a, gpu_b=b, gbytes_per_s=rate) for (a, b), rate in sorted(both.items()) if rate > 0]


def number(value: Any) -> float | None:
    """A figure as the tools print it: 35, "35.0", "129 W", {"value": 35, "unit": "C"}; None for "N/A" and whatever else."""
    if isinstance(value, dict):
        value = value.get("value")
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    match = re.match(r"-?\d{1,20}(?:\.\d{1,12})?", str(value).strip()[:64])
    return float(match[0]) if match else None


def whole(value: Any) -> int | None:
    found = number(value)
    return None if found is None or found < 0 else int(found)


_UNITS = {"b": 1, "kb": 2**10, "mb": 2**20, "gb": 2**30, "kib": 2**10, "mib": 2**20, "gib": 2**30}


def size_bytes(value: Any) -> int | None:
    """A size with its unit, {"value": 196592, "unit": "MB"} or "196592 MB": binary units, whatever they are called. Bare: MB."""
    unit = value.get("unit", "MB") if isinstance(value, dict) else ""
    if isinstance(value, str):
        unit = value.strip().rpartition(" ")[2] if " " in value.strip() else "MB"
    amount = number(value)
    scale = _UNITS.get(str(unit or "MB").lower())
    return None if amount is None or amount < 0 or scale is None else int(amount * scale)
