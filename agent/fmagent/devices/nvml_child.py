"""Reads NVML in a process of its own, `python -m fmagent.devices.nvml_child`: a driver that hangs then hangs this process, not the agent.
One JSON request per line on stdin, one JSON answer per line on stdout. Ends at end of input.

Every device and every figure is read on its own: what fails is answered with NVML's name for the error, and hides nothing else.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import pynvml

# NVML has no count of links: asking ends at the first that the device does not know (nvml.h: NVML_NVLINK_MAX_LINKS).
NVLINK_LINKS_MAX = 36

Answer = dict[str, Any]


def error_name(error: pynvml.NVMLError) -> str:
    """As nvml.h spells it: NVML_ERROR_GPU_IS_LOST."""
    for name in dir(pynvml):
        if name.startswith("NVML_ERROR_") and getattr(pynvml, name) == error.value:
            return name
    return f"NVML error {error.value}"


def text_of(value: object) -> str:
    return value.decode("utf-8", errors="replace") if isinstance(value, bytes) else str(value)


def or_none(read: Callable[[], Any]) -> Any:
    """What not every device or driver can say."""
    try:
        return read()
    except pynvml.NVMLError:
        return None


def read_all() -> Answer:
    try:
        count = pynvml.nvmlDeviceGetCount()
    except pynvml.NVMLError as error:
        return {"error": error_name(error), "gpus": []}
    driver = or_none(pynvml.nvmlSystemGetDriverVersion)
    return {"error": "", "driver": text_of(driver or ""), "gpus": [read_gpu(index) for index in range(count)]}


def read_gpu(index: int) -> Answer:
    found: Answer = {"index": index, "error": "", "uuid": "", "links": []}
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        # Identity first: a GPU that fails later is still known by name.
        found["uuid"] = text_of(pynvml.nvmlDeviceGetUUID(handle))
        found["pci"] = text_of(pynvml.nvmlDeviceGetPciInfo(handle).busId)
        found["name"] = text_of(pynvml.nvmlDeviceGetName(handle))
        found["memory_bytes"] = pynvml.nvmlDeviceGetMemoryInfo(handle).total
        found["minor"] = or_none(lambda: pynvml.nvmlDeviceGetMinorNumber(handle))
        capability = or_none(lambda: pynvml.nvmlDeviceGetCudaComputeCapability(handle))
        found["capability"] = f"{capability[0]}.{capability[1]}" if capability else ""
        mig = or_none(lambda: pynvml.nvmlDeviceGetMigMode(handle))
        found["mig"] = bool(mig and mig[0])
        found["links"] = read_links(handle)
    except pynvml.NVMLError as error:
        found["error"] = error_name(error)
    return found


def read_links(handle: Any) -> list[Answer]:
    links = []
    for link in range(NVLINK_LINKS_MAX):
        try:
            active = pynvml.nvmlDeviceGetNvLinkState(handle, link) == pynvml.NVML_FEATURE_ENABLED
        except (pynvml.NVMLError_NotSupported, pynvml.NVMLError_InvalidArgument):
            break  # no NVLink, or no more links
        except pynvml.NVMLError as error:
            if error.value == pynvml.NVML_ERROR_GPU_IS_LOST:
                raise
            continue
        if active:
            links.append({"link": link, **remote_end(handle, link)})
    return links


def remote_end(handle: Any, link: int) -> Answer:
    remote = or_none(lambda: pynvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link).busId)
    return {
        "remote": text_of(remote or ""),
        "kind": or_none(lambda: pynvml.nvmlDeviceGetNvLinkRemoteDeviceType(handle, link)),
    }


def read_holders(uuids: list[str]) -> Answer:
    """uuid → pids with a context on it; of a GPU that cannot say, NVML's error."""
    holders, errors = {}, {}
    for uuid in uuids:
        try:
            handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
            holders[uuid] = [process.pid for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)]
        except pynvml.NVMLError as error:
            errors[uuid] = error_name(error)
    return {"error": "", "holders": holders, "errors": errors}


def main() -> None:
    error = ""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as failure:
        error = error_name(failure)
    for line in sys.stdin:
        request = json.loads(line)
        if error:
            answer: Answer = {"error": error, "gpus": [], "holders": {}}
        elif request["op"] == "holders":
            answer = read_holders(request["uuids"])
        else:
            answer = read_all()
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
