"""What fm-scheduler's health service says to a load balancer while the store cannot be read, and after; and what the health of GPUs does
to running and waiting jobs."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from fmsched.offline.local import LocalCluster
from tests.support.live import CLUSTER, manifest, ready, state, until
from tests.support.machines import GPUS, Machines

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


# --- health of devices: real agents, the real pynvml over a fake library


@pytest.fixture
def machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machines]:
    with Machines(tmp_path, monkeypatch) as made:
        yield made


def test_a_gpu_whose_xid_asks_for_a_reset_ends_its_gang_and_takes_nothing_new(machines: Machines) -> None:
    (node,) = {node for node, _ in machines.runs("gang", GPUS)}
    other = {"n1": "n2", "n2": "n1"}[node]
    machines.has(node, "xid 1 2 119")
    until("its gang is placed on the other node", lambda: machines.placed("gang") == {(other, gpu) for gpu in range(GPUS)})
    assert (
        "GPU 2 failed: Xid 119 (GSP_RPC_TIMEOUT) (xid)\n  evidence: told by NVML\n  action: reset the GPU"
        in machines.fault(node)
    )
    machines.client.wait("gang", until="running", timeout_s=30)
    assert machines.runs("rest", 3) == {(node, 0), (node, 1), (node, 3)}
    # The agent starts again, and still knows.
    machines.local.part(f"agent-{node}").stop()
    machines.start(node)
    until("the node is back", lambda: ready(machines.client) == 2)
    time.sleep(2)
    assert "Xid 119" in machines.fault(node)
    assert state(machines.client, "rest") == "running"
    # The GPU is reset: it goes, and comes back.
    machines.has(node, "error 2 15")
    until("it is lost", lambda: "GPU_IS_LOST" in machines.fault(node))
    machines.has(node)
    until("it is well again", lambda: machines.fault(node) == "", timeout_s=90)
    assert machines.runs("one", 1) == {(node, 2)}


def test_a_gpu_that_drains_keeps_its_gang_and_gets_no_other(machines: Machines) -> None:
    first = machines.runs("first", 3)
    (node,) = {node for node, _ in first}
    gpus = sorted(gpu for _, gpu in first)
    machines.has(
        node,
        *(line for gpu in gpus for line in (f"set {gpu} ecc 1", f"set {gpu} ecc_corrected 0")),
        f"set {gpus[0]} ecc_uncorrected 1",
    )
    until("it drains", lambda: f"GPU {gpus[0]} draining: 1 uncorrectable memory error" in machines.fault(node))
    assert "action: reset the GPU once it is idle" in machines.fault(node)
    time.sleep(2)
    assert (state(machines.client, "first"), machines.placed("first")) == ("running", first)
    machines.client.cancel("first")
    machines.client.wait("first", until="ended", timeout_s=30)
    taken = machines.runs("whole", GPUS)
    assert {each for each, _ in taken} == {"n1", "n2"} - {node}
    assert (node, gpus[0]) not in machines.runs("rest", 3)


def test_a_node_whose_disk_is_full_takes_nothing_new(machines: Machines) -> None:
    if not machines.node("n1").inventory.host.disks:
        pytest.skip("this machine shows no local disk (a container's root): none can be full")
    machines.local.part("agent-n1").stop()
    (machines.root / "health.toml").write_text("[disk]\nfree_degraded = 1.0\nfree_draining = 1.0\nfor_s = 0\n")
    machines.start("n1")
    until("it drains", lambda: "/ draining: less than 100% of the disk is free (disk)" in machines.fault("n1"))
    assert {node for node, _ in machines.runs("one", GPUS)} == {"n2"}
    machines.client.submit(manifest("two", "sleep 600", gpus=GPUS))
    until(
        "it waits for the node",
        lambda: "n1: /: less than 100% of the disk is free" in str(machines.client.get("two").status),
    )
    assert state(machines.client, "two") == "queued"


def test_a_degraded_gpu_still_works(machines: Machines) -> None:
    for node in ("n1", "n2"):
        machines.has(node, "linkdown 1 16", "linkdown 1 17")
        until(
            "it is degraded",
            lambda node=node: "GPU 1 degraded: 2 of 18 NVLinks down: 800 of 900 GB/s left" in machines.fault(node),
        )
    assert len(machines.runs("whole", GPUS)) == GPUS
    rates = {round(pair.gbytes_per_s) for pair in machines.node("n1").inventory.nvlinks if 1 in {pair.gpu_a, pair.gpu_b}}
    assert rates == {800}
