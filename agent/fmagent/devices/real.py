"""The hardware that is really there: NVML, AMD's driver, adapters, kernel log and host, put together into one inventory and one health."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath

import structlog

from fmagent.devices.amd import AmdReader, with_amd
from fmagent.devices.health_messages import health_of
from fmagent.devices.health_record import HealthRecord
from fmagent.devices.host import host_facts, host_reading, network_of
from fmagent.devices.ibstat import IbstatReader
from fmagent.devices.infiniband import InfinibandReader, PortsFound, device_of, place_near
from fmagent.devices.kernel_log import KernelLog, place
from fmagent.devices.nvml import NvmlReader, Reading
from fmagent.devices.presence import Presence
from fmagent.devices.steady import hold
from fmagent.health import disk, nvlink
from fmagent.health.findings import Finding
from fmagent.health.judge import Past, judge, told
from fmagent.health.readings import GpuReading, HostReading, Readings, XidEvent
from fmagent.health.rules import Rules
from fmproto.gpus import by_key
from fmproto.v1 import hardware_pb2 as pb

log = structlog.get_logger(__name__)

# What runs write to, beside the state directory.
SCRATCH = ("/", "/tmp")  # noqa: S108 - asked about, not written to


class RealDevices:
    """Satisfies devices.port.Devices. `timeout_s` holds for NVML as a whole. `state_dir`: a full disk there closes the node. Without
    `record` nothing is remembered over a restart of the agent."""

    def __init__(
        self,
        node: str,
        timeout_s: float,
        socket_interface: str,
        presence: Presence | None = None,
        ibstat: IbstatReader | None = None,
        *,
        rules: Rules | None = None,
        record: HealthRecord | None = None,
        kernel_log: KernelLog | None = None,
        state_dir: str = "/",
    ) -> None:
        self._node = node
        self._socket_interface = socket_interface
        self._nvml = NvmlReader(timeout_s)
        self._amd = AmdReader()
        self._presence = presence or Presence()
        self._infiniband = InfinibandReader(ibstat)
        self._kernel_log = kernel_log or KernelLog(None)
        self._state_dir = state_dir
        self._uuids: dict[str, str] = {}  # by index, for orders that name no UUID
        self._known_ports: dict[str, pb.HcaPort] = {}
        self._rules = rules or Rules()
        self._record = record
        self._past = record.load() if record is not None else Past()
        self._recorded: tuple[Finding, ...] | None = None
        self._published = pb.Inventory()
        self._found: tuple[Finding, ...] = ()
        self._told: tuple[str, ...] = ()  # what NVML could not say, as it was logged last

    async def observe(self) -> tuple[pb.Inventory, pb.Health]:
        reading, amd, found, (host, host_state) = await asyncio.gather(
            self._nvml.read(), self._amd.read(), self._infiniband.read(), asyncio.to_thread(look_at_host)
        )
        reading = with_amd(reading, amd)
        if reading.problems != self._told:
            self._told = reading.problems
            log.warning("NVML does not say all", node=self._node, problems=list(reading.problems))
        gpus, _, nvlinks = self._presence.merge(reading)
        self._uuids = {str(gpu.index): gpu.uuid for gpu in gpus}
        ports = self._ports(found)
        place_near(ports, gpus)
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
            gpu_paths=self._presence.paths(reading),
            nvlink_domain=reading.nvlink_domain,
            nvlink_domain_gbytes_per_s=reading.nvlink_domain_gbytes_per_s,
        )
        readings = Readings(
            gpus=self._gpu_readings(reading, gpus),
            nvml_error=reading.error if gpus else "",
            xids=self._xids(reading, gpus),
            ports=found.readings,
            ports_error=found.error,
            host=host_state,
        )
        findings = self._judge(inventory, readings)
        hold(self._published, inventory, self._found, findings)
        self._published.CopyFrom(inventory)
        self._found = findings
        return inventory, health_of(self._node, (gpu.uuid for gpu in gpus), map(device_of, ports), findings)

    def _judge(self, inventory: pb.Inventory, readings: Readings) -> tuple[Finding, ...]:
        past = told(self._past, nvlink.CONCERN, nvlink_rates(inventory.gpus))
        mounts = [each.mount for each in readings.host.disks]
        past = told(past, disk.CONCERN, dict.fromkeys(needed_mounts(mounts, (self._state_dir, *SCRATCH)), 1.0))
        self._past, findings = judge(past, readings, self._rules, asyncio.get_running_loop().time())
        if findings != self._recorded and self._record is not None and self._record.save(self._past):
            self._recorded = findings
        return findings

    def _ports(self, found: PortsFound) -> list[pb.HcaPort]:
        """A tool that hangs is no adapter that was taken out: what was known of the others stays."""
        now = {device_of(port): port for port in found.ports}
        self._known_ports = {**self._known_ports, **now} if found.error else now
        return list(self._known_ports.values())

    def _gpu_readings(self, reading: Reading, gpus: Sequence[pb.Gpu]) -> tuple[GpuReading, ...]:
        """One for every known GPU; where NVML as a whole says nothing, no more than its name."""
        told_by = {each.uuid: each for each in self._presence.health(reading)}
        return tuple(told_by.get(gpu.uuid) or GpuReading(gpu.uuid, gpu.index) for gpu in gpus)

    def _xids(self, reading: Reading, gpus: Sequence[pb.Gpu]) -> tuple[XidEvent, ...]:
        """NVML's and the kernel log's, by uuid where the address is a known GPU's."""
        by_place = {place(gpu.pci_address): gpu.uuid for gpu in gpus}
        events = (*reading.xids, *self._kernel_log.read(asyncio.get_running_loop().time()))
        return tuple(each if each.uuid else replace(each, uuid=by_place.get(place(each.pci), "")) for each in events)

    async def holders(self, uuids: Sequence[str]) -> dict[str, tuple[int, ...]]:
        names = [self._uuids.get(name, name) for name in uuids]
        of_amd = [name for name in names if self._amd.knows(name)]
        others = [name for name in names if not self._amd.knows(name)]
        found = await self._nvml.holders(others) if others else {}
        return found | (await self._amd.holders(of_amd) if of_amd else {})

    async def close(self) -> None:
        self._kernel_log.close()
        await self._nvml.close()


def look_at_host() -> tuple[pb.Host, HostReading]:
    host = host_facts()
    return host, host_reading([disk.mount for disk in host.disks])


def nvlink_rates(gpus: Sequence[pb.Gpu]) -> dict[str, float]:
    """uuid → GB/s over all links of the GPU, both directions together, where the catalogue knows."""
    rates = {}
    for gpu in gpus:
        facts = by_key(gpu.model)
        if facts is not None and facts.nvlink_gbytes_per_s > 0:
            rates[gpu.uuid] = facts.nvlink_gbytes_per_s
    return rates


def needed_mounts(mounts: Sequence[str], paths: Sequence[str]) -> set[str]:
    """The mount points that `paths` lie on."""
    needed = set()
    for path in paths:
        # A state directory may be a symbolic link; what matters is where it leads.
        whole = PurePosixPath(Path(path).resolve())
        above = [mount for mount in mounts if whole.is_relative_to(mount)]
        if above:
            needed.add(max(above, key=len))
    return needed
