"""Xid errors by NVML's event set, in a thread of the reader process. What comes is kept until it is asked for."""

from __future__ import annotations

import ctypes
import queue
import threading
import time
from collections import deque
from typing import Any

import pynvml

from fmagent.devices.nvml_call import Answer, Ask, error_name

# So long a wait for one event, milliseconds: GPUs to be watched are taken in between.
WAIT_MS = 200
# After an error of the wait itself (a GPU that is lost makes each fail at once), seconds.
PAUSE_S = 1.0
# A storm that nobody asks for does not fill the memory: the oldest go.
EVENTS_MAX = 4096


class XidWatch:
    """`problem`: why no Xid can be told, or of which GPU none can."""

    def __init__(self) -> None:
        self.problem = ""
        self._fresh: queue.SimpleQueue[tuple[str, str, Any]] = queue.SimpleQueue()
        self._asked: set[str] = set()
        self._taken = threading.Semaphore(0)
        self._known: dict[int, tuple[str, str]] = {}  # by address of the handle: UUID and PCI address
        self._events: deque[Answer] = deque(maxlen=EVENTS_MAX)
        self._thread: threading.Thread | None = None

    def watch(self, uuid: str, pci: str, handle: Any) -> bool:
        """Watches that GPU too, from soon on. False: it did already."""
        if uuid in self._asked:
            return False
        self._asked.add(uuid)
        self._fresh.put((uuid, pci, handle))
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="xid", daemon=True)
            self._thread.start()
        return True

    def settle(self, count: int, limit_s: float) -> None:
        """Waits until `count` more GPUs are watched, at most so long: what happens before that, NVML does not record."""
        deadline_s = time.monotonic() + limit_s
        for _ in range(count):
            if not self._taken.acquire(timeout=max(0.0, deadline_s - time.monotonic())):
                return

    def take(self) -> list[Answer]:
        """What came since the last time, the oldest first."""
        taken = []
        while self._events:
            taken.append(self._events.popleft())
        return taken

    def _run(self) -> None:
        ask = Ask()
        try:
            events = ask.must("nvmlEventSetCreate")
            while True:
                self._register(ask, events)
                if self._known:
                    self._wait(ask, events)
                else:
                    time.sleep(WAIT_MS / 1000)
        except pynvml.NVMLError as error:
            self.problem = f"no Xid events: {error_name(error)}"
            while True:
                self._fresh.get()
                self._taken.release()

    def _register(self, ask: Ask, events: Any) -> None:
        while True:
            try:
                uuid, pci, handle = self._fresh.get_nowait()
            except queue.Empty:
                return
            try:
                offered = ask.must("nvmlDeviceGetSupportedEventTypes", handle)
                if not offered & pynvml.nvmlEventTypeXidCriticalError:
                    raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
                ask.must("nvmlDeviceRegisterEvents", handle, pynvml.nvmlEventTypeXidCriticalError, events)
                self._known[address_of(handle)] = (uuid, pci)
            except pynvml.NVMLError as error:
                self.problem = f"no Xid events of {uuid}: {error_name(error)}"
            self._taken.release()

    def _wait(self, ask: Ask, events: Any) -> None:
        try:
            event = ask.must("nvmlEventSetWait_v2", events, WAIT_MS)
        except pynvml.NVMLError as error:
            if error.value == pynvml.NVML_ERROR_FUNCTION_NOT_FOUND:
                raise
            if error.value != pynvml.NVML_ERROR_TIMEOUT:
                time.sleep(PAUSE_S)
            return
        if event.eventType & pynvml.nvmlEventTypeXidCriticalError:
            uuid, pci = self._known.get(address_of(event.device), ("", ""))
            # CLOCK_MONOTONIC, the same in every process.
            self._events.append({"at_s": time.monotonic(), "code": event.eventData, "uuid": uuid, "pci": pci})


def address_of(handle: Any) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0
