"""Adapters from sysfs trees on disk, from ibstat and perfquery over a simulated fabric, and both together."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fmagent.devices import adapters, ethtool, sysfs
from fmagent.devices.ibstat import IbstatReader
from fmagent.devices.infiniband import (
    InfinibandReader,
    PortsFound,
    merge,
    near_gpus,
    parse_perfquery,
    place_near,
    read_sysfs,
)
from fmproto.v1 import hardware_pb2 as pb
from tests.support.fake_sysfs import FakeSysfs
from tests.support.ibsim import fat_tree, ibsim, require_ibsim
from tests.support.shared_data import shared

NO_TOOL = ("/nonexistent/tool",)

INFINIBAND = {
    "hca_type": "MT4129",
    "fw_ver": "28.39.1",
    "board_id": "MT_0000000838",
    "node_type": "1: CA",
    "node_guid": "a088:c203:0011:2233",
    "ports/1/state": "4: ACTIVE",
    "ports/1/phys_state": "5: LinkUp",
    "ports/1/rate": "400 Gb/sec (4X NDR)",
    "ports/1/link_layer": "InfiniBand",
    "ports/1/lid": "0x1a",
    "ports/1/gids/0": "fe80:0000:0000:0000:a088:c203:0011:2244",
    "ports/1/counters/symbol_error": 3,
    "ports/1/counters/link_downed": 1,
    "ports/1/counters/port_xmit_wait": "N/A (no PMA)",
    "ports/1/hw_counters/out_of_sequence": 7,
    "ports/1/hw_counters/lifespan": 12,
}
ROCE = {
    "hca_type": "MT4125",
    "fw_ver": "22.36.1",
    "board_id": "MT_0000000359",
    "ports/1/state": "4: ACTIVE",
    "ports/1/phys_state": "5: LinkUp",
    "ports/1/rate": "100 Gb/sec (2X HDR)",
    "ports/1/link_layer": "Ethernet",
    "ports/1/lid": "0x0",
    "ports/1/gids/0": "fe80:0000:0000:0000:0ac0:ebff:fe11:2233",
    "ports/1/gids/1": "fe80:0000:0000:0000:0ac0:ebff:fe11:2233",
    "ports/1/gids/2": "0000:0000:0000:0000:0000:ffff:0a01:0203",
    "ports/1/gids/3": "0000:0000:0000:0000:0000:ffff:0a01:0203",
    "ports/1/gids/10": "0000:0000:0000:0000:0000:ffff:0a01:0204",
    "ports/1/gid_attrs/types/0": "IB/RoCE v1",
    "ports/1/gid_attrs/types/1": "RoCE v2",
    "ports/1/gid_attrs/types/2": "IB/RoCE v1",
    "ports/1/gid_attrs/types/3": "RoCE v2",
    "ports/1/gid_attrs/types/10": "RoCE v2",
}


@pytest.fixture
def tree(tmp_path: Path) -> FakeSysfs:
    return FakeSysfs(tmp_path / "sys")


def test_an_infiniband_port_in_every_field(tree: FakeSysfs) -> None:
    way = ("pci0000:15", "0000:15:01.0", "0000:16:00.0", "0000:17:00.0", "0000:18:00.0")
    tree.adapter("mlx5_3", tree.pci(way, {"numa_node": 1}), INFINIBAND)
    tree.netdev("ibs3", tree.root.joinpath("devices", *way))
    (port,) = read_sysfs(tree.root).ports
    assert port == pb.HcaPort(
        hca="mlx5_3", port=1, state="Active", physical_state="LinkUp", rate_gbps=400, link_layer="InfiniBand",
        port_guid="0xa088c20300112244", node_guid="0xa088c20300112233", firmware="28.39.1", pci_address="0000:18:00.0",
        numa_node=1, rate_max_gbps=400, lid=26, netdev="ibs3", roce_gid_index=-1, hca_type="MT4129",
    )  # fmt: skip
    assert read_sysfs(tree.root).counters == {"mlx5_3/1": {"symbol_error": 3, "link_downed": 1, "out_of_sequence": 7}}


def test_a_roce_port_names_the_gid_that_nccl_takes(tree: FakeSysfs) -> None:
    device = tree.pci(("pci0000:00", "0000:00:05.0"))
    tree.adapter("rocep0s5", device, ROCE)
    tree.netdev("ens5", device)
    (port,) = read_sysfs(tree.root).ports
    assert (port.link_layer, port.roce_gid_index, port.netdev, port.numa_node) == ("Ethernet", 3, "ens5", -1)
    assert (port.lid, port.bond, port.virtual_function) == (0, False, False)


@pytest.mark.parametrize("gone", ["ports/1/gids/3", "ports/1/gid_attrs/types/3"])
def test_a_gid_without_its_other_half_is_passed_over(tree: FakeSysfs, gone: str) -> None:
    tree.adapter("mlx5_0", None, {name: text for name, text in ROCE.items() if name != gone})
    assert [port.roce_gid_index for port in read_sysfs(tree.root).ports] == [10]


def test_no_gid_over_ipv4_is_no_index(tree: FakeSysfs) -> None:
    tree.adapter("mlx5_0", None, {name: text for name, text in ROCE.items() if "ffff" not in str(text)})
    assert [port.roce_gid_index for port in read_sysfs(tree.root).ports] == [-1]


def test_bonds_by_name_and_by_interface(tree: FakeSysfs) -> None:
    first, second = (
        tree.pci(("pci0000:00", "0000:00:01.0", "0000:01:00.0")),
        tree.pci(("pci0000:00", "0000:00:01.0", "0000:01:00.1")),
    )
    tree.adapter("mlx5_bond_0", first, {**ROCE, "ports/1/gid_attrs/ndevs/0": "bond0"})
    tree.adapter("mlx5_1", second, ROCE)
    tree.netdev("ens1f0", first, bond="bond0")
    tree.netdev("ens1f1", second, bond="bond0")
    tree.adapter("mlx5_2", None, ROCE)
    one, two, joined = read_sysfs(tree.root).ports
    assert [(port.hca, port.netdev, port.bond) for port in (one, two, joined)] == [
        ("mlx5_1", "ens1f1", True),
        ("mlx5_2", "", False),
        ("mlx5_bond_0", "bond0", True),
    ]


def test_two_ports_of_one_adapter_have_their_own_interfaces(tree: FakeSysfs) -> None:
    device = tree.pci(("pci0000:00", "0000:00:01.0", "0000:01:00.0"))
    second = {name.replace("ports/1", "ports/2"): text for name, text in INFINIBAND.items() if name.startswith("ports/1")}
    tree.adapter(
        "mlx4_0",
        device,
        {**INFINIBAND, **second, "hca_type": "MT4099", "ports/2/state": "2: INIT", "ports/2/lid": "0xffff"},
    )
    tree.netdev("ib0", device, dev_port=0)
    tree.netdev("ib1", device, dev_port=1)
    assert [(port.port, port.netdev, port.state, port.lid) for port in read_sysfs(tree.root).ports] == [
        (1, "ib0", "Active", 26),
        (2, "ib1", "Initializing", 0),
    ]


def test_virtual_functions_by_parent_and_by_device_id(tree: FakeSysfs) -> None:
    parent = tree.pci(("pci0000:00", "0000:00:01.0", "0000:01:00.0"))
    child = tree.pci(("pci0000:00", "0000:00:01.0", "0000:01:00.2"))
    (child / "physfn").symlink_to(parent)
    tree.adapter("mlx5_0", parent, {**INFINIBAND, "ports/1/state": "1: DOWN", "ports/1/rate": "10 Gb/sec (4X SDR)"})
    tree.adapter("mlx5_1", child, INFINIBAND)
    tree.adapter("mlx5_2", tree.pci(("pci0000:00", "0000:00:07.0")), {**INFINIBAND, "hca_type": "MT4126", "board_id": ""})
    ports = read_sysfs(tree.root).ports
    assert [(port.virtual_function, port.rate_max_gbps) for port in ports] == [(False, 400), (True, 400), (True, 0)]
    assert ports[0].state == "Down"


def test_an_adapter_with_nothing_readable_is_still_a_port(tree: FakeSysfs) -> None:
    tree.adapter("mlx5_0", None, {"ports/1/state": ""})
    tree.adapter("mlx5_9", None, {"ports/1/state": "9: NEW WORD", "ports/x/state": "4: ACTIVE", "ports/1/rate": "fast"})
    tree.adapter("switchib0", None, {"node_type": "2: switch", "ports/1/state": "4: ACTIVE"})
    first, second = read_sysfs(tree.root).ports
    assert (first.hca, first.state, first.numa_node, first.roce_gid_index) == ("mlx5_0", "", -1, -1)
    assert (second.hca, second.state, second.rate_gbps) == ("mlx5_9", "NEW WORD", 0)
    assert read_sysfs(tree.root / "nowhere").ports == ()


@pytest.mark.parametrize(
    ("hca_type", "board", "functions", "rate", "most"),
    [
        ("MT4115", "", 1, 56.0, 100.0),
        ("MT4123", "", 2, 200.0, 200.0),
        ("MT4123", "MT_0000000222", 1, 100.0, 100.0),
        ("MT4125", "", 1, 200.0, 200.0),
        ("MT4129", "", 1, 200.0, 400.0),
        ("MT4129", "", 2, 200.0, 200.0),
        ("MT4131", "", 1, 0.0, 800.0),
        ("MT41692", "MT_0000000884", 1, 100.0, 200.0),
        ("MT4117", "", 1, 25.0, 0.0),
        ("no such", "", 1, 400.0, 0.0),
    ],
)
def test_what_an_adapter_can_do(hca_type: str, board: str, functions: int, rate: float, most: float) -> None:
    assert adapters.rate_max_gbps(hca_type, board, functions, rate) == most


def test_what_the_interface_can_do_comes_before_any_table(tree: FakeSysfs) -> None:
    device = tree.pci(("pci0000:00", "0000:00:05.0"))
    tree.adapter("mlx5_0", device, {**ROCE, "hca_type": "MT4119", "ports/1/rate": "25 Gb/sec (1X EDR)"})
    tree.netdev("ens5", device)
    tree.adapter("mlx5_1", None, INFINIBAND)
    can = {"ens5": 25.0}
    assert [port.rate_max_gbps for port in read_sysfs(tree.root, can.__getitem__).ports] == [25, 400]
    assert [port.rate_max_gbps for port in read_sysfs(tree.root).ports] == [100, 400]


@pytest.mark.parametrize(
    ("bits", "gbps"),
    [
        ((), 0),
        ((5, 6, 13), 0),
        ((12, 31, 33), 25),
        ((33, 36, 52, 62), 200),
        ((60, 87, 90), 400),
        ((98,), 800),
        ((102,), 0),
        ((120, 79), 800),
    ],
)
def test_the_fastest_of_a_mask_of_link_modes(bits: tuple[int, ...], gbps: float) -> None:
    assert ethtool.fastest_gbps(sum(1 << bit for bit in bits)) == gbps


def test_link_modes_as_the_kernel_numbers_them() -> None:
    header = Path("/usr/include/linux/ethtool.h")
    if not header.exists():
        pytest.skip("linux/ethtool.h (linux-libc-dev) is not installed")
    modes = re.findall(r"ETHTOOL_LINK_MODE_(\d+)base\w+_BIT\s*=\s*(\d+)", header.read_text(encoding="utf-8"))
    assert len(modes) >= 60
    wrong = {
        (mbps, bit)
        for mbps, bit in modes
        if ethtool.fastest_gbps(1 << int(bit)) != (int(mbps) / 1000 if int(mbps) >= 10_000 else 0)
    }
    assert not wrong


def test_the_interfaces_of_this_host() -> None:
    """As the tool of the same name says, where it is there; one that is no interface can do nothing."""
    assert [ethtool.max_gbps(name) for name in ("", "no such one", "a name that is far too long", "lo")] == [0, 0, 0, 0]
    for _, name in socket.if_nameindex() if shutil.which("ethtool") else ():
        said = subprocess.run(["ethtool", name], capture_output=True, text=True, check=False).stdout
        modes = [int(mbps) / 1000 for mbps in re.findall(r"(\d+)base", said.partition("Advertised")[0])]
        assert ethtool.max_gbps(name) == max((gbps for gbps in modes if gbps >= 10), default=0)


# Two switches below one host bridge, a third below another; in each two GPUs and an adapter, the third's on a port of its own.
GPUS = [
    (0, ("pci0000:10", "0000:10:01.0", "0000:11:00.0", "0000:12:00.0", "0000:13:00.0"), 0),
    (1, ("pci0000:10", "0000:10:01.0", "0000:11:00.0", "0000:12:01.0", "0000:14:00.0"), 0),
    (2, ("pci0000:10", "0000:10:02.0", "0000:21:00.0", "0000:22:00.0", "0000:23:00.0"), 0),
    (3, ("pci0000:80", "0000:80:01.0", "0000:81:00.0"), 1),
    (4, (), 1),
]


@pytest.mark.parametrize(
    ("way", "numa", "near"),
    [
        (("pci0000:10", "0000:10:01.0", "0000:11:00.0", "0000:12:04.0", "0000:15:00.0"), 0, (0, 1)),
        (("pci0000:10", "0000:10:02.0", "0000:21:00.0", "0000:22:07.0", "0000:24:00.0"), 0, (2,)),
        (("pci0000:10", "0000:10:03.0", "0000:31:00.0"), 0, (0, 1, 2)),
        (("pci0000:80", "0000:80:05.0", "0000:85:00.0"), 1, (3, 4)),
        ((), 1, (3, 4)),
        ((), -1, ()),
        (("pci0000:c0", "0000:c0:01.0", "0000:c1:00.0"), -1, ()),
    ],
)
def test_near_is_behind_one_switch_else_on_one_node(way: tuple[str, ...], numa: int, near: tuple[int, ...]) -> None:
    assert near_gpus(way, numa, GPUS) == near


def test_the_closest_of_two_nested_switches_counts() -> None:
    outer = ("pci0000:10", "0000:10:01.0", "0000:11:00.0")
    gpus = [
        (0, (*outer, "0000:12:00.0", "0000:13:00.0", "0000:14:00.0", "0000:15:00.0"), 0),
        (1, (*outer, "0000:12:01.0", "0000:23:00.0", "0000:24:00.0", "0000:25:00.0"), 0),
    ]
    assert near_gpus((*outer, "0000:12:00.0", "0000:13:00.0", "0000:14:01.0", "0000:16:00.0"), 0, gpus) == (0,)
    assert near_gpus((*outer, "0000:12:02.0", "0000:33:00.0"), 0, gpus) == (0, 1)


def test_places_come_from_the_addresses_as_nvml_writes_them(tree: FakeSysfs) -> None:
    tree.pci(GPUS[0][1])
    tree.pci(GPUS[2][1])
    tree.pci(("pci0000:10", "0000:10:02.0", "0000:21:00.0", "0000:22:07.0", "0000:24:00.0"))
    ports = [pb.HcaPort(hca="mlx5_0", pci_address="0000:24:00.0", numa_node=0, near_gpus=[7])]
    gpus = [pb.Gpu(index=0, pci_address="00000000:13:00.0"), pb.Gpu(index=2, pci_address="00000000:23:00.0")]
    place_near(ports, gpus, tree.root)
    assert list(ports[0].near_gpus) == [2]
    assert sysfs.pci_parts("../../etc/passwd", tree.root) == ()


def test_merging_keeps_both_and_prefers_the_kernel() -> None:
    seen = [pb.HcaPort(hca="mlx5_10", port=1, state="Down", rate_gbps=10, numa_node=1), pb.HcaPort(hca="mlx5_2", port=1)]
    said = [
        pb.HcaPort(hca="mlx5_2", port=1, state="Active", rate_gbps=200, firmware="20.1", lid=9),
        pb.HcaPort(hca="mlx5_10", port=1, state="Active", rate_gbps=400, numa_node=-1),
        pb.HcaPort(hca="mlx5_2", port=2, state="Down"),
    ]
    merged = merge(seen, said)
    assert [(port.hca, port.port, port.state, port.rate_gbps) for port in merged] == [
        ("mlx5_2", 1, "Active", 200),
        ("mlx5_2", 2, "Down", 0),
        ("mlx5_10", 1, "Down", 10),
    ]
    assert (merged[0].firmware, merged[0].lid, merged[2].numa_node) == ("20.1", 9, 1)
    assert seen[1].state == ""


def test_a_real_tree_says_what_its_files_say(tree: FakeSysfs) -> None:
    table = shared("ibstat") / "sysfs-class-infiniband-h100-9dev.tsv"
    said: dict[str, str] = {}
    for line in table.read_text(encoding="utf-8").splitlines():
        path, _, text = line.partition("\t")
        said[path.removeprefix("/sys/class/infiniband/")] = text
        tree.write(path.removeprefix("/sys/"), text)
    found = read_sysfs(tree.root)
    states = {path.split("/")[0]: text for path, text in said.items() if path.endswith("/state")}
    assert {port.hca for port in found.ports} == set(states)
    for port in found.ports:
        where = f"{port.hca}/ports/{port.port}"
        assert said[f"{where}/state"].split(": ")[1] == port.state.upper()
        assert said[f"{where}/phys_state"].split(": ")[1] == port.physical_state
        assert float(said[f"{where}/rate"].split()[0]) == port.rate_gbps
        assert (said[f"{where}/link_layer"], said[f"{port.hca}/fw_ver"]) == (port.link_layer, port.firmware)
        assert port.bond == ("bond" in port.hca)
        assert port.rate_max_gbps == port.rate_gbps
        counters = {
            path.rpartition("/")[2]: int(text)
            for path, text in said.items()
            if path.startswith((f"{where}/counters/", f"{where}/hw_counters/")) and not path.endswith("/lifespan")
        }
        assert found.counters[f"{port.hca}/{port.port}"] == counters


def reader(tree: FakeSysfs, command: tuple[str, ...] = NO_TOOL, timeout_s: float = 5.0) -> InfinibandReader:
    return InfinibandReader(IbstatReader(timeout_s, command, tree.root), tree.root, NO_TOOL, timeout_s)


async def test_sysfs_alone_is_enough(tree: FakeSysfs) -> None:
    tree.adapter("mlx5_0", tree.pci((*GPUS[0][1][:-1], "0000:13:00.1")), INFINIBAND)
    tree.pci(GPUS[0][1])
    found = await reader(tree).read([pb.Gpu(index=5, pci_address="00000000:13:00.0")])
    assert (found.error, [list(port.near_gpus) for port in found.ports]) == ("", [[5]])
    (reading,) = found.readings
    assert (reading.device, reading.state, reading.rate_max_gbps, reading.counters["symbol_error"]) == (
        "mlx5_0/1",
        "Active",
        400,
        3,
    )


async def test_ibstat_alone_is_enough(tree: FakeSysfs, tmp_path: Path) -> None:
    (tmp_path / "said").write_text(
        "CA 'mlx5_4'\n\tCA type: MT4123\n\tPort 1:\n\t\tState: Active\n\t\tRate: 200\n\t\tPort GUID: 0x1\n"
    )
    found = await reader(tree, ("cat", str(tmp_path / "said"))).read()
    assert [(port.hca, port.state, port.rate_gbps, port.rate_max_gbps) for port in found.ports] == [
        ("mlx5_4", "Active", 200, 200)
    ]
    assert (found.error, found.readings[0].counters) == ("", {})


async def test_neither_is_no_adapter(tree: FakeSysfs) -> None:
    found = await reader(tree).read()
    assert (found.ports, found.readings, found.error) == ((), (), "")


async def test_a_hung_ibstat_is_named_and_hides_no_port(tree: FakeSysfs) -> None:
    tree.adapter("mlx5_0", None, INFINIBAND)
    found = await reader(tree, ("sleep", "600"), 0.3).read()
    assert (found.error, [port.state for port in found.ports]) == ("ibstat hung: no answer in 0.3 s", ["Active"])


async def test_a_file_that_hangs_is_named_and_looked_at_once(tree: FakeSysfs, tmp_path: Path) -> None:
    """A driver whose firmware is gone holds whoever reads its counters; a pipe that nobody writes to holds them likewise."""
    tree.adapter("mlx5_0", None, INFINIBAND)
    pipe = tree.root / "class/infiniband/mlx5_0/ports/1/counters/port_rcv_errors"
    os.mkfifo(pipe)
    (tmp_path / "said").write_text("CA 'mlx5_0'\n\tPort 1:\n\t\tState: Active\n")
    looked = reader(tree, ("cat", str(tmp_path / "said")), 0.3)
    found = await looked.read()
    assert found.error.endswith("hung: no answer in 0.3 s")
    assert [(port.hca, port.state) for port in found.ports] == [("mlx5_0", "Active")]
    assert (await looked.read()).error.endswith("hung: an earlier look at it has not come back")
    pipe.write_text("5\n")
    pipe.unlink()  # before the next look, which would hang in it again
    async with asyncio.timeout(10):
        while (found := await looked.read()).error:
            pass
    assert found.ports[0].rate_gbps == 400


def test_perfquery_by_the_names_of_sysfs() -> None:
    said = """# Port counters: Lid 5 port 1
PortSelect:......1
SymbolErrorCounter:....12
LinkDownedCounter:..3
PortXmitData:.....9000000000
QP1Dropped:..1
"""
    assert parse_perfquery(said) == {"symbol_error": 12, "link_downed": 3, "port_xmit_data": 9_000_000_000}
    assert parse_perfquery("ibwarn: [7] mad_rpc_open_port: can't open UMAD port\nSymbolErrorCounter:....\n") == {}


def test_hostile_text_ends_fast() -> None:
    begun = time.monotonic()
    for text in ("." * 1_000_000, "A:" + "." * 1_000_000, "\0" * 1_000_000, "SymbolErrorCounter:....1\n" * 100_000):
        parse_perfquery(text)
    assert time.monotonic() - begun < 2


async def test_over_a_simulated_fabric(tree: FakeSysfs, tmp_path: Path) -> None:
    require_ibsim()
    with ibsim(tmp_path / "fabric", fat_tree(1, 1, 2, 1), "H000-00") as sim:
        ports = IbstatReader(10.0, (sim.at("H000-01", "ibstat"),), tree.root)
        looked = InfinibandReader(ports, tree.root, (sim.at("H000-01", "perfquery"),), 10.0)
        await until(looked, lambda found: found.ports[0].state == "Active")
        found = await looked.read()
        assert [(port.hca, port.physical_state, port.bond) for port in found.ports] == [("ibsim0", "LinkUp", False)]
        (reading,) = found.readings
        assert (found.error, reading.counters["symbol_error"], reading.counters["link_downed"]) == ("", 0, 0)
        assert reading.counters["port_xmit_packets"] > 0
        sim.say('PerformanceSet "H000-01"[1] PortCounters.SymbolErrorCounter=77')
        await until(looked, lambda found: found.readings[0].counters.get("symbol_error") == 77)
        sim.say('Unlink "H000-01"')
        await until(looked, lambda found: found.ports[0].state == "Down" and found.readings[0].state == "Down")
        sim.say('ReLink "H000-01"')
        await until(looked, lambda found: found.ports[0].state == "Active" and found.readings[0].physical_state == "LinkUp")


async def until(looked: InfinibandReader, agrees: Callable[[PortsFound], bool]) -> None:
    for _ in range(200):
        found = await looked.read()
        if agrees(found):
            return
        await asyncio.sleep(0.1)
    pytest.fail(f"it stays {found}")
