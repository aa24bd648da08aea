"""A node out of a Cluster file instead of NVML: `fm-agent --hardware FILE`. The file is read again when it changes, so that a fault
written to it is seen within one period."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fmagent.devices.host import host_facts, network_of
from fmagent.runner.files import read_regular
from fmproto.described import describe_node
from fmproto.v1 import hardware_pb2 as pb


class DescribedDevices:
    """Satisfies devices.port.Devices. The host's own facts are real; GPUs and adapters are the description's.

    Raises ValueError or OSError where the file cannot be read or does not describe the node. Later, such a file (one that is being
    written, say) changes nothing but that the health tells of it: what was last read stands.
    """

    def __init__(self, path: Path, node: str) -> None:
        self._path = path
        self._node = node
        self._stamp: tuple[int, int, int] | None = None
        self._read()

    async def observe(self) -> tuple[pb.Inventory, pb.Health]:
        wrong = ""
        try:
            self._read()
        except (OSError, ValueError) as error:
            wrong = str(error)
        inventory, health = pb.Inventory(), pb.Health()
        inventory.CopyFrom(self._inventory)
        health.CopyFrom(self._health)
        if wrong:
            health.disks.append(pb.DeviceHealth(device=str(self._path), state=pb.HEALTH_STATE_DEGRADED, reason=wrong))
        return inventory, health

    async def holders(self, uuids: Sequence[str]) -> dict[str, tuple[int, ...]]:
        """Nobody: described GPUs have no processes."""
        return dict.fromkeys(uuids, ())

    async def close(self) -> None:
        """Holds nothing."""

    def _read(self) -> None:
        status = self._path.stat()
        stamp = (status.st_ino, status.st_mtime_ns, status.st_size)
        if stamp == self._stamp:
            return
        text = read_regular(str(self._path), follow=True).decode("utf-8")
        inventory, health = describe_node(text, self._node)
        inventory.host.CopyFrom(host_facts())
        network = network_of(inventory.host.interfaces)
        inventory.address = inventory.address or network.address
        inventory.socket_interface = inventory.socket_interface or network.interface
        self._inventory, self._health, self._stamp = inventory, health, stamp
