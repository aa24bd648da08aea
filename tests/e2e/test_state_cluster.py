"""The state stories of a whole cluster: a paused leader, a full store, a frozen store, all leases gone at once, too many
pings. At the level of the store alone they are in test_state_0*.py.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
import time
from pathlib import Path

import grpc
import pytest

from fmagent.register import LEASE_TTL_PERIODS
from fmclient import Client, errors
from fmproto import keys
from fmproto.channel import client_options
from fmproto.v1 import job_pb2 as pb
from fmproto.v1 import scheduler_pb2, scheduler_pb2_grpc
from fmsched.offline.local import LocalCluster, find_etcd
from tests.support.etcd import etcdctl_binary
from tests.support.live import NODES, TIMEOUTS, alive, live, manifest, ready, record, starts, state, until


def etcdctl(cluster: LocalCluster, *words: str) -> str:
    env = {**os.environ, "ETCDCTL_API": "3"}
    command = [str(etcdctl_binary()), "--endpoints", cluster.etcd_endpoint, "--command-timeout=20s", *words]
    return subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout


# A watch from revision 1 has sent all of the past once it is silent for so long.
SILENCE_S = 2.0


def decisions_from_the_beginning(cluster: LocalCluster) -> list[tuple[int, str, pb.Decision | None]]:
    """Every revision of every decision, oldest first: (revision, job, decision or None where it was deleted)."""
    import asyncio

    from etcd3.etcdrpc import rpc_pb2, rpc_pb2_grpc

    async def read() -> list[tuple[int, str, pb.Decision | None]]:
        found = []
        async with grpc.aio.insecure_channel(cluster.etcd_endpoint) as channel:
            end = keys.DECISIONS[:-1] + chr(ord(keys.DECISIONS[-1]) + 1)
            create = rpc_pb2.WatchCreateRequest(key=keys.DECISIONS.encode(), range_end=end.encode(), start_revision=1)
            call = rpc_pb2_grpc.WatchStub(channel).Watch()
            await call.write(rpc_pb2.WatchRequest(create_request=create))
            with contextlib.suppress(TimeoutError):
                while True:
                    async with asyncio.timeout(SILENCE_S):
                        answer = await call.read()
                    for event in answer.events:
                        job = event.kv.key.decode().removeprefix(keys.DECISIONS)
                        value = pb.Decision.FromString(event.kv.value) if event.kv.value else None
                        found.append((event.kv.mod_revision, job, value))
            call.cancel()
        return found

    return asyncio.run(read())


def assert_no_gpu_had_two_owners(cluster: LocalCluster) -> None:
    owners: dict[tuple[str, int], str] = {}
    terms: list[int] = []
    for revision, job, decision in decisions_from_the_beginning(cluster):
        owners = {gpu: owner for gpu, owner in owners.items() if owner != job}
        if decision is None:
            continue
        terms.append(decision.term)
        for rank in decision.ranks:
            gpu = (rank.node, rank.gpu_index)
            assert gpu not in owners, f"revision {revision}: {gpu} given to {job} while {owners[gpu]} holds it"
            owners[gpu] = job
    assert terms


@pytest.mark.parametrize("round_", range(2))
def test_state_01_a_paused_leader_still_writes(tmp_path: Path, round_: int) -> None:
    paused_leader(tmp_path, pause_after_s=0.05 + 0.07 * round_)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("round_", range(40))
def test_state_01_at_many_moments(tmp_path: Path, round_: int) -> None:
    paused_leader(tmp_path, pause_after_s=0.02 * round_)


def paused_leader(tmp_path: Path, pause_after_s: float) -> None:
    """Jobs for one and the same GPUs pour in while the leader is stopped for longer than its lease, then goes on."""
    with live(tmp_path / "cluster", nodes=("n1", "n2")) as (local, _):
        local.start_scheduler("second")
        with Client(local.server, timeout_s=20) as both:
            callers = [
                threading.Thread(target=submit_quietly, args=(both, f"j{i}", tmp_path), daemon=True) for i in range(6)
            ]
            for caller in callers:
                caller.start()
            time.sleep(pause_after_s)
            local.part("scheduler").signal(signal.SIGSTOP)
            until("the second leads", lambda: leads(local, "second"), timeout_s=20)
            for caller in callers:
                caller.join(30)
            local.part("scheduler").signal(signal.SIGCONT)
            jobs = until("every job has ended", lambda: (found := both.list()) and all_ended(found) and found, timeout_s=60)
            assert {job.status.state for job in jobs} == {pb.JOB_STATE_SUCCEEDED}
        assert_no_gpu_had_two_owners(local)
        ran = [(path.name, *line) for path in tmp_path.glob("j*") for line in starts(path)]
        assert len(ran) == len({(job, rank) for job, rank, _, _ in ran}) == 8 * len(jobs), "no rank ran twice"


def submit_quietly(client: Client, name: str, tmp_path: Path) -> None:
    (tmp_path / name).mkdir()
    client.submit(manifest(name, record(tmp_path / name, "sleep 0.3"), gpus=8), request_id=name)


def all_ended(jobs: tuple[scheduler_pb2.Job, ...]) -> bool:
    return all(job.status.state >= pb.JOB_STATE_SUCCEEDED for job in jobs)


def leads(cluster: LocalCluster, name: str) -> bool:
    address = cluster.part(name).command[-1].removeprefix("--listen=")
    with Client(address, timeout_s=5) as one:
        return bool(one.version().leader)


@pytest.mark.skipif(
    find_etcd().trial_only, reason="etcd before 3.5.7 refuses guarded deletes when full (etcd-io/etcd#13435)"
)
def test_state_02_a_full_store_stops_nothing_that_runs(tmp_path: Path) -> None:
    with live(tmp_path / "cluster", etcd_flags=("--quota-backend-bytes=16777216",)) as (local, client):
        client.submit(manifest("stays", record(tmp_path, "sleep 600"), gpus=8, replicas=2))
        client.submit(manifest("victim", "sleep 600", gpus=8))
        client.wait("stays", until="running", timeout_s=30)
        client.wait("victim", until="running", timeout_s=30)
        pids = [pid for _, _, pid in until("all have started", lambda: len(starts(tmp_path)) == 16 and starts(tmp_path))]
        fill(local, tmp_path)
        until("submit says so", lambda: refused_for_space(client))
        assert not [job for job in client.list() if job.spec.name == "late"]
        # Cancel works by deletes alone: the ranks go, although no status can be written.
        victim_node = client.get("victim").status.nodes[0]
        client.cancel("victim")
        until("the victim's report is gone", lambda: not client.get("victim").runs)
        # An agent that is restarted now gets no lease: it keeps its ranks, waits, and registers by itself when there is
        # room.
        node = next(n for n in client.get("stays").status.nodes if n != victim_node)
        local.part(f"agent-{node}").kill()
        local.start_agent(node)
        time.sleep(8)
        assert all(alive(pid) for pid in pids)
        etcdctl(local, "del", "--prefix", "/filler")
        revision = json.loads(etcdctl(local, "get", "x", "-w", "json"))["header"]["revision"]
        etcdctl(local, "compact", str(revision))
        etcdctl(local, "defrag")
        etcdctl(local, "alarm", "disarm")
        assert client.wait("victim", until="ended", timeout_s=30).status.state == pb.JOB_STATE_CANCELLED
        until("every node is registered", lambda: ready(client) == len(NODES))
        assert state(client, "stays") == "running"
        assert all(alive(pid) for pid in pids)
        assert len(starts(tmp_path)) == 16
        client.submit(manifest("late", "true"))
        assert client.wait("late", until="ended", timeout_s=30).status.state == pb.JOB_STATE_SUCCEEDED
        client.cancel("stays")
        client.wait("stays", until="ended", timeout_s=30)


def fill(cluster: LocalCluster, tmp_path: Path) -> None:
    """Puts 1 MB values until etcd raises its NOSPACE alarm."""
    filler = tmp_path / "filler"
    filler.write_bytes(b"x" * 1_000_000)
    for number in range(40):
        with filler.open() as value:
            command = [str(etcdctl_binary()), "--endpoints", cluster.etcd_endpoint, "put", f"/filler/{number}"]
            done = subprocess.run(
                command, stdin=value, env={**os.environ, "ETCDCTL_API": "3"}, capture_output=True, text=True
            )
        if done.returncode:
            assert "space exceeded" in done.stderr, done.stderr
            return
    raise AssertionError("40 MB did not fill a quota of 16 MiB")


def refused_for_space(client: Client) -> bool:
    try:
        client.submit(manifest("late", "true"))
    except errors.StoreFull as error:
        return "full" in str(error)
    return False


def test_state_03_a_frozen_store_delays_a_cancel_and_loses_nothing(tmp_path: Path) -> None:
    with live(tmp_path / "cluster") as (local, client):
        client.submit(manifest("gang", record(tmp_path, "sleep 600"), gpus=8, replicas=4))
        client.wait("gang", until="running", timeout_s=30)
        pids = [pid for _, _, pid in until("all have started", lambda: len(starts(tmp_path)) == 32 and starts(tmp_path))]
        local.part("etcd").signal(signal.SIGSTOP)
        time.sleep(12)
        assert all(alive(pid) for pid in pids)
        local.part("etcd").signal(signal.SIGCONT)
        client.cancel("gang")
        until("every rank is gone", lambda: not any(alive(pid) for pid in pids), timeout_s=15)
        assert client.wait("gang", until="ended", timeout_s=30).status.state == pb.JOB_STATE_CANCELLED
        assert len(starts(tmp_path)) == 32


def test_state_04_all_leases_gone_at_once(tmp_path: Path) -> None:
    with live(tmp_path / "cluster") as (local, client):
        client.submit(manifest("gang", record(tmp_path, "sleep 600"), gpus=8, replicas=4))
        client.wait("gang", until="running", timeout_s=30)
        pids = [pid for _, _, pid in until("all have started", lambda: len(starts(tmp_path)) == 32 and starts(tmp_path))]
        leases = etcdctl(local, "lease", "list").split()
        for lease in [word for word in leases if len(word) == 16]:
            subprocess.run(
                [str(etcdctl_binary()), "--endpoints", local.etcd_endpoint, "lease", "revoke", lease],
                env={**os.environ, "ETCDCTL_API": "3"}, capture_output=True, check=False,
            )  # fmt: skip
        began_s = time.monotonic()
        until("all nodes are back", lambda: ready(client) == len(NODES) and client.version().leader)
        assert time.monotonic() - began_s < 30
        assert state(client, "gang") == "running"
        assert all(alive(pid) for pid in pids)
        assert len(starts(tmp_path)) == 32
        client.cancel("gang")
        client.wait("gang", until="ended", timeout_s=30)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_state_04_a_store_that_restarts_again_and_again_hides_no_dead_node(tmp_path: Path) -> None:
    """Each restart starts the dead node's lease afresh, so its key never goes. Its beat stands still all the same, and counts in
    the time that the store was there: its gang is placed again within twice the normal time."""
    period_s = 5.0  # the default: an etcd that is back in a second is there for most of the time
    ttl_s = LEASE_TTL_PERIODS * period_s
    with live(tmp_path / "cluster", nodes=("n1", "n2"), period_s=period_s) as (local, client):
        client.submit(manifest("gang", record(tmp_path, "sleep 600"), gpus=8))
        client.wait("gang", until="running", timeout_s=30)
        (dead,) = client.get("gang").status.nodes
        until("its ranks have started", lambda: len(starts(tmp_path)) == 8)
        local.part(f"agent-{dead}").kill()
        began_s = time.monotonic()
        while client.get("gang").status.attempt == 1:
            assert time.monotonic() - began_s < 2 * TIMEOUTS["node_lost_after_s"], client.get("gang").status
            time.sleep(ttl_s / 2)
            local.part("etcd").kill()
            local.start_etcd()
        assert etcdctl(local, "get", "--keys-only", keys.alive(dead)), "its key is still there: the restarts kept it"
        job = client.wait("gang", until="running", timeout_s=60)
        assert (job.status.attempt, dead in job.status.nodes) == (2, False)
        client.cancel("gang")
        client.wait("gang", until="ended", timeout_s=60)


@pytest.mark.parametrize(
    ("clients", "idle_s"),
    [(40, 25.0), pytest.param(200, 600.0, marks=[pytest.mark.slow, pytest.mark.timeout(800)])],
)
def test_state_05_idle_clients_are_not_cut_off_for_their_pings(tmp_path: Path, clients: int, idle_s: float) -> None:
    """Idle watches that ping as often as our clients may: no GOAWAY within many ping intervals."""
    with live(tmp_path / "cluster", nodes=("n1",)) as (local, client):
        address = local.server
        options = [(name, value) for name, value in client_options() if name != "grpc.keepalive_time_ms"]
        options += [("grpc.keepalive_time_ms", 5_500), ("grpc.use_local_subchannel_pool", 1)]
        channels = [grpc.insecure_channel(address, options=options) for _ in range(clients)]
        watches = [
            scheduler_pb2_grpc.SchedulerStub(channel).WatchJobs(scheduler_pb2.WatchJobsRequest()) for channel in channels
        ]
        time.sleep(idle_s)
        assert all(watch.is_active() for watch in watches), [w.details() for w in watches if not w.is_active()]
        client.submit(manifest("seen", "true"))
        for watch in watches:
            assert next(change for change in watch if change.HasField("job")).job.spec.name == "seen"
            watch.cancel()
        for channel in channels:
            channel.close()


def test_a_leader_whose_election_key_was_deleted_stands_again(tmp_path: Path) -> None:
    """Its lease is well and nobody else stands: only the store's refusal tells it."""
    with live(tmp_path / "cluster", nodes=("n1",)) as (local, client):
        etcdctl(local, "del", "--prefix", keys.ELECTION)
        client.submit(manifest("later", "true"), request_id="one")
        assert client.wait("later", until="ended", timeout_s=30).status.state == pb.JOB_STATE_SUCCEEDED
