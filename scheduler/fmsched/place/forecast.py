"""The predicted step time of a placement, from what its manifest says: what `plan` reports under `predicted`."""

from __future__ import annotations

from fmsched.model.fabric import Topology
from fmsched.model.job import Request
from fmsched.model.placement import Placement, Verdict
from fmsched.predict import Degrees, Predicted, Training, Unpredicted, predict, training_of


def training(request: Request) -> Training | Unpredicted:
    """What the request's job trains, and how it is split; or why that cannot be said."""
    work = request.work
    if work is None:
        return Unpredicted("the manifest names no model")
    degrees = Degrees(*work.degrees) if work.degrees is not None else None
    sizes = work.sizes
    return training_of(request.groups, request.replicas, work.model, sizes, degrees, sizes.global_batch, sizes.micro_batch)


def forecast(request: Request, topology: Topology, verdict: Verdict) -> Predicted | Unpredicted | None:
    """None where nothing is placed."""
    if not isinstance(verdict, Placement):
        return None
    job = training(request)
    if isinstance(job, Unpredicted):
        return job
    return predict(topology, [rank for rank in verdict.ranks if not rank.spare], job)
