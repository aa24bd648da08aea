"""kill -9 of every part, with real processes: afterwards `get jobs` is right, no rank ran twice, none is orphaned."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from fmsched.offline.local import LocalCluster
from tests.support.live import alive, live, manifest, ready, record, starts, state, until

CRASHING = (sys.executable, "-m", "tests.support.crashing_scheduler")


@pytest.mark.parametrize("moment", ["submit", "commit", "prepare", "start", "stop", "release"])
def test_scheduler_killed_after_a_write(tmp_path: Path, moment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mark = tmp_path / "crashed"
    monkeypatch.setenv("FMSCHED_TEST_CRASH", f"{moment}:{mark}")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).resolve().parents[2]))
    cluster = LocalCluster.start_scheduler
    monkeypatch.setattr(LocalCluster, "start_scheduler", lambda self, name="scheduler": cluster(self, name, CRASHING))
    with live(tmp_path / "cluster") as (local, client):
        # Over all four nodes, so that every write concerns several of them. From a thread: a crash may take the answer with it,
        # and then the client repeats the call and finds its own job.
        text = manifest("gang", record(tmp_path, "sleep 1"), gpus=8, replicas=4)
        answers: list[str] = []
        caller = threading.Thread(target=lambda: answers.append(client.submit(text, request_id="once").spec.id))
        caller.start()
        until("the scheduler crashed", mark.exists)
        until("it is gone", lambda: not local.part("scheduler").alive())
        local.start_scheduler()
        caller.join(30)
        assert answers == ["gang.1"]
        began_s = time.monotonic()
        client.wait("gang", until="ended", timeout_s=60)
        assert time.monotonic() - began_s < 30
        assert state(client, "gang") == "succeeded"
        assert len(client.list()) == 1
        ran = starts(tmp_path)
        assert sorted(rank for rank, _, _ in ran) == list(range(32)), "each rank ran exactly once"
        assert {attempt for _, attempt, _ in ran} == {1}
        until("every GPU is free", lambda: not any(node.holders for node in client.nodes().nodes))


def test_agent_killed_while_its_ranks_run(tmp_path: Path) -> None:
    with live(tmp_path / "cluster") as (local, client):
        script = record(tmp_path, f"i=0; while [ ! -e {tmp_path}/go ]; do sleep 0.1; done; exit 0")
        client.submit(manifest("gang", script, gpus=8, replicas=4))
        client.wait("gang", until="running", timeout_s=30)
        pids = {
            rank: pid
            for rank, _, pid in until("all have started", lambda: len(starts(tmp_path)) == 32 and starts(tmp_path))
        }
        for node in ("n1", "n3"):
            local.part(f"agent-{node}").kill()
        (tmp_path / "go").touch()  # ranks end while two agents are dead
        until("the ranks have ended", lambda: not any(alive(pid) for pid in pids.values()))
        for node in ("n1", "n3"):
            local.start_agent(node)
        client.wait("gang", until="ended", timeout_s=30)
        assert state(client, "gang") == "succeeded"
        assert len(starts(tmp_path)) == 32


def test_agent_restarted_adopts_and_still_stops(tmp_path: Path) -> None:
    with live(tmp_path / "cluster") as (local, client):
        client.submit(manifest("gang", record(tmp_path, "sleep 600"), gpus=8, replicas=2))
        client.wait("gang", until="running", timeout_s=30)
        node = client.get("gang").decision.ranks[0].node
        local.part(f"agent-{node}").kill()
        local.start_agent(node)
        pids = [pid for _, _, pid in until("all have started", lambda: len(starts(tmp_path)) == 16 and starts(tmp_path))]
        time.sleep(2)  # long enough for an agent that would double or stop them to have done so
        assert all(alive(pid) for pid in pids)
        assert len(starts(tmp_path)) == 16
        client.cancel("gang")
        client.wait("gang", until="ended", timeout_s=30)
        assert not any(alive(pid) for pid in pids)


def test_etcd_killed_for_20_seconds(tmp_path: Path) -> None:
    with live(tmp_path / "cluster") as (local, client):
        client.submit(manifest("stays", record(tmp_path, "sleep 600"), gpus=8, replicas=2))
        client.submit(manifest("ends", f"while [ ! -e {tmp_path}/go ]; do sleep 0.1; done; exit 7", gpus=1))
        client.wait("stays", until="running", timeout_s=30)
        client.wait("ends", until="running", timeout_s=30)
        pids = [pid for _, _, pid in until("all have started", lambda: len(starts(tmp_path)) == 16 and starts(tmp_path))]
        local.part("etcd").kill()
        (tmp_path / "go").touch()  # a rank fails while nobody can be told
        time.sleep(20)
        local.start_etcd()
        began_s = time.monotonic()
        job = client.wait("ends", until="ended", timeout_s=30)
        assert time.monotonic() - began_s < 30
        assert state(client, "ends") == "failed"
        assert job.status.first_failure.exit_code == 7
        until("every node is back", lambda: ready(client) == 4)
        assert state(client, "stays") == "running"
        assert all(alive(pid) for pid in pids)
        assert len(starts(tmp_path)) == 16, "no rank was started again"
        client.cancel("stays")
        client.wait("stays", until="ended", timeout_s=30)
        assert not any(alive(pid) for pid in pids)


def test_all_parts_killed_at_once(tmp_path: Path) -> None:
    with live(tmp_path / "cluster") as (local, client):
        client.submit(
            manifest("gang", record(tmp_path, f"while [ ! -e {tmp_path}/go ]; do sleep 0.1; done"), gpus=8, replicas=4)
        )
        client.wait("gang", until="running", timeout_s=30)
        until("all have started", lambda: len(starts(tmp_path)) == 32)
        names = list(local.parts)
        for name in names:
            os.kill(local.part(name).pid, signal.SIGKILL)
        for name in names:
            local.part(name).kill()
        (tmp_path / "go").touch()
        local.start_etcd()
        local.start_scheduler()
        for node in local.nodes:
            local.start_agent(node)
        client.wait("gang", until="ended", timeout_s=60)
        assert state(client, "gang") == "succeeded"
        assert len(starts(tmp_path)) == 32
