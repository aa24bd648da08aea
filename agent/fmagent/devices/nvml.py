"""NVML as the agent sees it: asks the child process (nvml_child.py) under a time limit, and makes messages of what it says."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fmagent.devices.killed import Killed
from fmagent.devices.port import HoldersUnknown
from fmproto.gpus import GpuFacts, lookup
from fmproto.v1 import hardware_pb2 as pb

# A child whose reading had a fault is replaced after so long, seconds: NVML sees a reset GPU or a reloaded driver only from
# its start on. Sooner would be a storm of initialisations on a sick node.
RENEW_S = 60.0
ANSWER_BYTES_MAX = 4 * 1024 * 1024

# nvml.h, nvmlIntNvLinkDeviceType_t.
REMOTE_GPU, REMOTE_SWITCH = 0, 2

HUNG = "NVML hung"


@dataclass(frozen=True, slots=True)
class GpuReading:
    """One enumerated GPU. `gpu.uuid` is empty where not even that could be read; `error` is NVML's name, or empty."""

    gpu: pb.Gpu
    error: str = ""
    links: tuple[tuple[int | None, str], ...] = ()  # of each active NVLink: kind and PCI address of the other end


@dataclass(frozen=True, slots=True)
class Reading:
    """`error` is why NVML as a whole says nothing."""

    gpus: tuple[GpuReading, ...] = ()
    error: str = ""
    driver_version: str = ""
    nvlinks: tuple[pb.NvLinkPair, ...] = field(default=())


class NvmlReader:
    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self.killed = Killed()
        self._child: asyncio.subprocess.Process | None = None
        self._turn = asyncio.Lock()
        self._renew_at_s = float("inf")

    async def read(self) -> Reading:
        """Never raises; what fails is in the reading."""
        answer = await self._ask({"op": "read"})
        reading = reading_of(answer)
        now_s = asyncio.get_running_loop().time()
        if not (reading.error or any(gpu.error for gpu in reading.gpus)):
            self._renew_at_s = float("inf")
        elif self._renew_at_s == float("inf"):
            self._renew_at_s = now_s + RENEW_S
        elif now_s >= self._renew_at_s:
            await self.close()
        return reading

    async def holders(self, uuids: Sequence[str]) -> dict[str, tuple[int, ...]]:
        """Satisfies devices.port.Devices.holders."""
        answer = await self._ask({"op": "holders", "uuids": list(uuids)})
        holders = {uuid: tuple(pids) for uuid, pids in answer.get("holders", {}).items()}
        for uuid in uuids:
            if uuid not in holders:
                error = answer.get("errors", {}).get(uuid) or answer.get("error") or "no answer"
                raise HoldersUnknown(f"GPU {uuid}: whether a process uses it cannot be read: {error}")
        return holders

    async def close(self) -> None:
        child, self._child = self._child, None
        self._renew_at_s = float("inf")
        if child is not None and child.returncode is None:
            await self.killed.end(child)

    async def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        async with self._turn:
            left = self.killed.left()
            if left:
                return {"error": f"{HUNG}: {left}"}
            try:
                if self._child is None or self._child.returncode is not None:
                    self._child = await asyncio.create_subprocess_exec(
                        sys.executable, "-m", "fmagent.devices.nvml_child",
                        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=ANSWER_BYTES_MAX,
                    )  # fmt: skip
                return await asyncio.wait_for(self._exchange(self._child, request), self._timeout_s)
            except TimeoutError:
                await self.close()
                return {"error": f"{HUNG}: no answer in {self._timeout_s:g} s"}
            except (OSError, ValueError) as error:
                await self.close()
                return {"error": f"NVML reader failed: {error}"}

    async def _exchange(self, child: asyncio.subprocess.Process, request: dict[str, Any]) -> dict[str, Any]:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(json.dumps(request).encode() + b"\n")
        await child.stdin.drain()
        line = await child.stdout.readline()
        if not line:
            raise ValueError("it ended without an answer")
        answer: dict[str, Any] = json.loads(line)
        return answer


def reading_of(answer: dict[str, Any]) -> Reading:
    gpus = tuple(_gpu_reading(found) for found in answer.get("gpus", ()))
    return Reading(
        gpus=gpus, error=answer.get("error", ""), driver_version=answer.get("driver", ""), nvlinks=nvlink_pairs(gpus)
    )


def _gpu_reading(found: dict[str, Any]) -> GpuReading:
    name, memory_bytes = found.get("name", ""), int(found.get("memory_bytes") or 0)
    facts = _facts(name, memory_bytes)
    minor = found.get("minor")
    gpu = pb.Gpu(
        index=found["index"],
        uuid=found.get("uuid", ""),
        name=name,
        pci_address=found.get("pci", ""),
        memory_bytes=memory_bytes,
        compute_capability=found.get("capability", ""),
        minor=found["index"] if minor is None else minor,
        numa_node=numa_node(found.get("pci", "")),
    )
    if facts is not None:
        gpu.model = "" if facts.guessed else facts.key
        gpu.family, gpu.memory_gb, gpu.sm_count = facts.family, facts.memory_gb, facts.multiprocessors
    error = found.get("error", "")
    if not error and found.get("mig"):
        error = "MIG mode is on; only whole GPUs are granted"
    return GpuReading(gpu, error, tuple((link["kind"], link["remote"]) for link in found.get("links", ())))


def _facts(name: str, memory_bytes: int) -> GpuFacts | None:
    return lookup(name, memory_bytes / 2**20) if name else None


def numa_node(pci_address: str) -> int:
    """From sysfs, which writes the address with a domain of 4 digits, in lower case; -1: unknown."""
    domain, _, rest = pci_address.lower().partition(":")
    path = Path("/sys/bus/pci/devices") / f"{domain[-4:]}:{rest}" / "numa_node"
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return -1


def nvlink_pairs(gpus: Sequence[GpuReading]) -> tuple[pb.NvLinkPair, ...]:
    """GB/s between GPUs that reach one another, both directions together, by the catalogue's figure for one link.

    Links that end at a GPU count between the two. Links into NVSwitches: any two GPUs of one fabric (joined by switches that
    they share) talk with all of the weaker one's links.
    """
    fit = [gpu for gpu in gpus if not gpu.error and gpu.links]
    by_address = {_bus(gpu.gpu.pci_address): gpu.gpu.index for gpu in fit}
    direct: dict[tuple[int, int], int] = {}
    into_switch: dict[int, int] = {}
    switches: dict[int, set[str]] = {}
    for gpu in fit:
        here = gpu.gpu.index
        for kind, remote in gpu.links:
            there = by_address.get(_bus(remote))
            if there is not None:
                direct[here, there] = direct.get((here, there), 0) + 1
            elif kind == REMOTE_SWITCH or kind is None:
                into_switch[here] = into_switch.get(here, 0) + 1
                switches.setdefault(here, set()).add(_bus(remote))
    rate = {gpu.gpu.index: _link_gbytes_per_s(gpu.gpu) for gpu in fit}
    fabric = _fabrics(switches)
    pairs = []
    for a in sorted(rate):
        for b in sorted(rate):
            if a >= b:
                continue
            gbytes_per_s = min(direct.get((a, b), 0) * rate[a], direct.get((b, a), 0) * rate[b])
            if a in fabric and fabric[a] == fabric.get(b):
                gbytes_per_s += min(into_switch[a] * rate[a], into_switch[b] * rate[b])
            if gbytes_per_s > 0:
                pairs.append(pb.NvLinkPair(gpu_a=a, gpu_b=b, gbytes_per_s=gbytes_per_s))
    return tuple(pairs)


def _bus(address: str) -> str:
    """Without the domain's width, which NVML writes in two ways."""
    domain, _, rest = address.lower().partition(":")
    return f"{domain[-4:]}:{rest}"


def _link_gbytes_per_s(gpu: pb.Gpu) -> float:
    facts = _facts(gpu.name, gpu.memory_bytes)
    if facts is None or not facts.nvlink_links:
        return 0.0
    return facts.nvlink_gbytes_per_s / facts.nvlink_links


def _fabrics(switches: dict[int, set[str]]) -> dict[int, int]:
    """GPU → the lowest GPU that it reaches over shared switches. In a virtual machine the switches' addresses may all read
    alike, which says the same."""
    fabric: dict[int, int] = {}
    for start in sorted(switches):
        if start in fabric:
            continue
        reached, queue = {start}, [start]
        while queue:
            here = queue.pop()
            near = {gpu for gpu, ends in switches.items() if gpu not in reached and ends & switches[here]}
            reached |= near
            queue.extend(near)
        fabric |= dict.fromkeys(reached, start)
    return fabric
