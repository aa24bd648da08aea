"""Health on its way: what the scheduler takes from it, and what fmctl shows of it."""

from __future__ import annotations

import pytest

from fmclient.cli.describe import node_lines
from fmclient.cli.nodes import fault_lines, faults, gpu_views, node_row
from fmproto import keys
from fmproto.kv import Change, Changes, Entry
from fmproto.v1 import hardware_pb2 as hw
from fmproto.v1.scheduler_pb2 import Node
from fmsched.lifecycle.liveness import LivenessLimits
from fmsched.picture import Picture
from fmsched.store import codec
from fmsched.store.mirror import Mirror

OK, DEGRADED, DRAINING, FAILED = (
    hw.HEALTH_STATE_OK, hw.HEALTH_STATE_DEGRADED, hw.HEALTH_STATE_DRAINING, hw.HEALTH_STATE_FAILED,
)  # fmt: skip


def device(name: str, state: hw.HealthState, reason: str = "", *findings: hw.Finding) -> hw.DeviceHealth:
    return hw.DeviceHealth(device=name, state=state, reason=reason, findings=findings)


SICK = hw.Health(
    node="n1",
    gpus=[
        device("u0", OK),
        device("u1", DEGRADED, "2 of 18 NVLinks down"),
        device("u2", DRAINING, "a row remapping waits for a reset"),
        device("u3", FAILED, "Xid 119"),
    ],
    hca_ports=[
        device("mlx5_0/1", OK),
        device("mlx5_1/1", FAILED, "port is Down/Polling"),
        device("mlx5_2/1", DEGRADED, "slow"),
    ],
)


def test_degraded_devices_are_used_and_draining_ones_are_not() -> None:
    assert codec.unfit_of(SICK) == {"u2": "a row remapping waits for a reset", "u3": "Xid 119"}
    assert codec.failed_of(SICK) == {"u3": "Xid 119"}, "what runs on a draining GPU goes on"
    assert codec.dead_ports_of(SICK) == {"mlx5_1/1"}


@pytest.mark.parametrize(
    ("health", "reason"),
    [
        (SICK, ""),
        (hw.Health(host=[device("clock", DEGRADED, "off")]), ""),
        (hw.Health(host=[device("memory", DRAINING, "all wait")]), "memory: all wait"),
        (hw.Health(host=[device("clock", FAILED)], disks=[device("/", DRAINING, "full")]), "clock is unwell; /: full"),
        (hw.Health(disks=[device("/boot", DEGRADED, "full")]), ""),
    ],
)
def test_what_closes_a_node(health: hw.Health, reason: str) -> None:
    assert codec.closed_by(health) == reason


async def test_a_node_that_is_unwell_as_a_whole_takes_nothing_new() -> None:
    mirror = Mirror()

    async def put(revision: int, key: str, value: bytes) -> None:
        await mirror.apply(Changes((Change(key, Entry(key, value, revision, revision), revision),), revision), 0.0)

    await put(1, keys.inventory("n1"), hw.Inventory(node="n1", gpus=[hw.Gpu(uuid="u0")]).SerializeToString())
    await put(2, keys.alive("n1"), hw.Alive(node="n1", beat=1).SerializeToString())
    picture = Picture(mirror, LivenessLimits())
    assert picture.snapshot(0.0).closed == {}
    await put(3, keys.health("n1"), hw.Health(node="n1", host=[device("memory", DRAINING, "all wait")]).SerializeToString())
    assert picture.snapshot(0.0).closed == {"n1": "memory: all wait"}
    await put(4, keys.health("n1"), hw.Health(node="n1").SerializeToString())
    assert picture.snapshot(0.0).closed == {}


def node(health: hw.Health) -> Node:
    gpus = [hw.Gpu(index=n, uuid=f"u{n}", model="H100-SXM5-80GB", memory_gb=80) for n in range(4)]
    return Node(name="n1", state="ready", inventory=hw.Inventory(node="n1", gpus=gpus), health=health)


def test_get_nodes_counts_a_degraded_gpu_as_free() -> None:
    assert [view.state for view in gpu_views(node(SICK))] == ["free", "degraded", "draining", "failed"]
    assert node_row(node(SICK))[2:4] == ("4", "2")
    held = node(SICK)
    held.holders[1] = "train.1"
    assert node_row(held)[3] == "1"
    closed = node(SICK)
    closed.state = "drained"
    assert node_row(closed)[3] == "0"


def test_get_nodes_tells_of_the_host_too() -> None:
    health = hw.Health(
        host=[device("clock", DEGRADED, "the clock is not synchronised")], gpus=[device("u3", FAILED, "lost")]
    )
    assert faults(node(health)) == ("clock degraded: the clock is not synchronised", "GPU 3 failed: lost")


def test_describe_node_lists_findings_with_evidence_and_action() -> None:
    xid = hw.Finding(
        concern="xid",
        state=FAILED,
        reason="Xid 119 (GSP_RPC_TIMEOUT)",
        evidence="the kernel log: Timeout",
        action="reset the GPU",
    )
    hot = hw.Finding(concern="thermal", state=DEGRADED, reason="clocks are lowered for heat")
    health = hw.Health(
        gpus=[device("u0", OK), device("u3", FAILED, xid.reason, xid, hot)], disks=[device("/", DEGRADED, "nearly full")]
    )
    wanted = [
        "GPU 3 failed: Xid 119 (GSP_RPC_TIMEOUT) (xid)",
        "  evidence: the kernel log: Timeout",
        "  action: reset the GPU",
        "GPU 3 degraded: clocks are lowered for heat (thermal)",
        "/ degraded: nearly full",
    ]
    assert fault_lines(node(health)) == wanted
    lines = node_lines(node(health))
    assert lines[lines.index("faults:") + 1 :][: len(wanted)] == [f"  {line}" for line in wanted]
