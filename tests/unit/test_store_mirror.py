"""The mirror: what it keeps, what it refuses to forget, and when silence counts."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from fmproto import keys
from fmproto.kv import Change, Changes, Entry, Resync
from fmproto.v1 import hardware_pb2 as hw
from fmproto.v1 import job_pb2 as pb
from fmsched.lifecycle.liveness import LivenessLimits
from fmsched.lifecycle.step import NodeState
from fmsched.model.hardware import GpuId
from fmsched.model.job import GroupKind, Reach, Request, ResourceGroup
from fmsched.model.placement import Budget, Placement, Unplaceable
from fmsched.picture import Picture
from fmsched.place.solve import solve
from fmsched.store import codec
from fmsched.store.mirror import ECHO_GAP_S, Mirror
from tests.support.jobs import decision

LIMITS = LivenessLimits(unreachable_s=5, node_lost_s=20)


def entry(key: str, value: bytes, revision: int = 1) -> Entry:
    return Entry(key, value, revision, revision)


def inventory(node: str, gpus: int = 2) -> Entry:
    message = hw.Inventory(node=node, gpus=[hw.Gpu(index=i, uuid=f"GPU-{node}-{i}", family="h100") for i in range(gpus)])
    return entry(keys.inventory(node), message.SerializeToString())


def beat(node: str, number: int, fence_s: float = 0.0) -> Entry:
    return entry(keys.alive(node), hw.Alive(node=node, beat=number, fence_s=fence_s).SerializeToString(), number)


def held(job: str, attempt: int = 1) -> Entry:
    message = codec.decision_message(decision(job, attempt=attempt), {})
    return entry(keys.decision(job), message.SerializeToString())


async def mirror_of(*entries: Entry, now_s: float = 0.0) -> Mirror:
    mirror = Mirror()
    await mirror.apply(Resync(entries, 1), now_s)
    return mirror


async def tell(mirror: Mirror, entries: Sequence[Entry], revision: int, now_s: float) -> None:
    await mirror.apply(Changes(tuple(Change(e.key, e, revision) for e in entries), revision), now_s)


async def test_a_resync_replaces_everything_that_was_known() -> None:
    mirror = await mirror_of(inventory("n1"), inventory("n2"), held("a"))
    await mirror.apply(Resync((inventory("n2"),), 9), 1.0)
    assert set(mirror.inventories) == {"n2"}
    assert not mirror.decisions
    assert mirror.guard(keys.decision("a")).mod_revision == 0


async def test_an_unreadable_decision_keeps_its_gpus() -> None:
    mirror = await mirror_of(inventory("n1"), inventory("n2"), held("a"))
    await tell(mirror, [entry(keys.decision("a"), b"\xff\xff garbage", 2)], 2, 1.0)
    assert mirror.unreadable
    snapshot = Picture(mirror, LIMITS).snapshot(1.0)
    assert snapshot.held[GpuId("n1", 0)] == "a"
    await tell(mirror, [held("a")], 3, 2.0)
    assert not mirror.unreadable


async def test_a_node_with_an_unreadable_report_takes_nothing_new() -> None:
    unknown = pb.RunReport(job="a", attempt=1, node="n1").SerializeToString()  # no phase: a newer agent's, perhaps
    mirror = await mirror_of(inventory("n1"), beat("n1", 1), entry(keys.run("n1", "a"), unknown))
    closed = Picture(mirror, LIMITS).snapshot(0.0).closed
    assert "cannot be read" in closed["n1"]


@pytest.mark.parametrize("key", ["nodes", "nodes/", "jobs/x", "decisions/", "assignments/n1", "x/y/z", "nodes/n1/runs", ""])
async def test_strange_keys_do_no_harm(key: str) -> None:
    mirror = await mirror_of(inventory("n1"), entry(keys.ROOT + key, b"\x00"))
    assert set(mirror.inventories) == {"n1"}
    await mirror.apply(Changes((Change(keys.ROOT + key, None, 5),), 5), 1.0)
    assert not mirror.unreadable, "it is gone, and with it what was wrong"


async def test_silence_counts_only_while_the_echo_comes_back() -> None:
    mirror = await mirror_of(inventory("n1"), beat("n1", 1))
    picture = Picture(mirror, LIMITS)
    mirror.start_listening(0.0)
    for second in range(1, 30):
        await tell(mirror, [entry(keys.ECHO, b"%d" % second)], second + 1, float(second))
    assert picture.liveness(29.0).states["n1"] is NodeState.LOST

    quiet = await mirror_of(inventory("n1"), beat("n1", 1))
    quiet.start_listening(0.0)
    assert Picture(quiet, LIMITS).liveness(1000.0).states["n1"] is NodeState.UNREACHABLE, "no echo: the store is to blame"
    await tell(quiet, [entry(keys.ECHO, b"1")], 2, 1000.0)
    assert Picture(quiet, LIMITS).liveness(1000.0).states["n1"] is NodeState.READY
    assert quiet.counted_s(5000.0) == 1000.0 + ECHO_GAP_S


async def test_a_node_is_not_lost_before_its_own_fence() -> None:
    mirror = await mirror_of(inventory("n1"), beat("n1", 1, fence_s=100.0))
    mirror.start_listening(0.0)
    picture = Picture(mirror, LIMITS)
    for second in range(1, 120):
        await tell(mirror, [entry(keys.ECHO, b"%d" % second)], second + 1, float(second))
        expected = NodeState.LOST if second > 110 else NodeState.UNREACHABLE if second > 5 else NodeState.READY
        assert picture.liveness(float(second)).states["n1"] is expected, second


async def test_a_node_that_leaves_the_inventory_while_it_holds_a_gang_is_not_lost_at_once() -> None:
    mirror = await mirror_of(inventory("n1"), inventory("n2"), beat("n1", 1), beat("n2", 1), held("a"))
    mirror.start_listening(0.0)
    await mirror.apply(Changes((Change(keys.inventory("n1"), None, 5),), 5), 1.0)
    assert Picture(mirror, LIMITS).liveness(1.0).states["n1"] is NodeState.UNREACHABLE


async def test_a_port_whose_health_failed_carries_nothing() -> None:
    ports = [hw.HcaPort(hca=f"mlx5_{i}", port=1, state="Active", rate_gbps=400) for i in range(2)]
    described = entry(keys.inventory("n1"), hw.Inventory(node="n1", hca_ports=ports).SerializeToString())
    mirror = await mirror_of(described)
    picture = Picture(mirror, LIMITS)
    assert len(picture.topology().node("n1").shape.hcas) == 2
    flapping = hw.Health(node="n1", hca_ports=[hw.DeviceHealth(device="mlx5_1/1", state=hw.HEALTH_STATE_FAILED)])
    await tell(mirror, [entry(keys.health("n1"), flapping.SerializeToString(), 2)], 2, 1.0)
    assert [hca.name for hca in picture.topology().node("n1").shape.hcas] == ["mlx5_0"]


async def test_a_subscription_to_one_job_hears_of_no_other() -> None:
    mirror = await mirror_of()
    one = mirror.subscribe("a")
    await tell(mirror, [held("b")], 2, 0.0)
    assert await one.take(0.01) == (set(), set())
    await tell(mirror, [held("a")], 3, 0.0)
    assert await one.take(1.0) == ({"a"}, set())


async def test_a_decided_job_holds_links_until_its_decision_is_gone() -> None:
    links = [hw.Link(a="n1", b="l1", gbps=400), hw.Link(a="n2", b="l2", gbps=400)]
    links += [hw.Link(a=leaf, b=f"s{i}", gbps=400, measured_gbps=30 * i) for leaf in ("l1", "l2") for i in range(2)]
    fabric = hw.Fabric(switches=[hw.Switch(name=name) for name in ("l1", "l2", "s0", "s1")], links=links)
    group = pb.ResourceGroup(name="workers", kind=pb.GROUP_KIND_DATA_PARALLEL, gpus_per_group=1)
    group.connectivity.reserve_gbps = 100
    spec = pb.JobSpec(id="a", replica_count=2, groups=[group])
    mirror = await mirror_of(
        inventory("n1"),
        inventory("n2"),
        entry(keys.FABRIC, fabric.SerializeToString()),
        entry(keys.job_spec("a"), spec.SerializeToString()),
        held("a"),
    )
    picture = Picture(mirror, LIMITS)
    half = dict.fromkeys([("l1", "s0"), ("l1", "s1"), ("l2", "s0"), ("l2", "s1")], 50.0)
    assert picture.snapshot(0.0).links_held == {"a": half}
    assert picture.snapshot(0.0).links_measured == {("l1", "s1"): 30, ("l2", "s1"): 30}
    links[2].down = True  # l1 has lost its cable to s0: all goes over s1
    fabric = hw.Fabric(switches=fabric.switches, links=links)
    await tell(mirror, [entry(keys.FABRIC, fabric.SerializeToString(), 2)], 2, 0.0)
    assert picture.snapshot(0.0).links_held == {"a": {("l1", "s1"): 100, ("l2", "s1"): 100}}
    await mirror.apply(Changes((Change(keys.decision("a"), None, 3),), 3), 0.0)
    assert picture.snapshot(0.0).links_held == {}


async def test_a_job_waits_for_links_that_another_holds_and_is_told_so() -> None:
    links = [hw.Link(a=f"n{i}", b=f"l{i}", gbps=400) for i in (1, 2)] + [
        hw.Link(a=f"l{i}", b="s", gbps=400) for i in (1, 2)
    ]
    fabric = hw.Fabric(switches=[hw.Switch(name=name) for name in ("l1", "l2", "s")], links=links)
    group = pb.ResourceGroup(name="workers", kind=pb.GROUP_KIND_DATA_PARALLEL, gpus_per_group=1)
    group.connectivity.reserve_gbps = 250
    spec = pb.JobSpec(id="a", replica_count=2, groups=[group])
    mirror = await mirror_of(
        *(inventory(node) for node in ("n1", "n2")),
        *(beat(node, 1) for node in ("n1", "n2")),
        entry(keys.FABRIC, fabric.SerializeToString()),
        entry(keys.job_spec("a"), spec.SerializeToString()),
        held("a"),
    )
    picture = Picture(mirror, LIMITS)
    asked = Request("b", (ResourceGroup("dp", GroupKind.DATA_PARALLEL, 1, reach=Reach(reserve_gbps=200)),), 2)
    refused = solve(picture.snapshot(0.0), asked, Budget())
    assert isinstance(refused, Unplaceable)
    assert not refused.never
    told = {why.constraint: why for why in refused.why}
    assert told["free links"].best == "l1–s: 150 of 400 Gb/s left, l2–s: 150 of 400 Gb/s left"
    assert told["free links"].where == "job a reserves 250 Gb/s"
    await mirror.apply(Changes((Change(keys.decision("a"), None, 2),), 2), 0.0)
    placed = solve(picture.snapshot(0.0), asked, Budget())
    assert isinstance(placed, Placement)
