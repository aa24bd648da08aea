"""`nvidia-smi -q` beside what the agent read, field by field."""

from __future__ import annotations

from collections.abc import Mapping

from fmagent.devices.nvml import Reading
from fmagent.health import readings
from fmproto.v1 import hardware_pb2 as pb

# As nvidia-smi says that it has no value.
NOTHING = {"N/A", "[N/A]", "Not Supported", "Requested functionality has been deprecated", ""}
NO_UUID = "00000000-0000-0000-0000-000000000000"
# Between the two readings a GPU warms up, and a counter of the driver's own memory moves.
CELSIUS_APART = 15.0
MIB_APART = 64


def sections(text: str) -> tuple[dict[str, str], dict[str, dict[str, str]]]:
    """(what stands before the GPUs, PCI address → "PCI/GPU Link Info/Link Width/Max" → value); nothing where it says that it has none.
    Lists (MIG devices, processes) keep their last entry."""
    head: dict[str, str] = {}
    gpus: dict[str, dict[str, str]] = {}
    current = head
    path: list[tuple[int, str]] = []
    for line in text.splitlines():
        if line.startswith("GPU ") and ":" in line:
            current, path = gpus.setdefault(line[4:].strip(), {}), []
            continue
        name, colon, value = (part.strip() for part in line.partition(" : "))
        if not name or name.startswith("="):
            continue
        depth = len(line) - len(line.lstrip())
        while path and path[-1][0] >= depth:
            path.pop()
        if not colon:
            path.append((depth, name))
        elif value not in NOTHING:
            current["/".join([*(part for _, part in path), name])] = value
            path.append((depth, name))  # "HW Slowdown : Active" has sections under it
    return head, gpus


def differences(reading: Reading, text: str) -> tuple[list[str], int]:
    """(what differs, how many values were compared). What nvidia-smi has no value of is not compared."""
    head, said = sections(text)
    wrong: list[str] = []
    compared = 0

    def check(where: str, ours: object, theirs: object) -> None:
        nonlocal compared
        compared += 1
        if ours != theirs:
            wrong.append(f"{where}: agent {ours!r}, nvidia-smi {theirs!r}")

    check("driver", reading.driver_version, head.get("Driver Version"))
    check("number of GPUs", len(reading.gpus), int(head.get("Attached GPUs", -1)))
    check("addresses", [gpu.gpu.pci_address.upper() for gpu in reading.gpus], [address.upper() for address in said])
    for one, health, smi in zip(reading.gpus, reading.health, said.values(), strict=False):
        where = f"GPU {one.gpu.index}"
        check(f"{where} error", one.error, "")
        for name, ours, theirs in (*_facts(one.gpu, smi), *_state(health, smi)):
            if theirs is not None:
                check(f"{where} {name}", ours, theirs)
    return wrong, compared


def _facts(gpu: pb.Gpu, smi: Mapping[str, str]) -> list[tuple[str, object, object]]:
    fabric = smi.get("Fabric/State", "")
    return [
        ("name", gpu.name, smi.get("Product Name")),
        ("uuid", gpu.uuid, smi.get("GPU UUID")),
        ("minor", gpu.minor, _int(smi.get("Minor Number"))),
        ("memory MiB", gpu.memory_bytes >> 20, _int(smi.get("FB Memory Usage/Total"))),
        ("MIG mode", gpu.mig_enabled, _is(smi.get("MIG Mode/Current"), "Enabled")),
        ("ECC mode", gpu.ecc_enabled, _is(smi.get("ECC Mode/Current", smi.get("Ecc Mode/Current")), "Enabled")),
        ("PCIe generation", gpu.pcie_gen, _int(smi.get("PCI/GPU Link Info/PCIe Generation/Max"))),
        ("PCIe width", gpu.pcie_width, _int(smi.get("PCI/GPU Link Info/Link Width/Max"))),
        ("power limit", gpu.power_limit_w, _power(smi, "Current Power Limit", "Enforced Power Limit")),
        ("default power limit", gpu.power_limit_default_w, _power(smi, "Default Power Limit")),
        ("highest power limit", gpu.power_limit_max_w, _power(smi, "Max Power Limit")),
        ("fabric state", gpu.fabric.state, fabric.lower() or None),
        ("clique", gpu.fabric.clique, _int(smi.get("Fabric/CliqueId")) if fabric == "Completed" else None),
        ("cluster", gpu.fabric.cluster_uuid or NO_UUID, smi.get("Fabric/ClusterUUID") if fabric == "Completed" else None),
    ]  # fmt: skip


def _state(health: readings.GpuReading, smi: Mapping[str, str]) -> list[tuple[str, object, object]]:
    warm, used = _int(smi.get("Temperature/GPU Current Temp")), _int(smi.get("FB Memory Usage/Used"))
    memory_warm = _int(smi.get("Temperature/Memory Current Temp"))
    here = health.memory_used_bytes
    return [
        ("temperature", _near(health.temperature_c, warm, CELSIUS_APART), None if warm is None else True),
        ("memory temperature", _near(health.memory_temperature_c, memory_warm, CELSIUS_APART), None if memory_warm is None else True),
        ("memory used", _near(None if here is None else here / 2**20, used, MIB_APART), None if used is None else True),
        ("correctable remaps", health.remapped_correctable, _int(smi.get("Remapped Rows/Correctable Error"))),
        ("uncorrectable remaps", health.remapped_uncorrectable, _int(smi.get("Remapped Rows/Uncorrectable Error"))),
        ("remap pending", health.remap_pending, _is(smi.get("Remapped Rows/Pending"), "Yes")),
        ("remap failed", health.remap_failed, _is(smi.get("Remapped Rows/Remapping Failure Occurred"), "Yes")),
        ("retired pages pending", health.retired_pending, _is(smi.get("Retired Pages/Pending Page Blacklist"), "Yes")),
        ("uncorrected ECC errors", health.ecc_uncorrected, _ecc(smi, "Volatile", "Uncorrectable")),
        ("corrected ECC errors", health.ecc_corrected, _ecc(smi, "Volatile", "Correctable")),
        ("uncorrected ECC errors in all", health.ecc_uncorrected_aggregate, _ecc(smi, "Aggregate", "Uncorrectable")),
        ("corrected ECC errors in all", health.ecc_corrected_aggregate, _ecc(smi, "Aggregate", "Correctable")),
    ]  # fmt: skip


def _int(value: str | None) -> int | None:
    digits = "" if value is None else value.split()[0].rstrip("x")
    return int(digits) if digits.isdigit() else None


def _is(value: str | None, yes: str) -> bool | None:
    return None if value is None else value == yes


def _power(smi: Mapping[str, str], *names: str) -> float | None:
    for section in ("GPU Power Readings", "Power Readings"):
        for name in names:
            value = smi.get(f"{section}/{name}", "")
            if value.endswith(" W"):
                return float(value.removesuffix(" W"))
    return None


def _ecc(smi: Mapping[str, str], counter: str, kind: str) -> int | None:
    counts = [
        _int(value) for name, value in smi.items() if name.startswith(f"ECC Errors/{counter}/") and f" {kind}" in name
    ]
    return sum(count for count in counts if count is not None) if counts else None


def _near(ours: float | None, theirs: float | None, apart: float) -> bool:
    return ours is not None and theirs is not None and abs(ours - theirs) <= apart
