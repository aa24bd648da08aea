"""Processes as /proc shows them. Only the standard library: supervisors use it."""

from __future__ import annotations

import os
import time
from typing import NamedTuple

# pathlib would lengthen a supervisor's start by a third:
# ruff: noqa: PTH123, PTH208


class Proc(NamedTuple):
    pid: int
    parent: int
    state: str
    start_ticks: int


def read_proc(pid: int) -> Proc | None:
    """None where there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
    except OSError:
        return None
    # The command, in parentheses, may hold blanks and parentheses itself: fields count from the last one.
    fields = text[text.rindex(b")") + 2 :].split()
    return Proc(pid, int(fields[1]), fields[0].decode(), int(fields[19]))


def all_processes() -> list[Proc]:
    found = (read_proc(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return [proc for proc in found if proc is not None]


def living_descendants(root: int) -> list[Proc]:
    """Every descendant of `root` but the dead that wait to be reaped."""
    children: dict[int, list[Proc]] = {}
    for proc in all_processes():
        children.setdefault(proc.parent, []).append(proc)
    found: list[Proc] = []
    queue = [root]
    while queue:
        for proc in children.get(queue.pop(), ()):
            queue.append(proc.pid)
            if proc.state not in "ZX":
                found.append(proc)
    return found


def boot_time_s() -> float:
    """Seconds since boot, suspended time included: comparable between processes, never set back."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
