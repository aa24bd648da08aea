"""Xids from the kernel log, as a second source beside NVML's events: it tells of GPUs that NVML cannot see any more, and in words. Read
from now on, never blocking. A log that is absent or may not be read is no fault: NVML still tells.

/dev/kmsg gives a record a read, "PRIORITY,SEQUENCE,TIME,FLAGS;TEXT" with lines " KEY=VALUE" after it (linux/Documentation/ABI/testing/
dev-kmsg). A program that writes there cannot pretend to be the kernel: its facility is never 0.
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

from fmagent.health.readings import XidEvent

PATH = Path("/dev/kmsg")
# Of one look: 10,000 records a second for longer than a look lasts, a tenth of a second of work. A longer storm is read on at the next.
READS_MAX = 1 << 17
READ_BYTES = 16 * 1024  # more than any record
LINE_MAX = 4096
EVENTS_MAX = 1000
KERNEL = 0  # the facility of the kernel's own messages

_RECORD = re.compile(r"(\d{1,10}),\d{1,20},\d{1,20},[^;]{0,64};")
# After "NVRM: Xid": (PCI:0000:9b:00): 119, pid=… or the older (0000:03:00): 14, … or of a MIG instance (PCI:0000:41:00 GPU-I:05): 31, …
_XID = re.compile(
    r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2})[^()]{0,32}\): (\d{1,6})(?:, ?(.*))?"
)
_MARK = b"NVRM: Xid"  # what most lines of a storm have not, and need no closer look for
_ADDRESS = re.compile(r"([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}):([0-9a-fA-F]{2})")


def xid_of(line: str, now_s: float) -> XidEvent | None:
    """The Xid that a line tells of, if it does: a record of /dev/kmsg, or a line as dmesg and syslog print it. Pure."""
    line = line[:LINE_MAX]
    record = _RECORD.match(line)
    if (record and int(record[1]) >> 3 != KERNEL) or line.startswith(" "):
        return None
    found = _XID.search(line)
    if found is None:
        return None
    return XidEvent(at_s=now_s, code=int(found[2]), pci=found[1].lower(), source="kernel", text=found[3] or "")


def place(address: str) -> tuple[int, int, int] | None:
    """Domain, bus and device of a PCI address, which NVML ("00000000:9B:00.0") and the kernel ("0000:9b:00") write in two ways."""
    found = _ADDRESS.match(address)
    return (int(found[1], 16), int(found[2], 16), int(found[3], 16)) if found else None


class KernelLog:
    """`path` None: there is none to read. `fault`: why it cannot be read, or empty."""

    def __init__(self, path: Path | None = PATH) -> None:
        self.fault = ""
        self._descriptor: int | None = None
        self._rest = b""
        if path is None:
            return
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            self.fault = f"{path}: {error.strerror}"
            return
        with contextlib.suppress(OSError):  # a pipe has no end to go to
            os.lseek(self._descriptor, 0, os.SEEK_END)

    def read(self, now_s: float) -> tuple[XidEvent, ...]:
        """What was logged since the last time. Never blocks, never raises."""
        events: list[XidEvent] = []
        for _ in range(READS_MAX):
            content = self._next()
            if content is None:
                break
            # A record comes whole, with a line end; a plain file may be read in the middle of a line.
            *lines, rest = (self._rest + content).split(b"\n")
            self._rest = rest[-LINE_MAX:]
            if _MARK not in content and not any(_MARK in line for line in lines[:1]):
                continue
            events += [event for line in lines if (event := xid_of(line.decode("utf-8", errors="replace"), now_s))]
            if len(events) >= EVENTS_MAX:
                break
        return tuple(events[:EVENTS_MAX])

    def _next(self) -> bytes | None:
        """None: nothing more now."""
        if self._descriptor is None:
            return None
        try:
            return os.read(self._descriptor, READ_BYTES) or None
        except BlockingIOError:
            return None
        except BrokenPipeError:
            return b""  # records were overwritten before they were read; the next read goes on after them
        except OSError as error:
            self.fault = str(error)
            self.close()
            return None

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
