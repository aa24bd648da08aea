"""Reads NVML in a process of its own, `python -m fmagent.devices.nvml_child`: a driver that hangs then hangs this process, not the agent.
One JSON request per line on stdin; ends at end of input. The answer is JSON lines on stdout:

    {"machine": {"driver": "570.1", "count": 8}}    when NVML is up
    {"gpu": {...}}                                  of each GPU as soon as it is read, in no order (nvml_gpu.py)
    {"end": {"error", "hung", ...}}                 the last; `error`: NVML as a whole says nothing; `hung`: because a call hangs

Each GPU has a thread of its own: one that fails or hangs hides no other. When the request's time limit (`limit_s`) ends, those that have
not answered are told with what they said so far and the call that they hang in.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any, TextIO

import pynvml

from fmagent.devices.nvml_call import Answer, Ask, Worker, together
from fmagent.devices.nvml_events import XidWatch
from fmagent.devices.nvml_gpu import holders_of, read_gpu, read_pair, text_of

# Pairs of GPUs are asked for last, so long at least, seconds: a GPU that hangs has used up the limit itself.
PAIRS_S = 1.0
# NVML starts to record the Xids of new GPUs within so long, seconds.
WATCH_S = 1.0
# More GPUs than any node has; a driver that claims more talks nonsense.
GPUS_MAX = 256


class Machine:
    def __init__(self, tell: Callable[[Answer], None]) -> None:
        self._tell = tell
        self._system = Worker("system")
        self._up = False
        self._driver = ""
        self._workers: list[Worker] = []
        self._pairs_worker = Worker("pairs")
        self._handles: dict[int, Any] = {}
        self._uuids: dict[int, str] = {}
        self._pairs: dict[tuple[str, str], Answer] = {}
        self._xids = XidWatch()

    def read(self, limit_s: float) -> None:
        deadline_s = time.monotonic() + limit_s
        count = self._begin(deadline_s, limit_s)
        if count is None:
            return
        self._tell({"machine": {"driver": self._driver, "count": count}})
        fresh = 0
        well: dict[int, str] = {}
        work = [(self._worker(index), self._reading(index)) for index in range(count)]
        for worker, found, call in together(work, deadline_s):
            index = self._workers.index(worker)
            answer = {"index": index, **found}
            if call:
                # Its thread may come back while this is told.
                answer |= {"error": hung(call, limit_s), "state": dict(found.get("state", {}))}
            elif not answer.get("error"):
                well[index] = answer.get("uuid", "")
                fresh += self._xids.watch(well[index], answer.get("pci", ""), self._handles[index])
            self._tell({"gpu": answer})
        self._xids.settle(fresh, WATCH_S)
        problems = self._read_pairs(well, max(deadline_s, time.monotonic() + PAIRS_S), limit_s)
        if self._xids.problem:
            problems.append(self._xids.problem)
        index_of = {uuid: index for index, uuid in well.items()}
        pairs = [
            {"a": index_of[a], "b": index_of[b], **pair}
            for (a, b), pair in list(self._pairs.items())  # a pair that hung may come back just now
            if a in index_of and b in index_of
        ]
        self._tell({"end": {"error": "", "pairs": pairs, "xids": self._xids.take(), "problems": problems}})

    def holders(self, uuids: Iterable[str], limit_s: float) -> None:
        """uuid → pids with a context on it; of a GPU that cannot say, NVML's error."""
        wanted = set(uuids)
        deadline_s = time.monotonic() + limit_s
        count = self._begin(deadline_s, limit_s)
        if count is None:
            return
        holders: dict[str, list[int]] = {}
        errors: dict[str, str] = {}
        nameless: list[str] = []
        work = [(self._worker(index), holding(index, wanted)) for index in range(count)]
        for worker, found, call in together(work, deadline_s):
            # One that cannot even say who it is was known by its name before.
            uuid = found.get("uuid") or self._uuids.get(self._workers.index(worker), "")
            error = hung(call, limit_s) if call else found.get("error", "")
            if not error and "pids" in found:
                holders[uuid] = found["pids"]
            elif uuid in wanted:
                errors[uuid] = error
            elif not uuid and error:
                nameless.append(error)
        for uuid in wanted - holders.keys() - errors.keys():
            # It may be any of those that do not say who they are.
            errors[uuid] = ", ".join(nameless) or "NVML_ERROR_NOT_FOUND"
        self._tell({"end": {"error": "", "holders": holders, "errors": errors}})

    def xids(self) -> None:
        self._tell({"end": {"error": "", "xids": self._xids.take()}})

    def _begin(self, deadline_s: float, limit_s: float) -> int | None:
        """How many GPUs there are; None where NVML as a whole says nothing, which is then told."""
        for _, found, call in together([(self._system, self._start)], deadline_s):
            if call:
                self._tell({"end": {"error": f"NVML {hung(call, limit_s)}", "hung": True}})
                return None
            if "error" in found:
                self._tell({"end": {"error": found["error"]}})
                return None
            return min(int(found["count"]), GPUS_MAX)
        return None

    def _start(self, ask: Ask, found: Answer) -> None:
        if not self._up:
            ask.must("nvmlInit")
            self._up = True
        if not self._driver:
            self._driver = text_of(ask.may("nvmlSystemGetDriverVersion") or "")
        found["count"] = ask.must("nvmlDeviceGetCount")

    def _worker(self, index: int) -> Worker:
        while len(self._workers) <= index:
            self._workers.append(Worker(f"gpu-{len(self._workers)}"))
        return self._workers[index]

    def _reading(self, index: int) -> Callable[[Ask, Answer], None]:
        def work(ask: Ask, found: Answer) -> None:
            handle = read_gpu(ask, found, index)
            self._handles[index] = handle
            self._uuids[index] = found.get("uuid", "")

        return work

    def _read_pairs(self, well: dict[int, str], deadline_s: float, limit_s: float) -> list[str]:
        """Fills self._pairs, once for each pair of UUIDs: they stay while NVML is up. Returns what is wrong."""
        missing = [
            (a, b)
            for a in sorted(well)
            for b in sorted(well)
            if a < b and well[a] and well[b] and (well[a], well[b]) not in self._pairs
        ]
        if not missing:
            return []
        handles = dict(self._handles)
        at: list[tuple[int, int]] = [missing[0]]

        def work(ask: Ask, found: Answer) -> None:
            del found
            for a, b in missing:
                at[0] = (a, b)
                try:
                    self._pairs[well[a], well[b]] = read_pair(ask, handles[a], handles[b])
                except pynvml.NVMLError:  # one of the two went just now; the next reading says so
                    continue

        for _, _, call in together([(self._pairs_worker, work)], deadline_s):
            if call:
                return [f"GPU {at[0][0]} and GPU {at[0][1]}: {hung(call, limit_s)}"]
        return []


def hung(call: str, limit_s: float) -> str:
    return f"hung in {call} for {limit_s:g} s"


def holding(index: int, wanted: set[str]) -> Callable[[Ask, Answer], None]:
    def work(ask: Ask, found: Answer) -> None:
        handle = ask.must("nvmlDeviceGetHandleByIndex", index)
        found["uuid"] = text_of(ask.must("nvmlDeviceGetUUID", handle))
        if found["uuid"] in wanted:
            found["pids"] = holders_of(ask, handle)

    return work


def answers_only() -> TextIO:
    """stdout for the answers alone: what a library prints goes to stderr."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return answers


def main() -> None:
    # Ctrl-C in the agent's terminal reaches this process too; the agent ends it by closing stdin.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    out = answers_only()

    def tell(answer: Answer) -> None:
        out.write(json.dumps(answer) + "\n")
        out.flush()

    machine = Machine(tell)
    try:
        for line in sys.stdin:
            request = json.loads(line)
            if request["op"] == "holders":
                machine.holders(request["uuids"], request["limit_s"])
            elif request["op"] == "xids":
                machine.xids()
            else:
                machine.read(request["limit_s"])
    except BrokenPipeError:  # the agent is gone
        pass
    # Threads may hang in the driver; they are not waited for.
    os._exit(0)


if __name__ == "__main__":
    main()
