"""InfiniBand fabrics as `ibnetdiscover` prints them: plain, --full, --ports, --group, --show; ibdiagnet's topology and .lst files, and the
net files of ibsim. The lines are described in ib_lines.py.

Facts: infiniband-diags/ibnetdiscover.c and its manual page (rdma-core); ibsim's net-examples.
"""

from __future__ import annotations

import re

from fmproto.dumptext import Problems, lines_of
from fmsched.topology.readers.found import FabricFound
from fmsched.topology.readers.ib_lines import Kind, is_cut, parse_head, parse_link, parse_lst, parse_port
from fmsched.topology.readers.ib_merge import Gathered
from fmsched.topology.readers.slurm_looks import looks_like

KIND = "ibnetdiscover"

# Before each record; with --group the system's GUID is followed by "# Chassis 1 (NAME)".
_FIELD = re.compile(
    r"\s*(vendid|devid|sysimgguid|switchguid|caguid|rtguid|hcaguids?|\w{1,16}guid)\s*=\s*(\S*)(.*)", re.IGNORECASE
)
_IN_CHASSIS = re.compile(r"\s*# Chassis (\d{1,6})(?: \((.*)\))?")
_CHASSIS = re.compile(r"\s*Chassis (\d{1,6})\b")
_HOSTNAME = re.compile(r"\s*Hostname: (.*)")
# --show and ibsim's tools tell how they get on.
_PROGRESS = re.compile(r"\s*(?:DR path |[\d,]+ ?-> ).*(?:->|processing|new|known) ", re.IGNORECASE)
# What the tools say when something went wrong; the first kind means that some of the fabric is missing.
_FAULT = re.compile(
    r"iberror|ibpanic|bad status|timed ?out|discover failed|can't open|can't find|command not found|no such file|permission denied|"
    r"client_register|is ib_umad|\bkilled\b|segmentation fault|core dumped|unable to|\bfailed\b|\berror\b",
    re.IGNORECASE,
)
# Of these, what the InfiniBand tools and the shell say of themselves: the reason where nothing else was printed.
_TOOL_FAILED = re.compile(r"iberror|ibpanic|ibwarn|umad|ibnetdisc|command not found|permission denied", re.IGNORECASE)
_WARNING = re.compile(r"\s*(?:ibwarn|ibdebug|-[IWE]-|warn(?:ing)?\b)", re.IGNORECASE)
_PROMPT = re.compile(
    r"\s*\[?[\w.@~: /-]{1,120}\]?\s*[$#>%] ?(?:sudo )?\S{0,120}\b(?:ibnetdiscover|ibdiagnet|cat|zcat|exit)\b"
)
# The shell's prompt alone, or before a command of the kind.
_BARE_PROMPT = re.compile(
    r"\s*(?:\[?[\w.-]{1,64}@[\w.-]{1,64}[: ][^\s\]]{0,80}\]?[$#>%]|[$>%] (?:sudo )?\S{0,120}(?:ibnetdiscover|ibdiagnet|cat)\b.*)$"
)
# --diff marks what is only in the one fabric or in the other.
_DIFFERENCE = re.compile(r"[<>] (?:vendid=|devid=|sysimgguid=|\w{2,6}guid=|Switch\b|Ca\b|Rt\b|\[\d)")
# ibhosts, ibswitches, ibnetdiscover --list: nodes only.
_LISTED = re.compile(r"\s*(?:Ca|Switch|Router)\s*: 0x[0-9a-f]{1,16} ports \d", re.IGNORECASE)
# A record's first line that is damaged, or of a kind of node that is not known.
_LIKE_A_HEAD = re.compile(r'\s*(?:switch|h?ca|rt|router)\b|[^\[]{1,40}\s"[^"]{1,80}"', re.IGNORECASE)
_LINK_INFO = re.compile(r"\s*(?:CA|Switch):? .{0,200}:$|.{0,200}==\(.{0,80}\)==>", re.IGNORECASE)


def read(text: str, file: str) -> FabricFound:
    """The fabric in a topology file. Rates are nominal (4xHDR: 200 Gb/s); routers count as switches; aggregation nodes are left out;
    adapters of one host are one HostFound. `complete` is False where the tool complained, the file ends inside a line, or links lead to
    nodes that have no record. Raises ReaderError where there is no record at all: the tool's own error, or what the file is instead.
    """
    problems = Problems(file)
    reader = _Reader(file, problems)
    last = (0, "")
    for number, line in lines_of(text, problems):
        if line:
            last = (number, line)
            reader.take(number, line)
    gathered = reader.gathered
    if gathered.empty:
        raise _refusal(reader, problems, looks_like(text))
    if last[0] in reader.broken:
        gathered.complete = False
        gathered.forget(last[0])
        problems.add(*last, "the file ends inside this line")
    return gathered.found(KIND)


class _Reader:
    """Takes line after line; keeps what the lines before a record say about it."""

    def __init__(self, file: str, problems: Problems) -> None:
        self._problems = problems
        self.gathered = Gathered(file, problems)
        self.broken: set[int] = set()  # the last line that could not be read, so that a cut is known
        self.first = ""
        self.fault = ""
        self.listed = self.link_info = self.differences = 0
        self._system = self._chassis = self._section = ""

    def take(self, number: int, line: str) -> None:
        start = line.lstrip()
        if start.startswith("["):
            self._link(number, line)
        elif start.startswith(("vendid=", "devid=", "caguid=")):
            self.gathered.end_record()  # they say nothing more, and are every other line
        elif start.startswith("#"):
            if "Topology file" in line:
                self._section = ""  # another file's output follows
        elif field := _FIELD.match(line):
            self._field(field)
        elif head := parse_head(line):
            self.gathered.head(head, self._system, self._chassis)
            if is_cut(line):
                self._set_aside(number)
            self._system, self._chassis = "", self._section
        elif port := parse_port(line):
            self.gathered.end_record()
            self.gathered.port(number, port.near, port.far, port.gbps)
        elif both := parse_lst(line):
            self.gathered.end_record()
            assert both.far is not None, "a line of a .lst file has two ends"
            self.gathered.both(number, both.near, both.far, both.gbps)
        else:
            self._other(number, line)

    def _link(self, number: int, line: str) -> None:
        link = parse_link(line)
        if link is None:
            self._other(number, line)
        elif not self.gathered.in_record:
            self._problems.add(number, line, "a link before any record; allowed: after the line of its switch or adapter")
            self.first = self.first or line
        else:
            self.gathered.link(number, link)
            if is_cut(line) or (not link.gbps and not link.far_text and link.far_kind is not Kind.UNKNOWN):
                # Where the comment of a link is gone, so may be the lines after it.
                self._set_aside(number)

    def _field(self, field: re.Match[str]) -> None:
        self.gathered.end_record()
        name, value, comment = field[1].lower(), field[2], field[3]
        if name == "sysimgguid":
            self._system = value.lower().removeprefix("0x").zfill(16)
        if comment and (inside := _IN_CHASSIS.match(comment)):
            self._chassis = inside[2] or f"chassis {inside[1]}"

    def _other(self, number: int, line: str) -> None:
        self.first = self.first or line
        if section := _CHASSIS.match(line):
            self._section = self._chassis = f"chassis {section[1]}"
            self.gathered.end_record()
        elif line.strip() == "Non-Chassis Nodes":
            self._section = self._chassis = ""
            self.gathered.end_record()
        elif hostname := _HOSTNAME.match(line):
            self._section = self._chassis = hostname[1].strip() or self._section
        elif _PROGRESS.match(line) or _PROMPT.match(line) or _BARE_PROMPT.match(line):
            pass
        elif _DIFFERENCE.match(line):
            self.differences += 1
            self.gathered.complete = False
            self._problems.add(
                number, line, "a difference of two fabrics (ibnetdiscover --diff); it is in one of them only"
            )
        elif _FAULT.search(line):
            if _TOOL_FAILED.search(line) and (not self.fault or "iberror" in line):
                self.fault = line
            self.gathered.complete = False
            self._problems.add(number, line, "the tool complains: part of the fabric may be missing")
        elif _WARNING.match(line):
            self._problems.add(number, line, "a warning of the tool")
        else:
            self.listed += _LISTED.match(line) is not None
            self.link_info += _LINK_INFO.match(line) is not None
            if _LIKE_A_HEAD.match(line):
                self.gathered.end_record()  # the links that follow are not the last record's
            self._problems.add(number, line, "no line of a topology file; allowed: records, links, ports, comments")
            self._set_aside(number)

    def _set_aside(self, number: int) -> None:
        self.broken = {number}


def _refusal(reader: _Reader, problems: Problems, what: str) -> Exception:
    if reader.fault:
        return problems.refuse("the tool failed, and printed no fabric", reader.fault)
    if reader.differences:
        return problems.refuse(
            "the differences of two fabrics are no fabric; allowed: ibnetdiscover without --diff", reader.first
        )
    if reader.listed:
        return problems.refuse("a list of nodes has no links; allowed: ibnetdiscover without --list", reader.first)
    if reader.link_info:
        return problems.refuse("this is iblinkinfo's output; allowed: what ibnetdiscover prints", reader.first)
    if not reader.first:
        return problems.refuse(
            "found no line of a fabric: the tool printed nothing, or its output ends before the first record"
        )
    seems = f"; this looks like: {what}" if what and "ibnetdiscover" not in what else ""
    return problems.refuse(
        f"found no record of a switch or an adapter; allowed: what ibnetdiscover prints{seems}", reader.first
    )
