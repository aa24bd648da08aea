"""AMD GPUs: from a kernel's files on disk, and from JSON in the shapes of amd-smi and rocm-smi, with values made up."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fmagent.devices.amd import AmdReader, AmdReading, with_amd
from fmagent.devices.amd_kfd import pci_of_node, read_kfd
from fmagent.devices.amd_seen import Seen, XgmiLink, built, joined, number, pci_of, size_bytes, uuid_of
from fmagent.devices.amd_smi import parse_amd_smi, parse_rocm_smi
from fmagent.devices.nvml_reading import GpuReading, Reading
from fmagent.devices.port import HoldersUnknown
from fmagent.devices.presence import Presence
from fmagent.health import readings
from fmagent.health.readings import LinkReading
from fmproto.v1 import hardware_pb2 as pb
from tests.support.fake_sysfs import FakeSysfs
from tests.support.shared_data import shared

MI300X = {
    "simd_count": 1216, "simd_per_cu": 4, "device_id": 0x74A1, "gfx_target_version": 90_402, "hive_id": 77,
}  # fmt: skip
CARD = {
    "max_link_speed": "32.0 GT/s PCIe",
    "max_link_width": 16,
    "mem_info_vram_used": 5 << 30,
    "hwmon/hwmon4/temp1_label": "edge",
    "hwmon/hwmon4/temp2_label": "junction",
    "hwmon/hwmon4/temp3_label": "mem",
    "hwmon/hwmon4/temp2_input": 61_000,
    "hwmon/hwmon4/temp2_crit": 100_000,
    "hwmon/hwmon4/temp3_input": 55_000,
    "hwmon/hwmon4/power1_input": 412_000_000,
    "hwmon/hwmon4/power1_cap": 750_000_000,
    "hwmon/hwmon4/power1_cap_default": 750_000_000,
    "hwmon/hwmon4/power1_cap_max": 750_000_000,
    "ras/umc_err_count": "ue: 1\nce: 20",
    "ras/gfx_err_count": "ue: 0\nce: 3",
    "ras/gpu_vram_bad_pages": "0x00000001 : 0x00001000 : R\n0x00000002 : 0x00001000 : P",
}


def way(gpu: int) -> tuple[str, ...]:
    return ("pci0000:00", f"0000:00:{gpu + 1:02x}.1", f"0000:{16 * (gpu + 1):02x}:00.0")


@pytest.fixture
def tree(tmp_path: Path) -> FakeSysfs:
    return FakeSysfs(tmp_path / "sys")


def box(tree: FakeSysfs, gpus: int = 8, cut: tuple[int, int] | None = None) -> None:
    """A processor (node 0) and GPUs that all reach one another; `cut`: two of them that do not."""
    tree.write("class/kfd/kfd/topology/nodes/0/properties", "cpu_cores_count 96\nsimd_count 0\nvendor_id 0\nlocation_id 0")
    tree.write("module/amdgpu/version", "6.10.5")
    for gpu in range(gpus):
        tree.amd_gpu(gpu + 1, way(gpu), {**MI300X, "unique_id": 0xABC0 + gpu}, {**CARD, "numa_node": gpu // 4})
        tree.io_link(gpu + 1, 0, 0, kind=2, weight=20)
        for number_, peer in enumerate((peer for peer in range(gpus) if peer != gpu and {peer, gpu} != set(cut or ())), 1):
            tree.io_link(gpu + 1, number_, peer + 1)


def kernel_only(tree: FakeSysfs, timeout_s: float = 5.0) -> AmdReader:
    return AmdReader((), (), tree.root, timeout_s)


async def test_a_box_of_eight_by_the_kernel_alone(tree: FakeSysfs) -> None:
    box(tree)
    found = await kernel_only(tree).read()
    assert (found.error, found.driver_version, len(found.gpus)) == ("", "6.10.5", 8)
    gpu = found.gpus[2]
    assert (gpu.index, gpu.uuid, gpu.name, gpu.vendor) == (2, "GPU-000000000000abc2", "AMD Instinct MI300X", "amd")
    assert (gpu.model, gpu.family, gpu.memory_gb, gpu.memory_bytes) == ("MI300X", "mi300x", 192, 192 << 30)
    assert (gpu.pci_address, gpu.numa_node, gpu.minor, gpu.sm_count) == ("0000:30:00.0", 0, 130, 304)
    assert (gpu.compute_capability, gpu.pcie_gen, gpu.pcie_width, gpu.power_limit_max_w) == ("gfx942", 5, 16, 750)
    assert [(port.link, port.remote, port.active) for port in gpu.nvlink_ports] == [(n, "gpu", True) for n in range(7)]
    assert {port.remote_pci for port in gpu.nvlink_ports} == {way(n)[-1] for n in range(8) if n != 2}
    assert len(found.nvlinks) == 28
    assert {pair.gbytes_per_s for pair in found.nvlinks} == {128.0}


async def test_its_health_readings(tree: FakeSysfs) -> None:
    box(tree, 2)
    tree.write("class/kfd/kfd/proc/4711/vram_4002", 1 << 30)
    tree.write("class/kfd/kfd/proc/4711/vram_4001", 0)
    found = await kernel_only(tree).read()
    first, second = found.readings
    assert (first.uuid, first.index, first.error) == ("GPU-000000000000abc0", 0, "")
    assert (first.temperature_c, first.slowdown_c, first.memory_temperature_c) == (61, 100, 55)
    assert (first.power_w, first.power_limit_w, first.memory_used_bytes) == (412, 750, 5 << 30)
    assert (first.ecc_uncorrected, first.ecc_corrected, first.retired_pages, first.retired_pending) == (1, 23, 1, True)
    assert (first.links, first.links_expected) == ((LinkReading(0, True),), 1)
    assert (first.processes, second.processes) == ((), ((4711, 1 << 30),))


async def test_a_cut_xgmi_link_shows_at_both_ends(tree: FakeSysfs) -> None:
    box(tree, 8, cut=(3, 5))
    found = await kernel_only(tree).read()
    assert (3, 5) not in {(pair.gpu_a, pair.gpu_b) for pair in found.nvlinks}
    assert len(found.nvlinks) == 27
    assert [len(reading.links) for reading in found.readings] == [7, 7, 7, 6, 7, 6, 7, 7]
    assert {reading.links_expected for reading in found.readings} == {7}


async def test_two_hops_are_no_link_and_one_end_alone_is_none(tree: FakeSysfs) -> None:
    box(tree, 0)
    for gpu in range(3):
        tree.amd_gpu(gpu + 1, way(gpu), {**MI300X, "unique_id": gpu + 1}, CARD)
    tree.io_link(1, 0, 2)
    tree.io_link(2, 0, 1)
    tree.io_link(1, 1, 3, weight=30)
    tree.io_link(3, 1, 1, weight=30)
    tree.io_link(2, 1, 3)
    found = await kernel_only(tree).read()
    assert [(pair.gpu_a, pair.gpu_b) for pair in found.nvlinks] == [(0, 1)]


async def test_holders_by_the_kernel(tree: FakeSysfs) -> None:
    box(tree, 2)
    tree.write("class/kfd/kfd/proc/4711/vram_4002", 4096)
    reader = kernel_only(tree)
    await reader.read()
    assert await reader.holders(["GPU-000000000000abc0", "GPU-000000000000abc1"]) == {
        "GPU-000000000000abc0": (),
        "GPU-000000000000abc1": (4711,),
    }
    with pytest.raises(HoldersUnknown, match=r"GPU-other: .*does not list it"):
        await reader.holders(["GPU-other"])


async def test_a_driver_that_hangs_is_named(tree: FakeSysfs) -> None:
    box(tree, 1)
    pipe = tree.root / "class/drm/card1/device/hwmon/hwmon4/temp2_input"
    pipe.unlink()
    os.mkfifo(pipe)
    reader = kernel_only(tree, 0.3)
    try:
        assert (await reader.read()).error == "amdgpu's files hung: no answer in 0.3 s"
        with pytest.raises(HoldersUnknown, match="hung"):
            await reader.holders(["GPU-000000000000abc0"])
    finally:
        pipe.write_text("1\n")


def test_a_broken_node_hides_no_other(tree: FakeSysfs) -> None:
    box(tree, 2)
    tree.write("class/kfd/kfd/topology/nodes/9/properties", "simd_count 99999999999999999999999\nvendor_id x")
    tree.write(
        "class/kfd/kfd/topology/nodes/10/properties",
        "simd_count 8\ndrm_render_minor 99999999999\nlocation_id 1\ndevice_id 5",
    )
    found = built(read_kfd(tree.root).gpus)
    assert len(found.gpus) == 3
    assert [gpu.name for gpu in found.gpus if gpu.model] == ["AMD Instinct MI300X"] * 2
    assert read_kfd(tree.root / "nowhere").gpus == ()


@pytest.mark.parametrize(
    ("location", "domain", "pci"),
    [(0x0500, 0, "0000:05:00.0"), (0xC106, 0, "0000:c1:00.6"), (0x8108, 2, "0002:81:01.0"), (0, 0, "")],
)
def test_places_as_the_kernel_packs_them(location: int, domain: int, pci: str) -> None:
    assert pci_of_node({"location_id": location, "domain": domain}) == pci


def test_partitions_of_a_card_are_told_apart() -> None:
    found = built(
        [Seen(pci=f"0000:05:00.{n}", uuid="GPU-1", name="AMD Instinct MI300X") for n in range(3)]
        + [Seen(pci="0000:06:00.0")]
    )
    assert [gpu.uuid for gpu in found.gpus] == ["GPU-1", "GPU-1.1", "GPU-1.2", "PCI-0000:06:00.0"]


def test_several_cables_between_two_gpus() -> None:
    pair = [
        Seen(pci="0000:01:00.0", name="AMD Instinct MI250X", links=(XgmiLink("0000:02:00.0", 400.0),)),
        Seen(pci="0000:02:00.0", name="AMD Instinct MI250X", links=(XgmiLink("0000:01:00.0", 200.0),)),
    ]
    found = built(pair)
    assert [len(gpu.nvlink_ports) for gpu in found.gpus] == [4, 2]
    assert found.nvlinks == (pb.NvLinkPair(gpu_a=0, gpu_b=1, gbytes_per_s=200),)


def value(amount: float, unit: str) -> dict[str, Any]:
    return {"value": amount, "unit": unit}


def static(gpu: int) -> dict[str, Any]:
    return {
        "gpu": gpu,
        "asic": {
            "market_name": "AMD Instinct MI300X", "vendor_id": "0x1002", "device_id": "0x74a1",
            "asic_serial": f"0x{0xABC0 + gpu:016X}", "oam_id": gpu, "num_compute_units": 304, "target_graphics_version": "gfx942",
        },
        "bus": {
            "bdf": way(gpu)[-1], "max_pcie_width": 16, "max_pcie_speed": value(32, "GT/s"), "pcie_interface_version": "Gen 5",
            "slot_type": "OAM",
        },
        "limit": {
            "max_power": value(750, "W"), "min_power": value(0, "W"), "socket_power": value(700, "W"),
            "slowdown_edge_temperature": "N/A", "slowdown_hotspot_temperature": value(100, "C"),
        },
        "driver": {"name": "amdgpu", "version": "6.12.0"},
        "numa": {"node": 0, "affinity": 0},
        "vram": {"type": "HBM3", "vendor": "N/A", "size": value(196_592, "MB")},
        "partition": {"accelerator_partition": "SPX", "memory_partition": "NPS1"},
    }  # fmt: skip


def metric(gpu: int) -> dict[str, Any]:
    return {
        "gpu": gpu,
        "power": {"socket_power": value(140, "W"), "throttle_status": "N/A"},
        "temperature": {"edge": "N/A", "hotspot": value(41, "C"), "mem": value(33, "C")},
        "ecc": {"total_correctable_count": 2, "total_uncorrectable_count": 0, "total_deferred_count": 0},
        "mem_usage": {"total_vram": value(196_592, "MB"), "used_vram": value(283, "MB")},
        "throttle": {
            "prochot_violation_status": "NOT ACTIVE",
            "ppt_violation_status": "ACTIVE",
            "hbm_thermal_violation_status": "N/A",
        },
        "xgmi_err": "N/A",
    }


def topology(gpus: int) -> list[dict[str, Any]]:
    def link(a: int, b: int) -> dict[str, Any]:
        same = a == b
        return {
            "gpu": b, "bdf": way(b)[-1], "weight": 0 if same else 15, "link_status": "ENABLED",
            "link_type": "SELF" if same else "XGMI", "num_hops": 0 if same else 1, "bandwidth": "N/A" if same else "50000-50000",
        }  # fmt: skip

    return [{"gpu": a, "bdf": way(a)[-1], "links": [link(a, b) for b in range(gpus)]} for a in range(gpus)]


@pytest.mark.parametrize("wrapped", [False, True])
def test_amd_smi_bare_and_wrapped(wrapped: bool) -> None:
    def text(entries: list[dict[str, Any]]) -> str:
        return json.dumps({"gpu_data": entries} if wrapped else entries)

    said = parse_amd_smi(text([static(0), static(1)]), text([metric(1), metric(0)]), text(topology(2)))
    found = built(said.gpus)
    assert (said.driver_version, said.error) == ("6.12.0", "")
    gpu, reading = found.gpus[1], found.readings[1]
    assert (gpu.uuid, gpu.model, gpu.sm_count, gpu.pcie_gen) == ("GPU-000000000000abc1", "MI300X", 304, 5)
    assert (gpu.memory_bytes, gpu.power_limit_w, gpu.power_limit_max_w) == (196_592 << 20, 700, 750)
    assert (reading.power_w, reading.temperature_c, reading.slowdown_c, reading.memory_temperature_c) == (140, 41, 100, 33)
    assert (reading.throttle, reading.ecc_corrected, reading.memory_used_bytes) == ({"sw_power_cap"}, 2, 283 << 20)
    # The driver counts 50 GB/s a cable and way whatever the card; the catalogue knows better.
    assert found.nvlinks == (pb.NvLinkPair(gpu_a=0, gpu_b=1, gbytes_per_s=128),)


def test_the_newer_limits_and_a_card_that_only_the_topology_places() -> None:
    entry = static(0)
    entry["limit"] = {
        "ppt0": {"max_power_limit": value(800, "W"), "socket_power_limit": value(600, "W")},
        "ppt1": {"max_power_limit": "N/A"},
    }
    del entry["bus"]["bdf"]
    (seen,) = parse_amd_smi(json.dumps([entry]), "", json.dumps(topology(1))).gpus
    assert (seen.power_limit_w, seen.power_limit_max_w, seen.pci) == (600, 800, way(0)[-1])


def test_the_older_topology() -> None:
    table = [
        {
            "gpu": a,
            "weight": {"gpu_0": 15 * a, "gpu_1": 15 * (1 - a)},
            "link_type": {f"gpu_{a}": "SELF", f"gpu_{1 - a}": "XGMI"},
            "numa_bandwidth": {f"gpu_{a}": "N/A", f"gpu_{1 - a}": "50000-128000"},
        }
        for a in (0, 1)
    ]
    found = built(parse_amd_smi(json.dumps([static(0), static(1)]), "", json.dumps(table)).gpus)
    assert [pair.gbytes_per_s for pair in found.nvlinks] == [256]


def test_a_metric_that_is_missing_or_not_available_is_unknown() -> None:
    (seen,) = parse_amd_smi(
        json.dumps([static(0)]), json.dumps([{"gpu": 0, "power": "N/A", "temperature": {"hotspot": "N/A"}}])
    ).gpus
    assert (seen.power_w, seen.temperature_c, seen.ecc_uncorrected, seen.throttle) == (None, None, None, None)


def test_rocm_smi_with_its_topology() -> None:
    card = {
        "GPU ID": "0x74a1", "Unique ID": "0xabc0", "PCI Bus": "0000:10:00.0", "Card Series": "AMD Instinct MI300X",
        "Temperature (Sensor junction) (C)": "44.0", "Current Socket Graphics Package Power (W)": "133.0",
        "Max Graphics Package Power (W)": "750.0", "VRAM Total Memory (B)": "206141652992", "VRAM Total Used Memory (B)": "297234432",
        "(Topology) Numa Node": "1", "GFX Version": "gfx942",
    }  # fmt: skip
    said = {
        "card0": card,
        "card1": {**card, "Unique ID": "0xabc1", "PCI Bus": "0000:20:00.0"},
        "system": {
            "Driver version": "6.7.0",
            "(Topology) Weight between DRM devices 0 and 1": "15",
            "(Topology) Link type between DRM devices 0 and 1": "XGMI",
        },
    }
    source = parse_rocm_smi("WARNING: AMD GPU device(s) is/are in a low-power state.\n\n" + json.dumps(said))
    found = built(source.gpus)
    assert (source.driver_version, [gpu.uuid for gpu in found.gpus]) == (
        "6.7.0",
        ["GPU-000000000000abc0", "GPU-000000000000abc1"],
    )
    assert (found.gpus[0].numa_node, found.readings[0].temperature_c, found.readings[0].power_w) == (1, 44, 133)
    assert [pair.gbytes_per_s for pair in found.nvlinks] == [128]


def test_a_real_rocm_smi() -> None:
    text = (shared("nvsmi") / "rocm-smi-mi100_rocm571.json").read_text(encoding="utf-8")
    found = built(parse_rocm_smi(text).gpus)
    assert len(found.gpus) == text.count('"PCI Bus"')
    for gpu in found.gpus:
        assert f'"VRAM Total Memory (B)": "{gpu.memory_bytes}"' in text
        assert f'"PCI Bus": "{gpu.pci_address.upper()}"' in text
        assert (gpu.model, gpu.uuid) == ("MI100", f"PCI-{gpu.pci_address}")
        assert f'"Max Graphics Package Power (W)": "{gpu.power_limit_w}"' in text
    assert found.nvlinks == ()  # the file: PCIE between any two
    assert [reading.temperature_c for reading in found.readings] == sorted_by_place(
        text, "Temperature (Sensor junction) (C)"
    )


def sorted_by_place(text: str, name: str) -> list[float]:
    cards = [card for card in json.loads(text).values() if "PCI Bus" in card]
    return [float(card[name]) for card in sorted(cards, key=lambda card: card["PCI Bus"].lower())]


def tool(folder: Path, name: str, said: dict[str, Any], tail: str = "exit 1") -> tuple[str, ...]:
    """A program that answers by its first argument, as the tools do."""
    for word, answer in said.items():
        (folder / f"{name}.{word}").write_text(json.dumps(answer))
    script = folder / name
    script.write_text(
        f'#!/bin/sh\necho "$1" >> {folder}/asked\n[ -f "{folder}/{name}.$1" ] && exec cat "{folder}/{name}.$1"\n{tail}\n'
    )
    script.chmod(0o755)
    return (str(script),)


async def test_the_tool_and_the_kernel_together(tree: FakeSysfs, tmp_path: Path) -> None:
    box(tree, 2)
    amd_smi = tool(
        tmp_path, "amd-smi", {"static": [static(0), static(1), static(2)], "metric": [metric(0)], "topology": topology(2)}
    )
    reader = AmdReader(amd_smi, (), tree.root, 10.0)
    found = await reader.read()
    assert (found.error, found.driver_version, len(found.gpus)) == ("", "6.12.0", 3)
    assert [reading.error for reading in found.readings] == ["", "", "the driver's topology no longer lists it"]
    # What the tool says counts, the kernel fills in the rest.
    assert (found.gpus[0].power_limit_w, found.gpus[0].minor) == (700, 128)
    assert [reading.power_w for reading in found.readings] == [140, 412, None]
    await reader.read()
    assert (tmp_path / "asked").read_text().split() == ["static", "topology", "metric", "metric"]


async def test_rocm_smi_stands_in_and_silence_is_none(tree: FakeSysfs, tmp_path: Path) -> None:
    rocm_smi = tool(
        tmp_path, "rocm-smi", {"--showid": {"card0": {"PCI Bus": "0000:10:00.0", "Card series": "Instinct MI300X"}}}
    )
    found = await AmdReader(tool(tmp_path, "amd-smi", {}), rocm_smi, tree.root, 10.0).read()
    assert ([gpu.model for gpu in found.gpus], found.error) == (["MI300X"], "")
    none = await AmdReader(("/nonexistent/amd-smi",), ("/nonexistent/rocm-smi",), tree.root, 10.0).read()
    assert (none.gpus, none.error) == ((), "")


async def test_a_tool_that_hangs_is_named_and_the_kernel_still_speaks(tree: FakeSysfs, tmp_path: Path) -> None:
    box(tree, 2)
    amd_smi = tool(tmp_path, "amd-smi", {}, "exec sleep 600")
    found = await AmdReader(amd_smi, (), tree.root, 0.5).read()
    assert (found.error, len(found.gpus)) == (f"{amd_smi[0]} hung: no answer in 0.5 s", 2)


async def test_both_vendors_in_one_reading(tree: FakeSysfs) -> None:
    box(tree, 2)
    found = await kernel_only(tree).read()
    alone = with_amd(Reading(error="NVML_ERROR_LIBRARY_NOT_FOUND"), found)
    assert (alone.error, [one.gpu.index for one in alone.gpus], alone.driver_version) == ("", [0, 1], "6.10.5")
    other = pb.Gpu(index=4, uuid="GPU-nv", pci_address="00000000:01:00.0")
    nvml = Reading((GpuReading(other),), driver_version="580.1", health=(readings.GpuReading("GPU-nv", 4),))
    mixed = with_amd(nvml, found)
    assert [one.gpu.index for one in mixed.gpus] == [one.index for one in mixed.health] == [4, 5, 6]
    assert (mixed.nvlinks, mixed.driver_version) == ((pb.NvLinkPair(gpu_a=5, gpu_b=6, gbytes_per_s=128),), "580.1")
    presence = Presence()
    gpus, health, links = presence.merge(mixed)
    assert [gpu.vendor for gpu in gpus] == ["", "amd", "amd"]
    assert ([one.state for one in health], len(links)) == ([pb.HEALTH_STATE_OK] * 3, 1)
    assert [one.ecc_uncorrected for one in presence.health(mixed)] == [None, 1, 1]
    assert with_amd(nvml, AmdReading()) is nvml
    assert with_amd(Reading(error="NVML hung: no answer in 1 s"), found).error == "NVML hung: no answer in 1 s"


async def test_a_hang_is_the_fault_of_each_of_its_gpus(tree: FakeSysfs, tmp_path: Path) -> None:
    box(tree, 2)
    found = await AmdReader(tool(tmp_path, "amd-smi", {}, "exec sleep 600"), (), tree.root, 0.5).read()
    joined_reading = with_amd(Reading(error="NVML_ERROR_DRIVER_NOT_LOADED"), found)
    assert {one.error for one in joined_reading.gpus} == {found.error}
    _, health, _ = Presence().merge(joined_reading)
    assert {(one.state, one.reason) for one in health} == {(pb.HEALTH_STATE_FAILED, found.error)}


def test_what_figures_look_like() -> None:
    assert [number(said) for said in (35, "35.5", "129 W", value(4, "C"), "N/A", None, True, [1], {})] == [
        35, 35.5, 129, 4, None, None, None, None, None,
    ]  # fmt: skip
    assert [size_bytes(said) for said in (value(2, "MB"), "3 GB", 1, value(5, "B"), "N/A", value(1, "parsec"))] == [
        2 << 20, 3 << 30, 1 << 20, 5, None, None,
    ]  # fmt: skip
    assert [pci_of(said) for said in ("0000:C1:00.0", "c1:00.0", "00000002:01:00.1", "N/A", "")] == [
        "0000:c1:00.0", "0000:c1:00.0", "0002:01:00.1", "", "",
    ]  # fmt: skip
    assert [uuid_of(said) for said in ("0xAB", "N/A", "0x0", "")] == ["GPU-00000000000000ab", "", "", ""]


def test_joining_fills_and_adds() -> None:
    better = [Seen(pci="a", name="X", power_w=0.0), Seen(name="no place")]
    other = [Seen(pci="a", name="Y", power_w=5.0, minor=128), Seen(pci="b")]
    assert joined(better, other) == (Seen(pci="a", name="X", power_w=0.0, minor=128), Seen(name="no place"), Seen(pci="b"))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                ["gpu", "asic", "bus", "bdf", "limit", "links", "vram", "size", "value", "ecc", "card0", "system"]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=20,
)


@given(JSON, JSON, JSON)
def test_any_json_is_read_or_left(one: Any, two: Any, three: Any) -> None:
    texts = [json.dumps(part) for part in (one, two, three)]
    built(parse_amd_smi(*texts).gpus)
    built(parse_rocm_smi(texts[0]).gpus)


def test_hostile_output_ends_fast() -> None:
    begun = time.monotonic()
    for text in (
        "[" * 1_000_000,
        '{"a":' * 200_000,
        "\0" * 1_000_000,
        "[\n" * 100_000,
        '{"gpu_data": [' + "9" * 1_000_000,
        " " * 1_000_000,
    ):
        assert parse_amd_smi(text, text, text).gpus == ()
        assert parse_rocm_smi(text).gpus == ()
    assert time.monotonic() - begun < 5
