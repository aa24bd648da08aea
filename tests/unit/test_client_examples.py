"""The examples, run as a user runs them: vector_sum.py alone, and launcher.py on an allocation."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from fmproto.v1 import job_pb2
from tests.support.scripted_scheduler import Refusal, Served, bad_request, eventually, placed, serving, unused_port

EXAMPLES = Path(__file__).parents[2] / "examples"
LAUNCHER, VECTOR_SUM = EXAMPLES / "launcher.py", EXAMPLES / "vector_sum.py"


def ranks(size: int, order: list[int], *options: str) -> list[tuple[int, str, str]]:
    """(exit code, stdout, stderr) of each rank, started in `order`."""
    meeting = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(unused_port())}
    started = {
        rank: subprocess.Popen(
            [sys.executable, VECTOR_SUM, *options],
            env=os.environ | meeting | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in order
    }
    results = []
    for rank in sorted(started):
        out, err = started[rank].communicate(timeout=60)
        results.append((started[rank].returncode, out, err))
    return results


@pytest.mark.parametrize(("size", "order"), [(1, [0]), (2, [1, 0]), (8, [7, 6, 5, 4, 3, 2, 1, 0])])
def test_ranks_meet_in_any_order_of_start(size: int, order: list[int]) -> None:
    for rank, (code, out, err) in enumerate(ranks(size, order)):
        assert (code, err) == (0, "")
        assert out.startswith(f"rank {rank} of {size}: sum ok on ")


def test_ranks_that_do_not_all_come_say_so_and_fail() -> None:
    found = ranks(3, [0, 1], "--deadline", "1")
    assert [code for code, _, _ in found] == [1, 1]
    assert all("did not meet at 127.0.0.1:" in err for _, _, err in found)


@contextmanager
def launch(served: Served, *options: str) -> Iterator[subprocess.Popen[str]]:
    """A launcher that does not outlive the block; its ranks die with it."""
    command = [sys.executable, str(LAUNCHER), "--server", served.address, *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as launcher:
        try:
            yield launcher
        finally:
            launcher.kill()


def four_ranks(served: Served) -> None:
    """Each submit makes a job of its own with four ranks."""
    numbers = itertools.count()
    served.scheduler.on_submit = lambda _: placed(f"gang-{next(numbers)}", 4)


def alive(pid_file: Path) -> bool:
    """A zombie that a slow init has not reaped yet is dead."""
    try:
        stat = Path(f"/proc/{pid_file.read_text().strip()}/stat").read_text()
        return stat.rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def state(served: Served) -> int:
    return served.scheduler.jobs["gang-0"].status.state


def test_a_launcher_runs_its_ranks_and_gives_the_gpus_back() -> None:
    with serving() as served:
        four_ranks(served)
        with launch(served) as launcher:
            out, err = launcher.communicate(timeout=60)
        assert err == ""
        assert out.splitlines()[0] == "launcher: job gang-0: 4 GPUs on n0 (GPU 0,1), n1 (GPU 0,1)"
        assert out.count("sum ok on n0, device ") == out.count("sum ok on n1, device ") == 2
        assert out.splitlines()[-1] == "launcher: 4 ranks ended well"
        assert state(served) == job_pb2.JOB_STATE_CANCELLED


def test_a_rank_that_fails_fails_the_launcher_with_its_code() -> None:
    with serving() as served:
        four_ranks(served)
        with launch(served, "--", "sh", "-c", 'if [ "$RANK" = 2 ]; then exit 7; fi; exec sleep 60') as launcher:
            _, err = launcher.communicate(timeout=60)
        assert (launcher.returncode, err) == (7, "launcher: rank 2 ended with 7; the others are stopped\n")
        assert state(served) == job_pb2.JOB_STATE_CANCELLED


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_a_killed_launcher_leaves_no_rank_behind_and_stops_holding(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    with serving() as served:
        four_ranks(served)
        write_pid = f"echo $$ > {tmp_path}/$RANK.new; mv {tmp_path}/$RANK.new {tmp_path}/$RANK; exec sleep 60"
        with launch(served, "--", "sh", "-c", write_pid) as launcher:
            eventually("four ranks run", lambda: {f.name for f in tmp_path.iterdir()} == {"0", "1", "2", "3"})
            eventually("it is held", lambda: served.run(served.scheduler.streams()) == 1)
            launcher.send_signal(number)
            launcher.communicate(timeout=30)
        assert launcher.returncode == code
        for rank in range(4):
            eventually(f"rank {rank} is gone", lambda file=tmp_path / str(rank): not alive(file))  # type: ignore[misc]
        eventually("nobody holds it", lambda: served.run(served.scheduler.streams()) == 0)
        given_back = state(served) == job_pb2.JOB_STATE_CANCELLED
        assert given_back == (number is not signal.SIGKILL), "after a SIGKILL it is the scheduler that frees, by hold_s"


def test_a_launcher_whose_gpus_are_taken_away_stops_its_ranks() -> None:
    with serving() as served:
        four_ranks(served)
        with launch(served, "--", "sleep", "60") as launcher:
            assert launcher.stdout is not None
            assert "4 GPUs" in launcher.stdout.readline(), "only now it has seen the job run"
            eventually("it is held", lambda: served.run(served.scheduler.streams()) == 1)
            taken = placed("gang-0", 4)
            taken.status.state, taken.status.reason = job_pb2.JOB_STATE_PREEMPTED, "for a job of higher priority"
            served.run(served.scheduler.put(taken))
            _, err = launcher.communicate(timeout=30)
        words = "launcher: the GPUs are lost: job gang-0 is preempted, waiting: for a job of higher priority\n"
        assert (launcher.returncode, err) == (1, words)


def test_a_launcher_with_a_manifest_that_has_a_template_says_where_and_what_to_do(tmp_path: Path) -> None:
    manifest = tmp_path / "job.yaml"
    manifest.write_text("kind: FoundationModelTrainingJob\n")
    faults = bad_request(("line 0: spec.template", "found a template; leave it out"), ("line 7: spec.x", "found 1"))
    refusal = Refusal(grpc.StatusCode.INVALID_ARGUMENT, "2 faults", details=(faults,))
    with serving(refusals={"Submit": [refusal]}) as served, launch(served, "--manifest", str(manifest)) as launcher:
        _, err = launcher.communicate(timeout=60)
    assert launcher.returncode == 2
    assert err.splitlines() == [
        f"launcher: {manifest}: spec.template: found a template; leave it out",
        f"launcher: {manifest}:7: spec.x: found 1",
        "launcher: the command after -- is what each rank runs; `fmctl submit -f` runs a manifest's own template",
    ]


def test_a_launcher_without_its_manifest_says_so(tmp_path: Path) -> None:
    with serving() as served, launch(served, "--manifest", str(tmp_path / "none.yaml")) as launcher:
        _, err = launcher.communicate(timeout=60)
    assert (launcher.returncode, err.count("\n")) == (1, 1)
    assert "none.yaml" in err
