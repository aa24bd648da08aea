"""Which GPUs a node has, over time: one that vanishes or cannot even say who it is stays known, and FAILED, until an operator removes
the record (STATE_DIR/gpus.pb). A record that cannot be read is set aside (gpus.pb.bad). Numbers stay too: a GPU's index is its place in
PCI order among all known ones, which is NVML's own index while none is missing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from google.protobuf.message import DecodeError

from fmagent.devices.nvml_reading import GpuReading, Reading
from fmagent.health import readings
from fmagent.runner.files import read_regular, replace_file
from fmproto.v1 import hardware_pb2 as pb

MISSING = "missing: NVML no longer lists it"


class Presence:
    """`path` keeps the record over restarts; None: only in memory. `fault`: why the record could not be read at the start, or empty."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._known: dict[str, pb.Gpu] = {}
        self._uuid_of: dict[int, str] = {}  # by NVML's index in the last reading
        self._place_of: dict[str, int] = {}
        self.fault = ""
        if path is not None:
            self._load(path)

    def _load(self, path: Path) -> None:
        try:
            record = pb.Inventory.FromString(read_regular(str(path), follow=True))
        except FileNotFoundError:
            return
        except (OSError, DecodeError) as error:
            bad = path.with_suffix(".pb.bad")
            self.fault = f"{path}: {error}; kept as {bad}"
            with contextlib.suppress(OSError):  # it stays, and is replaced by the first record that is written
                path.replace(bad)
            return
        self._known = {gpu.uuid: gpu for gpu in record.gpus}

    def merge(self, reading: Reading) -> tuple[list[pb.Gpu], list[pb.DeviceHealth], list[pb.NvLinkPair]]:
        """All known GPUs in index order, the health of each, and the reading's NVLinks by these indices."""
        named, errors = self._identify(reading.gpus)
        unfit = {gpu.gpu.uuid: gpu.unfit for gpu in reading.gpus if gpu.gpu.uuid}
        known = dict(self._known)
        for gpu in named.values():
            # A GPU that failed half way says less than it did before.
            if gpu.uuid not in known or not errors[gpu.uuid]:
                known[gpu.uuid] = gpu
        ordered = sorted(known.values(), key=lambda gpu: (gpu.pci_address, gpu.index, gpu.uuid))
        gpus = []
        for place, gpu in enumerate(ordered):
            copy = pb.Gpu()
            copy.CopyFrom(gpu)
            copy.index = place
            gpus.append(copy)
        self._keep({gpu.uuid: gpu for gpu in gpus})
        self._place_of = {gpu.uuid: gpu.index for gpu in gpus}
        health = []
        for gpu in gpus:
            error = reading.error or errors.get(gpu.uuid, MISSING) or unfit.get(gpu.uuid, "")
            state = pb.HEALTH_STATE_FAILED if error else pb.HEALTH_STATE_OK
            health.append(pb.DeviceHealth(device=gpu.uuid, state=state, reason=error))
        links = [
            pb.NvLinkPair(
                gpu_a=self._place(link.gpu_a),
                gpu_b=self._place(link.gpu_b),
                gbytes_per_s=link.gbytes_per_s,
            )
            for link in reading.nvlinks
        ]
        return gpus, health, links

    def paths(self, reading: Reading) -> tuple[pb.GpuPath, ...]:
        """The paths of the reading that was merged last, by the lasting indices."""
        return tuple(
            pb.GpuPath(gpu_a=self._place(path.gpu_a), gpu_b=self._place(path.gpu_b), path=path.path, p2p=path.p2p)
            for path in reading.gpu_paths
        )

    def health(self, reading: Reading) -> tuple[readings.GpuReading, ...]:
        """The health readings of the reading that was merged last, one for each known GPU, by the lasting names and indices; one that is
        gone says MISSING. Empty where NVML as a whole says nothing."""
        if reading.error:
            return ()
        found = {}
        for one in reading.health:
            uuid = self._uuid_of.get(one.index, one.uuid)
            found[uuid] = replace(one, uuid=uuid, index=self._place_of.get(uuid, one.index))
        for uuid, place in self._place_of.items():
            if uuid not in found:
                found[uuid] = readings.GpuReading(uuid=uuid, index=place, error=MISSING)
        return tuple(sorted(found.values(), key=lambda one: one.index))

    def _place(self, nvml_index: int) -> int:
        return self._place_of[self._uuid_of[nvml_index]]

    def _identify(self, found: Sequence[GpuReading]) -> tuple[dict[str, pb.Gpu], dict[str, str]]:
        """uuid → the GPU as read, and its error. One without a UUID is the known one of its index that nobody else is."""
        named = {reading.gpu.uuid: reading.gpu for reading in found if reading.gpu.uuid}
        errors = {reading.gpu.uuid: reading.error for reading in found if reading.gpu.uuid}
        self._uuid_of = {reading.gpu.index: reading.gpu.uuid for reading in found if reading.gpu.uuid}
        for reading in found:
            if reading.gpu.uuid:
                continue
            index = reading.gpu.index
            mute = [gpu for gpu in self._known.values() if gpu.index == index and gpu.uuid not in named]
            if mute:
                named[mute[0].uuid], errors[mute[0].uuid] = mute[0], reading.error
            else:
                reading.gpu.uuid = f"unknown-{index}"
                named[reading.gpu.uuid], errors[reading.gpu.uuid] = reading.gpu, reading.error
            self._uuid_of[index] = mute[0].uuid if mute else reading.gpu.uuid
        return named, errors

    def _keep(self, known: dict[str, pb.Gpu]) -> None:
        # One that never said who it is would stay as a second GPU once it does.
        lasting = {uuid: gpu for uuid, gpu in known.items() if not uuid.startswith("unknown-")}
        # Facts that move with a fault are no reason to write; they are written with the next GPU that comes or goes.
        before, self._known = self._known, lasting
        if {uuid: _identity(gpu) for uuid, gpu in before.items()} == {
            uuid: _identity(gpu) for uuid, gpu in lasting.items()
        }:
            return
        if self._path is not None:
            content = pb.Inventory(gpus=list(lasting.values())).SerializeToString()
            with contextlib.suppress(OSError):  # kept in memory; written with the next change
                replace_file(str(self._path), content, durable=True)


def _identity(gpu: pb.Gpu) -> tuple[int, str, int, str, int]:
    return gpu.index, gpu.pci_address, gpu.minor, gpu.name, gpu.memory_bytes
