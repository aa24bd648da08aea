"""Rules of placement on a live cluster: what running jobs hold counts against the next, and comes back when they end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fmclient import Client
from fmproto.v1 import job_pb2 as pb
from tests.support.live import live, manifest, record, starts, state, until


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with live(tmp_path_factory.mktemp("cluster")) as (_, client):
        yield client


def ended(client: Client, job: str) -> None:
    client.cancel(job)
    client.wait(job, until="ended", timeout_s=30)


def waits(client: Client, job: str) -> list[str]:
    """The constraints for which a job waits, once it does."""
    return until(f"why {job} waits", lambda: [why.constraint for why in client.get(job).status.why] or None)


def test_spares_are_held_and_nothing_starts_on_them(client: Client, tmp_path: Path) -> None:
    script = record(tmp_path, "sleep 600")
    client.submit(manifest("spared", script, gpus=8, replicas=2, extra="  spares: 1"))
    job = client.wait("spared", until="running", timeout_s=30)
    ranks = job.decision.ranks
    assert [rank.spare for rank in ranks] == [False] * 16 + [True] * 8
    assert sorted(rank for rank, _, _ in starts(tmp_path)) == list(range(16))
    running = {rank.node for rank in ranks if not rank.spare}
    assert {run.node for run in job.runs} == running
    assert len(running) == 2
    # One of four nodes is left: two more do not fit beside the spare.
    client.submit(manifest("next", "true", gpus=8, replicas=2))
    assert "free GPUs" in waits(client, "next")
    ended(client, "spared")
    assert client.wait("next", until="ended", timeout_s=30).status.state == pb.JOB_STATE_SUCCEEDED


def test_reserved_bandwidth_comes_back_with_the_end_of_the_job(client: Client) -> None:
    # 16 GPUs of three nodes lie under both leaf switches, whose 8 cables have 3,200 Gb/s.
    more = ", antiAffinity: node, interNodeConnectivity: {reserveBandwidthGbps: 2000}}"

    def reserving(name: str) -> str:
        text = manifest(name, "sleep 600", gpus=4, replicas=3, kind="DataParallel")
        return text.replace("gpusPerGroup: 4}", f"gpusPerGroup: 4{more}")

    client.submit(reserving("first"))
    client.wait("first", until="running", timeout_s=30)
    client.submit(reserving("second"))
    assert "free links" in waits(client, "second")
    ended(client, "first")
    client.wait("second", until="running", timeout_s=30)
    ended(client, "second")


def test_node_lists_hold_live(client: Client) -> None:
    client.submit(manifest("listed", "sleep 600", gpus=8, extra='  nodes: {allow: "n[1-3]", deny: [n1, n2]}'))
    job = client.wait("listed", until="running", timeout_s=30)
    assert {rank.node for rank in job.decision.ranks} == {"n3"}
    ended(client, "listed")
    assert state(client, "listed") == "cancelled"
