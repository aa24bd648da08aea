"""What must hold for every job and placement: bandwidth helps, spreading hurts, the slowest decides, units agree."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fmsched.model.hardware import NodeShape
from fmsched.model.job import GroupKind, ResourceGroup
from fmsched.model.work import ModelSizes
from fmsched.predict import Degrees, Predicted, Training, Unpredicted, predict, predicted_json, training_of
from tests.support.clusters import A100, DGX_1V, H100, HGX_A100, HGX_H100, L40S_BOX, shape
from tests.support.predicting import SMALL, TINY_MOE, cluster, equal, foreseen, node, on, packed

SHAPES = (HGX_H100, HGX_A100, L40S_BOX, DGX_1V)
# Boxes whose GPUs are all joined alike: elsewhere, as in a cube mesh, it also counts which GPUs a wider placement takes.
ALIKE = (HGX_H100, HGX_A100, L40S_BOX, shape("direct", [A100] * 4, 200, gbps=200))
BARELY = 1e-9  # relative: sums of floats


@st.composite
def jobs(draw: st.DrawFn, gpus_max: int = 32) -> Training:
    powers = st.sampled_from((1, 2, 4, 8))
    tensor, pipeline, context, data = (
        draw(powers),
        draw(st.sampled_from((1, 2, 4))),
        draw(st.sampled_from((1, 2))),
        draw(powers),
    )
    while tensor * pipeline * context * data > gpus_max:
        tensor, data = (tensor // 2, data) if tensor > 1 else (tensor, max(1, data // 2))
    model = draw(st.sampled_from((SMALL, TINY_MOE)))
    expert = draw(st.sampled_from([e for e in (1, 2, 4, 8) if data % e == 0])) if model.experts else 1
    return Training(
        model,
        Degrees(tensor, pipeline, data, expert, context),
        global_batch=data * draw(st.integers(1, 8)),
        virtual_stages=draw(st.sampled_from((1, 2))) if pipeline > 1 else 1,
        recompute=draw(st.sampled_from(("none", "selective", "full"))),
        sharded=draw(st.booleans()),
    )


@dataclass(frozen=True)
class Spread:
    """Runs of consecutive ranks, each on a node of its own below the leaf switch of this number."""

    runs: tuple[tuple[int, int], ...]  # (ranks, leaf)


@st.composite
def spreads(draw: st.DrawFn, ranks: int, most: int) -> Spread:
    runs = []
    while ranks:
        count = draw(st.integers(1, min(ranks, most)))
        runs.append((count, draw(st.integers(0, 2))))
        ranks -= count
    return Spread(tuple(runs))


def seconds(shape_: NodeShape, spread: Spread, job: Training, uplink_gbps: float = 0.0) -> float:
    topology = cluster([(node(f"n{i}", shape_), leaf) for i, (_, leaf) in enumerate(spread.runs)], uplink_gbps)
    gpus = [(i, gpu) for i, (count, _) in enumerate(spread.runs) for gpu in range(count)]
    return foreseen(topology, on(topology, gpus), job).step_s


def faster(shape_: NodeShape, nvlink: float, adapters: float) -> NodeShape:
    return replace(
        shape_,
        nvlink=tuple(tuple(rate * nvlink for rate in row) for row in shape_.nvlink),
        hcas=tuple(replace(hca, rate_gbps=hca.rate_gbps * adapters) for hca in shape_.hcas),
    )


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_more_bandwidth_is_never_slower(data: st.DataObject) -> None:
    shape_ = data.draw(st.sampled_from(SHAPES))
    job = data.draw(jobs())
    spread = data.draw(spreads(job.degrees.gpus, len(shape_.gpus)))
    more = st.floats(1.0, 4.0)
    uplink = data.draw(st.floats(50.0, 800.0))
    before_s = seconds(shape_, spread, job, uplink)
    better = faster(shape_, data.draw(more), data.draw(more))
    assert seconds(better, spread, job, uplink * data.draw(more)) <= before_s * (1 + BARELY)


@settings(max_examples=120, deadline=None)
@given(st.data())
def test_a_wider_spread_is_never_faster(data: st.DataObject) -> None:
    """One node's ranks go to two nodes, the second below the same leaf switch or a new one; or a node goes to a new leaf switch."""
    shape_ = data.draw(st.sampled_from(ALIKE))
    job = data.draw(jobs())
    spread = data.draw(spreads(job.degrees.gpus, len(shape_.gpus)))
    at = data.draw(st.integers(0, len(spread.runs) - 1))
    count, leaf = spread.runs[at]
    kept = data.draw(st.integers(0, count - 1))
    far = data.draw(st.sampled_from((leaf, 9)))
    halves = [(kept, leaf)] * (kept > 0) + [(count - kept, far)]
    wider = Spread((*spread.runs[:at], *halves, *spread.runs[at + 1 :]))
    uplink = data.draw(st.floats(50.0, 800.0))
    assume(kept or any(other == leaf for i, (_, other) in enumerate(spread.runs) if i != at))  # else it only moved
    assert seconds(shape_, wider, job, uplink) >= seconds(shape_, spread, job, uplink) * (1 - BARELY)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_mixed_gang_is_as_fast_as_its_slowest_gpu(data: st.DataObject) -> None:
    """Boxes alike in all but their GPUs: any mix steps as a gang of only A100."""
    slow, fast = shape("slow", [A100] * 8, 600, gbps=200), shape("fast", [H100] * 8, 600, gbps=200)
    job = data.draw(jobs())
    count = -(-job.degrees.gpus // 8)
    kinds = data.draw(st.lists(st.sampled_from((slow, fast)), min_size=count, max_size=count))
    at = data.draw(st.integers(0, count - 1))
    kinds[at] = slow
    mixed = cluster([(node(f"n{i}", kind), i % 2) for i, kind in enumerate(kinds)])
    alike = cluster([(node(f"n{i}", slow), i % 2) for i in range(count)])
    found = foreseen(mixed, packed(mixed, job.degrees.gpus), job)
    same = foreseen(alike, packed(alike, job.degrees.gpus), job)
    assert found.step_s == pytest.approx(same.step_s, rel=BARELY)
    assert found.mfu <= same.mfu * (1 + BARELY)


@settings(max_examples=100, deadline=None)
@given(jobs(), st.sampled_from(SHAPES))
def test_units_agree(job: Training, shape_: NodeShape) -> None:
    topology = equal(shape_, -(-job.degrees.gpus // len(shape_.gpus)), per_leaf=2)
    found = foreseen(topology, packed(topology, job.degrees.gpus), job)
    traffic_s = found.tp_s + found.cp_s + found.ep_s + found.pp_s + found.dp_s
    assert found.step_s == pytest.approx(found.compute_s + found.bubble_s + found.exposed_s)
    assert 0 <= found.exposed_s <= traffic_s * (1 + BARELY)
    assert min(found.compute_s, found.step_s) > 0
    assert found.tokens == job.global_batch * job.model.sequence
    assert found.tokens_per_s * found.step_s == pytest.approx(found.tokens)
    assert found.micro_batches * job.degrees.data * job.micro_batch == job.global_batch
    assert 0 < found.mfu < 1
    for group in found.links:
        assert group.link.gbps > 0
        assert 1 <= group.islands <= group.ranks
        assert (group.link.hops == 0) == (group.link.kind != "network")


@settings(max_examples=60, deadline=None)
@given(jobs(), st.integers(2, 5))
def test_more_micro_batches_cost_as_much_more(job: Training, times: int) -> None:
    topology = equal(HGX_H100, -(-job.degrees.gpus // 8))
    ranks = packed(topology, job.degrees.gpus)
    once = foreseen(topology, ranks, job)
    more = foreseen(topology, ranks, replace(job, global_batch=job.global_batch * times))
    assert more.compute_s == pytest.approx(once.compute_s * times)
    assert more.bubble_s == pytest.approx(once.bubble_s)
    assert more.dp_s == once.dp_s
    assert more.tokens_per_s >= once.tokens_per_s * (1 - BARELY)


@settings(max_examples=200, deadline=None)
@given(
    name=st.text(max_size=40) | st.sampled_from(("llama3-8b", "ours-7b", "mixtral-8x7b")),
    parameters=st.floats(1.0, 1e18) | st.just(0.0),
    counts=st.tuples(*[st.integers(0, 1 << 40) | st.integers(0, 200)] * 6),
    tensor=st.sampled_from((1, 8)),
)
def test_whatever_a_manifest_says_ends_in_finite_figures_or_a_reason(
    name: str, parameters: float, counts: tuple[int, ...], tensor: int
) -> None:
    layers, hidden, heads, vocabulary, sequence, experts = counts
    given_sizes = ModelSizes(parameters, layers, hidden, heads, vocabulary, sequence, experts)
    groups = [ResourceGroup("cells", GroupKind.TENSOR_PARALLEL, tensor)]
    job = training_of(groups, 8 // tensor, name, given_sizes)
    topology = equal(HGX_H100, 1)
    found = job if isinstance(job, Unpredicted) else predict(topology, packed(topology, 8, "cells"), job)
    printed = json.dumps(predicted_json(found), allow_nan=False)
    assert len(printed) < 4000
    if isinstance(found, Predicted):
        assert min(found.step_s, found.tokens_per_s, found.mfu) > 0
    else:
        assert found.reason
