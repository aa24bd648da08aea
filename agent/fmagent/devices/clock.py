"""How far this clock is off: by the kernel's time discipline (adjtimex, which needs no privilege to read), and where chrony steers the
clock, which keeps its offset to itself, by `chronyc tracking`."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass

# linux/timex.h
_STA_PLL, _STA_FLL, _STA_UNSYNC, _STA_NANO = 0x0001, 0x0008, 0x0040, 0x2000
_TIME_ERROR = 5

CHRONY_PERIOD_S = 30.0
CHRONY_TIMEOUT_S = 1.0


class Timex(ctypes.Structure):
    """struct timex of glibc's sys/timex.h on 64-bit Linux."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("constant", ctypes.c_long),
        ("precision", ctypes.c_long),
        ("tolerance", ctypes.c_long),
        ("time_s", ctypes.c_long),
        ("time_us", ctypes.c_long),
        ("tick", ctypes.c_long),
        ("ppsfreq", ctypes.c_long),
        ("jitter", ctypes.c_long),
        ("shift", ctypes.c_int),
        ("stabil", ctypes.c_long),
        ("jitcnt", ctypes.c_long),
        ("calcnt", ctypes.c_long),
        ("errcnt", ctypes.c_long),
        ("stbcnt", ctypes.c_long),
        ("tai", ctypes.c_int),
        ("padding", ctypes.c_int * 11),
    )


@dataclass(frozen=True, slots=True)
class Clock:
    """None: the kernel does not say (a sandbox forbids the call), or, of the offset, nobody has told it."""

    offset_s: float | None = None
    synchronised: bool | None = None


class ClockReader:
    """`chronyc` is what is run; empty: never."""

    def __init__(self, chronyc: Sequence[str] = ("chronyc",)) -> None:
        self._chronyc = tuple(chronyc)
        self._asked_at_s = float("-inf")
        self._told: float | None = None

    def read(self) -> Clock:
        """As it is now; chrony's word at most CHRONY_PERIOD_S old. Blocks for CHRONY_TIMEOUT_S at most."""
        told = kernel_clock()
        if told.offset_s is not None or not told.synchronised or not self._chronyc:
            return told
        if time.monotonic() >= self._asked_at_s + CHRONY_PERIOD_S:
            self._asked_at_s = time.monotonic()
            self._told = self._ask()
        return Clock(self._told, told.synchronised)

    def _ask(self) -> float | None:
        try:
            said = subprocess.run(
                [*self._chronyc, "-n", "-c", "tracking"],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=CHRONY_TIMEOUT_S,
                check=False,
            )
        except (OSError, ValueError, subprocess.SubprocessError):
            return None
        return chrony_offset_s(said.stdout[:4_096].decode("utf-8", errors="replace"))


def chrony_offset_s(tracking: str) -> float | None:
    """ "System time" of `chronyc -c tracking`, seconds: fourteen fields, that one the fifth, the last one "Normal" or of a leap second.
    None where chrony does not follow any source. Pure."""
    fields = tracking.strip().split(",")
    if len(fields) != 14 or fields[13] == "Not synchronised" or not re.fullmatch(r"-?\d{1,12}(?:\.\d{1,12})?", fields[4]):
        return None
    return float(fields[4])


def kernel_clock() -> Clock:
    """As the kernel has it."""
    answer = Timex()
    try:
        state = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(answer))
    except (OSError, AttributeError):
        return Clock()
    return clock_of(state, answer.status, answer.offset)


def clock_of(state: int, status: int, offset: int) -> Clock:
    """From what adjtimex returns, its `status` and its `offset` (nanoseconds with STA_NANO, else microseconds). Without a
    phase or frequency loop of the kernel's nobody has told it an offset, and 0 means nothing."""
    if state < 0:
        return Clock()
    synchronised = state != _TIME_ERROR and not status & _STA_UNSYNC
    offset_s = offset / (1e9 if status & _STA_NANO else 1e6)
    return Clock(offset_s if offset or (synchronised and status & (_STA_PLL | _STA_FLL)) else None, synchronised)


def supported() -> bool:
    """Whether the structure above is this machine's."""
    return os.name == "posix" and ctypes.sizeof(ctypes.c_long) == 8
