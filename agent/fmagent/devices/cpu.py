"""Processors and NUMA nodes, from /proc/cpuinfo and /sys/devices/system. What a kernel does not say is empty or 0."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from fmagent.devices import sysfs
from fmproto.v1 import hardware_pb2 as pb

CPUS_MAX = 8_192
NUMA_NODES_MAX = 1_024
_FIRST_CPU = (
    65_536  # characters of cpuinfo that hold the first processor's fields, and POWER's few at the end of a small file
)

# ARM's processors do not carry their name: implementer and part, by util-linux (sys-utils/lscpu-arm.c).
_ARM_IMPLEMENTERS = {
    0x41: "ARM", 0x42: "Broadcom", 0x43: "Cavium", 0x46: "Fujitsu", 0x48: "HiSilicon", 0x4E: "NVIDIA",
    0x50: "APM", 0x51: "Qualcomm", 0x61: "Apple", 0x6D: "Microsoft", 0x70: "Phytium", 0xC0: "Ampere",
}  # fmt: skip
_ARM_PARTS = {
    (0x41, 0xD07): "Cortex-A57", (0x41, 0xD08): "Cortex-A72", (0x41, 0xD42): "Cortex-A78AE", (0x41, 0xD0C): "Neoverse-N1",
    (0x41, 0xD40): "Neoverse-V1", (0x41, 0xD49): "Neoverse-N2", (0x41, 0xD4F): "Neoverse-V2", (0x41, 0xD83): "Neoverse-V3AE",
    (0x41, 0xD84): "Neoverse-V3", (0x41, 0xD8E): "Neoverse-N3", (0x43, 0x0A1): "ThunderX", (0x43, 0x0AF): "ThunderX2",
    (0x46, 0x001): "A64FX", (0x46, 0x003): "MONAKA", (0x48, 0xD01): "TaiShan-v110", (0x48, 0xD02): "TaiShan-v120",
    (0x4E, 0x004): "Carmel", (0x4E, 0x010): "Olympus", (0xC0, 0xAC3): "Ampere-1", (0xC0, 0xAC4): "Ampere-1a",
}  # fmt: skip
# "model name" of x86 and some ARM kernels; "cpu" of POWER, "cpu model" of MIPS, "uarch" of RISC-V, "Model Name" of LoongArch.
_NAMES = ("model name", "cpu", "cpu model", "Model Name", "uarch")
_FIELD = re.compile(r"^([A-Za-z][A-Za-z ]{0,30}?)[ \t]{0,16}:[ \t]{0,4}([^\n]{0,256})$", re.MULTILINE)
_MEMORY = re.compile(r"MemTotal:\s{0,32}(\d{1,15}) kB")
_CPU = re.compile(r"cpu\d{1,5}")
_NODE = re.compile(r"node(\d{1,5})")


@dataclass(frozen=True, slots=True)
class Processors:
    """`threads` are what the kernel runs on now; `cores` and `sockets` are 0 where nothing tells."""

    model: str = ""
    threads: int = 0
    cores: int = 0
    sockets: int = 0


def processors(proc: Path = sysfs.PROC, sys: Path = sysfs.SYS) -> Processors:
    """Virtual machines that hide their sockets show one."""
    info = sysfs.text(proc / "cpuinfo")
    folder = sys / "devices/system/cpu"
    threads, cores, packages = 0, set(), set()
    for name in [name for name in sysfs.names(folder) if _CPU.fullmatch(name)][:CPUS_MAX]:
        topology = folder / name / "topology"
        package = sysfs.number(topology / "physical_package_id")
        if package is None:
            continue  # offline, or no topology in this kernel
        threads += 1
        packages.add(package)
        siblings = sysfs.text(topology / "core_cpus_list", 4_096) or sysfs.text(topology / "thread_siblings_list", 4_096)
        cores.add(siblings or f"{package}/{sysfs.number(topology / 'core_id')}")
    if not threads:
        threads, cores, packages = _of_cpuinfo(info)
    online = count(sysfs.text(folder / "online", 4_096))
    return Processors(model_of(info), online or threads or os.cpu_count() or 0, len(cores), len(packages))


def _of_cpuinfo(info: str) -> tuple[int, set[str], set[int]]:
    threads, package, cores, packages = 0, "", set(), set()
    for name, value in _FIELD.findall(info):
        if name == "processor":
            threads += 1
            package = ""
        elif name == "physical id" and value.isascii() and value.isdecimal():
            package = value
            packages.add(int(value[:9]))
        elif name == "core id":
            cores.add(f"{package}/{value}")
    return threads, cores, packages


def model_of(info: str) -> str:
    """The processor's name from the text of /proc/cpuinfo; empty where it says none. Pure."""
    first: dict[str, str] = {}
    for name, value in _FIELD.findall(info[:_FIRST_CPU]):  # all of them are alike, or the first is as good as any
        if value.strip():
            first.setdefault(name, value.strip())
    for name in _NAMES:
        if name in first:
            return first[name]
    implementer, part = _hexadecimal(first.get("CPU implementer", "")), _hexadecimal(first.get("CPU part", ""))
    if implementer is None:
        return first.get("Processor", "")
    maker = _ARM_IMPLEMENTERS.get(implementer, f"implementer 0x{implementer:02x}")
    if part is None:
        return maker
    return f"{maker} {_ARM_PARTS.get((implementer, part), f'part 0x{part:03x}')}"


def _hexadecimal(text: str) -> int | None:
    return int(text, 16) if re.fullmatch(r"0x[0-9a-fA-F]{1,8}", text) else None


def count(cpus: str) -> int:
    """How many a list such as "0-31,64-95" names; 0 where it is none."""
    total = 0
    for part in cpus.split(",")[:CPUS_MAX]:
        match = re.fullmatch(r"(\d{1,6})(?:-(\d{1,6}))?", part.strip())
        if match:
            total += max(0, int(match[2] or match[1]) - int(match[1]) + 1)
    return total


def numa_nodes(sys: Path = sysfs.SYS) -> list[pb.NumaNode]:
    """In the order of their numbers; empty ones (which firmware reserves for memory that may come) are left out. Some have memory
    only: CXL, or that of a GPU."""
    folder = sys / "devices/system/node"
    found = []
    for name in sysfs.names(folder)[:NUMA_NODES_MAX]:
        match = _NODE.fullmatch(name)
        if not match:
            continue
        cpus = sysfs.text(folder / name / "cpulist", 4_096)
        memory = _MEMORY.search(sysfs.text(folder / name / "meminfo", 65_536))
        node = pb.NumaNode(number=int(match[1]), cpus=cpus, memory_bytes=int(memory[1]) * 1024 if memory else 0)
        if node.cpus or node.memory_bytes:
            found.append(node)
    return found
