"""Jobs of several pipeline stages: what their spread is, what is promised of it, and the map that is to reach it."""

from __future__ import annotations

from collections import defaultdict

import pytest

from fmsched.model.job import Request
from fmsched.model.placement import Budget, Placement
from fmsched.model.snapshot import Snapshot
from fmsched.place.chains import least_by_count, rectangles
from fmsched.place.check import check
from fmsched.place.gridmap import Mapper
from fmsched.place.objective import ruler_of
from fmsched.place.problem import problem_of
from fmsched.place.solve import solve
from tests.support import clusters
from tests.support.clusters import HGX_H100, boxes, group, request, tree


def pipeline(stages: int, replicas: int, hops: int | None = None) -> Request:
    groups = [group(f"stage-{i}", "PP", 8, nvlink=900, hops=hops, reach=hops is not None) for i in range(stages)]
    return request(*groups, replicas=replicas)


def whole_nodes(leaves: int, nodes: int) -> Snapshot:
    return clusters.snapshot(tree({f"leaf{i}": boxes(HGX_H100, nodes, f"leaf{i}-n") for i in range(leaves)}))


def test_the_least_is_a_rectangle() -> None:
    for replicas, stages in ((1, 5), (4, 3), (6, 2)):
        least = least_by_count(replicas, stages)
        for n in range(1, replicas * stages + 1):
            shapes = [(a, b) for a in range(1, replicas + 1) for b in range(1, stages + 1) if a * b >= n]
            assert least[n] == min(stages * a + replicas * b for a, b in shapes)
            assert min(cost for room, cost in rectangles(replicas, stages) if room >= n) == least[n]


def test_a_job_over_four_leaf_groups_is_cut_into_quarters() -> None:
    verdict = solve(whole_nodes(4, 4), pipeline(4, 4), Budget())
    assert isinstance(verdict, Placement)
    assert verdict.objective.optimal
    leaves: defaultdict[tuple[str, object], set[str]] = defaultdict(set)
    for rank in verdict.ranks:
        leaves["stage", rank.group].add(_leaf(rank.node))
        leaves["replica", rank.replica].add(_leaf(rank.node))
    assert {len(of) for of in leaves.values()} == {2}, (
        "each stage and each replica in two leaf groups, not one of them in four"
    )


def _leaf(node: str) -> str:
    return node.partition("-")[0]


def test_alike_stages_become_one_group_and_others_do_not() -> None:
    snapshot = whole_nodes(2, 4)
    ruler = ruler_of(snapshot.topology)
    alike = pipeline(4, 2)
    problem = problem_of(snapshot, alike, ruler)
    assert (len(problem.request.groups), problem.request.replicas, problem.asked) == (1, 8, alike)
    mixed = request(group("a", "PP", 8), group("b", "PP", 4), replicas=2)
    assert len(problem_of(snapshot, mixed, ruler).request.groups) == 2
    beside = request(group("a", "PP", 8), group("b", "PP", 8), group("c", "AUX", 1), replicas=1)
    assert len(problem_of(snapshot, beside, ruler).request.groups) == 3


def test_near_stages_keep_every_replica_under_one_leaf() -> None:
    job = pipeline(4, 3, hops=1)
    snapshot = whole_nodes(3, 6)
    verdict = solve(snapshot, job, Budget())
    assert isinstance(verdict, Placement)
    assert verdict.objective.optimal
    assert check(snapshot, job, verdict) == ()


@pytest.mark.parametrize("sizes", [(16, 16, 16, 16), (20, 20, 24), (2, 15, 15, 16, 16)])
def test_maps_hold_every_cell_once(sizes: tuple[int, ...]) -> None:
    grid = Mapper(8, 8, sizes, [list(range(len(sizes)))]).best()
    assert sorted(grid.ravel().tolist()) == [leaf for leaf, n in enumerate(sizes) for _ in range(n)]


def test_a_map_reaches_what_the_counts_promise() -> None:
    # 4 × 4 each: 4 rows and 4 columns of weight 8, four times.
    mapper = Mapper(8, 8, (16, 16, 16, 16), [[0, 1, 2, 3]])
    assert mapper.worth(mapper.best()).spread == (4 * 8 * (4 + 4),)
    # Pods first, then leaf groups inside them.
    mapper = Mapper(8, 8, (16, 16, 16, 16), [[0, 0, 1, 1], [0, 1, 2, 3]])
    assert mapper.worth(mapper.best()).spread == (2 * 8 * (4 + 8), 4 * 8 * (4 + 4))
