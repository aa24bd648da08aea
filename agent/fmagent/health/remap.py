"""Memory rows that were remapped (Ampere and newer) and pages that were retired (before): what waits for a reset, what failed, and a
count that nears its end or grows fast. Facts: docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt and /dynamic-page-retirement."""

from __future__ import annotations

from fmagent.health.findings import Finding, Kind, State
from fmagent.health.gpus import settle_gpus, silent
from fmagent.health.hold import Memory, Sign, Step
from fmagent.health.readings import GpuReading, Readings
from fmagent.health.rules import RemapRules, Rules
from fmagent.health.series import Series, counted, growth

CONCERN = "remap"


def look(past: Memory, readings: Readings, rules: Rules, now_s: float) -> tuple[Memory, tuple[Finding, ...]]:
    if not rules.remap.enabled:
        return Memory(), ()
    unknown = silent(readings)
    signs: list[Sign] = []
    series: dict[str, Series] = {}
    for gpu in readings.gpus:
        if gpu.remap_pending is None and gpu.retired_pending is None:
            unknown.add(gpu.uuid)
        before = past.series.get(gpu.uuid, ())
        rows = _rows(gpu)
        if rows is not None:
            before = counted(before, now_s, float(rows), rules.remap.rows_window_s)
        series[gpu.uuid] = before
        signs += _states(gpu) + _counts(gpu, rules.remap) + _grown(gpu.uuid, growth(before), rules.remap)
    return settle_gpus(
        CONCERN, past, readings, now_s, signs, unknown, {uuid: each for uuid, each in series.items() if each}
    )


def _rows(gpu: GpuReading) -> int | None:
    if gpu.remapped_correctable is None and gpu.remapped_uncorrectable is None:
        return None
    return (gpu.remapped_correctable or 0) + (gpu.remapped_uncorrectable or 0)


def _grown(uuid: str, rows: float, rules: RemapRules) -> list[Sign]:
    """Rows that go fast are a part that fails, long before the spare ones are used up."""
    if rows < rules.rows_grown_draining:
        return []
    reason = f"rows are remapped fast: {rules.rows_grown_draining} or more within {rules.rows_window_s:g} s"
    evidence = f"rows remapped within {rules.rows_window_s:g} s: {rows:.0f}"
    return [
        Sign(
            Kind.GPU,
            uuid,
            "fast",
            (Step(State.DRAINING),),
            reason,
            evidence,
            "run diagnostics (dcgmi diag -r 3), plan an RMA",
        )
    ]


def _states(gpu: GpuReading) -> list[Sign]:
    found = []
    rows = f"remapped rows: {gpu.remapped_correctable or 0} correctable, {gpu.remapped_uncorrectable or 0} uncorrectable"
    if gpu.remap_failed:
        found.append(
            Sign(
                Kind.GPU,
                gpu.uuid,
                "failed",
                (Step(State.FAILED),),
                "a row remapping failed",
                rows,
                "RMA: memory has no spare row left",
            )
        )
    if gpu.remap_pending:
        action = "reset the GPU once it is idle"
        found.append(
            Sign(Kind.GPU, gpu.uuid, "pending", (Step(State.DRAINING),), "a row remapping waits for a reset", rows, action)
        )
    if gpu.retired_pending:
        found.append(
            Sign(
                Kind.GPU,
                gpu.uuid,
                "retired",
                (Step(State.DRAINING),),
                "a page retirement waits for the driver to be reloaded",
                f"retired pages: {gpu.retired_pages if gpu.retired_pages is not None else 'not told'}",
                "reload the driver or reboot once the GPU is idle",
            )
        )
    return found


def _counts(gpu: GpuReading, rules: RemapRules) -> list[Sign]:
    """The last limit that was passed, of rows and of pages."""
    found = []
    for what, count, degraded, draining in (
        ("remapped rows", _rows(gpu) or 0, rules.rows_degraded, rules.rows_draining),
        ("retired pages", gpu.retired_pages or 0, rules.pages_degraded, rules.pages_draining),
    ):
        state, limit = (State.DRAINING, draining) if count >= draining else (State.DEGRADED, degraded)
        if count >= degraded:
            reason = f"{what} near their end: {limit} or more"
            action = "plan an RMA" if state is State.DEGRADED else "RMA"
            found.append(
                Sign(Kind.GPU, gpu.uuid, f"{what} {state.name}", (Step(state),), reason, f"{what}: {count}", action)
            )
    return found
