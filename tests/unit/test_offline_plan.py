"""`fmctl plan --cluster FILE`: the object of DESIGN §10 with no service running."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fmsched.offline import plan, topo
from fmsched.offline.errors import OfflineError

EXAMPLES = Path(__file__).parents[2] / "examples"
DEMO = (EXAMPLES / "demo-cluster.yaml").read_bytes()
SEED = (EXAMPLES / "seed-manifest.yaml").read_bytes()


def test_a_job_that_fits_is_placed() -> None:
    answer = plan.run((EXAMPLES / "small-job.yaml").read_bytes(), "small-job.yaml", DEMO, "demo-cluster.yaml")
    assert (answer["job"], answer["verdict"]) == ("small-job", "placed")
    assert [rank["rank"] for rank in answer["ranks"]] == [0, 1]
    assert len({rank["gpu"]["uuid"] for rank in answer["ranks"]}) == 2
    assert answer["ranks"][0]["node"] in ("a1", "a2"), "A100 is preferred to H100"
    assert (answer["solve"]["nodes"], answer["solve"]["gpus"]) == (6, 48)
    json.dumps(answer)


def test_the_seed_manifest_never_fits_on_the_demo_cluster_and_fits_on_a_large_one() -> None:
    answer = plan.run(SEED, "seed-manifest.yaml", DEMO, "demo-cluster.yaml")
    assert answer["verdict"] == "never"
    assert answer["why"]
    large = topo.generate(pods=1, leaves=3, nodes_per_leaf=10, type="hgx-h100", busy=0.2, seed=1).encode()
    answer = plan.run(SEED, "seed-manifest.yaml", large, "large.yaml")
    assert answer["verdict"] == "placed"
    assert len(answer["ranks"]) == 180


def test_faults_name_the_file_they_are_in() -> None:
    with pytest.raises(OfflineError) as caught:
        plan.run(b"kind: Job\n", "job.yaml", DEMO, "demo-cluster.yaml")
    assert caught.value.lines == ("job.yaml:1: kind: found 'Job'; allowed: FoundationModelTrainingJob",)
    with pytest.raises(OfflineError) as caught:
        plan.run(SEED, "job.yaml", b"", "cluster.yaml")
    assert caught.value.lines == ("cluster.yaml: empty: found no fields, only blank lines or comments",)
