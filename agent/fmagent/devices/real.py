"""The hardware that is really there: NVML, ibstat and the host, put together into one inventory and one health."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from fmagent.devices.host import host_facts, network_of
from fmagent.devices.ibstat import observe_ports, port_health
from fmagent.devices.nvml import NvmlReader
from fmagent.devices.presence import Presence
from fmagent.health import flaps
from fmproto.v1 import hardware_pb2 as pb


class RealDevices:
    """Satisfies devices.port.Devices. `timeout_s` holds for NVML as a whole; `record` is where known GPUs are kept."""

    def __init__(self, node: str, timeout_s: float, socket_interface: str, record: Path | None = None) -> None:
        self._node = node
        self._socket_interface = socket_interface
        self._nvml = NvmlReader(timeout_s)
        self._presence = Presence(record)
        self._ports: dict[str, flaps.PortPast] = {}

    async def observe(self) -> tuple[pb.Inventory, pb.Health]:
        reading, ports = await asyncio.gather(self._nvml.read(), observe_ports())
        gpus, gpu_health, nvlinks = self._presence.merge(reading)
        host = host_facts()
        network = network_of(host.interfaces, self._socket_interface)
        inventory = pb.Inventory(
            node=self._node,
            address=network.address,
            socket_interface=network.interface,
            host=host,
            gpus=gpus,
            nvlinks=nvlinks,
            hca_ports=ports,
            source="nvml",
            driver_version=reading.driver_version,
        )
        for port in inventory.hca_ports:
            port.near_gpus.extend(gpu.index for gpu in gpus if gpu.numa_node == port.numa_node and port.numa_node >= 0)
        return inventory, pb.Health(node=self._node, gpus=gpu_health, hca_ports=self._port_health(ports))

    def _port_health(self, ports: list[pb.HcaPort]) -> list[pb.DeviceHealth]:
        health = port_health(ports)
        up = {port.device: port.state == pb.HEALTH_STATE_OK for port in health}
        self._ports = flaps.look(self._ports, up, asyncio.get_running_loop().time())
        for port in health:
            unstable = flaps.reason(self._ports[port.device])
            if unstable:
                port.state, port.reason = pb.HEALTH_STATE_FAILED, unstable
        return health

    async def holders(self, uuids: Sequence[str]) -> dict[str, tuple[int, ...]]:
        return await self._nvml.holders(uuids)

    async def close(self) -> None:
        await self._nvml.close()
