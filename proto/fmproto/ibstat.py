"""What `ibstat` and `ibstatus` print, as values: one Port for each adapter port. Text in, values out; the node's agent and the reader of
dumps share it.

The forms are those of infiniband-diags (ibstat.c, ibstatus): `ibstat` (adapters, their ports indented below), `ibstat -s` (adapters
without ports), `ibstat CA PORT` ("CA: 'x'", the port not indented) and `ibstatus` ("Infiniband device 'x' port 1 status:"). Indentation
is never needed: it gets lost in mails. Lines of libibumad between them ("ibwarn: ...") are no data; a line in which the tool says that
it failed is a problem.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from fmproto.dumptext import Problem, Problems, lines_of, shown

PORTS_MAX = 4_096  # of one file; a node has some tens, a virtualised one some hundreds
PORT_NUMBER_MAX = 254  # InfiniBand keeps one byte, and 255 for itself
_GID_CHARS = 39  # eight groups of four digits, as the kernel prints them

_ADAPTER = re.compile(
    r"(CA|HCA|iWARP RNIC|RNIC|usNIC UDP|usNIC|unspecified|Router|Switch|node|\?\?\?):?\s{1,4}['\"]([^'\"\s]{1,128})['\"]"
)
_STATUS = re.compile(r"Infiniband device ['\"]([^'\"\s]{1,128})['\"] port (\d{1,5}) status:?", re.IGNORECASE)
_PORT = re.compile(r"Port (\d{1,5}):", re.IGNORECASE)
_FIELD = re.compile(r"([A-Za-z][A-Za-z _]{0,40}):(.*)")
_NUMBER = re.compile(r"\d{1,9}(?:\.\d{1,6})?")
_WHOLE = re.compile(r"0x[0-9A-Fa-f]{1,8}|\d{1,9}")
_GUID = re.compile(r"(?:0x)?([0-9A-Fa-f]{1,16})")
_WARNING = re.compile(r"ibwarn: ")
_FAILED = re.compile(
    r"ibpanic: |.{0,80}iberror: |ibstat: |Fatal error: |.{0,80}(?:can't open|Permission denied|command not found|No such file)"
)
# As the kernel counts port states ("4: ACTIVE"), in ibstat's words.
_GUID_DIGITS = 16
_WHOLE_WORDS = frozenset(
    {"active", "down", "initializing", "armed", "linkup", "polling", "disabled", "sleep", "infiniband", "ethernet"}
)
_STATES = {"down": "Down", "init": "Initializing", "armed": "Armed", "active": "Active", "active_defer": "Active"}


@dataclass(frozen=True, slots=True)
class Port:
    """One adapter port. What the text does not say, or hides, is empty or 0.

    `rate_gbps` is Gb/s as printed, also where the port is down (it is then stale, and means nothing). `lid` 65535: none was given.
    GUIDs are "0x" and 16 lower-case digits; empty where the text has none, zeros, or something else in its place.
    """

    hca: str
    port: int = 1
    state: str = ""  # "Active", "Down", "Initializing", "Armed"
    physical_state: str = ""  # "LinkUp", "Polling", "Disabled", ...
    rate_gbps: float = 0.0
    link_layer: str = ""  # "InfiniBand", "Ethernet"
    port_guid: str = ""
    node_guid: str = ""
    system_guid: str = ""  # all ports and adapters of one card share it
    hca_type: str = ""  # "MT4129"
    firmware: str = ""
    hardware: str = ""  # hexadecimal, as printed: "b0"
    lid: int = 0
    lmc: int = 0
    sm_lid: int = 0


@dataclass(frozen=True, slots=True)
class Ibstat:
    """A whole text, read. `adapters` also has those without a port in it."""

    ports: tuple[Port, ...] = ()
    adapters: tuple[str, ...] = ()
    failed: str = ""  # the first line in which the tool says that it failed
    warned: str = ""  # the first line of libibumad
    complete: bool = True  # False: it ends early, or shows fewer ports than it says
    problems: tuple[Problem, ...] = ()


def parse_ibstat(text: str, file: str = "ibstat") -> tuple[tuple[Port, ...], tuple[Problem, ...]]:
    """Ports in the order of the text, and what was set aside. Never raises: a text of another kind has no ports. No text at all means
    that there is no adapter, and is no problem."""
    found = read_ibstat(text, file)
    return found.ports, found.problems


def read_ibstat(text: str, file: str = "ibstat") -> Ibstat:
    """As parse_ibstat, with what else the text tells."""
    problems = Problems(file)
    parser = _Parser(problems)
    parser.ends_in = 0 if text.endswith(("\n", "\r")) else text.replace("\r\n", "\n").replace("\r", "\n").count("\n") + 1
    for number, line in lines_of(text, problems):
        parser.take(number, line.strip().lstrip("> \t"))  # "> " of mails that quote it
    return parser.done()


@dataclass(slots=True)
class _Adapter:
    line: int
    ports: int = 0  # as it says itself
    facts: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class _Open:
    """A port that is being read; `last` is the last field of its form, which a text that was cut lacks."""

    line: int
    port: Port
    last: str
    fields: set[str] = field(default_factory=set)


class _Parser:
    def __init__(self, problems: Problems) -> None:
        self._problems = problems
        self._adapters: dict[str, _Adapter] = {}
        self._ports: dict[tuple[str, int], _Open] = {}
        self._hca = ""
        self._open: _Open | None = None
        self._skip = False  # the lines that follow belong to something that was set aside
        self._failed = ""
        self._warned = ""
        self.ends_in = 0  # the line that the text ends in, where that line has no end

    def take(self, number: int, line: str) -> None:
        if not line:
            return
        if match := _ADAPTER.fullmatch(line):
            self._begin_adapter(number, match[1], match[2])
        elif match := _STATUS.fullmatch(line):
            self._begin_adapter(number, "CA", match[1])
            self._begin_port(number, int(match[2]), "link_layer")
        elif _WARNING.match(line):
            self._warned = self._warned or shown(line)
        elif _FAILED.match(line):
            self._failed = self._failed or shown(line)
            self._problems.add(number, line, "the tool says that it failed")
        elif self._skip:
            return
        elif self._hca and (match := _PORT.fullmatch(line)):
            self._begin_port(number, int(match[1]), "port guid")
        elif self._hca and (match := _FIELD.fullmatch(line)):
            self._field(number, match[1].strip().lower(), match[2].strip())

    def _begin_adapter(self, number: int, kind: str, name: str) -> None:
        self._open, self._hca = None, name
        self._skip = kind in ("Switch", "Router")
        if self._skip:
            self._problems.add(number, f"{kind} '{name}'", "not an adapter of a host; only adapters are read")
        else:
            self._adapters.setdefault(name, _Adapter(number))

    def _begin_port(self, number: int, port: int, last: str) -> None:
        self._skip = True
        if not 1 <= port <= PORT_NUMBER_MAX:
            self._problems.add(number, f"Port {port}", f"found the port number {port}; allowed: 1 to {PORT_NUMBER_MAX}")
        elif first := self._ports.get((self._hca, port)):
            self._problems.add(
                number,
                f"{self._hca} port {port}",
                f"given twice, first in line {first.line}; the first is kept (one file a node)",
            )
        elif len(self._ports) >= PORTS_MAX:
            self._problems.add(number, f"{self._hca} port {port}", f"more than {PORTS_MAX} ports; the first are kept")
        else:
            self._skip = False
            self._open = _Open(number, Port(self._hca, port), last)
            self._ports[self._hca, port] = self._open

    def _field(self, number: int, name: str, value: str) -> None:
        if number == self.ends_in and not _is_whole(name, value):
            self._problems.add(
                number, f"{name}: {value}", "the text ends within this line, and the value may go on; it is left out"
            )
            return
        if self._open is None:
            adapter = self._adapters[self._hca]
            if name == "number of ports":
                adapter.ports = self._whole(number, name, value)
            elif name in ("node guid", "system image guid"):
                adapter.facts[name] = self._guid(number, name, value)
            else:
                adapter.facts[name] = value
            return
        self._open.fields.add(name)
        port = self._open.port
        if name == "state":
            port = replace(port, state=_state(value))
        elif name in ("physical state", "phys state"):
            port = replace(port, physical_state=value.partition(": ")[2] if value[:1].isdigit() else value)
        elif name == "rate":
            port = replace(port, rate_gbps=self._rate(number, value))
        elif name in ("base lid", "sm lid", "lmc"):
            whole = self._whole(number, name, value)
            port = replace(
                port,
                lid=whole if name == "base lid" else port.lid,
                sm_lid=whole if name == "sm lid" else port.sm_lid,
                lmc=whole if name == "lmc" else port.lmc,
            )
        elif name in ("link layer", "link_layer"):
            port = replace(port, link_layer=_layer(value))
        elif name == "port guid":
            port = replace(port, port_guid=self._guid(number, name, value))
        elif name == "default gid" and len(value) == _GID_CHARS:
            port = replace(port, port_guid=self._guid(number, name, value[20:]))  # its lower half is the port's GUID
        self._open.port = port

    def _rate(self, number: int, value: str) -> float:
        """ "200", "2.5", "400 Gb/sec (4X NDR)"."""
        match = _NUMBER.match(value)
        if not match:
            self._problems.add(number, f"Rate: {value}", "not a number; the rate is left out")
            return 0.0
        return float(match[0])

    def _whole(self, number: int, name: str, value: str) -> int:
        if not value:
            return 0
        if not _WHOLE.fullmatch(value):
            self._problems.add(number, f"{name}: {value}", "not a number; it is left out")
            return 0
        return int(value, 16) if value.startswith("0x") else int(value)

    def _guid(self, number: int, name: str, value: str) -> str:
        match = _GUID.fullmatch(value.replace(":", ""))
        if not match:
            if value:
                self._problems.add(number, f"{name}: {value}", "not a GUID (up to 16 hexadecimal digits); it is left out")
            return ""
        guid = int(match[1], 16)
        return f"0x{guid:016x}" if guid else ""

    def done(self) -> Ibstat:
        complete = not self._failed
        of_adapter = dict.fromkeys(self._adapters, 0)
        ports = []
        for (hca, _), found in self._ports.items():
            of_adapter[hca] += 1
            facts = self._adapters[hca].facts
            ports.append(
                replace(
                    found.port,
                    hca_type=facts.get("ca type", "") or facts.get("hca type", ""),
                    firmware=facts.get("firmware version", ""),
                    hardware=facts.get("hardware version", ""),
                    node_guid=facts.get("node guid", ""),
                    system_guid=facts.get("system image guid", ""),
                )
            )
            if found.last not in found.fields:
                complete = False
                missing = "no state" if not found.port.state else f"no {found.last}"
                self._problems.add(
                    found.line, f"{hca} port {found.port.port}", f"the text has {missing} for it; what it has is kept"
                )
        for name, adapter in self._adapters.items():
            if of_adapter[name] < adapter.ports:
                complete = False
                self._problems.add(
                    adapter.line, name, f"says that it has {adapter.ports} ports; the text shows {of_adapter[name]}"
                )
        return Ibstat(tuple(ports), tuple(self._adapters), self._failed, self._warned, complete, self._problems.found())


def _is_whole(name: str, value: str) -> bool:
    """Whether a value that the text ends in shows by itself that nothing of it is missing."""
    if name.endswith("guid"):
        return len(value.removeprefix("0x").replace(":", "")) == _GUID_DIGITS
    return value.lower() in _WHOLE_WORDS


def _state(value: str) -> str:
    """ "Active" of ibstat, "4: ACTIVE" of ibstatus."""
    number, colon, word = value.partition(":")
    if colon and number.strip().isdigit():
        value = word.strip()
        return _STATES.get(value.lower(), value)
    return _STATES.get(value.lower(), value)


def _layer(value: str) -> str:
    known = {"infiniband": "InfiniBand", "ib": "InfiniBand", "ethernet": "Ethernet", "eth": "Ethernet"}
    return known.get(value.lower(), value)
