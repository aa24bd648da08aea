"""The GPU catalogue: names as NVML prints them, memory as cards report it, and the guess for what is not in it."""

from __future__ import annotations

import csv
import re
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fmproto.gpus import NAME_CHARS_MAX, GpuFacts, by_key, catalogue, lookup
from fmsched.catalogue import strength_tflops
from fmsched.model.hardware import GpuSpec
from tests.support.shared_data import shared

# A name, and MiB where the tool prints them: nvidia-smi -q, -q -x, -L, and its table's two lines of a GPU.
PRODUCT = re.compile(r"(?:Product Name {1,60}: |<product_name>|^GPU {1,3}[0-9]{1,3}: )([^<(\r\n]{1,96})", re.MULTILINE)
TABLE = re.compile(r"^\| +[0-9]+  (\S[^|\r\n]{0,40}?) +(?:On|Off) +\|[^\n]*\n[^\n]*?/ +([0-9]+)MiB", re.MULTILINE)


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
        ("Tesla T4", 15360, "T4", "t4", 16),
        ("NVIDIA A10G", 23028, "A10G", "a10g", 24),
        ("nvidia_a100_sxm4_40gb", 0, "A100-SXM4-40GB", "a100", 40),
        ("NVIDIA-H100-PCIe", 0, "H100-PCIe-80GB", "h100", 80),
        ("NVIDIA H200 NVL", 143771, "H200-NVL-141GB", "h200", 141),
        ("NVIDIA GeForce RTX 2080 SUPER", 8192, "RTX-2080-SUPER", "rtx-2080-super", 8),
        # A MIG device reports the memory of its instance.
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", 4864, "A100-SXM4-40GB", "a100", 40),
        ("NVIDIA H200 MIG 1c.3g.71gb", 70000, "H200-SXM-141GB", "h200", 141),
        ("NVIDIA A30 MIG 2g.12gb+me", 11968, "A30", "a30", 24),
        # Cut by nvidia-smi's table: only one model of that beginning has so much memory.
        ("NVIDIA A100-SXM...", 81920, "A100-SXM4-80GB", "a100", 80),
        # One name for the whole card and for each of its two dies.
        ("AMD Instinct MI250X", 0, "MI250X", "mi250x", 128),
        ("AMD Instinct MI250X", 65520, "MI250X-GCD", "mi250x", 64),
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


@pytest.mark.parametrize(
    ("name", "memory_mib", "family", "memory_gb", "vendor"),
    [
        ("NVIDIA GeForce RTX 4070 Ti SUPER", 16376, "rtx-4070-ti-super", 16, "nvidia"),
        ("NVIDIA RTX PRO 4500 Blackwell", 32607, "rtx-pro-4500", 32, "nvidia"),
        ("AMD Instinct MI777X", 262144, "mi777x", 256, "amd"),
        ("A100-SXM-64GB", 0, "a100", 64, ""),  # no memory reported: what the name says
        ("GRID A100-4C", 4096, "a100", 4, ""),  # a virtual GPU is not the whole one
        ("NVIDIA A100-SXM...", 0, "a100", 0, "nvidia"),  # 40 or 80 GB
        ("NVIDIA GeForce ...", 23028, "geforce", 23, "nvidia"),
        ("NVIDIA", 0, "nvidia", 0, "nvidia"),
        ("Acme H100 MIG 9", 0, "h100", 0, ""),  # no MIG device: that is no profile
    ],
)
def test_guesses(name: str, memory_mib: float, family: str, memory_gb: float, vendor: str) -> None:
    assert lookup(name, memory_mib) == GpuFacts(name, family, memory_gb, vendor, guessed=True)


@pytest.mark.parametrize("memory_mib", [float("nan"), float("inf"), -1.0, 10**400])
def test_a_memory_that_is_none_counts_as_not_known(memory_mib: float) -> None:
    assert lookup("NVIDIA H200", memory_mib) == catalogue()["H200-SXM-141GB"]


def test_a_name_without_end_is_cut() -> None:
    facts = lookup("NVIDIA " * 150_000, 8192)
    assert facts is not None and len(facts.key) <= NAME_CHARS_MAX and facts.memory_gb == 8


@given(st.text() | st.sampled_from(sorted(catalogue())).map(lambda key: f"{key}..."), st.floats() | st.integers())
def test_lookup_never_raises(name: str, memory_mib: float) -> None:
    facts = lookup(name, memory_mib)
    assert facts is not None or not re.search("h[0-9]", name.strip()[:NAME_CHARS_MAX].lower())
    assert facts is None or (facts.memory_gb >= 0 and facts.family and facts.key.isprintable())


@given(
    st.sampled_from(
        [(key, name) for key, facts in catalogue().items() for name in (key, f"NVIDIA {key}", f"{facts.vendor} {key}")]
    ),
    st.sampled_from(["-", "_", " ", "  "]),
    st.booleans(),
    st.floats(0.93, 1.02),
)
def test_every_key_is_found_however_it_is_written(
    named: tuple[str, str], separator: str, upper: bool, share: float
) -> None:
    key, name = named
    name = name.replace("-", separator)
    facts = lookup(name.upper() if upper else name.lower(), share * catalogue()[key].memory_gb * 1024)
    assert facts == catalogue()[key]


def test_known_name_with_another_memory_is_another_card() -> None:
    facts = lookup("NVIDIA H100 80GB HBM3", 40960)
    assert facts is not None
    assert (facts.family, facts.memory_gb, facts.guessed) == ("h100", 40, True)


@pytest.mark.parametrize(
    "name", ["", "  ", "--", "ERR!", "N/A", "[N/A]", "Unknown Error", "[GPU is lost]", "[Unknown Error]"]
)
def test_no_name_has_no_facts(name: str) -> None:
    assert lookup(name, 81559) is None


def test_every_entry_is_whole() -> None:
    for key, facts in catalogue().items():
        assert facts.family == facts.family.lower() and facts.memory_gb > 0 and facts.source, key
        assert (
            facts.vendor in ("nvidia", "amd")
            and facts.multiprocessors > 0
            and facts.tdp_w > 0
            and facts.memory_gbytes_per_s > 0
        ), key
        assert (facts.vendor == "amd") == facts.compute_capability.startswith("gfx"), key
        assert bool(facts.nvlink_links) == bool(facts.nvlink_gbytes_per_s), key
        assert bool(facts.nvlink_version) == (bool(facts.nvlink_links) and facts.vendor == "nvidia"), key
        assert not facts.nvlink_by_bridge or facts.form == "PCIe", key
        assert lookup(key) == by_key(key) == facts, key


@pytest.mark.parametrize(
    ("key", "gbytes_per_s"),
    [
        ("A100-SXM4-80GB", 50),
        ("H100-SXM5-80GB", 50),
        ("B200-SXM-180GB", 100),
        ("RTX-3090", 28.125),
        ("MI300X", 128),
        ("T4", 0),
    ],
)
def test_one_link_both_directions(key: str, gbytes_per_s: float) -> None:
    assert catalogue()[key].nvlink_link_gbytes_per_s == gbytes_per_s


def test_every_model_of_the_collection_is_in_the_catalogue() -> None:
    with shared("facts").joinpath("gpu_specs.tsv").open(encoding="utf-8", newline="") as lines:
        rows = list(csv.DictReader(lines, delimiter="\t"))
    assert len(rows) == 39
    for row in rows:
        facts = catalogue()[row["#gpu"]]
        links = int(row["nvlink_links"].split(" ")[0])
        assert (facts.form, facts.architecture, facts.compute_capability) == (
            row["form"],
            row["arch"],
            row["compute_capability"],
        )
        assert facts.memory_gb == float(row["memory_gb"]) and facts.memory_gbytes_per_s == float(row["mem_bw_gbs"]), row
        assert facts.multiprocessors == int(row["sm_or_cu"].split(" ")[0]) and facts.tdp_w == float(row["tdp_w"]), row
        assert facts.dense_tflops == float(row["fp16_bf16_dense_tflops"] or 0) and facts.bf16 == (row["bf16"] == "yes"), row
        assert facts.fp8_dense_tflops == float(row["fp8_dense_tflops"] or 0), row
        assert (facts.nvlink_links, facts.nvlink_gbytes_per_s) == (links, float(row["nvlink_total_bidir_gbs"] or 0)), row
        assert str(facts.nvlink_version or "") == row["nvlink_gen"].replace("xGMI", ""), row
        each_way = float(row["gbs_per_link_per_direction"] or 0)
        assert facts.nvlink_link_gbytes_per_s / 2 == pytest.approx(each_way, rel=0.001), row
        assert facts.mig_instances_max == int(row["mig_max_instances"] or 0), row


def test_names_seen_on_real_machines_are_known() -> None:
    with shared("facts").joinpath("gpu_observed_names_memory_power.tsv").open(encoding="utf-8", newline="") as lines:
        rows = list(csv.DictReader(lines, delimiter="\t"))
    assert len(rows) == 15
    for row in rows:
        facts = lookup(row["#product_name"], float(row["fb_total"].split(" ")[0] or 0))
        assert facts is not None and not facts.guessed, row
        if row["max_power_limit"]:
            assert facts.tdp_w == float(row["max_power_limit"].removesuffix(" W")), row


def test_every_name_in_a_dump_of_nvidia_smi_is_known() -> None:
    """But for one that nvidia-smi cut off before it says anything."""
    unknown, known = set(), 0
    for path in sorted(shared("nvsmi").iterdir()):
        if not path.name.startswith(("q-", "qx-", "L-", "table-", "nvlink-", "mig-")):
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        names = [(found.strip(), 0.0) for found in PRODUCT.findall(text)]
        names += [(name, float(mib)) for name, mib in TABLE.findall(text)]
        for name, mib in names:
            facts = lookup(name, mib)
            assert (facts is None) == (name == "ERR!"), (path.name, name)
            if facts is not None and facts.guessed:
                unknown.add(name)
            elif facts is not None:
                known += 1
    assert known > 80 and unknown == {"NVIDIA GeForce ..."}


def test_strength_orders_models_and_falls_back_to_memory() -> None:
    h100, a100 = GpuSpec("H100-SXM5-80GB", "h100", 80), GpuSpec("A100-SXM4-80GB", "a100", 80)
    assert strength_tflops(h100) > strength_tflops(a100) > strength_tflops(GpuSpec("Unknown X1", "x1", 48)) == 48


def test_lookup_needs_no_heavy_library() -> None:
    heavy = "{'numpy', 'ortools', 'networkx', 'grpc'}"
    code = f"import sys, fmproto.gpus as g; g.lookup('NVIDIA H200', 143771); print({heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "set()"
