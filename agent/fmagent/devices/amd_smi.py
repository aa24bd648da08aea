"""What `amd-smi static|metric|topology --json` and `rocm-smi ... --json` print, as values. Pure; never raises.

Shapes: ROCm/amdsmi docs/how-to/amdsmi-cli-tool.md and CHANGELOG.md (a bare list up to ROCm 6, {"gpu_data": [...]} from 7 on; topology with
"links" from 6.3 on, with "gpu_N" tables before); ROCm/rocm_smi_lib python_smi_tools/rocm_smi.py ({"card0": {...}, "system": {...}}).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from fmagent.devices.amd_seen import Seen, Source, XgmiLink, number, pci_of, plain_name, size_bytes, uuid_of, whole

STATIC = ("static", "--json")
METRIC = ("metric", "--json")
TOPOLOGY = ("topology", "--json")
ROCM = (
    "--showid", "--showproductname", "--showuniqueid", "--showbus", "--showmeminfo", "vram", "--showtemp", "--showpower",
    "--showmaxpower", "--showtopo", "--showdriverversion", "--json",
)  # fmt: skip

GPUS_MAX = 512
LINKS_MAX = 512
# rsmi_topo_get_link_weight: 15 for one xGMI hop.
_ONE_HOP_MAX = 25
# amd-smi's names of what holds a GPU back, by the health rules' names of it: processor hot, package power tracking, heat.
_THROTTLES = {
    "prochot": "hw_slowdown",
    "ppt": "sw_power_cap",
    "socket_thermal": "hw_thermal",
    "vr_thermal": "hw_thermal",
    "hbm_thermal": "hw_thermal",
}
_START = re.compile(r"^\s{0,64}[\[{]", re.MULTILINE)
_BANDWIDTH = re.compile(r"\d{1,9}\s?-\s?(\d{1,9})")
_BETWEEN = re.compile(r"\(topology\) (weight|link type) between drm devices (\d{1,4}) and (\d{1,4})", re.IGNORECASE)


def loaded(text: str) -> Any:
    """The JSON in what a tool printed, warnings before it left out; None where there is none."""
    for match in list(_START.finditer(text[: 1 << 20]))[:8]:
        try:
            value, _ = json.JSONDecoder().raw_decode(text, match.end() - 1)
        except (ValueError, RecursionError):
            continue
        return value
    return None


def _gpus(value: Any) -> list[dict[str, Any]]:
    """The GPUs' objects, of whatever wraps them."""
    if isinstance(value, dict):
        parts = [[value]] if "gpu" in value else [part for part in value.values() if isinstance(part, list)]
        value = [entry for part in parts for entry in part[:GPUS_MAX]]
    if not isinstance(value, list):
        return []
    return [entry for entry in value[:GPUS_MAX] if isinstance(entry, dict) and whole(entry.get("gpu")) is not None]


def _part(entry: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """A part of an entry, by the first of its names; empty where it is "N/A"."""
    for name in names:
        part = entry.get(name)
        if isinstance(part, dict):
            return part
    return {}


def _first(part: Mapping[str, Any], *names: str) -> Any:
    return next((part[name] for name in names if number(part.get(name)) is not None), None)


def _word(part: Mapping[str, Any], *names: str) -> str:
    """A text, "N/A" and its like left out."""
    for name in names:
        value = part.get(name)
        if isinstance(value, str) and value.strip() and value.strip().upper() not in ("N/A", "UNKNOWN", "NONE"):
            return value.strip()[:256]
    return ""


def parse_amd_smi(static: str, metric: str = "", topology: str = "") -> Source:
    """GPUs by what the three commands printed; `static` names them, and what the others lack stays unknown."""
    found: dict[int, Seen] = {}
    drivers = []
    for entry in _gpus(loaded(static)):
        seen = _static(entry)
        found.setdefault(seen.index, seen)
        drivers.append(_word(_part(entry, "driver"), "version", "driver_version"))
    if not found:
        return Source(error="amd-smi names no GPU" if static.strip() else "")
    for entry in _gpus(loaded(metric)):
        index = whole(entry.get("gpu"))
        if index in found:
            found[index] = _metric(found[index], entry)
    tables = _gpus(loaded(topology))
    for entry in tables:  # where `static` does not say where a GPU is, this does
        index = whole(entry.get("gpu"))
        if index in found and not found[index].pci:
            found[index] = replace(found[index], pci=pci_of(_word(entry, "bdf")))
    for index, links in _topology(tables, {index: seen.pci for index, seen in found.items()}).items():
        if index in found:
            found[index] = _replace(found[index], links=links)
    return Source(tuple(found[index] for index in sorted(found)), next((driver for driver in drivers if driver), ""))


def _replace(seen: Seen, **known: Any) -> Seen:
    return replace(seen, **{name: value for name, value in known.items() if value is not None})


def _static(entry: Mapping[str, Any]) -> Seen:
    asic, bus, vram, numa = _part(entry, "asic"), _part(entry, "bus"), _part(entry, "vram"), _part(entry, "numa")
    limit = _part(entry, "limit")
    power = _part(limit, "ppt0") or limit  # from ROCm 7 on
    generation = re.search(r"\d{1,2}", _word(bus, "pcie_interface_version"))
    return Seen(
        pci=pci_of(_word(bus, "bdf") or _word(entry, "bdf")),
        index=whole(entry.get("gpu")) or 0,
        name=_word(asic, "market_name") or _word(_part(entry, "board"), "product_name"),
        uuid=uuid_of(_word(asic, "asic_serial")),
        memory_bytes=size_bytes(vram.get("size", vram.get("vram_size"))),
        compute_units=whole(asic.get("num_compute_units")),
        architecture=_word(asic, "target_graphics_version"),
        numa_node=whole(numa.get("node")),
        pcie_gen=int(generation[0]) if generation else None,
        pcie_width=whole(bus.get("max_pcie_width")),
        power_limit_w=number(_first(power, "socket_power_limit", "socket_power", "current_power", "power_cap")),
        power_limit_max_w=number(_first(power, "max_power_limit", "max_power")),
        slowdown_c=number(_first(limit, "slowdown_hotspot_temperature", "slowdown_edge_temperature")),
        partition=_word(_part(entry, "partition"), "accelerator_partition", "compute_partition"),
    )


def _metric(seen: Seen, entry: Mapping[str, Any]) -> Seen:
    power, heat, ecc = _part(entry, "power"), _part(entry, "temperature"), _part(entry, "ecc")
    memory = _part(entry, "mem_usage", "vram_usage")
    return _replace(
        seen,
        power_w=number(_first(power, "socket_power", "current_socket_power", "average_socket_power")),
        temperature_c=number(_first(heat, "hotspot", "edge")),
        memory_temperature_c=number(_first(heat, "mem")),
        ecc_corrected=whole(_first(ecc, "total_correctable_count", "correctable", "correctable_count")),
        ecc_uncorrected=whole(_first(ecc, "total_uncorrectable_count", "uncorrectable", "uncorrectable_count")),
        memory_used_bytes=size_bytes(memory.get("used_vram", memory.get("vram_used"))),
        throttle=_throttle(entry.get("throttle")),
    )


def _throttle(part: Any) -> frozenset[str] | None:
    if not isinstance(part, dict):
        return None
    return frozenset(reason for name, reason in _THROTTLES.items() if part.get(f"{name}_violation_status") == "ACTIVE")


def _topology(tables: Sequence[Mapping[str, Any]], pci: Mapping[int, str]) -> dict[int, tuple[XgmiLink, ...]]:
    found: dict[int, tuple[XgmiLink, ...]] = {}
    for entry in tables:
        links = []
        for to, kind, weight, bandwidth in _ends(entry):
            if kind.upper() == "XGMI" and (weight is None or weight <= _ONE_HOP_MAX):
                match = _BANDWIDTH.fullmatch(bandwidth.strip()[:64])
                # "50000-100000": least and most MB/s, one way.
                links.append(XgmiLink(pci.get(to, ""), 2 * int(match[1]) / 1000 if match else 0.0))
        found[whole(entry.get("gpu")) or 0] = tuple(link for link in links if link.to_pci)
    return found


def _ends(entry: Mapping[str, Any]) -> Iterator[tuple[int, str, float | None, str]]:
    """(other GPU, link type, weight, bandwidth) of both forms."""
    links = entry.get("links")
    if isinstance(links, list):
        for link in links[:LINKS_MAX]:
            to = whole(link.get("gpu")) if isinstance(link, dict) else None
            if to is not None:
                yield to, _word(link, "link_type"), number(link.get("weight")), str(link.get("bandwidth", ""))
        return
    weights, bandwidths = _part(entry, "weight"), _part(entry, "numa_bandwidth")
    for name, kind in list(_part(entry, "link_type").items())[:LINKS_MAX]:
        match = re.fullmatch(r"gpu_(\d{1,4})", name)
        if match:
            yield int(match[1]), str(kind), number(weights.get(name)), str(bandwidths.get(name, ""))


def parse_rocm_smi(text: str) -> Source:
    """GPUs by what rocm-smi printed, ROCm 4 to 7: the names of the fields change their case and end in a colon at times."""
    value = loaded(text)
    if not isinstance(value, dict):
        return Source(error="rocm-smi printed no JSON" if text.strip() else "")
    cards: dict[int, dict[str, str]] = {}
    system: dict[str, str] = {}
    for name, part in list(value.items())[: 2 * GPUS_MAX]:
        match = re.fullmatch(r"card(\d{1,4})", name)
        if isinstance(part, dict):
            plain = {str(key).strip().rstrip(":").lower(): str(said).strip() for key, said in list(part.items())[:1_024]}
            if match:
                cards[int(match[1])] = plain
            elif name == "system":
                system = plain
    addresses = {index: pci_of(_word(card, "pci bus")) for index, card in cards.items()}
    links = _between(system, addresses)
    gpus = tuple(_card(index, card, links.get(index)) for index, card in sorted(cards.items()))
    return Source(gpus, _word(system, "driver version"), "" if gpus else "rocm-smi names no GPU")


def _card(index: int, card: Mapping[str, str], links: tuple[XgmiLink, ...] | None) -> Seen:
    names = [_word(card, name) for name in ("card series", "device name", "card model")]
    name = next((plain_name(name) for name in names if name and not name.startswith("0x")), "")
    return Seen(
        pci=pci_of(_word(card, "pci bus")),
        index=index,
        name=name,
        uuid=uuid_of(_word(card, "unique id")),
        memory_bytes=whole(card.get("vram total memory (b)")),
        memory_used_bytes=whole(card.get("vram total used memory (b)")),
        architecture=_word(card, "gfx version"),
        numa_node=whole(card.get("(topology) numa node")),
        power_w=number(_first(card, "current socket graphics package power (w)", "average graphics package power (w)")),
        power_limit_w=number(card.get("max graphics package power (w)")),
        temperature_c=number(_first(card, "temperature (sensor junction) (c)", "temperature (sensor edge) (c)")),
        memory_temperature_c=number(_first(card, "temperature (sensor memory) (c)")),
        links=links,
    )


def _between(system: Mapping[str, str], addresses: Mapping[int, str]) -> dict[int, tuple[XgmiLink, ...]]:
    """xGMI links from the "(Topology) Link type between DRM devices 0 and 1" fields; each pair stands there once."""
    kinds: dict[tuple[int, int], str] = {}
    weights: dict[tuple[int, int], float] = {}
    for name, said in system.items():
        match = _BETWEEN.fullmatch(name[:128])
        if match:
            pair = (int(match[2]), int(match[3]))
            if match[1].lower() == "weight":
                weights[pair] = number(said) or 0.0
            else:
                kinds[pair] = said.upper()
    found: dict[int, dict[int, None]] = {index: {} for index in addresses} if kinds else {}
    for (a, b), kind in kinds.items():
        if kind == "XGMI" and weights.get((a, b), 0.0) <= _ONE_HOP_MAX and a in addresses and b in addresses and a != b:
            found[a][b] = found[b][a] = None
    return {index: tuple(XgmiLink(addresses[to]) for to in ends if addresses[to]) for index, ends in found.items()}
