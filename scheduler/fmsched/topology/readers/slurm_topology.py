"""Slurm's topology files: topology.conf (tree and block), topology.yaml, and what `scontrol show topology` prints.

Grammar and meaning: topology.conf(5), topology.yaml(5); of scontrol's lines, src/plugins/topology/{tree,block} of Slurm. A line names a
switch and what is right below it; with an upper switch scontrol also prints all the nodes below it. LinkSpeed has no unit in Slurm, and
Slurm makes no use of it: it counts as a rate only where somebody wrote a unit to it ("100Gb/s").
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from fmproto.dumptext import Problems, clean
from fmsched.topology.readers.found import FabricFound
from fmsched.topology.readers.slurm_fabric import Listing
from fmsched.topology.readers.slurm_looks import YAML, is_blank, looks_like
from fmsched.topology.readers.slurm_names import LIST_CHARS_MAX, NAME_CHARS_MAX, Names
from fmsched.topology.readers.slurm_yaml import read_yaml, sizes_fault

KIND = "slurm-topology"
BLOCK_SIZES_MAX = 16
BLOCK_DIGITS_MAX = 9

_STATEMENT = re.compile(r"[ \t]{0,40}(?:switchname|blockname|blocksizes|aggregatedblock)[ \t]{0,40}=", re.IGNORECASE)
_COMMENTED = re.compile(r"[ \t#]{1,40}(?:switchname|blockname)[ \t]{0,40}=", re.IGNORECASE)
_REAL_NAME = re.compile(r"[ \t]{0,40}#[ \t]{0,40}([^=\s]{1,256})=(\S.{0,255})")
# A value that is missing is not the next key.
_TOKEN = re.compile(r"\s*([A-Za-z_]{1,40})[ \t]{0,40}=[ \t]{0,40}(?:\"([^\"]*)\"|(?![A-Za-z_]{1,40}=)(\S+)|)")
# Rings and tori, in files and from scontrol: they have neither switches nor NVLink domains.
_OTHER_PLUGIN = re.compile(r"[ \t]{0,40}(ring|torus)name[ \t]{0,40}=", re.IGNORECASE)
_PROMPT = re.compile(
    r"\s*(?:\[?[\w.-]{1,64}@[\w.-]{1,64}[: ][^\s\]]{0,80}\]?[$#>%](?: .*)?|[$>%] .{0,120}\b(?:scontrol|cat|exit)\b.*)"
)
_WORD = re.compile(r"\s*(\S+)")
_COMMENT = re.compile(r"(?<!\\)#")
_SPEED = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)\s?([KMGT])(?:b|bit|bits)?(?:ps|/s|/sec)?", re.IGNORECASE)
_GIGA = {"K": 1e-6, "M": 1e-3, "G": 1.0, "T": 1e3}
_STARTS = ("switchname", "blockname", "aggregatedblock", "blocksizes")
_KEYS = {
    "switchname": ("nodes", "switches", "linkspeed", "level"),
    "blockname": ("nodes", "blocksize", "blockindex"),
    "aggregatedblock": ("nodes", "blocksize", "blockindex"),
    "blocksizes": (),
}


def read(text: str, file: str) -> FabricFound:
    """Switches, nodes and cables of a tree; the blocks of topology/block as NVLink domains. Levels count from the leaves (0). Raises
    ReaderError."""
    problems = Problems(file)
    if is_blank(text):
        raise problems.refuse("empty: found no line; allowed: SwitchName= or BlockName= lines, or a topology.yaml")
    lines = list(_lines(text, problems))
    if any(_STATEMENT.match(line) for _, line in lines):
        return _Conf(problems).read(lines)
    what = looks_like(text)
    if what == YAML or (not what and _is_yaml(lines)):
        return read_yaml(text, problems, KIND)
    raise problems.refuse(_why_nothing(lines, what))


def _why_nothing(lines: list[tuple[int, str]], what: str) -> str:
    commented = sum(1 for _, line in lines if _COMMENTED.match(line))
    if commented:
        return f"no line that is not a comment; {commented} SwitchName= or BlockName= lines are commented out"
    for _, line in lines:
        if other := _OTHER_PLUGIN.match(line):
            return _why_other(other[1])
        lower = line.lower()
        if "no topology information" in lower or "slurm_load_topo" in lower or ("scontrol" in lower and "error" in lower):
            return f"scontrol had no topology to print: {line.strip()[:80]}"
    return f"found no SwitchName= or BlockName= line{f'; this looks like: {what}' if what else ''}"


def _why_other(word: str) -> str:
    plugin = "ring" if word.lower() == "ring" else "torus3d"
    return f"topology/{plugin} has no switches and no NVLink domains; it is not read"


def _is_yaml(lines: list[tuple[int, str]]) -> bool:
    for _, line in lines:
        word = line.strip()
        if word and not word.startswith("#"):
            return word == "---" or word.startswith(
                ("- topology:", "topology:", "cluster_default:", "%YAML", '[{"topology"')
            )
    return False


def _lines(text: str, problems: Problems) -> Iterator[tuple[int, str]]:
    """(number of the first line, line): continued lines joined, not yet without comments. A list of nodes may be longer than what
    lines_of allows, and a list that is cut would end in a wrong name: so a line is read whole or not at all."""
    start, parts, size = 0, [], 0
    for number, raw in enumerate(text.replace("\r\n", "\n").replace("\r", "\n").split("\n"), 1):
        start = start or number
        continued = raw.rstrip().endswith("\\")
        size += len(raw)
        if size <= LIST_CHARS_MAX:
            parts.append(clean(raw).rstrip().removesuffix("\\") if continued else clean(raw).rstrip())
        if continued:
            continue
        if size > LIST_CHARS_MAX:
            problems.add(
                start, raw[:80], f"a line of {size:,} characters; allowed: at most {LIST_CHARS_MAX:,}; it is left out"
            )
        else:
            yield start, "".join(parts)
        start, parts, size = 0, [], 0
    if parts:
        yield start, "".join(parts)


class _Conf:
    def __init__(self, problems: Problems) -> None:
        self._problems = problems
        self._names = Names(problems)
        self._listing = Listing(problems)
        self._labels: dict[str, str] = {}  # Topograph writes a name's real name in the comment above it
        self._blocks: dict[str, tuple[int, int]] = {}  # line, number of nodes
        self._sizes: tuple[int, list[int]] | None = None
        self._complete = True

    def read(self, lines: list[tuple[int, str]]) -> FabricFound:
        for number, line in lines:
            self._line(number, line)
        if not self._listing.switches and not self._listing.hosts:
            raise self._problems.refuse(self._why_empty(lines))
        self._check_sizes()
        return self._listing.found(KIND, complete=self._complete)

    def _why_empty(self, lines: list[tuple[int, str]]) -> str:
        commented = sum(1 for _, line in lines if _COMMENTED.match(line))
        if commented:
            return f"no switch and no block: {commented} SwitchName= or BlockName= lines are commented out"
        first = next(iter(self._problems.found()), None)
        return f"no switch and no block{f' ({first})' if first else ': BlockSizes= alone names no node'}"

    def _line(self, number: int, line: str) -> None:
        if _PROMPT.fullmatch(line):
            return
        if other := _OTHER_PLUGIN.match(line):
            self._problems.add(number, line, _why_other(other[1]))
            return
        if match := _REAL_NAME.fullmatch(line):
            self._labels[match[1]] = match[2].strip()
        if comment := _COMMENT.search(line):
            line = line[: comment.start()]
        statement: dict[str, str] = {}
        kind, at, junk = "", 0, ""
        while at < len(line):
            if match := _TOKEN.match(line, at):
                key, value = match[1].lower(), match[2] or match[3] or ""
                if key in _STARTS:
                    self._statement(number, kind, statement)
                    kind, statement = key, {key: value}
                elif key in statement:
                    self._problems.add(number, match[0], f"{match[1]} given twice in one line; the first is kept")
                elif kind and key in _KEYS[kind]:
                    statement[key] = value
                else:
                    junk = junk or match[0]
            elif match := _WORD.match(line, at):
                junk = junk or match[1]
            else:
                break
            at = match.end()
        if junk:
            allowed = "SwitchName=, Nodes=, Switches=, LinkSpeed=, BlockName=, BlockSizes="
            self._problems.add(number, junk, f"nothing that Slurm's topology files have; allowed: {allowed}")
        self._statement(number, kind, statement)

    def _statement(self, number: int, kind: str, statement: dict[str, str]) -> None:
        for field in ("nodes", "switches"):
            value = statement.get(field, "")
            if value.rfind("[") > value.rfind("]"):
                self._complete = False  # SLURM_TOPO_LEN cuts lines, and so do terminals
        if kind == "switchname" and self._named(number, statement[kind]):
            self._switch(number, statement[kind], statement)
        elif kind == "blockname" and self._named(number, statement[kind]):
            self._block(number, statement[kind], statement)
        elif kind == "blocksizes":
            words = statement[kind].split(",", BLOCK_SIZES_MAX)
            known = all(word.isascii() and word.isdigit() and len(word) <= BLOCK_DIGITS_MAX for word in words)
            self._sizes = (number, [int(word) for word in words] if known else [])

    def _named(self, number: int, name: str) -> bool:
        if not name or len(name) > NAME_CHARS_MAX or any(char in "[],\"'{}<>$" for char in name):
            self._problems.add(
                number,
                name or "a switch or block",
                f"not a name (1 to {NAME_CHARS_MAX} characters, no brackets, no commas, none of {{}}<>$)",
            )
            return False
        return True

    def _switch(self, number: int, name: str, statement: dict[str, str]) -> None:
        level = statement.get("level", "")
        stated = int(level) if level.isascii() and level.isdigit() and len(level) < 4 else None
        if level and stated is None:
            self._problems.add(number, f"Level={level}", "not a level of 0 to 999; it is left out")
        self._listing.switch(
            number, name, self._labels.get(name, ""), stated, self._speed(number, statement.get("linkspeed", ""))
        )
        nodes = self._names.expand(statement.get("nodes", ""), number, "Nodes")
        children = self._names.expand(statement.get("switches", ""), number, "Switches")
        if nodes and children and stated is None:
            self._problems.add(number, name, "lists nodes and switches; Slurm allows one of them; both are read")
        self._listing.below(name, children, nodes)

    def _speed(self, number: int, value: str) -> float:
        if not value or value.isdigit():
            return 0.0
        match = _SPEED.fullmatch(value)
        if not match:
            self._problems.add(number, f"LinkSpeed={value}", "not a rate; it is left out")
            return 0.0
        return float(match[1]) * _GIGA[match[2].upper()]

    def _block(self, number: int, name: str, statement: dict[str, str]) -> None:
        nodes = self._names.expand(statement.get("nodes", ""), number, "Nodes")
        if name in self._blocks:
            self._problems.add(
                number, name, f"block defined twice, first in line {self._blocks[name][0]}; its nodes are joined"
            )
        before = self._blocks.get(name, (number, 0))
        self._blocks[name] = (before[0], before[1] + len(nodes))
        if not nodes:
            self._problems.add(number, name, "a block without nodes")
        self._listing.domain(number, self._labels.get(name, name), nodes)

    def _check_sizes(self) -> None:
        if self._sizes is None:
            return
        number, sizes = self._sizes
        why = sizes_fault(sizes)
        if why:
            self._problems.add(number, "BlockSizes=", f"{why}; the blocks are read all the same")
            return
        for name, (line, count) in self._blocks.items():
            if count < sizes[0]:
                self._problems.add(
                    line, name, f"{count} nodes, fewer than BlockSizes={sizes[0]}; the block is read all the same"
                )
