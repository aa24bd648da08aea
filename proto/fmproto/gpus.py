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

# NVML's longest name has 96 characters; what is beyond this is not looked at.
NAME_CHARS_MAX = 256
# A petabyte and more is no memory of a GPU, and infinity none either.
MEMORY_MIB_MAX = 2.0**30

_MAKERS = {
    "nvidia": "nvidia",
    "tesla": "nvidia",
    "quadro": "nvidia",
    "geforce": "nvidia",
    "amd": "amd",
    "instinct": "amd",
    "radeon": "amd",
}
# A MIG device's name ends in its profile: "NVIDIA A100-SXM4-40GB MIG 1g.5gb", "... MIG 1c.3g.20gb", "... MIG 1g.5gb+me".
_MIG_DEVICE = re.compile(r"\sMIG (?:[0-9]{1,2}c\.)?[0-9]{1,2}g\.[0-9]{1,4}gb\S*$", re.IGNORECASE)
# What nvidia-smi prints in a name's place, by itself or in brackets.
_NO_NAMES = frozenset({"err", "n a", "unknown error", "gpu is lost", "gpu requires reset", "not found", "not supported"})
_GB = re.compile(r"([1-9][0-9]{0,3})gb?")
# Series whose number alone says little (RTX 3090, RTX PRO 6000), and what sets apart cards of one number (2080, 2080 SUPER).
_SERIES = ("gtx", "rtx", "titan", "pro")
_EDITIONS = ("ada", "super", "ti")


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """One GPU model. Zero stands for "has none" (NVLink, MIG) or, in a guess, for "not known"."""

    key: str  # catalogue key ("H100-SXM5-80GB"); in a guess, the name as it was given
    family: str  # lower case: what acceleratorType and tolerations name
    memory_gb: float  # nominal: what the maker calls the card
    vendor: str = ""  # "nvidia" or "amd"
    form: str = ""
    architecture: str = ""
    compute_capability: str = ""
    memory_gbytes_per_s: float = 0.0
    multiprocessors: int = 0  # SMs; compute units on AMD
    dense_tflops: float = 0.0  # FP16/BF16, without sparsity
    fp8_dense_tflops: float = 0.0  # the same of FP8
    bf16: bool = False
    nvlink_version: int = 0  # generation; zero also for xGMI
    nvlink_links: int = 0
    nvlink_gbytes_per_s: float = 0.0  # all links of the GPU, both directions together
    nvlink_by_bridge: bool = False  # only where a bridge is plugged in do the links reach other GPUs
    tdp_w: float = 0.0  # highest power limit that can be set, on most cards the default too
    mig_instances_max: int = 0
    source: str = ""
    guessed: bool = False  # not in the catalogue: family from the name, memory from what the card reports

    @property
    def nvlink_link_gbytes_per_s(self) -> float:
        """Of one link, both directions together; 0: no links."""
        return self.nvlink_gbytes_per_s / self.nvlink_links if self.nvlink_links else 0.0


def lookup(nvml_name: str, memory_mib: float = 0) -> GpuFacts | None:
    """The facts on a GPU that calls itself `nvml_name` and reports `memory_mib` MiB in total (0: not known). Raises nothing.

    The maker's words in front, separators and case do not matter. A MIG device is looked up as the GPU that it is part of, and its
    memory says nothing. A name that nvidia-smi's table cuts ("NVIDIA A100-SXM...") is known where only one model fits.

    A name that the catalogue lacks gives a guess: the family is the first word of the name that contains a digit (else the first
    word), with its series and edition ("rtx-2070-super"); the nominal memory is the reported size in GiB, rounded up (81,559 MiB is
    79.6 GiB, an "80 GB" card), and where none is reported, what the name says. None only for a name without letters or
    digits, and for words that stand for none ("ERR!", "[N/A]").
    """
    name = nvml_name.strip()[:NAME_CHARS_MAX]
    memory_mib = memory_mib if 0 < memory_mib < MEMORY_MIB_MAX else 0
    whole = _MIG_DEVICE.sub("", name)
    if whole != name:
        name, memory_mib = whole, 0
    words = _words(name)
    if not words or " ".join(words) in _NO_NAMES:
        return None
    model = _model(words, cut=name.endswith("..."), memory_mib=memory_mib)
    if model is not None:
        return model
    return GpuFacts(
        key="".join(c for c in name if c.isprintable()),
        family=_family(words),
        memory_gb=_nominal_gb(memory_mib) or _named_gb(words),
        vendor=_vendor(name),
        guessed=True,
    )


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
def _by_name() -> Mapping[tuple[str, ...], tuple[GpuFacts, ...]]:
    found: dict[tuple[str, ...], list[GpuFacts]] = {}
    for key, row in _rows().items():
        # A described cluster names its GPUs by catalogue key; so the key is a name too.
        for name in dict.fromkeys((_words(key), *map(_words, row["names"]))):
            found.setdefault(name, []).append(catalogue()[key])
    return {name: tuple(facts) for name, facts in found.items()}


def _facts(key: str, row: Mapping[str, Any]) -> GpuFacts:
    return GpuFacts(key=key, **{name: value for name, value in row.items() if name != "names"})


def _all_words(name: str) -> list[str]:
    return re.sub(r"[^a-z0-9]+", " ", name.lower()).split()


def _words(name: str) -> tuple[str, ...]:
    """Lower case, without the maker's words in front; every separator is the same."""
    words = _all_words(name)
    first = next((n for n, word in enumerate(words[:-1]) if word not in _MAKERS), len(words) - 1)
    return tuple(words[first:]) if words else ()


def _vendor(name: str) -> str:
    return next((_MAKERS[word] for word in _all_words(name) if word in _MAKERS), "")


def _model(words: tuple[str, ...], cut: bool, memory_mib: float) -> GpuFacts | None:
    fit = [facts for facts in _by_name().get(words, ()) if _memory_fits(facts, memory_mib)]
    if fit and memory_mib:
        return min(fit, key=lambda facts: abs(facts.memory_gb - _nominal_gb(memory_mib)))
    if fit:
        return next((facts for facts in fit if _words(facts.key) == words), fit[0])
    if not cut or not any(c.isdigit() for word in words for c in word):
        return None
    start = " ".join(words)
    longer = {
        facts.key: facts
        for name, several in _by_name().items()
        if " ".join(name).startswith(start)
        for facts in several
        if _memory_fits(facts, memory_mib)
    }
    return next(iter(longer.values())) if len(longer) == 1 else None


def _family(words: tuple[str, ...]) -> str:
    at = next((n for n, word in enumerate(words) if any(c.isdigit() for c in word)), None)
    if at is None:
        return words[0]
    first, after = at, at + 1
    while first > 0 and words[first - 1] in _SERIES:
        first -= 1
    while after < len(words) and words[after] in _EDITIONS:
        after += 1
    return "-".join(words[first:after])


def _named_gb(words: tuple[str, ...]) -> float:
    """The memory that a name tells ("a100 sxm 64gb"); 0: it tells none."""
    found = (_GB.fullmatch(word) for word in words)
    return next((float(match[1]) for match in found if match), 0.0)


def _memory_fits(facts: GpuFacts, memory_mib: float) -> bool:
    return memory_mib <= 0 or abs(memory_mib / 1024 - facts.memory_gb) <= MEMORY_TOLERANCE * facts.memory_gb


def _nominal_gb(memory_mib: float) -> float:
    return float(math.ceil(memory_mib / 1024))
