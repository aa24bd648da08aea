"""ECC errors: uncorrectable ones since the driver started, and a rate of corrected ones that tells of a part that ages."""

from __future__ import annotations

from fmagent.health.findings import Finding, Kind, State
from fmagent.health.gpus import settle_gpus, silent
from fmagent.health.hold import Memory, Sign, Step
from fmagent.health.readings import Readings
from fmagent.health.rules import EccRules, Rules
from fmagent.health.series import Series, counted, growth

CONCERN = "ecc"


def look(past: Memory, readings: Readings, rules: Rules, now_s: float) -> tuple[Memory, tuple[Finding, ...]]:
    if not rules.ecc.enabled:
        return Memory(), ()
    limits = rules.ecc
    signs: list[Sign] = []
    series: dict[str, Series] = {}
    unknown = silent(readings)
    for gpu in readings.gpus:
        if gpu.ecc_uncorrected is None or gpu.ecc_corrected is None:
            unknown.add(gpu.uuid)
        if gpu.ecc_uncorrected is not None and gpu.ecc_uncorrected >= limits.uncorrected_draining:
            signs.append(_uncorrected(gpu.uuid, gpu.ecc_uncorrected))
        before = past.series.get(gpu.uuid, ())
        if gpu.ecc_corrected is None:
            series[gpu.uuid] = before
            continue
        series[gpu.uuid] = counted(before, now_s, float(gpu.ecc_corrected), limits.corrected_window_s)
        signs += _corrected(gpu.uuid, growth(series[gpu.uuid]), limits)
    return settle_gpus(CONCERN, past, readings, now_s, signs, unknown, series)


def _uncorrected(uuid: str, count: int) -> Sign:
    errors = "error" if count == 1 else "errors"
    return Sign(
        Kind.GPU,
        uuid,
        "uncorrected",
        (Step(State.DRAINING),),
        f"{count} uncorrectable memory {errors} since the driver started",
        f"volatile uncorrected ECC {errors}: {count}",
        "reset the GPU once it is idle; RMA if they come back",
        # A volatile count goes only with a reset.
        0.0,
        float(count.bit_length()),  # the words are renewed when the count has doubled
    )


def _corrected(uuid: str, grown: float, limits: EccRules) -> list[Sign]:
    found = []
    for state, limit in ((State.DEGRADED, limits.corrected_degraded), (State.DRAINING, limits.corrected_draining)):
        if grown >= limit:
            found.append(
                Sign(
                    Kind.GPU,
                    uuid,
                    f"corrected {state.name.lower()}",
                    (Step(state),),
                    f"corrected memory errors come fast: {limit} or more within {limits.corrected_window_s:g} s",
                    f"corrected ECC errors within {limits.corrected_window_s:g} s: {grown:.0f}",
                    "watch it" if state is State.DEGRADED else "run diagnostics (dcgmi diag -r 3); RMA if they confirm",
                    limits.clear_s,
                )
            )
    return found
