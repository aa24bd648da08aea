"""The agent's inventory beside `nvidia-smi -q`: the real ones where there is a GPU; elsewhere the comparison, on a made-up text."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from fmagent.devices.nvml import NvmlReader
from tests.support import fake_hardware as hardware
from tests.support import fake_nvml
from tests.support.nvidia_smi import differences, sections


def smi(*words: str) -> str:
    return subprocess.run(["nvidia-smi", *words], check=True, capture_output=True, text=True, timeout=120).stdout


@pytest.mark.gpu
async def test_the_inventory_beside_nvidia_smi() -> None:
    if shutil.which("nvidia-smi") is None:
        pytest.skip("this machine has no nvidia-smi")
    reader = NvmlReader(timeout_s=60.0)
    try:
        await reader.read()  # the first one starts the driver, where nothing keeps it up
        said = smi("-q")
        reading = await reader.read()
        links = smi("nvlink", "-s")
    finally:
        await reader.close()
    assert reading.error == ""
    wrong, compared = differences(reading, said)
    print(f"{compared} values compared on {len(reading.gpus)} GPUs; problems: {reading.problems}")
    for gpu, health in zip(reading.gpus, reading.health, strict=True):
        print(gpu.gpu, health)
    assert not wrong
    assert compared >= 3 + 15 * len(reading.gpus)
    # "Link 0: 26.562 GB/s", or "<inactive>".
    up = len(re.findall(r"^\s+Link \d+: [\d.]+ GB/s", links, re.MULTILINE))
    assert sum(port.active for gpu in reading.gpus for port in gpu.gpu.nvlink_ports) == up
    # What the catalogue says of a card that it knows agrees with what the card says.
    for gpu in reading.gpus:
        if gpu.gpu.model:
            assert abs(gpu.gpu.memory_bytes / 2**30 - gpu.gpu.memory_gb) <= 0.12 * gpu.gpu.memory_gb
            assert gpu.gpu.sm_count > 0


def text_of(machine: hardware.Machine) -> str:
    """As nvidia-smi prints it, of the first GPU only what is compared."""
    blocks = [
        "==============NVSMI LOG==============", "",
        f"Driver Version                            : {machine.lines[0].removeprefix('driver ')}",
        f"Attached GPUs                             : {len(machine.addresses)}",
    ]  # fmt: skip
    for index, where in enumerate(machine.addresses):
        blocks.append(f"""GPU {where}
    Product Name                          : {machine.card.name}
    MIG Mode
        Current                           : Disabled
        Pending                           : Enabled
    GPU UUID                              : {machine.uuid(index)}
    Minor Number                          : {index}
    PCI
        GPU Link Info
            PCIe Generation
                Max                       : 5
                Current                   : 1
            Link Width
                Max                       : 16x
                Current                   : 8x
    Clocks Event Reasons
        HW Slowdown                       : Not Active
            HW Thermal Slowdown           : Not Active
        Sync Boost                        : Not Active
    FB Memory Usage
        Total                             : {machine.card.memory_mib} MiB
        Used                              : 0 MiB
    ECC Mode
        Current                           : Enabled
        Pending                           : Disabled
    ECC Errors
        Volatile
            SRAM Correctable              : 0
            DRAM Uncorrectable            : 0
        Aggregate
            SRAM Correctable              : 4
            DRAM Correctable              : 5
            DRAM Uncorrectable            : 0
    Retired Pages
        Pending Page Blacklist            : N/A
    Remapped Rows
        Correctable Error                 : 3
        Uncorrectable Error               : 0
        Pending                           : No
        Remapping Failure Occurred        : No
    Temperature
        GPU Current Temp                  : 34 C
        Memory Current Temp               : 44 C
    GPU Power Readings
        Current Power Limit               : 700.00 W
        Default Power Limit               : 700.00 W
        Max Power Limit                   : 700.00 W
    Fabric
        State                             : Completed
        Status                            : Success
        CliqueId                          : 0
        ClusterUUID                       : 00000000-0000-0000-0000-000000000000
    Processes                             : None""")
    return "\n".join(blocks)


async def test_the_comparison_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_NVML", str(tmp_path / "machine"))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(fake_nvml.library_folder()))
    machine = hardware.hgx_h100(tmp_path / "machine")
    for gpu in range(8):
        machine.figures(gpu, ecc_corrected_aggregate=9, remapped_correctable=3, remapped_uncorrectable=0)
    machine.put()
    reader = NvmlReader(timeout_s=20.0)
    try:
        reading = await reader.read()
    finally:
        await reader.close()
    said = text_of(machine)
    assert sections(said)[1][machine.addresses[2]]["Clocks Event Reasons/HW Slowdown/HW Thermal Slowdown"] == "Not Active"
    assert differences(reading, said) == ([], 3 + 8 * 26)
    for true, false in (
        ("Max                       : 16x", "Max                       : 8x"),
        (f"Minor Number                          : {6}", "Minor Number                          : 5"),
        ("CliqueId                          : 0", "CliqueId                          : 1"),
        ("DRAM Correctable              : 5", "DRAM Correctable              : 6"),
        ("GPU Current Temp                  : 34", "GPU Current Temp                  : 90"),
        (f"GPU {machine.addresses[4]}", "GPU 00000000:FF:00.0"),
        ("Attached GPUs                             : 8", "Attached GPUs                             : 9"),
        ("Default Power Limit               : 700", "Default Power Limit               : 650"),
    ):
        assert true in said
        wrong, _ = differences(reading, said.replace(true, false, 1))
        assert len(wrong) == 1, (true, wrong)
