"""A training job as the model sees it, and how a manifest's groups and degrees become one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from fmsched.model.job import GroupKind, ResourceGroup
from fmsched.model.work import NOTHING_GIVEN, ModelSizes
from fmsched.predict.sizes import Model, Unpredicted, model_of

MICRO_BATCHES_PER_STAGE = 4  # where no batch is given: the bubble is then below 1/4 (arXiv:1811.06965 section 2.3)
PRECISIONS = ("bf16", "fp8")
RECOMPUTE = ("none", "selective", "full")


@dataclass(frozen=True, slots=True)
class Degrees:
    """Parallelism; 1 is none. Experts are spread over data-parallel ranks, so `expert` divides `data`."""

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    expert: int = 1
    context: int = 1

    @property
    def gpus(self) -> int:
        return self.tensor * self.context * self.pipeline * self.data


@dataclass(frozen=True, slots=True)
class Overlap:
    """Shares of each communication that run beside computation, 0 to 1.

    Tensor, context and pipeline traffic is on the path of the computation that waits for it (arXiv:1909.08053 section 3). The
    gradients of a data-parallel group are reduced while the last backward pass still runs, all but the last bucket (PyTorch DDP,
    arXiv:2006.15704 section 3.2); never more of it than that computation takes.
    """

    tensor: float = 0.0
    context: float = 0.0
    expert: float = 0.0
    pipeline: float = 0.0
    data: float = 0.8

    def __post_init__(self) -> None:
        if not all(0.0 <= share <= 1.0 for share in (self.tensor, self.context, self.expert, self.pipeline, self.data)):
            raise ValueError(f"overlap is a share from 0 to 1: {self}")


@dataclass(frozen=True, slots=True)
class Training:
    """What is trained, and how it is split.

    global_batch    sequences of one step over all replicas; 0: MICRO_BATCHES_PER_STAGE micro-batches per stage and replica
    micro_batch     sequences that go through the pipeline at once
    virtual_stages  pieces that a pipeline stage is cut into (interleaved 1F1B); 1: plain
    recompute       activations computed again in the backward pass: none, selective (attention only), full
    sharded         optimizer state is sharded over data-parallel ranks (ZeRO-1): reduce-scatter and all-gather instead of all-reduce
    gradient_bytes  of one parameter as it is reduced: 4 is Megatron-LM's default, 2 halves the traffic
    groups          names of the resource groups whose ranks train, in stage order; empty: every rank, in rank order
    """

    model: Model
    degrees: Degrees = Degrees()
    global_batch: int = 0
    micro_batch: int = 1
    virtual_stages: int = 1
    precision: str = "bf16"
    recompute: str = "none"
    sharded: bool = True
    gradient_bytes: float = 4.0
    overlap: Overlap = Overlap()
    groups: tuple[str, ...] = ()
    assumed: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        if self.precision not in PRECISIONS or self.recompute not in RECOMPUTE:
            raise ValueError(f"precision is one of {PRECISIONS}, recompute one of {RECOMPUTE}")
        if min(self.micro_batch, self.virtual_stages) < 1 or self.global_batch < 0 or self.gradient_bytes <= 0:
            raise ValueError("micro_batch and virtual_stages are at least 1, global_batch and gradient_bytes not negative")


def training_of(
    groups: Sequence[ResourceGroup],
    replicas: int,
    name: str,
    given: ModelSizes = NOTHING_GIVEN,
    degrees: Degrees | None = None,
    global_batch: int = 0,
    micro_batch: int = 0,
) -> Training | Unpredicted:
    """The training that `replicas` of `groups` do with the model called `name`, or why that cannot be said.

    `degrees` are the manifest's `parallelism`; without them they follow from the groups: the pipeline groups are stages, the
    tensor groups cells, an expert group spreads experts. Batches are in sequences; 0: not given.
    """
    if not name and not given.parameters and not given.layers:
        return Unpredicted("the manifest names no model")
    found = model_of(name, given)
    if isinstance(found, Unpredicted):
        return found
    model, assumed = found
    layout = _given_layout(groups, replicas, degrees) if degrees is not None else _layout(groups, replicas)
    if isinstance(layout, Unpredicted):
        return layout
    notes = [*assumed, *layout.assumed]
    if not micro_batch:
        notes.append("micro-batches of 1 sequence")
    return Training(
        model=model,
        degrees=layout.degrees,
        global_batch=global_batch,
        micro_batch=micro_batch or 1,
        groups=layout.groups,
        assumed=tuple(notes),
    )


@dataclass(frozen=True, slots=True)
class _Layout:
    degrees: Degrees
    groups: tuple[str, ...]
    assumed: tuple[str, ...] = ()


def _given_layout(groups: Sequence[ResourceGroup], replicas: int, degrees: Degrees) -> _Layout | Unpredicted:
    training = [group for group in groups if group.kind is not GroupKind.AUXILIARY]
    gpus = replicas * sum(group.gpus for group in training)
    if gpus != degrees.gpus:
        return Unpredicted(f"parallelism describes {degrees.gpus} GPUs, the groups have {gpus}")
    return _Layout(degrees, tuple(group.name for group in training))


def _layout(groups: Sequence[ResourceGroup], replicas: int) -> _Layout | Unpredicted:
    of = {kind: [group for group in groups if group.kind is kind] for kind in GroupKind}
    kinds = (GroupKind.PIPELINE_PARALLEL, GroupKind.TENSOR_PARALLEL, GroupKind.EXPERT_PARALLEL, GroupKind.DATA_PARALLEL)
    leading = next((kind for kind in kinds if of[kind]), None)
    if leading is None:
        return Unpredicted("no group of the job trains")
    chosen = of[leading]
    gpus = chosen[0].gpus
    if leading is not GroupKind.DATA_PARALLEL and any(group.gpus != gpus for group in chosen):
        return Unpredicted(
            f"{leading} groups of unequal size: {', '.join(f'{group.name} {group.gpus}' for group in chosen)}"
        )
    match leading:
        case GroupKind.PIPELINE_PARALLEL:
            degrees = Degrees(tensor=gpus, pipeline=len(chosen), data=replicas)
        case GroupKind.TENSOR_PARALLEL:
            degrees = Degrees(tensor=gpus, data=replicas * len(chosen))
        case GroupKind.EXPERT_PARALLEL:
            degrees = Degrees(data=gpus * replicas * len(chosen), expert=gpus)
        case _:
            degrees = Degrees(data=replicas * sum(group.gpus for group in chosen))
    left = [group.name for kind in kinds if kind is not leading for group in of[kind]]
    notes = (f"the model is trained by the {leading} groups; not by {', '.join(left)}",) if left else ()
    return _Layout(degrees, tuple(group.name for group in chosen), notes)
