"""fmctl against a live cluster: the counts of top and get queues, and what the real service refuses, in fmctl's words."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fmclient import Client
from fmsched.offline.local import LocalCluster
from tests.support.live import live, manifest, until

Live = tuple[LocalCluster, Client]
RESEARCH = "  queue: research\n"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """n1 and n2 with 8 GPUs each. "train" holds n1 or n2 in no queue; "eval" holds 2 of the other's GPUs, "big" waits for 16."""
    with live(tmp_path_factory.mktemp("cluster"), nodes=("n1", "n2")) as (local, client):
        submitted = [
            client.submit(manifest("train", "sleep 600", gpus=8)),
            client.submit(manifest("eval", "sleep 600", gpus=2, extra=RESEARCH)),
        ]
        for job in submitted:
            client.wait(job.spec.id, until="running", timeout_s=60)
        submitted.append(client.submit(manifest("big", "sleep 600", gpus=8, replicas=2, extra=RESEARCH)))
        until("the newest job has its reasons", lambda: bool(client.get("big").status.why))
        yield local, client
        for job in submitted:
            client.cancel(job.spec.id)
            client.wait(job.spec.id, timeout_s=30)


def process(cluster: LocalCluster, *words: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "FMSCHED_SERVER": cluster.server}
    command = [sys.executable, "-m", "fmclient.cli.main", *words]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)


def fmctl(cluster: LocalCluster, *words: str, code: int = 0) -> str:
    """Its standard output, or standard error where it is to fail."""
    done = process(cluster, *words)
    assert done.returncode == code, done.stderr
    return done.stderr if code else done.stdout


def data(cluster: LocalCluster, *words: str) -> Any:
    return json.loads(fmctl(cluster, *words, "-o", "json"))


def test_get_queues_counts_what_runs_and_what_waits(cluster: Live) -> None:
    local, client = cluster
    default, research = data(local, "get", "queues")["items"]
    counted = ("name", "running", "gpusHeld", "waiting", "gpusAsked", "nextJob")
    big = client.get("big").spec.id
    assert [default[name] for name in counted] == ["default", 1, 8, 0, 0, ""]
    assert [research[name] for name in counted] == ["research", 1, 2, 1, 16, big]
    assert default["oldestWaitingMs"] == "0"
    assert int(research["oldestWaitingMs"]) > 0
    assert "16 GPUs" in research["nextWhy"]
    assert fmctl(local, "get", "queues", "-o", "name") == "default\nresearch\n"
    assert fmctl(local, "get", "queues", "research", "-o", "wide").splitlines()[1].endswith(research["nextWhy"])


def test_top_counts_as_the_cluster_is(cluster: Live) -> None:
    local, _ = cluster
    found = data(local, "top")
    assert found["cluster"] == {
        "nodes": {"ready": 2, "all": 2},
        "gpus": {"held": 10, "free": 6, "notUsable": 0},
        "jobs": {"running": 2, "waiting": 1, "startingOrStopping": 0},
        "store": "ok",
        "leader": local.server,
    }
    assert [node["gpus"]["held"] for node in found["nodes"]] == [8, 2]
    assert [(job["name"], job["gpusHeld"], job["gpusAsked"]) for job in found["jobs"]] == [
        ("train", 8, 8), ("eval", 2, 2), ("big", 0, 16),
    ]  # fmt: skip
    assert found["jobs"][0]["nodes"] == [found["nodes"][0]["name"]]


def test_top_shows_a_drained_node_first(cluster: Live) -> None:
    local, client = cluster
    half_full = data(local, "top", "nodes")["nodes"][1]["name"]
    client.drain(half_full, "new cables")
    lines = fmctl(local, "top", "nodes").splitlines()
    assert lines[0] == "nodes: 1 of 2 ready   16 GPUs: 10 held, 0 free, 6 not usable"
    assert lines[5].split() == [half_full, "draining", "2/8", "██------", "new", "cables"]
    client.undrain(half_full)
    until("it is open again", lambda: data(local, "top", "nodes")["cluster"]["nodes"]["ready"] == 2)


def test_an_ended_job_has_no_unknown_ranks_and_is_not_cancelled_again(cluster: Live) -> None:
    local, client = cluster
    job = client.submit(manifest("brief", "echo here", gpus=1)).spec.id
    client.wait(job, timeout_s=60)
    assert fmctl(local, "logs", job, "--rank", "0") == "here\n"
    assert "rank 99" in fmctl(local, "logs", job, "--rank", "99", code=3)
    assert process(local, "cancel", job).stderr == f"fmctl: job {job} had already succeeded\n"


def test_a_waiting_job_is_cancelled_and_has_no_logs(cluster: Live) -> None:
    local, client = cluster
    job = client.submit(manifest("late", "sleep 600", gpus=8, replicas=2)).spec.id
    assert f"fmctl: {job} has not run yet: it is waiting (" in fmctl(local, "logs", job, code=1)
    assert fmctl(local, "cancel", job) in (f"job {job}: cancelling\n", f"job {job}: cancelled\n")
    client.wait(job, timeout_s=30)
    assert process(local, "cancel", "late").stderr == f"fmctl: job {job} had already been cancelled\n"


def test_what_can_never_run_is_refused_once_and_each_reason_is_told(cluster: Live, tmp_path: Path) -> None:
    local, _ = cluster
    path = tmp_path / "huge.yaml"
    path.write_text(manifest("huge", "sleep 600", gpus=8, replicas=40))
    first, *reasons = fmctl(local, "submit", "-f", str(path), code=4).splitlines()
    assert first == "fmctl: job huge can never run on this cluster"
    assert reasons[0].startswith("  GPU count: asked 40 × 8 = 320 GPUs; best is 16 H100")
    assert reasons[1].startswith("    would help: ")


def test_a_leaf_group_that_is_not_there_is_code_3(cluster: Live) -> None:
    local, _ = cluster
    assert fmctl(local, "topo", "show", "--leaf", "nope", code=3) == "fmctl: no leaf group named 'nope'; there are: leaf1\n"
