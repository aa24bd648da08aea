"""The text of `nvidia-smi -q`: a header, then "GPU 00000000:1B:00.0" and its fields for each GPU, "name : value" lines under titles that
their indentation nests. The width of the column, the depth and the titles differ by driver; excerpts (`-d`, `-i`) have the same form.
"""

from __future__ import annotations

import re

from fmproto.dumptext import Problems, lines_of, shown
from fmsched.topology.readers.smi_query_fields import (
    DRIVER_KEYS,
    GPUS_MAX,
    Dump,
    Section,
    count,
    driver_of,
    key_of,
)

DEPTH_MAX = 16  # real: 5
NAME_MAX = 256  # characters, indentation included
VALUE_MAX = 4_096

# With four, eight or (before driver 285) single digits; what follows it says that it is lost.
_GPU = re.compile(
    r"(?P<indent>\s{0,16})GPU (?P<pci>[0-9A-Fa-f]{1,8}:[0-9A-Fa-f]{1,2}:[0-9A-Fa-f]{1,2}(?:\.[0-9A-Fa-f])?)(?P<rest>$|\s.*|:\s.*)"
)
_MARK = re.compile(
    r"(\s{0,8}(?:(?:[>#%|*;]|//)\s?){1,8}|[A-Za-z0-9][\w.-]{0,63}: )(?:={2,40} ?NVSMI LOG|GPU [0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:)"
)
# A UUID has 36 characters behind "GPU-"; in the file's last line, without a line's end, fewer are the beginning of one.
_CUT_UUID = re.compile(r"(?:GPU|MIG) UUID\s{1,60}: [GM][\w/-]{0,38}$")
_MARKS_MAX = 64  # different ones of one file: a quotation has one
_BANNER = "NVSMI LOG"
# Titles that only this tool prints: a piece of its output without header and GPU line is known by them.
_TITLES = {
    "fabric", "fb_memory_usage", "ecc_mode", "ecc_errors", "retired_pages", "remapped_rows", "clocks_event_reasons",
    "clocks_throttle_reasons", "gpu_power_readings", "power_readings", "bar1_memory_usage", "mig_mode", "gpu_reset_status",
}  # fmt: skip
_PROMPT = re.compile(r"^\s{0,16}\S{0,100}[$#>](?:\s|$)")


def sections_of(text: str, problems: Problems) -> Dump:
    """What the file says of each GPU. Sections of the same GPU (several -d runs in one file) are one: a field's first value stands."""
    reader = _Reader(problems)
    lines = list(lines_of(text, problems))
    marks = _marks(lines)
    hosts = [mark for mark in marks if mark.endswith(":")]
    if len(hosts) > 1:
        named = shown(", ".join(host[:-1].strip() for host in hosts))
        raise problems.refuse(f"the output of {len(hosts)} hosts ({named}); allowed: one host a file")
    if lines and lines[-1][1] and (found := _CUT_UUID.search(lines[-1][1][:400])):
        problems.add(lines[-1][0], found[0].strip(), "the file ends within the UUID; it is set aside")
        lines.pop()
    for number, line in lines:
        reader.line(number, _unmarked(line, marks))
    return reader.dump()


def _marks(lines: list[tuple[int, str]]) -> list[str]:
    """What was set before each line: the mark of a quotation or comment, or the host's name of pdsh. The banner and the lines that open
    a GPU show it, since nvidia-smi itself begins them in the first column."""
    marks = dict.fromkeys(found[1].rstrip() for _, line in lines if (found := _MARK.match(line[:400])))
    return sorted(list(marks)[:_MARKS_MAX], key=len, reverse=True)


def _unmarked(line: str, marks: list[str]) -> str:
    """Without the mark, one blank behind it, and the backslash by which Markdown keeps a line's end."""
    line = line.removesuffix(" \\").rstrip()
    for mark in marks:
        if line.startswith(mark):
            return line[len(mark) :].removeprefix(" ")
    return line


class _Reader:
    def __init__(self, problems: Problems) -> None:
        self.problems = problems
        self.sections: dict[str, Section] = {}
        self.section: Section | None = None
        self.base = 0  # indentation of the GPU lines
        self.titles: list[tuple[int, str]] = []  # (indentation, key) of the titles that are open
        self.mig: Section | None = None
        self.mig_indent = 0
        self.driver = ""
        self.attached: int | None = None
        self.attached_line = 0
        self.log = False
        self.first = ""
        self.title = ""  # the last line without a value, while no GPU line has come
        self.last_line = 0

    def line(self, number: int, line: str) -> None:
        line = line.expandtabs(8)
        plain = line.strip()
        if not plain:
            return
        self.first = self.first or shown(plain)
        self.last_line = number
        if _BANNER in plain and plain.startswith("="):
            self.log, self.section = True, None
            return
        found = _GPU.fullmatch(line[:400])
        if found:
            self._gpu(number, found)
            return
        name, value = _split(line)
        if self.section is None:
            self._header(number, line, name, value)
        elif len(line) - len(line.lstrip()) < self.base or (_PROMPT.match(line[:200]) and value is None):
            self.section = None  # the output ended: another command's text follows
        else:
            self._field(line, name, value)

    def _gpu(self, number: int, found: re.Match[str]) -> None:
        pci, rest = found["pci"], found["rest"].strip(" :\t")
        if pci.lower() in self.sections:
            self.problems.add(number, f"GPU {pci}", "found a second time; only what the first did not say is taken")
        elif len(self.sections) >= GPUS_MAX:
            self.problems.add(number, f"GPU {pci}", f"found more than {GPUS_MAX} GPUs; this one is not read")
            self.section = None
            return
        self.section = self.sections.setdefault(pci.lower(), Section(pci, number))
        self.section.again()
        self.base = len(found["indent"])
        self.titles, self.mig = [], None
        if rest:
            self.section.add(("gpu",), rest)

    def _header(self, number: int, line: str, name: str, value: str | None) -> None:
        key = key_of(name)
        if value is None:
            self.title = key
            return
        if key in DRIVER_KEYS:
            self.driver = self.driver or driver_of(value)
        elif key == "attached_gpus" and self.attached is None:
            self.attached, self.attached_line = count(value), number
        elif self.title in _TITLES and not self.sections and not self.log:
            self.problems.add(
                number, self.title, "found a section with no GPU line above it; it is taken for one GPU, number 0"
            )
            self.section = self.sections.setdefault("", Section("", number))
            indent = len(line) - len(line.lstrip())
            self.titles = [(max(indent - 1, 0), self.title)]
            self._field(line, name, value)

    def _field(self, line: str, name: str, value: str | None) -> None:
        assert self.section is not None
        indent = len(line) - len(line.lstrip())
        while self.titles and self.titles[-1][0] >= indent and not self._flat(indent, value):
            self.titles.pop()
        if self.mig is not None and indent <= self.mig_indent:
            self.mig = None
        key = key_of(name)
        if value is None:
            if key == "mig_device":
                self.mig, self.mig_indent = self.section.instance(self.last_line), indent
                self.titles = []
                return
            if self.titles and self.titles[-1][0] == indent:
                self.titles.pop()
            if len(self.titles) < DEPTH_MAX:
                self.titles.append((indent, key))
            return
        path = (*(title for _, title in self.titles), key)
        (self.mig or self.section).add(path, value)

    def _flat(self, indent: int, value: str | None) -> bool:
        """Whether the text lost its indentation: a field then belongs to the last title."""
        return indent <= self.base and value is not None and self.titles[-1][0] <= self.base

    def dump(self) -> Dump:
        sections = tuple(self.sections.values()) if any(section.fields for section in self.sections.values()) else ()
        for section in sections:
            if not section.fields:
                self.problems.add(section.line, f"GPU {section.pci}", "found no field of it")
        # Only whole output shows where it is cut: it names the product first and the processes last.
        cut = bool(sections) and ("product_name",) in sections[-1].by_end and not sections[-1].processes
        if cut:
            self.problems.add(
                self.last_line, f"GPU {sections[-1].pci}", "the file ends inside it: what comes before is read"
            )
        first = self.first or "an empty file"
        return Dump(sections, self.driver, self.attached, self.attached_line, cut, "" not in self.sections, first)


def _split(line: str) -> tuple[str, str | None]:
    """Name and value of a line; no value: a title."""
    name, mark, value = line.partition(" : ")
    if mark:
        return name[:NAME_MAX], value.strip()[:VALUE_MAX]
    if line.rstrip().endswith(" :"):
        return line.rstrip()[:-2][:NAME_MAX], ""
    return line[:NAME_MAX], None
