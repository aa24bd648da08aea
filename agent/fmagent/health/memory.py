"""The host's memory: nearly none left, or programs that stand still because of it (pressure stall information, linux/Documentation/
accounting/psi.rst). A training job may use all of it; only that others wait for it is trouble."""

from __future__ import annotations

from fmagent.health.findings import Finding, Kind, State
from fmagent.health.hold import Memory, Sign, Step, findings_of, settle
from fmagent.health.readings import Readings
from fmagent.health.rules import Rules
from fmagent.health.series import number

CONCERN = "memory"
_ACTION = "look at who uses it (ps, slabtop), and at what jobs ask for"


def look(past: Memory, readings: Readings, rules: Rules, now_s: float) -> tuple[Memory, tuple[Finding, ...]]:
    if not rules.memory.enabled:
        return Memory(), ()
    host, limits = readings.host, rules.memory
    signs = []
    left = f"{host.memory_available_bytes / 1e9:.1f} of {host.memory_total_bytes / 1e9:.1f} GB available"
    if host.memory_total_bytes > 0 and host.memory_available_bytes < limits.available_degraded * host.memory_total_bytes:
        reason = f"less than {limits.available_degraded:.0%} of the memory is available"
        steps: tuple[Step, ...] = (Step(State.DEGRADED, limits.for_s),)
        signs.append(Sign(Kind.HOST, CONCERN, "available", steps, reason, left, _ACTION, limits.clear_s))
    stall = number(host.memory_stall_share)
    levels = (
        (State.DEGRADED, limits.stall_degraded, limits.for_s),
        (State.DRAINING, limits.stall_draining, limits.draining_s),
    )
    for state, limit, for_s in levels:
        if stall is not None and stall > limit:
            reason = f"all programs wait for memory more than {limit:.0%} of the time"
            evidence = f"stalled {stall:.0%} of the last 60 s; {left}"
            signs.append(
                Sign(
                    Kind.HOST,
                    CONCERN,
                    f"stall {state.name}",
                    (Step(state, for_s),),
                    reason,
                    evidence,
                    _ACTION,
                    limits.clear_s,
                )
            )
    blind = host.memory_total_bytes <= 0 and stall is None
    held = settle(past.held, signs, now_s, {CONCERN}, {CONCERN} if blind else ())
    return Memory(held), findings_of(CONCERN, held)
