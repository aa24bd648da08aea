"""A GPU that cannot be read: fallen off the bus, an error or a hang of NVML, on one GPU or as a whole, and a GPU in MIG mode, of which
only instances could be granted.

What proves that nothing can run there fails at once. What only proves that nothing can be seen (a hang, an unknown error) drains at
once, and fails when it lasts: a driver that is busy must not cost a job.
"""

from __future__ import annotations

from fmagent.health.findings import Finding, Kind, State
from fmagent.health.hold import Memory, Sign, Step, findings_of, settle
from fmagent.health.readings import GpuReading, Readings
from fmagent.health.rules import LostRules, Rules

CONCERN = "lost"
MIG = "MIG mode is on; only whole GPUs are granted"

# The driver has no such GPU any more, by what NVML or presence.py says.
_GONE = ("GPU_IS_LOST", "missing:")
# No work of before or after runs on it.
_DEAD = (*_GONE, "RESET_REQUIRED", "DRIVER_NOT_LOADED", "MIG mode")
# Running programs have their own library and go on; new ones cannot start.
_NEW_WORK_ONLY = ("LIB_RM_VERSION_MISMATCH", "LIBRARY_NOT_FOUND")


def gone(error: str) -> bool:
    return any(word in error for word in _GONE)


def look(past: Memory, readings: Readings, rules: Rules, now_s: float) -> tuple[Memory, tuple[Finding, ...]]:
    if not rules.lost.enabled:
        return Memory(), ()
    signs = []
    for gpu in readings.gpus:
        error = readings.nvml_error or gpu.error or (MIG if gpu.mig_enabled else "")
        if error:
            signs.append(_sign(gpu, error, rules.lost))
    held = settle(past.held, signs, now_s, {gpu.uuid for gpu in readings.gpus})
    return Memory(held), findings_of(CONCERN, held)


def _sign(gpu: GpuReading, error: str, rules: LostRules) -> Sign:
    steps: tuple[Step, ...] = (Step(State.DRAINING), Step(State.FAILED, rules.failed_after_s))
    key, action = "unreadable", "look at the driver (dmesg); reset the GPU, or reboot"
    if any(word in error for word in _DEAD):
        steps, key, action = (Step(State.FAILED),), "dead", "reset the GPU or reboot the node; if it stays, RMA"
    elif any(word in error for word in _NEW_WORK_ONLY):
        steps, key, action = (
            (Step(State.DRAINING),),
            "driver",
            "reload the driver or reboot: library and kernel module differ",
        )
    if "MIG mode" in error:
        action = "turn MIG off (nvidia-smi -mig 0) to have the whole GPU granted"
    elif "DRIVER_NOT_LOADED" in error:
        action = "load the driver (nvidia-smi, modprobe nvidia)"
    # The words are the error's own: NVML's name of it is what an operator searches for.
    return Sign(Kind.GPU, gpu.uuid, key, steps, error, "", action, rules.clear_s)
