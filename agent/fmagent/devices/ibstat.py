"""InfiniBand and RoCE ports by `ibstat`, under a time limit. No output with exit code 0 means that there is no adapter."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fmagent.devices import adapters, sysfs, tool
from fmagent.devices.killed import Killed
from fmproto import ibstat as printed
from fmproto.v1 import hardware_pb2 as pb

# ibstat opens every adapter; on a node with a sick one it may hang in the kernel.
TIMEOUT_S = 10.0
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
        said = await tool.run(self._command, self._timeout_s, self.killed, "ibstat")
        if said.error:
            return PortReading(error=said.error)
        return PortReading(tuple(locate(parse_ibstat(said.output), self._sys)))


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


def port_health(ports: Iterable[pb.HcaPort]) -> list[pb.DeviceHealth]:
    """A port that is not Active and LinkUp carries nothing, whatever rate it still shows."""
    found = []
    for port in ports:
        usable = port.state == "Active" and port.physical_state == "LinkUp"
        reason = "" if usable else f"port is {port.state or 'of unknown state'}/{port.physical_state or 'unknown'}"
        state = pb.HEALTH_STATE_OK if usable else pb.HEALTH_STATE_FAILED
        found.append(pb.DeviceHealth(device=f"{port.hca}/{port.port}", state=state, reason=reason))
    return found
