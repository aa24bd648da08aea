"""What the reader process says (nvml_child.py), as messages for the inventory and as numbers for the health rules. Pure but for sysfs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fmagent.devices.nvml_links import NOT_SUPPORTED, facts_of, gpu_paths, nvlink_domain, nvlink_pairs
from fmagent.health import readings
from fmproto.v1 import hardware_pb2 as pb

MIG_ON = "MIG mode is on; only whole GPUs are granted"

# nvml.h, nvmlIntNvLinkDeviceType_t. Others (an IBM processor) are no GPU and no switch.
REMOTE = {0: "gpu", 2: "switch"}

# nvml.h, nvmlGpuFabricState_t.
FABRIC_STATES = {0: NOT_SUPPORTED, 1: "not started", 2: "in progress", 3: "completed"}
NO_UUID = "00000000-0000-0000-0000-000000000000"

# nvml.h, NVML_GPU_FABRIC_HEALTH_MASK_*: the bit where a field begins, its bits, and what its values say is wrong.
FABRIC_HEALTH = (
    (0, 0x3, {1: "degraded bandwidth"}),
    (2, 0x3, {1: "route recovery in progress"}),
    (4, 0x3, {1: "route unhealthy"}),
    (6, 0x3, {1: "access timeout recovery"}),
    (8, 0xF, {
        2: "wrong system GUID", 3: "wrong chassis serial number", 4: "no partition", 5: "too few NVLinks",
        6: "incompatible GPU firmware", 7: "wrong location", 8: "wrong GPU state",
    }),
    (12, 0x3, {2: "no partition assigned"}),
    (14, 0x3, {2: "fabric manager not connected"}),
)  # fmt: skip
FABRIC_SUMMARY = {2: "unhealthy", 3: "limited capacity"}

# nvml.h, nvmlClocksEventReason*. An idle GPU, or clocks that somebody set, are no throttling.
THROTTLE = {
    0x04: "sw_power_cap",
    0x08: "hw_slowdown",
    0x20: "sw_thermal",
    0x40: "hw_thermal",
    0x80: "hw_power_brake",
}

# CUDA cores of one SM by compute capability: CUDA C++ Programming Guide, "Arithmetic Instructions" (FP32 units of an SM).
CORES_PER_SM = {
    "6.0": 64, "6.1": 128, "7.0": 64, "7.5": 64, "8.0": 64, "8.6": 128, "8.9": 128,
    "9.0": 128, "10.0": 128, "10.3": 128, "12.0": 128, "12.1": 128,
}  # fmt: skip

# A threshold beyond these is a driver's way to say something else (an offset, "none").
_THRESHOLD_C = range(30, 200)


@dataclass(frozen=True, slots=True)
class GpuReading:
    """One enumerated GPU. `gpu.uuid` is empty where not even that could be read; `error` is NVML's name, or which call hangs, or empty.
    `unfit`: it is well, but nothing can be placed on it as a whole."""

    gpu: pb.Gpu
    error: str = ""
    unfit: str = ""


@dataclass(frozen=True, slots=True)
class Reading:
    """`error` is why NVML as a whole says nothing. `problems`: what else could not be read, of no one GPU. `health` has one reading for
    each of `gpus`, in their order; indices are NVML's own (devices.presence gives the lasting ones)."""

    gpus: tuple[GpuReading, ...] = ()
    error: str = ""
    driver_version: str = ""
    nvlinks: tuple[pb.NvLinkPair, ...] = ()
    gpu_paths: tuple[pb.GpuPath, ...] = ()
    nvlink_domain: str = ""
    nvlink_domain_gbytes_per_s: float = 0.0
    health: tuple[readings.GpuReading, ...] = ()
    xids: tuple[readings.XidEvent, ...] = ()
    problems: tuple[str, ...] = ()


def reading_of(
    driver: str,
    found: Sequence[Mapping[str, Any]],
    pairs: Sequence[Mapping[str, int | None]] = (),
    xids: Sequence[Mapping[str, Any]] = (),
    problems: Sequence[str] = (),
) -> Reading:
    """Of what the reader process told: {"gpu"} of each GPU, and what stood in {"end"}."""
    both = [one_gpu(answer) for answer in sorted(found, key=lambda answer: int(answer["index"]))]
    well = [reading.gpu for reading, _ in both if not reading.error]
    domain, gbytes_per_s, why = nvlink_domain(well)
    return Reading(
        gpus=tuple(reading for reading, _ in both),
        driver_version=driver,
        nvlinks=nvlink_pairs(well),
        gpu_paths=gpu_paths(pairs),
        nvlink_domain=domain,
        nvlink_domain_gbytes_per_s=gbytes_per_s,
        health=tuple(health for _, health in both),
        xids=tuple(xid_of(event) for event in xids),
        problems=(*problems, *([why] if why else [])),
    )


def one_gpu(found: Mapping[str, Any]) -> tuple[GpuReading, readings.GpuReading]:
    """An answer that makes no sense is that GPU's fault, and no other's."""
    index, uuid = int(found["index"]), str(found.get("uuid") or "")
    try:
        gpu = gpu_of(found)
        error = str(found.get("error") or "")
        unfit = MIG_ON if gpu.mig_enabled else ""
        return GpuReading(gpu, error, unfit), health_of(found, gpu, error)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as wrong:
        error = f"NVML's answer makes no sense: {type(wrong).__name__}: {wrong}"
        gpu = pb.Gpu(index=index, uuid=uuid, pci_address=str(found.get("pci") or ""), numa_node=-1, vendor="nvidia")
        return GpuReading(gpu, error), readings.GpuReading(uuid=uuid, index=index, error=error)


def gpu_of(found: Mapping[str, Any]) -> pb.Gpu:
    """What stays of a GPU; figures that move are not in it, since it is written to the store whenever it changes."""
    index, minor, pci = found["index"], found.get("minor"), found.get("pci") or ""
    numa = found.get("numa")
    gpu = pb.Gpu(
        index=index,
        uuid=found.get("uuid") or "",
        name=found.get("name") or "",
        pci_address=pci,
        memory_bytes=found.get("memory_bytes") or 0,
        compute_capability=found.get("capability") or "",
        minor=index if minor is None else minor,
        numa_node=numa_node(pci) if numa is None else numa,
        vendor="nvidia",
        power_limit_w=watts(found.get("power_limit_mw")) or 0.0,
        power_limit_default_w=watts(found.get("power_default_mw")) or 0.0,
        power_limit_max_w=watts(found.get("power_max_mw")) or 0.0,
        pcie_gen=found.get("pcie_gen") or 0,
        pcie_width=found.get("pcie_width") or 0,
        ecc_enabled=bool(found.get("ecc")),
        nvlink_ports=[port_of(port) for port in found.get("links") or ()],
    )
    facts = facts_of(gpu)
    if facts is not None:
        gpu.model = "" if facts.guessed else facts.key
        gpu.family, gpu.memory_gb, gpu.sm_count = facts.family, facts.memory_gb, facts.multiprocessors
    per_sm = CORES_PER_SM.get(gpu.compute_capability, 0)
    if per_sm and found.get("cores"):
        gpu.sm_count = found["cores"] // per_sm
    fabric = found.get("fabric")
    if fabric and FABRIC_STATES.get(fabric["state"]) not in (None, NOT_SUPPORTED):
        gpu.fabric.CopyFrom(fabric_of(fabric))
    mig = found.get("mig")
    if mig:
        gpu.mig_enabled = mig["on"]
        gpu.mig_instances.extend(instance_of(instance) for instance in mig["instances"])
        gpu.mig_profiles.extend(profile_of(profile) for profile in mig["profiles"])
    return gpu


def numa_node(pci_address: str) -> int:
    """From sysfs, which writes the address with a domain of 4 digits, in lower case; -1: unknown."""
    domain, _, rest = pci_address.lower().partition(":")
    path = Path("/sys/bus/pci/devices") / f"{domain[-4:]}:{rest}" / "numa_node"
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return -1


def watts(milliwatts: int | None) -> float | None:
    return None if milliwatts is None else milliwatts / 1000


def port_of(port: Mapping[str, Any]) -> pb.NvLinkPort:
    return pb.NvLinkPort(
        link=port["link"],
        version=port["version"] or 0,
        active=bool(port["active"]),
        remote=REMOTE.get(port["kind"], "") if port["kind"] is not None else "",
        remote_pci=port["remote"],
    )


def fabric_of(fabric: Mapping[str, Any]) -> pb.FabricPart:
    state = FABRIC_STATES[fabric["state"]]
    return pb.FabricPart(
        cluster_uuid="" if fabric["uuid"] == NO_UUID else fabric["uuid"],
        clique=fabric["clique"],
        state=state,
        # Before it has completed, the status says nothing (nvml.h).
        status=fabric["status"] if state == "completed" else "",
        health=fabric_health(fabric["health_mask"], fabric["health_summary"]),
    )


def fabric_health(mask: int, summary: int) -> str:
    wrong = [says[value] for shift, bits, says in FABRIC_HEALTH if (value := mask >> shift & bits) in says]
    if not wrong and summary in FABRIC_SUMMARY:
        wrong = [FABRIC_SUMMARY[summary]]
    return ", ".join(wrong)


def instance_of(instance: Mapping[str, Any]) -> pb.MigInstance:
    return pb.MigInstance(
        uuid=instance["uuid"],
        profile=instance["profile"],
        gpu_instance=instance["gpu_instance"] or 0,
        compute_instance=instance["compute_instance"] or 0,
        start=instance["start"],
        size=instance["size"],
    )


def profile_of(profile: Mapping[str, Any]) -> pb.MigProfile:
    return pb.MigProfile(
        name=profile["name"],
        id=profile["id"],
        slices=profile["slices"],
        multiprocessors=profile["multiprocessors"],
        memory_gb=round(profile["memory_mib"] / 1024, 2),
        instances_max=profile["instances_max"],
        starts=profile["starts"],
        size=profile["size"],
    )


def health_of(found: Mapping[str, Any], gpu: pb.Gpu, error: str) -> readings.GpuReading:
    state = found.get("state") or {}
    remapped = state.get("remapped") or (None, None, None, None)
    fabric = found.get("fabric")
    errors = dict(state.get("link_errors") or ())
    return readings.GpuReading(
        uuid=gpu.uuid,
        index=gpu.index,
        error=error,
        temperature_c=state.get("temperature_c"),
        slowdown_c=slowdown_of(state),
        memory_temperature_c=state.get("memory_temperature_c"),
        power_w=watts(state.get("power_mw")),
        power_limit_w=watts(found.get("power_limit_mw")),
        throttle=frozenset(name for bit, name in THROTTLE.items() if (state.get("throttle") or 0) & bit),
        ecc_uncorrected=state.get("ecc_uncorrected"),
        ecc_corrected=state.get("ecc_corrected"),
        ecc_uncorrected_aggregate=state.get("ecc_uncorrected_aggregate"),
        ecc_corrected_aggregate=state.get("ecc_corrected_aggregate"),
        retired_pages=state.get("retired_pages"),
        retired_pending=state.get("retired_pending"),
        remapped_correctable=remapped[0],
        remapped_uncorrectable=remapped[1],
        remap_pending=None if remapped[2] is None else bool(remapped[2]),
        remap_failed=None if remapped[3] is None else bool(remapped[3]),
        links=tuple(
            readings.LinkReading(link=port["link"], active=port["active"], errors=errors.get(port["link"]))
            for port in found.get("links") or ()
        ),
        links_expected=links_expected(gpu),
        fabric_state=FABRIC_STATES.get(fabric["state"], "") if fabric else "",
        fabric_status=gpu.fabric.status,
        fabric_health=gpu.fabric.health,
        mig_enabled=gpu.mig_enabled,
        memory_used_bytes=state.get("memory_used_bytes"),
        processes=tuple((pid, size) for pid, size in state.get("processes") or ()),
    )


def slowdown_of(state: Mapping[str, Any]) -> float | None:
    """The threshold, or where the driver tells only how far it is off (from Hopper on), the temperature plus that."""
    threshold, temperature, margin = state.get("slowdown_c"), state.get("temperature_c"), state.get("margin_c")
    if threshold is None and temperature is not None and margin is not None:
        threshold = temperature + margin
    return threshold if threshold in _THRESHOLD_C else None


def links_expected(gpu: pb.Gpu) -> int:
    """By the catalogue; of a card whose bridge is an extra only while one is seen, and none in MIG mode, which turns NVLink off."""
    facts = facts_of(gpu)
    if facts is None or gpu.mig_enabled:
        return 0
    if facts.form.startswith("PCIe") and not any(port.active for port in gpu.nvlink_ports):
        return 0
    return facts.nvlink_links


def xid_of(event: Mapping[str, Any]) -> readings.XidEvent:
    return readings.XidEvent(
        at_s=float(event["at_s"]), code=int(event["code"]), uuid=str(event["uuid"]), pci=str(event["pci"])
    )
