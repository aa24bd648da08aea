"""`rocm-smi --showtopo` (also --showtopotype): the links between AMD GPUs, and their NUMA nodes, read beside nvidia-smi's matrix.

    =============================== Link Type between two GPUs ===============================
           GPU0         GPU1
    GPU0   0            XGMI
    GPU1   XGMI         0
    ======================================= Numa Nodes =======================================
    GPU[0]          : (Topology) Numa Node: 0

XGMI is AMD's link between GPUs; how many lie between two of them, rocm-smi does not say, so `links` stays 0 ("not said"). PCIE is a path by
PCIe of unknown length.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from fmproto.dumptext import Problems
from fmsched.topology.readers.found import GpuFound, NodeFound, NvlinkFound
from fmsched.topology.readers.smi_text import GPUS_MAX, Lines

_SECTION = re.compile(r"=+\s(.{1,64}?)\s=+$")
_TYPES = "Link Type between two GPUs"
_GPU = re.compile(r"GPU(\d{1,4})")
_CELL = re.compile(r"XGMI|PCIE|0")
_NUMA = re.compile(r"GPU\s?\[?(\d{1,4})\]?\s{0,16}:\s{0,4}\(Topology\) Numa Node:\s{0,4}(-?\d{1,4})")


@dataclass
class _Found:
    columns: list[int] = field(default_factory=list)
    rows: dict[int, list[str]] = field(default_factory=dict)
    numa: dict[int, int] = field(default_factory=dict)
    broken: bool = False


def is_rocm(lines: Lines) -> bool:
    return any(_section(line) == _TYPES for _, line in lines)


def _section(line: str) -> str:
    match = _SECTION.match(line[:256]) if line.startswith("=") else None
    return match[1] if match else ""


def read_lines(lines: Lines, file: str, problems: Problems, kind: str) -> NodeFound:
    """The GPUs by index with `numa`, XGMI pairs as `nvlinks` with `links` 0, `paths` XGMI or PCIE. Raises ReaderError where the section of
    link types has no rows."""
    found = _parse(lines, problems)
    if not found.rows:
        raise problems.refuse("rocm-smi's section `Link Type between two GPUs` has no rows; expected `GPU0  0  XGMI ...`")
    gpus = sorted({*found.columns, *found.rows})
    paths: dict[tuple[str, str], str] = {}
    for a, cells in found.rows.items():
        for b, cell in zip(found.columns, cells, strict=False):
            low, high = sorted((a, b))
            if low != high and paths.setdefault((f"GPU{low}", f"GPU{high}"), cell) != cell:
                problems.add(0, f"GPU{low} to GPU{high}", "reads XGMI one way and PCIE the other; PCIE is taken")
                paths[f"GPU{low}", f"GPU{high}"] = "PCIE"
    short = [gpu for gpu in gpus if len(found.rows.get(gpu, ())) < len(found.columns)]
    if short:
        problems.add(0, f"GPU{short[0]}", "no row, or fewer cells than columns: the matrix is cut")
    links = sorted((int(a[3:]), int(b[3:])) for (a, b), cell in paths.items() if cell == "XGMI")
    return NodeFound(
        kind,
        file,
        gpus=tuple(GpuFound(gpu, numa=found.numa.get(gpu, -1), vendor="amd") for gpu in gpus),
        nvlinks=tuple(NvlinkFound(a, b) for a, b in links),
        paths=paths,
        complete=not (short or found.broken),
        problems=problems.found(),
    )


def _parse(lines: Lines, problems: Problems) -> _Found:
    found = _Found()
    section = ""
    for number, line in lines:
        section = _section(line) or section
        if match := _NUMA.match(line):
            found.numa.setdefault(int(match[1]), int(match[2]))
        if section != _TYPES:
            continue
        words = line.split(maxsplit=GPUS_MAX + 1)
        labels = [_GPU.fullmatch(word) for word in words]
        if all(labels) and not found.columns:
            found.columns = [int(label[1]) for label in labels if label]
        elif labels[0] and len(words) > 1 and found.columns:
            gpu = int(labels[0][1])
            cells = words[1 : len(found.columns) + 1]
            bad = next((cell for cell in cells if not _CELL.fullmatch(cell)), "")
            if bad:
                problems.add(number, line, f"the cell {bad[:16]!r} is none of XGMI, PCIE, 0; the row is set aside")
                found.broken = True
            elif gpu not in found.rows:
                found.rows[gpu] = cells
    return found
