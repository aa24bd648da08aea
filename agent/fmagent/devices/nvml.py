"""NVML as the agent sees it: asks a process of its own (nvml_child.py) under a time limit. What that process has told before it hangs, dies
or talks nonsense stands; only what is missing is at fault.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from fmagent.devices.killed import Killed
from fmagent.devices.nvml_reading import GpuReading, Reading, reading_of
from fmagent.devices.port import HoldersUnknown

__all__ = ["GpuReading", "NvmlReader", "Reading"]

# A child whose reading had a fault is replaced after so long, seconds: NVML sees a reset GPU or a reloaded driver only from
# its start on. Sooner would be a storm of initialisations on a sick node.
RENEW_S = 60.0
# The child ends its answer by itself at the time limit. So much more, seconds, for its start and for the pairs of GPUs.
GRACE_S = 6.0
# A child that is to be replaced says so fast, seconds, what Xids it has.
LAST_WORDS_S = 1.0
ANSWER_BYTES_MAX = 4 * 1024 * 1024
# Answers to one request: one of the machine, one of each GPU, the end; a child that prints more has gone mad.
LINES_MAX = 512

CHILD = (sys.executable, "-m", "fmagent.devices.nvml_child")
HUNG = "NVML hung"


@dataclass
class _Answer:
    """`broken`: why it has no end."""

    machine: dict[str, Any] = field(default_factory=dict)
    gpus: dict[int, dict[str, Any]] = field(default_factory=dict)
    end: dict[str, Any] = field(default_factory=dict)
    broken: str = ""

    @property
    def error(self) -> str:
        """Why NVML as a whole says nothing."""
        return self.end.get("error", "") or ("" if self.machine else self.broken)

    def reading(self) -> Reading:
        if self.error:
            return Reading(error=self.error)
        # Those that had not answered when the child broke off.
        missing = [index for index in range(int(self.machine["count"])) if index not in self.gpus]
        found = [*self.gpus.values(), *({"index": index, "error": self.broken or "no answer"} for index in missing)]
        problems = [*self.end.get("problems", ()), *([self.broken] if self.broken else [])]
        return reading_of(str(self.machine["driver"]), found, self.end.get("pairs", ()), self.end.get("xids", ()), problems)


class NvmlReader:
    """`timeout_s`: of one reading. `command`: what is run as the reader process."""

    def __init__(self, timeout_s: float, command: Sequence[str] = CHILD) -> None:
        self._timeout_s = timeout_s
        self._command = tuple(command)
        self.killed = Killed()
        self._child: asyncio.subprocess.Process | None = None
        self._turn = asyncio.Lock()
        self._renew_at_s = float("inf")
        self._trial: asyncio.Task[tuple[asyncio.subprocess.Process, Reading] | None] | None = None
        self._last_words: list[dict[str, Any]] = []

    async def read(self) -> Reading:
        """Never raises; what fails is in the reading. A GPU that hangs takes the time limit once, and none until it comes back."""
        answer = await self._ask({"op": "read"})
        if self._last_words and answer.end:
            answer.end["xids"] = [*self._last_words, *answer.end.get("xids", ())]
            self._last_words = []
        try:
            reading = answer.reading()
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            await self._end_child()
            reading = Reading(error=f"NVML reader failed: its answer makes no sense: {type(error).__name__}: {error}")
        await self._renew(reading)
        return reading

    async def holders(self, uuids: Sequence[str]) -> dict[str, tuple[int, ...]]:
        """Satisfies devices.port.Devices.holders."""
        answer = await self._ask({"op": "holders", "uuids": list(uuids)})
        holders = {uuid: tuple(pids) for uuid, pids in answer.end.get("holders", {}).items()}
        for uuid in uuids:
            if uuid not in holders:
                error = answer.end.get("errors", {}).get(uuid) or answer.error or answer.broken or "no answer"
                raise HoldersUnknown(f"GPU {uuid}: whether a process uses it cannot be read: {error}")
        return holders

    async def close(self) -> None:
        trial, self._trial = self._trial, None
        if trial is not None:
            trial.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await trial
        await self._end_child()

    async def _end_child(self) -> None:
        child, self._child = self._child, None
        self._renew_at_s = float("inf")
        if child is not None:
            await self._end(child)

    async def _end(self, child: asyncio.subprocess.Process) -> None:
        if child.returncode is not None:
            return
        if self.killed.left():
            # One that does not end is known of already; this one is killed all the same.
            with contextlib.suppress(ProcessLookupError):
                child.kill()
        else:
            await self.killed.end(child)

    async def _ask(self, request: dict[str, Any]) -> _Answer:
        answer = _Answer()
        async with self._turn:
            try:
                if self._child is None or self._child.returncode is not None:
                    left = self.killed.left()
                    if left:
                        answer.broken = f"{HUNG}: {left}"
                        return answer
                    self._child = await self._start()
                await self._exchange(self._child, request, answer)
                if answer.broken or answer.end.get("hung"):
                    await self._end_child()
            except OSError as error:
                await self._end_child()
                answer.broken = f"NVML reader failed: {error}"
            except BaseException:
                # Cancelled half way: what it still says would be taken for the answer to the next request.
                child, self._child = self._child, None
                if child is not None and child.returncode is None:
                    child.kill()
                raise
        return answer

    async def _start(self) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *self._command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=ANSWER_BYTES_MAX
        )

    async def _exchange(
        self, child: asyncio.subprocess.Process, request: dict[str, Any], answer: _Answer, wait_s: float | None = None
    ) -> None:
        """Fills `answer`. Raises OSError."""
        try:
            async with asyncio.timeout(self._timeout_s + GRACE_S if wait_s is None else wait_s):
                assert child.stdin is not None
                child.stdin.write(json.dumps({**request, "limit_s": self._timeout_s}).encode() + b"\n")
                await child.stdin.drain()
                for _ in range(LINES_MAX):
                    if await self._line(child, answer):
                        return
                answer.broken = "NVML reader failed: it does not end its answer"
        except TimeoutError:
            answer.broken = f"{HUNG}: no answer in {self._timeout_s:g} s"
        except (ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
            answer.broken = f"NVML reader failed: {error}"

    async def _line(self, child: asyncio.subprocess.Process, answer: _Answer) -> bool:
        """Takes one line in. True: it was the last. Raises ValueError and others where it is none of the child's."""
        assert child.stdout is not None
        line = await child.stdout.readline()
        if not line:
            code = await child.wait()
            raise ValueError(f"it ended without an answer ({f'signal {-code}' if code < 0 else f'exit code {code}'})")
        try:
            said = json.loads(line)
        except (ValueError, RecursionError):
            said = None
        if not isinstance(said, dict):
            raise ValueError(f"it printed {line[:60]!r}")  # noqa: TRY004
        if "machine" in said:
            count = int(said["machine"]["count"])
            answer.machine = {"driver": str(said["machine"]["driver"]), "count": max(0, min(count, LINES_MAX))}
        elif "gpu" in said:
            index = int(said["gpu"]["index"])
            if not 0 <= index < answer.machine.get("count", 0):
                raise ValueError(f"it tells of a GPU {index} that there is not")
            answer.gpus[index] = {**said["gpu"], "index": index}
        elif "end" in said:
            answer.end = dict(said["end"])
            if not answer.error and not answer.machine and "pairs" in answer.end:
                raise ValueError("it says nothing of the machine")
            return True
        else:
            raise ValueError(f"it printed {line[:60]!r}")
        return False

    async def _renew(self, reading: Reading) -> None:
        """Replaces the child when its faults have lasted, by one that sees more. It reads beside the old one first: it may hang as a whole
        where the old one still tells of the healthy GPUs."""
        now_s = asyncio.get_running_loop().time()
        if self._trial is not None and self._trial.done():
            await self._judge(reading)
        if not (reading.error or any(gpu.error for gpu in reading.gpus)):
            self._renew_at_s = float("inf")
        elif self._renew_at_s == float("inf"):
            self._renew_at_s = now_s + RENEW_S
        elif now_s >= self._renew_at_s:
            if reading.error:
                await self._end_child()
            elif self._trial is None and not self.killed.left():
                self._renew_at_s = now_s + RENEW_S
                self._trial = asyncio.create_task(self._try())

    async def _try(self) -> tuple[asyncio.subprocess.Process, Reading] | None:
        """A second child and what it reads; None where that is nothing."""
        child: asyncio.subprocess.Process | None = None
        answer = _Answer()
        try:
            child = await self._start()
            await self._exchange(child, {"op": "read"}, answer)
            reading = answer.reading()
            if not answer.broken and not reading.error:
                return child, reading
        except (OSError, KeyError, TypeError, ValueError, AttributeError):
            pass
        except asyncio.CancelledError:
            if child is not None and child.returncode is None:
                child.kill()
            raise
        if child is not None:
            await self._end(child)
        return None

    async def _judge(self, reading: Reading) -> None:
        assert self._trial is not None
        result, self._trial = self._trial.result(), None
        if result is None:
            return
        child, trial = result
        well = {gpu.gpu.uuid for gpu in reading.gpus if not gpu.error}
        seen = {gpu.gpu.uuid for gpu in trial.gpus if not gpu.error}
        faults = sum(1 for gpu in trial.gpus if gpu.error)
        if not reading.error and not (well <= seen and faults < len(reading.gpus) - len(well)):
            await self._end(child)
            return
        async with self._turn:
            old, self._child = self._child, child
            self._renew_at_s = float("inf")
            if old is None or old.returncode is not None:
                return
            # What both have seen since the new one began is the old one's to tell.
            words = _Answer()
            with contextlib.suppress(OSError):
                await self._exchange(child, {"op": "xids"}, _Answer(), LAST_WORDS_S)
                await self._exchange(old, {"op": "xids"}, words, LAST_WORDS_S)
            self._last_words = list(words.end.get("xids", ()))
            await self._end(old)
