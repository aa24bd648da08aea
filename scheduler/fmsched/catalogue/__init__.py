"""Facts on GPUs. The table and its lookup live in fmproto.gpus, which agents share; here is what only placement asks of them."""

from __future__ import annotations

from functools import cache

from fmproto.gpus import GpuFacts, by_key, catalogue, lookup
from fmsched.model.hardware import GpuSpec

__all__ = ["GpuFacts", "by_key", "catalogue", "lookup", "strength_tflops"]


@cache
def strength_tflops(spec: GpuSpec) -> int:
    """How much a GPU is worth keeping free: its dense FP16/BF16 TFLOP/s, rounded.

    For a model that the catalogue lacks: its nominal memory in GB, so that a bigger unknown card still counts for more than
    a smaller one.
    """
    facts = lookup(spec.model)
    return round(facts.dense_tflops if facts is not None and facts.dense_tflops > 0 else spec.memory_gb)
