"""AMD GPUs as the kernel shows them: class/kfd/kfd/topology (nodes, their memory, links and processes) and class/drm (sensors, RAS).

linux/drivers/gpu/drm/amd/amdkfd/kfd_topology.c and kfd_crat.h; linux/Documentation/gpu/amdgpu (driver-misc, thermal, ras); hwmon names in
linux/Documentation/hwmon/sysfs-interface. A file may hang where the driver does: call it under a time limit.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from fmagent.devices import sysfs
from fmagent.devices.amd_seen import NAMES, VENDOR_ID, Seen, Source, XgmiLink, pci_of, uuid_of

NODES_MAX = 1_024  # a card in CPX mode is eight nodes
LINKS_MAX = 256
PROCESSES_MAX = 4_096
BLOCKS_MAX = 64

# kfd_crat.h: CRAT_IOLINK_TYPE_XGMI.
_XGMI = 11
# kfd_crat.h: KFD_CRAT_XGMI_WEIGHT is 15 for each hop; so two hops weigh 30.
_ONE_HOP_MAX = 25
# kfd_crat.h: HSA_MEM_HEAP_TYPE_FB_PUBLIC and _FB_PRIVATE.
_FRAME_BUFFERS = (1, 2)
_SPEED = re.compile(r"(\d{1,3}(?:\.\d{1,2})?) GT/s")
_GENERATIONS = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}
_ERRORS = re.compile(r"^(ue|ce): (\d{1,18})$", re.MULTILINE)
_BAD_PAGE = re.compile(r"^0x[0-9a-fA-F]{1,16} : 0x[0-9a-fA-F]{1,16} : ([RPF])$", re.MULTILINE)


def read_kfd(sys: Path = sysfs.SYS) -> Source:
    """GPUs in the order of the topology, which is that of HIP. Empty where the driver is not loaded."""
    nodes = _nodes(sys)
    by_node = {int(name): pci_of_node(properties) for name, properties in nodes.items()}
    cards = _cards(sys)
    held = _held(sys)
    gpus: list[Seen] = []
    for name, properties in nodes.items():
        folder = sys / "class/kfd/kfd/topology/nodes" / name
        gpu_id = sysfs.text(folder / "gpu_id", 64)
        pci = by_node[int(name)]
        seen = _seen(folder, properties, by_node, len(gpus), held.get(gpu_id, ()))
        # A partition has no PCI function of its own: its card's sensors are function 0.
        card = cards.get(pci) or cards.get(f"{pci.rpartition('.')[0]}.0")
        gpus.append(_with_card(seen, card) if card else seen)
    return Source(tuple(gpus), driver_version=sysfs.text(sys / "module/amdgpu/version", 256))


def _nodes(sys: Path) -> dict[str, dict[str, int]]:
    """Topology nodes that are GPUs, and their properties."""
    root = sys / "class/kfd/kfd/topology/nodes"
    found = {}
    for name in sysfs.names(root)[:NODES_MAX]:
        if not (name.isascii() and name.isdecimal() and len(name) < 6):
            continue
        properties = properties_of(sysfs.text(root / name / "properties", 65_536))
        if properties.get("simd_count", 0) > 0 and properties.get("vendor_id", VENDOR_ID) == VENDOR_ID:
            found[name] = properties
    return found


def properties_of(text: str) -> dict[str, int]:
    """ "name value" lines. Pure."""
    found = {}
    for line in text.splitlines()[:512]:
        name, _, value = line[:256].partition(" ")
        if value.isascii() and value.isdecimal() and len(value) <= 20:
            found[name] = int(value)
    return found


def pci_of_node(properties: Mapping[str, int]) -> str:
    """location_id is bus, device and function, as the kernel's PCI_DEVID packs them."""
    location = properties.get("location_id", 0) & 0xFFFF
    domain = properties.get("domain", 0) & 0xFFFFFFFF
    return f"{domain:04x}:{location >> 8:02x}:{location >> 3 & 0x1F:02x}.{location & 7}" if location else ""


def _seen(
    folder: Path,
    properties: Mapping[str, int],
    by_node: Mapping[int, str],
    index: int,
    processes: tuple[tuple[int, int], ...],
) -> Seen:
    memory = sum(
        bank.get("size_in_bytes", 0)
        for bank in (
            properties_of(sysfs.text(folder / "mem_banks" / name / "properties", 4_096))
            for name in sysfs.names(folder / "mem_banks")[:16]
        )
        if bank.get("heap_type") in _FRAME_BUFFERS
    )
    target = properties.get("gfx_target_version", 0)
    unique = properties.get("unique_id", 0)
    return Seen(
        pci=pci_of_node(properties),
        index=index,
        name=NAMES.get(properties.get("device_id", 0), ""),
        uuid=f"GPU-{unique & 0xFFFFFFFFFFFFFFFF:016x}" if unique else "",
        memory_bytes=memory or None,
        compute_units=properties["simd_count"] // max(1, properties.get("simd_per_cu", 4)),
        architecture=f"gfx{target // 10_000}{target // 100 % 100:x}{target % 100:x}" if target else "",
        minor=properties.get("drm_render_minor"),
        links=_links(folder, by_node),
        processes=processes,
    )


def _links(folder: Path, by_node: Mapping[int, str]) -> tuple[XgmiLink, ...]:
    """xGMI links that lead straight to another GPU. `max_bandwidth` is MB/s one way, all cables of a link together; 0 in old kernels."""
    found = []
    for name in sysfs.names(folder / "io_links")[:LINKS_MAX]:
        link = properties_of(sysfs.text(folder / "io_links" / name / "properties", 4_096))
        to_pci = by_node.get(link.get("node_to", -1), "")
        if link.get("type") == _XGMI and to_pci and link.get("weight", 0) <= _ONE_HOP_MAX:
            found.append(XgmiLink(to_pci, 2 * link.get("max_bandwidth", 0) / 1000))
    return tuple(found)


def _held(sys: Path) -> dict[str, tuple[tuple[int, int], ...]]:
    """gpu_id → (pid, bytes of GPU memory) of the processes that have the GPU open."""
    root = sys / "class/kfd/kfd/proc"
    found: dict[str, list[tuple[int, int]]] = {}
    for pid in sysfs.names(root)[:PROCESSES_MAX]:
        if not (pid.isascii() and pid.isdecimal() and len(pid) < 10):
            continue
        for name in sysfs.names(root / pid)[:1_024]:
            used = sysfs.number(root / pid / name) if name.startswith("vram_") else None
            if used:
                found.setdefault(name.removeprefix("vram_"), []).append((int(pid), used))
    return {gpu_id: tuple(sorted(held)) for gpu_id, held in found.items()}


def _cards(sys: Path) -> dict[str, Path]:
    """PCI address → class/drm/cardN/device, of AMD's."""
    root = sys / "class/drm"
    found: dict[str, Path] = {}
    for name in sysfs.names(root)[:NODES_MAX]:
        if re.fullmatch(r"card\d{1,4}", name) and sysfs.number(root / name / "device/vendor") == VENDOR_ID:
            address = pci_of(sysfs.pci_address(root / name / "device"))
            if address:
                found[address] = root / name / "device"
    return found


def _with_card(seen: Seen, card: Path) -> Seen:
    corrected, uncorrected = ecc_of(card)
    pages = _BAD_PAGE.findall(sysfs.text(card / "ras/gpu_vram_bad_pages"))
    speed = _SPEED.match(sysfs.text(card / "max_link_speed", 64))
    return replace(
        _with_sensors(seen, card),
        name=sysfs.text(card / "product_name", 256) or seen.name,
        uuid=seen.uuid or uuid_of(sysfs.text(card / "unique_id", 64)),
        memory_bytes=seen.memory_bytes or sysfs.number(card / "mem_info_vram_total"),
        memory_used_bytes=sysfs.number(card / "mem_info_vram_used"),
        numa_node=sysfs.number(card / "numa_node"),
        pcie_gen=_GENERATIONS.get(float(speed[1])) if speed else None,
        pcie_width=sysfs.number(card / "max_link_width"),
        ecc_corrected=corrected,
        ecc_uncorrected=uncorrected,
        retired_pages=pages.count("R") if (card / "ras/gpu_vram_bad_pages").exists() else None,
        retired_pending="P" in pages if (card / "ras/gpu_vram_bad_pages").exists() else None,
        partition=sysfs.text(card / "current_compute_partition", 64),
    )


def _with_sensors(seen: Seen, card: Path) -> Seen:
    """hwmon: microwatts and millidegrees; which sensor is which stands in its label."""
    for name in sysfs.names(card / "hwmon")[:1]:
        hwmon = card / "hwmon" / name
        by_label = {sysfs.text(hwmon / f"temp{n}_label", 64): n for n in (1, 2, 3)}
        hottest = by_label.get("junction") or by_label.get("edge") or 1
        memory = by_label.get("mem")
        drawn = sysfs.number(hwmon / "power1_average")
        if drawn is None:
            drawn = sysfs.number(hwmon / "power1_input")
        seen = replace(
            seen,
            temperature_c=_scaled(sysfs.number(hwmon / f"temp{hottest}_input"), 1e3),
            slowdown_c=_scaled(sysfs.number(hwmon / f"temp{hottest}_crit"), 1e3),
            memory_temperature_c=_scaled(sysfs.number(hwmon / f"temp{memory}_input"), 1e3) if memory else None,
            power_w=_scaled(drawn, 1e6),
            power_limit_w=_scaled(sysfs.number(hwmon / "power1_cap"), 1e6),
            power_limit_default_w=_scaled(sysfs.number(hwmon / "power1_cap_default"), 1e6),
            power_limit_max_w=_scaled(sysfs.number(hwmon / "power1_cap_max"), 1e6),
        )
    return seen


def _scaled(value: int | None, unit: float) -> float | None:
    return None if value is None else value / unit


def ecc_of(card: Path) -> tuple[int | None, int | None]:
    """(corrected, uncorrected) errors of all RAS blocks since the driver was loaded; None where it has none."""
    totals: dict[str, int] = {}
    for name in sysfs.names(card / "ras")[:BLOCKS_MAX]:
        if name.endswith("_err_count"):
            for kind, count in _ERRORS.findall(sysfs.text(card / "ras" / name, 4_096)):
                totals[kind] = totals.get(kind, 0) + int(count)
    return totals.get("ce"), totals.get("ue")
