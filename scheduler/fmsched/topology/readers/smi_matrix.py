"""The matrix that `nvidia-smi topo -m` prints, as text that people paste: which device stands in which column, which cell lies between two
devices, and the affinity columns behind them. Nothing here knows what a cell means for a node; smi_topo.py does.

Rows are read by tokens, not by columns: tabs become blanks, headers shift or lose their first tab, and where a terminal's line breaks were
taken out, cells stick together ("NIC11NIC12", "NODEPIX"). A row's own cell is "X", so a row tells where it stands by itself.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from fmproto.dumptext import Problems
from fmsched.topology.readers.smi_text import Lines

DEVICES_MAX = 1_024  # columns of one matrix
MATRICES_MAX = 64  # of one file
_BEHIND_MAX = 16  # fields behind the cells: nvidia-smi prints four at most
JOINED_MAX = 32  # lines into which a terminal broke one row
SELF = "X"

# nvidia-smi's legend, old names included: SOC (before 367) and QPI are SYS, PSB is an on-board PIX.
_KIND = r"X|NV\d{1,2}|PIX|PXB|PSB|PHB|NODE|SYS|SOC|QPI|INT"
CELL = re.compile(_KIND, re.ASCII)
_CELLS = re.compile(rf"(?:{_KIND})+", re.ASCII)
_CELLS_THEN_CPUS = re.compile(r"((?:X|PIX|PXB|PSB|PHB|NODE|SYS|SOC|QPI)+)(\d[\d,-]*)", re.ASCII)
CPUS = re.compile(r"\d{1,5}(?:-\d{1,5})?(?:,\d{1,5}(?:-\d{1,5})?){0,4095}", re.ASCII)
_NUMBERS = re.compile(r"[\d,-]+", re.ASCII)

GPU = re.compile(r"GPU(0|[1-9]\d{0,3})", re.ASCII)
# Whatever the kernel calls an adapter: mlx5_0, mlx5_bond_0, rocep4s0f1, bnxt_re0, rdmap16s27, hfi1_0; CPU0 is none, but a column.
_DEVICE = re.compile(r"GPU(?:0|[1-9]\d{0,3})|(?!GPU)(?=[^\d]{0,32}\d)[A-Za-z][\w.:-]{0,63}", re.ASCII)
# A column whose name has no number, "HSN" of a written table: capitals, so that no prose is a header.
_UNNUMBERED = re.compile(r"[A-Z][A-Z0-9_-]{1,15}", re.ASCII)
OTHER_DEVICE = re.compile(
    r"CPU\d+|NVMe\d+", re.ASCII | re.IGNORECASE
)  # columns that are neither GPU nor adapter (`topo -m -nvme`)
_ELIDED = re.compile(r"\.{2,}|…")
_MAY_BE_HEADER = re.compile(r"GPU|NIC|Affinity|mlx|NVMe")
_USUAL = re.compile(r"NIC\d{1,4}|mlx[45]_\w{1,32}", re.ASCII)
_GLUE = re.compile(r"(?<=\d)(?=GPU\d|NIC\d|mlx[45]_)")
_TITLES = re.compile(
    r"(GPU\s{0,4}NUMA(?:\s{0,4}ID)?)|(CPU\s{0,4}Aff[a-z]*|CPU(?![\w-]))|(NUMA\s{0,4}Aff[a-z]*|NUMA(?![\w-]))", re.IGNORECASE
)
_REMAINS = frozenset({"GPU", "ID", "CPU", "NUMA", "Affinity"})  # of a title that is cut or broken by a line's end
GPU_NUMA, CPU, NUMA = "GPU NUMA ID", "CPU Affinity", "NUMA Affinity"
_FIELDS = (CPU, NUMA, GPU_NUMA)  # behind the cells, in this order


@dataclass
class Row:
    """One device's line. `cells` in the header's order, None: empty or not understood. `cpus`, `numa`, `gpu_numa` as printed."""

    line: int
    label: str
    text: str
    cells: list[str | None] = field(default_factory=list)
    cpus: str = ""
    numa: str = ""
    gpu_numa: str = ""
    tail: bool = False  # something stands behind the cells: the row does not end within them
    last_is: str = ""  # the title of the last field, or "cell"
    last_line: bool = False  # of the whole text
    joined: int = 0  # lines that were joined to it


@dataclass
class Matrix:
    """`columns` are the header's devices. `rows` by label."""

    line: int
    header: str
    columns: list[str] = field(default_factory=list)
    titles: list[str] = field(default_factory=list)
    rows: dict[str, Row] = field(default_factory=dict)
    raw: list[Row] = field(default_factory=list)
    header_found: bool = True
    elided: bool = False  # the header ends in "...": columns were left out by hand

    @property
    def usable(self) -> bool:
        return any(GPU.fullmatch(row.label) for row in self.raw)


def find(lines: Lines, problems: Problems) -> list[Matrix]:
    """The matrices of a text in their order, those with at least one GPU's row; their rows are split into cells."""
    found: list[Matrix] = []
    current: Matrix | None = None
    for number, original in lines:
        line = _without_table(original)
        if row := _row(number, line, current):
            if current is None:
                current = Matrix(number, "", header_found=False)
                found.append(current)
            if len(current.raw) < 2 * DEVICES_MAX:
                current.raw.append(row)
            continue
        header = _header(line)
        if header is not None:
            columns, titles = header
            if current is not None and _goes_on(current, columns):
                current.header += " " + line
                current.columns += columns
                current.titles += titles
            elif columns and all(OTHER_DEVICE.fullmatch(label) for label in columns):
                current = Matrix(number, line, columns, titles)  # of disks, below the GPUs' own: nothing of it is kept
            elif any(GPU.fullmatch(label) for label in columns) and len(found) < MATRICES_MAX:
                if found and not found[-1].raw:
                    found.pop()
                current = Matrix(number, line, columns, titles, elided=_ELIDED.search(line) is not None)
                found.append(current)
        elif current is not None and current.raw:
            _continue(current, line)
    usable = [matrix for matrix in found if matrix.usable]
    for matrix in usable:
        _split(matrix, lines[-1][0], problems)
    # Rows without a header and without their own cell tell nothing.
    return [matrix for matrix in usable if any(GPU.fullmatch(label) for label in matrix.columns)]


def _goes_on(matrix: Matrix, columns: list[str]) -> bool:
    """Whether a header's line is the rest of the one above, which a terminal broke."""
    if matrix.raw or matrix.titles or len(matrix.columns) + len(columns) > DEVICES_MAX:
        return False
    return not columns or columns[0] not in matrix.columns


def _without_table(line: str) -> str:
    """A row of a Markdown table as one with tabs."""
    return line.strip("|").replace("|", "\t").strip() if line.count("|") > 2 else line


def _row(number: int, line: str, matrix: Matrix | None) -> Row | None:
    if len(line) < len("GPU0 X"):
        return None
    label, _, rest = line.partition("\t") if "\t" in line[:66] else line.partition(" ")
    label, rest = label.strip(), rest.rstrip()
    if " " in label:
        label, _, before = label.partition(" ")
        rest = before + "\t" + rest
    if not rest.strip() or not (_DEVICE.fullmatch(label) or _UNNUMBERED.fullmatch(label)) or CELL.fullmatch(label):
        return None
    known = GPU.fullmatch(label) or _USUAL.fullmatch(label) or (matrix is not None and label in matrix.columns)
    if not known:
        return None
    # One understood cell makes a row; a header has none, and a legend's line has "=" or ":" there.
    words = rest.split()
    if words[0] in {"=", ":", "->"} or not any(
        _CELLS.fullmatch(word) or _CELLS_THEN_CPUS.fullmatch(word) for word in words[:DEVICES_MAX]
    ):
        return None
    return Row(number, label, rest)


def _header(line: str) -> tuple[list[str], list[str]] | None:
    """(devices, titles) of a line that has only these, or None."""
    titles: list[str] = []

    def title(match: re.Match[str]) -> str:
        titles.append(GPU_NUMA if match[1] else CPU if match[2] else NUMA)
        return " "

    if not _MAY_BE_HEADER.search(line):
        return None
    rest = _TITLES.sub(title, line)
    columns: list[str] = []
    for word in rest.split()[: DEVICES_MAX + 1]:
        if word in _REMAINS or _ELIDED.fullmatch(word):
            continue
        for label in _GLUE.split(word):
            known = _DEVICE.fullmatch(label) or (columns and not label.startswith("GPU") and _UNNUMBERED.fullmatch(label))
            if not known or CELL.fullmatch(label) or label.endswith(":"):
                return None
            columns.append(label)
    return (columns[:DEVICES_MAX], titles) if columns or titles else None


def _continue(matrix: Matrix, line: str) -> None:
    """A line that goes on with the row above: a terminal broke it. It has nothing but cells and affinities."""
    row = matrix.raw[-1]
    if row.joined >= JOINED_MAX:
        return
    words = line.split(maxsplit=DEVICES_MAX)
    if not all(_CELLS.fullmatch(w) or CPUS.fullmatch(w) or w == "N/A" for w in words):
        return
    if len(_tokens(row.text, matrix)[0]) < len(matrix.columns) or (matrix.titles and GPU.fullmatch(row.label) is not None):
        row.text += " " + line
        row.joined += 1


def _tokens(text: str, matrix: Matrix) -> tuple[list[str | None], list[tuple[int, str]], bool]:
    """(cells, what stands behind them as (position, text), whether tabs divide them) of a row without its label. A row with more cells
    than the header has columns keeps them: then it is the header that is cut."""
    if "\t" in text:
        cells, fields = _by_tabs(text.split("\t"), len(matrix.columns) or DEVICES_MAX)
        if not any(" " in field for field in fields):
            return cells, [(0, field) for field in fields], True
        return cells, [(0, word) for field in fields for word in field.split()], False
    columns = len(matrix.columns) or DEVICES_MAX
    cells = []
    behind: list[tuple[int, str]] = []
    for match in re.finditer(r"\S+", text):
        word = match[0]
        if behind or not _may_be_cell(word, len(cells) < columns, bool(matrix.columns)):
            behind.append((match.start(), word))
        elif glued := _CELLS_THEN_CPUS.fullmatch(word):
            cells += CELL.findall(glued[1])
            behind.append((match.start() + len(glued[1]), glued[2]))
        else:
            cells += _unglued(word)
    return cells[:DEVICES_MAX], behind[:_BEHIND_MAX], False


def _by_tabs(fields: list[str], columns: int) -> tuple[list[str | None], list[str]]:
    """(cells, affinities) of a row that tabs divide, so that an empty cell keeps its place."""
    cells: list[str | None] = []
    for place, text in enumerate(fields):
        words = text.split()
        if not words and len(cells) < columns:
            cells.append(None)
        elif words and all(_CELLS.fullmatch(word) for word in words):
            cells += [part for word in words for part in _unglued(word)]
        elif words and _may_be_cell(words[0], len(cells) < columns, header=True):
            cells.append(" ".join(words)[:32])  # "ERR!", "Unknown Error"
        else:
            return cells[:DEVICES_MAX], [" ".join(field.split()) for field in fields[place : place + _BEHIND_MAX]]
    return cells[:DEVICES_MAX], []


def _may_be_cell(word: str, column_left: bool, header: bool) -> bool:
    """Whether a word is a cell and no affinity. What is not understood ("ERR!") is one as long as the header has a column for it."""
    if _CELLS.fullmatch(word):
        return True
    return column_left and not _NUMBERS.fullmatch(word) and (header or word != "N/A")


def _unglued(word: str) -> list[str | None]:
    if _CELLS.fullmatch(word):
        return list(CELL.findall(word))
    return [word[:32]]


def _split(matrix: Matrix, last_line: int, problems: Problems) -> None:
    """Fill the rows: cells in the columns' order, affinities by title."""
    for row in matrix.raw:
        row.last_line = row.line == last_line
        if row.label in matrix.rows:
            problems.add(row.line, f"{row.label} {row.text}", "a second row of that device; the first stands")
            continue
        cells, behind, tabs = _tokens(row.text, matrix)
        row.cells = cells
        row.tail = any(text for _, text in behind)
        row.last_is = "cell"
        if GPU.fullmatch(row.label) is not None:
            _affinity(row, matrix, behind, tabs, problems)
        matrix.rows[row.label] = row
        if len(matrix.rows) >= DEVICES_MAX:
            break
    _columns_by_self(matrix)
    for row in list(matrix.rows.values()):
        _place(row, matrix, problems)


def _columns_by_self(matrix: Matrix) -> None:
    """Columns that no header names: each row's own cell is X, and says which column is its device's."""
    width = max(len(row.cells) - _tabs_before(row) for row in matrix.rows.values())
    if width <= len(matrix.columns):
        return
    columns = matrix.columns + [""] * (width - len(matrix.columns))
    for row in matrix.rows.values():
        if row.cells.count(SELF) == 1 and not columns[row.cells.index(SELF)] and row.label not in columns:
            columns[row.cells.index(SELF)] = row.label
    matrix.columns = columns


def _tabs_before(row: Row) -> int:
    """Empty fields before the first cell, which may be there for the label's width only."""
    return next((place for place, cell in enumerate(row.cells) if cell is not None), 0)


def _place(row: Row, matrix: Matrix, problems: Problems) -> None:
    """Check that the row's own cell is where the header has the row's device; set the row aside where it is elsewhere."""
    if row.label not in matrix.columns:
        if SELF not in row.cells and len(row.cells) <= len(matrix.columns):
            return  # its column was left out, and the others' columns still tell
        problems.add(row.line, f"{row.label} {row.text}", "no column of the header is of that device; the row is set aside")
        del matrix.rows[row.label]
        return
    own = matrix.columns.index(row.label)
    # Two tabs behind a short label are no empty cell; in half a matrix they are. The own cell tells.
    shift = row.cells.index(SELF) - own if SELF in row.cells else 0
    if shift > 0 and not any(row.cells[:shift]):
        row.cells = row.cells[shift:]
    cut = row.last_line and not row.tail
    if SELF not in row.cells and len(row.cells) == len(matrix.columns) - 1 and not cut:
        row.cells.insert(own, SELF)  # an empty own cell, lost with the blanks
    if row.tail and len(row.cells) < len(matrix.columns):
        count = f"{len(row.cells)} cells for {len(matrix.columns)} columns"
        why = f"{count}, and affinities behind them: cells are missing, and the row is set aside"
        problems.add(row.line, f"{row.label} {row.text}", why)
        row.cells = []
        return
    elsewhere = [place for place, cell in enumerate(row.cells) if cell == SELF and place != own]
    if elsewhere or (own < len(row.cells) and row.cells[own] not in {SELF, None, "-"}):
        problems.add(
            row.line,
            f"{row.label} {row.text}",
            f"the row's own cell (X) is not in its own column ({own + 1}): cells are missing or too many, and the row is set aside",
        )
        row.cells = []


def _affinity(row: Row, matrix: Matrix, behind: list[tuple[int, str]], tabs: bool, problems: Problems) -> None:
    titles = [title for title in _FIELDS if title in matrix.titles]
    if not matrix.titles and behind and not matrix.header_found:
        titles = list(_FIELDS[: len(behind)])
    if tabs:
        # nvidia-smi prints two tabs before the GPU's own NUMA node, so that it stands below its title.
        fields = [text for _, text in behind]
        named = dict(zip(titles[:2], fields, strict=False))
        if GPU_NUMA in titles:
            named[GPU_NUMA] = next((text for text in reversed(fields[2:]) if text), "")
        values = {title: text for title, text in named.items() if text}
    else:
        values = _by_place(row, titles, _joined(behind), problems)
    for title, value in values.items():
        row.last_is = title
        if value in {"N/A", "-"}:
            continue
        if title == CPU:
            row.cpus = _cpus(row, value, problems)
        elif title == NUMA:
            row.numa = value
        else:
            row.gpu_numa = value


def _cpus(row: Row, value: str, problems: Problems) -> str:
    value = value.replace(" ", "")
    if CPUS.fullmatch(value) is None:
        problems.add(row.line, value, f"the CPU affinity of {row.label} is no list such as 0-31,64-95; it is set aside")
        return ""
    return value


def _joined(behind: list[tuple[int, str]]) -> list[tuple[int, str]]:
    """A list of CPUs that a blank broke after a comma, whole again."""
    whole: list[tuple[int, str]] = []
    for place, text in behind:
        if whole and whole[-1][1] != "-" and whole[-1][1].endswith((",", "-")):
            whole[-1] = (whole[-1][0], whole[-1][1] + text)
        else:
            whole.append((place, text))
    return whole


def _by_place(row: Row, titles: list[str], behind: list[tuple[int, str]], problems: Problems) -> dict[str, str]:
    """Which field is which where blanks divide them, so that an empty one leaves no trace but its width."""
    texts = [text for _, text in behind]
    if len(texts) >= len(titles):
        return dict(zip(titles, texts, strict=False))
    values: dict[str, str] = {}
    rest = [title for title in titles if title in {CPU, NUMA}]
    if GPU_NUMA in titles and len(texts) >= 1 and texts[-1] == "N/A":
        values[GPU_NUMA] = texts.pop()
    if len(texts) == len(rest):
        return dict(zip(rest, texts, strict=True)) | values
    if len(texts) == 1 and len(rest) == 2:
        text = texts[0]
        if "," in text or ("-" in text and not _after_a_gap(row, behind[0][0])):
            values = {CPU: text} | values
        elif _after_a_gap(row, behind[0][0]):
            values = {NUMA: text} | values
        else:
            problems.add(
                row.line,
                f"{row.label} {row.text}",
                "one number where CPU and NUMA affinity belong; it is not known which it is",
            )
    return values


def _after_a_gap(row: Row, start: int) -> bool:
    """Whether an empty field lies between the last cell and `start`: with tab stops of 8, the next field begins at the next stop."""
    before = row.text[:start].rstrip()
    return start - len(before) > 8
