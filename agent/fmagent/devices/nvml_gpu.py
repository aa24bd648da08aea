"""What NVML says of one GPU, as plain values for JSON: the facts that stay (`read_facts`) and what moves (`read_state`). Each figure is
read on its own; what a device or driver cannot say is None. Runs in the reader process.

Names and meanings: NVIDIA's nvml.h. Functions that older drivers lack have their predecessors tried after them.
"""

from __future__ import annotations

import uuid
from typing import Any

import pynvml

from fmagent.devices.nvml_call import ABSENT, FATAL, Answer, Ask, error_name, name_of
from fmagent.devices.nvml_mig import read_mig

# A NUMA mask of four words: 256 nodes.
_NUMA_WORDS = 4

# nvml.h, nvmlP2PCapsIndex_t. Read and write: what a peer copy needs. (pynvml writes the first as a tuple.)
P2P_READ, P2P_WRITE = 0, 1

# Errors of one NVLink up to its 4th generation, by nvmlNvLinkErrorCounter_t: replays, recoveries, CRC of flits and of data.
_LINK_COUNTERS = (
    pynvml.NVML_NVLINK_ERROR_DL_REPLAY,
    pynvml.NVML_NVLINK_ERROR_DL_RECOVERY,
    pynvml.NVML_NVLINK_ERROR_DL_CRC_FLIT,
    pynvml.NVML_NVLINK_ERROR_DL_CRC_DATA,
)

# The same of the 5th, which has them as fields with the link as scope.
_LINK_FIELDS = (
    pynvml.NVML_FI_DEV_NVLINK_COUNT_RCV_ERRORS,
    pynvml.NVML_FI_DEV_NVLINK_COUNT_LOCAL_LINK_INTEGRITY_ERRORS,
    pynvml.NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS,
    pynvml.NVML_FI_DEV_NVLINK_COUNT_EFFECTIVE_ERRORS,
)

_VALUE_FIELD = {
    pynvml.NVML_VALUE_TYPE_UNSIGNED_INT: "uiVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG: "ulVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: "ullVal",
    pynvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG: "sllVal",
    pynvml.NVML_VALUE_TYPE_SIGNED_INT: "siVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_SHORT: "usVal",
}

# A driver that has no figure writes all ones.
_NO_COUNT = 2**64 - 1


def text_of(value: object) -> str:
    return value.decode("utf-8", errors="replace") if isinstance(value, bytes) else str(value)


def read_gpu(ask: Ask, found: Answer, index: int) -> Any:
    """Fills `found`, and returns NVML's handle. Raises NVMLError where the GPU is gone; what was read before stands in `found`."""
    handle = ask.must("nvmlDeviceGetHandleByIndex", index)
    read_identity(ask, found, handle)
    read_facts(ask, found, handle)
    found["state"] = {}
    read_state(ask, found, handle)
    return handle


def read_identity(ask: Ask, found: Answer, handle: Any) -> None:
    """Who it is, first: a GPU that fails later is still known by name. One that cannot say so is at fault."""
    for key, read in (
        ("uuid", lambda: text_of(ask.must("nvmlDeviceGetUUID", handle))),
        ("pci", lambda: text_of(ask.must("nvmlDeviceGetPciInfo", handle).busId)),
        ("name", lambda: text_of(ask.must("nvmlDeviceGetName", handle))),
        ("memory_bytes", lambda: ask.must("nvmlDeviceGetMemoryInfo", handle).total),
    ):
        try:
            found[key] = read()
        except pynvml.NVMLError as error:
            if error.value in FATAL:
                raise
            # A GPU that shares the host's memory (GB10) has none of its own to tell.
            if not (key == "memory_bytes" and error.value in ABSENT):
                found.setdefault("error", error_name(error))


def read_facts(ask: Ask, found: Answer, handle: Any) -> None:
    found["minor"] = ask.may("nvmlDeviceGetMinorNumber", handle)
    capability = ask.may("nvmlDeviceGetCudaComputeCapability", handle)
    found["capability"] = f"{capability[0]}.{capability[1]}" if capability else ""
    found["cores"] = ask.may("nvmlDeviceGetNumGpuCores", handle)
    found["power_limit_mw"] = ask.may("nvmlDeviceGetEnforcedPowerLimit", handle)
    found["power_default_mw"] = ask.may("nvmlDeviceGetPowerManagementDefaultLimit", handle)
    bounds = ask.may("nvmlDeviceGetPowerManagementLimitConstraints", handle)
    found["power_max_mw"] = bounds[1] if bounds else None
    found["pcie_gen"] = ask.may("nvmlDeviceGetMaxPcieLinkGeneration", handle)
    found["pcie_width"] = ask.may("nvmlDeviceGetMaxPcieLinkWidth", handle)
    ecc = ask.may("nvmlDeviceGetEccMode", handle)
    found["ecc"] = bool(ecc[0]) if ecc else None
    found["numa"] = numa_of(ask, handle)
    found["links"] = read_links(ask, handle)
    found["fabric"] = read_fabric(ask, handle)
    found["mig"] = read_mig(ask, handle, found.get("memory_bytes") or 0)


def numa_of(ask: Ask, handle: Any) -> int | None:
    """The one NUMA node whose memory is near. (nvmlDeviceGetNumaNodeId is another thing: the node that a GPU's own memory is, on GH200.)"""
    words = ask.may("nvmlDeviceGetMemoryAffinity", handle, _NUMA_WORDS, pynvml.NVML_AFFINITY_SCOPE_NODE)
    if words is None:
        return None
    mask = sum(int(word) << (64 * place) for place, word in enumerate(words))
    return mask.bit_length() - 1 if mask and mask & (mask - 1) == 0 else None


def read_links(ask: Ask, handle: Any) -> list[Answer]:
    """Every NVLink port, active or not. `active` None: the port cannot say."""
    count = field_of(ask, handle, pynvml.NVML_FI_DEV_NVLINK_LINK_COUNT)
    ports = []
    for link in range(min(pynvml.NVML_NVLINK_MAX_LINKS, count if count else pynvml.NVML_NVLINK_MAX_LINKS)):
        active: bool | None = None
        try:
            active = ask.must("nvmlDeviceGetNvLinkState", handle, link) == pynvml.NVML_FEATURE_ENABLED
        except pynvml.NVMLError as error:
            if error.value in FATAL:
                raise
            # A driver that has no count of the links: it ends at the first that the device does not know.
            if not count and error.value in (*ABSENT, pynvml.NVML_ERROR_INVALID_ARGUMENT):
                break
        remote = ask.may("nvmlDeviceGetNvLinkRemotePciInfo", handle, link)
        ports.append({
            "link": link,
            "active": active,
            "version": ask.may("nvmlDeviceGetNvLinkVersion", handle, link),
            "remote": text_of(remote.busId) if remote is not None else "",
            "kind": ask.may("nvmlDeviceGetNvLinkRemoteDeviceType", handle, link),
        })  # fmt: skip
    # Every slot of a board that has no NVLink answers "no port".
    return ports if any(port["active"] is not None for port in ports) else []


def field_of(ask: Ask, handle: Any, field: int) -> int | None:
    values = ask.may("nvmlDeviceGetFieldValues", handle, [field])
    return value_of(values[0]) if values is not None else None


def value_of(field: Any) -> int | None:
    name = _VALUE_FIELD.get(field.valueType)
    if field.nvmlReturn != pynvml.NVML_SUCCESS or name is None:
        return None
    value = int(getattr(field.value, name))
    return None if value == _NO_COUNT else value


def read_fabric(ask: Ask, handle: Any) -> Answer | None:
    """The multi-node NVLink fabric, by the newest structure that the driver knows."""
    for function, structure in (
        ("nvmlDeviceGetGpuFabricInfoV", "c_nvmlGpuFabricInfo_v3_t"),
        ("nvmlDeviceGetGpuFabricInfoV", "c_nvmlGpuFabricInfo_v2_t"),
        ("nvmlDeviceGetGpuFabricInfo", "c_nvmlGpuFabricInfo_t"),
        ("nvmlDeviceGetGpuFabricInfo_v4", "c_nvmlGpuFabricInfo_v4_t"),  # alone from CUDA 14 on
    ):
        if not hasattr(pynvml, structure):  # an older pynvml
            continue
        info = getattr(pynvml, structure)()
        if ask.may(function, handle, pynvml.byref(info)) is not None:
            return {
                "uuid": str(uuid.UUID(bytes=bytes(info.clusterUuid))),
                "clique": info.cliqueId if hasattr(info, "cliqueId") else clique_of(info),
                # A byte in nvml.h; pynvml reads four, and the driver writes one.
                "state": info.state & 0xFF,
                "status": name_of(info.status) if info.status else "",
                "health_mask": getattr(info, "healthMask", 0),
                "health_summary": getattr(info, "healthSummary", 0),
            }
    return None


def clique_of(info: Any) -> int:
    """The newest structure has several cliques: that of plain loads and stores."""
    for clique in info.cliques[: min(info.numCliques, len(info.cliques))]:
        if clique.type == pynvml.NVML_GPU_FABRIC_CLIQUE_TYPE_UNICAST_POINTER:
            return int(clique.id)
    return 0


def read_state(ask: Ask, found: Answer, handle: Any) -> None:
    """What moves, into found["state"]."""
    state = found["state"]
    state["temperature_c"] = temperature_of(ask, handle)
    state["slowdown_c"] = ask.may("nvmlDeviceGetTemperatureThreshold", handle, pynvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN)
    if state["slowdown_c"] is None:
        state["margin_c"] = ask.may("nvmlDeviceGetMarginTemperature", handle)
    state["memory_temperature_c"] = field_of(ask, handle, pynvml.NVML_FI_DEV_MEMORY_TEMP)
    state["power_mw"] = ask.may("nvmlDeviceGetPowerUsage", handle)
    state["throttle"] = first(
        ask, handle, "nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"
    )
    read_ecc(ask, state, handle)
    used = ask.may("nvmlDeviceGetMemoryInfo", handle, version=pynvml.nvmlMemory_v2)
    if used is None:  # before 510: with the driver's own share in it
        used = ask.may("nvmlDeviceGetMemoryInfo", handle)
    state["memory_used_bytes"] = None if used is None else used.used
    state["processes"] = read_processes(ask, handle)
    state["link_errors"] = sorted(read_link_errors(ask, handle, [port["link"] for port in found["links"]]).items())


def temperature_of(ask: Ask, handle: Any) -> int | None:
    value = ask.may("nvmlDeviceGetTemperature", handle, pynvml.NVML_TEMPERATURE_GPU)
    if value is None:  # what replaces it from CUDA 14 on
        value = ask.may("nvmlDeviceGetTemperatureV", handle, pynvml.NVML_TEMPERATURE_GPU)
    return None if value is None else int(value)


def first(ask: Ask, handle: Any, *names: str) -> Any:
    for name in names:
        value = ask.may(name, handle)
        if value is not None:
            return value
    return None


def read_ecc(ask: Ask, state: Answer, handle: Any) -> None:
    for key, kind, counter in (
        ("ecc_uncorrected", pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC),
        ("ecc_corrected", pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, pynvml.NVML_VOLATILE_ECC),
        ("ecc_uncorrected_aggregate", pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_AGGREGATE_ECC),
        ("ecc_corrected_aggregate", pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, pynvml.NVML_AGGREGATE_ECC),
    ):
        count = ask.may("nvmlDeviceGetTotalEccErrors", handle, kind, counter)
        state[key] = None if count == _NO_COUNT else count
    pages = [
        ask.may("nvmlDeviceGetRetiredPages", handle, cause) for cause in range(pynvml.NVML_PAGE_RETIREMENT_CAUSE_COUNT)
    ]
    known = [len(addresses) for addresses in pages if addresses is not None]
    state["retired_pages"] = sum(known) if known else None
    pending = ask.may("nvmlDeviceGetRetiredPagesPendingStatus", handle)
    state["retired_pending"] = None if pending is None else bool(pending)
    state["remapped"] = ask.may("nvmlDeviceGetRemappedRows", handle)


def read_processes(ask: Ask, handle: Any) -> list[tuple[int, int]] | None:
    """(pid, bytes of GPU memory) of every process that holds the GPU; 0 bytes where they are not told. None: it cannot say."""
    held: dict[int, int] = {}
    told = False
    for kind in ("Compute", "Graphics"):
        running = first(ask, handle, *(f"nvmlDeviceGet{kind}RunningProcesses_v{version}" for version in (3, 2)))
        told |= running is not None
        for process in running or ():
            # One that computes and draws stands in both lists with the same figure.
            held[process.pid] = max(held.get(process.pid, 0), process.usedGpuMemory or 0)
    return sorted(held.items()) if told else None


def holders_of(ask: Ask, handle: Any) -> list[int]:
    """The pids with a CUDA context. Raises NVMLError."""
    try:
        running = ask.must("nvmlDeviceGetComputeRunningProcesses_v3", handle)
    except pynvml.NVMLError as error:
        if error.value != pynvml.NVML_ERROR_FUNCTION_NOT_FOUND:
            raise
        running = ask.must("nvmlDeviceGetComputeRunningProcesses_v2", handle)  # before 510
    return [process.pid for process in running]


def read_link_errors(ask: Ask, handle: Any, links: list[int]) -> dict[int, int]:
    """link → errors since the driver started; a link that cannot say is left out."""
    errors: dict[int, int] = {}
    for link in links:
        counts = [ask.may("nvmlDeviceGetNvLinkErrorCounter", handle, link, counter) for counter in _LINK_COUNTERS]
        known = [count for count in counts if count is not None and count != _NO_COUNT]
        if known:
            errors[link] = sum(known)
        elif not errors:
            break
    if errors or not links:
        return errors
    values = ask.may("nvmlDeviceGetFieldValues", handle, [(field, link) for link in links for field in _LINK_FIELDS])
    for field in values if values is not None else ():
        count = value_of(field)
        if count is not None:
            errors[field.scopeId] = errors.get(field.scopeId, 0) + count
    return errors


def read_pair(ask: Ask, a: Any, b: Any) -> Answer:
    """How two GPUs reach one another over PCIe (nvmlGpuTopologyLevel_t), and the worse of reading and writing a peer
    (nvmlGpuP2PStatus_t); None: it cannot be said."""
    p2p = None
    for kind in (P2P_READ, P2P_WRITE):
        status = ask.may("nvmlDeviceGetP2PStatus", a, b, kind)
        p2p = status if p2p in (None, pynvml.NVML_P2P_STATUS_OK) and status is not None else p2p
    return {"level": ask.may("nvmlDeviceGetTopologyCommonAncestor", a, b), "p2p": p2p}
