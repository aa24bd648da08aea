"""Which ranks talk to which: a mesh of pipeline × replica × expert × context × tensor, and the groups along its axes.

Ranks are taken by resource group (stage), then replica, then rank, and fill the mesh with tensor fastest: the order in which
fmsched.manifest.parallel lays out a cell, and Megatron-LM's own where one group holds all (tensor, context, expert and data,
pipeline; arXiv:2104.04473 section 3).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from fmsched.model.placement import RankPlacement
from fmsched.predict.jobs import Training
from fmsched.predict.sizes import Unpredicted

Ints = npt.NDArray[np.int64]

STAGE, REPLICA, EXPERT, CONTEXT, TENSOR = range(5)


def mesh_of(ranks: Sequence[RankPlacement], job: Training) -> tuple[tuple[RankPlacement, ...], Ints] | Unpredicted:
    """(ranks that train, their positions as a mesh): axes STAGE, REPLICA, EXPERT, CONTEXT, TENSOR."""
    degrees = job.degrees
    if degrees.data % degrees.expert:
        return Unpredicted(f"data {degrees.data} is not a multiple of expert {degrees.expert}")
    if job.model.experts and degrees.expert > job.model.experts:
        return Unpredicted(f"experts over {degrees.expert} ranks, and the model has {job.model.experts}")
    stage = {name: i for i, name in enumerate(job.groups)}
    chosen = [rank for rank in ranks if not stage or rank.group in stage]
    if len(chosen) != degrees.gpus:
        return Unpredicted(f"the degrees describe {degrees.gpus} GPUs, the placement has {len(chosen)}")
    chosen.sort(key=lambda rank: (stage.get(rank.group, 0), rank.replica, rank.rank) if stage else (rank.rank,))
    shape = (degrees.pipeline, degrees.data // degrees.expert, degrees.expert, degrees.context, degrees.tensor)
    return tuple(chosen), np.arange(len(chosen), dtype=np.int64).reshape(shape)


def along(mesh: Ints, *axes: int) -> Ints:
    """The groups of ranks that differ only along these axes, a row each; no row where that is one rank each."""
    size = int(np.prod([mesh.shape[axis] for axis in axes]))
    if size < 2:
        return np.empty((0, 1), dtype=np.int64)
    return np.moveaxis(mesh, axes, range(-len(axes), 0)).reshape(-1, size)


def neighbours(mesh: Ints, wrap: bool) -> Ints:
    """Pairs of ranks of consecutive pipeline stages, a row each; with `wrap`, last and first too (interleaved stages)."""
    stages = mesh.shape[STAGE]
    if stages < 2:
        return np.empty((0, 2), dtype=np.int64)
    flat = mesh.reshape(stages, -1)
    after = np.roll(flat, -1, axis=0)
    pairs = stages if wrap and stages > 2 else stages - 1
    return np.stack((flat[:pairs].ravel(), after[:pairs].ravel()), axis=1)
