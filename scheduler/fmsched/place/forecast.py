"""The predicted step time of a placement, from what its manifest says: what `plan` reports under `predicted`."""

from __future__ import annotations

from fmsched.manifest.job import Manifest, ModelSizes
from fmsched.model.fabric import Topology
from fmsched.model.placement import Placement, Verdict
from fmsched.predict import Degrees, GivenSizes, Predicted, Unpredicted, predict, training_of


def forecast(manifest: Manifest, topology: Topology, verdict: Verdict) -> Predicted | Unpredicted | None:
    """None where nothing is placed."""
    if not isinstance(verdict, Placement):
        return None
    sizes = manifest.sizes or ModelSizes()
    given = GivenSizes(
        parameters=sizes.parameters,
        layers=sizes.layers,
        hidden_size=sizes.hidden_size,
        attention_heads=sizes.attention_heads,
        vocabulary=sizes.vocabulary,
        sequence_length=sizes.sequence_length,
        experts=sizes.experts,
    )
    asked = manifest.parallelism
    degrees = None
    if asked is not None:
        degrees = Degrees(asked.tensor, asked.pipeline, asked.data, asked.expert, asked.context)
    job = training_of(
        manifest.groups, manifest.replicas, manifest.model, given, degrees, sizes.global_batch, sizes.micro_batch
    )
    return job if isinstance(job, Unpredicted) else predict(topology, verdict.ranks, job)
