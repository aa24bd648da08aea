"""Free GPUs are kept from snapshot to snapshot, and bins found by sorting: both say what a plain look at every node says."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from fmsched.model.hardware import GpuId
from fmsched.model.snapshot import Snapshot
from fmsched.place import hosts
from fmsched.topology.clusterfile import ClusterFile, parse, to_snapshot
from fmsched.topology.generate import Plan, generate
from tests.support import random_cases


def cluster(chance: random.Random) -> Snapshot:
    if chance.random() < 0.5:
        return random_cases.case(chance)[0]
    kind = chance.choice(["hgx-h100", "dgx-1v", "gb200-nvl72-tray", "h100-nvl-4"])
    found = parse(generate(Plan(2, 3, 4, kind, chance.choice([0.0, 0.4, 0.8])), chance))
    assert isinstance(found, ClusterFile)
    return to_snapshot(found)


def plain(snapshot: Snapshot) -> list[int]:
    return [sum(1 << i for i in snapshot.free_indices(node.name)) for node in snapshot.topology.nodes]


def changed(snapshot: Snapshot, chance: random.Random) -> Snapshot:
    gpus = [GpuId(node.name, i) for node in snapshot.topology.nodes for i in range(len(node.shape.gpus))]
    some = chance.sample(gpus, chance.randrange(min(len(gpus), 12)))
    names = [node.name for node in snapshot.topology.nodes]
    match chance.randrange(6):
        case 0:
            return replace(snapshot, held=dict(snapshot.held) | dict.fromkeys(some, "new"))
        case 1:
            return replace(snapshot, held={gpu: job for gpu, job in snapshot.held.items() if chance.random() < 0.7})
        case 2:
            return replace(snapshot, unfit=dict.fromkeys(some, "sick"))
        case 3:
            return replace(snapshot, closed=dict.fromkeys([chance.choice(names), "no-such-node"], "drained"))
        case 4:
            strangers = {GpuId("no-such-node", 0): "x", GpuId(names[0], 99): "x"}
            return replace(snapshot, held=dict(snapshot.held) | strangers)
        case _:
            return snapshot.emptied()


@pytest.mark.parametrize("seed", range(30))
def test_free_gpus_after_many_changes(seed: int) -> None:
    chance = random.Random(seed)
    snapshot = cluster(chance)
    for _ in range(30):
        snapshot = changed(snapshot, chance)
        assert hosts.free_masks(snapshot) == plain(snapshot)


@pytest.mark.parametrize("seed", range(30))
def test_bins_found_by_sorting(seed: int) -> None:
    chance = random.Random(100 + seed)
    snapshot = cluster(chance)
    masks = hosts.free_masks(snapshot)
    static = hosts.static_of(snapshot.topology)
    slow = [False] * len(static.shapes)
    for by_domain in (False, True):
        avoided = {chance.randrange(len(masks))}
        one_by_one = hosts._alike_one_by_one(snapshot.topology, masks, avoided, by_domain, slow, {}, {})
        assert hosts._alike(static, masks, avoided, by_domain) == one_by_one
