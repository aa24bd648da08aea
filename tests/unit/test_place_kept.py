"""Ranks that stay: what check says of them, what is asked of `kept`, and that the step time still decides where the rest goes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fmsched.model.job import Request
from fmsched.model.placement import Budget, Placement, RankPlacement, Unplaceable
from fmsched.model.snapshot import Snapshot
from fmsched.model.work import Work
from fmsched.place import fastest
from fmsched.place.check import check
from fmsched.place.solve import solve
from tests.support.clusters import HGX_A100, HGX_H100, boxes, group, request, snapshot, tree


def hall() -> Snapshot:
    leaves = {"a": boxes(HGX_A100, 3, "a"), "h": boxes(HGX_H100, 3, "h")}
    return snapshot(tree(leaves))


def placed(state: Snapshot, asked: Request) -> Placement:
    verdict = solve(state, asked, Budget())
    assert isinstance(verdict, Placement), verdict
    return verdict


def after_loss(state: Snapshot, asked: Request, gone: int) -> tuple[Snapshot, Request, Placement]:
    """The job placed and running, and then the node of replica `gone` shut."""
    before = placed(state, asked)
    (node,) = {rank.node for rank in before.ranks if rank.replica == gone}
    kept = tuple(rank for rank in before.ranks if rank.replica != gone)
    held = {rank.gpu_id: asked.job for rank in before.ranks}
    return replace(state, held=held, closed={node: "lost"}), replace(asked, kept=kept), before


@pytest.mark.parametrize("gone", [0, 1, 2])
def test_survivors_keep_node_and_number_and_the_lost_number_is_the_new_ones(gone: int) -> None:
    state, asked, before = after_loss(hall(), request(group("tp", "TP", 4, tolerated=["h100", "a100"]), replicas=3), gone)
    asked = replace(asked, kept=tuple(rank for rank in asked.kept if rank.node not in state.closed))
    after = placed(state, asked)
    assert check(state, asked, after) == ()
    assert after.objective.optimal
    stays = {rank.rank for rank in asked.kept}
    assert [rank for rank in after.ranks if rank.rank in stays] == [rank for rank in before.ranks if rank.rank in stays]
    assert [rank.rank for rank in after.ranks] == list(range(12))
    assert not {rank.node for rank in after.ranks if rank.rank not in stays} & set(state.closed)


def test_check_refuses_a_survivor_that_moves() -> None:
    state, asked, _ = after_loss(hall(), request(group("tp", "TP", 8), replicas=2), 0)
    after = placed(state, asked)
    ranks = tuple(replace(rank, rank=rank.rank, replica=1 - rank.replica) for rank in after.ranks)
    dealt = tuple(
        replace(rank, rank=i, cell=rank.replica) for i, rank in enumerate(sorted(ranks, key=lambda rank: rank.replica))
    )
    found = {violation.constraint for violation in check(state, asked, replace(after, ranks=dealt))}
    assert found == {"kept ranks"}
    twice = tuple(replace(rank, local_rank=0) if rank.replica == 0 else rank for rank in after.ranks)
    assert {violation.constraint for violation in check(state, asked, replace(after, ranks=twice))} == {"local rank"}


def test_a_new_rank_takes_no_local_number_of_a_survivor() -> None:
    """Replica 0 lost its GPUs and goes to others of the node: replica 1 keeps its own numbers."""
    state = snapshot(tree({"h": boxes(HGX_H100, 1, "h")}))
    asked = request(group("tp", "TP", 2), replicas=2)
    before = placed(state, asked)
    kept = tuple(rank for rank in before.ranks if rank.replica == 1)
    sick = {rank.gpu_id: "Xid 79" for rank in before.ranks if rank.replica == 0}
    after_state = replace(state, held={rank.gpu_id: "job" for rank in kept}, unfit=sick)
    after = placed(after_state, replace(asked, kept=kept))
    assert [rank.local_rank for rank in after.ranks] == [0, 1, 2, 3]
    assert {rank.gpu for rank in after.ranks if rank.replica == 0} == {4, 5}


def test_the_step_time_decides_among_what_may_join() -> None:
    state = hall()
    asked = replace(request(group("tp", "TP", 8), replicas=2), work=Work("llama-3-70b"))
    broken, repair, _ = after_loss(state, asked, 0)
    after = placed(broken, repair)
    assert {node[0] for node in after.nodes} == {"h"}
    assert after.objective.terms[0].name == fastest.STEP
    assert after.objective.optimal


def test_what_is_to_stay_must_be_usable() -> None:
    state, asked, _ = after_loss(hall(), request(group("tp", "TP", 8), replicas=2), 0)
    thief = replace(state, held={**state.held, asked.kept[0].gpu_id: "thief"})
    verdict = solve(thief, asked, Budget())
    assert isinstance(verdict, Unplaceable)
    assert [why.constraint for why in verdict.why] == ["kept ranks"]


def _other_group(rank: RankPlacement) -> RankPlacement:
    return replace(rank, group="nobody")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda kept: kept[1:], "kept: found 7 ranks of group tp replica 1; allowed: whole instances"),
        (lambda kept: (*kept[1:], kept[1]), "kept: found rank 9 twice"),
        (lambda kept: tuple(map(_other_group, kept)), "kept: found 8 ranks of replica 1"),
    ],
)
def test_kept_ranks_are_whole_instances(change: object, message: str) -> None:
    state, asked, _ = after_loss(hall(), request(group("tp", "TP", 8), replicas=2), 0)
    assert callable(change)
    with pytest.raises(ValueError, match=message):
        solve(state, replace(asked, kept=change(asked.kept)), Budget())


def test_kept_ranks_and_spares_are_not_asked_together() -> None:
    """Spares are numbered after all ranks that run, which would deal out the numbers anew."""
    state, asked, _ = after_loss(hall(), request(group("tp", "TP", 8), replicas=2), 0)
    with pytest.raises(ValueError, match="spares: found 1 beside 8 kept ranks; allowed: one of the two"):
        solve(state, replace(asked, spares=1), Budget())
