"""The hardware that is really there: NVML, AMD's driver, adapters, kernel log and host, put together into one inventory and one health."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath

import structlog

from fmagent.devices.amd import AmdReader, with_amd
from fmagent.devices.damped import Damper
from fmagent.devices.health_messages import health_of
from fmagent.devices.health_record import HealthRecord
from fmagent.devices.host import BoardReader, host_facts, host_reading, network_of
from fmagent.devices.ibstat import IbstatReader
from fmagent.devices.infiniband import InfinibandReader, PortsFound, device_of, place_near
from fmagent.devices.kernel_log import KernelLog, place
from fmagent.devices.looker import Hung, Looker
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

# A look at the host: disks have 2 s, chronyc 1 s, the rest are files of the kernel's memory.
HOST_TIMEOUT_S = 10.0
# A record of health is small; a disk that takes longer is no disk.
DISK_TIMEOUT_S = 5.0
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
        self._damper = Damper()
        self._host_looker: Looker[tuple[pb.Host, HostReading]] = Looker("the host", HOST_TIMEOUT_S)
        self._host = (pb.Host(), HostReading())
        self._host_hung = False
        self._disk_looker: Looker[bool] = Looker(state_dir, DISK_TIMEOUT_S)
        self._states: dict[str, tuple[str, str]] = {}  # as it was logged last
        self._told: tuple[str, ...] = ()  # what NVML could not say, as it was logged last

    async def observe(self) -> tuple[pb.Inventory, pb.Health]:
        reading, amd, found, (host, host_state), logged = await asyncio.gather(
            self._nvml.read(), self._amd.read(), self._infiniband.read(), self._look_at_host(), self._read_log()
        )
        reading = with_amd(reading, amd)
        if reading.problems != self._told:
            self._told = reading.problems
            log.warning("NVML does not say all", node=self._node, problems=list(reading.problems))
        gpus, _, nvlinks = self._presence.merge(reading)
        self._uuids = {str(gpu.index): gpu.uuid for gpu in gpus}
        ports = self._ports(found)
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
            xids=self._xids((*reading.xids, *logged), gpus),
            ports=found.readings,
            ports_error=found.error,
            host=host_state,
        )
        findings = await self._judge(inventory, readings)
        hold(self._published, inventory, self._found, findings)
        self._damper.damp(inventory, asyncio.get_running_loop().time())
        place_near(inventory.hca_ports, inventory.gpus)
        self._published.CopyFrom(inventory)
        self._found = findings
        health = health_of(self._node, (gpu.uuid for gpu in inventory.gpus), map(device_of, inventory.hca_ports), findings)
        self._log_changes(health)
        return inventory, health

    async def _look_at_host(self) -> tuple[pb.Host, HostReading]:
        """What was last known of it, where a file of /proc or /sys hangs."""
        try:
            self._host = await self._host_looker.look(look_at_host)
        except Hung as error:
            if not self._host_hung:
                log.warning("the host cannot be looked at; what was known of it stays", node=self._node, error=str(error))
            self._host_hung = True
        else:
            self._host_hung = False
        return self._host

    async def _read_log(self) -> tuple[XidEvent, ...]:
        """In a thread: a storm of records takes a while, and beats go on meanwhile."""
        return await asyncio.to_thread(self._kernel_log.read, asyncio.get_running_loop().time())

    async def _judge(self, inventory: pb.Inventory, readings: Readings) -> tuple[Finding, ...]:
        past = told(self._past, nvlink.CONCERN, nvlink_rates(inventory.gpus))
        mounts = [each.mount for each in readings.host.disks]
        past = told(past, disk.CONCERN, dict.fromkeys(needed_mounts(mounts, (self._state_dir, *SCRATCH)), 1.0))
        self._past, findings = judge(past, readings, self._rules, asyncio.get_running_loop().time())
        if findings != self._recorded and self._record is not None and await self._saved(self._record, self._past):
            self._recorded = findings
        return findings

    async def _saved(self, record: HealthRecord, past: Past) -> bool:
        """Whether it is on the disk. A disk that hangs holds up no look, and no beat."""
        try:
            return await self._disk_looker.look(lambda: record.save(past))
        except Hung:
            return False

    def _log_changes(self, health: pb.Health) -> None:
        """A line for each device that has another state or another reason than before: when, which, and what."""
        states = {
            each.device: (pb.HealthState.Name(each.state).removeprefix("HEALTH_STATE_").lower(), each.reason)
            for each in (*health.gpus, *health.hca_ports, *health.disks, *health.host)
        }
        well = ("ok", "")
        for device in {**self._states, **states}:
            state, reason = states.get(device, well)
            if (state, reason) != self._states.get(device, well):
                log.warning("health", node=self._node, device=device, state=state, reason=reason)
        self._states = states

    def _ports(self, found: PortsFound) -> list[pb.HcaPort]:
        """A tool that hangs is no adapter that was taken out: what was known of the others stays."""
        now = {device_of(port): port for port in found.ports}
        self._known_ports = {**self._known_ports, **now} if found.error else now
        return list(self._known_ports.values())

    def _gpu_readings(self, reading: Reading, gpus: Sequence[pb.Gpu]) -> tuple[GpuReading, ...]:
        """One for every known GPU; where NVML as a whole says nothing, no more than its name."""
        told_by = {each.uuid: each for each in self._presence.health(reading)}
        return tuple(told_by.get(gpu.uuid) or GpuReading(gpu.uuid, gpu.index) for gpu in gpus)

    def _xids(self, events: Sequence[XidEvent], gpus: Sequence[pb.Gpu]) -> tuple[XidEvent, ...]:
        """By uuid where the address is a known GPU's."""
        by_place = {place(gpu.pci_address): gpu.uuid for gpu in gpus}
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


# One for the process, as host.py's own.
_BOARD = BoardReader()


def look_at_host() -> tuple[pb.Host, HostReading]:
    host = host_facts(board=_BOARD.read())
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
