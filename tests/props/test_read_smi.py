"""The readers of nvidia-smi's plain reports, with hostile text and with files of every other kind: an answer or ReaderError, and soon."""

from __future__ import annotations

import gzip
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fmproto.dumptext import BYTES_MAX, Problems, ReaderError, decode
from fmsched.topology.readers import nvlink_status, smi_list, smi_topo
from fmsched.topology.readers.found import NodeFound
from tests.support import shared_data

Reader = Callable[[str, str], NodeFound]
READERS: dict[str, Reader] = {
    "nvidia-smi-topo": smi_topo.read,
    "nvidia-smi-list": smi_list.read,
    "nvlink-status": nvlink_status.read,
}
MEGABYTE = 1 << 20
SECONDS_MAX = 5.0  # for a megabyte; below one on a machine that does nothing else
MODERATE = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def matrix(gpus: int, adapters: int, cell: Callable[[int, int], str], tabs: bool, glued: int = -1) -> str:
    """What nvidia-smi prints; `glued` is a column that sticks to the one before, as where a terminal broke the lines."""
    labels = [f"GPU{i}" for i in range(gpus)] + [f"NIC{i}" for i in range(adapters)]

    def joined(cells: list[str]) -> str:
        return cells[0] + "".join(("" if place == glued else "\t") + text for place, text in enumerate(cells[1:], 1))

    rows = ["\t" + joined(labels) + "\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID"]
    for i, label in enumerate(labels):
        tail = f"\t{i * 8}-{i * 8 + 7},{i + 500}\t{i % 2}\t\tN/A" if i < gpus else "\t\t\t\t"
        rows.append(
            "\t".join([label, *(" X " if i == j else cell(min(i, j), max(i, j)) for j in range(len(labels)))]) + tail
        )
    rows += [
        "",
        "Legend:",
        "",
        "  X    = Self",
        "  NV#  = Connection traversing a bonded set of # NVLinks",
        "",
        "NIC Legend:",
        "",
    ]
    rows += [f"  NIC{i}: mlx5_{i}" for i in range(adapters)]
    text = "\n".join(rows) + "\n"
    return text if tabs else text.expandtabs(8)


def listed(mig: bool) -> str:
    lines = []
    for i in range(4):
        lines.append(f"GPU {i}: NVIDIA A100-SXM4-40GB (UUID: GPU-{i:08x}-1111-2222-3333-444455556666)")
        lines += [
            f"  MIG 1g.5gb     Device  {k}: (UUID: MIG-{i:07x}{k}-1111-2222-3333-444455556666)" for k in range(2 * mig)
        ]
    return "\n".join(lines) + "\n"


def status() -> str:
    heads = listed(mig=False).splitlines()
    links = [f"\t Link {k}: {'25 GB/s' if k % 5 else '<inactive>'}" for k in range(12)]
    return "\n".join(line for head in heads for line in [head, *links]) + "\n"


def cells(i: int, j: int) -> str:
    return ("NV4", "SYS", "PIX", "NODE", "PHB", "PXB")[(i * 7 + j) % 6]


WHOLE = {
    "nvidia-smi-topo": matrix(4, 3, cells, tabs=True),
    "nvidia-smi-list": listed(mig=True),
    "nvlink-status": status(),
}
PIECES = [
    "GPU0",
    "GPU1",
    "GPU 0:",
    "NIC0",
    "mlx5_0",
    "X",
    "NV4",
    "NV",
    "PIX",
    "SYS",
    "Link 0:",
    "25 GB/s",
    "<inactive>",
    "MIG 1g.5gb",
    "Device 0:",
]
PIECES += [
    "(UUID:",
    ")",
    "GPU-1",
    "MIG-1",
    "CPU Affinity",
    "NUMA Affinity",
    "0-7",
    "N/A",
    "ERR!",
    "\t",
    " ",
    "\n",
    "\r",
    "\x00",
    "\x1b[4m",
    "|",
    "...",
]
PIECES += [
    "Unable to determine the device handle for GPU",
    "0000:9B:00.0",
    "NIC Legend:",
    "NIC0: a",
    ":",
    "=",
    "<?xml",
    "9" * 30,
    "²",
    "٣",
]


def answers(read: Reader, text: str) -> NodeFound | None:
    """What is found, with what holds of every answer; None for a refusal, which names the file."""
    try:
        found = read(text, "f")
    except ReaderError as error:
        refused = error.problem
    else:
        check(found)
        return found
    assert refused.file == "f" and refused.why
    return None


def check(found: NodeFound) -> None:
    indices = [gpu.index for gpu in found.gpus]
    assert indices == sorted(set(indices)) and indices and indices[0] >= 0
    assert len({port.hca for port in found.ports}) == len(found.ports)
    for pair in found.nvlinks:
        assert pair.a < pair.b and {pair.a, pair.b} <= set(indices) and pair.links >= 0
    for gpu in found.gpus:
        assert gpu.nvlinks_active is None or gpu.nvlinks_active >= 0
        assert re.fullmatch(r"[0-9,-]*", gpu.cpus) and gpu.numa >= -1
    for port in found.ports:
        assert set(port.near) <= set(indices)


@pytest.mark.parametrize("kind", READERS)
@given(text=st.one_of(st.text(max_size=600), st.binary(max_size=600).map(lambda raw: decode(raw, Problems("f")))))
@MODERATE
def test_any_text(kind: str, text: str) -> None:
    answers(READERS[kind], text)


@pytest.mark.parametrize("kind", READERS)
@given(pieces=st.lists(st.sampled_from(PIECES), max_size=80), glue=st.sampled_from(["", " ", "\t", "\n"]))
@MODERATE
def test_pieces_of_dumps_in_any_order(kind: str, pieces: list[str], glue: str) -> None:
    answers(READERS[kind], glue.join(pieces))


@pytest.mark.parametrize("kind", READERS)
@given(
    base=st.sampled_from(sorted(WHOLE)),
    changes=st.lists(
        st.tuples(st.floats(0, 1), st.integers(0, 40), st.one_of(st.sampled_from(PIECES), st.text(max_size=8))), max_size=12
    ),
)
@MODERATE
def test_damaged_dumps(kind: str, base: str, changes: list[tuple[float, int, str]]) -> None:
    text = WHOLE[base]
    for place, length, new in changes:
        at = int(place * len(text))
        text = text[:at] + new + text[at + length :]
    answers(READERS[kind], text)


@pytest.mark.parametrize("kind", READERS)
@given(share=st.floats(0, 1))
@MODERATE
def test_a_dump_cut_anywhere_never_says_more_than_the_whole(kind: str, share: float) -> None:
    text = WHOLE[kind]
    cut = answers(READERS[kind], text[: int(share * len(text))])
    whole = answers(READERS[kind], text)
    assert whole is not None and whole.complete
    if cut is None:
        return
    names = {port.hca for port in whole.ports} | {f"NIC{i}" for i in range(3)}
    assert {gpu.index for gpu in cut.gpus} <= {gpu.index for gpu in whole.gpus}
    assert set(cut.nvlinks) <= set(whole.nvlinks) and {port.hca for port in cut.ports} <= names
    of = {gpu.index: gpu for gpu in whole.gpus}
    for gpu in cut.gpus:
        assert gpu.uuid in {"", of[gpu.index].uuid} and set(gpu.mig) <= {
            *of[gpu.index].mig,
            *(type(m)(m.profile) for m in of[gpu.index].mig),
        }
        assert gpu.cpus in {"", of[gpu.index].cpus}
        assert (gpu.nvlinks_active or 0) <= (of[gpu.index].nvlinks_active or 0)


@given(
    gpus=st.integers(1, 16),
    adapters=st.integers(0, 12),
    seed=st.integers(0, 5000),
    tabs=st.booleans(),
    columns=st.permutations(range(5)),
    glued=st.integers(-1, 28),
)
@MODERATE
def test_a_matrix_is_read_back(gpus: int, adapters: int, seed: int, tabs: bool, columns: list[int], glued: int) -> None:
    kinds = ["NV2", "SYS", "PIX", "NODE", "PHB"]

    def cell(i: int, j: int) -> str:
        kind = kinds[columns[(i * 31 + j * 17 + seed) % 5]]
        return "PXB" if kind == "NV2" and j >= gpus else kind

    found = answers(smi_topo.read, matrix(gpus, adapters, cell, tabs, glued or -1))
    assert found is not None and found.complete and not found.problems
    expected = {(f"GPU{i}", f"GPU{j}"): cell(i, j) for i in range(gpus) for j in range(i + 1, gpus)}
    expected |= {(f"GPU{i}", f"mlx5_{j}"): cell(i, gpus + j) for i in range(gpus) for j in range(adapters)}
    assert dict(found.paths) == expected
    assert [(gpu.index, gpu.numa, gpu.cpus) for gpu in found.gpus] == [
        (i, i % 2, f"{i * 8}-{i * 8 + 7},{i + 500}") for i in range(gpus)
    ]


HEAD = "GPU0 GPU1 NIC0 CPU Affinity NUMA Affinity\n"
HOSTILE = {
    "one label over and over": "GPU0 " * (MEGABYTE // 5),
    "one label over and over, glued": "GPU0" * (MEGABYTE // 4),
    "cells glued": "GPU0 " + "NV1" * (MEGABYTE // 3),
    "blanks": "GPU 0: a" + " " * MEGABYTE + "b",
    "tabs": "GPU0\t" + "\t" * MEGABYTE,
    "bars": "|" * MEGABYTE,
    "brackets of UUIDs": "GPU 0: " + "(UUID:" * (MEGABYTE // 6),
    "nested brackets": "[({<" * (MEGABYTE // 4),
    "a long list of CPUs": "GPU0 X " + "0-1," * (MEGABYTE // 4),
    "affinities without end": HEAD + "GPU0 X NV4 PIX " + "1,2-3 " * (MEGABYTE // 6),
    "rows of one GPU": "GPU0 X\n" * (MEGABYTE // 7),
    "headers": "GPU0 GPU1\n" * (MEGABYTE // 10),
    "headers that go on": "GPU0 GPU1\n" + "NIC1 NIC2\n" * (MEGABYTE // 10),
    "rows that go on": HEAD + "GPU0 X\n" + "X\n" * (MEGABYTE // 2),
    "a wide matrix": " ".join(f"GPU{i}" for i in range(9999))
    + "\n"
    + "".join(f"GPU{i} " + "X " * 9000 + "\n" for i in range(50)),
    "legend in one line": HEAD + "GPU0 X NV4 PIX\n" + "NIC0: " * (MEGABYTE // 6),
    "legend lines": HEAD + "GPU0 X NV4 PIX\n" + "NIC0: a\n" * (MEGABYTE // 8),
    "links": "GPU 0: a (UUID: GPU-a)\n" + "Link 0: <inactive>\n" * (MEGABYTE // 19),
    "links without a state": "Link 0: \n" * (MEGABYTE // 9),
    "GPUs": "".join(f"GPU {i % 9999}: a (UUID: GPU-{i})\n" for i in range(MEGABYTE // 25)),
    "MIG devices": "GPU 0: a (UUID: GPU-1)\n" + "MIG 1g.10gb Device 0: (UUID: MIG-1)\n" * (MEGABYTE // 36),
    "a long MIG profile": "GPU 0: a\nMIG " + "a" * MEGABYTE,
    "lost GPUs": "Unable to determine the device handle for GPU 0000:08:00.0: Unknown Error\n" * (MEGABYTE // 74),
    "NULs": "\x00" * MEGABYTE,
    "escapes": "\x1b[" * (MEGABYTE // 2),
    "carriage returns": "\r" * MEGABYTE,
    "equals": "=" * MEGABYTE,
    "rocm-smi": "== Link Type between two GPUs ==\n" + "GPU0 " * (MEGABYTE // 5),
    "lines without end": "a" * MEGABYTE + "NVRM: Xid",
}


@pytest.mark.parametrize("kind", READERS)
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_megabyte_ends_soon(name: str, kind: str) -> None:
    begun = time.process_time()  # of this process alone: the machine may be busy
    answers(READERS[kind], HOSTILE[name])
    assert time.process_time() - begun < SECONDS_MAX


OTHERS = ("topo_m", "nvsmi", "ibstat", "ibnetdiscover", "nccl_xml", "slurm_topology")
OWN = {"nvidia-smi-topo": "topo_m/", "nvidia-smi-list": "nvsmi/L-", "nvlink-status": "nvsmi/nvlink-s-"}

# What the refusal of a file must say, by the beginning of its name in the collection; the first that fits.
REASONS = (
    ("topo_m/", r"topo -m"),
    ("nvsmi/L-", r"nvidia-smi -L"),
    ("nvsmi/nvlink-s-", r"nvlink --status"),
    ("nvsmi/qx-", r"nvidia-smi -q -x"),
    ("nvsmi/query-gpu-csv", r"CSV of `nvidia-smi --query-gpu"),
    ("nvsmi/q-", r"nvidia-smi -q"),
    ("nvsmi/mig-table", r"default table"),
    ("nvsmi/table", r"default table"),
    ("nvsmi/mig-lgi-none", r"nvidia-smi mig"),
    ("nvsmi/mig-m", r"YAML"),
    ("nvsmi/mig-parted", r"YAML"),
    ("nvsmi/mig-", r"nvidia-smi mig"),
    ("nvsmi/dmesg", r"kernel log"),
    ("nvsmi/error-messages", r"No devices were found|cannot be opened: Unknown Error"),
    ("nvsmi/rocm-smi", r"JSON"),
    ("ibstat/sysfs", r"/sys"),
    ("ibstat/ibstatus", r"ibstatus"),
    ("ibstat/error|ibstat/ibhosts|ibstat/sminfo", r"InfiniBand tool's error"),
    ("ibstat/", r"kind ibstat"),
    (r"ibnetdiscover/.*host-guids", r"list of nodes"),
    (r"ibnetdiscover/.*hostfile", r"found none"),
    ("ibnetdiscover/", r"kind ibnetdiscover"),
    ("nccl_xml/", r"kind nccl-topo"),
    (r"slurm_topology/azure-nodes|slurm_topology/azure-sharp-cmd.nodes", r"list of nodes"),
    (r"slurm_topology/.*\.ya?ml", r"YAML|topology.conf"),
    (r"slurm_topology/.*\.json", r"JSON"),
    # Source code, two pieces of it with a key as YAML has it.
    (r"slurm_topology/topograph-expected-(?:07|09|11|13)", r"found none|YAML"),
    ("slurm_topology/", r"topology.conf"),
)


def head_of(path: Path) -> str:
    raw = path.read_bytes()
    if path.suffix == ".gz":
        with gzip.open(path) as unpacked:
            raw = unpacked.read(MEGABYTE)
    assert len(raw) < BYTES_MAX
    return decode(raw, Problems(path.name))


@pytest.mark.parametrize("path", [path for name in OTHERS for path in shared_data.files(name)], ids=lambda path: path.name)
def test_real_files_of_other_kinds_are_refused_with_the_right_reason(path: Path) -> None:
    name = f"{path.parent.name}/{path.name}"
    reason = next(words for start, words in REASONS if re.match(start, name))
    text = head_of(path)
    for kind, read in READERS.items():
        if name.startswith(OWN[kind]):
            assert read(text, path.name).kind == kind
            continue
        with pytest.raises(ReaderError, match=reason) as refused:
            read(text, path.name)
        assert "expected" in refused.value.problem.why
