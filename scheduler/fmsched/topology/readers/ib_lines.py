"""The lines of InfiniBand topology files, one by one: what a record, a link or a port line says. No state is kept here.

Shapes, all of them printed by infiniband-diags (ibnetdiscover.c of rdma-core), ibutils or ibsim:

    Switch  41 "S-b8cef60300617c9a"  # "MF0;leaf-1:MQM8700/U1" enhanced port 0 lid 784 lmc 0          a switch's record
    Ca      1 "H-88e9a4ffff0feec4"   # "n1 mlx5_0"                                                    an adapter's record
    [1]     "H-88e9a4ffff0feec4"[1](88e9a4ffff0feec4)  # "n1 mlx5_0" lid 791 4xHDR s=4 w=2 v=4 e=4    a link, in a switch's record
    [1](88e9a4ffff0feec4)  "S-b8cef60300617c9a"[1]     # lid 791 lmc 0 "leaf-1" lid 784 4xHDR         a link, in an adapter's record
    CA 134 1 0x7cfe9003003b4bde 4x EDR - SW 1719 10 0x7cfe9003009ce5b0 ( 'n1 HCA-1' - 'leaf-1' )      --ports
    SW 2052 37 0x506b4b03005c2740 4x ???  'leaf-1'                                                    --ports, nothing plugged in
    { CA Ports:01 … NodeGUID:… PortGUID:… {n1 HCA-1} LID:0001 PN:01 } { SW … } PHY=4x LOG=ACT SPD=10  ibdiagnet's .lst

ibdiagnet's topology file prints a link's own port as `[1](1)`; ibnetdiscover --group adds `[ext 5]` to ports of a director's line card;
ibsim's net files say `Hca 2 "Hca1"` and leave out everything after the far port.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import NamedTuple

# Gb/s of one lane: the nominal figures that products are sold by (InfiniBand Trade Association roadmap). FDR10 runs at 10.3.
LANE_GBPS = {
    "SDR": 2.5, "DDR": 5.0, "QDR": 10.0, "FDR10": 10.0, "FDR": 14.0, "EDR": 25.0, "HDR": 50.0, "NDR": 100.0, "XDR": 200.0,
}  # fmt: skip
WIDTHS = ("1", "2", "4", "8", "12")
_RATES = {f"{width}x{speed}": int(width) * gbps for width in WIDTHS for speed, gbps in LANE_GBPS.items()}
# SPD= of ibdiagnet's .lst files: Gb/s of a lane, as signalled.
_SIGNALLED = {"2.5": "SDR", "5": "DDR", "10": "QDR", "14": "FDR", "25": "EDR", "50": "HDR", "100": "NDR", "200": "XDR"}


class Kind(Enum):
    SWITCH = "switch"  # routers too: they forward
    HOST = "host"
    UNKNOWN = "unknown"


class Head(NamedTuple):
    """The first line of a record. `text` is the node description, empty where there is none."""

    kind: Kind
    id: str
    ports: int
    text: str


class Link(NamedTuple):
    """A line of a record: the port at this end, and what it is joined to. `gbps` is 0 where the line does not say."""

    port: int
    far_kind: Kind
    far_id: str
    far_port: int
    far_text: str
    gbps: float


class End(NamedTuple):
    kind: Kind
    id: str
    port: int
    text: str


class PortLine(NamedTuple):
    """Both ends in one line; `far` is None where nothing is plugged in."""

    near: End
    far: End | None
    gbps: float


# Every pattern is matched at the start of a line, and its parts exclude what follows them: the time grows with the line's length alone.
_HEAD = re.compile(r'\s*(Switch|Ca|Hca|Rt|Router)(?:\s+(\d{1,6}))?\s*"([^"]*)"(.*)', re.IGNORECASE)
_LINK = re.compile(
    r'\s*\[(\d{1,5})\](?:\[ext \d{1,5}\])?(?:\([^()"]*\))?\s*"([^"]*)"\s*\[(\d{1,5})\](?:\[ext \d{1,5}\])?(.*)',
    re.IGNORECASE,
)
# Nearly all lines of a large fabric, in one go: a quarter of the reader's time goes into links.
_PLAIN_LINK = re.compile(
    r'\[(\d{1,5})\](?:\([0-9a-f]{1,16}\))?\s{0,8}"([SHR]-)([0-9a-f]{16})"\[(\d{1,5})\](?:\([0-9a-f]{1,16}\))?'
    r'\s{0,20}# (?:lid \d{1,6} lmc \d )?"([^"]{0,64})" lid \d{1,6} (\d{1,2}x[A-Z]DR)'
)
_RATE = re.compile(r"\b(\d{1,2})x ?([A-Za-z][Dd][Rr](?:10)?)\b")
_PORT = re.compile(
    r"\s*(SW|CA|RT|\?\?)\s+-?(\d{1,6})\s+(\d{1,5})\s+0x([0-9a-fA-F]{1,16})\s+(\d{1,2}x|\?\?)\s+([^\s-]{1,12})(.*)"
)
_FAR_PORT = re.compile(r"\s*-\s+(SW|CA|RT|\?\?)\s+-?(\d{1,6})\s+(\d{1,5})\s+0x([0-9a-fA-F]{1,16})\s*(.*)")
_LST_END = re.compile(r"\{\s*(SW|CA|RT)\s+Ports:([0-9A-Fa-f]{1,4})\s([^{}]*)(?:\{([^{}]*)\}([^{}]*))?\}")
_LST_PORT = re.compile(r"\bPN:([0-9A-Fa-f]{1,4})\b")
_LST_GUID = re.compile(r"\bNodeGUID:([0-9A-Fa-f]{1,16})\b")
_LST_RATE = re.compile(r"PHY=(\d{1,2})x\s+LOG=(\w{1,12})\s+SPD=([\d.]{1,6})")
# What follows a description: of a switch's record, and of a link.
_AFTER_TEXT = re.compile(r" (?:(?:base|enhanced) port 0 )?lid \d")
_HEX = "0123456789abcdefABCDEF"
_GUID_ID = re.compile(r"(?:[A-Za-z?]-)?(?:0x)?([0-9a-fA-F]{1,16})")

_KINDS = {
    "switch": Kind.SWITCH, "rt": Kind.SWITCH, "router": Kind.SWITCH, "sw": Kind.SWITCH, "ca": Kind.HOST, "hca": Kind.HOST,
}  # fmt: skip
_ID_KINDS = {"S-": Kind.SWITCH, "R-": Kind.SWITCH, "H-": Kind.HOST}


def parse_head(line: str) -> Head | None:
    match = _HEAD.match(line)
    if match is None or not match[3].strip():
        return None
    text, _ = _quoted(match[4])
    return Head(_KINDS[match[1].lower()], normal_id(match[3]), int(match[2] or 0), text)


def parse_link(line: str) -> Link | None:
    match = _PLAIN_LINK.fullmatch(line)
    if match is None:
        return _parse_any_link(line)
    port, letter, guid, far_port, text, rate = match.groups()
    return Link(int(port), _ID_KINDS[letter], guid, int(far_port), text.strip(), _RATES.get(rate, 0.0))


def _parse_any_link(line: str) -> Link | None:
    match = _LINK.match(line)
    if match is None or not match[2].strip():
        return None
    text, tail = _quoted(match[4])
    return Link(int(match[1]), kind_of_id(match[2]), normal_id(match[2]), int(match[3]), text, gbps_of(tail))


def parse_port(line: str) -> PortLine | None:
    """A line of `ibnetdiscover --ports`. Adapters are known by their ports' GUIDs there, switches by their own."""
    match = _PORT.match(line)
    if match is None:
        return None
    near_kind, near_id = _KINDS.get(match[1].lower(), Kind.UNKNOWN), normal_id(f"0x{match[4]}")
    gbps = gbps_of(f"{match[5]} {match[6]}")
    far = _FAR_PORT.match(match[7])
    if far is None:
        return PortLine(End(near_kind, near_id, int(match[3]), _bare(match[7])), None, gbps)
    near_text, far_text = _pair(far[5])
    return PortLine(
        End(near_kind, near_id, int(match[3]), near_text),
        End(_KINDS.get(far[1].lower(), Kind.UNKNOWN), normal_id(f"0x{far[4]}"), int(far[3]), far_text),
        gbps,
    )


def parse_lst(line: str) -> PortLine | None:
    """A line of ibdiagnet's .lst file: one link with both ends; port numbers are hexadecimal there."""
    if not line.lstrip().startswith("{"):
        return None
    ends = []
    for match in _LST_END.finditer(line):
        port, guid = _LST_PORT.search(match[5] or match[3]), _LST_GUID.search(match[3])
        if port is None or guid is None:
            return None
        ends.append(End(_KINDS[match[1].lower()], normal_id(f"0x{guid[1]}"), int(port[1], 16), (match[4] or "").strip()))
    if len(ends) != 2:
        return None
    rate = _LST_RATE.search(line)
    speed = _SIGNALLED.get(rate[3].rstrip("0").rstrip(".") if rate and "." in rate[3] else rate[3] if rate else "")
    gbps = gbps_of(f"{rate[1]}x{speed}") if rate and speed else 0.0
    return PortLine(ends[0], ends[1], gbps)


def is_cut(line: str) -> bool:
    """Whether a record's or a link's line ends inside its description: a quote opens there and nothing closes it."""
    comment = line.find("#")
    return line.count('"') % 2 == 1 and comment >= 0 and _AFTER_TEXT.search(line, comment) is None


def gbps_of(text: str) -> float:
    """The rate of "4xEDR" or "4x EDR": width times the lane's nominal rate; 0 for "4x ???", and for words that are not known."""
    match = _RATE.search(text)
    if match is None or match[1] not in WIDTHS:
        return 0.0
    return int(match[1]) * LANE_GBPS.get(match[2].upper(), 0.0)


def kind_of_id(text: str) -> Kind:
    """By the letter before the GUID: S and R forward, H is an adapter; names of ibsim say nothing."""
    return _ID_KINDS.get(text[:2], Kind.UNKNOWN)


def normal_id(text: str) -> str:
    """A GUID as 16 small hex digits, without the letter before it; anything else (a redacted GUID, ibsim's names) as it stands."""
    if len(text) == 18 and text[1] == "-" and not text[2:].strip(_HEX):  # nearly all: no pattern is needed
        return text[2:].lower()
    text = text.strip()
    match = _GUID_ID.fullmatch(text)
    named = len(text) < 16 and text[1:2] != "-" and not text.startswith("0x")
    return text if match is None or named else match[1].lower().zfill(16)


def is_guid(identity: str) -> bool:
    return len(identity) == 16 and _GUID_ID.fullmatch(identity) is not None


def _quoted(rest: str) -> tuple[str, str]:
    """(what stands between the first and the last quote, what follows): a description may hold quotes itself."""
    first = rest.find('"')
    if first < 0:
        return "", rest
    last = rest.rfind('"')
    if last == first:  # the closing quote is lost; or the line is cut, and then part of a name is no name
        end = _AFTER_TEXT.search(rest, first + 1)
        return (rest[first + 1 : end.start()].strip(), rest[end.start() :]) if end else ("", "")
    return rest[first + 1 : last].strip(), rest[last + 1 :]


def _pair(rest: str) -> tuple[str, str]:
    """The two descriptions of "( 'a' - 'b' )"; quotes may be missing."""
    inner = rest.strip().removeprefix("(").removesuffix(")").strip()
    mark = "' - '" if "' - '" in inner else " - "
    near, _, far = inner.partition(mark)
    return _bare(near), _bare(far)


def _bare(text: str) -> str:
    return text.strip().strip("'").strip()
