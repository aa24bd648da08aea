"""solve on clusters too big to try everything: the seed manifest, engines that agree, order of ranks, limits, determinism."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from fmsched.model.hardware import GpuId, HcaSpec
from fmsched.model.job import Request
from fmsched.model.placement import Budget, Placement, Undecided, Unplaceable, Verdict
from fmsched.model.snapshot import Snapshot
from fmsched.place import tables
from fmsched.place.check import check
from fmsched.place.report import plan_json
from fmsched.place.solve import solve
from tests.support.clusters import (
    H100,
    HGX_A100,
    HGX_H100,
    boxes,
    group,
    node,
    request,
    seed_request,
    shape,
    snapshot,
    tree,
)

ROOT = Path(__file__).parents[2]


def hall() -> Snapshot:
    """32 HGX H100 under four leaf switches, 8 HGX A100 under a fifth."""
    leaves = {f"leaf{i}": boxes(HGX_H100, 8, f"h{i}") for i in range(4)}
    return snapshot(tree(leaves | {"leaf4": boxes(HGX_A100, 8, "a")}))


def ragged(seed: int, pods: int, leaves: int, nodes: int) -> Snapshot:
    """A busy hall: a third of the nodes free, some broken."""
    rng = Random(seed)
    under = {
        f"p{p}l{i}": boxes(HGX_H100 if i else HGX_A100, nodes, f"p{p}l{i}n") for p in range(pods) for i in range(leaves)
    }
    topology = tree(under, {f"s{p}": [f"p{p}l{i}" for i in range(leaves)] for p in range(pods)})
    held: dict[GpuId, str] = {}
    for each in topology.nodes:
        busy = rng.choice([0.0, 0.4, 1.0])
        held |= {GpuId(each.name, i): f"j{rng.randrange(9)}" for i in range(8) if rng.random() < busy}
    return Snapshot(1, topology, held)


def placed(state: Snapshot, of: Request) -> Placement:
    verdict = solve(state, of, Budget())
    assert isinstance(verdict, Placement), verdict
    assert check(state, of, verdict) == ()
    return verdict


def test_seed_manifest_takes_180_gpus() -> None:
    verdict = placed(hall(), seed_request())
    assert len(verdict.ranks) == 180
    assert verdict.objective.optimal
    terms = {term.name: int(term.value) for term in verdict.objective.terms}
    # 20 whole nodes and 20 single GPUs in two and a half more: 23 nodes, of which a leaf holds eight.
    assert (terms["nodes"], terms["leaf groups spanned by the job"], terms["instances across nodes"]) == (23, 3, 0)
    assert {rank.node[0] for rank in verdict.ranks if rank.group.startswith("tensor")} == {"h"}


def test_ranks_go_by_group_replica_and_gpu() -> None:
    verdict = placed(hall(), seed_request(3))
    assert [rank.rank for rank in verdict.ranks] == list(range(27))
    assert [(rank.cell, rank.gpu) for rank in verdict.ranks[:24]] == [(cell, gpu) for cell in range(3) for gpu in range(8)]
    assert [rank.replica for rank in verdict.ranks[24:]] == [0, 1, 2]
    per_node = Counter(rank.node for rank in verdict.ranks)
    assert {node: sorted(r.local_rank for r in verdict.ranks if r.node == node) for node in per_node} == {
        node: list(range(count)) for node, count in per_node.items()
    }


def test_near_adapters_come_by_port_where_there_are_several() -> None:
    hcas = (HcaSpec("mlx5_0", 1, 400, (0,)), HcaSpec("mlx5_0", 2, 400, (0,)), HcaSpec("mlx5_1", 1, 400, (1,)))
    box = replace(shape("two", [H100] * 3, 900), hcas=hcas)
    verdict = placed(snapshot(tree({"leaf0": [node("n0", box)]})), request(group("tp", "TP", 3)))
    assert [rank.hcas for rank in verdict.ranks] == [
        ("mlx5_0:1", "mlx5_0:2"),
        ("mlx5_1",),
        ("mlx5_0:1", "mlx5_0:2", "mlx5_1"),
    ]


REQUESTS = (
    seed_request(4),
    request(group("tp", "TP", 4, preferred=["h100"], tolerated=["a100"]), replicas=6),
    request(group("s0", "PP", 8, hops=3), group("s1", "PP", 4, hops=3), replicas=2),
    request(group("dp", "DP", 2, hops=1), group("aux", "AUX", 1), replicas=5),
    request(group("tp", "TP", 3), group("ep", "EP", 2), replicas=3),
)


@pytest.mark.parametrize("number", range(len(REQUESTS)))
@pytest.mark.parametrize("seed", range(2))
def test_tables_and_count_model_agree(number: int, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    state = ragged(seed, 2, 3, 5)
    found = []
    for states_max in (0, tables.STATES_MAX):
        monkeypatch.setattr(tables, "STATES_MAX", states_max)
        verdict = placed(state, REQUESTS[number])
        assert verdict.objective.optimal
        found.append([(term.name, term.value) for term in verdict.objective.terms])
    assert found[0] == found[1]


def test_a_cut_search_is_honest() -> None:
    state = ragged(3, 2, 4, 6)
    verdict: Verdict = solve(state, request(group("tp", "TP", 12, hops=3), replicas=4), Budget(deterministic_s=0.02))
    if isinstance(verdict, Placement):
        assert verdict.objective.bound <= verdict.objective.value
        assert verdict.objective.optimal is (verdict.objective.bound == verdict.objective.value)
    else:
        assert isinstance(verdict, Undecided)


def test_no_answer_in_no_time_is_undecided_and_waits() -> None:
    state = ragged(3, 3, 4, 8)
    asks = request(group("tp", "TP", 12, hops=3), group("ep", "EP", 5, hops=3), replicas=6)
    verdict = solve(state, asks, Budget(deterministic_s=1e-9))
    assert isinstance(verdict, Undecided)
    plan = plan_json(asks, verdict, 0.1, 1, 8)
    assert (plan["verdict"], plan["why"][0]["constraint"]) == ("waits", "search limit")


@pytest.mark.parametrize("bad", [request(), request(group("tp", "TP", 0)), request(group("tp", "TP", 1), replicas=0)])
def test_a_request_for_nothing_is_an_error(bad: Request) -> None:
    with pytest.raises(ValueError, match="ask for nothing"):
        solve(hall(), bad, Budget())


def test_plan_json_is_json() -> None:
    state, asks = hall(), seed_request(2)
    plan = plan_json(asks, placed(state, asks), 0.0123456789, 40, 320)
    assert json.loads(json.dumps(plan, allow_nan=False)) == plan
    assert plan["verdict"] == "placed"
    assert plan["solve"] == {"seconds": 0.012346, "nodes": 40, "gpus": 320}
    assert set(plan["ranks"][0]) == {"rank", "group", "replica", "cell", "local_rank", "node", "gpu", "hcas"}
    assert plan["objective"]["value"] == plan["objective"]["bound"]
    refused = solve(state, seed_request(40), Budget())
    assert isinstance(refused, Unplaceable)
    plan = plan_json(seed_request(40), refused, 0.5, 40, 320)
    assert (plan["verdict"], plan["ranks"], plan["objective"]) == ("never", [], None)
    assert all(set(why) == {"constraint", "group", "asked", "best", "where", "relax"} for why in plan["why"])


FINGERPRINT = """
import hashlib
from tests.support.clusters import seed_request
from tests.unit.test_place_solve import REQUESTS, hall, ragged
from fmsched.model.placement import Budget
from fmsched.place.solve import solve
state = ragged(1, 2, 3, 5)
answers = [repr(solve(state, each, Budget())) for each in (*REQUESTS, seed_request(30))]
answers.append(repr(solve(hall(), seed_request(), Budget())))
print(hashlib.sha256("".join(answers).encode()).hexdigest())
"""


def test_same_snapshot_same_answer_in_any_process() -> None:
    found = set()
    for seed in ("0", "1", "4711"):
        done = subprocess.run(
            [sys.executable, "-c", FINGERPRINT],
            capture_output=True,
            text=True,
            check=True,
            timeout=100,
            cwd=ROOT,
            env={"PYTHONHASHSEED": seed, "PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)},
        )
        found.add(done.stdout)
    assert len(found) == 1


def test_order_of_what_is_held_does_not_matter() -> None:
    state = ragged(2, 2, 3, 5)
    turned = replace(state, held=dict(reversed(list(state.held.items()))))
    assert solve(state, REQUESTS[0], Budget()) == solve(turned, REQUESTS[0], Budget())


def test_without_solves_for_reasons_never_is_still_told_from_not_now() -> None:
    busy = snapshot(tree({"leaf0": boxes(HGX_H100, 2)}), held={"other": ["n0g0"]})
    later = solve(busy, request(group("tp", "TP", 8, preferred=["h100"]), replicas=2), Budget(explain_solves_max=0))
    never = solve(busy, request(group("tp", "TP", 8, preferred=["h100"]), replicas=3), Budget(explain_solves_max=0))
    assert isinstance(later, Unplaceable) and isinstance(never, Unplaceable)
    assert (later.never, never.never) == (False, True)
    assert [why.constraint for why in later.why] == ["free GPUs", "GPU type"]
    assert "15 of 16 H100 free" in later.why[0].best


@pytest.mark.parametrize("solves", range(1, 12))
def test_reasons_within_few_solves_stay_true(solves: int) -> None:
    busy = snapshot(tree({"leaf0": boxes(HGX_H100, 2), "leaf1": boxes(HGX_A100, 1, "a")}), held={"other": ["n0g0"]})
    asks = request(group("tp", "TP", 8, preferred=["h100"], memory=80, nvlink=900), replicas=2)
    verdict = solve(busy, asks, Budget(explain_solves_max=solves))
    assert isinstance(verdict, Unplaceable)
    assert not verdict.never
    assert "free GPUs" in {why.constraint for why in verdict.why}
    for why in verdict.why:
        assert why.relax in {"", "the end of job other, which holds 1 GPU", "tolerate a100", "1 fewer replica"}
