"""What the health rules find: which device, how bad, why, by which readings, and what an operator should do."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum


class State(IntEnum):
    """Ordered: a higher one is worse. The numbers are those of HealthState in hardware.proto."""

    OK = 1
    DEGRADED = 2  # works, with something lost
    DRAINING = 3  # nothing new is placed there; what runs goes on
    FAILED = 4  # nothing can go on running there


class Kind(StrEnum):
    GPU = "gpu"
    PORT = "port"
    DISK = "disk"
    HOST = "host"  # the node as a whole


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing wrong with one device. Everything but `state` is as it was when the state was reached: it does not change while the
    state stands, so that a reading that moves costs no write to the store."""

    kind: Kind
    device: str  # a GPU's uuid (its PCI address where no uuid is known), "mlx5_0/1", a mount point, "clock", "memory"
    concern: str
    state: State
    reason: str
    evidence: str = ""
    action: str = ""
    since_s: float = 0.0  # when this state was reached, by the looker's clock


def worst_first(findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """Among equals the oldest first: one that joins them does not change the device's reason."""
    return tuple(sorted(findings, key=lambda each: (-each.state, each.since_s, each.concern, each.reason)))
