"""A whole cluster on three etcd members over TLS: one member dies, and nobody notices."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.etcd import Version, start_etcd
from tests.support.live import alive, live, manifest, ready, record, starts, state, until


@pytest.mark.parametrize("version", ["3.4", "3.5"])
def test_a_member_dies_under_a_running_gang(tmp_path: Path, version: Version) -> None:
    with start_etcd(tmp_path / "etcd", version, members=3, tls=True) as etcd:
        tls = etcd.tls
        assert tls is not None
        table = {"endpoints": etcd.endpoints, "ca": str(tls.ca), "cert": str(tls.cert), "key": str(tls.key)}
        with live(tmp_path / "cluster", nodes=("n1", "n2"), etcd=table) as (_, client):
            script = record(tmp_path, f"while [ ! -e {tmp_path}/go ]; do sleep 0.1; done")
            client.submit(manifest("gang", script, gpus=8, replicas=2))
            client.wait("gang", until="running", timeout_s=40)
            pids = [
                pid for _, _, pid in until("all have started", lambda: len(starts(tmp_path)) == 16 and starts(tmp_path))
            ]
            etcd.members[0].kill()
            client.submit(manifest("waits", "true", gpus=8))
            until("it is told why", lambda: client.explain("waits").why, timeout_s=40)
            assert all(alive(pid) for pid in pids)
            (tmp_path / "go").touch()
            client.wait("waits", until="ended", timeout_s=60)
            assert (state(client, "gang"), state(client, "waits")) == ("succeeded", "succeeded")
            assert len(starts(tmp_path)) == 16
            until("both nodes are ready", lambda: ready(client) == 2)
