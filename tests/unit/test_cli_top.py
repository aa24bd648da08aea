"""fmctl top and fmctl get queues, against a service on a real port: what they count, how they fit a terminal, how top ends."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import grpc
import pytest
from rich.console import Console
from typer.testing import CliRunner

from fmclient.cli import exits
from fmclient.cli.main import app
from fmclient.cli.picture import BAR_WIDTH_MAX, NodeLoad, Picture, bar, picture_of
from fmclient.cli.queues import queues_of
from fmclient.cli.screen import Screen, shares
from fmproto.v1 import job_pb2
from fmproto.v1.scheduler_pb2 import Job, VersionInfo
from tests.support.client_cluster import cluster, jobs
from tests.support.scripted_scheduler import Refusal, Served, job, placed, serving

NOW_MS = 1_700_000_060_000


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    live = {name: each for name, each in jobs().items() if name != "old"}  # the scripted service does not filter
    with serving(jobs=live, nodes=cluster()) as found:
        monkeypatch.setenv("FMSCHED_SERVER", found.address)
        yield found


def fmctl(*args: str, code: int = exits.DONE) -> tuple[str, str]:
    result = CliRunner().invoke(app, args)
    assert result.exit_code == code, (result.output, result.exception)
    return result.stdout, result.stderr


def waiting(name: str, position: int, gpus: int, since_ms: int, queue: str = "") -> Job:
    found = job(name)
    found.queue_position = position
    found.spec.queue = queue
    found.spec.groups.add(name="workers", kind=job_pb2.GROUP_KIND_TENSOR_PARALLEL, gpus_per_group=gpus)
    found.status.since_ms = since_ms
    found.status.why.add(constraint="free GPUs", group="workers", asked=str(gpus), best="1")
    return found


# --- get queues


def test_queues_sum_up_their_live_jobs(served: Served) -> None:
    served.scheduler.jobs["other"] = waiting("other", 2, 3, NOW_MS, "research")
    out, err = fmctl("get", "queues")
    lines = [line.split() for line in out.splitlines()]
    assert lines[0] == ["QUEUE", "RUNNING", "GPUS", "HELD", "WAITING", "GPUS", "ASKED", "OLDEST", "NEXT"]
    assert [[*line[:5], line[6]] for line in lines[1:]] == [
        ["default", "1", "2", "1", "4", "big"],
        ["research", "0", "0", "1", "3", "other"],
    ]
    assert err == ""
    wide = fmctl("get", "queues", "research", "-o", "wide")[0].splitlines()
    assert wide[1].endswith("workers: free GPUs: asked 3; best is 1")
    assert served.scheduler.requests("ListJobs")[-1].live_only


def test_queues_as_data_and_as_names(served: Served) -> None:
    assert json.loads(fmctl("get", "queues", "-o", "json")[0]) == {
        "items": [
            {
                "name": "default",
                "running": 1,
                "gpusHeld": 2,
                "waiting": 1,
                "gpusAsked": 4,
                "oldestWaitingMs": "1700000000000",
                "nextJob": "big",
                "nextWhy": "workers: free GPUs: asked 4; best is 1 (on n1)",
            }
        ]
    }
    assert fmctl("get", "queue", "-o", "name")[0] == "default\n"
    assert fmctl("get", "queue", "none", code=exits.NOT_FOUND) == ("", "fmctl: no queue named 'none'; there are: default\n")


def test_the_next_job_is_the_first_in_line_and_the_oldest_may_be_another() -> None:
    (queue,) = queues_of([waiting("old", 7, 1, NOW_MS - 9_000), waiting("urgent", 3, 2, NOW_MS)])
    assert (queue.next_job, queue.oldest_waiting_ms, queue.waiting, queue.gpus_asked) == ("urgent", NOW_MS - 9_000, 2, 3)


def test_a_job_that_starts_holds_gpus_and_neither_runs_nor_waits() -> None:
    starting = placed("starting", ranks=3)
    starting.status.state = job_pb2.JOB_STATE_PREPARING
    (queue,) = queues_of([starting])
    assert (queue.running, queue.gpus_held, queue.waiting, queue.next_job) == (0, 3, 0, "")


def test_a_watch_tells_that_a_queue_has_become_empty(served: Served) -> None:
    command = [sys.executable, "-m", "fmclient.cli.main", "get", "queues", "-w", "-o", "json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1)
    assert process.stdout is not None
    first = [process.stdout.readline() for _ in range(14)]
    assert json.loads("".join(first))["items"][0]["running"] == 1
    for name in ("train", "big"):
        served.run(served.scheduler.forget(name))
    changed = json.loads(process.stdout.readline())
    while changed["waiting"]:  # the watch may have asked between the two
        changed = json.loads(process.stdout.readline())
    assert (changed["name"], changed["running"], changed["gpusHeld"]) == ("default", 0, 0)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=10)
    assert process.returncode == exits.INTERRUPTED


# --- top, one picture


def test_top_prints_one_picture_where_there_is_no_terminal(served: Served) -> None:
    lines = fmctl("top")[0].splitlines()
    assert lines[:9] == [
        "nodes: 2 of 3 ready   6 GPUs: 2 held, 1 free, 3 not usable",
        "jobs: 1 running, 1 waiting",
        "state store: ok   leader: here:1",
        "",
        "NODE  STATE    HELD  GPUS  REASON",
        "n1    ready     0/2  ·!    GPU 1 failed: XID 79: fallen off the bus",
        "n2    drained   0/2  --    new cables",
        "n0    ready     2/2  ██    -",
        "",
    ]
    assert [line.split()[:4] for line in lines[10:]] == [["train", "train", "running", "2"], ["big", "big", "waiting", "4"]]
    assert lines[10].endswith("  n0")
    assert lines[11].endswith("  (workers: free GPUs: asked 4; best is 1 (on n1))")


def test_top_of_one_section_only(served: Served) -> None:
    nodes, listed = (fmctl("top", section, "--once")[0] for section in ("nodes", "jobs"))
    assert ("NODE " in nodes, "JOB " in nodes) == (True, False)
    assert ("NODE " in listed, "JOB " in listed) == (False, True)
    assert set(json.loads(fmctl("top", "jobs", "-o", "json")[0])) == {"cluster", "jobs"}


def test_top_as_data(served: Served) -> None:
    found = json.loads(fmctl("top", "-o", "json")[0])
    assert found["cluster"] == {
        "nodes": {"ready": 2, "all": 3},
        "gpus": {"held": 2, "free": 1, "notUsable": 3},
        "jobs": {"running": 1, "waiting": 1, "startingOrStopping": 0},
        "store": "ok",
        "leader": "here:1",
    }
    assert found["nodes"][0]["name"] == "n1"
    assert found["nodes"][0]["gpus"] == {"held": 0, "free": 1, "failed": 1, "closed": 0}
    assert [(each["id"], each["gpusHeld"], each["nodes"], each["queuePosition"]) for each in found["jobs"]] == [
        ("train", 2, ["n0"], 0), ("big", 0, [], 1),
    ]  # fmt: skip


@pytest.mark.parametrize("command", [("top", "gpus"), ("top", "--interval", "0")], ids=" ".join)
def test_wrong_usage_of_top_is_code_2(command: tuple[str, ...]) -> None:
    assert fmctl(*command, code=exits.USAGE)[0] == ""


def test_top_without_a_service_is_code_5(served: Served) -> None:
    served.scheduler.refusals["ListNodes"] = [Refusal(grpc.StatusCode.DEADLINE_EXCEEDED)]
    assert fmctl("top", code=exits.UNREACHABLE)[0] == ""


# --- top, fitted to a terminal


@pytest.mark.parametrize(
    ("parts", "marks"),
    [
        ((2, 3, 1, 2), "██···!--"),
        ((0, 0, 0, 0), ""),
        ((36, 36, 0, 0), "████████········"),
        ((1, 71, 0, 0), "█···············"),
        ((64, 6, 1, 1), "█████████████·!-"),
    ],
)
def test_a_bar_has_a_mark_for_each_gpu_or_a_share_of_them(parts: tuple[int, int, int, int], marks: str) -> None:
    assert bar(NodeLoad("n", "ready", "", *parts)) == marks
    assert len(marks) <= BAR_WIDTH_MAX


@pytest.mark.parametrize(
    ("lines", "nodes", "jobs", "expected"),
    [
        (20, 4, 4, (6, 6)),
        (20, 100, 2, (16, 4)),
        (20, 2, 100, (4, 16)),
        (21, 100, 100, (11, 10)),
        (20, 100, 0, (20, 0)),
        (0, 5, 5, (0, 0)),
    ],
)
def test_two_sections_share_the_lines(lines: int, nodes: int, jobs: int, expected: tuple[int, int]) -> None:
    assert shares(lines, nodes, jobs) == expected


def crowd(nodes: int, live: int) -> Picture:
    found = cluster()
    for number in range(3, nodes):
        found.nodes.add(name=f"n{number}", state="ready")
    listed = [waiting(f"job-{number}", number + 1, 8, NOW_MS) for number in range(live)]
    return picture_of(found.nodes, listed, VersionInfo(store="ok", leader_address="here:1"))


@pytest.mark.parametrize("width", [20, 60, 200])
@pytest.mark.parametrize("height", [1, 5, 9, 24, 400])
@pytest.mark.parametrize("trouble", ["", "here:1 did not answer"])
def test_a_screen_never_outgrows_its_terminal(width: int, height: int, trouble: str) -> None:
    console = Console(width=width, height=height, highlight=False, markup=False)
    screen = Screen(crowd(300, 50), True, True, NOW_MS, trouble)
    lines = console.render_lines(screen, console.options.update(width=width, height=height), pad=False)
    words = ["".join(segment.text for segment in line).strip() for line in lines]
    head = 3 + bool(trouble)
    assert len(words) <= max(height, head)
    if height == 24 and width >= 60:  # names are whole there
        shown = sum(word.startswith("n") and word.split()[0][1:].isdigit() for word in words)
        assert f"and {300 - shown} more" in words


# --- top, on a terminal


@contextmanager
def on_a_terminal(served: Served, *args: str) -> Iterator[tuple[subprocess.Popen[bytes], int, Callable[[str], str]]]:
    """The process, our end of its terminal of 24 × 80, and what waits for words on it and returns all that was read."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    env = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR")}
    command = [sys.executable, "-m", "fmclient.cli.main", *args]
    process = subprocess.Popen(
        command, env=env | {"TERM": "xterm-256color"}, stdin=theirs, stdout=theirs, stderr=subprocess.PIPE
    )
    os.close(theirs)
    written = b""
    os.set_blocking(ours, False)

    def reads(words: str, within_s: float = 20.0) -> str:
        nonlocal written
        deadline_s = time.monotonic() + within_s
        while words not in (text := written.decode(errors="replace")):
            assert time.monotonic() < deadline_s, f"{words!r} did not come; came: {text!r}"
            try:
                written += os.read(ours, 65_536)
            except BlockingIOError:
                time.sleep(0.02)
        written = written[written.index(words.encode()) + len(words.encode()) :]
        return text

    try:
        yield process, ours, reads
    finally:
        process.kill()
        process.communicate(timeout=10)
        os.close(ours)


TO_ITS_OWN_SCREEN, BACK, CURSOR = "\x1b[?1049h", "\x1b[?1049l", "\x1b[?25h"


@pytest.mark.parametrize("end", ["ctrl-c", "q", "SIGTERM"])
def test_top_ends_with_0_and_gives_the_terminal_back(served: Served, end: str) -> None:
    with on_a_terminal(served, "top", "--interval", "30") as (process, ours, reads):
        reads(TO_ITS_OWN_SCREEN)
        reads("fallen off the bus")
        if end == "SIGTERM":
            process.send_signal(signal.SIGTERM)
        elif end == "q":
            os.write(ours, b"xq")
        else:
            process.send_signal(signal.SIGINT)
        shown = reads(BACK)
        assert CURSOR in shown
        _, err = process.communicate(timeout=10)
        assert (process.returncode, err) == (exits.DONE, b"")


def test_top_asks_again_and_stays_when_the_service_goes_away(served: Served) -> None:
    with on_a_terminal(served, "top", "--interval", "0.2") as (_, _, reads):
        reads("1 running, 1 waiting")
        served.run(served.scheduler.forget("big"))
        reads("1 running, 0 waiting")
        served.scheduler.refusals["ListNodes"] = [Refusal(grpc.StatusCode.DEADLINE_EXCEEDED, "late")] * 3
        reads("ago: ")
        served.run(served.scheduler.put(waiting("new", 1, 4, NOW_MS)))
        reads("1 running, 1 waiting")


def test_top_follows_the_terminals_size(served: Served) -> None:
    with on_a_terminal(served, "top", "--interval", "30") as (process, ours, reads):
        reads("fallen off the bus")
        fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", 8, 80, 0, 0))
        reads("and 3 more")
        fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 80, 0, 0))
        reads("fallen off the bus")
        assert process.poll() is None
