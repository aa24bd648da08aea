"""What a picture keeps between two questions never shows: it answers like one that was made for the question."""

from __future__ import annotations

import random

import pytest

from fmproto import keys
from fmproto.kv import Change, Changes, Entry
from fmproto.v1 import hardware_pb2 as hw
from fmproto.v1 import job_pb2 as pb
from fmsched.lifecycle.liveness import LivenessLimits
from fmsched.picture import Picture
from fmsched.store.mirror import Mirror

LIMITS = LivenessLimits(unreachable_s=5.0, node_lost_s=20.0, mass_min=10, mass_lost_s=60.0)
NODES = [f"n{number}" for number in range(4)]


def some_change(chance: random.Random, revision: int) -> tuple[str, bytes | None]:
    node, job = chance.choice(NODES), chance.choice("ab")
    running = pb.RunReport(
        job=job,
        attempt=1,
        node=node,
        phase=pb.RUN_PHASE_RUNNING,
        gpu_indices=sorted(chance.sample(range(2), chance.randint(1, 2))),
    )
    gpus = [hw.Gpu(uuid=f"{node}-{index}", model="H100-SXM5-80GB", memory_gb=80) for index in range(2)]
    sick = hw.DeviceHealth(device=f"{node}-{chance.randrange(2)}", state=hw.HEALTH_STATE_FAILED, reason="xid 79")
    key, value = chance.choice(
        [
            (keys.inventory(node), hw.Inventory(node=node, gpus=gpus).SerializeToString()),
            (keys.health(node), hw.Health(node=node, gpus=[sick] * chance.randrange(2)).SerializeToString()),
            (keys.intent(node), hw.NodeIntent(node=node, drained=True, reason="why").SerializeToString()),
            (keys.run(node, job), running.SerializeToString()),
            (keys.run(node, job), b"\xff garbage"),
            *[(keys.alive(node), hw.Alive(node=node, beat=revision).SerializeToString())] * 12,
            *[(keys.ECHO, b"%d" % revision)] * 6,
        ]
    )
    return key, None if chance.random() < 0.15 and key != keys.ECHO else value


@pytest.mark.parametrize("seed", range(20))
async def test_a_kept_picture_answers_like_a_new_one(seed: int) -> None:
    chance, mirror, now_s = random.Random(seed), Mirror(), 0.0
    picture = Picture(mirror, LIMITS)
    mirror.start_listening(now_s)
    kept = 0
    for revision in range(1, 200):
        key, value = some_change(chance, revision)
        entry = None if value is None else Entry(key, value, revision, revision)
        await mirror.apply(Changes((Change(key, entry, revision),), revision), now_s)
        now_s += chance.choice([0.0, 0.1, 1.0, 3.0])
        for later_s in (now_s, now_s + 0.5):
            old, new = picture.snapshot(later_s), Picture(mirror, LIMITS).snapshot(later_s)
            assert (old.revision, old.held, old.unfit, old.closed) == (new.revision, new.held, new.unfit, new.closed)
            kept += old.held is picture.snapshot(later_s).held
    assert kept > 0


async def test_silence_is_seen_when_it_is_due_though_nothing_else_changes() -> None:
    mirror = Mirror()
    for revision, node in enumerate(NODES, 1):
        gpus = [hw.Gpu(uuid=node, model="H100-SXM5-80GB", memory_gb=80)]
        for key, message in (
            (keys.inventory(node), hw.Inventory(node=node, gpus=gpus)),
            (keys.alive(node), hw.Alive(node=node)),
        ):
            entry = Entry(key, message.SerializeToString(), revision, revision)
            await mirror.apply(Changes((Change(key, entry, revision),), revision), float(revision))
    picture = Picture(mirror, LIMITS)
    assert picture.snapshot(5.0).closed == {}
    assert picture.snapshot(6.0).closed == {}, "n0 spoke at 1 s: 5 s of silence are allowed"
    assert picture.snapshot(6.5).closed == {"n0": "n0 is unreachable"}
