"""One training step on a placement, every part of its time named. predict() is the entry.

Sources of the formulas: tensor parallelism, arXiv:1909.08053 section 3 (two all-reduces forward and two backward per layer);
pipeline 1F1B and its bubble (p-1)/m, interleaved (p-1)/(v·m), and FLOPs, arXiv:2104.04473 sections 2.2 and 3 and appendix; sequence
parallelism (the same bytes as reduce-scatter and all-gather, 1/t of them between stages) and recomputation, arXiv:2205.05198
sections 4 and 5; expert parallelism (all-to-all before and after the experts), arXiv:2006.16668 section 3.2; context parallelism
(keys and values of all chunks reach every rank), arXiv:2310.01889 section 3; sharded optimizer, arXiv:1910.02054 section 5.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from fmproto.gpus import lookup
from fmsched.model.fabric import Topology
from fmsched.model.placement import RankPlacement
from fmsched.predict import collectives as cost
from fmsched.predict.collectives import Span
from fmsched.predict.groups import CONTEXT, EXPERT, REPLICA, TENSOR, Ints, along, mesh_of, neighbours
from fmsched.predict.jobs import MICRO_BATCHES_PER_STAGE, Training
from fmsched.predict.links import Links, NoPathError, Weakest
from fmsched.predict.sizes import Unpredicted

# Share of the dense peak that the computation itself reaches, communication and bubble apart: the ceiling of MFU. From end-to-end
# figures of the makers, with what this model finds for the rest taken off: A100 arXiv:2205.05198 table 5; Hopper Megatron-LM's
# README (41 to 48 % of peak end to end) and arXiv:2407.21783 table 4; Volta arXiv:1909.08053 section 5; others like their nearest.
ATTAINABLE = {
    "Pascal": 0.45, "Volta": 0.45, "Turing": 0.40, "Ampere": 0.62, "Ada": 0.50, "Hopper": 0.55, "Blackwell": 0.50,
    "Blackwell Ultra": 0.50, "CDNA1": 0.35, "CDNA2": 0.35, "CDNA3": 0.40, "CDNA4": 0.40,
}  # fmt: skip
ATTAINABLE_DEFAULT = 0.40
# FP8 doubles the peak of these; training sees about half of that gain, since not all of it is matrix products (Transformer Engine).
FP8_ARCHITECTURES = frozenset(("Ada", "Hopper", "Blackwell", "Blackwell Ultra", "CDNA3", "CDNA4"))
FP8_SPEEDUP = 1.5
ACTIVATION_BYTES = 2.0
PARAMETER_BYTES = 2.0


@dataclass(frozen=True, slots=True)
class GroupLink:
    """The weakest link among all groups of one kind: "tensor", "context", "expert", "pipeline", "data", "expert data"."""

    kind: str
    ranks: int  # of one group
    islands: int  # nodes or NVLink domains that the worst group touches
    link: Weakest


@dataclass(frozen=True, slots=True)
class Predicted:
    """One step. Seconds; step_s = compute_s + bubble_s + exposed_s.

    compute_s                    of the slowest rank, all micro-batches, recomputation included
    tp_s, cp_s, ep_s, pp_s, dp_s communication of the worst group of each kind, all micro-batches, hidden or not
    exposed_s                    the part of it that no computation hides
    bubble_s                     the pipeline fills and drains
    tokens_per_s                 over the whole job
    mfu                          model FLOPs (nothing recomputed) over the dense BF16 peak of all GPUs
    slowest                      "node/gpuN model": the rank whose computation decides
    assumed                      what the job did not say, in words
    """

    compute_s: float
    tp_s: float
    cp_s: float
    ep_s: float
    pp_s: float
    dp_s: float
    bubble_s: float
    exposed_s: float
    step_s: float
    tokens_per_s: float
    mfu: float
    gpus: int
    tokens: int  # of a step
    micro_batches: int  # of a replica
    slowest: str
    links: tuple[GroupLink, ...]
    assumed: tuple[str, ...] = ()


def predict(topology: Topology, ranks: Sequence[RankPlacement], job: Training) -> Predicted | Unpredicted:
    """The time of one step of `job` with its ranks placed so. Raises KeyError where a rank's node is not in the topology."""
    laid_out = mesh_of(ranks, job)
    if isinstance(laid_out, Unpredicted):
        return laid_out
    members, mesh = laid_out
    batch = _batch(job)
    if isinstance(batch, Unpredicted):
        return batch
    machines = _machines(topology, members, job.precision)
    if isinstance(machines, Unpredicted):
        return machines
    if job.degrees.pipeline * job.virtual_stages > job.model.layers:
        stages = job.degrees.pipeline * job.virtual_stages
        return Unpredicted(f"{stages} pipeline stages for {job.model.layers} layers")
    try:
        return _step(_Groups(Links(topology, members), mesh, job), machines, job, batch)
    except NoPathError as missing:
        return Unpredicted(str(missing))


class Spread(Protocol):
    """How the groups of a job lie."""

    def worst(self, kind: str, seconds: Callable[[Span], float]) -> float: ...

    def links(self) -> tuple[GroupLink, ...]: ...


def step_seconds(spread: Spread, flops_per_s: float, job: Training) -> float | Unpredicted:
    """One step with the groups spread so and a slowest GPU that attains so much: what a bound is made of (bound.py)."""
    batch = _batch(job)
    return batch if isinstance(batch, Unpredicted) else _step(spread, _Machines(flops_per_s, 1.0, ""), job, batch).step_s


def attained_flops_per_s(model: str, precision: str) -> float | None:
    """FLOP/s that a GPU of this model reaches in training; None where the catalogue does not say."""
    facts = lookup(model)
    if facts is None or facts.dense_tflops <= 0:
        return None
    faster = FP8_SPEEDUP if precision == "fp8" and facts.architecture in FP8_ARCHITECTURES else 1.0
    return facts.dense_tflops * 1e12 * ATTAINABLE.get(facts.architecture, ATTAINABLE_DEFAULT) * faster


@dataclass(frozen=True, slots=True)
class _Batch:
    micro_batches: int  # of a replica
    sequences: int  # of a step
    assumed: tuple[str, ...] = ()


def _batch(job: Training) -> _Batch | Unpredicted:
    per_round = job.degrees.data * job.micro_batch
    if not job.global_batch:
        count = MICRO_BATCHES_PER_STAGE * job.degrees.pipeline
        return _Batch(count, count * per_round, (f"a global batch of {count * per_round} sequences",))
    if job.global_batch % per_round:
        return Unpredicted(f"a global batch of {job.global_batch} does not divide by data × micro-batch = {per_round}")
    return _Batch(job.global_batch // per_round, job.global_batch)


@dataclass(frozen=True, slots=True)
class _Machines:
    flops_per_s: float  # attainable, of the slowest GPU
    peak_flops_per_s: float  # dense BF16, of all together
    slowest: str


def _machines(topology: Topology, members: Sequence[RankPlacement], precision: str) -> _Machines | Unpredicted:
    known: dict[str, tuple[float, float]] = {}
    peak = 0.0
    slowest: tuple[float, str] | None = None
    for rank in members:
        model = topology.node(rank.node).shape.gpus[rank.gpu].model
        if model not in known:
            facts, reached = lookup(model), attained_flops_per_s(model, precision)
            if facts is None or reached is None:
                return Unpredicted(f"the FLOP/s of {model!r} are not known ({rank.node})")
            known[model] = facts.dense_tflops * 1e12, reached
        dense, attainable = known[model]
        peak += dense
        if slowest is None or attainable < slowest[0]:
            slowest = attainable, f"{rank.gpu_id} {model}"
    if slowest is None:
        return Unpredicted("no rank trains")
    return _Machines(slowest[0], peak, slowest[1])


class _Groups:
    """The groups of a mesh by kind, each way of lying once, with the weakest link of each kind."""

    def __init__(self, links: Links, mesh: Ints, job: Training) -> None:
        kinds: dict[str, Ints] = {
            "tensor": along(mesh, TENSOR),
            "context": along(mesh, CONTEXT),
            **({"expert": along(mesh, EXPERT), "expert data": along(mesh, REPLICA, CONTEXT)} if job.model.experts else {}),
            "pipeline": neighbours(mesh, job.virtual_stages > 1),
            "data": along(mesh, REPLICA, EXPERT, CONTEXT),
        }
        self.spans = {kind: links.spans(groups) for kind, groups in kinds.items()}

    def worst(self, kind: str, seconds: Callable[[Span], float]) -> float:
        """Of all groups of a kind, the longest time; 0 where there is none."""
        return max((seconds(span) for span in self.spans.get(kind, ())), default=0.0)

    def links(self) -> tuple[GroupLink, ...]:
        found = []
        for kind, spans in self.spans.items():
            if spans:
                span = min(spans, key=lambda span: (spans[span].gbps, -spans[span].hops, span.bus_bytes_per_s))
                found.append(GroupLink(kind, span.ranks, span.islands, spans[span]))
        return tuple(found)


@dataclass(frozen=True, slots=True)
class _MicroBatch:
    """One micro-batch through the fullest stage, forward and backward, seconds."""

    compute_s: float
    tp_s: float
    cp_s: float
    ep_s: float
    pp_s: float


def _step(groups: Spread, machines: _Machines, job: Training, batch: _Batch) -> Predicted:
    degrees, hidden = job.degrees, job.overlap
    one = _micro_batch(groups, machines, job)
    waits_s = (
        one.tp_s * (1 - hidden.tensor)
        + one.cp_s * (1 - hidden.context)
        + one.ep_s * (1 - hidden.expert)
        + one.pp_s * (1 - hidden.pipeline)
    )
    dp_s = _data_s(groups, job)
    # Gradients are reduced beside the last backward pass, parameters gathered beside the first forward one.
    dp_waits_s = dp_s - min(hidden.data * dp_s, one.compute_s)
    count = batch.micro_batches
    compute_s = count * one.compute_s
    exposed_s = count * waits_s + dp_waits_s
    bubble_s = (degrees.pipeline - 1) / job.virtual_stages * (one.compute_s + waits_s)
    step_s = compute_s + bubble_s + exposed_s
    tokens = batch.sequences * job.model.sequence
    return Predicted(
        compute_s=compute_s,
        tp_s=count * one.tp_s,
        cp_s=count * one.cp_s,
        ep_s=count * one.ep_s,
        pp_s=count * one.pp_s,
        dp_s=dp_s,
        bubble_s=bubble_s,
        exposed_s=exposed_s,
        step_s=step_s,
        tokens_per_s=tokens / step_s,
        mfu=tokens * job.model.step_flops / (step_s * machines.peak_flops_per_s),
        gpus=degrees.gpus,
        tokens=tokens,
        micro_batches=count,
        slowest=machines.slowest,
        links=groups.links(),
        assumed=(*job.assumed, *batch.assumed),
    )


def _micro_batch(groups: Spread, machines: _Machines, job: Training) -> _MicroBatch:
    model, degrees = job.model, job.degrees
    tokens = job.micro_batch * model.sequence / degrees.context  # of one rank
    layers, layer_share = _fullest_stage(job)
    passes = 4 if job.recompute == "full" else 3  # forward; backward, twice the work; forward again
    layer_flops = passes * model.layer_flops
    if job.recompute == "selective":
        layer_flops += model.attention_flops
    flops = layer_share * layer_flops / model.layers
    if degrees.pipeline == 1 or layers == layer_share:
        flops += 3 * model.head_flops
    reduced = ACTIVATION_BYTES * tokens * model.hidden
    # Keys and values of the whole sequence: gathered forward and backward, their gradients reduced.
    kept = ACTIVATION_BYTES * job.micro_batch * model.sequence * 2 * model.kv_heads * model.dim / degrees.tensor
    routed = reduced / degrees.tensor * model.experts_per_token
    moe_layers = layers * model.moe_layers / model.layers
    exchanges = 6 if job.recompute == "full" else 4
    sent = reduced / degrees.tensor
    return _MicroBatch(
        compute_s=flops * tokens / (degrees.tensor * machines.flops_per_s),
        tp_s=layers * exchanges * groups.worst("tensor", lambda span: cost.all_reduce(span, reduced)),
        cp_s=layers * 3 * groups.worst("context", lambda span: cost.all_gather(span, kept)),
        ep_s=moe_layers * exchanges * groups.worst("expert", lambda span: cost.all_to_all(span, routed)),
        pp_s=2 * job.virtual_stages * groups.worst("pipeline", lambda span: cost.send(span, sent)),
    )


def _fullest_stage(job: Training) -> tuple[int, int]:
    """(layers of the fullest stage, layers that its computation counts).

    The last stage has the output layer too, so spare layers go to the others: with any to spare, the fullest stage is one without
    the output layer, unless that layer weighs more than the one spared. Both numbers are equal where the last stage decides.
    """
    per_stage, spare = divmod(job.model.layers, job.degrees.pipeline)
    if not spare:
        return per_stage, per_stage
    with_head = per_stage * job.model.layer_flops / job.model.layers + job.model.head_flops
    without = (per_stage + 1) * job.model.layer_flops / job.model.layers
    return (per_stage + 1, per_stage) if with_head > without else (per_stage + 1, per_stage + 1)


def _data_s(groups: Spread, job: Training) -> float:
    """Reducing the gradients of one rank's parameters, and gathering the new parameters where the optimizer is sharded."""
    model, degrees = job.model, job.degrees
    share = degrees.tensor * degrees.pipeline
    embedding = model.vocabulary * model.hidden / degrees.tensor * (2 if degrees.pipeline == 1 and not model.tied else 1)
    shared = model.layer_parameters / share + embedding
    routed = model.expert_parameters / (share * degrees.expert)

    def seconds(span: Span, parameters: float) -> float:
        if not job.sharded:
            return cost.all_reduce(span, parameters * job.gradient_bytes)
        reduced = cost.reduce_scatter(span, parameters * job.gradient_bytes)
        return reduced + cost.all_gather(span, parameters * PARAMETER_BYTES)

    total = groups.worst("data", lambda span: seconds(span, shared))
    return total + groups.worst("expert data", lambda span: seconds(span, routed))
