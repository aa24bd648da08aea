"""Every example manifest is accepted as it stands and asks for what its text says."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest

from fmsched.manifest import Manifest, parse, request, summary
from fmsched.manifest.job import Checkpoint, Parallelism
from fmsched.model.job import GroupKind, Reach, ResourceGroup
from tests.support.manifests import GOOD

EXAMPLES = Path(__file__).parents[2] / "examples"
MANIFESTS = sorted(path for path in EXAMPLES.glob("*.yaml") if "kind: FoundationModelTrainingJob" in path.read_text())


def read(name: str) -> Manifest:
    manifest = parse((EXAMPLES / name).read_bytes())
    assert isinstance(manifest, Manifest), [str(fault) for fault in manifest]
    return manifest


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_every_example_is_accepted(path: Path) -> None:
    assert isinstance(parse(path.read_bytes()), Manifest)
    assert parse(path.read_text()) == parse(path.read_bytes())


def test_the_seed_manifest_asks_for_180_gpus() -> None:
    manifest = read("seed-manifest.yaml")
    assert [(line.group, line.gpus_per_group, line.replicas, line.gpus) for line in summary(manifest)] == [
        ("tensor-parallel-group-1", 8, 20, 160),
        ("data-parallel-replica-resources", 1, 20, 20),
    ]
    assert manifest.gpus == request(manifest, "job-1").gpus == 180
    assert manifest.groups[0] == ResourceGroup(
        name="tensor-parallel-group-1",
        kind=GroupKind.TENSOR_PARALLEL,
        gpus=8,
        preferred=("h100",),
        tolerated=("h100", "a100"),
        min_memory_gb=80.0,
        min_nvlink_gbytes_per_s=900.0,
        reach=Reach(max_hops=1, min_link_gbps=400.0),
    )
    assert manifest.groups[1].families == ("h100", "a100")
    assert manifest.groups[1].reach == Reach(max_hops=None, min_link_gbps=200.0)
    assert (manifest.model, manifest.priority_class, manifest.priority) == ("llama3-120b", "high", 1000)
    assert manifest.checkpoint_strategy == "s3-async"
    assert manifest.template is None
    assert (manifest.grace_period_s, manifest.max_restarts, manifest.max_runtime_s) == (30.0, 3, 0.0)


def test_the_small_job_runs_a_shell_line() -> None:
    manifest = read("small-job.yaml")
    assert manifest.template is not None
    assert manifest.template.command[:2] == ("/bin/sh", "-c")
    assert manifest.template.env == (("GREETING", "hello"),)
    assert manifest.groups[0].preferred == ("a100", "h100")
    assert (manifest.max_runtime_s, manifest.grace_period_s) == (600.0, 5.0)


def test_the_allocation_has_nothing_to_run() -> None:
    assert read("allocation.yaml").template is None


def test_the_whole_job_becomes_stages() -> None:
    manifest = read("whole-job.yaml")
    assert (manifest.replicas, manifest.spares, manifest.gpus) == (16, 2, 18 * 32)
    assert [(group.name, group.kind, group.gpus) for group in manifest.groups] == [
        (f"stage-{stage}", GroupKind.PIPELINE_PARALLEL, 8) for stage in range(4)
    ]
    assert all(group.min_nvlink_gbytes_per_s == 900.0 for group in manifest.groups)
    assert manifest.parallelism == Parallelism(tensor=8, pipeline=4, data=16)
    assert manifest.checkpoint == Checkpoint("SIGUSR1", 600.0, 1800.0)
    assert manifest.sizes is not None
    assert manifest.sizes.parameters == 405e9
    assert (manifest.min_replicas, manifest.spares, manifest.policy, manifest.launcher) == (12, 2, "fastest", "torchrun")
    assert manifest.template is not None
    assert manifest.template.env == (("NCCL_DEBUG", "WARN"), ("OMP_NUM_THREADS", "8"))
    assert manifest.template.command == ("python", "-m", "train")
    assert manifest.template.args == ("--config", "configs/405b.yaml")


def test_every_extension_is_kept() -> None:
    text = """\
apiVersion: ai.example.com/v1alpha1
kind: FoundationModelTrainingJob
metadata: {name: all, labels: {team: a}, annotations: {note: "yes"}}
spec:
  replicaCount: 4
  resourceGroups:
    - {name: g, type: ExpertParallel, gpusPerGroup: 16, gpuRequirements: {acceleratorType: "H200|h100"}}
  tolerations: [{key: gpu-type, operator: In, value: "A100"}]
  priority: 750
  maxRuntime: 1d2h3m4.5s
  maxRestarts: 0
  elastic: {minReplicas: 2}
  template:
    image: repo/image:1
    env: [{name: A, value: 1}, {name: B, value: "on"}]
    volumes: [/a:/b, /c:/d:ro]
    resources: {cpus: 4, memoryGB: 32.5}
"""
    manifest = parse(text)
    assert isinstance(manifest, Manifest), [str(fault) for fault in manifest]
    assert manifest.groups[0].families == ("h200", "h100", "a100")
    assert manifest.groups[0].kind is GroupKind.EXPERT_PARALLEL
    assert (manifest.priority_class, manifest.priority) == ("", 750)
    assert manifest.max_runtime_s == 86400 + 7200 + 180 + 4.5
    assert (manifest.max_restarts, manifest.min_replicas) == (0, 2)
    assert (manifest.labels, manifest.annotations) == ((("team", "a"),), (("note", "yes"),))
    assert manifest.template is not None
    assert manifest.template.image == "repo/image:1"
    assert manifest.template.command == ()
    assert manifest.template.env == (("A", "1"), ("B", "on"))
    assert manifest.template.volumes == ("/a:/b", "/c:/d:ro")
    assert (manifest.template.cpus, manifest.template.memory_gb) == (4.0, 32.5)


def test_the_template_of_the_documentation_is_right() -> None:
    text = (EXAMPLES.parent / "docs" / "manifest.md").read_text()
    (block,) = re.findall(r"(?:^ {4}.*\n)+", text, re.MULTILINE)
    manifest = parse(GOOD + textwrap.indent(textwrap.dedent(block), "  "))
    assert isinstance(manifest, Manifest), [str(fault) for fault in manifest]
    assert manifest.template is not None
    assert manifest.template.command == ("/bin/sh", "-c", "torchrun --nnodes 1 train.py")
    assert manifest.template.args == ("--steps", "100")
