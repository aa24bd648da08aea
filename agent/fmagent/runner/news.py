"""Wake-ups for the agent: datagrams of supervisors, and their ends (pidfds). Only a hint: what happened is read from the files."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from pathlib import Path

# One datagram holds a run id; what is read is thrown away.
DATAGRAM_BYTES_MAX = 4096


class News:
    def __init__(self, path: Path) -> None:
        self.path = path
        self._event = asyncio.Event()
        self._socket: socket.socket | None = None
        self._descriptors: set[int] = set()

    def open(self) -> None:
        receiver = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        # A socket's path holds at most 107 bytes; one through a directory's descriptor is always short.
        folder = os.open(self.path.parent, os.O_PATH | os.O_CLOEXEC)
        try:
            self.path.unlink(missing_ok=True)
            receiver.bind(f"/proc/self/fd/{folder}/{self.path.name}")
        finally:
            os.close(folder)
        self._socket = receiver
        asyncio.get_running_loop().add_reader(receiver, self._receive)

    def _receive(self) -> None:
        assert self._socket is not None
        with contextlib.suppress(BlockingIOError):
            while self._socket.recv(DATAGRAM_BYTES_MAX):  # ends: it raises once nothing waits
                self._event.set()

    def wake(self) -> None:
        self._event.set()

    async def wait(self, timeout_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._event.wait(), timeout_s)
        self._event.clear()

    def owns(self, descriptor: int) -> None:
        """A pidfd with a reader, to be closed with this object."""
        self._descriptors.add(descriptor)

    def disowns(self, descriptor: int) -> None:
        asyncio.get_running_loop().remove_reader(descriptor)
        self._descriptors.discard(descriptor)
        os.close(descriptor)

    def close(self) -> None:
        for descriptor in list(self._descriptors):
            self.disowns(descriptor)
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
            self._socket = None
