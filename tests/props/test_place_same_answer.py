"""Same snapshot, same answer: in one process, in another, and under other hash seeds."""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys
from pathlib import Path

from fmsched.model.job import GroupKind, Reach, Request, ResourceGroup
from fmsched.model.placement import Budget
from fmsched.model.snapshot import Snapshot
from fmsched.place.solve import solve
from fmsched.topology.clusterfile import ClusterFile, parse, to_snapshot
from fmsched.topology.generate import Plan, generate

ROOT = Path(__file__).resolve().parents[2]
REPEATS = 100
HASH_SEEDS = ("0", "1", "12345")


def cluster() -> Snapshot:
    found = parse(generate(Plan(2, 3, 6, "hgx-h100", 0.5), random.Random(3)))
    assert isinstance(found, ClusterFile)
    return to_snapshot(found)


def requests() -> list[Request]:
    """By the tables, by the count model (two groups in a ring of reaches), over nodes, and refused."""
    tp, dp, pp = GroupKind.TENSOR_PARALLEL, GroupKind.DATA_PARALLEL, GroupKind.PIPELINE_PARALLEL
    return [
        Request("cells", (ResourceGroup("c", tp, 4),), 9),
        Request("seed", (ResourceGroup("c", tp, 8), ResourceGroup("d", dp, 1, reach=Reach(5, 400.0))), 3),
        Request("stages", tuple(ResourceGroup(f"p{i}", pp, 2, reach=Reach(1, 100.0)) for i in range(3)), 4),
        Request("wide", (ResourceGroup("c", tp, 12, reach=Reach(3, 400.0)),), 2),
        Request("too many", (ResourceGroup("c", tp, 8, ("h100",)),), 60),
    ]


def digest(snapshot: Snapshot) -> str:
    answers = [solve(snapshot, request, Budget()) for request in requests()]
    return hashlib.sha256("\n".join(map(repr, answers)).encode()).hexdigest()


def test_a_hundred_repeats_give_one_answer() -> None:
    cells = requests()[0]
    assert len({repr(solve(cluster(), cells, Budget())) for _ in range(REPEATS)}) == 1


def test_other_processes_and_hash_seeds_give_the_same_answers() -> None:
    script = "from tests.props.test_place_same_answer import cluster, digest; print(digest(cluster()))"
    found = {
        subprocess.run(
            [sys.executable, "-c", script], cwd=ROOT, env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True, text=True, check=True, timeout=100,
        ).stdout.strip()
        for seed in HASH_SEEDS
    }  # fmt: skip
    assert found == {digest(cluster())}
