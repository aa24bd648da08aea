"""`nvidia-smi topo -m` as people paste it: every oddity by a small matrix, and all real outputs against a second, naive reading."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fmproto.dumptext import Problems, ReaderError, decode
from fmsched.topology.readers import smi_topo
from fmsched.topology.readers.found import NodeFound
from tests.support import shared_data

LEGEND = """
Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)
  PIX  = Connection traversing at most a single PCIe bridge
  NV#  = Connection traversing a bonded set of # NVLinks
"""

PAIRS = (
    "\tGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n"
    "GPU0\t X \tNV12\tSYS\tSYS\tPXB\tSYS\t0-7,32-39\t0\t\tN/A\n"
    "GPU1\tNV12\t X \tSYS\tSYS\tNODE\tSYS\t0-7,32-39\t0\t\tN/A\n"
    "GPU2\tSYS\tSYS\t X \tNV12\tSYS\tPHB\t8-15,40-47\t1\t\tN/A\n"
    "GPU3\tSYS\tSYS\tNV12\t X \tSYS\tNODE\t8-15,40-47\t1\t\tN/A\n"
    "NIC0\tPXB\tNODE\tSYS\tSYS\t X \tSYS\t\t\t\t\n"
    "NIC1\tSYS\tSYS\tPHB\tNODE\tSYS\t X \t\t\t\t\n" + LEGEND + "\nNIC Legend:\n\n  NIC0: mlx5_3\n  NIC1: rocep65s0f1\n\n"
)


def read(text: str) -> NodeFound:
    return smi_topo.read(text, "dump.txt")


def links(found: NodeFound) -> dict[tuple[int, int], int]:
    return {(pair.a, pair.b): pair.links for pair in found.nvlinks}


def whys(found: NodeFound) -> str:
    return "\n".join(map(str, found.problems))


def spaces(text: str) -> str:
    return text.expandtabs(8)


def matrix(gpus: int, cell: str, affinity: str = "0-7\t0") -> str:
    """A matrix in which every pair reads alike."""
    head = "\t" + "\t".join(f"GPU{i}" for i in range(gpus)) + "\tCPU Affinity\tNUMA Affinity\n"
    rows = ("\t".join([f"GPU{i}", *(" X " if i == j else cell for j in range(gpus)), affinity]) for i in range(gpus))
    return head + "\n".join(rows) + "\n"


@pytest.mark.parametrize(
    "change", [str, spaces, lambda text: text.replace("\n", "\r\n"), lambda text: text.replace(" X ", "X")]
)
def test_bridged_pairs_with_adapters(change: object) -> None:
    assert callable(change)
    found = read(change(PAIRS))
    assert found.kind == "nvidia-smi-topo" and found.complete and not found.problems
    assert [(gpu.index, gpu.numa, gpu.cpus) for gpu in found.gpus] == [
        (0, 0, "0-7,32-39"),
        (1, 0, "0-7,32-39"),
        (2, 1, "8-15,40-47"),
        (3, 1, "8-15,40-47"),
    ]
    assert links(found) == {(0, 1): 12, (2, 3): 12}
    assert not any(pair.to_all for pair in found.nvlinks)
    assert [(port.hca, port.near) for port in found.ports] == [("mlx5_3", (0,)), ("rocep65s0f1", (2,))]
    assert len(found.paths) == 6 + 8
    assert found.paths["GPU0", "GPU1"] == "NV12" and found.paths["GPU1", "GPU2"] == "SYS"
    assert found.paths["GPU1", "mlx5_3"] == "NODE" and found.paths["GPU2", "rocep65s0f1"] == "PHB"


def test_what_stands_around_the_matrix_is_passed_over() -> None:
    around = "\ufeff[op@rack7-n3 ~]$ nvidia-smi topo -m\r\n" + PAIRS + "[op@rack7-n3 ~]$ exit\n"
    assert read(around).gpus == read(PAIRS).gpus
    assert read("".join(f"rack7-n3: {line}\n" for line in spaces(PAIRS).splitlines())).paths == read(PAIRS).paths
    assert read("".join(f"> {line}\n" for line in spaces(PAIRS).splitlines())).paths == read(PAIRS).paths
    assert read("".join(f"#   {line}\n" for line in PAIRS.splitlines())).paths == read(PAIRS).paths


def test_header_in_escape_codes() -> None:
    head, _, rest = PAIRS.partition("\n")
    for marked in (f"\t\x1b[4m{head.strip()}\x1b[0m\n", f"\x1b[4m{head}\x1b[0m\n"):
        assert read(marked + rest) == read(PAIRS)


def test_header_without_its_first_tab_and_with_single_blanks() -> None:
    text = PAIRS.replace("\tGPU0\tGPU1", "GPU0\tGPU1", 1).replace(
        "NIC1\tCPU Affinity\tNUMA Affinity\t", "NIC1 CPU Affinity NUMA Affinity ", 1
    )
    assert read(text).gpus == read(PAIRS).gpus
    assert read(text).paths == read(PAIRS).paths


def test_glued_header() -> None:
    text = (
        "\t    GPU0GPU1mlx5_2\tmlx5_0CPU Affinity\n"
        "GPU0\t X \tNV1\tPIX\tSOC\t0-7\n"
        "GPU1\tNV1\t X \tSOC\tPIX\t8-15\n"
        "mlx5_2\tPIX\tSOC\t X \tSOC\n"
        "mlx5_0\tSOC\tPIX\tSOC\t X \n"
    )
    found = read(text)
    assert found.complete
    assert [(port.hca, port.near) for port in found.ports] == [("mlx5_2", (0,)), ("mlx5_0", (1,))]
    assert [gpu.cpus for gpu in found.gpus] == ["0-7", "8-15"]


def test_cells_glued_where_a_line_break_was_taken_out() -> None:
    text = (
        "        GPU0    GPU1    NIC10   NIC11NIC12   CPU Affinity    NUMA Affinity   GPU NUMA ID\n"
        "GPU0     X      NV18    PIX     NODENODE    0-15    0               N/A\n"
        "GPU1    NV18     X      NODE    PIX  SYS16-31    1               N/A\n"
        "NIC10   PIX     NODE     X      NODENODE\n"
        "NIC11   NODE    PIX     NODE     X NODE\n"
        "NIC12   NODE    SYS     NODE    NODE X\n"
        "NIC10: a0  NIC11: a1  NIC12: a2\n"
    )
    found = read(text)
    assert found.complete and not found.problems
    assert [gpu.cpus for gpu in found.gpus] == ["0-15", "16-31"]
    assert found.paths["GPU1", "a2"] == "SYS" and found.paths["GPU0", "a2"] == "NODE"
    assert [port.near for port in found.ports] == [(0,), (1,), (0,)]


def test_rows_and_header_that_a_terminal_broke() -> None:
    lines = spaces(PAIRS).splitlines()
    broken = "\n".join(
        line[:40] + "\n" + line[40:] if "GPU" in line or (line.startswith("NIC") and ":" not in line) else line
        for line in lines
    )
    assert read(broken).paths == read(PAIRS).paths
    assert read(broken).gpus == read(PAIRS).gpus


def test_hand_aligned() -> None:
    text = (
        "      GPU0  GPU1  CPU Affinity  NUMA Affinity\n"
        "GPU0   X    NV18   0-51         0\n"
        "GPU1  NV18   X    52-103        1\n"
    )  # fmt: skip
    assert [(gpu.numa, gpu.cpus) for gpu in read(text).gpus] == [(0, "0-51"), (1, "52-103")]


def test_markdown_table() -> None:
    text = "|  | GPU0 | GPU1 | CPU Affinity | NUMA |\n|---|---|---|---|---|\n| GPU0 | X | PHB | 0-7 | 0 |\n| GPU1 | PHB | X | | 1 |\n"
    found = read(text)
    assert [(gpu.numa, gpu.cpus) for gpu in found.gpus] == [(0, "0-7"), (1, "")]
    assert found.paths == {("GPU0", "GPU1"): "PHB"}


@pytest.mark.parametrize("change", [str, spaces])
def test_empty_affinity_cells(change: object) -> None:
    assert callable(change)
    text = PAIRS.replace("8-15,40-47\t1", "\t1")
    found = read(change(text))
    assert [(gpu.numa, gpu.cpus) for gpu in found.gpus] == [(0, "0-7,32-39"), (0, "0-7,32-39"), (1, ""), (1, "")]
    nothing = read(change(text.replace("0-7,32-39\t0", "\t")))
    assert [(gpu.numa, gpu.cpus) for gpu in nothing.gpus] == [(-1, ""), (-1, ""), (1, ""), (1, "")]


def test_one_number_that_may_be_either_is_set_aside() -> None:
    found = read("GPU0 GPU1 CPU Affinity NUMA Affinity\nGPU0 X PIX 3\nGPU1 PIX X 0-3 1\n")
    assert [(gpu.numa, gpu.cpus) for gpu in found.gpus] == [(-1, ""), (1, "0-3")]
    assert "it is not known which it is" in whys(found)


@pytest.mark.parametrize(("printed", "numa"), [("0-3", 0), ("2", 2), ("1,3", 1), ("N/A", -1)])
def test_numa_affinity(printed: str, numa: int) -> None:
    found = read(matrix(2, "PIX", f"0,64\t{printed}"))
    assert {gpu.numa for gpu in found.gpus} == {numa}
    assert {gpu.cpus for gpu in found.gpus} == {"0,64"}


def test_grace_gpus_have_a_numa_node_of_their_own() -> None:
    text = "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\nGPU0\t X \tNV18\t0-71\t0\t\t2\nGPU1\tNV18\t X \t72-143\t1\t\t10\n"
    for form in (text, spaces(text)):
        assert [dict(gpu.facts) for gpu in read(form).gpus] == [{"GPU NUMA ID": "2"}, {"GPU NUMA ID": "10"}]


def test_an_nvswitch_is_told_from_a_mesh() -> None:
    switch = read(matrix(8, "NV12"))
    assert len(switch.nvlinks) == 28 and all(pair.to_all and pair.links == 12 for pair in switch.nvlinks)
    # Four GPUs of a board without switches: 3 x 4 links are what each has.
    mesh = read(matrix(4, "NV4"))
    assert len(mesh.nvlinks) == 6 and not any(pair.to_all for pair in mesh.nvlinks)
    # Four of eight GPUs behind switches, as a virtual machine sees them: 3 x 12 links no GPU has.
    assert all(pair.to_all for pair in read(matrix(4, "NV12")).nvlinks)
    assert not any(pair.to_all for pair in read(matrix(2, "NV12")).nvlinks)


def test_cube_mesh_keeps_each_pairs_links() -> None:
    text = "\tGPU0\tGPU1\tGPU2\nGPU0\t X \tNV1\tNV2\nGPU1\tNV1\t X \tSYS\nGPU2\tNV2\tSYS\t X \n"
    found = read(text)
    assert links(found) == {(0, 1): 1, (0, 2): 2}
    assert found.paths["GPU1", "GPU2"] == "SYS"


def test_near_is_the_nearest_class_that_exists() -> None:
    head = "\tGPU0\tGPU1\tGPU2\tGPU3\tmlx5_0\n"
    for cells, near in (
        ("PIX PXB NODE SYS", (0, 1)),
        ("NODE PHB NODE SYS", (1,)),
        ("SYS SYS NODE NODE", (2, 3)),
        ("SYS SYS SYS SYS", ()),
    ):
        column = cells.split()
        rows = [
            f"GPU{i}\t" + "\t".join(" X " if i == j else "SYS" for j in range(4)) + f"\t{column[i]}\n" for i in range(4)
        ]
        last = "mlx5_0\t" + "\t".join(column) + "\t X \n"
        assert read(head + "".join(rows) + last).ports[0].near == near
        # Without the adapter's own row the columns still tell.
        cut = read(head + "".join(rows))
        assert cut.ports[0].near == near and not cut.complete


def test_only_the_first_rows() -> None:
    found = read("".join(PAIRS.splitlines(keepends=True)[:3]))
    assert not found.complete
    assert [gpu.index for gpu in found.gpus] == [0, 1, 2, 3]
    assert [gpu.cpus for gpu in found.gpus] == ["0-7,32-39", "0-7,32-39", "", ""]
    assert links(found) == {(0, 1): 12}
    assert ("GPU2", "GPU3") not in found.paths and found.paths["GPU1", "GPU3"] == "SYS"
    assert [port.hca for port in found.ports] == ["NIC0", "NIC1"]
    assert "columns without rows (GPU2 to NIC1)" in whys(found) and "not named by the NIC Legend" in whys(found)


def test_a_row_that_is_cut_keeps_its_cells_but_not_a_number_that_may_go_on() -> None:
    whole = matrix(8, "NV12").splitlines()
    cut = read("\n".join(whole[:3]) + "\nGPU2\tNV12\tNV12\t X \tNV12\tNV1")
    assert not cut.complete
    assert ("GPU2", "GPU3") in cut.paths and ("GPU2", "GPU4") not in cut.paths
    assert {pair.links for pair in cut.nvlinks} == {12}


def test_a_cpu_list_that_is_cut_is_set_aside() -> None:
    head = "GPU0 GPU1 GPU2 CPU Affinity\nGPU0 X PIX PIX 0-23,48-71\n"
    found = read(head + "GPU1 PIX X PIX 0-23,4")
    assert [gpu.cpus for gpu in found.gpus] == ["0-23,48-71", "", ""]
    assert "may go on" in whys(found)
    assert [gpu.cpus for gpu in read(head + "GPU1 PIX X PIX 0-23,48-71").gpus] == ["0-23,48-71", "0-23,48-71", ""]


def test_lines_left_out_by_hand() -> None:
    lines = PAIRS.splitlines()
    found = read("\n".join([*lines[:4], "...", *lines[5:]]))
    assert not found.complete and "lines were left out" in whys(found)
    assert links(found) == {(0, 1): 12, (2, 3): 12}  # GPU2's row tells GPU3's link


def test_without_a_header_the_rows_own_cells_name_the_columns() -> None:
    found = read(PAIRS.partition("\n")[2])
    assert not found.complete
    assert links(found) == {(0, 1): 12, (2, 3): 12}
    assert [(port.hca, port.near) for port in found.ports] == [("mlx5_3", (0,)), ("rocep65s0f1", (2,))]
    assert [gpu.cpus for gpu in found.gpus][::3] == ["0-7,32-39", "8-15,40-47"]


def test_a_row_that_lost_a_cell_is_set_aside_and_the_others_stand() -> None:
    found = read(PAIRS.replace("GPU2\tSYS\tSYS\t X ", "GPU2\tSYS\t X ", 1))
    assert not found.complete and "GPU2" in whys(found)
    assert links(found) == {(0, 1): 12, (2, 3): 12}
    assert found.paths["GPU1", "GPU2"] == "SYS"
    behind = read(spaces(PAIRS).replace("GPU0     X      NV12    SYS", "GPU0     X      NV12", 1))
    assert not behind.complete and "cells are missing" in whys(behind)
    assert links(behind) == {(0, 1): 12, (2, 3): 12} and behind.paths["GPU0", "GPU2"] == "SYS"


def test_a_cell_that_reads_two_ways() -> None:
    found = read(PAIRS.replace("GPU3\tSYS\tSYS\tNV12", "GPU3\tSYS\tSYS\tNV10", 1))
    assert links(found) == {(0, 1): 12, (2, 3): 10}
    assert "reads NV10, and NV12" in whys(found)


def test_cells_that_are_not_understood() -> None:
    found = read(PAIRS.replace("GPU0\t X \tNV12", "GPU0\t X \tERR!", 1).replace("GPU1\tNV12", "GPU1\tN/A", 1))
    assert not found.complete and "'ERR!'" in whys(found) and "'N/A'" in whys(found)
    assert links(found) == {(2, 3): 12}
    assert [gpu.index for gpu in found.gpus] == [0, 1, 2, 3]


def test_an_unknown_cell_of_two_words_keeps_its_place() -> None:
    found = read(PAIRS.replace("GPU0\t X \tNV12", "GPU0\t X \tUnknown Error", 1))
    assert links(found) == {(0, 1): 12, (2, 3): 12} and "'Unknown Error'" in whys(found)
    assert found.paths["GPU0", "mlx5_3"] == "PXB" and found.gpus[0].cpus == "0-7,32-39"


def test_two_adapters_of_one_name_keep_apart() -> None:
    found = read(PAIRS.replace("rocep65s0f1", "mlx5_3"))
    assert [port.hca for port in found.ports] == ["mlx5_3", "NIC1"]
    assert "has that name as well" in whys(found)


def test_the_last_name_of_a_cut_legend_counts_if_it_looks_like_its_neighbours() -> None:
    upto = PAIRS.index("rocep65s0f1")
    trimmed = PAIRS[:upto].replace("NIC0: mlx5_3", "NIC0: rocep4s0f0")
    assert [port.hca for port in read(trimmed + "rocep65s0f1").ports] == ["rocep4s0f0", "rocep65s0f1"]
    assert [port.hca for port in read(trimmed + "rocep65s0f").ports] == ["rocep4s0f0", "NIC1"]
    assert [port.hca for port in read(trimmed + "rocep65s0f\n").ports] == ["rocep4s0f0", "rocep65s0f"]


DISKS = (
    "\x1b[4mNVMe0\tNVMe1\t\x1b[0m\nGPU0\tPHB\tPIX\t\nGPU1\tSYS\tSYS\t\n"
    + LEGEND
    + "\nNVMe Legend:\n\n  NVMe0: nvme0n1\n  NVMe1: nvme1n1\n"
)


def test_disks_are_no_adapters() -> None:
    for below in (PAIRS + DISKS, spaces(PAIRS + DISKS)):
        found = read(below)
        assert found.complete and not found.problems and found.paths == read(PAIRS).paths
    beside = read(
        "        GPU0    GPU1    NVMe0   CPU Affinity    NUMA Affinity\n"
        "GPU0     X      SYS     PIX     0-31            0\n"
        "GPU1    SYS      X      SYS     32-63           1\n"
        "NVMe0   PIX     SYS      X\n"
    )
    assert beside.complete and not beside.ports and beside.paths == {("GPU0", "GPU1"): "SYS"}
    assert [(gpu.numa, gpu.cpus) for gpu in beside.gpus] == [(0, "0-31"), (1, "32-63")]


def test_a_written_table_with_lines_and_a_column_without_a_number() -> None:
    line = "+------+------+------+-----+--------------+---------------+\n"
    rows = (
        "|      | GPU0 | GPU1 | HSN | CPU Affinity | NUMA Affinity |\n",
        "| GPU0 | X    | NV12 | SYS | 48-63        | 3             |\n",
        "| GPU1 | NV12 | X    | PIX | 16-31        | 1             |\n",
        "| HSN  | SYS  | PIX  | X   |              |               |\n",
    )
    found = read(line + line.join(rows) + line)
    assert found.complete and links(found) == {(0, 1): 12}
    assert [(port.hca, port.near) for port in found.ports] == [("HSN", (1,))]
    assert [(gpu.numa, gpu.cpus) for gpu in found.gpus] == [(3, "48-63"), (1, "16-31")]


def test_columns_left_out_by_hand() -> None:
    found = read("        GPU0    GPU1    ...\nGPU0     X      NV4     ...\nGPU1    NV4      X      ...\n")
    assert not found.complete and links(found) == {(0, 1): 4} and "left out" in whys(found)
    adapters = read(
        "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tNV4\t0-7\nGPU1\tNV4\t X \t8-15\nNIC0\tPIX\tSYS\nNIC Legend:\n  NIC0: mlx5_4\n"
    )
    assert not adapters.complete and [(port.hca, port.near) for port in adapters.ports] == [("mlx5_4", (0,))]
    assert adapters.paths == {("GPU0", "GPU1"): "NV4", ("GPU0", "mlx5_4"): "PIX", ("GPU1", "mlx5_4"): "SYS"}


def test_remarks_behind_a_row() -> None:
    found = read("GPU0 GPU1 CPU Affinity\nGPU0 X NV4 0-31\nGPU1 NV4 X 32-63 ← the other socket\n")
    assert [gpu.cpus for gpu in found.gpus] == ["0-31", "32-63"] and found.complete


def test_prose_is_no_header() -> None:
    head, _, rest = PAIRS.partition("\n")
    assert read(head + "\nHere GPU0 and GPU1 have a bridge\nGPU0 GPU1 and so on\n" + rest).paths == read(PAIRS).paths


def test_bonds_and_old_names_of_adapters() -> None:
    text = "\tGPU0\tmlx5_bond_0\thfi1_0\tmlx4_0\nGPU0\t X \tPIX\tSOC\tQPI\n"
    assert [port.hca for port in read(text).ports] == ["mlx5_bond_0", "hfi1_0", "mlx4_0"]


def test_the_pcie_view_tells_nothing_of_nvlinks() -> None:
    found = read(matrix(2, "NODE") + LEGEND.replace("  NV#  = Connection traversing a bonded set of # NVLinks\n", ""))
    assert not found.nvlinks and "topo -mp" in whys(found)
    assert "topo -mp" not in whys(read(matrix(2, "NODE") + LEGEND))


def test_the_same_matrix_twice_and_another_one() -> None:
    assert read(PAIRS + "\n" + PAIRS).problems == ()
    other = read(PAIRS + matrix(2, "PIX"))
    assert other.paths == read(PAIRS).paths and "another matrix" in whys(other)


def test_the_view_with_nvlinks_stands_before_the_pcie_view() -> None:
    assert links(read(PAIRS.replace("NV12", "NODE") + PAIRS)) == {(0, 1): 12, (2, 3): 12}


def test_two_tabs_behind_short_labels() -> None:
    found = read(PAIRS.replace("\t X \tNV12\tSYS\tSYS", "\t\t X \tNV12\tSYS\tSYS").replace("GPU1\t", "GPU1\t\t"))
    assert found.paths == read(PAIRS).paths and found.gpus == read(PAIRS).gpus and found.complete


def test_half_a_matrix() -> None:
    found = read("\tGPU0\tGPU1\tGPU2\tCPU Affinity\nGPU0\t X \tNV4\tSYS\t0-7\nGPU1\t\t X \tPIX\t0-7\nGPU2\t\t\t X \t8-15\n")
    assert found.complete and not found.problems and len(found.paths) == 3


def test_one_gpu() -> None:
    for text in (
        "\tGPU0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\nGPU0\t X \t0-19\t0\t\tN/A\n",
        "      GPU0CPUAffinity\nGPU0    X 0-19\n",
    ):
        found = read(text)
        assert found.complete and [gpu.cpus for gpu in found.gpus] == ["0-19"] and not found.paths


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "nothing but blanks"),
        ("\x00\n \t\n", "nothing but blanks"),
        ("\tGPU0\tGPU1\nGPU0\tX\tGNS\nGPU1\tGNS\tX\n", "topo -p2p"),
        ("\tGPU0\nGPU0\tX\nLegend:\n  OK   = Status Ok\n  CNS  = Chipset not supported\n", "topo -p2p"),
        ("\tGPU0\tGPU1\nGPU0\tX\tMX\nGPU1\tMX\tX\n", "found 'MX'"),
        ("No devices were found\n", "No devices were found"),
        ("Failed to run topology matrix\n", "Failed to run topology matrix"),
        ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.", "NVIDIA-SMI has failed"),
        ("bash: nvidia-smi: command not found\n", "command not found"),
        ("GPU 0: Card (UUID: GPU-1)\n", "nvidia-smi -L"),
        ("GPU 0: Card (UUID: GPU-1)\n\t Link 0: 25 GB/s\n", "nvlink --status"),
        ("==============NVSMI LOG==============\nAttached GPUs : 1\n", "kind nvidia-smi-q"),
        ("CA 'mlx5_0'\n\tCA type: MT4129\n", "kind ibstat"),
        ("LINK TYPE TABLE:\n", "amd-smi"),
        ("just some words\n", "found none of it"),
        ("\tGPU0\tGPU1\tCPU Affinity\n", "found none of it"),
        ("GPU0 NV4\nGPU1 NV4\n", "expected"),
    ],
)
def test_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(ReaderError, match=re.escape(reason)) as refused:
        read(text)
    assert refused.value.problem.file == "dump.txt"


# A second reading of the real outputs: nothing but regular expressions over the rows, and the header's labels in their order.
_ROW = re.compile(r"^[ ]*((?:GPU|NIC|mlx\d_)\d+)[ \t]+((?:X|NV\d|PIX|PXB|PHB|NODE|SYS|SOC).*)$", re.MULTILINE)
_CELL = re.compile(r"\bX\b|NV\d+|PIX|PXB|PHB|NODE|SYS|SOC")


def naive(text: str) -> tuple[list[str], dict[str, tuple[list[str], str]]]:
    """(labels of the header, cells and the rest by row)."""
    plain = re.sub(r"\x1b\[[0-9]*m", "", text).replace("\r", "")
    header = next(line for line in plain.splitlines() if "GPU0" in line and not _ROW.match(line))
    labels = re.findall(r"GPU\d+|NIC\d+|mlx\d_\d+", header.replace("GPU NUMA", ""))
    rows = {}
    for label, rest in _ROW.findall(plain):
        cells = list(_CELL.finditer(rest))
        rows[label] = ([cell[0] for cell in cells], rest[cells[-1].end() :])
    return labels, rows


def affinity(rest: str) -> tuple[str, int]:
    fields = rest.split("\t")[1:] if "\t" in rest else rest.split()
    cpus, numa = [*(field.strip() for field in fields), "", ""][:2]
    first = re.match(r"\d+", numa)
    return ("" if cpus == "N/A" else cpus), int(first[0]) if first else -1


@pytest.mark.parametrize("path", shared_data.files("topo_m"), ids=lambda path: path.stem)
def test_real_outputs_say_the_same_to_a_naive_reading(path: Path) -> None:
    text = decode(path.read_bytes(), Problems(path.name))
    found = smi_topo.read(text, path.name)
    labels, rows = naive(text)
    legend = dict(re.findall(r"(NIC\d+): (\w+)", text))
    named = {label: label if label.startswith("GPU") else legend.get(label, label) for label in labels}
    gpus = [label for label in labels if label.startswith("GPU")]

    assert [f"GPU{gpu.index}" for gpu in found.gpus] == gpus
    assert [port.hca for port in found.ports] == [named[label] for label in labels if label not in gpus]
    paths = {}
    for label, (cells, _) in rows.items():
        for other, cell in zip(labels, cells, strict=False):
            if label in gpus and other != label:
                a, b = sorted((named[label], named[other]), key=lambda name: (not name.startswith("GPU"), len(name), name))
                paths[a, b] = cell
    assert dict(found.paths) == paths
    assert links(found) == {
        (int(a[3:]), int(b[3:])): int(cell[2:]) for (a, b), cell in paths.items() if cell.startswith("NV")
    }
    for port in found.ports:
        cells = {gpu: paths.get((gpu, port.hca)) for gpu in gpus}
        near = next((k for k in (["PIX", "PXB"], ["PHB"], ["NODE"]) if any(cell in k for cell in cells.values())), [])
        assert port.near == tuple(int(gpu[3:]) for gpu, cell in cells.items() if cell in near)
    last = text.rstrip().splitlines()[-1]
    for gpu in found.gpus:
        if f"GPU{gpu.index}" not in rows:
            assert (gpu.cpus, gpu.numa) == ("", -1)
        elif last.startswith(f"GPU{gpu.index} ") and "NUMA" not in text and len(rows) < len(labels):
            assert gpu.cpus == ""  # the text ends within the list
        else:
            assert (gpu.cpus, gpu.numa) == affinity(rows[f"GPU{gpu.index}"][1])
    whole = len(rows) == len(labels) and all(len(cells) == len(labels) for cells, _ in rows.values())
    assert found.complete == (whole and not any(name.startswith("NIC") for name in named.values()))


def test_every_real_output_is_walked() -> None:
    assert len(shared_data.files("topo_m")) == sum(name.startswith("topo_m/") for name in shared_data.index())


HEAD = "\tGPU0\tGPU1\tGPU2\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tSYS\tNODE\t0-7\t0\nGPU1\tSYS\t X \tNV12\t8-47\t1\n"


def test_a_cell_that_the_text_ends_in_does_not_lower_the_pairs_links() -> None:
    found = read(HEAD + "GPU2\tNODE\tNV1")
    assert [(link.a, link.b, link.links) for link in found.nvlinks] == [(1, 2, 12)]
    assert not found.complete


def test_cpus_that_the_text_ends_in_are_set_aside_where_other_rows_go_on() -> None:
    found = read(HEAD + "GPU2\tNODE\tNV12\t X \t8-4")
    assert [gpu.cpus for gpu in found.gpus] == ["0-7", "8-47", ""]
