"""The methods that benchmarks compare with: valid placements, each by its own rule, and never above ours in the objective."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from bench import slurm, slurm_cluster
from bench.baselines import (
    METHODS,
    best_fit_by_leaf,
    buddy_cells,
    first_fit,
    greedy_packing,
    terms_of,
)
from bench.placement import cluster, request
from bench.ranks import bounds_of, in_strips, one_group, spread_of
from bench.slurm_cluster import Layout

from fmsched.model.hardware import GpuId
from fmsched.model.job import GroupKind, Request, ResourceGroup
from fmsched.model.placement import Budget, Placement
from fmsched.model.snapshot import Snapshot
from fmsched.place.check import check
from fmsched.place.solve import solve
from fmsched.topology.clusterfile import ClusterFile, parse, to_snapshot

# Two pods of two leaf groups of four nodes: a1 to a4, b1 to b4 | c1 to c4, d1 to d4.
FOUR_LEAVES = """
apiVersion: fmsched/v1
kind: Cluster
nodes:
  - {name: "a[1-4]", type: hgx-h100, leaf: leaf-a}
  - {name: "b[1-4]", type: hgx-h100, leaf: leaf-b}
  - {name: "c[1-4]", type: hgx-h100, leaf: leaf-c}
  - {name: "d[1-4]", type: hgx-h100, leaf: leaf-d}
fabric:
  switches: {leaf-a: 0, leaf-b: 0, leaf-c: 0, leaf-d: 0, spine-1: 1, spine-2: 1, core: 2}
  links:
    - {between: [leaf-a, spine-1], gbps: 400}
    - {between: [leaf-b, spine-1], gbps: 400}
    - {between: [leaf-c, spine-2], gbps: 400}
    - {between: [leaf-d, spine-2], gbps: 400}
    - {between: ["spine-[1-2]", core], gbps: 400}
"""


def four_leaves(held: Mapping[str, int]) -> Snapshot:
    """`held`: by node, how many of its first GPUs another job has."""
    found = parse(FOUR_LEAVES)
    assert isinstance(found, ClusterFile), found
    return replace(to_snapshot(found), held={GpuId(node, gpu): "other" for node, n in held.items() for gpu in range(n)})


def placed(placement: Placement | None) -> Placement:
    assert placement is not None
    return placement


def gpus_of(placement: Placement) -> list[str]:
    return [str(rank.gpu_id) for rank in placement.ranks]


def test_first_fit_takes_the_clusters_order() -> None:
    found = placed(first_fit(four_leaves({"a1": 8, "a2": 5}), request(0, 16, 8)))
    assert found.nodes == ("a3", "a4")
    found = placed(first_fit(four_leaves({"a1": 8, "a2": 5}), request(0, 4, 2)))
    assert gpus_of(found) == ["a2/gpu5", "a2/gpu6", "a3/gpu0", "a3/gpu1"]


def test_best_fit_takes_the_leaf_with_the_least_room_that_holds_it() -> None:
    busy = {"a1": 8, "b1": 8, "b2": 8, "c1": 8, "c2": 8, "c3": 8}  # free: a 3, b 2, c 1, d 4
    found = placed(best_fit_by_leaf(four_leaves(busy), request(0, 16, 8)))
    assert found.nodes == ("b3", "b4")


def test_best_fit_takes_the_largest_leaf_where_none_holds_it_and_then_the_tightest() -> None:
    busy = {"a1": 8, "b1": 8, "b2": 8, "c1": 8, "c2": 8, "c3": 8}
    found = placed(best_fit_by_leaf(four_leaves(busy), request(0, 40, 8)))
    assert found.nodes == ("d1", "d2", "d3", "d4", "c4")


def test_greedy_packing_takes_the_roomiest_pod_its_roomiest_leaf_and_the_fullest_nodes() -> None:
    busy = {"a1": 8, "b1": 8, "c1": 4, "d1": 8}  # in 8-GPU cells: a 3, b 3 | c 3, d 3; in 4-GPU cells pod 2 has one more
    found = placed(greedy_packing(four_leaves(busy), request(0, 8, 4)))
    assert gpus_of(found) == [f"c1/gpu{i}" for i in range(4, 8)] + [f"c2/gpu{i}" for i in range(4)]


def test_buddy_cells_split_the_smallest_block_that_will_do() -> None:
    # a2 has a free half (gpu4 to 7), a3 a free pair (gpu6, gpu7): a pair comes from the pair, a half from the half.
    snapshot = four_leaves({"a1": 8, "a2": 4, "a3": 6})
    assert gpus_of(placed(buddy_cells(snapshot, request(0, 2, 2)))) == ["a3/gpu6", "a3/gpu7"]
    assert gpus_of(placed(buddy_cells(snapshot, request(0, 4, 4)))) == [f"a2/gpu{i}" for i in range(4, 8)]


def test_buddy_cells_take_aligned_blocks_of_nodes() -> None:
    # b1 is held: the free blocks of nodes are a1 to a4, b2, b3 and b4, and the whole second pod.
    snapshot = four_leaves({"b1": 8})
    assert placed(buddy_cells(snapshot, request(0, 16, 8))).nodes == ("b3", "b4")
    assert placed(buddy_cells(snapshot, request(0, 32, 8))).nodes == ("a1", "a2", "a3", "a4")


def test_buddy_cells_take_halves_where_no_block_is_left() -> None:
    busy = {node: 8 for leaf in "abcd" for node in (f"{leaf}1", f"{leaf}3")}
    found = placed(buddy_cells(four_leaves(busy), request(0, 64, 8)))
    assert sorted(found.nodes) == sorted(f"{leaf}{n}" for leaf in "abcd" for n in (2, 4))


@pytest.mark.parametrize("name", METHODS)
def test_what_does_not_fit_is_none(name: str) -> None:
    busy = {f"{leaf}{n}": 1 for leaf in "abcd" for n in range(1, 5)}
    assert METHODS[name](four_leaves(busy), request(0, 8, 8)) is None
    assert METHODS[name](four_leaves({}), request(0, 17 * 8, 8)) is None
    assert METHODS[name](four_leaves({}), request(0, 16 * 8, 8)) is not None


@pytest.mark.parametrize("name", METHODS)
def test_a_type_or_memory_that_is_not_there_is_none(name: str) -> None:
    for group in (
        ResourceGroup("cell", GroupKind.TENSOR_PARALLEL, 8, ("b200",)),
        ResourceGroup("cell", GroupKind.TENSOR_PARALLEL, 8, ("h100",), min_memory_gb=141.0),
        ResourceGroup("cell", GroupKind.TENSOR_PARALLEL, 8, ("h100",), min_nvlink_gbytes_per_s=1800.0),
    ):
        assert METHODS[name](four_leaves({}), Request("job", (group,), 1)) is None


@pytest.mark.parametrize("name", METHODS)
def test_two_groups_are_refused(name: str) -> None:
    group = ResourceGroup("one", GroupKind.AUXILIARY, 1)
    with pytest.raises(ValueError, match="2 groups"):
        METHODS[name](four_leaves({}), Request("job", (group, replace(group, name="two")), 1))


@pytest.mark.parametrize("seed", range(3))
def test_every_placement_passes_the_check_and_none_beats_a_proven_optimum(seed: int) -> None:
    snapshot = cluster(8 * 96, 0.6, seed)
    compared = 0
    for gang, cell in ((8, 8), (8, 2), (16, 1), (32, 4), (64, 8)):
        asked = request(0, gang, cell)
        verdict = solve(snapshot, asked, Budget())
        assert isinstance(verdict, Placement), verdict
        assert verdict.objective.optimal
        best = tuple(terms_of(snapshot, asked, verdict).values())
        assert best == tuple(int(term.value) for term in verdict.objective.terms)
        for name, method in METHODS.items():
            found = method(snapshot, asked)
            if found is not None:
                assert not check(snapshot, asked, found), name
                assert best <= tuple(terms_of(snapshot, asked, found).values()), name
                compared += 1
    assert compared >= 15


def test_spread_counts_the_domains_of_the_widest_group() -> None:
    topology = four_leaves({}).topology
    # [stage][replica]: the DP group of stage 0 lies in leaves a and b, that of stage 1 in a, c and d.
    grid = [["a1", "a2", "b1"], ["a3", "c1", "d1"]]
    assert (spread_of(topology, "leaf", grid).dp, spread_of(topology, "leaf", grid).pp) == (3, 2)
    assert (spread_of(topology, "pod", grid).dp, spread_of(topology, "pod", grid).pp) == (2, 2)


def test_strips_keep_the_nodes_and_lower_the_spread() -> None:
    topology = four_leaves({}).topology
    by_stage = [[f"{leaf}{n}" for n in range(1, 5)] for leaf in "abcd"]  # a stage a leaf: PP groups lie in all four
    made = in_strips(topology, by_stage)
    assert sorted(node for stage in made for node in stage) == sorted(node for stage in by_stage for node in stage)
    assert spread_of(topology, "leaf", by_stage).most == 4
    assert spread_of(topology, "leaf", made).most == 2  # squares of two stages and two replicas
    # No placement at all has less: 16 nodes in four leaf groups of four, two pods of eight.
    assert bounds_of(four_leaves({}), 4, 4) == {"leaf": 2, "pod": 2}
    assert bounds_of(four_leaves({}), 2, 2) == {"leaf": 1, "pod": 1}


def test_one_group_is_a_cell_a_node() -> None:
    asked = one_group(4, 2)
    assert (asked.replicas, asked.groups[0].gpus, asked.gpus) == (8, 8, 64)


def test_the_layout_of_the_slurm_cluster_is_one_tree() -> None:
    layout = Layout(100, nodes_per_leaf=8, leaves_per_spine=4)
    found = parse(layout.cluster_file())
    assert isinstance(found, ClusterFile), found
    topology = to_snapshot(found).topology
    assert [node.name for node in topology.nodes] == layout.names
    assert (len(topology.leaves), len(set(topology.domains[1].tolist()))) == (layout.leaves, layout.spines) == (13, 4)
    # What it says of spans is what the topology says.
    for nodes in (["node0001", "node0008"], ["node0008", "node0009"], ["node0032", "node0033", "node0100"]):
        leaves = {int(topology.leaf_of[topology.index[node]]) for node in nodes}
        assert layout.spans(nodes) == (len({int(topology.domains[1][leaf]) for leaf in leaves}), len(leaves))


def test_without_slurm_the_missing_packages_are_named_and_the_exit_status_is_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = {"slurmctld": ("slurmctld-that-is-not-there",), "munge": ("sh",)}
    monkeypatch.setattr(slurm_cluster, "PROGRAMS", gone)
    monkeypatch.setattr("sys.argv", ["bench.slurm"])
    with pytest.raises(SystemExit) as ended:
        slurm.main()
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert "apt-get install" in said
    assert "slurmctld" in said
    assert "munge" not in said


@pytest.mark.parametrize(
    ("theirs", "ours", "outcome"),
    [
        ((2, 2), (1, 3), "fewer"),  # spines come first
        ((1, 2), (1, 2), "equal"),
        ((1, 2), (1, 3), "worse"),
        (None, (1, 2), "only ours now"),
        ((1, 2), None, "only Slurm now"),
        (None, None, "none now"),
    ],
)
def test_answers_are_compared_by_spines_then_leaves(
    theirs: slurm.Spans | None, ours: slurm.Spans | None, outcome: str
) -> None:
    asked = slurm.Sample(8, 8, 0.02, 0.01, 0.01, 0.03, 0.01, 0.02, theirs, ours, proven=True, gap=0.0)
    assert asked.outcome == outcome


def test_what_slurm_would_start_and_we_would_not_counts_as_worse() -> None:
    around = slurm.Around("slurm", 0.005, 0.5, 100.0, 40.0, (1.0, 1.0))
    pairs: list[tuple[slurm.Spans | None, slurm.Spans | None]] = [((1, 2), None), ((1, 2), (1, 1)), (None, (1, 1))]
    samples = [slurm.Sample(8, 8, 0.02, 0.01, 0.01, 0.03, 0.01, 0.02, a, b, proven=True, gap=0.0) for a, b in pairs]
    found = slurm.summary(samples, around)
    assert (found["worse"], found["equal"], found["fewer"]) == (0.5, 0.0, 0.5)
    assert (found["only_ours_now"], found["only_slurm_now"], found["compared"]) == (1, 1, 2)
    assert found["latency_ratio_p50"] == pytest.approx(1.5)
    assert found["latency_ratio_call_p50"] == pytest.approx(2.0)
