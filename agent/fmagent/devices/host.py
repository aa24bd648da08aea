"""Facts on the host itself: processors, memory, NUMA nodes, kernel, network interfaces. From /proc and /sys; nothing is guessed."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
import socket
import struct
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fmagent.devices import cpu, disks, sysfs
from fmagent.devices.clock import Clock, ClockReader
from fmagent.health.readings import HostReading
from fmproto.v1 import hardware_pb2 as pb

_PROC = sysfs.PROC
_SYS = sysfs.SYS
# SIOCGIFADDR of linux/sockios.h: an interface's IPv4 address.
_SIOCGIFADDR = 0x8915
_IFNAME_BYTES_MAX = 15
PCI_DEVICES_MAX = 16_384
# GT/s of one lane, as sysfs writes max_link_speed ("16.0 GT/s PCIe"), by generation (PCI Express Base Specification).
_PCIE_GENERATIONS = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6, 128.0: 7}
_SPEED = re.compile(r"(\d{1,3}(?:\.\d{1,2})?) GT/s")
_MEMORY = re.compile(r"^(MemTotal|MemAvailable|MemFree|Buffers|Cached):\s{0,32}(\d{1,15}) kB$", re.MULTILINE)
_STALL = re.compile(r"^full .{0,64}?avg60=(\d{1,3}(?:\.\d{1,4})?)", re.MULTILINE)

# Threads are taken offline, and NUMA nodes plugged in, by hand.
BOARD_PERIOD_S = 300.0

# One for the process: what hangs, and what was told lately, is then known to every look.
_DISKS = disks.DiskReader()
_CLOCK = ClockReader()


@dataclass(frozen=True, slots=True)
class Board:
    """What stays while the machine runs, but for parts that are plugged in."""

    processors: cpu.Processors
    numa: tuple[pb.NumaNode, ...]
    pcie_gen: int


def board_of(proc: Path = _PROC, sys: Path = _SYS) -> Board:
    """A thousand files on a node with 256 threads."""
    return Board(cpu.processors(proc, sys), tuple(cpu.numa_nodes(sys)), pcie_generation(sys))


class BoardReader:
    """Of this machine, as it was BOARD_PERIOD_S ago at most."""

    def __init__(self) -> None:
        self._known: Board | None = None
        self._read_at_s = 0.0

    def read(self) -> Board:
        now_s = time.monotonic()
        if self._known is None or now_s >= self._read_at_s + BOARD_PERIOD_S:
            self._known, self._read_at_s = board_of(), now_s
        return self._known


def host_facts(
    proc: Path = _PROC, sys: Path = _SYS, disk_reader: disks.DiskReader = _DISKS, board: Board | None = None
) -> pb.Host:
    """What the host is. Never raises; a file that is missing leaves its field empty. Takes at most the disks' time limit. `board`: as it
    was read before; None: it is read now."""
    board = board_of(proc, sys) if board is None else board
    found, numa = board.processors, board.numa
    return pb.Host(
        hostname=socket.gethostname(),
        cpu_model=found.model,
        cpus=found.threads,
        memory_bytes=memory_of(sysfs.text(proc / "meminfo")).get("MemTotal", 0),
        # Memory alone, as of a GPU, is no place where a process runs.
        numa_nodes=sum(1 for node in numa if node.cpus) or len(numa),
        kernel=os.uname().release,
        interfaces=interfaces(),
        sockets=found.sockets,
        cores=found.cores,
        numa=numa,
        disks=disks_of(proc, sys, disk_reader),
        pcie_gen=board.pcie_gen,
    )


def disks_of(proc: Path = _PROC, sys: Path = _SYS, reader: disks.DiskReader = _DISKS) -> list[pb.Disk]:
    """Local disks that are mounted, in the order of their mount points."""
    mounted = {mount.point: mount for mount in disks.mounts(sysfs.text(proc / "self/mountinfo"))}
    return [
        pb.Disk(
            mount=disk.mount,
            device=mounted[disk.mount].device,
            bytes_total=disk.total_bytes,
            rotational=disks.rotational(mounted[disk.mount], sys),
        )
        for disk in reader.read(list(mounted))
    ]


def pcie_generation(sys: Path = _SYS) -> int:
    """The highest that a bridge of the host can do (its slots), else, as in a virtual machine, the highest of any device; 0: unknown."""
    slots, devices = 0, 0
    folder = sys / "bus/pci/devices"
    for name in sysfs.names(folder)[:PCI_DEVICES_MAX]:
        match = _SPEED.match(sysfs.text(folder / name / "max_link_speed", 64))
        generation = _PCIE_GENERATIONS.get(float(match[1]), 0) if match else 0
        devices = max(devices, generation)
        if generation > slots and sysfs.text(folder / name / "class", 64).startswith("0x0604"):
            slots = generation
    return slots or devices


def host_reading(
    mounts: Sequence[str], proc: Path = _PROC, reader: disks.DiskReader = _DISKS, now: Clock | None = None
) -> HostReading:
    """How the host fares: clock, memory, and the disks at these mount points (those of host_facts). `now` is the clock's state, by default
    as the kernel or chrony tells it. Never raises; blocks for at most the disks' time limit, so call it in a thread."""
    told = _CLOCK.read() if now is None else now
    memory = memory_of(sysfs.text(proc / "meminfo"))
    # Kernels before 3.14 have no MemAvailable.
    free = sum(memory.get(name, 0) for name in ("MemFree", "Buffers", "Cached"))
    stall = _STALL.search(sysfs.text(proc / "pressure/memory"))
    return HostReading(
        clock_offset_s=told.offset_s,
        clock_synchronised=told.synchronised,
        memory_total_bytes=memory.get("MemTotal", 0),
        memory_available_bytes=memory.get("MemAvailable", free),
        memory_stall_share=float(stall[1]) / 100 if stall else None,
        disks=reader.read(mounts),
    )


def memory_of(text: str) -> dict[str, int]:
    """Bytes by name, of the text of /proc/meminfo."""
    return {name: int(kib) * 1024 for name, kib in _MEMORY.findall(text)}


def interfaces() -> list[pb.NetInterface]:
    """In name order, with their IPv4 address and their global IPv6 addresses. One without either is left out: containers come and
    go with theirs, and each would change the inventory."""
    addresses: dict[str, list[str]] = {name: _ipv4(name) for _, name in socket.if_nameindex()}
    for name, address in _ipv6():
        addresses.setdefault(name, []).append(address)
    found = []
    # The kernel takes any bytes for a name, and a message only text.
    for name in sorted(name for name, known in addresses.items() if known and name.isprintable()):
        state = ""
        with contextlib.suppress(OSError):
            state = _SYS.joinpath("class/net", name, "operstate").read_text(encoding="ascii").strip()
        # "unknown" is what drivers without a carrier say (loopback, tun): usable.
        found.append(pb.NetInterface(name=name, addresses=addresses[name], up=state in {"up", "unknown"}))
    return found


def _ipv4(name: str) -> list[str]:
    import fcntl

    request = struct.pack("256s", name.encode()[:_IFNAME_BYTES_MAX])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
        return [socket.inet_ntoa(fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)[20:24])]
    return []


def _ipv6() -> list[tuple[str, str]]:
    """(interface, address) of /proc/net/if_inet6, link-local ones left out."""
    try:
        lines = _PROC.joinpath("net/if_inet6").read_text(encoding="ascii").splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        digits, *_, name = line.split()
        address = ipaddress.IPv6Address(int(digits, 16))
        if not address.is_link_local:
            found.append((name, str(address)))
    return found


@dataclass(frozen=True, slots=True)
class Network:
    """What ranks on other nodes reach this node by."""

    interface: str
    address: str


def network_of(found: Iterable[pb.NetInterface], wanted: str = "") -> Network:
    """The interface named `wanted`, else that of the default route, else the first that is up and not loopback, else loopback."""
    usable = [interface for interface in found if interface.up and interface.addresses]
    by_name = {interface.name: interface for interface in usable}
    ranked = [wanted, _default_route_interface(), *(name for name in by_name if name != "lo"), "lo"]
    for name in ranked:
        if name in by_name:
            return Network(name, by_name[name].addresses[0])
    return Network("", "127.0.0.1")


def _default_route_interface() -> str:
    try:
        lines = _PROC.joinpath("net/route").read_text(encoding="ascii").splitlines()[1:]
    except OSError:
        return ""
    for line in lines:
        name, destination, *_ = line.split()
        if destination == "00000000":
            return name
    return ""
