"""What the agent reads of whole machines, field by field: the real pynvml over a libnvidia-ml.so.1 that is told what they have."""

from __future__ import annotations

import ctypes
from collections.abc import AsyncIterator
from pathlib import Path

import pynvml
import pytest

from fmagent.devices.nvml import NvmlReader, Reading
from fmagent.devices.presence import Presence
from fmproto.v1 import hardware_pb2 as pb
from tests.support import fake_hardware as hardware
from tests.support import fake_nvml


@pytest.fixture
def description(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "machine"
    monkeypatch.setenv("FAKE_NVML", str(path))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(fake_nvml.library_folder()))
    return path


@pytest.fixture
async def reader(description: Path) -> AsyncIterator[NvmlReader]:
    made = NvmlReader(timeout_s=20.0)
    yield made
    await made.close()


def rates(reading: Reading) -> dict[tuple[int, int], float]:
    return {(pair.gpu_a, pair.gpu_b): pair.gbytes_per_s for pair in reading.nvlinks}


def paths(reading: Reading) -> dict[tuple[int, int], str]:
    return {(path.gpu_a, path.gpu_b): path.path for path in reading.gpu_paths}


def couples(count: int) -> list[tuple[int, int]]:
    return [(a, b) for a in range(count) for b in range(a + 1, count)]


def well(reading: Reading) -> list[pb.Gpu]:
    assert (reading.error, reading.problems) == ("", ())
    assert [gpu.error for gpu in reading.gpus] == [""] * len(reading.gpus)
    return [gpu.gpu for gpu in reading.gpus]


@pytest.mark.parametrize("name", [
    "nvmlPciInfo_t", "c_nvmlMemory_t", "c_nvmlMemory_v2_t", "c_nvmlProcessInfo_v2_t", "c_nvmlProcessInfo_v3_t", "c_nvmlFieldValue_t",
    "c_nvmlTemperature_v1_t", "c_nvmlMarginTemperature_v1_t", "c_nvmlGpuFabricInfo_t", "c_nvmlGpuFabricInfo_v2_t",
    "c_nvmlGpuFabricInfo_v3_t", "c_nvmlGpuFabricInfo_v4_t", "c_nvmlGpuInstancePlacement_t", "c_nvmlGpuInstanceProfileInfo_t",
    "c_nvmlGpuInstanceProfileInfo_v2_t", "c_nvmlGpuInstanceInfo_t", "c_nvmlEventData_t",
])  # fmt: skip
def test_the_library_lays_out_structures_as_pynvml_does(name: str) -> None:
    library = ctypes.CDLL(str(fake_nvml.library_folder() / "libnvidia-ml.so.1"))
    library.fake_sizeof.restype = ctypes.c_ulong
    assert library.fake_sizeof(name.encode()) == ctypes.sizeof(getattr(pynvml, name))


# Of each machine: the driver, and of its GPUs the catalogue key, family, nominal memory, SMs, compute capability, watts, PCIe generation.
@pytest.mark.parametrize(
    ("make", "driver", "facts"),
    [
        (hardware.dgx_1v, "418.226.00", ("V100-SXM2-32GB", "v100", 32, 80, "7.0", 300, 3)),
        (hardware.dgx_a100, "535.161.08", ("A100-SXM4-40GB", "a100", 40, 108, "8.0", 400, 4)),
        (hardware.hgx_h100, "550.90.07", ("H100-SXM5-80GB", "h100", 80, 132, "9.0", 700, 5)),
        (hardware.h100_nvl, "550.54.15", ("H100-NVL-94GB", "h100", 94, 132, "9.0", 400, 5)),
        (hardware.nvl72_tray, "580.95.05", ("GB200-186GB", "gb200", 186, 152, "10.0", 1200, 5)),
    ],
)  # fmt: skip
async def test_the_gpus_of_a_machine(description: Path, reader: NvmlReader, make, driver: str, facts) -> None:  # type: ignore[no-untyped-def]
    machine = make(description)
    reading = await reader.read()
    gpus = well(reading)
    assert reading.driver_version == driver
    assert [gpu.index for gpu in gpus] == list(range(len(machine.addresses)))
    numas = {int(line.split()[1]): int(line.split()[3]) for line in machine.lines if " numa " in line}
    for gpu in gpus:
        assert gpu.uuid == machine.uuid(gpu.index)
        assert gpu.name == machine.card.name
        assert gpu.pci_address == machine.addresses[gpu.index]
        assert gpu.memory_bytes == machine.card.memory_mib * 2**20
        assert (gpu.model, gpu.family, gpu.memory_gb, gpu.sm_count, gpu.compute_capability) == facts[:5]
        assert (gpu.power_limit_w, gpu.power_limit_default_w, gpu.power_limit_max_w) == (facts[5],) * 3
        assert (gpu.pcie_gen, gpu.pcie_width) == (facts[6], 16)
        assert (gpu.vendor, gpu.minor, gpu.numa_node, gpu.ecc_enabled) == ("nvidia", gpu.index, numas[gpu.index], True)
        assert not gpu.mig_enabled
        assert [port.link for port in gpu.nvlink_ports] == list(range(machine.card.ports))
        assert {port.version for port in gpu.nvlink_ports} == {machine.card.nvlink_version}
        assert all(port.active for port in gpu.nvlink_ports)


async def test_a_hybrid_cube_mesh(description: Path, reader: NvmlReader) -> None:
    machine = hardware.dgx_1v(description)
    reading = await reader.read()
    for gpu in well(reading):
        assert [port.remote for port in gpu.nvlink_ports] == ["gpu"] * 6
        peers = [machine.addresses.index(port.remote_pci) for port in gpu.nvlink_ports]
        assert [peers.count(peer) for peer in range(8)] == list(hardware.CUBE_MESH[gpu.index])
    # 50 GB/s a link, both directions together; GPUs that share no link have no pair.
    joined = {(a, b): 50.0 * hardware.CUBE_MESH[a][b] for a, b in couples(8) if hardware.CUBE_MESH[a][b]}
    assert rates(reading) == joined
    assert len(joined) == 16
    assert {path for path, of in paths(reading).items() if of == "PIX"} == {(0, 1), (2, 3), (4, 5), (6, 7)}
    assert {path for path, of in paths(reading).items() if of == "SYS"} == {(a, b) for a in range(4) for b in range(4, 8)}
    assert {path for path, of in paths(reading).items() if of == "PHB"} == {
        (0, 2), (0, 3), (1, 2), (1, 3), (4, 6), (4, 7), (5, 6), (5, 7),
    }  # fmt: skip
    assert {path.p2p for path in reading.gpu_paths} == {"ok"}
    assert not any(gpu.gpu.HasField("fabric") for gpu in reading.gpus)
    assert reading.nvlink_domain == ""


async def test_eight_gpus_on_six_switches(description: Path, reader: NvmlReader) -> None:
    hardware.dgx_a100(description)
    reading = await reader.read()
    for gpu in well(reading):
        assert [port.remote for port in gpu.nvlink_ports] == ["switch"] * 12
        assert sorted({port.remote_pci for port in gpu.nvlink_ports}) == [
            hardware.address(bus) for bus in range(0xC4, 0xCA)
        ]
    assert rates(reading) == dict.fromkeys(couples(8), 600.0)
    assert paths(reading)[0, 1] == "PXB"
    assert paths(reading)[1, 2] == "SYS"
    assert [gpu.gpu.numa_node for gpu in reading.gpus] == [3, 3, 1, 1, 7, 7, 5, 5]


async def test_a_box_of_switches_is_in_no_domain_of_several_nodes(description: Path, reader: NvmlReader) -> None:
    hardware.hgx_h100(description)
    reading = await reader.read()
    for gpu in well(reading):
        assert gpu.fabric == pb.FabricPart(state="completed")
    assert rates(reading) == dict.fromkeys(couples(8), 900.0)
    assert (reading.nvlink_domain, reading.nvlink_domain_gbytes_per_s) == ("", 0.0)
    assert paths(reading)[0, 3] == "NODE"
    assert paths(reading)[3, 4] == "SYS"


async def test_bridged_pairs(description: Path, reader: NvmlReader) -> None:
    machine = hardware.h100_nvl(description)
    reading = await reader.read()
    for gpu in well(reading):
        peer = gpu.index ^ 1
        assert {(port.remote, port.remote_pci) for port in gpu.nvlink_ports} == {("gpu", machine.addresses[peer])}
    assert rates(reading) == {(0, 1): 600.0, (2, 3): 600.0}
    assert paths(reading) == {(0, 1): "PHB", (0, 2): "SYS", (0, 3): "SYS", (1, 2): "SYS", (1, 3): "SYS", (2, 3): "PHB"}
    assert [health.links_expected for health in reading.health] == [12] * 4


async def test_cards_without_their_bridge_miss_no_link(description: Path, reader: NvmlReader) -> None:
    machine = hardware.h100_nvl(description)
    machine.lines = [line for line in machine.lines if not line.startswith("link ")]
    machine.put()
    reading = await reader.read()
    assert [len(gpu.nvlink_ports) for gpu in well(reading)] == [12] * 4
    assert [health.links_expected for health in reading.health] == [0] * 4
    assert reading.nvlinks == ()


async def test_a_tray_of_a_rack(description: Path, reader: NvmlReader) -> None:
    hardware.nvl72_tray(description)
    reading = await reader.read()
    for gpu in well(reading):
        assert gpu.fabric == pb.FabricPart(cluster_uuid=hardware.CLUSTER, clique=2, state="completed")
        assert {(port.remote, port.remote_pci) for port in gpu.nvlink_ports} == {("switch", "")}
    assert reading.nvlink_domain == f"{hardware.CLUSTER}.2"
    assert reading.nvlink_domain_gbytes_per_s == 1800.0
    assert rates(reading) == dict.fromkeys(couples(4), 1800.0)
    assert [health.fabric_state for health in reading.health] == ["completed"] * 4


@pytest.mark.parametrize(
    ("line", "part", "why"),
    [
        ("1 0 0 0", pb.FabricPart(cluster_uuid=hardware.CLUSTER, clique=2, state="not started"), "not started"),
        ("2 6 0 0", pb.FabricPart(cluster_uuid=hardware.CLUSTER, clique=2, state="in progress"), "in progress"),
        (
            "3 999 0 0",
            pb.FabricPart(cluster_uuid=hardware.CLUSTER, clique=2, state="completed", status="NVML_ERROR_UNKNOWN"),
            "completed",
        ),
    ],
)
async def test_a_gpu_that_did_not_join_the_fabric(
    description: Path, reader: NvmlReader, line: str, part: pb.FabricPart, why: str
) -> None:
    machine = hardware.nvl72_tray(description)
    machine.add(f"fabric 3 {hardware.CLUSTER} 2 {line}")
    reading = await reader.read()
    assert well(reading)[3].fabric == part
    assert (reading.health[3].fabric_state, reading.health[3].fabric_status) == (why, part.status)
    assert rates(reading) == dict.fromkeys(couples(3), 1800.0)
    assert reading.nvlink_domain == f"{hardware.CLUSTER}.2"


async def test_no_gpu_of_a_tray_in_the_fabric(description: Path, reader: NvmlReader) -> None:
    machine = hardware.nvl72_tray(description)
    machine.add(*(f"fabric {gpu} {hardware.CLUSTER} 2 2 0 0 0" for gpu in range(4)))
    reading = await reader.read()
    assert (reading.nvlink_domain, reading.nvlink_domain_gbytes_per_s, reading.nvlinks) == ("", 0.0, ())


async def test_cliques_that_differ_in_one_tray(description: Path, reader: NvmlReader) -> None:
    machine = hardware.nvl72_tray(description)
    machine.add(*(f"fabric {gpu} {hardware.CLUSTER} 7 3 0 0 1" for gpu in (2, 3)))
    reading = await reader.read()
    assert rates(reading) == {(0, 1): 1800.0, (2, 3): 1800.0}
    assert reading.nvlink_domain == ""
    assert reading.problems == (f"its GPUs lie in several NVLink domains: {hardware.CLUSTER}.2, {hardware.CLUSTER}.7",)


@pytest.mark.parametrize(
    ("mask", "summary", "health"),
    [
        (hardware.HEALTHY, 1, ""),
        (0, 0, ""),
        (0b10_10_10_01, 3, "degraded bandwidth"),
        (0b01_01_01_10, 2, "route recovery in progress, route unhealthy, access timeout recovery"),
        (5 << 8, 2, "too few NVLinks"),
        (2 << 12 | 2 << 14, 2, "no partition assigned, fabric manager not connected"),
        (hardware.HEALTHY, 3, "limited capacity"),
        (hardware.HEALTHY, 2, "unhealthy"),
    ],
)
async def test_the_health_of_the_fabric(
    description: Path, reader: NvmlReader, mask: int, summary: int, health: str
) -> None:
    machine = hardware.nvl72_tray(description)
    machine.add(f"fabric 0 {hardware.CLUSTER} 2 3 0 {mask} {summary}")
    reading = await reader.read()
    assert (well(reading)[0].fabric.health, reading.health[0].fabric_health) == (health, health)


async def test_a_driver_that_knows_no_newer_fabric_structure(description: Path, reader: NvmlReader) -> None:
    machine = hardware.nvl72_tray(description)
    machine.add("set -1 fabric_version 2", f"fabric 1 {hardware.CLUSTER} 2 3 0 1 2")
    reading = await reader.read()
    assert [gpu.fabric.health for gpu in well(reading)] == ["", "degraded bandwidth", "", ""]
    assert reading.nvlink_domain == f"{hardware.CLUSTER}.2"


MIG_BOXES = [
    (hardware.A100, hardware.MIG_A100_40GB, ["3g.20gb", "2g.10gb", "1g.5gb", "1g.5gb"], [4.75, 4.75, 9.75, 9.75, 19.62, 19.62, 39.38]),
    (hardware.H100, hardware.MIG_H100_80GB, ["3g.40gb", "2g.20gb", "1g.10gb", "1g.10gb"], [9.75, 9.75, 19.62, 19.62, 39.5, 39.5, 79.25]),
]  # fmt: skip


@pytest.mark.parametrize(("card", "profiles", "names", "gib"), MIG_BOXES, ids=["A100", "H100"])
async def test_mig(
    description: Path,
    reader: NvmlReader,
    card: hardware.Card,
    profiles: tuple[hardware.Profile, ...],
    names: list[str],
    gib: list[float],
) -> None:
    hardware.mig_box(description, card, profiles)
    reading = await reader.read()
    cut, whole = well(reading)
    assert (cut.mig_enabled, whole.mig_enabled) == (True, False)
    assert [
        (one.uuid, one.profile, one.gpu_instance, one.compute_instance, one.start, one.size) for one in cut.mig_instances
    ] == [
        ("MIG-0-0", names[0], 2, 0, 4, 4),
        ("MIG-0-1", names[1], 3, 0, 0, 2),
        ("MIG-0-2", names[2], 9, 0, 2, 1),
        ("MIG-0-3", names[3], 10, 0, 3, 1),
    ]
    found = {profile.name: profile for profile in cut.mig_profiles}
    assert set(found) == {profile.name for profile in profiles}
    for profile, memory_gib in zip(profiles, gib, strict=True):
        one = found[profile.name]
        assert (one.id, one.slices, one.multiprocessors) == (profile.id, profile.slices, profile.multiprocessors)
        assert (one.instances_max, tuple(one.starts), one.size) == (profile.instances_max, profile.starts, profile.size)
        assert one.memory_gb == memory_gib
    assert not whole.mig_instances
    assert not whole.mig_profiles
    assert [health.mig_enabled for health in reading.health] == [True, False]
    # No NVLink in MIG mode, and nothing is placed on the whole of it.
    assert reading.nvlinks == ()
    _, health, _ = Presence().merge(reading)
    assert [gpu.state for gpu in health] == [pb.HEALTH_STATE_FAILED, pb.HEALTH_STATE_OK]
    assert health[0].reason == "MIG mode is on; only whole GPUs are granted"


async def test_mig_that_only_root_may_see(description: Path, reader: NvmlReader) -> None:
    machine = hardware.mig_box(description, hardware.H100, hardware.MIG_H100_80GB)
    machine.add("fail 0 nvmlDeviceGetGpuInstanceById 4", "fail 0 nvmlDeviceGetGpuInstancePossiblePlacements 4")
    cut = well(await reader.read())[0]
    assert [one.profile for one in cut.mig_instances] == ["3g.40gb", "2g.20gb", "1g.10gb", "1g.10gb"]
    assert {(one.start, one.size) for one in cut.mig_instances} == {(0, 0)}
    assert len(cut.mig_profiles) == 7
    assert {(tuple(profile.starts), profile.size) for profile in cut.mig_profiles} == {((), 0)}


async def test_an_instance_that_goes_while_it_is_read(description: Path, reader: NvmlReader) -> None:
    machine = hardware.mig_box(description, hardware.A100, hardware.MIG_A100_40GB)
    gone = next(line for line in machine.lines if line.startswith("instance 0 1 "))
    machine.drop(gone)
    cut = well(await reader.read())[0]
    assert [one.uuid for one in cut.mig_instances] == ["MIG-0-0", "MIG-0-2", "MIG-0-3"]


async def test_a_compute_instance_that_is_part_of_its_gpu_instance(description: Path, reader: NvmlReader) -> None:
    machine = hardware.mig_box(description, hardware.A100, hardware.MIG_A100_40GB)
    machine.lines = [line for line in machine.lines if not line.startswith("instance ")]
    machine.add("instance 0 0 MIG-a 2 0 4 4 9 1c.3g.20gb", "instance 0 1 MIG-b 2 1 4 4 9 2c.3g.20gb")
    cut = well(await reader.read())[0]
    assert [(one.profile, one.gpu_instance, one.compute_instance, one.start) for one in cut.mig_instances] == [
        ("1c.3g.20gb", 2, 0, 4),
        ("2c.3g.20gb", 2, 1, 4),
    ]


async def test_links_that_are_down_make_their_pairs_slower(description: Path, reader: NvmlReader) -> None:
    machine = hardware.hgx_h100(description)
    machine.add("linkdown 2 5", "linkdown 2 6", "linkdown 6 17")
    reading = await reader.read()
    ports = well(reading)[2].nvlink_ports
    assert [port.link for port in ports if not port.active] == [5, 6]
    assert [(link.link, link.active) for link in reading.health[6].links if not link.active] == [(17, False)]
    assert [health.links_expected for health in reading.health] == [18] * 8
    expected = dict.fromkeys(couples(8), 900.0)
    expected |= {pair: 850.0 for pair in couples(8) if 6 in pair}
    expected |= {pair: 800.0 for pair in couples(8) if 2 in pair}
    assert rates(reading) == expected


async def test_a_link_that_only_one_end_sees_is_none(description: Path, reader: NvmlReader) -> None:
    machine = hardware.dgx_1v(description)
    machine.add("linkdown 0 2")  # one of the two to GPU 3
    reading = await reader.read()
    assert rates(reading)[0, 3] == 50.0
    assert rates(reading)[0, 4] == 100.0


async def test_ends_that_a_virtual_machine_hides(description: Path, reader: NvmlReader) -> None:
    """Neither kind nor address is told: such links are taken as into one switch."""
    machine = hardware.hgx_h100(description)
    machine.lines = [line for line in machine.lines if not line.startswith("link ")]
    machine.lines += [f"link {gpu} {link} -1 - 6" for gpu in range(8) for link in range(18)]
    machine.put()
    reading = await reader.read()
    assert {(port.remote, port.remote_pci) for port in well(reading)[0].nvlink_ports} == {("", "")}
    assert rates(reading) == dict.fromkeys(couples(8), 900.0)


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (0, "ok"),
        (1, "NVML_P2P_STATUS_CHIPSET_NOT_SUPPORTED"),
        (2, "NVML_P2P_STATUS_GPU_NOT_SUPPORTED"),
        (3, "NVML_P2P_STATUS_IOH_TOPOLOGY_NOT_SUPPORTED"),
        (4, "NVML_P2P_STATUS_DISABLED_BY_REGKEY"),
        (5, "NVML_P2P_STATUS_NOT_SUPPORTED"),
        (6, "NVML_P2P_STATUS_UNKNOWN"),
        (42, "NVML_P2P_STATUS_UNKNOWN"),
    ],
)
async def test_peer_access_that_the_driver_refuses(description: Path, reader: NvmlReader, status: int, said: str) -> None:
    machine = hardware.h100_nvl(description)
    machine.add(f"p2p 1 2 {status}")
    reading = await reader.read()
    assert {(path.gpu_a, path.gpu_b): path.p2p for path in reading.gpu_paths if path.p2p != "ok"} == (
        {} if said == "ok" else {(1, 2): said}
    )


@pytest.mark.parametrize(("kind", "status"), [(0, 4), (1, 1)])
async def test_peer_access_of_which_half_is_refused(description: Path, reader: NvmlReader, kind: int, status: int) -> None:
    machine = hardware.h100_nvl(description)
    machine.add(f"p2p 0 2 {status} {kind}")
    refused = {(path.gpu_a, path.gpu_b) for path in (await reader.read()).gpu_paths if path.p2p != "ok"}
    assert refused == {(0, 2)}


@pytest.mark.parametrize(("line", "code"), [("links 0 18", 999), ("set 0 link_count 18", 3)])
async def test_a_port_that_cannot_say_hides_no_other(description: Path, reader: NvmlReader, line: str, code: int) -> None:
    """An unknown error is none that means "no more links"; where the driver counts them, nothing does."""
    machine = hardware.hgx_h100(description)
    machine.lines = [one for one in machine.lines if one != "set 0 link_count 18"]
    machine.add(line, f"linkfail 0 5 {code}")
    reading = await reader.read()
    assert [port.active for port in well(reading)[0].nvlink_ports] == [link != 5 for link in range(18)]
    assert [link.active for link in reading.health[0].links if link.active is not True] == [None]
    assert rates(reading)[0, 1] == 850.0


@pytest.mark.parametrize(("level", "path"), [(0, "X"), (10, "PIX"), (20, "PXB"), (30, "PHB"), (40, "NODE"), (50, "SYS")])
async def test_every_level_of_the_pcie_tree(description: Path, reader: NvmlReader, level: int, path: str) -> None:
    machine = hardware.h100_nvl(description)
    machine.add(f"path 0 3 {level}")
    assert paths(await reader.read())[0, 3] == path


async def test_sms_of_a_driver_that_does_not_count_cores_are_the_catalogues(description: Path, reader: NvmlReader) -> None:
    machine = hardware.dgx_a100(description)
    machine.add("fail 0 nvmlDeviceGetNumGpuCores 3", "set 1 cores 6272")
    gpus = well(await reader.read())
    assert [gpu.sm_count for gpu in gpus[:3]] == [108, 98, 108]


async def test_a_card_that_the_catalogue_does_not_know(description: Path, reader: NvmlReader) -> None:
    card = hardware.Card("NVIDIA Q700 48GB", 49140, 120, 0, 250, 5, 0, 0)
    machine = hardware.machine(description, card, [hardware.address(3)], (0,), "600.1")
    machine.put()
    (gpu,) = well(await reader.read())
    assert (gpu.name, gpu.model, gpu.family, gpu.memory_gb) == ("NVIDIA Q700 48GB", "", "q700", 48)
    assert not gpu.nvlink_ports


async def test_a_gpu_without_memory_of_its_own(description: Path, reader: NvmlReader) -> None:
    """As GB10: it shares the host's, and NVML says "not supported"."""
    machine = hardware.h100_nvl(description)
    machine.add("fail 0 nvmlDeviceGetMemoryInfo 3")
    assert well(await reader.read())[0].memory_bytes == 0


async def test_the_inventory_stays_while_figures_move(description: Path, reader: NvmlReader) -> None:
    machine = hardware.hgx_h100(description)
    before = await reader.read()
    for gpu in range(8):
        machine.figures(
            gpu, temperature=80, power_mw=650_000, throttle=4, memory_used=2 << 30, ecc_corrected=7, memory_temperature=90
        )
    machine.add("holder 0 4711 1024", "linkerror 1 3 0 99", "xid 1 2 13")
    after = await reader.read()
    assert [gpu.gpu for gpu in before.gpus] == [gpu.gpu for gpu in after.gpus]
    assert (before.nvlinks, before.gpu_paths) == (after.nvlinks, after.gpu_paths)
    assert before.health != after.health
