"""NVLink: links that are down (what is lost is said, and is less weight on the edges of the node's graph, not a yes or no), links with
many errors, and the fabric of a multi-node or NVSwitch machine that is not ready or failed.

How many links a GPU should have: the catalogue's number, where it has more than half of them. A card with fewer is bridged, and then
its own past, or its neighbours', says what it should have. A GPU without any link is at fault only where all the others have some.
"""

from __future__ import annotations

from fmagent.health.findings import Finding, Kind, State
from fmagent.health.gpus import settle_gpus, silent
from fmagent.health.hold import Memory, Sign, Step
from fmagent.health.readings import GpuReading, Readings
from fmagent.health.rules import NvlinkRules, Rules
from fmagent.health.series import Series, counted, growth, number

CONCERN = "nvlink"
# Fewer neighbours than this may all be bridged, and this one not.
NEIGHBOURS_MIN = 3


def look(past: Memory, readings: Readings, rules: Rules, now_s: float) -> tuple[Memory, tuple[Finding, ...]]:
    if not rules.nvlink.enabled:
        return Memory(), ()
    unknown = silent(readings)
    series: dict[str, Series] = {}
    signs: list[Sign] = []
    active = {gpu.uuid: sum(link.active is True for link in gpu.links) for gpu in readings.gpus if _told(gpu)}
    for gpu in readings.gpus:
        most = past.series.get(f"{gpu.uuid} most", ())
        errors = past.series.get(f"{gpu.uuid} errors", ())
        if gpu.uuid in unknown or (gpu.uuid not in active and (gpu.links or most)):
            unknown.add(gpu.uuid)
        elif gpu.uuid in active:
            up = active[gpu.uuid]
            signs += _down(gpu, up, _expected(gpu, active, most), past.told.get(gpu.uuid, 0.0), rules.nvlink)
            if not most or up > most[-1][1]:
                most = ((now_s, float(up)),)
        counts = [link.errors for link in gpu.links if link.errors is not None]
        if counts:
            errors = counted(errors, now_s, float(sum(counts)), rules.nvlink.errors_window_s)
            signs += _errors(gpu, growth(errors), rules.nvlink)
        if gpu.uuid not in unknown:
            signs += _fabric(gpu)
        series |= {f"{gpu.uuid} most": most, f"{gpu.uuid} errors": errors}
    return settle_gpus(
        CONCERN, past, readings, now_s, signs, unknown, {name: each for name, each in series.items() if each}
    )


def _told(gpu: GpuReading) -> bool:
    """A GPU that cannot say of one link whether it is up says nothing that compares."""
    return not gpu.error and bool(gpu.links) and all(link.active is not None for link in gpu.links)


def _expected(gpu: GpuReading, active: dict[str, int], most: Series) -> int:
    up = active[gpu.uuid]
    if up * 2 > gpu.links_expected > 0:
        return max(gpu.links_expected, up)
    own = int(most[-1][1]) if most else 0
    others = [count for uuid, count in active.items() if uuid != gpu.uuid]
    if up == 0 and own == 0 and (len(others) < NEIGHBOURS_MIN or 0 in others):
        return 0
    return max(own, *others, up) if others else max(own, up)


def _down(gpu: GpuReading, up: int, expected: int, gbytes_per_s: float, rules: NvlinkRules) -> list[Sign]:
    lost = expected - up
    if lost <= 0:
        return []
    full = number(gbytes_per_s) or 0.0
    links = gpu.links_expected or expected
    what = f"{lost} of {expected} NVLinks down"
    if full > 0:
        what += f": {full * up / links:.0f} of {full * expected / links:.0f} GB/s left"
    numbers = ", ".join(str(link.link) for link in gpu.links if link.active is False)
    evidence = f"inactive links: {numbers}" if numbers else f"active links: {up}"
    action = "check the link's other end and nvidia-smi nvlink -s; reset the GPU, restart the fabric manager"
    steps = [Step(State.DEGRADED, rules.down_for_s)]
    if up < rules.left_share_draining * expected:
        steps.append(Step(State.DRAINING, rules.down_for_s))
    return [Sign(Kind.GPU, gpu.uuid, "down", tuple(steps), what, evidence, action, rules.clear_s, float(lost))]


def _errors(gpu: GpuReading, grown: float, rules: NvlinkRules) -> list[Sign]:
    found = []
    for state, limit in ((State.DEGRADED, rules.errors_degraded), (State.DRAINING, rules.errors_draining)):
        if grown >= limit:
            found.append(
                Sign(
                    Kind.GPU,
                    gpu.uuid,
                    f"errors {state.name}",
                    (Step(state),),
                    f"NVLink errors come fast: {limit} or more within {rules.errors_window_s:g} s",
                    f"replays, recoveries and CRC errors within {rules.errors_window_s:g} s: {grown:.0f}",
                    "check cables and connectors (nvidia-smi nvlink -e)",
                    rules.clear_s,
                )
            )
    return found


def _fabric(gpu: GpuReading) -> list[Sign]:
    """FabricPart.state. While the fabric is not ready, CUDA does not start on such a GPU (CUDA_ERROR_SYSTEM_NOT_READY)."""
    where = f"fabric state: {gpu.fabric_state}" + (f", {gpu.fabric_status}" if gpu.fabric_status else "")
    action = "look at nvidia-fabricmanager (and nvidia-imex on a multi-node machine)"
    if gpu.fabric_state in ("in progress", "not started"):
        reason = f"the NVLink fabric is not ready: {gpu.fabric_state}"
        return [Sign(Kind.GPU, gpu.uuid, "fabric", (Step(State.DRAINING),), reason, where, action)]
    if gpu.fabric_state == "completed" and gpu.fabric_status:
        reason = f"the NVLink fabric failed: {gpu.fabric_status}"
        return [Sign(Kind.GPU, gpu.uuid, "fabric failed", (Step(State.FAILED),), reason, where, action)]
    if gpu.fabric_health:
        reason = f"the NVLink fabric is degraded: {gpu.fabric_health}"
        return [Sign(Kind.GPU, gpu.uuid, "fabric health", (Step(State.DEGRADED),), reason, where, action)]
    return []
