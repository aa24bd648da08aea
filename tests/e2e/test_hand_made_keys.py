"""Keys that nobody of ours wrote, and keys that somebody took away: nothing crashes, no rank stops, the queue goes on."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fmclient import Client
from fmproto import keys
from fmproto.v1 import hardware_pb2 as hw
from fmproto.v1 import job_pb2 as pb
from fmsched.offline.local import LocalCluster
from tests.support.etcd import etcdctl_binary
from tests.support.live import alive, live, manifest, record, starts, state, until

Live = tuple[LocalCluster, Client]


def etcdctl(cluster: LocalCluster, *words: str, value: bytes = b"") -> bytes:
    command = [str(etcdctl_binary()), "--endpoints", cluster.etcd_endpoint, *words]
    done = subprocess.run(command, input=value, env={**os.environ, "ETCDCTL_API": "3"}, capture_output=True, check=True)
    return done.stdout


def put(cluster: LocalCluster, key: str, value: bytes) -> None:
    if value:
        etcdctl(cluster, "put", "--", keys.ROOT + key, value=value)
    else:
        etcdctl(cluster, "put", "--", keys.ROOT + key, "")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with live(tmp_path_factory.mktemp("cluster"), nodes=("n1", "n2")) as (local, client):
        yield local, client


GARBAGE = b"\xff\xfe garbage"
SPINES = hw.Fabric(switches=[hw.Switch(name="twice"), hw.Switch(name="twice")]).SerializeToString()
STRANGE = [
    ("nodes/n1/runs", b""), ("decisions", b""), ("intents", b""), ("assignments", b""), ("assignments/n1", b""),
    ("nodes/n1/runs/ghost", GARBAGE), ("nodes/n9/inventory", GARBAGE), ("nodes/n9/inventory", b""),
    ("nodes/n9/inventory", hw.Inventory(node="n1").SerializeToString()), ("nodes/n9/alive", GARBAGE),
    ("intents/n1", GARBAGE), ("jobs/x/spec", GARBAGE), ("jobs/x/status", GARBAGE), ("jobs/x/wanted", GARBAGE),
    ("assignments/n1/ghost", GARBAGE), ("ledger", GARBAGE), ("echo", GARBAGE), ("election/zz", b"x"),
    ("fabric/map", GARBAGE), ("fabric/map", SPINES), ("x/y/z/w", GARBAGE),
]  # fmt: skip


@pytest.mark.parametrize(("key", "value"), STRANGE, ids=[f"{i}-{key}" for i, (key, _) in enumerate(STRANGE)])
def test_a_strange_key_does_no_harm(cluster: Live, tmp_path: Path, key: str, value: bytes) -> None:
    local, client = cluster
    before = etcdctl(local, "get", "--print-value-only", "--", keys.ROOT + key) if key == "fabric/map" else b""
    job = client.submit(manifest("bystander", record(tmp_path, "sleep 600"), gpus=2)).spec.id
    client.wait(job, until="running", timeout_s=30)
    pids = [pid for _, _, pid in until("ranks", lambda: len(starts(tmp_path)) == 2 and starts(tmp_path))]
    put(local, key, value)
    try:
        time.sleep(0.5)  # what would crash has crashed
        local.check()
        # A garbage report closes its node: the other one still serves.
        other = client.submit(manifest("goes-on", "true", gpus=1)).spec.id
        assert client.wait(other, until="ended", timeout_s=30).status.state == pb.JOB_STATE_SUCCEEDED
        client.nodes()
        assert client.list()
        assert all(alive(pid) for pid in pids)
        assert len(starts(tmp_path)) == 2
    finally:
        etcdctl(local, "del", "--", keys.ROOT + key)
        if before:
            put(local, key, before.rstrip(b"\n"))
    local.check()
    client.cancel(job)
    client.wait(job, until="ended", timeout_s=30)


@pytest.mark.parametrize("taken", ["inventory", "decision", "alive", "echo", "ledger"])
def test_a_key_that_is_taken_away_does_not_make_a_rank_run_twice(cluster: Live, tmp_path: Path, taken: str) -> None:
    local, client = cluster
    stubborn = record(tmp_path, "trap '' TERM; while :; do sleep 0.2; done").replace("trap ''", 'trap ""')
    text = manifest("victim", stubborn, gpus=8).replace("  template:", "  gracePeriod: 2s\n  template:")
    job = client.submit(text).spec.id
    node = client.wait(job, until="running", timeout_s=30).status.nodes[0]
    first = [pid for _, _, pid in until("ranks", lambda: len(starts(tmp_path)) == 8 and starts(tmp_path))]
    key = {"inventory": f"nodes/{node}/inventory", "decision": f"decisions/{job}", "alive": f"nodes/{node}/alive"}.get(
        taken, taken
    )
    etcdctl(local, "del", "--", keys.ROOT + key)
    overlap = []
    deadline_s = time.monotonic() + 6
    while time.monotonic() < deadline_s:
        seconds = [pid for _, attempt, pid in starts(tmp_path) if attempt > 1]
        overlap += [pid for pid in seconds if alive(pid) and any(alive(old) for old in first)]
        time.sleep(0.05)
    assert not overlap
    local.check()
    client.cancel(job)
    client.wait(job, until="ended", timeout_s=60)
    until("every GPU is free", lambda: not any(node.holders for node in client.nodes().nodes))
    until("both nodes are ready", lambda: sum(node.state == "ready" for node in client.nodes().nodes) == 2, timeout_s=60)


@pytest.mark.parametrize("taken", ["spec", "status"])
def test_a_job_whose_record_is_gone_is_ended(cluster: Live, tmp_path: Path, taken: str) -> None:
    local, client = cluster
    job = client.submit(manifest("lost", record(tmp_path, "sleep 600"), gpus=2)).spec.id
    client.wait(job, until="running", timeout_s=30)
    pids = [pid for _, _, pid in until("ranks", lambda: len(starts(tmp_path)) == 2 and starts(tmp_path))]
    etcdctl(local, "del", "--", f"{keys.JOBS}{job}/{taken}")
    until("its ranks are gone", lambda: not any(alive(pid) for pid in pids))
    until("its GPUs are free", lambda: not any(node.holders for node in client.nodes().nodes))


def test_one_request_id_makes_one_job(cluster: Live) -> None:
    import threading

    local, client = cluster
    ids: list[str] = []

    def call() -> None:
        with Client(local.server, timeout_s=30) as one:
            ids.append(one.submit(manifest("once", "true"), request_id="the-same").spec.id)

    callers = [threading.Thread(target=call) for _ in range(20)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(60)
    assert len(ids) == 20
    assert len(set(ids)) == 1
    assert state(client, ids[0]) in ("queued", "committed", "preparing", "running", "stopping", "succeeded")


def test_an_order_with_a_term_of_the_future_poisons_nobody(cluster: Live) -> None:
    local, client = cluster
    evil = pb.Assignment(job="evil", attempt=1, term=1 << 60, phase=pb.PHASE_PREPARE, node="n1")
    put(local, "assignments/n1/evil", evil.SerializeToString())
    time.sleep(0.5)
    etcdctl(local, "del", "--", f"{keys.ASSIGNMENTS}n1/evil")
    job = client.submit(manifest("after", "true", gpus=8, replicas=2)).spec.id
    assert client.wait(job, until="ended", timeout_s=40).status.state == pb.JOB_STATE_SUCCEEDED
