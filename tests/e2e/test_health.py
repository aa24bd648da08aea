"""What fm-scheduler's health service says to a load balancer while the store cannot be read, and after."""

from __future__ import annotations

import signal
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from fmsched.offline.local import LocalCluster
from tests.support.live import CLUSTER, until

NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
SERVING = health_pb2.HealthCheckResponse.SERVING


def test_not_serving_until_the_store_was_read(tmp_path: Path) -> None:
    cluster_file = tmp_path / "cluster.yaml"
    cluster_file.write_text(CLUSTER)
    local = LocalCluster(tmp_path / "cluster", cluster_file, ())
    local.root.mkdir()
    try:
        local.start_etcd()
        local.part("etcd").signal(signal.SIGSTOP)
        local.start_scheduler()
        with grpc.insecure_channel(local.server) as channel:
            health = health_pb2_grpc.HealthStub(channel)

            def said() -> list[int]:
                names = ("", "fmsched.v1.Scheduler")
                return [health.Check(health_pb2.HealthCheckRequest(service=name), timeout=10).status for name in names]

            assert said() == [NOT_SERVING, NOT_SERVING]
            local.part("etcd").signal(signal.SIGCONT)
            until("it serves", lambda: said() == [SERVING, SERVING])
    finally:
        local.close()
    assert not local.leftovers()
