"""Health as a pure function of readings over time: start here. Each concern is a file with `look(past, readings, rules, now_s)`; to add
one, write its file, its table in rules.py, and its line in CONCERNS.

    Readings ──► concern.look ──► Signs ──► hold.settle ──► Findings      (its Memory goes into the next look)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from fmagent.health import clock, disk, ecc, lost, memory, nvlink, ports, power, remap, thermal, xid
from fmagent.health.findings import Finding
from fmagent.health.hold import Memory
from fmagent.health.readings import Readings
from fmagent.health.rules import Rules


class Look(Protocol):
    def __call__(
        self, past: Memory, readings: Readings, rules: Rules, now_s: float
    ) -> tuple[Memory, tuple[Finding, ...]]: ...


CONCERNS: Mapping[str, Look] = {
    lost.CONCERN: lost.look,
    xid.CONCERN: xid.look,
    ecc.CONCERN: ecc.look,
    remap.CONCERN: remap.look,
    nvlink.CONCERN: nvlink.look,
    thermal.CONCERN: thermal.look,
    power.CONCERN: power.look,
    ports.CONCERN: ports.look,
    clock.CONCERN: clock.look,
    disk.CONCERN: disk.look,
    memory.CONCERN: memory.look,
}


@dataclass(frozen=True, slots=True)
class Past:
    """What is remembered between looks, a Memory a concern."""

    memories: Mapping[str, Memory] = field(default_factory=dict)


def judge(past: Past, readings: Readings, rules: Rules, now_s: float) -> tuple[Past, tuple[Finding, ...]]:
    """One look. `now_s` is the looker's monotonic clock. Never raises."""
    memories: dict[str, Memory] = {}
    findings: list[Finding] = []
    for name, look in CONCERNS.items():
        memories[name], found = look(past.memories.get(name, Memory()), readings, rules, now_s)
        findings += found
    return Past(memories), tuple(findings)


def told(past: Past, concern: str, facts: Mapping[str, float]) -> Past:
    """With what the shell knows and readings do not say: to "nvlink" each GPU's GB/s over all its links, to "disk" the mount points that
    runs need."""
    before = past.memories.get(concern, Memory())
    return Past({**past.memories, concern: replace(before, told=dict(facts))})


def forgiven(past: Past, device: str) -> tuple[Past, int]:
    """An operator's word that a device was seen to (a GPU was reset): what its Xids left is forgotten. "all" is every device. Answers how
    many findings that were."""
    before = past.memories.get(xid.CONCERN, Memory())
    held = {name: each for name, each in before.held.items() if device not in ("all", each.device)}
    after = replace(before, held=held)
    return Past({**past.memories, xid.CONCERN: after}), len(before.held) - len(held)
