"""Calls into NVML that may hang: each runs in a worker thread of the reader process (ctypes lets the others run meanwhile), and says which
call it is in. A worker whose call hangs is asked nothing more until that call returns.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pynvml

Answer = dict[str, Any]

# After one of these a GPU says nothing more until it is reset (nvml.h, nvmlReturn_t).
FATAL = (pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED)

# What a device or an older driver has not: an absent fact, no fault.
ABSENT = (
    pynvml.NVML_ERROR_NOT_SUPPORTED,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
    pynvml.NVML_ERROR_DEPRECATED,
    pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
)

_NAMES = {
    getattr(pynvml, name): name for name in dir(pynvml) if name.startswith("NVML_ERROR_") and name != "NVML_ERROR_COUNT"
}


class GivenUp(Exception):
    """Nobody waits for this work any more."""


def name_of(code: int) -> str:
    """As nvml.h spells it: NVML_ERROR_GPU_IS_LOST."""
    return _NAMES.get(code, f"NVML error {code}")


def error_name(error: pynvml.NVMLError) -> str:
    return name_of(error.value)


class Ask:
    """One piece of work's way into NVML. `call` is the pynvml function that it is in now, or empty."""

    def __init__(self) -> None:
        self.call = ""
        self.given_up = False

    def must(self, name: str, *args: Any, **named: Any) -> Any:
        """What the pynvml function `name` returns. Raises NVMLError."""
        if self.given_up:
            raise GivenUp
        function = getattr(pynvml, name, None)
        if function is None:  # an older pynvml
            raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
        self.call = name
        try:
            return function(*args, **named)
        except UnicodeDecodeError:  # a broken InfoROM: pynvml decodes strictly
            raise pynvml.NVMLError(pynvml.NVML_ERROR_UNKNOWN) from None
        finally:
            self.call = ""

    def may(self, name: str, *args: Any, **named: Any) -> Any:
        """The same of what not every device or driver can say, and of what may fail by itself: None then. Raises NVMLError only where
        the GPU is gone."""
        try:
            return self.must(name, *args, **named)
        except pynvml.NVMLError as error:
            if error.value in FATAL:
                raise
            return None


class Job:
    """`found` fills while it runs, by whole values: what stands in it may be read at any time."""

    def __init__(self, worker: Worker, work: Callable[[Ask, Answer], None], finished: queue.SimpleQueue[Job]) -> None:
        self.worker = worker
        self.found: Answer = {}
        self.ask = Ask()
        self.done = False
        self._work = work
        self._finished = finished

    def run(self) -> None:
        try:
            self._work(self.ask, self.found)
        except pynvml.NVMLError as error:
            self.found["error"] = error_name(error)
        except GivenUp:
            pass
        except Exception as error:  # noqa: BLE001
            # A GPU that answers what nobody foresaw hides no other.
            self.found["error"] = f"{type(error).__name__}: {error}"
        self.done = True
        self._finished.put(self)


class Worker:
    """One thread, one job at a time."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.job: Job | None = None
        self._jobs: queue.SimpleQueue[Job] = queue.SimpleQueue()
        # A daemon: the process can end while the call hangs.
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def start(self, work: Callable[[Ask, Answer], None], finished: queue.SimpleQueue[Job]) -> Job:
        """Call it only while it is not busy."""
        self.job = Job(self, work, finished)
        self._jobs.put(self.job)
        return self.job

    @property
    def busy(self) -> bool:
        return self.job is not None and not self.job.done

    def _run(self) -> None:
        while True:
            self._jobs.get().run()


def together(
    work: Sequence[tuple[Worker, Callable[[Ask, Answer], None]]], deadline_s: float
) -> Iterator[tuple[Worker, Answer, str]]:
    """Starts all at once and yields each as it ends: (worker, what was found, ""). At the deadline (monotonic, seconds) those that have not
    ended, with what they have found so far and the call that they hang in; those that hung before at once."""
    finished: queue.SimpleQueue[Job] = queue.SimpleQueue()
    waiting: set[Job] = set()
    for worker, function in work:
        if worker.job is not None and worker.busy:
            yield worker, dict(worker.job.found), worker.job.ask.call or "its thread"
        else:
            waiting.add(worker.start(function, finished))
    while waiting:
        try:
            job = finished.get(timeout=max(0.0, deadline_s - time.monotonic()))
        except queue.Empty:
            break
        waiting.discard(job)
        yield job.worker, job.found, ""
    for job in waiting:
        job.ask.given_up = True
        yield job.worker, dict(job.found), job.ask.call or "its thread"
