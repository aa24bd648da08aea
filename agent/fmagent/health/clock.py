"""The node's clock: off, or kept by nobody. Ranks' logs, certificates and file times mislead then; fmsched itself compares no clocks."""

from __future__ import annotations

from fmagent.health.findings import Finding, Kind, State
from fmagent.health.hold import Memory, Sign, Step, findings_of, settle
from fmagent.health.readings import Readings
from fmagent.health.rules import Rules
from fmagent.health.series import number

CONCERN = "clock"
_ACTION = "look at the time service (chronyc tracking, timedatectl)"


def look(past: Memory, readings: Readings, rules: Rules, now_s: float) -> tuple[Memory, tuple[Finding, ...]]:
    if not rules.clock.enabled:
        return Memory(), ()
    limits = rules.clock
    signs = []
    off_s = number(readings.host.clock_offset_s)
    for state, limit_s in ((State.DEGRADED, limits.offset_degraded_s), (State.DRAINING, limits.offset_draining_s)):
        if off_s is not None and abs(off_s) > limit_s:
            reason = f"the clock is off by more than {limit_s:g} s"
            evidence = f"offset {off_s:+.3f} s"
            steps = (Step(state, limits.for_s),)
            signs.append(Sign(Kind.HOST, CONCERN, f"offset {state.name}", steps, reason, evidence, _ACTION, limits.clear_s))
    if readings.host.clock_synchronised is False:
        reason = "the clock is not synchronised"
        steps = (Step(State.DEGRADED, limits.unsynchronised_for_s),)
        signs.append(
            Sign(
                Kind.HOST,
                CONCERN,
                "unsynchronised",
                steps,
                reason,
                "by the kernel's time discipline",
                _ACTION,
                limits.clear_s,
            )
        )
    blind = off_s is None and readings.host.clock_synchronised is None
    held = settle(past.held, signs, now_s, {CONCERN}, {CONCERN} if blind else ())
    return Memory(held), findings_of(CONCERN, held)
