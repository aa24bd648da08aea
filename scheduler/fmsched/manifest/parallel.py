"""`parallelism` asks for a whole job at once; here it becomes resource groups. The table is in docs/manifest.md."""

from __future__ import annotations

from dataclasses import dataclass

from fmsched.manifest.job import Parallelism
from fmsched.model.job import GroupKind, Reach, ResourceGroup

ANY_NVLINK_GBYTES_PER_S = 1.0  # less than any NVLink has: asks that there is one


@dataclass(frozen=True, slots=True)
class Wants:
    """What every GPU of an expanded job must be."""

    preferred: tuple[str, ...] = ()
    tolerated: tuple[str, ...] = ()
    min_memory_gb: float = 0.0
    min_nvlink_gbytes_per_s: float = 0.0
    reach: Reach | None = None
    min_nvlink_links: int = 0
    min_nvlink_aggregate_gbytes_per_s: float = 0.0


def problem(degrees: Parallelism) -> str:
    """What cannot be summed, or empty."""
    if degrees.data % degrees.expert:
        return f"found data {degrees.data} and expert {degrees.expert}; allowed: data is a multiple of expert"
    return ""


def expand(degrees: Parallelism, wants: Wants) -> tuple[int, tuple[ResourceGroup, ...]]:
    """(replicas, groups) of a job with these degrees; problem(degrees) must be empty.

    A cell is tensor × context GPUs. `expert` data-parallel cells that exchange tokens are one instance, and data ÷ expert
    replicas of it are asked for. With a pipeline, each stage is a group of its own.
    """
    cell = degrees.tensor * degrees.context
    gpus = cell * degrees.expert
    replicas = degrees.data // degrees.expert
    if degrees.pipeline > 1:
        # A stage is a pipeline group, so what makes it a tensor cell is that its GPUs are joined by NVLink.
        joined = cell > 1 and degrees.expert == 1 and wants.reach is None
        nvlink = max(wants.min_nvlink_gbytes_per_s, ANY_NVLINK_GBYTES_PER_S if joined else 0.0)
        names = [f"stage-{stage}" for stage in range(degrees.pipeline)]
        return replicas, tuple(_group(name, GroupKind.PIPELINE_PARALLEL, gpus, wants, nvlink) for name in names)
    if degrees.expert > 1:
        name, kind = "expert", GroupKind.EXPERT_PARALLEL
    elif cell > 1:
        name, kind = "tensor", GroupKind.TENSOR_PARALLEL
    else:
        name, kind = "data", GroupKind.DATA_PARALLEL
    return replicas, (_group(name, kind, gpus, wants, wants.min_nvlink_gbytes_per_s),)


def _group(name: str, kind: GroupKind, gpus: int, wants: Wants, nvlink: float) -> ResourceGroup:
    return ResourceGroup(
        name=name,
        kind=kind,
        gpus=gpus,
        preferred=wants.preferred,
        tolerated=wants.tolerated,
        min_memory_gb=wants.min_memory_gb,
        min_nvlink_gbytes_per_s=nvlink,
        reach=wants.reach,
        min_nvlink_links=wants.min_nvlink_links,
        min_nvlink_aggregate_gbytes_per_s=wants.min_nvlink_aggregate_gbytes_per_s,
    )
