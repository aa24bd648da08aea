"""Finding and ending processes by the run id in their environment: what no supervisor is left to end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from functools import cache
from pathlib import Path

from fmagent.runner import procfs

VARIABLE = b"FMSCHED_RUN="

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


def _living() -> list[int]:
    return [proc.pid for proc in procfs.all_processes() if proc.state not in "ZX"]


def marked(prefix: str, suffix: str) -> frozenset[str]:
    """The ids of runs that have a living process, of those with this prefix and suffix."""
    found = {run_of(pid) for pid in _living()}
    return frozenset(name for name in found if name.startswith(prefix) and name.endswith(suffix))


async def kill_marked(run_id: str) -> frozenset[int]:
    """SIGKILL until no process of the run is left; the pids that remain."""
    left: frozenset[int] = frozenset()
    for _ in range(KILL_ROUNDS_MAX):
        left = frozenset(pid for pid in _living() if run_of(pid) == run_id and pid != os.getpid())
        if not left:
            return left
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        await asyncio.sleep(KILL_ROUND_S)
    return left
