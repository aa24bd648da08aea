"""InfiniBand and RoCE ports, from `ibstat` and sysfs. The parser takes what it knows and leaves the rest: warnings between the lines,
lost indentation, output that ends half way. No output with exit code 0 means that there is no adapter."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from fmagent.devices.killed import Killed
from fmproto.v1 import hardware_pb2 as pb

# ibstat opens every adapter; on a node with a sick one it may hang in the kernel.
TIMEOUT_S = 10.0
SYS = Path("/sys")

HUNG = "ibstat hung"

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_CA = re.compile(r"^CA:?\s+'([^']+)'$")
_PORT = re.compile(r"^Port\s+(\d+):$")
_FIELD = re.compile(r"^([A-Za-z][A-Za-z ]*?):\s*(.*)$")


@dataclass(frozen=True, slots=True)
class PortReading:
    """`error` is why nothing is known of the ports now; empty, and no port: there is no adapter, or no `ibstat`."""

    ports: tuple[pb.HcaPort, ...] = ()
    error: str = ""


class IbstatReader:
    def __init__(self, timeout_s: float = TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self.killed = Killed()

    async def read(self) -> PortReading:
        """Never raises; what fails is in the reading."""
        left = self.killed.left()
        if left:
            return PortReading(error=f"{HUNG}: {left}")
        try:
            process = await asyncio.create_subprocess_exec(
                "ibstat",
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
            )
        except OSError:
            return PortReading()
        try:
            output, _ = await asyncio.wait_for(process.communicate(), self._timeout_s)
        except TimeoutError:
            await self.killed.end(process)
            return PortReading(error=f"{HUNG}: no answer in {self._timeout_s:g} s")
        return PortReading(tuple(locate(parse_ibstat(output.decode("utf-8", errors="replace")), SYS)))


def parse_ibstat(text: str) -> list[pb.HcaPort]:
    """Ports in the order of the output. A field that is missing stays empty or 0; an adapter without ports is left out."""
    ports: dict[tuple[str, int], pb.HcaPort] = {}
    adapters: dict[str, dict[str, str]] = {}
    hca, port = "", None
    for raw in text.splitlines():
        line = _ESCAPES.sub("", raw).strip().lstrip("\ufeff")
        if match := _CA.match(line):
            hca, port = match[1], None
            adapters.setdefault(hca, {})
        elif hca and (match := _PORT.match(line)):
            number = int(match[1])
            port = ports.setdefault((hca, number), pb.HcaPort(hca=hca, port=number, numa_node=-1))
        elif hca and (match := _FIELD.match(line)):
            name, value = match[1], match[2].strip()
            if port is None:
                adapters[hca][name] = value
            else:
                _set(port, name, value)
    for found in ports.values():
        found.firmware = adapters[found.hca].get("Firmware version", "")
        found.node_guid = adapters[found.hca].get("Node GUID", "")
    return list(ports.values())


def _set(port: pb.HcaPort, name: str, value: str) -> None:
    if name == "State":
        port.state = value
    elif name == "Physical state":
        port.physical_state = value
    elif name == "Rate":
        number = re.match(r"\d+(\.\d+)?", value)
        port.rate_gbps = float(number[0]) if number else 0.0
    elif name == "Link layer":
        port.link_layer = value
    elif name == "Port GUID":
        port.port_guid = value


def locate(ports: list[pb.HcaPort], sys: Path) -> list[pb.HcaPort]:
    """With PCI address and NUMA node of each adapter, where sysfs knows them."""
    for port in ports:
        device = sys / "class/infiniband" / port.hca / "device"
        try:
            port.pci_address = device.resolve(strict=True).name
            port.numa_node = int((device / "numa_node").read_text(encoding="ascii"))
        except (OSError, ValueError):
            continue  # a simulated adapter, or a virtual function without a device of its own
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
