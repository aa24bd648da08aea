"""What the concerns about GPUs share. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from fmagent.health.findings import Finding
from fmagent.health.hold import Memory, Sign, findings_of, settle
from fmagent.health.readings import Readings
from fmagent.health.series import Series


def settle_gpus(  # the loop that every concern about GPUs ends with
    concern: str,
    past: Memory,
    readings: Readings,
    now_s: float,
    signs: Iterable[Sign],
    unknown: Collection[str],
    series: Mapping[str, Series] | None = None,
) -> tuple[Memory, tuple[Finding, ...]]:
    """`unknown`: GPUs of which this look says nothing about the concern. Where NVML as a whole says nothing, that is every GPU."""
    present = {gpu.uuid for gpu in readings.gpus}
    blind = set(unknown)
    if readings.nvml_error:
        held = {each.device for each in past.held.values()}
        present |= held
        blind |= held
    held_now = settle(past.held, signs, now_s, present, blind)
    return Memory(held_now, series or {}, past.told), findings_of(concern, held_now)


def silent(readings: Readings) -> set[str]:
    """GPUs whose reading failed: what they do not show is not known to be well."""
    return {gpu.uuid for gpu in readings.gpus if gpu.error or readings.nvml_error}
