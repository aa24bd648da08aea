"""AMD GPUs: the kernel's own files, with what `amd-smi` (else `rocm-smi`) adds to them, as the inventory and the health rules want them.
A node without AMD GPUs costs one look at a folder that is not there."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fmagent.devices import amd_smi, sysfs, tool
from fmagent.devices.amd_kfd import read_kfd
from fmagent.devices.amd_seen import Source, built, joined
from fmagent.devices.killed import Killed
from fmagent.devices.looker import Hung, Looker
from fmagent.devices.nvml_reading import GpuReading as NvmlGpu
from fmagent.devices.nvml_reading import Reading
from fmagent.devices.port import HoldersUnknown
from fmagent.health.readings import GpuReading
from fmproto.v1 import hardware_pb2 as pb

# amd-smi is a Python program that asks every GPU: a second or two on a healthy node of eight.
TIMEOUT_S = 20.0
# What a GPU is does not change while the driver is loaded; how it is linked may, when a link goes.
STATIC_S = 300.0


@dataclass(frozen=True, slots=True)
class AmdReading:
    """One look. `error`: what hung; then `gpus` is what could still be read, and none of it should be used. No GPU and no error: there is
    none of AMD's."""

    gpus: tuple[pb.Gpu, ...] = ()
    nvlinks: tuple[pb.NvLinkPair, ...] = ()
    readings: tuple[GpuReading, ...] = ()
    driver_version: str = ""
    error: str = ""


# nvml.h: what it says where there is no NVIDIA driver.
_NO_NVIDIA = ("NVML_ERROR_LIBRARY_NOT_FOUND", "NVML_ERROR_DRIVER_NOT_LOADED")


def with_amd(nvml: Reading, amd: AmdReading) -> Reading:
    """One reading of both vendors' GPUs, AMD's behind NVIDIA's, for devices.presence and what follows it. That NVML is not there is no
    error on a node whose GPUs are AMD's. Pure."""
    if not amd.gpus and not amd.error:
        return nvml
    first = 1 + max((one.gpu.index for one in nvml.gpus), default=-1)
    gpus, health = [], []
    for told, reading in zip(amd.gpus, amd.readings, strict=True):
        gpu = pb.Gpu()
        gpu.CopyFrom(told)
        gpu.index += first
        error = reading.error or amd.error
        gpus.append(NvmlGpu(gpu, error))
        health.append(replace(reading, index=gpu.index, error=error))
    pairs = [
        pb.NvLinkPair(gpu_a=pair.gpu_a + first, gpu_b=pair.gpu_b + first, gbytes_per_s=pair.gbytes_per_s)
        for pair in amd.nvlinks
    ]
    alone = not nvml.gpus and any(name in nvml.error for name in _NO_NVIDIA)
    return replace(
        nvml,
        gpus=(*nvml.gpus, *gpus),
        nvlinks=(*nvml.nvlinks, *pairs),
        health=(*nvml.health, *health),
        error="" if alone else nvml.error,
        driver_version=nvml.driver_version or amd.driver_version,
        problems=(*nvml.problems, amd.error) if amd.error else nvml.problems,
    )


class AmdReader:
    """`amd_smi` and `rocm_smi` are what is run; empty: never."""

    def __init__(
        self,
        amd_smi: Sequence[str] = ("amd-smi",),
        rocm_smi: Sequence[str] = ("rocm-smi",),
        sys: Path = sysfs.SYS,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self._amd_smi = tuple(amd_smi)
        self._rocm_smi = tuple(rocm_smi)
        self._sys = sys
        self._timeout_s = timeout_s
        self._looker: Looker[Source] = Looker("amdgpu's files", timeout_s)
        self._static: tuple[str, str] = ("", "")
        self._static_until_s = 0.0
        self._turn = asyncio.Lock()
        self._places: dict[str, str] = {}  # uuid → PCI address, of the last reading
        self.killed = Killed()

    async def read(self) -> AmdReading:
        """Never raises; what fails is in the reading."""
        errors = []
        kernel = Source()
        try:
            kernel = await self._kernel()
        except (Hung, OSError) as error:
            errors.append(str(error))
        told = await self._tools()
        if told.error:
            errors.append(told.error)
        seen = joined(told.gpus, kernel.gpus)
        if kernel.gpus and told.gpus:
            # One that the driver has taken out of its topology (a reset that failed) still answers to the tools.
            alive = {one.pci for one in kernel.gpus}
            seen = tuple(
                one if one.pci in alive or not one.pci else replace(one, error="the driver's topology no longer lists it")
                for one in seen
            )
        made = built(seen)
        if made.gpus:  # of a driver that hangs now, what was known stays
            self._places = {gpu.uuid: gpu.pci_address for gpu in made.gpus}
        driver = told.driver_version or kernel.driver_version
        return AmdReading(made.gpus, made.nvlinks, made.readings, driver, "; ".join(errors))

    def knows(self, uuid: str) -> bool:
        """Whether the last reading had a GPU of that name."""
        return uuid in self._places

    async def holders(self, uuids: Sequence[str]) -> dict[str, tuple[int, ...]]:
        """uuid → pids that hold memory of the GPU, by the kernel. Raises HoldersUnknown where that cannot be said."""
        try:
            kernel = await self._kernel()
        except (Hung, OSError) as error:
            raise HoldersUnknown(f"whether a process uses a GPU cannot be read: {error}") from None
        listed = {one.pci: one for one in kernel.gpus if one.pci}
        found = {}
        for uuid in uuids:
            one = listed.get(self._places.get(uuid, ""))
            if one is None or one.processes is None:
                raise HoldersUnknown(f"GPU {uuid}: whether a process uses it cannot be read: the driver does not list it")
            found[uuid] = tuple(pid for pid, _ in one.processes)
        return found

    async def _kernel(self) -> Source:
        async with self._turn:
            return await self._looker.look(lambda: read_kfd(self._sys))

    async def _tools(self) -> Source:
        """amd-smi's word, else rocm-smi's. An error only where one hung: one that cannot say anything leaves it to the next source."""
        for ask in (self._by_amd_smi, self._by_rocm_smi):
            source = await ask()
            if source is not None and (source.gpus or source.error):
                return source
        return Source()

    async def _by_amd_smi(self) -> Source | None:
        if not self._amd_smi:
            return None
        now_s = asyncio.get_running_loop().time()
        if now_s >= self._static_until_s:
            said = [await self._run(self._amd_smi, command) for command in (amd_smi.STATIC, amd_smi.TOPOLOGY)]
            if said[0].absent:
                return None
            hung = next((one.error for one in said if one.error), "")
            if hung:
                return Source(error=hung)
            self._static = (said[0].output, said[1].output)
            self._static_until_s = now_s + STATIC_S
        metric = await self._run(self._amd_smi, amd_smi.METRIC)
        if metric.error:
            self._static_until_s = 0.0
            return Source(error=metric.error)
        source = amd_smi.parse_amd_smi(self._static[0], metric.output, self._static[1])
        if not source.gpus:
            self._static_until_s = 0.0
        return replace(source, error="")

    async def _by_rocm_smi(self) -> Source | None:
        if not self._rocm_smi:
            return None
        said = await self._run(self._rocm_smi, amd_smi.ROCM)
        if said.absent:
            return None
        return Source(error=said.error) if said.error else replace(amd_smi.parse_rocm_smi(said.output), error="")

    async def _run(self, command: Sequence[str], options: Sequence[str]) -> tool.Said:
        return await tool.run((*command, *options), self._timeout_s, self.killed, command[0])
