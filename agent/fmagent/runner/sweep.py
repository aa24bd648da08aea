"""Finding and ending processes by the run id in their environment: what no supervisor is left to end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Collection
from functools import cache
from pathlib import Path

from fmagent.runner import procfs

VARIABLE = b"FMSCHED_RUN="
# In the command line of every supervisor.
SUPERVISOR = b"fmagent.runner.shim"

# Rounds of SIGKILL, and the pause between them in seconds, before a process counts as one that does not die (for now: its run is
# looked at again every second).
KILL_ROUNDS_MAX = 25
KILL_ROUND_S = 0.02


@cache
def boot_id() -> str:
    """Changes with every boot: a record of another boot speaks of processes that are gone."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def run_of(pid: int) -> str:
    """The run id in a process's environment; empty where it has none, is gone, or is not ours to read."""
    try:
        content = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return ""
    for variable in content.split(b"\0"):
        if variable.startswith(VARIABLE):
            return variable[len(VARIABLE) :].decode("utf-8", errors="replace")
    return ""


def supervisor_of(folder: Path) -> int:
    """The pid of the living supervisor that was started for this run's folder, by its command line, for a job can change what files
    say; 0 where there is none."""
    found = {}
    for proc in _living_procs():
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{proc.pid}/cmdline").read_bytes().split(b"\0")
            if os.fsencode(folder) in words and any(SUPERVISOR in word for word in words):
                found[proc.pid] = proc.parent
    # Its children have its command line until they execute.
    return next((pid for pid, parent in found.items() if parent not in found), 0)


def _living_procs() -> list[procfs.Proc]:
    return [proc for proc in procfs.all_processes() if proc.state not in "ZX"]


def _living() -> list[int]:
    return [proc.pid for proc in _living_procs()]


def _of_run(run_id: str, known: set[tuple[int, int]]) -> list[procfs.Proc]:
    """Its living processes: the marked, the `known` that are still the same, and their children, which are added to `known`."""
    living = _living_procs()
    starts = {proc.pid: proc.start_ticks for proc in living}
    for proc in living:
        if (proc.parent, starts.get(proc.parent)) in known:
            known.add((proc.pid, proc.start_ticks))
    found = [proc for proc in living if (proc.pid, proc.start_ticks) in known or run_of(proc.pid) == run_id]
    return [proc for proc in found if proc.pid not in {1, os.getpid()}]


def marked(prefix: str, suffix: str) -> frozenset[str]:
    """The ids of runs that have a living process, of those with this prefix and suffix."""
    found = {run_of(pid) for pid in _living()}
    return frozenset(name for name in found if name.startswith(prefix) and name.endswith(suffix))


async def kill_marked(run_id: str, recorded: Collection[tuple[int, int]] = ()) -> frozenset[int]:
    """SIGKILL until no process of the run is left; the pids that remain. `recorded`: (pid, start in clock ticks since boot) of those
    that may not carry its mark, and what they have begun since."""
    left: frozenset[int] = frozenset()
    known = {one for one in recorded if one[0] not in {1, os.getpid()}}  # a job can change the record
    for _ in range(KILL_ROUNDS_MAX):
        left = frozenset(proc.pid for proc in _of_run(run_id, known))
        if not left:
            return left
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        await asyncio.sleep(KILL_ROUND_S)
    return left
