"""The supervisor of one run on one node: a process in its own session, started by the agent, which it outlives. Only the standard
library and four modules beside this one: it starts in milliseconds, and has loaded all it needs before an upgrade replaces files.

It prepares (holds the rendezvous port), waits for the start, forks the ranks, records their exit codes, and ends them: by order, or
by itself once the agent has had no contact with the store for too long. Orders come as files and a SIGUSR1, so that none can be
lost; news go out as state.json and a datagram. Everything happens on one thread, between two waits for a signal; whatever touches
the job's own files, which may be on a file system that hangs, happens in forked children (forked.py) under a time limit.

Whatever a rank forks stays a descendant of this process (PR_SET_CHILD_SUBREAPER), also after a double fork and setsid. If this
process is killed, the ranks die with it (PR_SET_PDEATHSIG) and the agent sweeps what escaped.
"""

# pathlib would lengthen this file's start by a third:
# ruff: noqa: PTH112, PTH113, PTH118, PTH123

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import signal
import sys
import time
from functools import partial
from typing import Any

from fmagent.runner.files import COMMAND_FILE, RUN_FILE, STATE_FILE, Record, read_json, read_regular, send_news, write_json
from fmagent.runner.forked import Forked
from fmagent.runner.master_ports import Held, hold_port
from fmagent.runner.procfs import boot_time_s, living_descendants, read_proc

# Between two looks at the contact file, seconds; also how soon a state that could not be written is tried again.
TICK_S = 1.0
# Workers that outlive every rank of a run get so long between SIGTERM and SIGKILL, seconds.
LEFTOVER_GRACE_S = 2.0
# Between two rounds of SIGKILL, seconds. There is no last round: a GPU is free only when its processes are gone.
KILL_ROUND_MIN_S, KILL_ROUND_MAX_S = 0.02, 1.0
# A fork may race the first pass of SIGTERM; the second pass finds its child.
TERM_PASSES = 2
# How often descendants are recorded, seconds, and how many. With a run's environment cleared, nothing else tells the agent which
# processes a killed supervisor has left behind.
RECORD_EVERY_S = 2.0
RECORDED_MAX = 4096

PR_SET_NAME, PR_SET_CHILD_SUBREAPER = 15, 36
SIGNALS = {signal.SIGCHLD, signal.SIGIO, signal.SIGUSR1, signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
# errno values of a failed start that are the node's fault; every other one is the job's (no such command, not executable).
NODE_ERRNOS = {
    errno.EAGAIN, errno.ENOMEM, errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.ENFILE, errno.EMFILE
}  # fmt: skip

ENDING = {"stopping", "ended", "refused"}


class Refused(Exception):
    """The run cannot be prepared or started."""

    def __init__(self, reason: str, *, device_fault: bool) -> None:
        super().__init__(reason)
        self.reason = reason
        self.device_fault = device_fault


def find_executable(argv0: str, search_path: str, folder: str) -> str:
    """As execvp finds it, seen from the working directory. Raises Refused."""
    if "/" in argv0:
        candidates = [os.path.join(folder, argv0)]
    else:
        candidates = [os.path.join(folder, part or ".", argv0) for part in search_path.split(os.pathsep)]
    for candidate in candidates:
        if os.path.isfile(candidate) and os.access(candidate, os.X_OK):
            return candidate
    if any(os.path.isfile(candidate) for candidate in candidates):
        raise Refused(f"command {argv0!r} is not executable", device_fault=False)
    where = f"PATH {search_path!r}" if "/" not in argv0 else repr(candidates[0])
    raise Refused(f"no such command: {argv0!r}; looked in {where}", device_fault=False)


class Shim:
    """One run. `state` is what state.json says; see runner/rundir.py for its reader."""

    def __init__(self, run_dir: str, lock_fd: int) -> None:
        self.dir = run_dir
        self.lock_fd = lock_fd
        self.pid = os.getpid()
        self.libc = ctypes.CDLL(None, use_errno=True)
        run = read_json(os.path.join(run_dir, RUN_FILE))
        assert run is not None, f"{run_dir}: the agent writes {RUN_FILE} before it starts its supervisor"
        self.run = run
        self.held: Held | None = None
        # Children that prepare the run, then children that become its ranks. None: nothing is under way.
        self.forked: Forked | None = None
        self.deadline_s = 0.0  # boot time: when SIGTERM becomes SIGKILL
        self.kill_round_s = KILL_ROUND_MIN_S
        self.unwritten = False
        self.contact_s = boot_time_s()
        self.record_at_s = 0.0  # boot time: when descendants are recorded again
        me = read_proc(self.pid)
        self.state: Record = {
            "phase": "preparing",
            "pid": self.pid,
            "start_ticks": me.start_ticks if me else 0,
            "port": 0,
            "ranks": [{"rank": rank["rank"], "pid": 0, "exit_code": None, "signal": 0} for rank in run["ranks"]],
            "reason": "",
            "device_fault": False,
            "first_failed_ms": 0,
            "killed": False,
            "gone": False,
            "descendants": [],  # [pid, start_ticks] of each that lives
        }

    def main(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        self.libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self.libc.prctl(PR_SET_NAME, b"fm-shim", 0, 0, 0)
        os.set_inheritable(self.lock_fd, False)
        self.prepare()
        while not self.state["gone"]:
            self.step()
            if self.state["gone"]:
                break
            got = signal.sigtimedwait(SIGNALS, self.wait_s())
            if got is not None and got.si_signo in {signal.SIGTERM, signal.SIGINT}:
                reason = "the supervisor was told to end (SIGTERM): the node shuts down"
                self.begin_stop(self.run["grace_s"], reason, device_fault=True)
        # The last word must arrive even on a full disk; the agent, if it lives, sees this process end either way.
        if self.unwritten:
            self.save()

    def step(self) -> None:
        self.proceed()
        self.reap()
        self.obey()
        self.fence()
        self.finish()
        if boot_time_s() >= self.record_at_s and self.record_descendants():
            self.unwritten = True
        if self.unwritten:
            self.save()

    def wait_s(self) -> float:
        if self.state["phase"] in ENDING:
            left = self.deadline_s - boot_time_s()
            return min(TICK_S, left) if left > 0 else self.kill_round_s
        return min(TICK_S, float(self.run["fence_after_s"]) / 4)

    # --- prepare and start ---------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        self.change()  # from here on, signals are listened to
        try:
            if self.run["holds_port"]:
                first, last = self.run["port_first"], self.run["port_last"]
                self.held = hold_port(first, last)
                if self.held is None:
                    raise Refused(f"no free port in {first}-{last} for MASTER_PORT", device_fault=True)
                self.state["port"] = self.held.port
            if self.run["argv"]:
                self.forked = Forked(self.run["start_limit_s"])
                self.forked.fork(self.look, self.libc)
                self.forked.all_forked()
        except Refused as refused:
            self.refuse(refused)
        except OSError as error:
            self.refuse(Refused(f"cannot prepare: {error}", device_fault=error.errno in NODE_ERRNOS))
        else:
            if self.forked is None:
                self.change(phase="prepared")

    def look(self) -> None:
        """In a child: that everything a rank needs is there, and where its command is."""
        assert self.forked is not None
        self.leave_to_supervisor()
        try:
            paths = [self.look_for(rank) for rank in self.run["ranks"]]
        except Refused as refused:
            self.forked.tell({"reason": refused.reason, "device_fault": refused.device_fault})
        except OSError as error:
            self.forked.tell({"reason": f"cannot prepare: {error}", "device_fault": error.errno in NODE_ERRNOS})
        else:
            self.forked.tell({"child": 0, "paths": paths})

    def look_for(self, rank: Record) -> str:
        folder = self.run["cwd"]
        if not os.path.isdir(folder):
            raise Refused(f"workingDir {folder!r} is no directory on this node", device_fault=False)
        path = find_executable(self.run["argv"][0], rank["env"].get("PATH", os.defpath), folder)
        for name in (rank["out"], rank["err"]):
            os.close(os.open(os.path.join(self.dir, name), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640))
        return path

    def start(self, order: Record) -> None:
        if self.held is not None and order["master_port"] != self.held.port:
            found = f"MASTER_PORT {order['master_port']} was ordered, {self.held.port} is held"
            self.refuse(Refused(found, device_fault=False))
            return
        if not self.run["argv"]:
            self.release_port()
            self.change(phase="running")
            return
        try:
            self.forked = Forked(self.run["start_limit_s"])
            for number in range(len(self.run["ranks"])):
                self.forked.fork(partial(self.become_rank, number, order), self.libc)
            self.forked.all_forked()
        except OSError as error:
            self.refuse(Refused(f"cannot start rank: {error}", device_fault=True))

    def proceed(self) -> None:
        """One step further where children have reported: all ranks execute, or none."""
        forked = self.forked
        if forked is None:
            return
        for report in forked.reports():
            if "reason" in report:
                self.refuse(Refused(report["reason"], device_fault=report["device_fault"]))
                return
            forked.reported.add(report["child"])
            for rank, path in zip(self.run["ranks"], report.get("paths", ()), strict=False):
                rank["path"] = path
        ready = len(forked.reported) == len(forked.pids)
        if ready and self.state["phase"] == "preparing":
            self.forget_forked()
            self.change(phase="prepared")
        elif ready and not forked.let_go and not forked.died:
            self.execute(forked)
        elif forked.ended and forked.let_go:
            self.forget_forked()
            self.change(phase="running")
        elif forked.ended or forked.died or boot_time_s() > forked.deadline_s:
            self.refuse(Refused(self.unready(forked), device_fault=True))

    def execute(self, forked: Forked) -> None:
        for record, pid in zip(self.state["ranks"], forked.pids, strict=True):
            record["pid"] = pid
        self.release_port()
        forked.open_gate()

    def unready(self, forked: Forked) -> str:
        if forked.ended or forked.died:
            return "a process of this node's supervisor was killed before the ranks executed"
        late = f"takes longer than {self.run['start_limit_s']:g} s: does a file system hang?"
        if self.state["phase"] == "preparing":
            return f"looking at workingDir {self.run['cwd']!r} and at command {self.run['argv'][0]!r} {late}"
        if forked.let_go:
            return f"executing {self.run['argv'][0]!r} {late}"
        ranks = [str(rank["rank"]) for number, rank in enumerate(self.run["ranks"]) if number not in forked.reported]
        return f"making rank {', '.join(ranks)} ready in workingDir {self.run['cwd']!r} {late}"

    def forget_forked(self) -> None:
        if self.forked is not None:
            self.forked.close()
            self.forked = None

    def become_rank(self, number: int, order: Record) -> None:
        """In a child; returns only where it could not execute."""
        forked, rank = self.forked, self.run["ranks"][number]
        assert forked is not None
        step = "set up"
        try:
            os.setsid()
            self.leave_to_supervisor()
            # The agent's own protection from the kernel's out-of-memory killer is not for ranks.
            with open("/proc/self/oom_score_adj", "r+", encoding="ascii") as file:
                if int(file.read()) < 0:
                    file.write("0")
            step = "open the output of"
            self.redirect(rank)
            env = dict(rank["env"])
            # The user's own setting wins: it is in `env` already.
            env.setdefault("MASTER_ADDR", order["master_address"])
            env.setdefault("MASTER_PORT", str(order["master_port"]))
            step = f"enter {self.run['cwd']!r} for"
            os.chdir(self.run["cwd"])
            # Only that it is looked at counts, and hangs here where it does: executing says what is wrong with it.
            os.access(rank["path"], os.X_OK)
            forked.tell({"child": number})
            forked.wait_at_gate()
            # Python ignores these two, and what is ignored stays so across exec.
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            step = f"execute {rank['path']!r} as"
            os.execve(rank["path"], self.run["argv"], env)  # noqa: S606  the job's own command, no shell
        except (OSError, ValueError) as error:  # ValueError: a NUL byte in an argument or a variable
            code, what = (error.errno, error.strerror) if isinstance(error, OSError) else (errno.EINVAL, error)
            reason = f"cannot {step} rank {rank['rank']}: {what}"
            forked.tell({"reason": reason, "device_fault": code in NODE_ERRNOS})

    def leave_to_supervisor(self) -> None:
        """In a child: what it holds only because it was forked. One that hangs must not pass for a living supervisor, nor keep rank 0
        off its port."""
        os.close(self.lock_fd)
        self.release_port()
        if self.held is not None:
            self.held.lease.close()

    def redirect(self, rank: Record) -> None:
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        for descriptor, name in ((1, rank["out"]), (2, rank["err"])):
            file = os.open(os.path.join(self.dir, name), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o640)
            os.dup2(file, descriptor)
            os.close(file)
        os.close(null)

    def release_port(self) -> None:
        if self.held is not None:
            for bound in self.held.sockets:
                bound.close()

    # --- run and end ---------------------------------------------------------------------------------------------------

    def reap(self) -> None:
        records = {record["pid"]: record for record in self.state["ranks"] if record["pid"]}
        changed = False
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            record = records.get(pid)
            if self.forked is not None and pid in self.forked.pids and not self.forked.let_go:
                self.forked.died = True
            if record is not None:
                code = os.waitstatus_to_exitcode(status)
                record["exit_code"] = code if code >= 0 else 128 - code
                record["signal"] = max(0, -code)
                if code and not self.state["first_failed_ms"]:
                    self.state["first_failed_ms"] = time.time_ns() // 1_000_000
                changed = True
        if changed:
            self.change()
        if self.forked is not None and self.forked.died:
            self.proceed()  # its last word is in the pipe
        if self.state["phase"] == "running" and self.run["argv"] and not self.ranks_alive():
            self.deadline_s = boot_time_s() + LEFTOVER_GRACE_S
            self.signal_all(signal.SIGTERM)
            self.change(phase="ended")

    def ranks_alive(self) -> bool:
        return any(record["pid"] and record["exit_code"] is None for record in self.state["ranks"])

    def obey(self) -> None:
        """A stop outweighs a start, whichever came first."""
        try:
            command = read_json(os.path.join(self.dir, COMMAND_FILE)) or {}
        except OSError:
            return  # the job has put something in its place: the agent ends the run
        stop, start = command.get("stop"), command.get("start")
        if stop is not None:
            self.begin_stop(stop["grace_s"], stop["reason"], device_fault=stop["device_fault"])
        elif start is not None and self.state["phase"] == "prepared" and self.forked is None:
            self.start(start)

    def fence(self) -> None:
        if self.state["phase"] not in {"preparing", "prepared", "running", "stopping"}:
            return
        with contextlib.suppress(OSError, ValueError):  # the last that was read stands: an unreadable file is no contact
            self.contact_s = float(read_regular(self.run["contact"]))
        age_s = boot_time_s() - self.contact_s
        if age_s <= self.run["fence_after_s"]:
            return
        grace_s = min(self.run["grace_s"], self.run["fence_grace_s"])
        if self.state["phase"] == "stopping":
            # A long grace that was granted earlier must not outlast the fence: the GPUs are given away after it.
            self.deadline_s = min(self.deadline_s, boot_time_s() + grace_s)
            return
        reason = f"fenced: the agent had no contact with the store for {age_s:.0f} s"
        self.begin_stop(grace_s, reason, device_fault=True)

    def begin_stop(self, grace_s: float, reason: str, *, device_fault: bool) -> None:
        if self.state["phase"] not in {"preparing", "prepared", "running"}:
            return
        self.state["device_fault"] = device_fault
        self.deadline_s = boot_time_s() + grace_s
        # A child that has not executed is still the supervisor's own, and takes no SIGTERM.
        before_ranks = self.forked is not None and not self.forked.let_go
        self.forget_forked()
        self.signal_all(signal.SIGKILL if before_ranks else signal.SIGTERM)
        self.change(phase="stopping", reason=reason)

    def refuse(self, refused: Refused) -> None:
        self.forget_forked()
        self.signal_all(signal.SIGKILL)
        self.change(phase="refused", reason=refused.reason, device_fault=refused.device_fault)

    def finish(self) -> None:
        """Once it is ending: kill what is over its time, and close the run when nothing is left."""
        if self.state["phase"] not in ENDING:
            return
        left = living_descendants(self.pid)
        if left and boot_time_s() >= self.deadline_s:
            self.state["killed"] = True
            self.signal_all(signal.SIGKILL)
            self.kill_round_s = min(KILL_ROUND_MAX_S, self.kill_round_s * 2)
        if left:
            return
        self.reap()
        if self.ranks_alive():
            return  # dead, not reaped yet: its exit code is still to come
        self.release_port()
        if self.held is not None:
            self.held.lease.close()
        phase = "refused" if self.state["phase"] == "refused" else "ended"
        self.change(phase=phase, gone=True)

    def signal_all(self, number: signal.Signals) -> None:
        """To every descendant, not only to the ranks: a shell between does not pass signals on."""
        reached: set[int] = set()
        for _ in range(TERM_PASSES):
            for proc in living_descendants(self.pid):
                if proc.pid in reached:
                    continue
                reached.add(proc.pid)
                try:
                    os.kill(proc.pid, number)
                    if number == signal.SIGTERM:
                        os.kill(proc.pid, signal.SIGCONT)  # one that was stopped would not see it
                except OSError:
                    continue  # gone meanwhile, or another user's (setuid): the next round looks again

    # --- tell ----------------------------------------------------------------------------------------------------------

    def record_descendants(self) -> bool:
        """Whether they are others than before."""
        self.record_at_s = boot_time_s() + RECORD_EVERY_S
        found = [[proc.pid, proc.start_ticks] for proc in living_descendants(self.pid)[:RECORDED_MAX]]
        changed: bool = found != self.state["descendants"]
        self.state["descendants"] = found
        return changed

    def change(self, **values: Any) -> None:
        self.state.update(values)
        self.record_descendants()
        self.save()

    def save(self) -> None:
        ends = self.state["phase"] in {"ended", "refused"}
        try:
            write_json(os.path.join(self.dir, STATE_FILE), self.state, durable=ends)
            self.unwritten = False
        except OSError:
            # A full disk must not end the ranks: the next tick tries again.
            self.unwritten = True
        send_news(self.run["news"], self.run["run"].encode())


def main() -> None:
    """Arguments: the run's folder, the descriptor of its lock."""
    Shim(sys.argv[1], int(sys.argv[2])).main()
