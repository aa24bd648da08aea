"""Xid events: what the driver said went wrong with a GPU, by NVIDIA's catalogue (xids.toml).

An Xid that asks for a reset or a reboot stands until the GPU was initialised anew, which is seen by any of: the GPU was lost or not
listed and is back without an error; its volatile counters fell; an Xid 154 says that no action is needed any more. (A reboot makes the
agent forget all of this; an operator can, with `fm-agent --forgive`.) Others stand until they have not come back for `clear_s`. Those
of an application say nothing about the GPU until they repeat.

NVML's events and the kernel log tell of the same Xids. Their counts are kept apart, and the larger one counts.
"""

from __future__ import annotations

from collections.abc import Mapping

from fmagent.health.findings import Finding, Kind, State
from fmagent.health.hold import NEVER_S, Held, Memory, Sign, Step, findings_of, forget, settle
from fmagent.health.lost import gone
from fmagent.health.readings import GpuReading, Readings, XidEvent
from fmagent.health.rules import Rules, XidRules
from fmagent.health.series import Series, within
from fmagent.health.xids import Xid, XidClass, xid
from fmproto.dumptext import shown

CONCERN = "xid"
# Of one look; a GPU that logs more has said enough.
EVENTS_MAX = 1000
SERIES_MAX = 2048

_DRAIN, _FAIL, _DEGRADE = (Step(State.DRAINING),), (Step(State.FAILED),), (Step(State.DEGRADED),)
# Class → steps, whether it stands until a reset, what to do. Absent: no finding of itself.
_MEANING: dict[XidClass, tuple[tuple[Step, ...], bool, str]] = {
    XidClass.RESET: (_FAIL, True, "reset the GPU"),
    XidClass.RESET_LATER: (_DRAIN, True, "reset the GPU once it is idle"),
    XidClass.REBOOT: (_FAIL, True, "reboot the node; if the GPU does not come back, RMA"),
    XidClass.LINK: (_DEGRADE, False, "check NVLink (nvidia-smi nvlink -e); reset the GPU if links stay down"),
    XidClass.MECHANICS: (_DEGRADE, False, "check the GPU's power cables and seating"),
    XidClass.SOFTWARE: (_DEGRADE, False, "update driver and firmware"),
    XidClass.CONTACT: (_DEGRADE, False, "contact NVIDIA if it comes back"),
    # What nobody has classed yet may well need a reset: what runs goes on, nothing new comes, until it has not come back for a while.
    XidClass.UNKNOWN: (
        _DRAIN,
        False,
        "look the code up at docs.nvidia.com/deploy/xid-errors, and class it in the rules ([xid] classes)",
    ),
}
_REPEATING = {XidClass.APPLICATION, XidClass.LINK}


def look(past: Memory, readings: Readings, rules: Rules, now_s: float) -> tuple[Memory, tuple[Finding, ...]]:
    if not rules.xid.enabled:
        return Memory(), ()
    events = [event for event in readings.xids[:EVENTS_MAX] if event.code not in rules.xid.ignore]
    series = _counted(past, events, rules.xid, now_s)
    signs: dict[str, Sign] = {}
    recovered = set()
    for event in events:
        device, meaning = event.uuid or event.pci, xid(event.code, event.text, rules.xid.classes)
        if not device:
            continue
        if meaning.kind is XidClass.RECOVERED:
            recovered.add(device)
            signs = {name: sign for name, sign in signs.items() if sign.device != device}
        for sign in _signs(event, device, meaning, series, rules.xid):
            signs.setdefault(sign.name, sign)
    anew, series = _initialised(series, readings, now_s)
    held = _without(forget(past.held, anew | recovered), rules.xid)
    # A GPU without a uuid is known by its address alone, and by nothing but its Xids: it is never forgotten.
    nameless = {each.device for each in held.values() if ":" in each.device}
    known = {gpu.uuid for gpu in readings.gpus} | {sign.device for sign in signs.values()} | nameless
    if readings.nvml_error:
        known |= {each.device for each in held.values()}
    # Xids are events, not readings: a look without one is quiet, whatever else the GPU can say.
    held = settle(held, signs.values(), now_s, known)
    return Memory(held, series, past.told), findings_of(CONCERN, held)


def _without(held: Mapping[str, Held], rules: XidRules) -> dict[str, Held]:
    """Rules may have changed since an Xid was seen."""
    codes = {
        str(code) for code in (*rules.ignore, *(code for code, kind in rules.classes.items() if kind is XidClass.IGNORE))
    }
    return {name: each for name, each in held.items() if name.removeprefix(each.device).split()[0] not in codes}


def _signs(event: XidEvent, device: str, meaning: Xid, series: dict[str, Series], rules: XidRules) -> list[Sign]:
    reason = f"Xid {event.code} ({meaning.mnemonic})"
    source = "the kernel log" if event.source == "kernel" else "NVML"
    evidence = f"{source}: {shown(event.text)}" if event.text else f"told by {source}"
    found = []
    if meaning.kind in _MEANING:
        steps, stands, action = _MEANING[meaning.kind]
        clear_s = NEVER_S if stands else rules.clear_s
        found.append(Sign(Kind.GPU, device, str(event.code), steps, reason, evidence, action, clear_s))
    count = max(len(series.get(_name(device, event.code, source), ())) for source in ("nvml", "kernel"))
    if meaning.kind in _REPEATING and count >= rules.repeats:
        application = meaning.kind is XidClass.APPLICATION
        found.append(
            Sign(
                Kind.GPU,
                device,
                f"{event.code} repeated",
                _DEGRADE if application else _DRAIN,
                f"{reason} again and again",
                f"{count} times within {rules.repeats_window_s:g} s; {evidence}",
                "run diagnostics (dcgmi diag -r 3), unless one application is the cause"
                if application
                else "check the GPU's NVLinks and their connectors; reset the GPU",
                rules.clear_s,
            )
        )
    return found


def _name(device: str, code: int, source: str) -> str:
    return f"{device} {code} {source}"


def _counted(past: Memory, events: list[XidEvent], rules: XidRules, now_s: float) -> dict[str, Series]:
    marks = {name: points for name, points in past.series.items() if name.endswith((_VOLATILE, _GONE))}
    recent = {name: within(points, now_s, rules.repeats_window_s) for name, points in past.series.items()}
    series = {name: points for name, points in recent.items() if points} | marks
    for event in events:
        name = _name(event.uuid or event.pci, event.code, "kernel" if event.source == "kernel" else "nvml")
        if name in series or len(series) < SERIES_MAX:
            series[name] = within((*series.get(name, ()), (now_s, 1.0)), now_s, rules.repeats_window_s + 1)
    return series


_VOLATILE, _GONE = " volatile", " gone"


def _initialised(series: dict[str, Series], readings: Readings, now_s: float) -> tuple[set[str], dict[str, Series]]:
    """GPUs that were initialised anew since the last look, and what to remember for the next."""
    anew: set[str] = set()
    if readings.nvml_error:
        return anew, series
    listed = {gpu.uuid for gpu in readings.gpus}
    for name in list(series):
        uuid = name.removesuffix(_VOLATILE).removesuffix(_GONE)
        if name.endswith((_VOLATILE, _GONE)) and uuid not in listed:
            del series[name]
    for gpu in readings.gpus:
        was_gone = gpu.uuid + _GONE in series
        if gone(gpu.error):
            series[gpu.uuid + _GONE] = ((now_s, 1.0),)
        elif not gpu.error and was_gone:
            del series[gpu.uuid + _GONE]
            anew.add(gpu.uuid)
        count = _volatile(gpu)
        if count is None or gpu.error:
            continue
        before = series.get(gpu.uuid + _VOLATILE)
        if before and count < before[-1][1]:
            anew.add(gpu.uuid)
        series[gpu.uuid + _VOLATILE] = ((now_s, count),)
    return anew, series


def _volatile(gpu: GpuReading) -> float | None:
    if gpu.ecc_uncorrected is None or gpu.ecc_corrected is None:
        return None
    return float(gpu.ecc_uncorrected + gpu.ecc_corrected)
