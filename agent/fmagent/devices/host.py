"""Facts on the host itself: processors, memory, NUMA nodes, kernel, network interfaces. From /proc and /sys; nothing is guessed."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
import socket
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from fmproto.v1 import hardware_pb2 as pb

_PROC = Path("/proc")
_SYS = Path("/sys")
# SIOCGIFADDR of linux/sockios.h: an interface's IPv4 address.
_SIOCGIFADDR = 0x8915
_IFNAME_BYTES_MAX = 15


def host_facts() -> pb.Host:
    cpu = _PROC.joinpath("cpuinfo").read_text(encoding="utf-8", errors="replace")
    model = re.search(r"^model name\s*:\s*(.+)$", cpu, re.MULTILINE)
    memory = re.search(r"^MemTotal:\s*(\d+) kB", _PROC.joinpath("meminfo").read_text(encoding="ascii"), re.MULTILINE)
    return pb.Host(
        hostname=socket.gethostname(),
        cpu_model=model[1].strip() if model else "",
        cpus=os.cpu_count() or 0,
        memory_bytes=int(memory[1]) * 1024 if memory else 0,
        numa_nodes=sum(1 for _ in _SYS.glob("devices/system/node/node[0-9]*")),
        kernel=os.uname().release,
        interfaces=interfaces(),
    )


def interfaces() -> list[pb.NetInterface]:
    """In name order, with their IPv4 address and their global IPv6 addresses. One without either is left out: containers come and
    go with theirs, and each would change the inventory."""
    addresses: dict[str, list[str]] = {name: _ipv4(name) for _, name in socket.if_nameindex()}
    for name, address in _ipv6():
        addresses.setdefault(name, []).append(address)
    found = []
    for name in sorted(name for name, known in addresses.items() if known):
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
