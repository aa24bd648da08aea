"""Power: the hardware lowers clocks because a power supply or a board asks for it. A software power cap is how GPUs normally run."""

from __future__ import annotations

from fmagent.health.findings import Finding, Kind, State
from fmagent.health.gpus import settle_gpus, silent
from fmagent.health.hold import Memory, Sign, Step
from fmagent.health.readings import Readings
from fmagent.health.rules import Rules
from fmagent.health.series import number

CONCERN = "power"


def look(past: Memory, readings: Readings, rules: Rules, now_s: float) -> tuple[Memory, tuple[Finding, ...]]:
    if not rules.power.enabled:
        return Memory(), ()
    unknown = silent(readings)
    signs = []
    for gpu in readings.gpus:
        brake = "hw_power_brake" in gpu.throttle
        # "hw_slowdown" sums up what the hardware does; where heat is the cause, thermal.py tells of it.
        slowed = "hw_slowdown" in gpu.throttle and "hw_thermal" not in gpu.throttle
        power_w, limit_w = number(gpu.power_w), number(gpu.power_limit_w)
        if not gpu.throttle and power_w is None:
            unknown.add(gpu.uuid)
        if not brake and not slowed:
            continue
        drawn = (
            f"; {power_w:.0f} W" + (f" of {limit_w:.0f} W" if limit_w is not None else "") if power_w is not None else ""
        )
        signs.append(
            Sign(
                Kind.GPU,
                gpu.uuid,
                "brake" if brake else "slowdown",
                (Step(State.DEGRADED, rules.power.for_s), Step(State.DRAINING, rules.power.draining_s)),
                "the power brake lowers clocks" if brake else "the hardware lowers clocks",
                f"throttle reasons: {', '.join(sorted(gpu.throttle))}{drawn}",
                "check power supplies and cables, and the rack's power limit",
                rules.power.clear_s,
            )
        )
    return settle_gpus(CONCERN, past, readings, now_s, signs, unknown)
