"""Tools that hang in a driver. Killed there, they do not end before the driver lets them, and a next one would hang beside them: none is
started until the last one has ended."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal

# A killed tool that is not in a driver ends within so long, seconds.
END_S = 1.0


class Killed:
    """The last child that was killed."""

    def __init__(self) -> None:
        self._last: asyncio.subprocess.Process | None = None

    def left(self) -> str:
        """Says of a killed child that it has not ended yet; empty where none is left."""
        if self._last is None or self._last.returncode is not None:
            return ""
        return f"process {self._last.pid} was killed and does not end"

    async def end(self, child: asyncio.subprocess.Process) -> None:
        """Call it only while none is left."""
        self._last = child
        with contextlib.suppress(ProcessLookupError):
            self.kill(child)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(child.wait(), END_S)

    def kill(self, child: asyncio.subprocess.Process) -> None:
        """With all that it started, where it leads a process group of its own. Raises ProcessLookupError."""
        if child.returncode is None and os.getpgid(child.pid) == child.pid:
            os.killpg(child.pid, signal.SIGKILL)
        else:
            child.kill()
