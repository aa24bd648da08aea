"""The folder of one run, STATE_DIR/runs/JOB.ATTEMPT: what is in it, and reading it. The supervisor (shim.py) writes state.json and
the ranks' output; the agent writes the rest.
"""

from __future__ import annotations

import errno
import fcntl
import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fmagent.orders import JOB_ID, RankStatus, RunState, Stage
from fmagent.runner import files

# Folders of one run that were set aside, at most; retention removes them like other released ones.
ASIDE_MAX = 1000
LOCK_FILE = "lock"  # held by the supervisor while it lives
PLACEMENT_FILE = "placement.json"
# Where ranks start that name no working directory: what they remove there is their own.
WORK_FOLDER = "work"
RELEASED_FILE = "released"  # the run is over and its report withdrawn: only its logs are kept

# Of a rank that failed, for its report.
LAST_LINES_MAX = 20
LAST_LINES_BYTES_MAX = 4096

# errno values that tell of the node and not of one run's folder: what was known of its runs stands meanwhile.
NODE_ERRNOS = frozenset(
    {
        errno.EAGAIN,
        errno.EDQUOT,
        errno.EIO,
        errno.EMFILE,
        errno.ENFILE,
        errno.ENOMEM,
        errno.ENOSPC,
        errno.EROFS,
        errno.ESTALE,
    }
)

# What a report's fields hold.
INT32_MAX, UINT32_MAX, INT64_MAX = 2**31 - 1, 2**32 - 1, 2**63 - 1

_STAGE = {
    "preparing": Stage.PREPARING,
    "prepared": Stage.PREPARED,
    "running": Stage.RUNNING,
    "stopping": Stage.STOPPING,
    "ended": Stage.EXITED,
    "refused": Stage.REFUSED,
}


def output_files(rank: int) -> tuple[str, str]:
    return f"rank-{rank}.out", f"rank-{rank}.err"


@dataclass(frozen=True, slots=True)
class RunKey:
    job: str
    attempt: int

    @property
    def name(self) -> str:
        return f"{self.job}.{self.attempt}"


def key_of(name: str) -> RunKey | None:
    """None for a name that no run's folder has."""
    job, _, attempt = name.rpartition(".")
    if not JOB_ID.fullmatch(job) or not attempt.isdecimal():
        return None
    return RunKey(job, int(attempt))


def is_released(folder: Path) -> bool:
    return (folder / RELEASED_FILE).exists()


def set_aside(folder: Path) -> None:
    """Makes room for a new run of the same job and attempt, where one is there: it becomes JOB.ATTEMPT.old-N, with its logs, for as
    long as released runs are kept. Raises OSError where it still has a supervisor, or cannot be moved."""
    if not folder.exists():
        return
    # One of a released run has said its last word, and is about to end.
    if supervisor_lives(folder) and not is_released(folder):
        raise FileExistsError(errno.EEXIST, "a run of this job and attempt has a living supervisor", str(folder))
    if not is_released(folder):
        (folder / RELEASED_FILE).touch()
    for number in range(1, ASIDE_MAX + 1):
        aside = folder.with_name(f"{folder.name}.old-{number}")
        if not aside.exists():
            folder.rename(aside)
            return
    raise FileExistsError(errno.EEXIST, f"{ASIDE_MAX} older runs are kept", str(folder))


def supervisor_lives(folder: Path) -> bool:
    """Whether somebody holds the run's lock. It is taken before the supervisor starts and inherited by it, so there is no gap."""
    try:
        # O_NONBLOCK: a job may have put a FIFO in its place.
        descriptor = os.open(folder / LOCK_FILE, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def read_state(folder: Path) -> dict[str, Any] | None:
    return files.read_json(str(folder / files.STATE_FILE))


def read_command(folder: Path) -> dict[str, Any]:
    return files.read_json(str(folder / files.COMMAND_FILE)) or {}


def run_state(folder: Path, run: dict[str, Any], state: dict[str, Any] | None, command: dict[str, Any]) -> RunState:
    """What the files say; `state` is None while the supervisor has not written any. Raises LookupError, TypeError or ValueError where they
    say what neither agent nor supervisor writes: then a job has written there."""
    if state is None:
        state = {"phase": "preparing", "ranks": [{"rank": rank["rank"], "pid": 0} for rank in run["ranks"]]}
    return RunState(
        job=_text(run["job"]),
        attempt=_whole(run["attempt"]),
        stage=_STAGE[state["phase"]],
        ranks=tuple(_rank_status(folder, record, state) for record in state["ranks"]),
        gpus=tuple(_text(gpu) for gpu in run["gpus"]),
        gpu_indices=tuple(_whole(index) for index in run["gpu_indices"]),
        held_port=_whole(state.get("port", 0)),
        reason=_reason(run, state),
        device_fault=bool(state.get("device_fault", False)),
        first_failed_ms=_whole(state.get("first_failed_ms", 0), INT64_MAX),
        gone=bool(state.get("gone", False)),
        start_ordered="start" in command,
        stop_ordered="stop" in command,
        grace_period_s=float(run["grace_s"]),
    )


def _whole(value: object, highest: int = UINT32_MAX) -> int:
    if not isinstance(value, int) or not 0 <= value <= highest:
        raise ValueError(f"found {value!r:.100}; allowed: a whole number of 0 to {highest}")
    return value


def _text(value: object) -> str:
    """Without halves of surrogate pairs, which JSON can say and messages cannot."""
    if not isinstance(value, str):
        raise TypeError(f"found {value!r:.100}; allowed: text")
    return value.encode("utf-8", "replace").decode("utf-8")


def _reason(run: dict[str, Any], state: dict[str, Any]) -> str:
    reason = _text(state.get("reason", ""))
    if state["phase"] == "ended" and reason and state.get("gone"):
        how = f"killed after {run['grace_s']:g} s of grace" if state.get("killed") else "ended by itself within its grace"
        return f"{reason}; {how}"
    return reason or (_text(run["note"]) if state["phase"] in {"preparing", "prepared", "running"} else "")


def _rank_status(folder: Path, record: dict[str, Any], state: dict[str, Any]) -> RankStatus:
    code = None if record.get("exit_code") is None else _whole(record["exit_code"], INT32_MAX)
    by_signal = _whole(record.get("signal", 0))
    reason = _text(record.get("reason", ""))
    rank = _whole(record["rank"])
    if by_signal and not reason:
        reason = f"ended by signal {by_signal}{_signal_name(by_signal)}"
    failed = bool(code) and state["phase"] != "refused"
    return RankStatus(
        rank=rank,
        pid=_whole(record.get("pid", 0)),
        exit_code=code,
        reason=reason,
        last_lines=last_lines(folder, rank) if failed else "",
    )


def _signal_name(number: int) -> str:
    """Realtime signals have none but the first and the last."""
    try:
        return f" ({signal.Signals(number).name})"
    except ValueError:
        return ""


def last_lines(folder: Path, rank: int) -> str:
    """The end of the rank's stderr, or of its stdout where that is empty."""
    out, err = output_files(rank)
    for name in (err, out):
        text = _tail(folder / name)
        if text.strip():
            return "\n".join(text.splitlines()[-LAST_LINES_MAX:])
    return ""


def _tail(path: Path) -> str:
    try:
        with os.fdopen(files.open_regular(str(path)), "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - LAST_LINES_BYTES_MAX))
            return file.read(LAST_LINES_BYTES_MAX).decode("utf-8", errors="replace")
    except OSError:
        return ""
