"""ibstat's output, as it comes: whole, cut, with debug lines between, without indentation."""

from __future__ import annotations

import asyncio
import os
import re
import time
from pathlib import Path

import pytest

from fmagent.devices import ibstat
from fmagent.devices.ibstat import OUTPUT_BYTES_MAX, IbstatReader, PortReading, locate, parse_ibstat
from fmagent.devices.killed import Killed
from fmagent.devices.presence import Presence
from fmagent.devices.real import RealDevices
from fmproto.v1 import hardware_pb2 as pb
from tests.support.agent import processes_naming
from tests.support.shared_data import files, shared

TWO = """ibwarn: [77] umad_init: umad_init
CA 'mlx5_0'
\tCA type: MT4129
\tNumber of ports: 1
\tFirmware version: 28.1.1
\tNode GUID: 0x1111222233334444
\tPort 1:
\t\tState: Active
\t\tPhysical state: LinkUp
\t\tRate: 400
\t\tBase lid: 12
\t\tPort GUID: 0x1111222233334444
\t\tLink layer: InfiniBand
CA 'mlx5_bond_0'\r
  Number of ports: 1\r
  Port 1:\r
    State: Down\r
    Physical state: LinkUp\r
    Rate: 40\r
"""


def test_two_adapters() -> None:
    ib, bond = parse_ibstat(TWO)
    assert (ib.hca, ib.port, ib.state, ib.physical_state, ib.rate_gbps) == ("mlx5_0", 1, "Active", "LinkUp", 400)
    assert (ib.link_layer, ib.port_guid, ib.firmware) == ("InfiniBand", "0x1111222233334444", "28.1.1")
    assert (bond.hca, bond.state, bond.rate_gbps, bond.link_layer) == ("mlx5_bond_0", "Down", 40, "")


@pytest.mark.parametrize(
    "text", ["", "\n", "ibpanic: [1] main: stat of IB device 'x' failed\n", "CA 'mlx5_0'\n\tNumber of ports: 1\n"]
)
def test_no_port_is_no_port(text: str) -> None:
    assert parse_ibstat(text) == []


@pytest.mark.parametrize("cut", range(40, len(TWO), 37))
def test_output_that_ends_anywhere_keeps_what_was_said(cut: int) -> None:
    found = parse_ibstat(TWO[:cut])
    assert [port.hca for port in found] == ["mlx5_0", "mlx5_bond_0"][: len(re.findall(r"Port 1:", TWO[:cut]))]


def test_sysfs_places_the_adapter(tmp_path: Path) -> None:
    device = tmp_path / "devices/pci0000:10/0000:1a:00.0"
    device.mkdir(parents=True)
    (device / "numa_node").write_text("1\n")
    adapter = tmp_path / "class/infiniband/mlx5_0"
    adapter.mkdir(parents=True)
    (adapter / "device").symlink_to(device)
    near, unknown = locate(parse_ibstat(TWO), tmp_path)
    assert (near.pci_address, near.numa_node) == ("0000:1a:00.0", 1)
    assert (unknown.pci_address, unknown.numa_node) == ("", -1)


def test_a_name_that_is_a_path_leads_nowhere(tmp_path: Path) -> None:
    (tmp_path / "class/infiniband").mkdir(parents=True)
    (tmp_path / "class/device").mkdir()
    (tmp_path / "class/device/numa_node").write_text("1\n")
    (port,) = locate([pb.HcaPort(hca="..", port=1, numa_node=-1)], tmp_path)
    (other,) = locate([pb.HcaPort(hca="../infiniband/..", port=1, numa_node=-1)], tmp_path)
    assert (port.numa_node, other.numa_node) == (-1, -1)


class Undying(Killed):
    """SIGKILL has no effect yet, as on a process in state D."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[asyncio.subprocess.Process] = []

    def kill(self, child: asyncio.subprocess.Process) -> None:
        self.asked.append(child)


def make_ibstat(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = folder / "ibstat"
    tool.write_text(f"#!/bin/sh\necho started >> {folder}/starts\n{script}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


async def test_no_ibstat_is_started_while_the_hung_one_does_not_die(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_ibstat(tmp_path, "exec sleep 600", monkeypatch)
    reader = IbstatReader(timeout_s=0.5)
    reader.killed = killed = Undying()
    assert (await reader.read()).error == "ibstat hung: no answer in 0.5 s"
    for _ in range(3):
        assert (await reader.read()).error == f"ibstat hung: process {killed.asked[0].pid} was killed and does not end"
    assert (tmp_path / "starts").read_text() == "started\n"
    make_ibstat(tmp_path, f"cat {tmp_path}/said", monkeypatch)
    (tmp_path / "said").write_text(TWO)
    killed.asked[0].kill()  # the driver lets go of it
    await killed.asked[0].wait()
    reading = await reader.read()
    assert (len(reading.ports), reading.error) == (2, "")


async def test_ports_of_a_hung_ibstat_stay_known_and_are_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "said").write_text(TWO)
    make_ibstat(tmp_path, f"cat {tmp_path}/said", monkeypatch)
    devices = RealDevices("n1", 10.0, "", Presence(), IbstatReader(timeout_s=1.0))
    try:
        await devices.observe()
        make_ibstat(tmp_path, "exec sleep 600", monkeypatch)
        inventory, health = await devices.observe()
        assert [port.hca for port in inventory.hca_ports] == ["mlx5_0", "mlx5_bond_0"]
        told = {port.device: (port.state, port.reason) for port in health.hca_ports}
        assert told["mlx5_0/1"] == (pb.HEALTH_STATE_FAILED, "ibstat hung: no answer in 1 s")
        assert told["mlx5_bond_0/1"][0] == pb.HEALTH_STATE_FAILED
        make_ibstat(tmp_path, f"cat {tmp_path}/said", monkeypatch)
        _, health = await devices.observe()
        assert [port.state for port in health.hca_ports] == [pb.HEALTH_STATE_OK, pb.HEALTH_STATE_FAILED]
    finally:
        await devices.close()


async def test_the_command_is_configurable_and_may_be_absent(tmp_path: Path) -> None:
    (tmp_path / "said").write_text(TWO)
    reading = await IbstatReader(command=("cat", str(tmp_path / "said"))).read()
    assert [port.hca for port in reading.ports] == ["mlx5_0", "mlx5_bond_0"]
    assert await IbstatReader(command=("/nonexistent/ibstat",)).read() == PortReading()


async def test_a_flood_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ibstat, "OUTPUT_BYTES_MAX", 100_000)
    reading = await IbstatReader(command=("cat", "/dev/zero")).read()
    assert reading == PortReading(error="ibstat printed more than 100,000 bytes")


def test_a_lid_that_nobody_gave_is_none() -> None:
    text = TWO.replace("Base lid: 12", "Base lid: 65535")
    assert [port.lid for port in parse_ibstat(text)] == [0, 0]
    assert [(port.bond, port.roce_gid_index, port.rate_max_gbps) for port in parse_ibstat(TWO)] == [
        (False, -1, 400),
        (True, -1, 0),
    ]


def test_real_outputs() -> None:
    """Every text of the collection: as many ports, states and rates as its lines have, in both tools' words."""
    shared("ibstat")
    walked = 0
    for path in files("ibstat", "*.txt"):
        text = path.read_text(encoding="utf-8", errors="replace")
        found = parse_ibstat(text)
        lines = [line.strip() for line in text.splitlines()]
        begins = [line for line in lines if re.fullmatch(r"Port \d+:|Infiniband device '\S+' port \d+ status:", line)]
        assert len(found) == len(begins), path.name
        states = [line.partition(":")[2].split()[-1].capitalize() for line in lines if line.lower().startswith("state:")]
        assert sorted(port.state for port in found) == sorted(states), path.name
        rates = [float(line.split()[1]) for line in lines if line.lower().startswith("rate:") and line.split()[1].isdigit()]
        assert sorted(port.rate_gbps for port in found) == sorted(rates), path.name
        walked += 1
    assert walked


@pytest.mark.parametrize("text", ["Segmentation fault", "\x00\x01\x02", "GPU 0: NVIDIA H100"])
async def test_junk_is_not_the_absence_of_adapters(text: str, tmp_path: Path) -> None:
    """What was known of the ports stays then."""
    said = tmp_path / "said"
    said.write_text(text)
    reading = await IbstatReader(command=("cat", str(said))).read()
    assert reading.ports == ()
    assert reading.error.startswith("ibstat printed no adapter, but ")


async def test_an_endless_ibstat_ends_with_all_that_it_started(tmp_path: Path) -> None:
    """And the event loop, which beats, goes on: megabytes are read in a thread."""
    mark = f"junk-of-{tmp_path.name}"
    began_s = time.monotonic()
    reading = await IbstatReader(command=("sh", "-c", f"yes {mark}; true")).read()
    assert reading.error == f"ibstat printed more than {OUTPUT_BYTES_MAX:,} bytes"
    reading = await IbstatReader(0.5, ("sh", "-c", f"sh -c 'sleep 600; : {mark}'; true")).read()
    assert reading.error == "ibstat hung: no answer in 0.5 s"
    assert time.monotonic() - began_s < 10
    assert processes_naming(mark) == []
