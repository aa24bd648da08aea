"""InfiniBand and RoCE ports by `ibstat`, under a time limit. No output with exit code 0 means that there is no adapter."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fmagent.devices import adapters, sysfs, tool
from fmagent.devices.killed import Killed
from fmproto import ibstat as printed
from fmproto.dumptext import shown
from fmproto.v1 import hardware_pb2 as pb

# ibstat opens every adapter; on a node with a sick one it may hang in the kernel.
TIMEOUT_S = 10.0
# Of an adapter with 512 virtual functions it is below 1 MB.
OUTPUT_BYTES_MAX = 4 << 20
SYS = sysfs.SYS

HUNG = "ibstat hung"

# What a subnet manager has not given (IBA 1.4, 4.1.3: the permissive LID).
_LID_NONE = 0xFFFF


@dataclass(frozen=True, slots=True)
class PortReading:
    """`error` is why nothing is known of the ports now; empty, and no port: there is no adapter, or no `ibstat`."""

    ports: tuple[pb.HcaPort, ...] = ()
    error: str = ""


class IbstatReader:
    """`command` is what is run, "ibstat" with what must stand before it."""

    def __init__(self, timeout_s: float = TIMEOUT_S, command: Sequence[str] = ("ibstat",), sys: Path = SYS) -> None:
        self._timeout_s = timeout_s
        self._command = tuple(command)
        self._sys = sys
        self.killed = Killed()

    async def read(self) -> PortReading:
        """Never raises; what fails is in the reading."""
        said = await tool.run(self._command, self._timeout_s, self.killed, "ibstat", OUTPUT_BYTES_MAX)
        if said.error:
            return PortReading(error=said.error)
        # In a thread: megabytes of junk take seconds, and beats go on meanwhile.
        ports = await asyncio.to_thread(lambda: tuple(locate(parse_ibstat(said.output), self._sys)))
        if not ports and said.output.strip() and "CA '" not in said.output:
            return PortReading(error=f"ibstat printed no adapter, but {shown(said.output.strip())!r}")
        return PortReading(ports)


def parse_ibstat(text: str) -> list[pb.HcaPort]:
    """Ports in the order of the output. A field that is missing stays empty or 0; an adapter without ports is left out."""
    ports, _ = printed.parse_ibstat(text)
    return [_port(port) for port in ports]


def _port(port: printed.Port) -> pb.HcaPort:
    return pb.HcaPort(
        hca=port.hca,
        port=port.port,
        state=port.state,
        physical_state=port.physical_state,
        rate_gbps=port.rate_gbps,
        link_layer=port.link_layer,
        port_guid=port.port_guid,
        node_guid=port.node_guid,
        firmware=port.firmware,
        numa_node=-1,
        rate_max_gbps=adapters.rate_max_gbps(port.hca_type, rate_gbps=port.rate_gbps if port.state == "Active" else 0.0),
        lid=lid_of(port.lid),
        roce_gid_index=-1,
        hca_type=port.hca_type,
        virtual_function=adapters.is_virtual(port.hca_type),
        bond=is_bond(port.hca),
    )


def is_bond(hca: str) -> bool:
    """By the name that the mlx5 driver gives a LAG of its ports."""
    return "_bond_" in hca


def lid_of(number: int) -> int:
    """0 where the subnet manager has given none."""
    return 0 if number >= _LID_NONE else number


def locate(ports: list[pb.HcaPort], sys: Path) -> list[pb.HcaPort]:
    """With PCI address and NUMA node of each adapter, where sysfs knows them."""
    for port in ports:
        if "/" in port.hca or port.hca.startswith("."):
            continue  # no adapter's name
        device = sys / "class/infiniband" / port.hca / "device"
        # A simulated adapter, or a virtual function, may have no device of its own.
        port.pci_address = sysfs.pci_address(device)
        numa = sysfs.number(device / "numa_node")
        port.numa_node = -1 if numa is None else min(numa, 2**31 - 1)
    return ports
