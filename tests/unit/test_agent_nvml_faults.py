"""GPUs and drivers that fail: the real pynvml over a libnvidia-ml.so.1 that hangs, dies, or says what the tests tell it to."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from fmagent.devices import nvml
from fmagent.devices.nvml import NvmlReader, Reading
from fmagent.devices.port import HoldersUnknown
from fmagent.devices.presence import MISSING, Presence
from fmagent.health.readings import LinkReading, XidEvent
from fmproto.v1 import hardware_pb2 as pb
from tests.support import fake_hardware as hardware
from tests.support import fake_nvml

# Of readings where nothing hangs, and where something does.
LIMIT_S = 20.0
HANG_S = 3.0


@pytest.fixture
def description(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "machine"
    monkeypatch.setenv("FAKE_NVML", str(path))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(fake_nvml.library_folder()))
    return path


@pytest.fixture
async def reader(description: Path) -> AsyncIterator[NvmlReader]:
    made = NvmlReader(timeout_s=LIMIT_S)
    yield made
    await made.close()


@pytest.fixture
async def hasty(description: Path) -> AsyncIterator[NvmlReader]:
    made = NvmlReader(timeout_s=HANG_S)
    yield made
    await made.close()


def errors(reading: Reading) -> dict[int, str]:
    """Of the GPUs that have one."""
    return {gpu.gpu.index: gpu.error for gpu in reading.gpus if gpu.error}


async def until(look: Callable[[], Awaitable[bool]]) -> None:
    ended_s = time.monotonic() + 30.0
    while time.monotonic() < ended_s:
        if await look():
            return
        await asyncio.sleep(0.05)
    raise AssertionError("it does not come")


# ---- one GPU that hangs ----


async def test_a_gpu_that_hangs_hides_no_other(description: Path) -> None:
    machine = hardware.hgx_h100(description)
    stalled = "stall 4 nvmlDeviceGetTemperature 600"
    machine.add(stalled)
    said = f"hung in nvmlDeviceGetTemperature for {HANG_S:g} s"
    reader = NvmlReader(timeout_s=HANG_S)
    try:
        reading = await reader.read()
        assert reading.error == ""
        assert errors(reading) == {4: said}
        assert reading.health[4].error == said
        assert [gpu.gpu.uuid for gpu in reading.gpus] == [machine.uuid(index) for index in range(8)]
        assert all(gpu.gpu.power_limit_w == 700 and len(gpu.gpu.nvlink_ports) == 18 for gpu in reading.gpus)
        assert [health.temperature_c for health in reading.health] == [30, 31, 32, 33, None, 35, 36, 37]
        assert {(pair.gpu_a, pair.gpu_b) for pair in reading.nvlinks} == {
            (a, b) for a in range(8) for b in range(a + 1, 8) if 4 not in {a, b}
        }
        assert len(reading.gpu_paths) == 21

        # It is not asked again, and nobody waits for it.
        began_s = time.monotonic()
        again = await reader.read()
        assert time.monotonic() - began_s < HANG_S
        assert errors(again) == {4: said}

        machine.drop(stalled)
        await until(lambda: healed(reader))
        assert len((await reader.read()).nvlinks) == 28
    finally:
        await reader.close()


async def test_seven_that_hang_in_different_calls(description: Path) -> None:
    calls = {
        0: "nvmlDeviceGetHandleByIndex", 1: "nvmlDeviceGetUUID", 2: "nvmlDeviceGetMemoryInfo", 3: "nvmlDeviceGetNvLinkState",
        4: "nvmlDeviceGetGpuFabricInfoV", 5: "nvmlDeviceGetMigMode", 7: "nvmlDeviceGetComputeRunningProcesses",
    }  # fmt: skip
    machine = hardware.hgx_h100(description)
    machine.add(*(f"stall {gpu} {call} 600" for gpu, call in calls.items()))
    reader = NvmlReader(timeout_s=HANG_S)
    try:
        began_s = time.monotonic()
        reading = await reader.read()
        assert time.monotonic() - began_s < 3 * HANG_S  # one limit for all, beside the start of the process
        # pynvml's wrapper of the last has its version in the name.
        said = {gpu: f"hung in {call}{'_v3' if gpu == 7 else ''} for {HANG_S:g} s" for gpu, call in calls.items()}
        assert errors(reading) == said
        assert [gpu.gpu.uuid for gpu in reading.gpus] == ["", "", *(machine.uuid(gpu) for gpu in range(2, 8))]
        assert reading.health[6].temperature_c == 36
    finally:
        await reader.close()


async def healed(reader: NvmlReader) -> bool:
    return not errors(await reader.read())


async def test_what_a_gpu_said_before_it_hung_stands(description: Path, hasty: NvmlReader) -> None:
    machine = hardware.dgx_a100(description)
    machine.add("stall 1 nvmlDeviceGetPowerUsage 600", "set 1 temperature 77")
    reading = await hasty.read()
    assert reading.gpus[1].gpu.sm_count == 108
    assert len(reading.gpus[1].gpu.nvlink_ports) == 12
    health = reading.health[1]
    assert (health.error, health.temperature_c) == (f"hung in nvmlDeviceGetPowerUsage for {HANG_S:g} s", 77)
    assert (health.power_w, health.ecc_uncorrected, health.memory_used_bytes) == (None, None, None)


async def test_holders_of_the_others_are_told_while_one_hangs(description: Path) -> None:
    machine = hardware.dgx_a100(description)
    machine.add("holder 2 4711", "holder 2 4712")
    reader = NvmlReader(timeout_s=HANG_S)
    try:
        await reader.read()
        machine.add("stall 5 nvmlDeviceGetUUID 600")
        others = [machine.uuid(index) for index in range(8) if index != 5]
        assert await reader.holders(others) == {uuid: (4711, 4712) if uuid == machine.uuid(2) else () for uuid in others}
        with pytest.raises(HoldersUnknown, match=f"hung in nvmlDeviceGetUUID for {HANG_S:g} s"):
            await reader.holders([machine.uuid(5), machine.uuid(2)])
    finally:
        await reader.close()


async def test_a_pair_that_hangs_hides_only_the_paths(description: Path) -> None:
    machine = hardware.h100_nvl(description)
    machine.add("stall 2 nvmlDeviceGetP2PStatus 600")
    reader = NvmlReader(timeout_s=HANG_S)
    try:
        reading = await reader.read()
        assert (reading.error, errors(reading)) == ("", {})
        assert reading.problems == (f"GPU 2 and GPU 3: hung in nvmlDeviceGetP2PStatus for {HANG_S:g} s",)
        assert len(reading.gpu_paths) == 5
        assert len(reading.nvlinks) == 2
    finally:
        await reader.close()


# ---- NVML as a whole ----


@pytest.mark.parametrize("call", ["nvmlInit", "nvmlSystemGetDriverVersion", "nvmlDeviceGetCount"])
async def test_nvml_that_hangs_as_a_whole_is_named(description: Path, call: str) -> None:
    machine = hardware.h100_nvl(description)
    stalled = f"stall -1 {call} 600"
    machine.add(stalled)
    reader, presence = NvmlReader(timeout_s=HANG_S), Presence()
    try:
        reading = await reader.read()
        assert reading == Reading(error=f"NVML hung in {call} for {HANG_S:g} s")
        if call == "nvmlInit":
            with pytest.raises(HoldersUnknown, match="NVML hung in nvmlInit"):
                await reader.holders([machine.uuid(0)])
        machine.drop(stalled)
        reading = await reader.read()
        assert reading.error == ""
        _, health, _ = presence.merge(reading)
        assert [gpu.state for gpu in health] == [pb.HEALTH_STATE_OK] * 4
    finally:
        await reader.close()


async def test_a_library_that_prints_disturbs_nothing(description: Path, reader: NvmlReader) -> None:
    machine = hardware.h100_nvl(description)
    machine.add("noise 1 nvmlDeviceGetUUID", "noise -1 nvmlInit")
    reading = await reader.read()
    assert (reading.error, reading.problems, errors(reading), len(reading.gpus)) == ("", (), {}, 4)


async def test_a_library_that_crashes_hides_no_gpu_that_had_answered(description: Path) -> None:
    """A GPU whose call ends the process; the others have answered by then."""
    machine = hardware.h100_nvl(description)
    crash = ["stall 3 nvmlDeviceGetTotalEccErrors 1", "crash 3 nvmlDeviceGetRemappedRows"]
    machine.add(*crash)
    reader = NvmlReader(timeout_s=10.0)
    try:
        reading = await reader.read()
        assert reading.error == ""
        assert errors(reading) == {3: "NVML reader failed: it ended without an answer (signal 9)"}
        assert [gpu.gpu.uuid for gpu in reading.gpus[:3]] == [machine.uuid(index) for index in range(3)]
        assert [(pair.gpu_a, pair.gpu_b) for pair in reading.nvlinks] == [(0, 1)]
        machine.drop(*crash)
        assert errors(await reader.read()) == {}  # by a new process
    finally:
        await reader.close()


async def test_a_library_that_crashes_at_once(description: Path, reader: NvmlReader) -> None:
    machine = hardware.h100_nvl(description)
    machine.add("crash -1 nvmlInit")
    reading = await reader.read()
    assert reading == Reading(error="NVML reader failed: it ended without an answer (signal 9)")
    machine.drop("crash -1 nvmlInit")
    assert (await reader.read()).error == ""


HEAD = '{"machine": {"driver": "1", "count": 2}}'
GPU = '{"gpu": {"index": 0, "uuid": "GPU-a", "name": "NVIDIA A30", "pci": "00000000:01:00.0"}}'
END = '{"end": {"error": "", "pairs": [], "xids": [], "problems": []}}'

# What the child prints, and which error that is: of NVML as a whole, or of the second GPU, which is missing then.
STRANGE = [
    ("hello", "NVML reader failed: it printed b'hello\\n'", ""),
    ("[1, 2]", "NVML reader failed: it printed b'[1, 2]\\n'", ""),
    ("{}", "NVML reader failed: it printed b'{}\\n'", ""),
    ('{"machine": {"driver": "1"}}', "NVML reader failed: 'count'", ""),
    (END, "NVML reader failed: it says nothing of the machine", ""),
    ("", "NVML reader failed: it printed b'\\n'", ""),
    ("[" * 100_000, "NVML reader failed: it printed b'" + "[" * 60 + "'", ""),
    (f"{HEAD}\n{GPU}\n\0\0\0", "", "NVML reader failed: it printed b'\\x00\\x00\\x00\\n'"),
    (f"{HEAD}\n{GPU}\n{END}", "", "no answer"),
    (f'{HEAD}\n{GPU}\n{{"gpu": {{"index": 2}}}}', "", "NVML reader failed: it tells of a GPU 2 that there is not"),
    (f'{HEAD}\n{GPU}\n{{"gpu": {{"index": -1}}}}', "", "NVML reader failed: it tells of a GPU -1 that there is not"),
    (GPU, "NVML reader failed: it tells of a GPU 0 that there is not", ""),
    (f'{HEAD}\n{GPU}\n{{"gpu": []}}', "", "NVML reader failed: list indices must be integers or slices, not str"),
    (f"{HEAD}\n" + f"{GPU}\n" * 600, "", "NVML reader failed: it does not end its answer"),
]


@pytest.mark.parametrize(("printed", "whole", "second"), STRANGE)
async def test_a_reader_process_that_talks_nonsense(tmp_path: Path, printed: str, whole: str, second: str) -> None:
    script = tmp_path / "child.py"
    script.write_text(f"import sys\nfor line in sys.stdin:\n    print({printed!r}, flush=True)\n")
    reader = NvmlReader(timeout_s=5.0, command=(sys.executable, str(script)))
    try:
        for _ in range(2):  # a new process each time, which says the same
            reading = await reader.read()
            assert reading.error == whole
            if second:
                assert errors(reading) == {1: second}
                assert reading.gpus[0].gpu.model == "A30"
        with pytest.raises(HoldersUnknown):
            await reader.holders(["GPU-a"])
    finally:
        await reader.close()


async def test_a_gpu_whose_answer_makes_no_sense_hides_no_other(tmp_path: Path) -> None:
    odd = [
        '{"gpu": {"index": 1, "uuid": "GPU-b", "memory_bytes": -5}}',
        '{"gpu": {"index": 1, "uuid": "GPU-b", "pcie_gen": "four"}}',
        '{"gpu": {"index": 1, "uuid": "GPU-b", "links": [{"link": 0}]}}',
        '{"gpu": {"index": 1, "uuid": "GPU-b", "state": 7}}',
    ]
    for line in odd:
        script = tmp_path / "child.py"
        printed = f"{HEAD}\n{GPU}\n{line}\n{END}"
        script.write_text(f"import sys\nfor line in sys.stdin:\n    print({printed!r}, flush=True)\n")
        reader = NvmlReader(timeout_s=5.0, command=(sys.executable, str(script)))
        try:
            reading = await reader.read()
            assert list(errors(reading)) == [1]
            assert errors(reading)[1].startswith("NVML's answer makes no sense: ")
            assert (reading.gpus[1].gpu.uuid, reading.health[1].uuid) == ("GPU-b", "GPU-b")
        finally:
            await reader.close()


async def test_a_reading_that_is_cancelled_leaves_no_answer_for_the_next(description: Path, reader: NvmlReader) -> None:
    machine = hardware.h100_nvl(description)
    await reader.read()
    machine.add("stall 0 nvmlDeviceGetUUID 600", "holder 1 4711")
    reading = asyncio.create_task(reader.read())
    await asyncio.sleep(0.3)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    machine.drop("stall 0 nvmlDeviceGetUUID 600")
    assert await reader.holders([machine.uuid(1)]) == {machine.uuid(1): (4711,)}


# ---- lost GPUs, and a reader that is replaced ----


async def test_a_gpu_that_falls_off_the_bus_while_others_work(description: Path, reader: NvmlReader) -> None:
    machine = hardware.dgx_1v(description)
    presence = Presence()
    presence.merge(await reader.read())
    machine.add("error 6 15", "xid 1 6 79")
    reading = await reader.read()
    assert errors(reading) == {6: "NVML_ERROR_GPU_IS_LOST"}
    assert (reading.health[6].uuid, reading.health[6].error) == ("", "NVML_ERROR_GPU_IS_LOST")
    gpus, health, links = presence.merge(reading)
    assert [gpu.device for gpu in health if gpu.state == pb.HEALTH_STATE_FAILED] == [machine.uuid(6)]
    assert gpus[6].pci_address == machine.addresses[6]
    assert len(links) == 16 - 4  # of GPU 6: to 2, 4, 5, 7
    assert len(presence.paths(reading)) == 21
    # The rules see it under the name that it had.
    assert [(one.index, one.uuid, one.error) for one in presence.health(reading)] == [
        (index, machine.uuid(index), "NVML_ERROR_GPU_IS_LOST" if index == 6 else "") for index in range(8)
    ]


@pytest.mark.parametrize("call", ["nvmlDeviceGetUUID", "nvmlDeviceGetPciInfo", "nvmlDeviceGetName"])
async def test_a_gpu_that_does_not_say_who_it_is(description: Path, reader: NvmlReader, call: str) -> None:
    machine = hardware.h100_nvl(description)
    machine.add(f"fail 1 {call} 999")
    reading = await reader.read()
    assert errors(reading) == {1: "NVML_ERROR_UNKNOWN"}
    assert reading.health[1].temperature_c == 31  # the rest is read all the same


@pytest.mark.parametrize(("code", "name"), [(15, "NVML_ERROR_GPU_IS_LOST"), (16, "NVML_ERROR_RESET_REQUIRED")])
@pytest.mark.parametrize("call", ["nvmlDeviceGetMigMode", "nvmlDeviceGetRemappedRows", "nvmlDeviceGetP2PStatus"])
async def test_a_gpu_that_goes_while_it_is_read(
    description: Path, reader: NvmlReader, call: str, code: int, name: str
) -> None:
    machine = hardware.dgx_a100(description)
    machine.add(f"fail 2 {call} {code}")
    reading = await reader.read()
    # Of a pair nobody knows which of the two it was; the next reading does.
    assert errors(reading) == ({} if call == "nvmlDeviceGetP2PStatus" else {2: name})
    assert (reading.gpus[2].gpu.uuid, reading.gpus[2].gpu.power_limit_w) == (machine.uuid(2), 400)
    assert len(reading.gpu_paths) == (28 - 5 if call == "nvmlDeviceGetP2PStatus" else 21)


@pytest.mark.parametrize("code", [3, 4, 10, 13, 17, 22, 27, 999, 12345])
async def test_a_figure_that_cannot_be_read_is_absent_and_no_fault(
    description: Path, reader: NvmlReader, code: int
) -> None:
    machine = hardware.hgx_h100(description)
    optional = [
        "nvmlDeviceGetMinorNumber", "nvmlDeviceGetCudaComputeCapability", "nvmlDeviceGetNumGpuCores", "nvmlDeviceGetEnforcedPowerLimit",
        "nvmlDeviceGetPowerManagementDefaultLimit", "nvmlDeviceGetPowerManagementLimitConstraints", "nvmlDeviceGetMaxPcieLinkGeneration",
        "nvmlDeviceGetMaxPcieLinkWidth", "nvmlDeviceGetEccMode", "nvmlDeviceGetMemoryAffinity", "nvmlDeviceGetNvLinkVersion",
        "nvmlDeviceGetNvLinkRemotePciInfo", "nvmlDeviceGetNvLinkErrorCounter", "nvmlDeviceGetGpuFabricInfoV", "nvmlDeviceGetGpuFabricInfo",
        "nvmlDeviceGetMigMode", "nvmlDeviceGetTemperature", "nvmlDeviceGetTemperatureV", "nvmlDeviceGetTemperatureThreshold",
        "nvmlDeviceGetFieldValues", "nvmlDeviceGetPowerUsage", "nvmlDeviceGetCurrentClocksEventReasons",
        "nvmlDeviceGetCurrentClocksThrottleReasons", "nvmlDeviceGetTotalEccErrors", "nvmlDeviceGetRemappedRows",
        "nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses", "nvmlDeviceGetTopologyCommonAncestor",
        "nvmlDeviceGetP2PStatus",
    ]  # fmt: skip
    machine.add(*(f"fail 2 {call} {code}" for call in optional))
    reading = await reader.read()
    assert (reading.error, errors(reading)) == ("", {})
    gpu, health = reading.gpus[2].gpu, reading.health[2]
    assert (gpu.uuid, gpu.model, gpu.sm_count) == (machine.uuid(2), "H100-SXM5-80GB", 132)
    assert (gpu.power_limit_w, gpu.pcie_gen, gpu.ecc_enabled, gpu.HasField("fabric")) == (0, 0, False, False)
    assert (gpu.minor, gpu.compute_capability) == (2, "")
    assert len(gpu.nvlink_ports) == 18
    assert (health.temperature_c, health.slowdown_c, health.power_w, health.ecc_uncorrected) == (None,) * 4
    assert (health.remapped_correctable, health.remap_pending, health.memory_temperature_c) == (None,) * 3
    assert (health.throttle, health.processes, health.links[0].errors) == (frozenset(), (), None)
    assert not [path for path in reading.gpu_paths if path.gpu_a == 2]
    assert reading.health[3].temperature_c == 33


async def test_after_a_reset_a_new_process_sees_the_gpu_again(
    description: Path, reader: NvmlReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvml, "RENEW_S", 0.2)
    machine = hardware.h100_nvl(description)
    machine.add("lost 2")
    assert errors(await reader.read()) == {2: "NVML_ERROR_GPU_IS_LOST"}
    old = reader._child
    machine.drop("lost 2")
    machine.add("xid 5 0 43")
    seen: list[XidEvent] = []

    async def replaced() -> bool:
        reading = await reader.read()
        seen.extend(reading.xids)
        assert errors(reading) in ({}, {2: "NVML_ERROR_GPU_IS_LOST"})
        return not errors(reading)

    await until(replaced)
    assert reader._child is not old
    assert old is not None
    assert old.returncode == -9
    seen.extend((await reader.read()).xids)
    assert [xid.code for xid in seen] == [43]


async def test_no_xid_is_lost_or_told_twice_when_the_process_is_replaced(
    description: Path, reader: NvmlReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvml, "RENEW_S", 0.1)
    machine = hardware.h100_nvl(description)
    machine.add("lost 2")
    await reader.read()
    old = reader._child
    machine.drop("lost 2")
    seen: list[XidEvent] = []

    async def trial_reads() -> bool:
        if reader._trial is None:
            seen.extend((await reader.read()).xids)
        return reader._trial is not None and reader._trial.done()

    await until(trial_reads)
    machine.add("xid 1 0 43", "xid 2 1 44")
    await asyncio.sleep(1.0)  # both processes have them now
    for _ in range(4):
        seen.extend((await reader.read()).xids)
    assert reader._child is not old
    machine.add("xid 3 2 45")
    await asyncio.sleep(0.5)
    seen.extend((await reader.read()).xids)
    assert [xid.code for xid in seen] == [43, 44, 45]


async def test_a_process_that_is_stuck_is_replaced_by_one_that_sees_more(
    description: Path, hasty: NvmlReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call never comes back in the old process; asked anew, the GPU answers."""
    monkeypatch.setattr(nvml, "RENEW_S", 0.2)
    machine = hardware.h100_nvl(description)
    machine.add("init 0", "hang 0")
    await hasty.read()
    old = hasty._child
    assert old is not None
    # The old process's library does not look at the file any more: it sleeps in one long call.
    machine.add("sleep 1 nvmlDeviceGetName 600")
    assert errors(await hasty.read()) == {1: f"hung in nvmlDeviceGetName for {HANG_S:g} s"}
    machine.drop("sleep 1 nvmlDeviceGetName 600")
    assert errors(await hasty.read()) == {1: f"hung in nvmlDeviceGetName for {HANG_S:g} s"}
    await until(lambda: healed(hasty))
    assert hasty._child is not old
    assert old.returncode == -9


async def test_a_new_process_that_hangs_as_a_whole_replaces_nothing(
    description: Path, hasty: NvmlReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvml, "RENEW_S", 0.1)
    machine = hardware.h100_nvl(description)
    await hasty.read()
    kept = hasty._child
    machine.add("error 1 15", "stall -1 nvmlInit 600")

    async def tried_and_killed() -> bool:
        reading = await hasty.read()
        assert (reading.error, errors(reading)) == ("", {1: "NVML_ERROR_GPU_IS_LOST"})
        return hasty.killed._last is not None

    await until(tried_and_killed)
    assert (await hasty.read()).error == ""
    assert hasty._child is kept


async def test_a_new_process_that_sees_other_gpus_less_replaces_nothing(
    description: Path, reader: NvmlReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvml, "RENEW_S", 0.1)
    machine = hardware.h100_nvl(description)
    machine.add("lost 1")
    await reader.read()
    old = reader._child
    await asyncio.sleep(0.2)
    await reader.read()
    trial = reader._trial
    assert trial is not None
    last = next(line for line in machine.lines if line.startswith("gpu 3 "))
    machine.drop("lost 1", last)  # what the new one sees: the lost one is back, another one is not there
    result = await trial
    assert result is not None
    assert [(gpu.gpu.uuid, gpu.error) for gpu in result[1].gpus] == [(machine.uuid(index), "") for index in range(3)]
    machine.add(last)
    assert errors(await reader.read()) == {1: "NVML_ERROR_GPU_IS_LOST"}
    assert reader._child is old
    assert result[0].returncode == -9


async def test_a_gpu_that_is_gone_for_good_is_missing(
    description: Path, reader: NvmlReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = hardware.h100_nvl(description)
    presence = Presence()
    presence.merge(await reader.read())
    machine.lines = [line.replace("gpu 3 ", "gone 3 ") if line.startswith("gpu 3 ") else line for line in machine.lines]
    machine.put()
    reading = await reader.read()
    presence.merge(reading)
    assert [one.error for one in presence.health(reading)] == ["", "", "", MISSING]
    assert presence.health(Reading(error="NVML hung")) == ()


# ---- what the health rules look at ----


async def test_ecc_errors_and_rows(description: Path, reader: NvmlReader) -> None:
    machine = hardware.dgx_a100(description)
    before = (await reader.read()).health[2]
    assert (before.ecc_corrected, before.ecc_uncorrected) == (0, 0)
    assert (before.remapped_correctable, before.remapped_uncorrectable) == (0, 0)
    assert (before.remap_pending, before.remap_failed) == (False, False)
    assert (before.retired_pages, before.retired_pending) == (None, None)
    machine.figures(
        2, ecc_corrected=17, ecc_uncorrected=2, ecc_corrected_aggregate=1017, ecc_uncorrected_aggregate=3,
        remapped_correctable=4, remapped_uncorrectable=5, remap_pending=1, remap_failed=1,
    )  # fmt: skip
    machine.put()
    reading = await reader.read()
    after = reading.health[2]
    assert (after.ecc_corrected, after.ecc_uncorrected) == (17, 2)
    assert (after.ecc_corrected_aggregate, after.ecc_uncorrected_aggregate) == (1017, 3)
    assert (after.remapped_correctable, after.remapped_uncorrectable) == (4, 5)
    assert (after.remap_pending, after.remap_failed) == (True, True)
    assert reading.health[3].ecc_corrected == 0


async def test_a_counter_beyond_32_bits_and_one_that_is_not_there(description: Path, reader: NvmlReader) -> None:
    machine = hardware.dgx_a100(description)
    machine.add(f"set 0 ecc_corrected {2**40}", "set 0 ecc_uncorrected -1")  # -1: all ones, as drivers write for "none"
    health = (await reader.read()).health[0]
    assert (health.ecc_corrected, health.ecc_uncorrected) == (2**40, None)


async def test_retired_pages(description: Path, reader: NvmlReader) -> None:
    machine = hardware.dgx_1v(description)
    machine.figures(5, retired_single=11, retired_double=2, retired_pending=1)
    machine.put()
    reading = await reader.read()
    assert (reading.health[5].retired_pages, reading.health[5].retired_pending) == (13, True)
    assert (reading.health[4].retired_pages, reading.health[4].retired_pending) == (0, False)
    assert reading.health[4].remapped_correctable is None


@pytest.mark.parametrize(
    ("mask", "reasons"),
    [
        (0x1, set()),
        (0x2 | 0x10 | 0x100, set()),
        (0x4, {"sw_power_cap"}),
        (0x8 | 0x40, {"hw_slowdown", "hw_thermal"}),
        (0x20, {"sw_thermal"}),
        (0x80 | 0x1, {"hw_power_brake"}),
    ],
)
async def test_why_the_clocks_are_low(description: Path, reader: NvmlReader, mask: int, reasons: set[str]) -> None:
    machine = hardware.h100_nvl(description)
    machine.add(f"set 1 throttle {mask}")
    assert (await reader.read()).health[1].throttle == reasons


async def test_temperatures_power_memory_and_processes(description: Path, reader: NvmlReader) -> None:
    machine = hardware.hgx_h100(description)
    machine.figures(7, temperature=81, memory_temperature=95, power_mw=698_123, memory_used=3 << 30, slowdown=89)
    machine.add("holder 7 100 1073741824", "holder 7 200", "graphics 7 100 5", "graphics 7 300 5", "holder 6 9 1")
    health = (await reader.read()).health[7]
    assert (health.temperature_c, health.memory_temperature_c, health.slowdown_c) == (81, 95, 89)
    assert (health.power_w, health.power_limit_w) == (698.123, 700.0)
    assert health.memory_used_bytes == 3 << 30  # without the driver's own share
    assert health.processes == ((100, 1 << 30), (200, 0), (300, 5))


@pytest.mark.parametrize(("threshold", "margin", "slowdown"), [
    (None, 9, 40), (None, None, None), (4294967294, 9, None), (0, None, None), (85, 9, 85),
])  # fmt: skip
async def test_a_slowdown_that_is_told_as_a_distance(
    description: Path, reader: NvmlReader, threshold: int | None, margin: int | None, slowdown: float | None
) -> None:
    machine = hardware.h100_nvl(description)
    machine.lines = [line for line in machine.lines if not line.startswith("set 1 slowdown")]
    machine.add("set 1 temperature 31")
    if threshold is not None:
        machine.add(f"set 1 slowdown {threshold}")
    if margin is not None:
        machine.add(f"set 1 margin {margin}")
    assert (await reader.read()).health[1].slowdown_c == slowdown


async def test_errors_of_nvlinks(description: Path, reader: NvmlReader) -> None:
    machine = hardware.dgx_a100(description)
    machine.add(
        "linkerror 3 7 0 5", "linkerror 3 7 1 1", "linkerror 3 7 2 100", "linkerror 3 7 3 1000", "linkerror 3 8 2 3"
    )
    links = (await reader.read()).health[3].links
    assert links[7:9] == (LinkReading(7, active=True, errors=1106), LinkReading(8, active=True, errors=3))
    assert {link.errors for link in (*links[:7], *links[9:])} == {0}


async def test_errors_of_nvlinks_of_the_fifth_generation_are_fields(description: Path, reader: NvmlReader) -> None:
    machine = hardware.nvl72_tray(description)
    machine.add(
        "linkerror 1 4 208 6", "linkerror 1 4 215 2", "linkerror 1 4 211 1", "linkerror 1 4 219 10", "linkerror 1 17 215 3"
    )
    health = (await reader.read()).health
    assert [(link.link, link.errors) for link in health[1].links if link.errors] == [(4, 19), (17, 3)]
    assert {link.errors for link in health[0].links} == {0}


# ---- Xid events ----


async def test_xids_come_with_the_next_reading_and_once(description: Path, reader: NvmlReader) -> None:
    machine = hardware.hgx_h100(description)
    assert (await reader.read()).xids == ()
    began_s = time.monotonic()
    machine.add("xid 1 4 79", "xid 2 0 48", "xid 3 4 31")
    seen: list[XidEvent] = []

    async def all_three() -> bool:
        seen.extend((await reader.read()).xids)
        return len(seen) >= 3

    await until(all_three)
    assert [(xid.code, xid.uuid, xid.pci, xid.source) for xid in seen] == [
        (79, machine.uuid(4), machine.addresses[4], "nvml"),
        (48, machine.uuid(0), machine.addresses[0], "nvml"),
        (31, machine.uuid(4), machine.addresses[4], "nvml"),
    ]
    assert all(began_s <= xid.at_s <= time.monotonic() for xid in seen)
    await asyncio.sleep(0.3)
    assert (await reader.read()).xids == ()


async def test_xids_between_two_readings_wait(description: Path, reader: NvmlReader) -> None:
    machine = hardware.h100_nvl(description)
    await reader.read()
    machine.add(*(f"xid {number} 1 {number}" for number in range(1, 31)))
    await asyncio.sleep(1.0)  # the reader is not asked meanwhile
    assert [xid.code for xid in (await reader.read()).xids] == list(range(1, 31))


async def test_xids_of_the_others_while_one_hangs(description: Path, hasty: NvmlReader) -> None:
    machine = hardware.h100_nvl(description)
    machine.add("stall 2 nvmlDeviceGetPciInfo 600")
    assert list(errors(await hasty.read())) == [2]
    machine.add("xid 1 3 94")
    await asyncio.sleep(0.5)
    assert [xid.code for xid in (await hasty.read()).xids] == [94]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("fail -1 nvmlEventSetCreate 3", "no Xid events: NVML_ERROR_NOT_SUPPORTED"),
        (
            "fail 1 nvmlDeviceRegisterEvents 999",
            "no Xid events of GPU-00000001-aaaa-bbbb-cccc-000000000001: NVML_ERROR_UNKNOWN",
        ),
        (
            "fail 1 nvmlDeviceGetSupportedEventTypes 3",
            "no Xid events of GPU-00000001-aaaa-bbbb-cccc-000000000001: NVML_ERROR_NOT_SUPPORTED",
        ),
    ],
)
async def test_a_driver_without_events(description: Path, reader: NvmlReader, line: str, problem: str) -> None:
    machine = hardware.h100_nvl(description)
    machine.add(line)
    reading = await reader.read()
    assert (errors(reading), reading.problems) == ({}, (problem,))
    machine.add("xid 1 3 94", "xid 2 1 95")
    await asyncio.sleep(0.5)
    codes = [xid.code for xid in (await reader.read()).xids]
    assert codes == ([] if "Create" in line else [94])


async def test_a_wait_for_events_that_fails_goes_on(description: Path, reader: NvmlReader) -> None:
    machine = hardware.h100_nvl(description)
    await reader.read()
    machine.add("fail -1 nvmlEventSetWait 15")
    await asyncio.sleep(0.4)
    machine.drop("fail -1 nvmlEventSetWait 15")
    machine.add("xid 1 0 79")
    await asyncio.sleep(1.5)
    assert [xid.code for xid in (await reader.read()).xids] == [79]


# ---- drivers that lack functions ----


async def test_an_old_driver(description: Path, reader: NvmlReader, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before 510: no fabric, no newer structures, no names of MIG profiles. What it cannot say is absent."""
    monkeypatch.setenv("LD_LIBRARY_PATH", str(fake_nvml.library_folder("OLD_DRIVER")))
    machine = hardware.dgx_a100(description)
    machine.mig(0, hardware.MIG_A100_40GB, (("1g.5gb", 9, 3),))
    machine.add(
        "driver 470.57.02", "holder 1 4711 1000", "set 1 memory_used 5000", "set 1 throttle 4", "set 1 temperature 50"
    )
    reading = await reader.read()
    assert (reading.error, reading.problems, errors(reading)) == ("", (), {})
    cut, gpu, health = reading.gpus[0].gpu, reading.gpus[1].gpu, reading.health[1]
    assert gpu.sm_count == 108  # the catalogue's
    assert (health.temperature_c, health.throttle, health.processes) == (50, {"sw_power_cap"}, ((4711, 1000),))
    assert health.memory_used_bytes == 5000 + (500 << 20)  # the driver's own share is in it
    assert len(reading.nvlinks) == 21  # without the one in MIG mode
    built = {(profile.name, profile.id, tuple(profile.starts)) for profile in cut.mig_profiles}
    assert built == {(profile.name, profile.id, profile.starts) for profile in hardware.MIG_A100_40GB}
    assert [(one.profile, one.start) for one in cut.mig_instances] == [("1g.5gb", 3)]
    assert await reader.holders([machine.uuid(1)]) == {machine.uuid(1): (4711,)}


@pytest.mark.parametrize("profiles", [hardware.MIG_A100_40GB, hardware.MIG_H100_80GB], ids=["A100", "H100"])
async def test_names_of_mig_profiles_that_a_driver_does_not_say(
    description: Path,
    reader: NvmlReader,
    monkeypatch: pytest.MonkeyPatch,
    profiles: tuple[hardware.Profile, ...],
) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(fake_nvml.library_folder("OLD_DRIVER")))
    card = hardware.A100 if profiles is hardware.MIG_A100_40GB else hardware.H100
    hardware.mig_box(description, card, profiles)
    cut = (await reader.read()).gpus[0].gpu
    assert {profile.id: profile.name for profile in cut.mig_profiles} == {profile.id: profile.name for profile in profiles}


async def test_a_driver_of_tomorrow(description: Path, reader: NvmlReader, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without what NVIDIA announces to remove."""
    monkeypatch.setenv("LD_LIBRARY_PATH", str(fake_nvml.library_folder("NEW_DRIVER")))
    machine = hardware.nvl72_tray(description)
    machine.add("set 2 throttle 32", "set 2 temperature 71")
    reading = await reader.read()
    assert errors(reading) == {}
    assert (reading.health[2].temperature_c, reading.health[2].throttle) == (71, {"sw_thermal"})
    assert reading.nvlink_domain == f"{hardware.CLUSTER}.2"
