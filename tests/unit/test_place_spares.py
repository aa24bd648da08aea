"""Spares: placed like replicas, numbered after all that run, held and never started."""

from __future__ import annotations

from dataclasses import replace

from fmproto.v1 import job_pb2 as pb
from fmsched.model.placement import Budget, Placement, Unplaceable
from fmsched.model.record import Decision, Phase
from fmsched.model.snapshot import Snapshot
from fmsched.place.check import check
from fmsched.place.solve import solve
from fmsched.store import codec
from tests.support import clusters
from tests.support.clusters import HGX_H100, group


def cluster(nodes: int = 4) -> Snapshot:
    return clusters.snapshot(clusters.tree({"leaf0": clusters.boxes(HGX_H100, nodes)}))


ASKED = replace(clusters.request(group("tp", "TP", 8), group("dp", "DP", 1), replicas=2), spares=1)


def placed(nodes: int = 4) -> Placement:
    verdict = solve(cluster(nodes), ASKED, Budget())
    assert isinstance(verdict, Placement), verdict
    return verdict


def test_spares_come_last_and_keep_to_every_rule() -> None:
    verdict = placed()
    assert not check(cluster(), ASKED, verdict)
    assert [rank.rank for rank in verdict.ranks] == list(range(27))
    assert [rank.spare for rank in verdict.ranks] == [False] * 18 + [True] * 9
    assert {rank.replica for rank in verdict.running} == {0, 1}
    assert sorted({rank.cell for rank in verdict.running}) == [0, 1, 2, 3]
    assert sorted({rank.cell for rank in verdict.ranks if rank.spare}) == [4, 5]


def test_check_refuses_a_spare_that_runs() -> None:
    verdict = placed()
    wrong = replace(verdict, ranks=tuple(replace(rank, spare=False) for rank in verdict.ranks))
    assert {found.constraint for found in check(cluster(), ASKED, wrong)} >= {"spares"}


def test_nothing_starts_on_a_spare() -> None:
    verdict = placed()
    decision = Decision(attempt=1, term=1, placement=verdict, decided_ms=0, revision=1)
    assert codec.decision_of(codec.decision_message(decision, {})).placement.ranks == verdict.ranks
    orders = codec.assignment_messages(pb.JobSpec(id="j.1"), decision, Phase.PREPARE, 1, {}, verdict.nodes)
    assert set(orders) == set(verdict.nodes)
    started = [rank.rank for order in orders.values() for rank in order.ranks]
    assert sorted(started) == list(range(18))
    assert {(order.world_size, order.node_count) for order in orders.values()} == {(18, len(verdict.nodes))}
    spare_alone = {rank.node for rank in verdict.ranks} - set(verdict.nodes)
    assert spare_alone, "the spare cell of eight has a node of its own"


def test_fewer_spares_is_offered_where_it_helps() -> None:
    verdict = solve(cluster(3), ASKED, Budget())
    assert isinstance(verdict, Unplaceable)
    assert "1 fewer spare" in {why.relax for why in verdict.why}
    assert isinstance(solve(cluster(3), replace(ASKED, spares=0), Budget()), Placement)
