"""The runner for bare processes: one supervisor (shim.py) per run, which outlives the agent; files and a signal between them."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from zlib import crc32

from fmagent.launch.environment import NodeFacts, launch_of, placement_json
from fmagent.orders import Order, PlacedRank, RunState, Stage
from fmagent.runner import files, procfs, retention, rundir, sweep
from fmagent.runner.contact import ContactFile
from fmagent.runner.news import News
from fmagent.runner.port import Adopted, CannotPrepare
from fmagent.runner.rundir import RunKey

# The longest that changed() waits: a lost datagram costs so much.
RESCAN_S = 1.0
# A supervisor that has not begun to kill so long after the grace, seconds, is killed itself: its ranks may have stopped it.
OVERDUE_S = 5.0
# Looks for the end of a killed supervisor, and the pause between them in seconds.
KILL_LOOKS_MAX, KILL_LOOK_S = 25, 0.02
REASON_CHARS_MAX = 500

# -I -S: nothing of the environment or of site-packages' start-up files reaches a supervisor; the one folder it imports from comes
# last, so that it shadows nothing.
BOOT = "import sys; sys.path.append(sys.argv.pop(1)); from fmagent.runner.shim import main; main()"
PACKAGES = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class ProcessLimits:
    """Times in seconds. The ports are those that MASTER_PORT is taken from, both ends included."""

    port_first: int = 20000
    port_last: int = 29999
    fence_after_s: float = 60.0
    fence_grace_s: float = 10.0
    # Preparing, and getting all ranks of this node to execute, may each take so long: more is a file system that hangs.
    start_limit_s: float = 60.0
    log_retention_s: float = 7 * 86400.0
    log_runs_max: int = 200
    disk_free_min_bytes: int = 64 * 1024 * 1024


@dataclass(slots=True)
class _Run:
    """A run that is not released. `signature` tells whether its files changed since they were read. `stop_by_s`, `fence_by_s`: when its
    supervisor must have acted on an order to stop, and on the fence, on the monotonic clock. `cause`: why this agent killed it."""

    folder: Path
    record: dict[str, Any]
    state: RunState
    signature: tuple[int, ...] = ()
    watched_pid: int = 0
    stop_by_s: float = float("inf")
    fence_by_s: float = float("inf")
    cause: str = ""


class ProcessRunner:
    """Satisfies runner.port.Runner. Make and use it inside one event loop; close() leaves all runs running."""

    def __init__(self, state_dir: Path, node: str, limits: ProcessLimits | None = None) -> None:
        self._dir = state_dir
        self._runs_dir = state_dir / "runs"
        self._node = node
        self._limits = limits or ProcessLimits()
        self._runs: dict[RunKey, _Run] = {}
        self._strays: dict[str, frozenset[int]] = {}
        self._news = News(state_dir / "news.sock")
        self._contact = ContactFile(state_dir / "contact")
        # Runs of other agents on this host (other clusters, tests) must never be taken for ours.
        self._mark = f"@{crc32(f'{state_dir.resolve()}|{node}'.encode()):08x}"

    # --- the port ------------------------------------------------------------------------------------------------------

    async def adopt(self) -> Adopted:
        self._runs_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._news.open()
        age_s = self._contact.age_s()
        for folder in sorted(self._runs_dir.iterdir()):
            key = rundir.key_of(folder.name)
            if key is None:
                continue
            try:
                self._adopt_folder(key, folder)
            except Exception:  # noqa: BLE001  whatever a job wrote there must not end the agent
                # Nothing can be said of it: its processes are swept as those without a record, and what it printed is kept.
                await _end_supervisor(folder)
                with contextlib.suppress(OSError):
                    rundir.set_aside(folder)
        await self._sweep_strays()
        return Adopted(await self.observe(), age_s)

    def _adopt_folder(self, key: RunKey, folder: Path) -> None:
        """Raises where run.json is unusable. Of unusable other files the next look tells."""
        if rundir.is_released(folder):
            return
        record = files.read_json(str(folder / files.RUN_FILE))
        unread = False
        try:
            state = rundir.read_state(folder)
        except OSError:
            state, unread = None, True
        if record is None or (state is None and not unread and not rundir.supervisor_lives(folder)):
            # The agent ended before it had started the supervisor, or the files were lost with the power: no process of it is
            # supervised, and the run is prepared anew. What it printed is kept.
            with contextlib.suppress(OSError):
                rundir.set_aside(folder)
            return
        known = rundir.run_state(folder, record, None, {})
        if (known.job, known.attempt) != (key.job, key.attempt):
            raise ValueError(f"{folder}: {files.RUN_FILE} is of job {known.job!r}, attempt {known.attempt}")
        self._runs[key] = _Run(folder, record, known)

    async def observe(self) -> tuple[RunState, ...]:
        for run in list(self._runs.values()):
            await self._refresh(run)
        if self._strays:
            await self._sweep_strays()
        strays = [_stray_state(name) for name in self._strays]
        return (*(run.state for run in self._runs.values()), *(state for state in strays if state is not None))

    async def changed(self) -> None:
        await self._news.wait(RESCAN_S)

    async def prepare(self, order: Order, facts: NodeFacts, gang: tuple[PlacedRank, ...]) -> None:
        key = RunKey(order.job, order.attempt)
        folder = self._runs_dir / key.name
        made = False
        try:
            rundir.set_aside(folder)
            folder.mkdir(mode=0o700, parents=True)
            made = True
            (folder / rundir.WORK_FOLDER).mkdir(mode=0o700)
            record = self._record(order, facts, folder)
            (folder / rundir.PLACEMENT_FILE).write_text(placement_json(order, gang), encoding="utf-8")
            files.reserve(str(folder))
            self._contact.ensure()
            files.write_json(str(folder / files.RUN_FILE), record)
            pid = self._spawn(folder)
        except OSError as error:
            if made:
                shutil.rmtree(folder, ignore_errors=True)
            raise CannotPrepare(f"cannot record the run in {folder}: {error}", device_fault=True) from error
        run = _Run(folder, record, rundir.run_state(folder, record, None, {}))
        self._runs[key] = run
        self._watch(run, pid)

    async def start(self, job: str, attempt: int, master_address: str, master_port: int) -> None:
        self._command(
            self._runs[RunKey(job, attempt)], start={"master_address": master_address, "master_port": master_port}
        )

    async def stop(self, job: str, attempt: int, grace_s: float, reason: str, *, device_fault: bool) -> None:
        run = self._runs.get(RunKey(job, attempt))
        if run is not None:  # a stray is being killed already
            self._command(run, stop={"grace_s": grace_s, "reason": reason, "device_fault": device_fault})

    async def release(self, job: str, attempt: int) -> None:
        key = RunKey(job, attempt)
        run = self._runs.pop(key, None)
        if run is None:
            return
        with contextlib.suppress(OSError):  # on a full disk the run is released again after the next start
            (run.folder / rundir.RELEASED_FILE).touch()
        retention.prune(self._runs_dir, self._limits.log_retention_s, self._limits.log_runs_max)

    async def contact(self, age_s: float) -> None:
        self._contact.write(age_s)

    async def processes(self) -> frozenset[int]:
        found: set[int] = set()
        for run in self._runs.values():
            if run.watched_pid and not run.state.gone:
                found |= {proc.pid for proc in procfs.living_descendants(run.watched_pid)}
        return frozenset(found)

    def disk_fault(self) -> str:
        try:
            usage = shutil.disk_usage(self._dir)
        except OSError as error:
            return f"disk of {self._dir}: {error}"
        if usage.free < self._limits.disk_free_min_bytes:
            return f"disk of {self._dir} is full: {usage.free} bytes free, {self._limits.disk_free_min_bytes} needed"
        return ""

    async def load(self) -> Mapping[str, object]:
        try:
            return files.read_json(str(self._dir / "memory.json")) or {}
        except OSError:
            return {}  # remember() fails as well, and is told of

    async def remember(self, memory: Mapping[str, object]) -> None:
        files.write_json(str(self._dir / "memory.json"), dict(memory), durable=True)

    async def close(self) -> None:
        self._news.close()

    # --- logs ----------------------------------------------------------------------------------------------------------

    def log_folder(self, job: str, attempt: int) -> Path | None:
        """The folder of a run, live or released; attempt 0: the newest. None where this node has none."""
        if not self._runs_dir.is_dir():
            return None
        keys = (rundir.key_of(folder.name) for folder in self._runs_dir.iterdir())
        attempts = [key.attempt for key in keys if key is not None and key.job == job and attempt in {0, key.attempt}]
        return self._runs_dir / RunKey(job, max(attempts)).name if attempts else None

    def writes_logs(self, folder: Path) -> bool:
        """Whether a process of the run may still write."""
        key = rundir.key_of(folder.name)
        run = self._runs.get(key) if key is not None else None
        if run is None:
            return False
        state = rundir.read_state(folder)
        return not (state or {}).get("gone", False) and not run.state.gone

    # --- one run -------------------------------------------------------------------------------------------------------

    def run_id(self, key: RunKey) -> str:
        return f"{self._node}/{key.name}{self._mark}"

    def _record(self, order: Order, facts: NodeFacts, folder: Path) -> dict[str, Any]:
        run_id = self.run_id(RunKey(order.job, order.attempt))
        launch = launch_of(order, facts, os.environ, run_id, str(folder / rundir.PLACEMENT_FILE))
        notes = []
        if launch.overridden:
            notes.append(f"template.env replaces {', '.join(launch.overridden)}")
        if launch.refused:
            notes.append(f"template.env may not set {', '.join(launch.refused)}")
        ranks = []
        for rank, environment in zip(order.ranks, launch.environments, strict=True):
            out, err = rundir.output_files(rank.rank)
            ranks.append({"rank": rank.rank, "env": dict(environment), "out": out, "err": err})
        return {
            "run": run_id,
            "job": order.job,
            "attempt": order.attempt,
            "boot": sweep.boot_id(),
            "gpus": order.gpus,
            "gpu_indices": [rank.gpu_index for rank in order.ranks],
            "argv": order.command.argv if order.command is not None else [],
            "cwd": (order.command.working_dir if order.command is not None else "") or str(folder / rundir.WORK_FOLDER),
            "ranks": ranks,
            "holds_port": order.holds_port,
            "port_first": self._limits.port_first,
            "port_last": self._limits.port_last,
            "grace_s": order.grace_period_s,
            "fence_after_s": self._limits.fence_after_s,
            "fence_grace_s": self._limits.fence_grace_s,
            "start_limit_s": self._limits.start_limit_s,
            "contact": str(self._contact.path.resolve()),
            "news": str(self._news.path.resolve()),
            "note": "; ".join(notes),
        }

    def _spawn(self, folder: Path) -> int:
        lock = os.open(folder / rundir.LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            with (folder / "shim.err").open("ab") as errors:
                process = subprocess.Popen(
                    [sys.executable, "-I", "-S", "-c", BOOT, str(PACKAGES), str(folder), str(lock)],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=errors,
                    pass_fds=(lock,),
                    start_new_session=True,
                    cwd="/",
                    env={"PATH": os.defpath},
                )
        finally:
            os.close(lock)
        # The supervisor outlives this object and, in general, this agent; it is reaped in _ended, when its pidfd says so.
        process.returncode = 0
        return process.pid

    def _watch(self, run: _Run, pid: int) -> None:
        if not pid or run.watched_pid == pid:
            return
        run.watched_pid = pid
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            return
        asyncio.get_running_loop().add_reader(descriptor, self._ended, descriptor, pid)
        self._news.owns(descriptor)

    def _ended(self, descriptor: int, pid: int) -> None:
        self._news.disowns(descriptor)
        with contextlib.suppress(ChildProcessError):  # adopted from an earlier agent: not this agent's child
            os.waitpid(pid, os.WNOHANG)
        self._news.wake()

    def _command(self, run: _Run, **orders: dict[str, Any]) -> None:
        stop = orders.get("stop")
        if stop is not None:
            run.stop_by_s = min(run.stop_by_s, _stop_by_s(stop))
        try:
            files.write_json(str(run.folder / files.COMMAND_FILE), rundir.read_command(run.folder) | orders)
        except OSError:
            # No room even for the order: a stop is given by the signal that means it without words.
            if stop is not None:
                self._signal(run, signal.SIGTERM)
            raise
        finally:
            run.signature = ()
        self._signal(run, signal.SIGUSR1)
        self._news.wake()

    def _signal(self, run: _Run, number: signal.Signals) -> None:
        """Before its first state the supervisor does not listen to signals, and reads the command by itself afterwards."""
        if not run.watched_pid or not (run.folder / files.STATE_FILE).exists() or not rundir.supervisor_lives(run.folder):
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(run.watched_pid, number)
            os.kill(run.watched_pid, signal.SIGCONT)  # a rank may have stopped it

    async def _refresh(self, run: _Run) -> None:
        """Never raises: what is wrong with one run's files is that run's end."""
        if run.state.gone:
            return
        try:
            await self._look(run)
        except Exception as error:  # noqa: BLE001  whatever a job wrote there must not end the agent
            if not isinstance(error, OSError) or error.errno not in rundir.NODE_ERRNOS:
                await self._end_unusable(run, error)

    async def _look(self, run: _Run) -> None:
        # Liveness first: a supervisor that is dead by now has written its last state before.
        lives = rundir.supervisor_lives(run.folder)
        if lives:
            self._urge(run)
        signature = (lives, *_stamp(run.folder / files.STATE_FILE), *_stamp(run.folder / files.COMMAND_FILE))
        if lives and signature == run.signature:
            return
        state, command = rundir.read_state(run.folder), rundir.read_command(run.folder)
        if "stop" in command:
            run.stop_by_s = min(run.stop_by_s, _stop_by_s(command["stop"]))
        if state is None and (run.state.stage is not Stage.PREPARING or "start" in command):
            raise ValueError(f"{files.STATE_FILE} was there, and is gone or no JSON object")
        if not lives and not (state or {}).get("gone", False):
            state = await self._bury(run, state, command)
        run.state = rundir.run_state(run.folder, run.record, state, command)
        run.signature = signature

    def _urge(self, run: _Run) -> None:
        """Continues a supervisor that was stopped; kills one that does not act in time. The next look buries what it leaves."""
        if not run.watched_pid:  # adopted
            self._watch(run, sweep.supervisor_of(run.folder))
        proc = procfs.read_proc(run.watched_pid) if run.watched_pid else None
        if proc is None:
            return
        now_s = time.monotonic()
        silent_s = self._contact.age_s()
        if silent_s is None or silent_s <= run.record["fence_after_s"]:
            run.fence_by_s = float("inf")
        elif run.fence_by_s == float("inf"):
            run.fence_by_s = now_s + min(run.record["grace_s"], run.record["fence_grace_s"]) + OVERDUE_S
        stopped = proc.state in "Tt"
        overdue = now_s > min(run.stop_by_s, run.fence_by_s)
        with contextlib.suppress(ProcessLookupError):
            # One that kills already has done its part: what does not die then is not its fault.
            if overdue and (stopped or not (rundir.read_state(run.folder) or {}).get("killed", False)):
                order = "the order to stop" if now_s > run.stop_by_s else "the fence"
                run.cause = f"its supervisor did not act on {order} within the grace and {OVERDUE_S:g} s, and was killed"
                os.kill(run.watched_pid, signal.SIGKILL)
                self._news.wake()
            elif stopped:
                os.kill(run.watched_pid, signal.SIGCONT)

    async def _bury(self, run: _Run, state: dict[str, Any] | None, command: dict[str, Any]) -> dict[str, Any]:
        """The supervisor ended without closing the run: end what is left, and say so in its place."""
        rebooted = run.record["boot"] != sweep.boot_id()
        recorded = [] if rebooted else (state or {}).get("descendants", [])
        left = await sweep.kill_marked(run.record["run"], [(pid, start_ticks) for pid, start_ticks in recorded])
        cause = run.cause or ("the node was rebooted" if rebooted else "its supervisor was killed")
        if state is None:
            ranks = [{"rank": rank["rank"], "pid": 0, "exit_code": None} for rank in run.record["ranks"]]
            state = {"phase": "preparing", "ranks": ranks}
        started = state["phase"] in {"running", "stopping", "ended"}
        for record in state["ranks"]:
            if record["pid"] and record["exit_code"] is None:
                record |= {"exit_code": 128 + signal.SIGKILL, "reason": cause}
        if state["phase"] not in {"ended", "refused"}:
            stop = command.get("stop", {}) if run.cause else {}
            reason = "; ".join(part for part in (state.get("reason", "") or stop.get("reason", ""), cause) if part)
            # Killed for not obeying: whoever ordered the stop knows whose fault that is.
            blame = bool(stop.get("device_fault", True))
            state |= {"phase": "ended" if started else "refused", "reason": reason, "device_fault": blame}
        if left:
            state["reason"] = f"{cause}; processes that do not die: {', '.join(map(str, sorted(left)))}"
        state["gone"] = not left
        with contextlib.suppress(OSError):  # written again at the next look
            files.write_json(str(run.folder / files.STATE_FILE), state, durable=True)
        return state

    async def _end_unusable(self, run: _Run, error: Exception) -> None:
        """A job has written what it must not, or the file system lost it: the run ends, and its report says why."""
        lives = await _end_supervisor(run.folder)
        left = await sweep.kill_marked(run.record["run"])
        cause = f"its folder {run.folder} cannot be used: {error or type(error).__name__}"[:REASON_CHARS_MAX]
        started = run.state.stage in {Stage.RUNNING, Stage.STOPPING, Stage.EXITED} or run.state.start_ordered
        lost = 128 + signal.SIGKILL if started else None
        ranks = [replace(rank, exit_code=lost if rank.exit_code is None else rank.exit_code) for rank in run.state.ranks]
        run.state = replace(
            run.state,
            stage=Stage.EXITED if started else Stage.REFUSED,
            ranks=tuple(ranks),
            reason=cause,
            device_fault=False,
            gone=not left and not lives,
        )
        state = {
            "phase": "ended" if started else "refused",
            "ranks": [{"rank": rank.rank, "pid": rank.pid, "exit_code": rank.exit_code} for rank in ranks],
            "reason": cause,
            "gone": run.state.gone,
        }
        # For the next agent. Where not even this can be written, it finds out by itself.
        with contextlib.suppress(OSError):
            (run.folder / files.COMMAND_FILE).unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            files.write_json(str(run.folder / files.STATE_FILE), state, durable=True)

    async def _sweep_strays(self) -> None:
        """Ends processes of runs of this node that have no record: an agent was killed and its state lost."""
        own = {run.record["run"] for run in self._runs.values()}
        self._strays = {}
        for name in sweep.marked(f"{self._node}/", self._mark):
            if name not in own:
                left = await sweep.kill_marked(name)
                if left:
                    self._strays[name] = left


def _stop_by_s(stop: dict[str, Any]) -> float:
    return time.monotonic() + max(0.0, float(stop["grace_s"])) + OVERDUE_S


async def _end_supervisor(folder: Path) -> bool:
    """Whether it lives on."""
    for _ in range(KILL_LOOKS_MAX):
        pid = sweep.supervisor_of(folder)
        if not pid:
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        await asyncio.sleep(KILL_LOOK_S)
    return True


def _stamp(path: Path) -> tuple[int, ...]:
    try:
        status = path.stat()
    except OSError:
        return (0,)
    return (status.st_ino, status.st_mtime_ns)


def _stray_state(name: str) -> RunState | None:
    key = rundir.key_of(name.rpartition("@")[0].rpartition("/")[2])
    if key is None:
        return None
    return RunState(key.job, key.attempt, Stage.STOPPING, reason="processes without a record do not die", stop_ordered=True)
