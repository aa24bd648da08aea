"""What the health rules look at: one look at the node's devices, as frozen numbers. Times are the looker's monotonic clock, seconds.
None: the device cannot say, or did not answer. Counters only grow, until a reset makes them small again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class LinkReading:
    """One NVLink port. `errors`: replays, recoveries and CRC errors since the driver started."""

    link: int
    active: bool | None = None
    errors: int | None = None


@dataclass(frozen=True, slots=True)
class GpuReading:
    """`error`: NVML's name of what failed, or that a call hung and which; the rest is then what could still be read."""

    uuid: str
    index: int = -1
    error: str = ""
    temperature_c: float | None = None
    slowdown_c: float | None = None  # at which the hardware throttles
    memory_temperature_c: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    throttle: frozenset[str] = frozenset()  # "hw_slowdown", "hw_thermal", "sw_thermal", "hw_power_brake", "sw_power_cap"
    ecc_uncorrected: int | None = None  # volatile: since the driver started
    ecc_corrected: int | None = None
    ecc_uncorrected_aggregate: int | None = None  # since the card was made
    ecc_corrected_aggregate: int | None = None
    retired_pages: int | None = None
    retired_pending: bool | None = None
    remapped_correctable: int | None = None
    remapped_uncorrectable: int | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    links: tuple[LinkReading, ...] = ()
    links_expected: int = 0  # by the catalogue; 0: not known
    fabric_state: str = ""  # as FabricPart.state
    fabric_status: str = ""
    fabric_health: str = ""
    mig_enabled: bool = False
    memory_used_bytes: int | None = None
    processes: tuple[tuple[int, int], ...] = ()  # (pid, bytes of GPU memory)


@dataclass(frozen=True, slots=True)
class XidEvent:
    """One Xid. `uuid` is empty where only the PCI address is known (the kernel log), and `pci` then says it."""

    at_s: float
    code: int
    uuid: str = ""
    pci: str = ""
    source: str = "nvml"  # "nvml" | "kernel"
    text: str = ""


@dataclass(frozen=True, slots=True)
class PortReading:
    """One adapter port. Counters by their sysfs name: symbol_error, link_error_recovery, link_downed, port_rcv_errors, ..."""

    device: str  # "mlx5_0/1"
    state: str = ""
    physical_state: str = ""
    link_layer: str = ""
    rate_gbps: float = 0.0
    rate_max_gbps: float = 0.0
    counters: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DiskReading:
    mount: str
    total_bytes: int
    free_bytes: int
    error: str = ""


@dataclass(frozen=True, slots=True)
class HostReading:
    """`clock_offset_s`: how far this clock is off, by the kernel's time discipline or the time service; None: nobody knows."""

    clock_offset_s: float | None = None
    clock_synchronised: bool | None = None
    memory_total_bytes: int = 0
    memory_available_bytes: int = 0
    memory_stall_share: float | None = None  # of the last 60 s, by /proc/pressure/memory "full"
    disks: tuple[DiskReading, ...] = ()


@dataclass(frozen=True, slots=True)
class Readings:
    """One look. `nvml_error`, `ports_error`: why nothing of that source can be said now."""

    gpus: tuple[GpuReading, ...] = ()
    nvml_error: str = ""
    xids: tuple[XidEvent, ...] = ()  # since the last look
    ports: tuple[PortReading, ...] = ()
    ports_error: str = ""
    host: HostReading = field(default_factory=HostReading)
