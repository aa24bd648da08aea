"""Children of a supervisor that do what may hang (a file system that is gone), so that the supervisor itself never does, and report
over a pipe that it reads without waiting. Only the standard library: supervisors use it.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import signal
from collections.abc import Callable
from typing import Any

from fmagent.runner.procfs import boot_time_s

PR_SET_PDEATHSIG = 1
# Characters of a report's reason: what is said of a rank stays under PIPE_BUF (4096 bytes, six per character in JSON), so that reports
# of several children do not mix.
REASON_CHARS_MAX = 500
READ_BYTES = 65536

Report = dict[str, Any]


class Forked:
    """Some children, and the pipe that each of them reports through. That it can be read is told by SIGIO, which must be blocked; it
    ends (`ended`) when every child has executed or exited. `close()` when it is no longer of interest."""

    def __init__(self, limit_s: float) -> None:
        self.deadline_s = boot_time_s() + limit_s
        self.pids: list[int] = []
        self.reported: set[int] = set()  # numbers of the children that are ready
        self.ended = False
        self.died = False  # one of them has exited, with or without a report, before the gate was opened
        self.let_go = False  # the gate was opened
        self._parent = os.getpid()
        self._read, self._write = os.pipe()
        self._gate_read, self._gate_write = os.pipe()
        self._buffer = b""
        os.set_blocking(self._read, False)
        fcntl.fcntl(self._read, fcntl.F_SETOWN, self._parent)
        fcntl.fcntl(self._read, fcntl.F_SETFL, fcntl.fcntl(self._read, fcntl.F_GETFL) | os.O_ASYNC)

    def fork(self, work: Callable[[], None], libc: ctypes.CDLL) -> None:
        """`work` runs in a child, which ends with it. Raises OSError."""
        pid = os.fork()
        if pid:
            self.pids.append(pid)
            return
        try:
            libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
            if os.getppid() == self._parent:
                # The gate ends, for those who wait at it, with the supervisor: no child may hold its other end.
                os.close(self._gate_write)
                work()
        finally:
            os._exit(127)

    def all_forked(self) -> None:
        """No more children: from here on the pipe can end."""
        os.close(self._write)
        os.close(self._gate_read)
        self._write = self._gate_read = -1

    # --- in a child ----------------------------------------------------------------------------------------------------

    def tell(self, report: Report) -> None:
        if "reason" in report:
            report["reason"] = report["reason"][:REASON_CHARS_MAX]
        os.write(self._write, json.dumps(report).encode() + b"\n")

    def wait_at_gate(self) -> None:
        if not os.read(self._gate_read, 1):
            os._exit(128 + signal.SIGKILL)

    # --- in the supervisor ---------------------------------------------------------------------------------------------

    def open_gate(self) -> None:
        """One byte for each child; a pipe takes as many as a node has ranks without waiting."""
        self.let_go = True
        os.write(self._gate_write, b"g" * len(self.pids))

    def reports(self) -> list[Report]:
        """What came in since the last call."""
        while not self.ended:  # ends: at the end of the pipe, or when nothing more is in it
            try:
                piece = os.read(self._read, READ_BYTES)
            except BlockingIOError:
                break
            self.ended = not piece
            self._buffer += piece
        *lines, self._buffer = self._buffer.split(b"\n")
        return [json.loads(line) for line in lines]

    def close(self) -> None:
        for descriptor in (self._read, self._write, self._gate_read, self._gate_write):
            if descriptor >= 0:
                os.close(descriptor)
        self._read = self._write = self._gate_read = self._gate_write = -1
