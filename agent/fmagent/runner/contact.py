"""The file that says when the store last answered. Supervisors read it, and fence themselves by it when the agent is dead too."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from fmagent.runner import files
from fmagent.runner.procfs import boot_time_s

# Written at most so often, seconds: the fence is counted in tens of seconds.
WRITE_EVERY_S = 0.5
_FORMAT = "{:020.3f}\n"  # of one width, and overwritten in place: a full disk must not stop it

# O_NONBLOCK: a FIFO in its place is an error, and no wait.
_WRITE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW


class ContactFile:
    def __init__(self, path: Path) -> None:
        self.path = path
        self._written_s = float("-inf")
        self._pending_s: float | None = None

    def age_s(self) -> float | None:
        """Since the last contact; None where none is recorded for this boot."""
        try:
            age_s = boot_time_s() - float(files.read_regular(str(self.path)))
        except (OSError, ValueError):
            return None
        return age_s if age_s >= 0 else None

    def write(self, age_s: float) -> None:
        stamp_s = boot_time_s() - age_s
        if stamp_s - self._written_s < WRITE_EVERY_S:
            return
        with contextlib.suppress(OSError):  # an unwritten contact fences, which is safe
            descriptor = os.open(self.path, _WRITE_FLAGS, 0o644)
            try:
                os.pwrite(descriptor, _FORMAT.format(stamp_s).encode("ascii"), 0)
                self._written_s = stamp_s
            finally:
                os.close(descriptor)

    def ensure(self) -> None:
        """A first supervisor must find a stamp. An order that is being obeyed is itself a contact."""
        if self.age_s() is None:
            self.write(0.0)
