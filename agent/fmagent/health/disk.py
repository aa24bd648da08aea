"""Disks: full, or not to be read. One that runs need (the state directory's, told by the shell) drains the node; another is told of."""

from __future__ import annotations

from fmagent.health.findings import Finding, Kind, State
from fmagent.health.hold import Memory, Sign, Step, findings_of, settle
from fmagent.health.readings import DiskReading, Readings
from fmagent.health.rules import DiskRules, Rules

CONCERN = "disk"


def look(past: Memory, readings: Readings, rules: Rules, now_s: float) -> tuple[Memory, tuple[Finding, ...]]:
    """`past.told`: mount points that runs need."""
    if not rules.disk.enabled:
        return Memory(), ()
    disks = [disk for disk in readings.host.disks if disk.mount not in rules.disk.ignore]
    signs = [sign for disk in disks for sign in _signs(disk, disk.mount in past.told, rules.disk)]
    held = settle(past.held, signs, now_s, {disk.mount for disk in disks})
    return Memory(held, {}, past.told), findings_of(CONCERN, held)


def _signs(disk: DiskReading, needed: bool, rules: DiskRules) -> list[Sign]:
    worst = State.DRAINING if needed else State.DEGRADED
    if disk.error:
        steps = (Step(worst, rules.for_s),)
        return [
            Sign(Kind.DISK, disk.mount, "error", steps, disk.error, "", "look at the disk (dmesg, smartctl)", rules.clear_s)
        ]
    if disk.total_bytes <= 0:
        return []
    share = disk.free_bytes / disk.total_bytes
    evidence = f"{disk.free_bytes / 1e9:.1f} of {disk.total_bytes / 1e9:.1f} GB free"
    found = []
    for state, limit in ((State.DEGRADED, rules.free_degraded), (worst, rules.free_draining)):
        if share < limit:
            reason = f"less than {limit:.0%} of the disk is free"
            steps = (Step(state, rules.for_s),)
            found.append(
                Sign(Kind.DISK, disk.mount, f"below {limit:g}", steps, reason, evidence, "free space", rules.clear_s)
            )
    return found
