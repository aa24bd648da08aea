"""fmctl as a process: pipes, signals, colours, imports, and what is printed while it watches."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fmclient.cli import exits
from fmproto.v1 import job_pb2
from tests.support.client_cluster import chunks, cluster, jobs
from tests.support.scripted_scheduler import Served, eventually, job, serving

# What would change the output. Unbuffered, CPython takes a short write for a whole one and never sees the broken pipe.
UNWANTED = ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "PYTHONUNBUFFERED")
FMCTL = (sys.executable, "-m", "fmclient.cli.main")


@pytest.fixture
def served() -> Iterator[Served]:
    with serving(jobs=jobs(), nodes=cluster(), log_chunks=chunks()) as found:
        yield found


def environment(served: Served | None = None, **more: str) -> dict[str, str]:
    found = {name: value for name, value in os.environ.items() if name not in UNWANTED}
    return found | ({"FMSCHED_SERVER": served.address} if served else {}) | {"TERM": "xterm-256color"} | more


def watching(served: Served, *args: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*FMCTL, *args], env=environment(served), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1
    )


def test_a_reader_that_goes_away_ends_it_quietly(served: Served) -> None:
    for number in range(3_000):
        served.scheduler.jobs[f"job-{number}"] = job(f"job-{number}")
    for form in ("table", "json", "name"):
        reader, writer = os.pipe()
        process = subprocess.Popen(
            [*FMCTL, "get", "jobs", "-o", form], env=environment(served), stdout=writer, stderr=subprocess.PIPE, text=True
        )
        os.close(writer)
        os.read(reader, 10)
        os.close(reader)
        _, err = process.communicate(timeout=30)
        assert (form, process.returncode, err) == (form, exits.BROKEN_PIPE, "")


@pytest.mark.parametrize("command", [("get", "jobs", "-w"), ("logs", "train", "-f"), ("get", "nodes", "-w")], ids=" ".join)
def test_ctrl_c_ends_it_with_130_and_no_traceback(served: Served, command: tuple[str, ...]) -> None:
    served.scheduler.log_ends = False
    process = watching(served, *command)
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=10)
    assert (process.returncode, err) == (exits.INTERRUPTED, "")


def test_a_watch_prints_changes_in_line_with_the_table(served: Served) -> None:
    process = watching(served, "get", "jobs", "-w")
    assert process.stdout is not None
    first = [process.stdout.readline() for _ in range(4)]
    eventually("it watches", lambda: served.run(served.scheduler.streams()) == 1)
    served.run(served.scheduler.put(job("big", job_pb2.JOB_STATE_RUNNING)))
    changed = process.stdout.readline()
    assert changed.index("running") == first[1].index("running") == first[0].index("STATE")
    served.run(served.scheduler.forget("old"))
    assert process.stdout.readline() == "old  deleted\n"
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=10)


def test_a_watch_as_json_is_one_object_a_line_after_the_list(served: Served) -> None:
    served.scheduler.jobs.clear()
    process = watching(served, "get", "jobs", "-w", "-o", "json")
    assert process.stdout is not None
    assert "".join(process.stdout.readline() for _ in range(3)) == '{\n  "items": []\n}\n'
    eventually("it watches", lambda: served.run(served.scheduler.streams()) == 1)
    served.run(served.scheduler.put(job("new")))
    assert json.loads(process.stdout.readline())["spec"]["id"] == "new"
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=10)


def stop(process: subprocess.Popen[str]) -> str:
    """What it had still written."""
    process.send_signal(signal.SIGINT)
    return process.communicate(timeout=10)[0]


def test_a_watch_prints_a_job_only_where_its_row_says_something_new(served: Served) -> None:
    process = watching(served, "get", "jobs", "-w")
    wide = watching(served, "get", "jobs", "-w", "-o", "wide")
    names = watching(served, "get", "jobs", "-w", "-o", "name")
    for each, lines in ((process, 4), (wide, 4), (names, 3)):
        assert each.stdout is not None
        for _ in range(lines):
            each.stdout.readline()
    eventually("they watch", lambda: served.run(served.scheduler.streams()) == 3)
    for number in range(5):
        unseen = job("big", reason=f"reason {number}")
        served.run(served.scheduler.put(unseen))
    served.run(served.scheduler.put(job("end", job_pb2.JOB_STATE_RUNNING)))
    read = [each.stdout.readline() for each in (process, process, names) if each.stdout is not None]
    assert [line.split()[0] for line in read] == ["big", "end", "end"], "its size changed, then only what no row shows"
    assert wide.stdout is not None
    assert [wide.stdout.readline().split()[-1] for _ in range(5)] == list("01234")
    served.run(served.scheduler.forget("end"))
    assert process.stdout is not None
    assert process.stdout.readline() == "end  deleted\n"
    assert [stop(process), stop(names)] == ["", ""]
    stop(wide)


def test_a_watch_as_json_leaves_out_what_is_only_a_process_number(served: Served) -> None:
    process = watching(served, "get", "jobs", "train", "-w", "-o", "json")
    assert process.stdout is not None
    while process.stdout.readline() != "}\n":
        pass
    eventually("it watches", lambda: served.run(served.scheduler.streams()) == 1)
    running = served.scheduler.jobs["train"]
    for pid in (1, 2, 3):
        started = type(running)()
        started.CopyFrom(running)
        started.runs.add(node="n0").ranks.add(rank=0, pid=pid)
        served.run(served.scheduler.put(started))
    served.run(served.scheduler.put(job("train", job_pb2.JOB_STATE_STOPPING)))
    lines = [json.loads(process.stdout.readline()) for _ in range(2)]
    assert [line["status"]["state"] for line in lines] == ["JOB_STATE_RUNNING", "JOB_STATE_STOPPING"]
    assert stop(process) == ""


def test_a_watch_of_live_jobs_shows_their_end_and_no_older_ones(served: Served) -> None:
    process = watching(served, "get", "jobs", "--live", "-w")
    assert process.stdout is not None
    for _ in range(4):
        process.stdout.readline()  # the service that tests use lists the ended too
    eventually("it watches", lambda: served.run(served.scheduler.streams()) == 1)
    served.run(served.scheduler.put(job("gone", job_pb2.JOB_STATE_FAILED)))
    served.run(served.scheduler.put(job("big", job_pb2.JOB_STATE_SUCCEEDED)))
    assert process.stdout.readline().split()[:3] == ["big", "big", "succeeded"]
    assert stop(process) == ""


def test_new_events_are_told_as_they_happen(served: Served) -> None:
    process = watching(served, "get", "events", "-w")
    assert process.stdout is not None
    for _ in range(4):
        process.stdout.readline()
    eventually("it watches", lambda: served.run(served.scheduler.streams()) == 1)
    moved = job("big", job_pb2.JOB_STATE_COMMITTED)
    moved.status.events.add(at_ms=1_800_000_000_000, state=job_pb2.JOB_STATE_COMMITTED, attempt=1, reason="room came")
    served.run(served.scheduler.put(moved))
    assert process.stdout.readline().split()[1:] == ["big", "1", "placed", "room", "came"]
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=10)


def on_a_terminal(served: Served, *args: str, **env: str) -> bytes:
    """What the command writes to a terminal of 80 columns."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*FMCTL, *args], env=environment(served, COLUMNS="80", **env), stdout=theirs, stderr=subprocess.DEVNULL
    )
    os.close(theirs)
    written = b""
    try:
        while part := os.read(ours, 65_536):
            written += part
    except OSError:
        pass  # Linux answers EIO when the last writer has gone
    finally:
        os.close(ours)
        process.wait(10)
    return written


@pytest.mark.parametrize("kind", ["jobs", "nodes", "gpus", "queues", "events"])
def test_a_narrow_terminal_loses_and_squeezes_nothing(served: Served, kind: str) -> None:
    served.scheduler.jobs["big"].status.reason = "a sentence of many words " * 20
    served.scheduler.jobs["big"].status.events[0].reason = "another one of many words " * 20
    command = ("get", kind, "-o", "wide")
    shown = on_a_terminal(served, *command, NO_COLOR="1").decode()
    piped = subprocess.run([*FMCTL, *command], env=environment(served), capture_output=True, text=True, timeout=30)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", shown).replace("\r\n", "\n")
    ages = re.compile(r" +[0-9]+[dhms][0-9dhms]*(?= )")
    assert ages.sub("", plain) == ages.sub("", piped.stdout)


@pytest.mark.parametrize("command", [("get", "jobs"), ("topo", "show"), ("logs", "train")], ids=" ".join)
def test_colours_are_for_terminals_and_no_color_is_heeded(served: Served, command: tuple[str, ...]) -> None:
    assert b"\x1b[3" in on_a_terminal(served, *command)
    plain = on_a_terminal(served, *command, NO_COLOR="1")
    assert not [part for part in plain.split(b"\x1b[")[1:] if part[:1] in b"349"], plain
    piped = subprocess.run([*FMCTL, *command], env=environment(served), capture_output=True, timeout=30, check=True)
    assert b"\x1b" not in piped.stdout


def test_help_and_get_do_not_import_what_they_do_not_use(served: Served) -> None:
    script = "import sys; from fmclient.cli.main import app\ntry: app({})\nfinally: print(*sys.modules, file=sys.stderr)"
    heavy = {"ortools", "numpy", "networkx", "fmsched", "fmagent", "etcd3", "msgspec"}
    for args, unused in ((["--help"], heavy | {"grpc", "ruamel"}), (["get", "jobs"], heavy | {"ruamel"})):
        done = subprocess.run(
            [sys.executable, "-c", script.format(args)],
            env=environment(served),
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        )
        assert not {name.partition(".")[0] for name in done.stderr.split()} & unused


def test_completion_is_printed_for_the_shell_that_asks() -> None:
    """typer finds the shell among the parents of the process, so bash must stay one: it runs a second command after fmctl."""
    script = '"$@"; exit $?'
    done = subprocess.run(
        ["bash", "-c", script, "bash", *FMCTL, "--show-completion"],
        env=environment(), capture_output=True, text=True, timeout=30,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (exits.DONE, "")
    assert "complete -o default -F _fmctl_completion fmctl" in done.stdout


def test_the_installed_script_is_this_program(served: Served) -> None:
    script = Path(sys.executable).with_name("fmctl")
    if not script.exists():
        pytest.skip("fmctl is not installed beside this Python")
    done = subprocess.run(
        [script, "get", "jobs", "-o", "name"], env=environment(served), capture_output=True, text=True, timeout=30
    )
    assert (done.returncode, done.stdout) == (exits.DONE, "train\nbig\nold\n")
