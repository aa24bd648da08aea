"""The GPU catalogue: names as NVML prints them, memory as cards report it, and the guess for what is not in it."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

import pytest

from fmproto.gpus import catalogue, lookup
from fmsched.catalogue import strength_tflops
from fmsched.model.hardware import GpuSpec

OBSERVED = Path(__file__).parents[3] / "shared" / "data" / "facts" / "gpu_observed_names_memory_power.tsv"


@pytest.mark.parametrize(
    ("name", "memory_mib", "key", "family", "memory_gb"),
    [
        ("NVIDIA H100 80GB HBM3", 81559, "H100-SXM5-80GB", "h100", 80),
        ("NVIDIA H100 PCIe", 81559, "H100-PCIe-80GB", "h100", 80),
        ("NVIDIA A100-SXM4-80GB", 81920, "A100-SXM4-80GB", "a100", 80),
        ("NVIDIA A100-SXM4-40GB", 40960, "A100-SXM4-40GB", "a100", 40),
        ("Tesla V100-SXM2-32GB", 32510, "V100-SXM2-32GB", "v100", 32),
        ("NVIDIA H200", 143771, "H200-SXM-141GB", "h200", 141),
        ("NVIDIA B200", 183359, "B200-SXM-180GB", "b200", 180),
        ("NVIDIA GB200", 189471, "GB200-186GB", "gb200", 186),
        ("AMD Instinct MI300X OAM", 196592, "MI300X", "mi300x", 192),
        ("NVIDIA GeForce RTX 4090", 24564, "RTX-4090", "rtx-4090", 24),
        ("H100-SXM5-80GB", 0, "H100-SXM5-80GB", "h100", 80),
    ],
)
def test_known_names(name: str, memory_mib: float, key: str, family: str, memory_gb: float) -> None:
    facts = lookup(name, memory_mib)
    assert facts is not None
    assert (facts.key, facts.family, facts.memory_gb, facts.guessed) == (key, family, memory_gb, False)


def test_facts_of_a_known_model() -> None:
    facts = catalogue()["H100-SXM5-80GB"]
    assert (facts.nvlink_gbytes_per_s, facts.multiprocessors, facts.tdp_w, facts.mig_instances_max) == (900, 132, 700, 7)


def test_unknown_name_is_guessed_from_name_and_memory() -> None:
    facts = lookup("NVIDIA Foo X9000 Turbo", 81559)
    assert facts is not None
    assert (facts.key, facts.family, facts.memory_gb, facts.guessed) == ("NVIDIA Foo X9000 Turbo", "x9000", 80, True)


def test_known_name_with_another_memory_is_another_card() -> None:
    facts = lookup("NVIDIA H100 80GB HBM3", 40960)
    assert facts is not None
    assert (facts.family, facts.memory_gb, facts.guessed) == ("h100", 40, True)


@pytest.mark.parametrize("name", ["", "  ", "--"])
def test_no_name_has_no_facts(name: str) -> None:
    assert lookup(name, 81559) is None


def test_every_entry_is_whole() -> None:
    for key, facts in catalogue().items():
        assert facts.family == facts.family.lower() and facts.memory_gb > 0 and facts.source, key
        assert lookup(key) == facts, key


def test_names_seen_on_real_machines_are_known() -> None:
    if not OBSERVED.exists():
        pytest.skip(f"{OBSERVED} is absent")
    rows = list(csv.DictReader(OBSERVED.read_text(encoding="utf-8").splitlines(), delimiter="\t"))
    for row in rows:
        memory = row["fb_total"].split(" ")[0]
        facts = lookup(row["#product_name"], float(memory or 0))
        assert facts is not None and not facts.guessed, row["#product_name"]


def test_strength_orders_models_and_falls_back_to_memory() -> None:
    h100, a100 = GpuSpec("H100-SXM5-80GB", "h100", 80), GpuSpec("A100-SXM4-80GB", "a100", 80)
    assert strength_tflops(h100) > strength_tflops(a100) > strength_tflops(GpuSpec("Unknown X1", "x1", 48)) == 48


def test_lookup_needs_no_heavy_library() -> None:
    heavy = "{'numpy', 'ortools', 'networkx', 'grpc'}"
    code = f"import sys, fmproto.gpus as g; g.lookup('NVIDIA H200', 143771); print({heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "set()"
