"""Generated clusters: the asked form, the asked busy share, the same text for the same seed."""

from __future__ import annotations

import random

import pytest

from fmsched.topology.clusterfile import ClusterFile, parse, to_snapshot
from fmsched.topology.generate import Plan, generate


@pytest.mark.parametrize(
    ("plan", "hops", "levels"),
    [
        (Plan(1, 1, 3, "hgx-h100", 0.5), 1, 1),
        (Plan(1, 4, 5, "dgx-a100", 0.3), 3, 2),
        (Plan(3, 2, 4, "l40s-8", 1.0), 5, 3),
        (Plan(2, 1, 20, "gb200-nvl72-tray", 0.0), 5, 3),
        (Plan(2, 10, 16, "hgx-h100", 0.7), 5, 3),
    ],
)
def test_form_and_share(plan: Plan, hops: int, levels: int) -> None:
    cluster = parse(generate(plan, random.Random(7)))
    assert isinstance(cluster, ClusterFile), [str(fault) for fault in cluster]
    snapshot = to_snapshot(cluster)
    topology = snapshot.topology
    assert len(topology.nodes) == plan.nodes
    assert len(topology.leaves) == plan.pods * plan.leaves
    assert topology.hops.max() == hops
    assert len(topology.domains) == levels
    assert len(set(topology.domains[-1].tolist())) == 1
    gpus = plan.nodes * len(plan.kind.gpus)
    assert len(snapshot.held) == round(plan.busy * gpus)


def test_busy_jobs_are_ragged() -> None:
    cluster = parse(generate(Plan(2, 10, 16, "hgx-h100", 0.6), random.Random(1)))
    assert isinstance(cluster, ClusterFile)
    snapshot = to_snapshot(cluster)
    free = [len(snapshot.free_indices(node.name)) for node in snapshot.topology.nodes]
    assert {0, 8} < set(free), "whole nodes are free and held, and some are held in part"


def test_trays_of_a_rack_share_an_nvlink_domain() -> None:
    cluster = parse(generate(Plan(1, 1, 20, "gb200-nvl72-tray"), random.Random(0)))
    assert isinstance(cluster, ClusterFile)
    domains = [node.nvlink_domain for node in to_snapshot(cluster).topology.nodes]
    assert domains == ["rack1"] * 18 + ["rack2"] * 2


def test_the_seed_decides() -> None:
    plan = Plan(2, 4, 8, "hgx-h100", 0.6)
    assert generate(plan, random.Random(5)) == generate(plan, random.Random(5))
    assert generate(plan, random.Random(5)) != generate(plan, random.Random(6))


@pytest.mark.parametrize(
    ("figures", "message"),
    [
        ((0, 1, 1, "hgx-h100"), "pods: found 0; allowed: from 1 to 1000"),
        ((1, 1, 1001, "hgx-h100"), "nodes-per-leaf: found 1001"),
        ((100, 100, 100, "hgx-h100"), "found 1000000 nodes in all"),
        ((1, 1, 1, "hgx"), "type: found 'hgx'; allowed: hgx-h100"),
        ((1, 1, 1, "hgx-h100", 1.5), "busy: found 1.5; allowed: from 0 to 1"),
        ((1, 1, 1, "hgx-h100", float("nan")), "busy: found nan"),
    ],
)
def test_figures_that_cannot_be(figures: tuple[int, int, int, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Plan(*figures)
