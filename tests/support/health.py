"""Time series of readings for the health rules, and what they make of them."""

from __future__ import annotations

from collections.abc import Iterable

from fmagent.health.findings import Finding, State, worst_first
from fmagent.health.judge import Past, judge
from fmagent.health.readings import GpuReading, HostReading, LinkReading, PortReading, Readings
from fmagent.health.rules import Rules

GPU = "GPU-0000"
PORT = "mlx5_0/1"
PERIOD_S = 5.0
OK, DEGRADED, DRAINING, FAILED = State


def well(uuid: str = GPU, **values: object) -> GpuReading:
    """A GPU that says all it can, and is well but for `values`."""
    sound: dict[str, object] = {
        "index": 0,
        "temperature_c": 60.0,
        "slowdown_c": 90.0,
        "memory_temperature_c": 70.0,
        "power_w": 300.0,
        "power_limit_w": 700.0,
        "ecc_uncorrected": 0,
        "ecc_corrected": 0,
        "retired_pages": 0,
        "retired_pending": False,
        "remapped_correctable": 0,
        "remapped_uncorrectable": 0,
        "remap_pending": False,
        "remap_failed": False,
        "links": links(18),
        "links_expected": 18,
        "fabric_state": "completed",
    }
    return GpuReading(uuid=uuid, **{**sound, **values})  # type: ignore[arg-type]


def links(up: int, of: int = 18, errors: int = 0) -> tuple[LinkReading, ...]:
    """The first `up` are active; the errors are the first one's."""
    return tuple(LinkReading(link, link < up, errors if link == 0 else 0) for link in range(of))


def gpu_look(**values: object) -> Readings:
    return Readings(gpus=(well(**values),))  # type: ignore[arg-type]


def port_look(
    state: str = "Active",
    physical: str = "LinkUp",
    rate: float = 400.0,
    most: float = 400.0,
    counters: dict[str, int] | None = None,
) -> Readings:
    return Readings(ports=(PortReading(PORT, state, physical, "InfiniBand", rate, most, counters or {}),))


def host_look(**values: object) -> Readings:
    return Readings(host=HostReading(**values))  # type: ignore[arg-type]


class Watch:
    """One node's health over time. `changes`: how often what is published changed, and with it the store is written."""

    def __init__(self, rules: Rules | None = None, past: Past | None = None, now_s: float = 1000.0) -> None:
        self.rules = rules or Rules()
        self.past = past or Past()
        self.now_s = now_s
        self.findings: tuple[Finding, ...] = ()
        self.changes = 0

    def look(self, readings: Readings, after_s: float = PERIOD_S) -> State:
        """The worst state after one look more."""
        self.now_s += after_s
        self.past, found = judge(self.past, readings, self.rules, self.now_s)
        self.changes += found != self.findings
        self.findings = found
        return self.state

    def looks(self, series: Iterable[Readings], every_s: float = PERIOD_S) -> list[State]:
        return [self.look(readings, every_s) for readings in series]

    def last(self, readings: Readings, seconds: float, every_s: float = PERIOD_S) -> State:
        """The same readings for so long."""
        return self.looks([readings] * int(seconds / every_s), every_s)[-1]

    @property
    def state(self) -> State:
        return max((each.state for each in self.findings), default=State.OK)

    @property
    def worst(self) -> Finding:
        return worst_first(self.findings)[0]
