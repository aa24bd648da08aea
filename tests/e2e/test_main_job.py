"""One job from submit to release on real parts, and what may befall it on the way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fmclient import Client, errors
from fmproto.v1 import job_pb2 as pb
from fmsched.offline.local import LocalCluster
from tests.support.live import alive, live, manifest, ready, record, starts, state, until

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LocalCluster, Client]]:
    with live(tmp_path_factory.mktemp("cluster")) as (local, client):
        yield local, client


def test_ranks_get_their_environment(cluster: tuple[LocalCluster, Client], tmp_path: Path) -> None:
    _, client = cluster
    client.submit(
        manifest("env", f"env > {tmp_path}/env.$RANK; cp $FMSCHED_PLACEMENT {tmp_path}/placement.$RANK", gpus=8, replicas=2)
    )
    job = client.wait("env", until="ended", timeout_s=30)
    assert job.status.state == pb.JOB_STATE_SUCCEEDED, job.status
    envs = [
        dict(line.split("=", 1) for line in (tmp_path / f"env.{rank}").read_text().splitlines() if "=" in line)
        for rank in range(16)
    ]
    assert [env["RANK"] for env in envs] == [str(rank) for rank in range(16)]
    assert {env["WORLD_SIZE"] for env in envs} == {"16"}
    assert {env["LOCAL_WORLD_SIZE"] for env in envs} == {"8"}
    assert sorted(env["LOCAL_RANK"] for env in envs) == sorted(str(i) for i in [*range(8), *range(8)])
    assert {env["NODE_RANK"] for env in envs} == {"0", "1"}
    assert len({(env["MASTER_ADDR"], env["MASTER_PORT"]) for env in envs}) == 1
    placement = json.loads((tmp_path / "placement.0").read_text())
    assert all((tmp_path / f"placement.{rank}").read_text() == (tmp_path / "placement.0").read_text() for rank in range(16))
    assert len(placement["ranks"]) == 16
    for rank in placement["ranks"]:
        visible = envs[rank["rank"]]["CUDA_VISIBLE_DEVICES"].split(",")
        assert len(visible) == 8
        assert visible[int(envs[rank["rank"]]["LOCAL_RANK"])] == rank["gpu"]["uuid"]
    assert all(env["NCCL_IB_HCA"].startswith("=mlx5_") for env in envs)
    assert all(env["NCCL_SOCKET_IFNAME"].startswith("=") for env in envs if "NCCL_SOCKET_IFNAME" in env)


def test_logs_of_every_rank_live_and_after_the_end(cluster: tuple[LocalCluster, Client], tmp_path: Path) -> None:
    _, client = cluster
    client.submit(
        manifest("talks", f"echo hello from $RANK; while [ ! -e {tmp_path}/go ]; do sleep 0.05; done; printf last", gpus=4)
    )
    client.wait("talks", until="running", timeout_s=30)
    first = until("the first lines", lambda: logs(client, "talks") if logs(client, "talks").count(b"hello") == 4 else None)
    assert sorted(first.split()) == sorted(b" ".join(b"hello from %d" % rank for rank in range(4)).split())
    (tmp_path / "go").touch()
    client.wait("talks", until="ended", timeout_s=30)
    assert logs(client, "talks").count(b"last") == 4, "the end without a newline is not lost"
    assert logs(client, "talks", ranks=[2]) == b"hello from 2\nlast"


def logs(client: Client, job: str, ranks: list[int] | None = None) -> bytes:
    return b"".join(chunk.data for chunk in client.logs(job, ranks=ranks or []))


def test_a_failed_rank_stops_the_gang_and_is_named(cluster: tuple[LocalCluster, Client], tmp_path: Path) -> None:
    _, client = cluster
    script = record(tmp_path, 'if [ $RANK = 5 ]; then echo "out of memory" >&2; exit 3; fi; sleep 600')
    client.submit(manifest("fails", script, gpus=8))
    job = client.wait("fails", until="ended", timeout_s=30)
    assert job.status.state == pb.JOB_STATE_FAILED
    assert (job.status.first_failure.rank, job.status.first_failure.exit_code) == (5, 3)
    assert "out of memory" in job.status.first_failure.last_lines
    assert not any(alive(pid) for _, _, pid in starts(tmp_path))


def test_a_command_that_does_not_exist_fails_the_job_and_blames_no_node(cluster: tuple[LocalCluster, Client]) -> None:
    _, client = cluster
    text = manifest("typo", "true").replace('["/bin/sh", "-c", \'true\']', '["/no/such/program"]')
    client.submit(text)
    job = client.wait("typo", until="ended", timeout_s=30)
    assert job.status.state == pb.JOB_STATE_FAILED
    assert "/no/such/program" in job.status.reason + job.status.first_failure.reason + job.status.first_failure.last_lines
    assert job.status.restarts == 0


def test_cancel_stops_every_process(cluster: tuple[LocalCluster, Client], tmp_path: Path) -> None:
    _, client = cluster
    # A child in its own session, which a kill of the process group would miss.
    script = record(tmp_path, f"setsid sh -c 'echo $$ > {tmp_path}/escaped.$RANK; sleep 600' & wait")
    client.submit(manifest("cancelled", script, gpus=8))
    client.wait("cancelled", until="running", timeout_s=30)
    escaped = until(
        "children",
        lambda: len(files := list(tmp_path.glob("escaped.*"))) == 8 and all(f.read_text() for f in files) and files,
    )
    client.cancel("cancelled")
    job = client.wait("cancelled", until="ended", timeout_s=40)
    assert job.status.state == pb.JOB_STATE_CANCELLED
    assert not any(alive(int(path.read_text())) for path in escaped)


def test_the_same_manifest_again_is_another_job(cluster: tuple[LocalCluster, Client]) -> None:
    _, client = cluster
    first = client.submit(manifest("again", "true"), request_id="r-1")
    assert client.submit(manifest("again", "true"), request_id="r-1").spec.id == first.spec.id
    second = client.submit(manifest("again", "true")).spec.id
    assert second != first.spec.id
    assert client.get("again").spec.id == second
    assert client.get(first.spec.id).spec.id == first.spec.id


def test_what_can_never_run_is_refused_with_reasons(cluster: tuple[LocalCluster, Client]) -> None:
    _, client = cluster
    with pytest.raises(errors.CannotBePlaced) as caught:
        client.submit(manifest("huge", "true", gpus=16))
    assert "16" in str(caught.value)
    assert not [job for job in client.list() if job.spec.name == "huge"]


def test_a_full_cluster_queues_says_why_and_starts_when_there_is_room(cluster: tuple[LocalCluster, Client]) -> None:
    _, client = cluster
    until("the cluster is empty", lambda: not any(node.holders for node in client.nodes().nodes))
    client.submit(manifest("fills", "sleep 600", gpus=8, replicas=4))
    client.wait("fills", until="running", timeout_s=30)
    client.submit(manifest("waits", "true", gpus=8))
    explained = until("a reason", lambda: (e := client.explain("waits")).why and e)
    assert not explained.never
    assert any("fills" in f"{why.best} {why.where} {why.relax}" for why in explained.why), explained
    assert client.get("waits").queue_position == 1
    client.cancel("fills")
    client.wait("waits", until="ended", timeout_s=40)
    assert state(client, "waits") == "succeeded"


def test_a_broken_gpu_moves_the_gang(tmp_path: Path) -> None:
    with live(tmp_path / "cluster") as (local, client):
        client.submit(manifest("moves", record(tmp_path, f"while [ ! -e {tmp_path}/go ]; do sleep 0.1; done"), gpus=8))
        client.wait("moves", until="running", timeout_s=30)
        node = client.get("moves").decision.ranks[3].node
        # As the hardware would show it: the description now names a fault.
        leaf = "leaf1" if node in ("n1", "n2") else "leaf2"
        fault = f'leaf: {leaf}, faults: {{{node}/gpu3: "Xid 79: fallen off the bus"}}}}'
        local.cluster_file.write_text(local.cluster_file.read_text().replace(f"leaf: {leaf}}}", fault))
        until("it is placed again", lambda: (d := client.get("moves").decision).attempt == 2 and d.start, timeout_s=40)
        assert {rank.node for rank in client.get("moves").decision.ranks} != {node}
        (tmp_path / "go").touch()
        job = client.wait("moves", until="ended", timeout_s=30)
        assert job.status.state == pb.JOB_STATE_SUCCEEDED
        assert job.status.restarts == 1
        assert any("Xid 79" in event.reason for event in job.status.events)


def test_drain_keeps_what_runs_and_takes_nothing_new(cluster: tuple[LocalCluster, Client], tmp_path: Path) -> None:
    _, client = cluster
    until("the cluster is empty", lambda: not any(node.holders for node in client.nodes().nodes))
    client.submit(manifest("stays", f"while [ ! -e {tmp_path}/go ]; do sleep 0.05; done", gpus=8))
    node = client.wait("stays", until="running", timeout_s=30).status.nodes[0]
    assert client.drain(node, "hardware suspected").state == "draining"
    client.submit(manifest("others", "sleep 600", gpus=8, replicas=3))
    assert node not in client.wait("others", until="running", timeout_s=30).status.nodes
    client.submit(manifest("late", "true", gpus=8))
    until("a reason", lambda: client.explain("late").why)
    assert state(client, "stays") == "running"
    (tmp_path / "go").touch()
    client.wait("stays", until="ended", timeout_s=30)
    assert until("drained", lambda: next(n for n in client.nodes().nodes if n.name == node).state == "drained")
    assert state(client, "late") == "queued"
    client.undrain(node)
    client.wait("late", until="ended", timeout_s=30)
    client.cancel("others")
    client.wait("others", until="ended", timeout_s=40)


def test_an_allocation_is_given_back_when_its_launcher_is_killed(
    cluster: tuple[LocalCluster, Client], tmp_path: Path
) -> None:
    local, client = cluster
    until("the cluster is empty", lambda: not any(node.holders for node in client.nodes().nodes))
    program = (
        "from fmclient import Client; import time, sys\n"
        f"text = '''{manifest('taken', 'true', gpus=4)}'''.split('  template:')[0]\n"
        f"with Client('{local.server}') as client, client.allocate(text, hold_s=2) as allocation:\n"
        "    print('have', allocation.placement, flush=True); time.sleep(600)\n"
    )
    launcher = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    try:
        assert launcher.stdout is not None
        assert launcher.stdout.readline().startswith(b"have")
        assert state(client, "taken") == "running"
        assert sum(len(node.holders) for node in client.nodes().nodes) == 4
        os.kill(launcher.pid, signal.SIGKILL)
        client.wait("taken", until="ended", timeout_s=30)
        until("the GPUs are free", lambda: not any(node.holders for node in client.nodes().nodes))
    finally:
        launcher.kill()
        launcher.wait()
        launcher.stdout.close()  # type: ignore[union-attr]


def test_a_node_that_vanishes_and_returns(tmp_path: Path) -> None:
    with live(tmp_path / "cluster", nodes=("n1", "n2")) as (local, client):
        local.part("agent-n2").kill()
        until("it is unreachable", lambda: next(n for n in client.nodes().nodes if n.name == "n2").state == "unreachable")
        client.submit(manifest("elsewhere", "true", gpus=8))
        assert client.wait("elsewhere", until="ended", timeout_s=30).status.nodes[0] == "n1"
        local.start_agent("n2")
        until("it is back", lambda: ready(client) == 2)
