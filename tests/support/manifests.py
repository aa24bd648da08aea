"""A manifest that is right, and ways to spoil it."""

from __future__ import annotations

GOOD = """\
apiVersion: ai.example.com/v1alpha1
kind: FoundationModelTrainingJob
metadata:
  name: job
spec:
  replicaCount: 2
  resourceGroups:
    - name: tensor
      type: TensorParallel
      gpusPerGroup: 8
      gpuRequirements:
        minMemoryGB: 80
        minNVLinkBandwidthGbpsPerPair: 900
        acceleratorType: H100
      interNodeConnectivity:
        minInfiniBandBandwidthGbps: 400
        maxHopCount: 1
    - name: helper
      type: Auxiliary
      gpusPerGroup: 1
  tolerations:
    - key: gpu-type
      operator: Equal
      value: h100|a100
"""


def spoiled(old: str, new: str) -> str:
    """GOOD with its only `old` replaced."""
    assert GOOD.count(old) == 1, old
    return GOOD.replace(old, new)


def with_spec(lines: str) -> str:
    """GOOD with more fields in its spec."""
    return GOOD + "".join(f"  {line}\n" for line in lines.splitlines())
