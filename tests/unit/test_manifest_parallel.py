"""What `parallelism` without resourceGroups asks for."""

from __future__ import annotations

import pytest

from fmsched.manifest import Manifest, parse
from fmsched.model.job import GroupKind, Reach

HEAD = """\
apiVersion: ai.example.com/v1alpha1
kind: FoundationModelTrainingJob
metadata: {name: job}
spec:
"""


def expanded(spec: str) -> Manifest:
    manifest = parse(HEAD + "".join(f"  {line}\n" for line in spec.splitlines()))
    assert isinstance(manifest, Manifest), [str(fault) for fault in manifest]
    return manifest


@pytest.mark.parametrize(
    ("degrees", "replicas", "groups"),
    [
        ("{data: 16}", 16, [("data", GroupKind.DATA_PARALLEL, 1)]),
        ("{tensor: 8, data: 4}", 4, [("tensor", GroupKind.TENSOR_PARALLEL, 8)]),
        ("{tensor: 4, context: 2}", 1, [("tensor", GroupKind.TENSOR_PARALLEL, 8)]),
        ("{tensor: 2, data: 8, expert: 4}", 2, [("expert", GroupKind.EXPERT_PARALLEL, 8)]),
        ("{tensor: 8, pipeline: 2, data: 3}", 3, [(f"stage-{i}", GroupKind.PIPELINE_PARALLEL, 8) for i in range(2)]),
        ("{pipeline: 2, data: 4, expert: 2}", 2, [(f"stage-{i}", GroupKind.PIPELINE_PARALLEL, 2) for i in range(2)]),
    ],
)
def test_degrees_become_groups(degrees: str, replicas: int, groups: list[tuple[str, GroupKind, int]]) -> None:
    manifest = expanded(f"parallelism: {degrees}")
    assert manifest.replicas == replicas
    assert [(group.name, group.kind, group.gpus) for group in manifest.groups] == groups
    assert manifest.parallelism is not None
    assert manifest.gpus == manifest.parallelism.gpus


def test_replica_count_is_the_data_degree_where_none_is_given() -> None:
    assert expanded("replicaCount: 6\nparallelism: {tensor: 2}").gpus == 12


def test_bandwidth_to_reserve_is_read() -> None:
    manifest = expanded("parallelism: {data: 4, interNodeConnectivity: {reserveBandwidthGbps: 150}}")
    assert [group.reach for group in manifest.groups] == [Reach(reserve_gbps=150.0)]


def test_a_tensor_cell_in_a_stage_needs_nvlink_unless_it_may_span_nodes() -> None:
    alone = expanded("parallelism: {tensor: 4, pipeline: 2}")
    assert [group.min_nvlink_gbytes_per_s for group in alone.groups] == [1.0, 1.0]
    spanning = expanded("parallelism: {tensor: 4, pipeline: 2, interNodeConnectivity: {maxHopCount: 1}}")
    assert [group.min_nvlink_gbytes_per_s for group in spanning.groups] == [0.0, 0.0]
    assert all(group.reach is not None and group.reach.max_hops == 1 for group in spanning.groups)


def test_tolerations_and_requirements_hold_for_every_group() -> None:
    manifest = expanded(
        "parallelism: {tensor: 2, pipeline: 2, gpuRequirements: {acceleratorType: H100|H200, minMemoryGB: 80}}\n"
        "tolerations: [{key: gpu-type, value: a100}]"
    )
    assert {group.families for group in manifest.groups} == {("h100", "h200", "a100")}
    assert {group.min_memory_gb for group in manifest.groups} == {80.0}
