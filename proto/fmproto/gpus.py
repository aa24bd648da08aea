"""Facts on GPUs by the name that NVML prints: the table gpus.toml and its lookup. Nothing heavy is imported here.

Agents use it to say which catalogue model a GPU is, the scheduler to compare models. Figures live in gpus.toml, with sources.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

# A card reports a little less, or (with ECC off, or in binary units) a little more, than its nominal memory. Cards that share
# a name differ by far more than this (40 and 80 GB, 16 and 32 GB).
MEMORY_TOLERANCE = 0.12

_MAKER = re.compile(r"^(nvidia|tesla|quadro|geforce|amd|instinct|radeon|graphics device)\s+")


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """One GPU model. Zero stands for "has none" (NVLink, MIG) or, in a guess, for "not known"."""

    key: str  # catalogue key ("H100-SXM5-80GB"); in a guess, the name as it was given
    family: str  # lower case: what acceleratorType and tolerations name
    memory_gb: float  # nominal, decimal
    form: str = ""
    architecture: str = ""
    compute_capability: str = ""
    memory_gbytes_per_s: float = 0.0
    multiprocessors: int = 0
    dense_tflops: float = 0.0  # FP16/BF16, without sparsity
    nvlink_links: int = 0
    nvlink_gbytes_per_s: float = 0.0  # all links of the GPU, both directions together
    tdp_w: float = 0.0
    mig_instances_max: int = 0
    source: str = ""
    guessed: bool = False  # not in the catalogue: family from the name, memory from what the card reports


def lookup(nvml_name: str, memory_mib: float = 0) -> GpuFacts | None:
    """The facts on a GPU that calls itself `nvml_name` and reports `memory_mib` MiB in total (0: not known).

    A name that the catalogue lacks gives a guess: the family is the first word of the name that contains a digit (else the
    first word), and the nominal memory is the reported size in GiB, rounded up: 81,559 MiB is 79.6 GiB, an "80 GB" card.
    None only for an empty name.
    """
    words = _words(nvml_name)
    if not words:
        return None
    found = [facts for facts in _by_name().get(words, ()) if _memory_fits(facts, memory_mib)]
    if found:
        return min(found, key=lambda facts: abs(facts.memory_gb - _nominal_gb(memory_mib)))
    parts = words.split(" ")
    family = next((part for part in parts if any(c.isdigit() for c in part)), parts[0])
    return GpuFacts(key=nvml_name.strip(), family=family, memory_gb=_nominal_gb(memory_mib), guessed=True)


def by_key(key: str) -> GpuFacts | None:
    """The facts under a catalogue key."""
    return catalogue().get(key)


@cache
def catalogue() -> Mapping[str, GpuFacts]:
    """The whole table, by catalogue key, in the order of the file."""
    return {key: _facts(key, row) for key, row in _rows().items()}


@cache
def _rows() -> dict[str, dict[str, Any]]:
    text = resources.files("fmproto").joinpath("gpus.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


@cache
def _by_name() -> Mapping[str, tuple[GpuFacts, ...]]:
    found: dict[str, list[GpuFacts]] = {}
    for key, row in _rows().items():
        # A described cluster names its GPUs by catalogue key; so the key is a name too.
        for name in dict.fromkeys((_words(key), *map(_words, row["names"]))):
            found.setdefault(name, []).append(catalogue()[key])
    return {name: tuple(facts) for name, facts in found.items()}


def _facts(key: str, row: Mapping[str, Any]) -> GpuFacts:
    return GpuFacts(key=key, **{name: value for name, value in row.items() if name != "names"})


def _words(name: str) -> str:
    """Lower case, without the maker's words in front, every separator one blank."""
    text = re.sub(r"[^a-z0-9]+", " ", name.lower()).strip()
    while (shorter := _MAKER.sub("", text)) != text:  # ends: each round takes a word away
        text = shorter
    return text


def _memory_fits(facts: GpuFacts, memory_mib: float) -> bool:
    return memory_mib <= 0 or abs(memory_mib / 1024 - facts.memory_gb) <= MEMORY_TOLERANCE * facts.memory_gb


def _nominal_gb(memory_mib: float) -> float:
    return float(math.ceil(memory_mib / 1024))
