"""The real pynvml, in its child process, over a small libnvidia-ml.so.1 made for the tests."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from fmagent.devices.killed import Killed
from fmagent.devices.nvml import NvmlReader, Reading
from fmagent.devices.port import HoldersUnknown
from fmagent.devices.presence import MISSING, Presence
from fmagent.devices.real import RealDevices
from fmproto.v1 import hardware_pb2 as pb
from tests.support import fake_nvml


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that says what the machine has."""
    path = tmp_path / "machine"
    monkeypatch.setenv("FAKE_NVML", str(path))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(fake_nvml.library_folder()))
    return path


@pytest.fixture
async def reader(machine: Path) -> AsyncIterator[NvmlReader]:
    made = NvmlReader(timeout_s=10.0)
    yield made
    await made.close()


async def test_eight_gpus_on_switches(machine: Path, reader: NvmlReader) -> None:
    machine.write_text("\n".join(fake_nvml.hgx()))
    reading = await reader.read()
    assert not reading.error
    assert [gpu.gpu.uuid for gpu in reading.gpus] == [f"GPU-{slot:04d}" for slot in range(8)]
    gpu = reading.gpus[3].gpu
    assert (gpu.model, gpu.family, gpu.memory_gb) == ("H100-SXM5-80GB", "h100", 80)
    assert (gpu.memory_bytes, gpu.compute_capability, gpu.minor) == (81559 * 2**20, "9.0", 3)
    assert reading.driver_version == "570.0.0"
    assert len(reading.nvlinks) == 28
    assert {round(pair.gbytes_per_s) for pair in reading.nvlinks} == {900}


async def test_a_bridge_joins_two_and_an_inactive_link_counts_less(machine: Path, reader: NvmlReader) -> None:
    lines = [fake_nvml.gpu_line(index, index) for index in range(3)]
    lines += [f"link 0 {link} 0 {fake_nvml.address(1)}" for link in range(4)]
    lines += [f"link 1 {link} 0 {fake_nvml.address(0)}" for link in range(3)]
    machine.write_text("\n".join(lines))
    reading = await reader.read()
    assert [(pair.gpu_a, pair.gpu_b, round(pair.gbytes_per_s)) for pair in reading.nvlinks] == [(0, 1, 150)]


async def test_switches_that_share_nothing_are_two_fabrics(machine: Path, reader: NvmlReader) -> None:
    lines = [fake_nvml.gpu_line(index, index) for index in range(4)]
    for index in range(4):
        lines += [f"link {index} {link} 2 {fake_nvml.address(0xA0 + index // 2)}" for link in range(18)]
    machine.write_text("\n".join(lines))
    reading = await reader.read()
    assert [(pair.gpu_a, pair.gpu_b) for pair in reading.nvlinks] == [(0, 1), (2, 3)]


async def test_a_lost_gpu_hides_no_other(machine: Path) -> None:
    machine.write_text("\n".join(fake_nvml.hgx()))
    devices = RealDevices("n1", 10.0, "")
    try:
        await devices.observe()
        machine.write_text("\n".join([*fake_nvml.hgx(), "error 3 15"]))
        inventory, health = await devices.observe()
        states = {gpu.device: (gpu.state, gpu.reason) for gpu in health.gpus}
        assert states.pop("GPU-0003") == (pb.HEALTH_STATE_FAILED, "NVML_ERROR_GPU_IS_LOST")
        assert set(states.values()) == {(pb.HEALTH_STATE_OK, "")}
        assert [gpu.index for gpu in inventory.gpus] == list(range(8))
        assert not [pair for pair in inventory.nvlinks if 3 in {pair.gpu_a, pair.gpu_b}]
        assert len(inventory.nvlinks) == 21
    finally:
        await devices.close()


async def test_a_vanished_gpu_stays_known_over_a_restart(machine: Path, tmp_path: Path, reader: NvmlReader) -> None:
    machine.write_text("\n".join(fake_nvml.hgx()))
    Presence(tmp_path / "gpus.pb").merge(await reader.read())
    machine.write_text("\n".join(fake_nvml.hgx((0, 1, 2, 4, 5, 6, 7))))
    reading, presence = await reader.read(), Presence(tmp_path / "gpus.pb")
    gpus, health, links = presence.merge(reading)
    # NVML counts on without it; the lasting indices and the health of all do not.
    assert [(one.index, one.uuid, one.error) for one in presence.health(reading)] == [
        (slot, f"GPU-{slot:04d}", MISSING if slot == 3 else "") for slot in range(8)
    ]
    assert [(gpu.index, gpu.uuid, gpu.minor) for gpu in gpus] == [(slot, f"GPU-{slot:04d}", slot) for slot in range(8)]
    assert [gpu.device for gpu in health if gpu.reason == MISSING] == ["GPU-0003"]
    assert {(pair.gpu_a, pair.gpu_b) for pair in links} == {
        (a, b) for a in range(8) for b in range(a + 1, 8) if 3 not in {a, b}
    }


async def test_a_gpu_that_was_never_readable_is_failed(machine: Path, reader: NvmlReader) -> None:
    machine.write_text("\n".join([*fake_nvml.hgx(), "error 0 15"]))
    presence = Presence()
    _, health, _ = presence.merge(await reader.read())
    assert [gpu.device for gpu in health if gpu.state == pb.HEALTH_STATE_FAILED] == ["unknown-0"]
    machine.write_text("\n".join(fake_nvml.hgx()))
    gpus, health, _ = presence.merge(await reader.read())
    assert len(gpus) == 8
    assert all(gpu.state == pb.HEALTH_STATE_OK for gpu in health)


async def test_a_hung_nvml_is_a_fault_and_ends_nothing(machine: Path) -> None:
    reader, presence = NvmlReader(timeout_s=3.0), Presence()
    try:
        machine.write_text("\n".join(fake_nvml.hgx((0, 1))))
        presence.merge(await reader.read())
        machine.write_text("\n".join([*fake_nvml.hgx((0, 1)), "hang 600"]))
        _, health, _ = presence.merge(await reader.read())
        assert [gpu.reason for gpu in health] == ["NVML hung in nvmlDeviceGetCount for 3 s"] * 2
        machine.write_text("\n".join(fake_nvml.hgx((0, 1))))
        _, health, _ = presence.merge(await reader.read())
        assert [gpu.reason for gpu in health] == ["", ""]
    finally:
        await reader.close()


async def test_holders_are_told_per_gpu(machine: Path, reader: NvmlReader) -> None:
    machine.write_text("\n".join([*fake_nvml.hgx((0, 1, 2)), "holder 1 4711", "holder 1 4712", "error 2 15"]))
    assert await reader.holders(["GPU-0000", "GPU-0001"]) == {"GPU-0000": (), "GPU-0001": (4711, 4712)}


async def test_silence_about_holders_is_no_proof_that_nobody_uses_it(machine: Path, reader: NvmlReader) -> None:
    machine.write_text("\n".join([*fake_nvml.hgx((0, 1)), "error 1 15"]))
    with pytest.raises(HoldersUnknown, match=r"GPU GPU-0001: .* cannot be read: NVML_ERROR_GPU_IS_LOST"):
        await reader.holders(["GPU-0000", "GPU-0001"])
    with pytest.raises(HoldersUnknown, match="GPU GPU-0007"):
        await reader.holders(["GPU-0007"])


async def test_holders_are_unknown_where_nvml_fails_as_a_whole(machine: Path, reader: NvmlReader) -> None:
    machine.write_text("init 9")
    with pytest.raises(HoldersUnknown, match="NVML_ERROR_DRIVER_NOT_LOADED"):
        await reader.holders(["GPU-0000"])


async def test_holders_of_a_gpu_that_the_order_names_by_index(machine: Path) -> None:
    machine.write_text("\n".join([*fake_nvml.hgx((0, 1)), "holder 1 4711"]))
    devices = RealDevices("n1", 10.0, "")
    try:
        await devices.observe()
        assert await devices.holders(["1"]) == {"GPU-0001": (4711,)}
    finally:
        await devices.close()


class Undying(Killed):
    """SIGKILL has no effect yet, as on a process in state D."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[asyncio.subprocess.Process] = []

    def kill(self, child: asyncio.subprocess.Process) -> None:
        self.asked.append(child)


async def test_no_reader_is_started_while_the_hung_one_does_not_die(machine: Path) -> None:
    machine.write_text("\n".join([*fake_nvml.hgx((0, 1)), "hang 600"]))
    reader = NvmlReader(timeout_s=1.0)
    reader.killed = killed = Undying()
    assert (await reader.read()).error == "NVML hung in nvmlDeviceGetCount for 1 s"
    for _ in range(3):
        assert (await reader.read()).error == f"NVML hung: process {killed.asked[0].pid} was killed and does not end"
    with pytest.raises(HoldersUnknown, match="NVML hung"):
        await reader.holders(["GPU-0000"])
    assert len(killed.asked) == 1
    machine.write_text("\n".join(fake_nvml.hgx((0, 1))))
    killed.asked[0].kill()  # the driver lets go of it
    await killed.asked[0].wait()
    reader.killed = Killed()
    assert (await reader.read()).error == ""
    await reader.close()


@pytest.mark.parametrize("content", [b"\x32\xff", b"no message"])
async def test_a_record_that_cannot_be_read_is_set_aside(
    machine: Path, tmp_path: Path, reader: NvmlReader, content: bytes
) -> None:
    record = tmp_path / "gpus.pb"
    record.write_bytes(content)
    presence = Presence(record)
    assert str(record) in presence.fault
    assert (tmp_path / "gpus.pb.bad").read_bytes() == content
    machine.write_text("\n".join(fake_nvml.hgx((0, 1))))
    gpus, _, _ = presence.merge(await reader.read())
    assert [gpu.uuid for gpu in gpus] == ["GPU-0000", "GPU-0001"]
    again = Presence(record)
    assert again.fault == ""
    assert [gpu.uuid for gpu in again.merge(Reading())[0]] == ["GPU-0000", "GPU-0001"]


async def test_the_record_of_gpus_is_on_the_disk(
    machine: Path, tmp_path: Path, reader: NvmlReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.fstat(descriptor).st_ino))
    machine.write_text("\n".join(fake_nvml.hgx((0, 1))))
    Presence(tmp_path / "gpus.pb").merge(await reader.read())
    assert synced == [(tmp_path / "gpus.pb").stat().st_ino, tmp_path.stat().st_ino]


async def test_a_driver_that_is_not_loaded_is_named(machine: Path, reader: NvmlReader) -> None:
    machine.write_text("init 9")
    reading = await reader.read()
    assert reading.error == "NVML_ERROR_DRIVER_NOT_LOADED"
    assert reading.gpus == ()


async def test_without_the_library_there_are_no_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if any(Path(folder, "libnvidia-ml.so.1").exists() for folder in ("/usr/lib/x86_64-linux-gnu", "/usr/lib64")):
        pytest.skip("this machine has a real libnvidia-ml.so.1")
    monkeypatch.setenv("LD_LIBRARY_PATH", os.defpath)
    devices = RealDevices("n1", 10.0, "")
    try:
        inventory, health = await devices.observe()
        assert (list(inventory.gpus), list(health.gpus)) == ([], [])
        assert inventory.host.cpus > 0
    finally:
        await devices.close()
