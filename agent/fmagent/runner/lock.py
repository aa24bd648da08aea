"""One agent per state directory: two would both supervise its runs."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def hold_state_dir(state_dir: Path) -> Iterator[None]:
    """Makes it where it is missing. Raises OSError where another agent holds it; the kernel frees it with the process."""
    state_dir.mkdir(parents=True, exist_ok=True, mode=0o755)
    descriptor = os.open(state_dir / "agent.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OSError(f"{state_dir}: another agent runs with this state directory") from None
        yield
    finally:
        os.close(descriptor)
