"""`nvidia-smi -L`: the GPUs of a node by index, name and UUID, with their MIG devices below.

    GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-...)
      MIG 1g.10gb     Device  0: (UUID: MIG-...)

A GPU that the tool cannot open ("Unable to determine the device handle for GPU 0000:9B:00.0: Unknown Error") is kept with its fault.
Names of MIG profiles as in NVIDIA's MIG user guide: [COMPUTE SLICES c.]GPU SLICES g.MEMORY gb[+me | +gfx | -me ...].
"""

from __future__ import annotations

import re
from dataclasses import replace

from fmproto.dumptext import Problems
from fmsched.topology.readers.found import GpuFound, MigFound, NodeFound
from fmsched.topology.readers.smi_text import (
    GPUS_MAX,
    GpuLine,
    HandleError,
    elided,
    ends_in_name,
    gpu_line,
    handle_error,
    is_nvlink_line,
    lost_index,
    refusal,
    text_lines,
    without_shared_uuids,
)

KIND = "nvidia-smi-list"
WANTED = "lines `GPU 0: NAME (UUID: GPU-...)` of `nvidia-smi -L`"
MIG_MAX = 64  # devices of one GPU: there are 7 at most today

_MIG = re.compile(
    r"MIG\s{1,8}(?:(\S{1,64}?)\s{0,32})?Device\s{0,8}(\d{1,4})\s{0,8}:\s{0,8}(?:\(UUID:\s{0,8}([^\s()]{0,128})(\s{0,8}\))?)?"
)
_PROFILE = re.compile(r"(?:\d{1,2}c\.)?\d{1,2}g\.\d{1,4}gb(?:[+-][\w.]{1,16}){0,4}")
_MIG_UUID = re.compile(r"MIG-[0-9A-Za-z/-]{1,96}")


class _Gpus:
    """The GPUs of a list while it is read; MIG devices belong to the GPU above them."""

    def __init__(self, problems: Problems) -> None:
        self.problems = problems
        self.found: dict[int, GpuFound] = {}
        self.lost: list[tuple[int, HandleError]] = []  # index expected there, the error
        self.mig: dict[int, list[MigFound]] = {}
        self.cut = False
        self.current = -1
        self.repeats = False  # the GPU above was listed before: what stands under it was too

    def gpu(self, number: int, text: str, line: GpuLine) -> None:
        self.current = line.index
        self.repeats = line.index in self.found
        if self.repeats:
            seen = self.found[line.index]
            if (seen.name, seen.uuid) != (line.name, line.uuid):
                self.problems.add(
                    number, text, f"GPU {line.index} was listed before with another name or UUID; the first stands"
                )
            return
        if len(self.found) >= GPUS_MAX:
            self.problems.add(number, text, f"found more than {GPUS_MAX} GPUs; only the first are kept")
            self.repeats = True
            return
        if line.fault:
            self.problems.add(number, text, f"GPU {line.index} cannot be used: {line.fault}")
        elif line.cut:
            self.problems.add(number, text, "the line is cut: what it ends in, the name or the UUID, is set aside")
            self.cut = True
        elif line.masked:
            self.problems.add(number, text, "the UUID is not one (letters, digits, - and / are allowed); it is set aside")
        elif not line.uuid:
            self.problems.add(number, text, "no UUID; the GPU is known by its index only")
        self.found[line.index] = GpuFound(line.index, line.name, line.uuid, fault=line.fault)

    def mig_device(self, number: int, text: str, match: re.Match[str]) -> None:
        profile, device, uuid, closed = match.groups()
        if self.current < 0:
            self.problems.add(number, text, "a MIG device before the first GPU: it belongs to none")
            return
        if self.repeats:
            return
        devices = self.mig.setdefault(self.current, [])
        if not profile or _PROFILE.fullmatch(profile) is None:
            self.problems.add(number, text, f"the MIG profile of device {device} is not one, such as 1g.10gb or 1c.3g.40gb")
            return
        if len(devices) >= MIG_MAX:
            self.problems.add(number, text, f"found more than {MIG_MAX} MIG devices on one GPU; only the first are kept")
            return
        if not uuid or not closed or _MIG_UUID.fullmatch(uuid) is None:
            self.problems.add(number, text, "the MIG device's UUID is cut or not one; it is set aside")
            self.cut = self.cut or (uuid is not None and not closed)
            uuid = ""
        devices.append(MigFound(profile, uuid))

    def finish(self) -> tuple[GpuFound, ...]:
        for index, devices in self.mig.items():
            self.found[index] = replace(self.found[index], mig=tuple(devices), mig_enabled=True)
        for expected, error in self.lost[:GPUS_MAX]:
            index = lost_index(error, expected, self.found)
            self.found[index] = GpuFound(index, pci=error.pci, fault=error.reason)
        found = without_shared_uuids(self.found, self.problems)
        return tuple(found[index] for index in sorted(found))


def read(text: str, file: str) -> NodeFound:
    """The GPUs of one node; `complete` is False where a number is missing, a line is cut, or the tool stopped at a GPU that it could not
    open. Raises ReaderError where no GPU is listed: nothing found, another kind of file, or the tool's own error."""
    problems = Problems(file)
    lines = text_lines(text, problems)
    gpus = _Gpus(problems)
    last = ""
    for place, (number, line) in enumerate(lines):
        if opened := gpu_line(line):
            following = lines[place + 1][1] if place + 1 < len(lines) else ""
            if is_nvlink_line(following) or is_nvlink_line(opened.rest):
                # The same line heads a block of `nvidia-smi nvlink`, which a log may hold as well.
                gpus.current, gpus.repeats = opened.index, True
                continue
            if ends_in_name(text, place == len(lines) - 1, opened):
                opened = replace(opened, name="", cut=True)
            gpus.gpu(number, line, opened)
            last = "gpu"
        elif match := _MIG.match(line):
            gpus.mig_device(number, line, match)
            last = "mig"
        elif error := handle_error(line):
            problems.add(number, line, f"a GPU that cannot be used: {error.reason}")
            gpus.lost.append((max(gpus.found, default=-1) + 1, error))
            last = "error"
        elif elided(line):
            problems.add(number, line, "lines were left out here")
            gpus.cut = True
    if not gpus.found:
        raise problems.refuse(_refusal(lines, gpus))
    found = gpus.finish()
    missing = sorted(set(range(found[-1].index)) - {gpu.index for gpu in found})[:8]
    if missing:
        problems.add(0, f"GPU {', '.join(map(str, missing))}", "not listed, though higher numbers are")
    return NodeFound(
        KIND,
        file,
        gpus=found,
        complete=not (missing or gpus.cut or last == "error"),
        problems=problems.found(),
    )


def _refusal(lines: list[tuple[int, str]], gpus: _Gpus) -> str:
    if gpus.lost:
        error = gpus.lost[0][1]
        where = f"GPU {error.pci or error.index}"
        return f"the tool lists no GPU; it says that {where} cannot be opened: {error.reason}; expected {WANTED}"
    return refusal(lines, KIND, WANTED)
