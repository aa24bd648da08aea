"""`fmctl validate` without a service: data, faults with their place, and no heavy import."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from fmsched.offline import validate

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_the_sum_line_by_line() -> None:
    answer = validate.run((EXAMPLES / "seed-manifest.yaml").read_bytes(), "seed-manifest.yaml")
    assert not answer.violations
    assert (answer.name, answer.gpus) == ("llama-3-120b-finetune", 180)
    assert [(line.group, line.gpus_per_group, line.replicas, line.gpus) for line in answer.lines] == [
        ("tensor-parallel-group-1", 8, 20, 160),
        ("data-parallel-replica-resources", 1, 20, 20),
    ]


def test_every_fault_is_a_violation() -> None:
    answer = validate.run(b"apiVersion: ai.example.com/v1alpha1\nkind: Job\n", "-")
    assert [(one.line, one.path) for one in answer.violations] == [(2, "kind")]
    assert answer.violations[0].message == "found 'Job'; allowed: FoundationModelTrainingJob"
    assert not answer.lines


def test_nothing_heavy_is_imported() -> None:
    script = (
        "import sys; from fmsched.offline import validate; validate.run(b'a: b', 'x');"
        "print(sorted({'numpy', 'networkx', 'ortools', 'grpc', 'etcd3'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("[]\n", "")
