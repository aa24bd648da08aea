"""Temperature: near the point where the hardware throttles, throttled for long, or climbing towards it."""

from __future__ import annotations

from fmagent.health.findings import Finding, Kind, State
from fmagent.health.gpus import settle_gpus, silent
from fmagent.health.hold import Memory, Sign, Step
from fmagent.health.readings import GpuReading, Readings
from fmagent.health.rules import Rules, ThermalRules
from fmagent.health.series import Series, extended, number, slope_per_minute, span_s

CONCERN = "thermal"
_ACTION = "check fans, air flow or coolant, and the room's temperature"
# Of the trend's window: a slope over less says nothing.
SPAN_SHARE_MIN = 0.9


def look(past: Memory, readings: Readings, rules: Rules, now_s: float) -> tuple[Memory, tuple[Finding, ...]]:
    if not rules.thermal.enabled:
        return Memory(), ()
    unknown = silent(readings)
    signs: list[Sign] = []
    series: dict[str, Series] = {}
    for gpu in readings.gpus:
        before = past.series.get(gpu.uuid, ())
        heat_c = number(gpu.temperature_c)
        if heat_c is not None:
            before = extended(before, now_s, heat_c, rules.thermal.trend_window_s)
        if before:
            series[gpu.uuid] = before
        if heat_c is None and not gpu.throttle:
            unknown.add(gpu.uuid)
        signs += (
            _throttled(gpu, rules.thermal)
            + _near(gpu, heat_c, rules.thermal)
            + _climbing(gpu, heat_c, before, rules.thermal)
        )
    return settle_gpus(CONCERN, past, readings, now_s, signs, unknown, series)


def _throttled(gpu: GpuReading, rules: ThermalRules) -> list[Sign]:
    reasons = sorted(gpu.throttle & {"hw_thermal", "sw_thermal"})
    if not reasons:
        return []
    steps = (Step(State.DEGRADED, rules.throttle_for_s), Step(State.DRAINING, rules.throttle_draining_s))
    heat_c = number(gpu.temperature_c)
    evidence = f"throttle reasons: {', '.join(reasons)}" + (f"; temperature {heat_c:.0f} C" if heat_c is not None else "")
    reason = "clocks are lowered for heat"
    return [Sign(Kind.GPU, gpu.uuid, "throttled", steps, reason, evidence, _ACTION, rules.clear_s)]


def _near(gpu: GpuReading, heat_c: float | None, rules: ThermalRules) -> list[Sign]:
    found = []
    limit_c = number(gpu.slowdown_c)
    if heat_c is not None and limit_c is not None and limit_c > 0 and heat_c >= limit_c - rules.degraded_margin_c:
        reason = f"within {rules.degraded_margin_c:g} C of where the hardware slows down"
        evidence = f"temperature {heat_c:.0f} C, slowdown at {limit_c:.0f} C"
        found.append(
            Sign(Kind.GPU, gpu.uuid, "near", (Step(State.DEGRADED, rules.for_s),), reason, evidence, _ACTION, rules.clear_s)
        )
    memory_c = number(gpu.memory_temperature_c)
    if memory_c is not None and memory_c >= rules.memory_degraded_c:
        reason = f"memory at {rules.memory_degraded_c:g} C or more"
        evidence = f"memory temperature {memory_c:.0f} C"
        found.append(
            Sign(
                Kind.GPU, gpu.uuid, "memory", (Step(State.DEGRADED, rules.for_s),), reason, evidence, _ACTION, rules.clear_s
            )
        )
    return found


def _climbing(gpu: GpuReading, heat_c: float | None, series: Series, rules: ThermalRules) -> list[Sign]:
    """A GPU that is being loaded climbs too, but not near its limit and not for minutes."""
    limit_c = number(gpu.slowdown_c)
    if heat_c is None or limit_c is None or limit_c <= 0 or heat_c < limit_c - rules.trend_margin_c:
        return []
    middle = len(series) // 2
    # In both halves: a GPU that was loaded at the window's start has climbed, and climbs no more.
    slope = min(slope_per_minute(series[:middle]), slope_per_minute(series[middle:]))
    if span_s(series) < SPAN_SHARE_MIN * rules.trend_window_s or slope < rules.trend_c_per_minute:
        return []
    minutes = max(0.0, limit_c - heat_c) / slope
    climbed = f"{series[0][1]:.0f} to {heat_c:.0f} C in {span_s(series) / 60:.0f} min"
    evidence = f"{climbed}; slowdown at {limit_c:.0f} C in about {minutes:.0f} min"
    steps = (Step(State.DRAINING, rules.trend_for_s),)
    reason = "temperature climbs towards where the hardware slows down"
    return [Sign(Kind.GPU, gpu.uuid, "climbing", steps, reason, evidence, _ACTION, rules.clear_s)]
