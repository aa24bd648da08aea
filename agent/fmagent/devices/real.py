"""The hardware that is really there: NVML, ibstat and the host, put together into one inventory and one health."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from fmagent.devices.host import host_facts, network_of
from fmagent.devices.ibstat import IbstatReader, PortReading, port_health
from fmagent.devices.nvml import NvmlReader
from fmagent.devices.presence import Presence
from fmagent.health import flaps
from fmproto.v1 import hardware_pb2 as pb


class RealDevices:
    """Satisfies devices.port.Devices. `timeout_s` holds for NVML as a whole."""

    def __init__(
        self,
        node: str,
        timeout_s: float,
        socket_interface: str,
        presence: Presence | None = None,
        ibstat: IbstatReader | None = None,
    ) -> None:
        self._node = node
        self._socket_interface = socket_interface
        self._nvml = NvmlReader(timeout_s)
        self._presence = presence or Presence()
        self._ibstat = ibstat or IbstatReader()
        self._uuids: dict[str, str] = {}  # by index, for orders that name no UUID
        self._known_ports: tuple[pb.HcaPort, ...] = ()
        self._ports: dict[str, flaps.PortPast] = {}

    async def observe(self) -> tuple[pb.Inventory, pb.Health]:
        reading, ports = await asyncio.gather(self._nvml.read(), self._ibstat.read())
        gpus, gpu_health, nvlinks = self._presence.merge(reading)
        self._uuids = {str(gpu.index): gpu.uuid for gpu in gpus}
        if not ports.error:
            self._known_ports = ports.ports
        host = host_facts()
        network = network_of(host.interfaces, self._socket_interface)
        inventory = pb.Inventory(
            node=self._node,
            address=network.address,
            socket_interface=network.interface,
            host=host,
            gpus=gpus,
            nvlinks=nvlinks,
            hca_ports=self._known_ports,
            source="nvml",
            driver_version=reading.driver_version,
        )
        for port in inventory.hca_ports:
            port.near_gpus.extend(gpu.index for gpu in gpus if gpu.numa_node == port.numa_node and port.numa_node >= 0)
        return inventory, pb.Health(node=self._node, gpus=gpu_health, hca_ports=self._port_health(ports))

    def _port_health(self, reading: PortReading) -> list[pb.DeviceHealth]:
        health = port_health(self._known_ports)
        if reading.error:
            # A tool that hangs is no port that goes down: what was known of their past stays.
            for port in health:
                port.state, port.reason = pb.HEALTH_STATE_FAILED, reading.error
            return health or [pb.DeviceHealth(device="ibstat", state=pb.HEALTH_STATE_FAILED, reason=reading.error)]
        up = {port.device: port.state == pb.HEALTH_STATE_OK for port in health}
        self._ports = flaps.look(self._ports, up, asyncio.get_running_loop().time())
        for port in health:
            unstable = flaps.reason(self._ports[port.device])
            if unstable:
                port.state, port.reason = pb.HEALTH_STATE_FAILED, unstable
        return health

    async def holders(self, uuids: Sequence[str]) -> dict[str, tuple[int, ...]]:
        return await self._nvml.holders([self._uuids.get(name, name) for name in uuids])

    async def close(self) -> None:
        await self._nvml.close()
