"""`nvidia-smi topo -m` (and -mp): how the GPUs and adapters of a node reach one another, and which CPUs and NUMA node a GPU is near.

            GPU0    GPU1    NIC0    CPU Affinity    NUMA Affinity   GPU NUMA ID
    GPU0     X      NV12    PXB     0-31            0               N/A
    GPU1    NV12     X      SYS     32-63           1               N/A
    NIC0    PXB     SYS      X

    NIC Legend:

      NIC0: mlx5_0

Cells, by nvidia-smi's own legend: X itself; NV# a bonded set of # NVLinks; PIX at most one PCIe bridge (PSB one on the board); PXB several;
PHB a PCIe host bridge; NODE several within a NUMA node; SYS (older: SOC, QPI) the link between NUMA nodes. `rocm-smi --showtopo` has the
same idea in another shape: smi_rocm.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from fmproto.dumptext import Problems
from fmsched.topology.readers import smi_rocm
from fmsched.topology.readers.found import GpuFound, NodeFound, NvlinkFound, PortFound
from fmsched.topology.readers.smi_matrix import CELL, CPU, GPU, GPU_NUMA, OTHER_DEVICE, SELF, Matrix, Row, find
from fmsched.topology.readers.smi_text import Lines, elided, refusal, text_lines

KIND = "nvidia-smi-topo"
WANTED = "the matrix of `nvidia-smi topo -m`: a header `GPU0 GPU1 ...` and rows such as `GPU0  X  NV4`"

# The most NVLinks that one GPU has, up to Blackwell (NVML_NVLINK_MAX_LINKS). A GPU whose cells add up to more cannot have a link of
# its own for each of them: they all pass an NVSwitch. Four A100 on an HGX board without switches say NV4: 3 x 4 = 12, a mesh.
LINKS_OF_A_GPU_MAX = 18

# From near to far.
_RANK = {"INT": 0, "PSB": 1, "PIX": 1, "PXB": 2, "PHB": 3, "NODE": 4, "SYS": 5, "SOC": 5, "QPI": 5}
# An adapter is near the GPUs behind the same PCIe switches; where there are none, behind the same host bridge; else on its NUMA node.
_NEAR = (frozenset({"INT", "PSB", "PIX", "PXB"}), frozenset({"PHB"}), frozenset({"NODE"}))

_NUMBERED = re.compile(r"NIC\d{1,4}", re.ASCII)
_LEGEND = re.compile(r"(NIC\d{1,4})\s{0,8}[:=]\s{0,8}([A-Za-z][\w.:-]{0,63})", re.ASCII)
_WHOLE_NAME = re.compile(r"mlx\d_\w{0,16}\d|(?!mlx)\w{1,62}\d", re.ASCII)
_PCIE_LEGEND = re.compile(r"PIX\s{1,8}=")
_NVLINK_LEGEND = re.compile(r"NV#?\s{1,8}=")
_PEER = re.compile(r"(?:CNS|GNS|TNS|NS|DR)\s{0,8}=\s")

_PEER_CELLS = frozenset({"OK", "CNS", "GNS", "TNS", "NS", "DR", "U"})


@dataclass
class _Cells:
    """The cell between two devices by (label, label), both ways in one: a matrix is symmetric, and a missing row is in the columns."""

    problems: Problems
    of: dict[tuple[str, str], str] = field(default_factory=dict)
    cut: bool = False

    def add(self, row: Row, other: str, cell: str) -> None:
        key = (row.label, other) if row.label <= other else (other, row.label)
        seen = self.of.setdefault(key, cell)
        if seen != cell:
            weaker = max(seen, cell, key=_distance)
            self.of[key] = weaker
            why = f"{row.label} to {other} reads {cell}, and {seen} in {other}'s row; the farther, {weaker}, is taken"
            self.problems.add(row.line, f"{row.label} {row.text}", why)

    def get(self, a: str, b: str) -> str:
        return self.of.get((a, b) if a <= b else (b, a), "")


def read(text: str, file: str) -> NodeFound:
    """`gpus` with index, `numa` (the first number where the file has a range; -1: none) and `cpus`; `nvlinks` for every pair with
    NV#; `ports`, one for each adapter, by its legend's name, with the GPUs that are near; `paths[("GPU0", "GPU1")]` and
    `paths[("GPU0", "mlx5_0")]` are the cells as printed. `complete` is False where a device of the header has no row, a row is cut, or NICs
    have no legend.
    Raises ReaderError where there is no matrix: another kind of file, the tool's own error, or `topo -p2p`."""
    problems = Problems(file)
    lines = text_lines(text, problems)
    matrices = find(lines, problems)
    if not any(_cells_said(matrix) for matrix in matrices):
        if smi_rocm.is_rocm(lines):
            return smi_rocm.read_lines(lines, file, problems, KIND)
        if not matrices:
            raise problems.refuse(refusal(lines, KIND, WANTED))
        foreign = _foreign_cell(matrices)
        if foreign in _PEER_CELLS or any(_PEER.match(line) for _, line in lines):
            raise problems.refuse(
                f"this is `nvidia-smi topo -p2p`, which says what is allowed, not how GPUs are joined; expected {WANTED}"
            )
        if foreign:
            raise problems.refuse(
                f"a matrix of which no cell is X, NV#, PIX, PXB, PHB, NODE or SYS (found {foreign!r}); expected {WANTED}"
            )
    said = [m for m in matrices if _cells_said(m)] or matrices
    matrix = next((m for m in said if _has_nvlinks(m)), said[0])  # `topo -mp` beside it hides them
    for other in matrices:
        if other is not matrix and not _same(matrix, other):
            problems.add(
                other.line, other.header, f"another matrix; that of line {matrix.line} stands, since a file is of one node"
            )
    return _node(matrix, lines, file, problems, open_end=not text.endswith(("\n", "\r")))


def _cells_said(matrix: Matrix) -> bool:
    """Whether it tells how devices are joined; a single GPU without adapters has nothing but X, and then its affinity."""
    known = any(cell and cell != SELF and CELL.fullmatch(cell) for row in matrix.rows.values() for cell in row.cells)
    return known or (len(matrix.columns) == 1 and bool(matrix.titles))


def _has_nvlinks(matrix: Matrix) -> bool:
    return any(cell and cell.startswith("NV") for row in matrix.rows.values() for cell in row.cells)


def _foreign_cell(matrices: list[Matrix]) -> str:
    cells = (cell for matrix in matrices for row in matrix.rows.values() for cell in row.cells)
    return next((cell for cell in cells if cell and not CELL.fullmatch(cell)), "")


def _same(a: Matrix, b: Matrix) -> bool:
    return a.columns == b.columns and {k: r.cells for k, r in a.rows.items()} == {k: r.cells for k, r in b.rows.items()}


def _node(matrix: Matrix, lines: Lines, file: str, problems: Problems, open_end: bool) -> NodeFound:
    cells = _cells(matrix, problems)
    labels = list(dict.fromkeys([*matrix.columns, *matrix.rows]))
    gpus = sorted((label for label in labels if GPU.fullmatch(label)), key=_index)
    adapters = [label for label in labels if label and not GPU.fullmatch(label) and not OTHER_DEVICE.fullmatch(label)]
    legend = _legend(lines, open_end)
    names, unnamed = _names(adapters, legend, problems)
    nvlinks = _nvlinks(gpus, cells)
    if not nvlinks and len(gpus) > 1 and _pcie_alone(lines):
        problems.add(
            matrix.line,
            matrix.header,
            "the legend has no NV#: this is `topo -mp`, PCIe alone; it does not tell whether there are NVLinks",
        )
    paths = {(a, b): cell for i, a in enumerate(gpus) for b in gpus[i + 1 :] if (cell := cells.get(a, b))}
    paths |= {(gpu, names[nic]): cell for gpu in gpus for nic in adapters if (cell := cells.get(gpu, nic))}
    return NodeFound(
        KIND,
        file,
        gpus=tuple(_gpu(label, matrix.rows.get(label), matrix, problems) for label in gpus),
        nvlinks=nvlinks,
        ports=tuple(PortFound(names[nic], near=_near(nic, gpus, cells)) for nic in adapters),
        paths=paths,
        complete=not (_gaps(matrix, lines, labels, problems) or cells.cut or unnamed),
        problems=problems.found(),
    )


def _pcie_alone(lines: Lines) -> bool:
    return any(_PCIE_LEGEND.match(line) for _, line in lines) and not any(_NVLINK_LEGEND.match(line) for _, line in lines)


def _cells(matrix: Matrix, problems: Problems) -> _Cells:
    cells = _Cells(problems)
    repeated = {label for label in matrix.columns if label and matrix.columns.count(label) > 1}
    for label in sorted(repeated):
        problems.add(matrix.line, matrix.header, f"{label} heads more than one column; the first stands")
    holes: list[tuple[Row, str, str | None]] = []
    for row in matrix.rows.values():
        done = {row.label}
        for place, (other, cell) in enumerate(zip(matrix.columns, row.cells, strict=False)):
            if not other or other in done:
                continue
            done.add(other)
            more = len(row.cells) < len(matrix.columns) or (matrix.titles and GPU.fullmatch(row.label))
            at_the_cut = row.last_line and row.last_is == "cell" and place == len(row.cells) - 1 and more
            if cell is None or not CELL.fullmatch(cell) or cell == SELF:
                holes.append((row, other, cell))
            elif not (at_the_cut and cell.startswith("NV")):  # "NV1" may be the beginning of NV18
                cells.add(row, other, cell)
    for row, other, cell in holes:
        known = cells.get(row.label, other)  # by the other's row
        cells.cut |= not known
        if cell is not None or not known:
            shown = "an empty cell" if cell is None else f"the cell {cell!r}"
            why = f"{shown} to {other} is none of X, NV#, PIX, PXB, PHB, NODE, SYS; it is set aside"
            problems.add(row.line, f"{row.label} {row.text}", why)
    return cells


def _gaps(matrix: Matrix, lines: Lines, labels: list[str], problems: Problems) -> bool:
    """Whether the matrix says of more than it shows; says so."""
    gaps = False
    if not matrix.header_found or "" in matrix.columns:
        problems.add(
            matrix.line,
            matrix.header or "no header",
            "the header that names the columns is cut; they are known by the rows' own cells",
        )
        gaps = True
    missing = [label for label in labels if label and label not in matrix.rows]
    if missing:
        named = f"{missing[0]} to {missing[-1]}" if len(missing) > 1 else missing[0]
        problems.add(matrix.line, matrix.header, f"columns without rows ({named}): the matrix is cut")
        gaps = True
    if matrix.elided or any(label not in matrix.columns for label in matrix.rows):
        problems.add(matrix.line, matrix.header, "columns were left out of the header")
        gaps = True
    for row in matrix.rows.values():
        if len(row.cells) < len(matrix.columns):
            if row.cells:
                why = f"{len(row.cells)} cells for {len(matrix.columns)} columns: the row is cut"
                problems.add(row.line, f"{row.label} {row.text}", why)
            gaps = True
    for number, line in lines:
        if number > matrix.line and elided(line):
            problems.add(number, line, "lines were left out here")
            gaps = True
            break
    return gaps


def _gpu(label: str, row: Row | None, matrix: Matrix, problems: Problems) -> GpuFound:
    if row is None:
        return GpuFound(_index(label))
    cpus = row.cpus
    ends_in_it = (
        row.last_line
        and row.last_is == CPU
        and (
            len(matrix.rows) < len(matrix.columns)
            or not matrix.header_found
            or any(other.numa for other in matrix.rows.values())
        )
    )
    if cpus and ends_in_it and not any(other.cpus == cpus for other in matrix.rows.values() if other is not row):
        problems.add(row.line, cpus, f"the text ends within {label}'s CPU affinity, which may go on; it is set aside")
        cpus = ""
    numa = re.match(r"[0-9]{1,4}", row.numa)
    if row.numa and not numa:
        problems.add(row.line, row.numa, f"the NUMA affinity of {label} is neither a number nor a range; it is set aside")
    facts = {GPU_NUMA: row.gpu_numa} if row.gpu_numa else {}
    return GpuFound(_index(label), numa=int(numa[0]) if numa else -1, cpus=cpus, facts=facts)


def _legend(lines: Lines, open_end: bool) -> dict[str, tuple[int, str]]:
    """(line, name) of each numbered adapter. Where the text ends within the legend and without a line's end (`open_end`), the last name
    may be cut ("mlx" of mlx5_0): it counts only if it looks like its neighbours."""
    legend: dict[str, tuple[int, str]] = {}
    for number, line in lines:
        if line.startswith("NIC"):
            for match in _LEGEND.finditer(line[:4096]):
                legend.setdefault(match[1], (number, match[2]))
    if open_end and legend and _LEGEND.match(lines[-1][1]):
        last, (_, name) = list(legend.items())[-1]
        shapes = {re.sub(r"\d+", "#", other) for label, (_, other) in legend.items() if label != last}
        looks_whole = re.sub(r"\d+", "#", name) in shapes if shapes else bool(_WHOLE_NAME.fullmatch(name))
        if not looks_whole:
            del legend[last]
    return legend


def _names(adapters: list[str], legend: Mapping[str, tuple[int, str]], problems: Problems) -> tuple[dict[str, str], bool]:
    """(name by column label, whether a numbered column has no name): `NIC0` is only a number, and the legend below names it."""
    names: dict[str, str] = {}
    taken: dict[str, str] = {}
    for label in adapters:
        number, name = legend.get(label, (0, label)) if _NUMBERED.fullmatch(label) else (0, label)
        if name in taken:
            problems.add(number, f"{label}: {name}", f"{taken[name]} has that name as well; {label} keeps its number")
            name = label
        taken[name] = label
        names[label] = name
    unnamed = [label for label in adapters if _NUMBERED.fullmatch(label) and label not in legend]
    if unnamed:
        named = f"{unnamed[0]} to {unnamed[-1]}" if len(unnamed) > 1 else unnamed[0]
        problems.add(
            0, named, "not named by the NIC Legend, which is cut or missing; the number stands for the adapter's name"
        )
    return names, bool(unnamed)


def _nvlinks(gpus: list[str], cells: _Cells) -> tuple[NvlinkFound, ...]:
    links: dict[tuple[str, str], int] = {}
    total: dict[str, int] = {}
    for i, a in enumerate(gpus):
        for b in gpus[i + 1 :]:
            cell = cells.get(a, b)
            if cell.startswith("NV"):
                links[a, b] = int(cell[2:])
                total[a] = total.get(a, 0) + links[a, b]
                total[b] = total.get(b, 0) + links[a, b]
    alike = len(set(links.values())) == 1 and all(
        cells.get(a, b) in {"", f"NV{n}"} for (a, b), n in _pairs(gpus, links).items()
    )
    to_all = len(gpus) > 2 and alike and max(total.values()) > LINKS_OF_A_GPU_MAX
    return tuple(NvlinkFound(_index(a), _index(b), links=n, to_all=to_all) for (a, b), n in links.items())


def _pairs(gpus: list[str], links: Mapping[tuple[str, str], int]) -> dict[tuple[str, str], int]:
    """Every pair of GPUs, with the one number of links that there is."""
    number = next(iter(links.values()), 0)
    return {(a, b): number for i, a in enumerate(gpus) for b in gpus[i + 1 :]}


def _near(nic: str, gpus: list[str], cells: _Cells) -> tuple[int, ...]:
    for classes in _NEAR:
        near = tuple(_index(gpu) for gpu in gpus if cells.get(gpu, nic) in classes)
        if near:
            return near
    return ()


def _distance(cell: str) -> tuple[int, int]:
    """Larger is farther; of two NVLink cells the one with fewer links."""
    return (-1, -int(cell[2:])) if cell.startswith("NV") else (_RANK.get(cell, 5), 0)


def _index(label: str) -> int:
    return int(label[3:])
