"""One step: its parts, the degrees that a job's groups mean, what is refused, and what is printed."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from fmsched.model.hardware import GpuSpec
from fmsched.model.job import GroupKind, ResourceGroup
from fmsched.model.placement import RankPlacement
from fmsched.model.work import ModelSizes
from fmsched.predict import Degrees, Overlap, Training, Unpredicted, predict, predicted_json, training_of
from fmsched.predict.groups import CONTEXT, EXPERT, REPLICA, TENSOR, along, mesh_of, neighbours
from fmsched.predict.step import ATTAINABLE
from tests.support.clusters import H100, HGX_A100, HGX_H100, shape
from tests.support.predicting import ONE, SMALL, TINY_MOE, cluster, equal, foreseen, node, on, on_equal_nodes, packed

TENSOR_KIND, DATA_KIND = GroupKind.TENSOR_PARALLEL, GroupKind.DATA_PARALLEL


def ranks(*groups: tuple[str, int, int]) -> tuple[RankPlacement, ...]:
    """(group, replicas, GPUs each), group-major, one rank a GPU of an endless row of nodes."""
    found: list[RankPlacement] = []
    for name, replicas, gpus in groups:
        for replica in range(replicas):
            for _ in range(gpus):
                at = len(found)
                found.append(RankPlacement(at, name, replica, 0, at % 8, f"n{at // 8}", at % 8, ""))
    return tuple(found)


def test_one_gpu_only_computes() -> None:
    found = on_equal_nodes(HGX_H100, ONE)
    tokens = 8 * SMALL.sequence
    assert found.step_s == found.compute_s == pytest.approx(tokens * SMALL.step_flops / (989e12 * ATTAINABLE["Hopper"]))
    assert found.mfu == pytest.approx(ATTAINABLE["Hopper"])
    assert found.tokens_per_s == pytest.approx(tokens / found.step_s)
    assert found.links == ()
    assert found.slowest == "n0/gpu0 H100-SXM5-80GB"
    assert found.assumed == ()


def test_recomputation_costs_a_forward_pass() -> None:
    plain = on_equal_nodes(HGX_H100, ONE).compute_s
    full = on_equal_nodes(HGX_H100, replace(ONE, recompute="full")).compute_s
    selective = on_equal_nodes(HGX_H100, replace(ONE, recompute="selective")).compute_s
    head = 3 * SMALL.head_flops / SMALL.step_flops
    assert full / plain == pytest.approx(4 / 3 * (1 - head) + head)
    assert plain < selective < full


def test_fp8_speeds_up_only_what_has_it() -> None:
    job = replace(ONE, precision="fp8")
    assert on_equal_nodes(HGX_H100, job).step_s < on_equal_nodes(HGX_H100, ONE).step_s
    assert on_equal_nodes(HGX_A100, job).step_s == on_equal_nodes(HGX_A100, ONE).step_s


def test_the_bubble_is_that_of_1f1b() -> None:
    job = Training(SMALL, Degrees(pipeline=4), global_batch=16)
    found = on_equal_nodes(HGX_H100, job)
    busy_s = found.compute_s + found.exposed_s
    assert found.bubble_s / busy_s == pytest.approx(3 / 16)
    interleaved = on_equal_nodes(HGX_H100, replace(job, virtual_stages=2))
    assert interleaved.bubble_s / (interleaved.compute_s + interleaved.exposed_s) == pytest.approx(3 / (2 * 16))
    assert interleaved.pp_s == pytest.approx(2 * found.pp_s)


def test_a_stage_more_or_less_full() -> None:
    # Six layers over four stages: two in the fullest, and the output layer with one of the others.
    deep = replace(SMALL, layers=6, vocabulary=8)
    found = on_equal_nodes(HGX_H100, Training(deep, Degrees(pipeline=4), global_batch=1))
    alone = on_equal_nodes(HGX_H100, Training(deep, global_batch=1))
    assert found.compute_s / alone.compute_s == pytest.approx(2 / 6, rel=1e-3)


def test_the_output_layer_counts_in_the_last_stage() -> None:
    wide = replace(SMALL, vocabulary=500_000)
    found = on_equal_nodes(HGX_H100, Training(wide, Degrees(pipeline=8), global_batch=1))
    flops = 3 * (wide.layer_flops / 8 + wide.head_flops) * wide.sequence
    assert found.compute_s == pytest.approx(flops / (989e12 * ATTAINABLE["Hopper"]))


def test_tensor_traffic_is_four_all_reduces_per_layer() -> None:
    found = on_equal_nodes(HGX_H100, Training(SMALL, Degrees(tensor=8), global_batch=8))
    size = 2 * SMALL.sequence * SMALL.hidden
    least_s = 8 * SMALL.layers * 4 * 2 * 7 / 8 * size / 450e9
    assert least_s < found.tp_s < 20 * least_s
    assert found.exposed_s == pytest.approx(found.tp_s)
    assert [(group.kind, group.ranks, group.islands) for group in found.links] == [("tensor", 8, 1)]


def test_full_recomputation_repeats_the_forward_traffic() -> None:
    for job, part in (
        (Training(SMALL, Degrees(tensor=8), global_batch=8), "tp_s"),
        (Training(TINY_MOE, Degrees(data=8, expert=8), global_batch=8), "ep_s"),
    ):
        plain, full = on_equal_nodes(HGX_H100, job), on_equal_nodes(HGX_H100, replace(job, recompute="full"))
        assert getattr(full, part) / getattr(plain, part) == pytest.approx(6 / 4)


def test_short_computation_hides_no_more_than_it_lasts() -> None:
    job = Training(replace(SMALL, sequence=16), Degrees(data=64), global_batch=64)
    found = on_equal_nodes(HGX_A100, job)
    assert found.compute_s < 0.8 * found.dp_s
    assert found.exposed_s == pytest.approx(found.dp_s - found.compute_s)


def test_gradients_hide_beside_the_last_micro_batch_and_no_longer() -> None:
    few = on_equal_nodes(HGX_H100, Training(SMALL, Degrees(data=16), global_batch=16))
    assert few.exposed_s == pytest.approx(max(0.2 * few.dp_s, few.dp_s - few.compute_s))
    none = Training(SMALL, Degrees(data=16), global_batch=16, overlap=Overlap(data=0.0))
    assert on_equal_nodes(HGX_H100, none).exposed_s == pytest.approx(few.dp_s)
    half = replace(none, gradient_bytes=2.0)
    assert on_equal_nodes(HGX_H100, half).dp_s < few.dp_s


def test_sharding_the_optimizer_moves_fewer_bytes() -> None:
    job = Training(SMALL, Degrees(data=16), global_batch=16)
    sharded, whole = (on_equal_nodes(HGX_H100, replace(job, sharded=flag)).dp_s for flag in (True, False))
    assert sharded / whole == pytest.approx((4 + 2) / (4 + 4), rel=0.02)


def test_experts_exchange_tokens_and_reduce_their_gradients_apart() -> None:
    job = Training(TINY_MOE, Degrees(data=16, expert=8), global_batch=16)
    found = on_equal_nodes(HGX_H100, job)
    assert {group.kind: group.ranks for group in found.links} == {"expert": 8, "data": 16, "expert data": 2}
    assert found.ep_s > 0
    dense = on_equal_nodes(HGX_H100, replace(job, degrees=Degrees(data=16)))
    assert dense.ep_s == 0
    assert dense.dp_s > found.dp_s


def test_context_parallelism_gathers_keys_and_values() -> None:
    long = replace(SMALL, sequence=65536)
    alone = on_equal_nodes(HGX_H100, Training(long, global_batch=2))
    split = on_equal_nodes(HGX_H100, Training(long, Degrees(context=8), global_batch=2))
    assert split.compute_s == pytest.approx(alone.compute_s / 8)
    assert split.cp_s > 0
    assert {group.kind for group in split.links} == {"context", "data"}


def test_the_slowest_gpu_decides_and_is_named() -> None:
    topology = cluster([(node("a", HGX_A100), 0), (node("h", HGX_H100), 0)])
    job = Training(SMALL, Degrees(data=16), global_batch=64)
    found = foreseen(topology, packed(topology, 16), job)
    assert found.slowest == "a/gpu0 A100-SXM4-80GB"
    alone = on_equal_nodes(HGX_A100, job)
    assert found.compute_s == alone.compute_s
    assert found.mfu < alone.mfu  # fast GPUs that wait are counted


def test_the_mesh_is_laid_out_as_the_manifest_lays_out_cells() -> None:
    job = Training(SMALL, Degrees(tensor=2, pipeline=2, data=4, expert=2), groups=("stage-0", "stage-1"))
    laid_out = mesh_of(ranks(("stage-0", 2, 4), ("stage-1", 2, 4)), job)
    assert not isinstance(laid_out, Unpredicted)
    members, mesh = laid_out
    assert [rank.rank for rank in members] == list(range(16))
    assert along(mesh, TENSOR)[0].tolist() == [0, 1]
    assert along(mesh, EXPERT)[0].tolist() == [0, 2]
    assert along(mesh, REPLICA)[0].tolist() == [0, 4]
    assert along(mesh, REPLICA, EXPERT, CONTEXT)[0].tolist() == [0, 2, 4, 6]
    assert neighbours(mesh, wrap=False)[0].tolist() == [0, 8]
    assert len(along(mesh, CONTEXT)) == 0


def test_replicas_stay_together_where_ranks_are_numbered_across_them() -> None:
    job = Training(SMALL, Degrees(tensor=2, data=2), groups=("cells",))
    across = tuple(replace(rank, replica=rank.rank % 2) for rank in ranks(("cells", 1, 4)))
    laid_out = mesh_of(across, job)
    assert not isinstance(laid_out, Unpredicted)
    assert [rank.rank for rank in laid_out[0]] == [0, 2, 1, 3]


def test_interleaved_stages_send_from_the_last_to_the_first() -> None:
    mesh = np.arange(6).reshape(3, 1, 1, 1, 2)
    assert neighbours(mesh, wrap=False).tolist() == [[0, 2], [1, 3], [2, 4], [3, 5]]
    assert neighbours(mesh, wrap=True).tolist() == [[0, 2], [1, 3], [2, 4], [3, 5], [4, 0], [5, 1]]
    assert len(neighbours(mesh[:2], wrap=True)) == 2
    assert len(neighbours(mesh[:1], wrap=True)) == 0


def test_every_rank_is_in_one_group_of_each_kind() -> None:
    mesh = np.arange(2 * 3 * 2 * 2 * 4).reshape(2, 3, 2, 2, 4)
    for axes in ((TENSOR,), (CONTEXT,), (EXPERT,), (REPLICA, EXPERT, CONTEXT), (REPLICA, CONTEXT)):
        assert sorted(i for group in along(mesh, *axes).tolist() for i in group) == list(range(96))


def test_ranks_of_groups_that_do_not_train_are_left_out() -> None:
    job = Training(SMALL, Degrees(tensor=4, data=2), groups=("cells",))
    laid_out = mesh_of(ranks(("helpers", 2, 1), ("cells", 2, 4)), job)
    assert not isinstance(laid_out, Unpredicted)
    assert {rank.group for rank in laid_out[0]} == {"cells"}


def test_a_missing_batch_is_assumed_and_told() -> None:
    found = on_equal_nodes(HGX_H100, Training(SMALL, Degrees(pipeline=2, data=4)))
    assert found.micro_batches == 8
    assert found.tokens == 32 * SMALL.sequence
    assert found.assumed == ("a global batch of 32 sequences",)


@pytest.mark.parametrize(
    ("job", "reason"),
    [
        (Training(SMALL, Degrees(data=4)), "4 GPUs, the placement has 8"),
        (Training(SMALL, Degrees(data=8), global_batch=12), "does not divide"),
        (Training(SMALL, Degrees(data=8, expert=3)), "not a multiple"),
        (Training(replace(TINY_MOE, experts=4), Degrees(data=8, expert=8)), "the model has 4"),
        (Training(replace(SMALL, layers=4), Degrees(pipeline=8)), "8 pipeline stages for 4 layers"),
        (Training(SMALL, Degrees(data=8), groups=("other",)), "has 0"),
    ],
)
def test_what_cannot_be_is_told(job: Training, reason: str) -> None:
    topology = equal(HGX_H100, 1)
    found = predict(topology, packed(topology, 8), job)
    assert isinstance(found, Unpredicted)
    assert reason in found.reason
    assert predicted_json(found) == {"unknown": found.reason}


def test_an_unknown_gpu_or_a_missing_link_is_told() -> None:
    strange = shape("strange", [GpuSpec("Mystery-9", "mystery", 80)])
    found = predict(equal(strange, 1), on(equal(strange, 1), [(0, 0)]), ONE)
    assert str(found) == "the FLOP/s of 'Mystery-9' are not known (n0)"
    bare = replace(shape("bare", [H100]), hcas=())
    topology = equal(bare, 2)
    missing = predict(topology, packed(topology, 2), Training(SMALL, Degrees(data=2)))
    assert "joined by no link" in str(missing)


def group(name: str, kind: GroupKind, gpus: int) -> ResourceGroup:
    return ResourceGroup(name, kind, gpus)


@pytest.mark.parametrize(
    ("groups", "degrees", "names"),
    [
        ([group("a", TENSOR_KIND, 8)], Degrees(tensor=8, data=3), ("a",)),
        ([group("a", TENSOR_KIND, 8), group("b", DATA_KIND, 1)], Degrees(tensor=8, data=3), ("a",)),
        ([group("a", TENSOR_KIND, 4), group("b", TENSOR_KIND, 4)], Degrees(tensor=4, data=6), ("a", "b")),
        ([group("a", DATA_KIND, 4)], Degrees(data=12), ("a",)),
        ([group("e", GroupKind.EXPERT_PARALLEL, 16)], Degrees(data=48, expert=16), ("e",)),
        (
            [group("s0", GroupKind.PIPELINE_PARALLEL, 8), group("s1", GroupKind.PIPELINE_PARALLEL, 8)],
            Degrees(tensor=8, pipeline=2, data=3),
            ("s0", "s1"),
        ),
        ([group("a", TENSOR_KIND, 8), group("x", GroupKind.AUXILIARY, 1)], Degrees(tensor=8, data=3), ("a",)),
    ],
)
def test_degrees_follow_from_groups(groups: list[ResourceGroup], degrees: Degrees, names: tuple[str, ...]) -> None:
    job = training_of(groups, 3, "llama3-8b", micro_batch=1)
    assert isinstance(job, Training)
    assert (job.degrees, job.groups) == (degrees, names)
    left_out = {group.name for group in groups if group.kind is not GroupKind.AUXILIARY} - set(names)
    assert all(any(name in note for note in job.assumed) for name in left_out)


def test_given_degrees_are_taken_where_they_fit() -> None:
    stages = [group(f"stage-{i}", GroupKind.PIPELINE_PARALLEL, 16) for i in range(4)]
    degrees = Degrees(tensor=8, pipeline=4, data=6, expert=2)
    job = training_of(stages, 3, "mixtral-8x7b", degrees=degrees, global_batch=96, micro_batch=2)
    assert isinstance(job, Training)
    assert (job.degrees, job.micro_batch, job.global_batch) == (degrees, 2, 96)
    wrong = training_of(stages, 3, "mixtral-8x7b", degrees=Degrees(data=3))
    assert isinstance(wrong, Unpredicted)
    assert "3 GPUs" in wrong.reason


@pytest.mark.parametrize(
    ("groups", "name", "reason"),
    [
        ([group("a", TENSOR_KIND, 8)], "", "names no model"),
        ([group("a", TENSOR_KIND, 8)], "ours", "not in the catalogue"),
        ([group("x", GroupKind.AUXILIARY, 1)], "llama3-8b", "no group"),
        ([group("a", TENSOR_KIND, 8), group("b", TENSOR_KIND, 4)], "llama3-8b", "unequal"),
    ],
)
def test_a_job_that_says_too_little_is_told(groups: list[ResourceGroup], name: str, reason: str) -> None:
    found = training_of(groups, 1, name, ModelSizes())
    assert isinstance(found, Unpredicted)
    assert reason in found.reason


def test_the_report_is_json_with_every_figure_named() -> None:
    job = Training(TINY_MOE, Degrees(tensor=2, pipeline=2, data=4, expert=2), global_batch=16)
    found = on_equal_nodes(HGX_H100, job)
    printed = json.loads(json.dumps(predicted_json(found), allow_nan=False))
    for name in (
        "compute_s",
        "tp_s",
        "cp_s",
        "ep_s",
        "pp_s",
        "dp_s",
        "bubble_s",
        "exposed_s",
        "step_s",
        "tokens_per_s",
        "mfu",
    ):
        assert math.isclose(printed[name], getattr(found, name), rel_tol=1e-3, abs_tol=1e-8)
    assert [link["group"] for link in printed["links"]] == ["tensor", "expert", "expert data", "pipeline", "data"]
    assert printed["links"][0]["kind"] == "NVLink"
    assert printed["links"][0]["between"] == ["n0", "n0"]


@pytest.mark.parametrize(
    "wrong",
    [{"precision": "int4"}, {"recompute": "some"}, {"micro_batch": 0}, {"global_batch": -1}, {"gradient_bytes": 0.0}],
)
def test_a_training_that_makes_no_sense_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"."):
        replace(ONE, **wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="share"):
        Overlap(data=1.5)
