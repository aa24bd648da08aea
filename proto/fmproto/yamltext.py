"""YAML (or JSON) text to a tree that knows its lines, within limits. No meaning is read here: fields.py does that.

Plain data only: tags are refused, so no text can name a Python object; aliases are followed, and what they repeat counts against the
limit on values, so a small text cannot stand for a huge tree. Scalars follow the YAML 1.2 core schema: `yes` and `on` are strings.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    Event,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)

FAULTS_MAX = 50  # a file wholly of another kind needs no thousand messages
SHOWN_MAX = 60  # characters of a found value that a message repeats
TAG_WORD_MAX = 5_000  # characters after a '!': the scanner behind takes quadratic time for a tag, which is refused anyway
_DIGITS_MAX = 18  # a longer number means nothing here, and int() of a very long one is slow

_NULL = frozenset({"", "~", "null", "Null", "NULL"})
_BOOL = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INT = re.compile(rf"[-+]?[0-9]{{1,{_DIGITS_MAX}}}")
_FLOAT = re.compile(r"[-+]?(\.[0-9]{1,40}|[0-9]{1,40}(\.[0-9]{0,40})?)([eE][-+]?[0-9]{1,4})?")
_SURROGATE = re.compile("[\ud800-\udfff]")
# What YAML 1.2 forbids, and what the reader behind refuses without saying where.
_UNPRINTABLE = re.compile("[^\t\n\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True, slots=True, order=True)
class Fault:
    """One thing wrong with a text. `line` is 1-based, 0 for the whole; `path` is the field's, empty for the whole."""

    line: int
    path: str
    message: str

    def __str__(self) -> str:
        place = [f"line {self.line}"] if self.line else []
        return ": ".join([*place, *([self.path] if self.path else []), self.message])


@dataclass(frozen=True, slots=True)
class Limits:
    """What a text may be. A deeper, longer or larger one is refused, not cut."""

    bytes_max: int = 1 << 20
    depth_max: int = 32
    values_max: int = 10_000


@dataclass(frozen=True, slots=True)
class Scalar:
    line: int
    text: str  # as written, quotes and escapes undone
    quoted: bool = False

    @property
    def value(self) -> str | int | float | bool | None:
        if self.quoted:
            return self.text
        if self.text in _NULL:
            return None
        if self.text in _BOOL:
            return _BOOL[self.text]
        if _INT.fullmatch(self.text):
            return int(self.text)
        if _FLOAT.fullmatch(self.text):
            return float(self.text)
        return self.text


@dataclass(frozen=True, slots=True)
class Items:
    line: int
    items: list[Tree] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Table:
    """`fields` maps a key to the line of the key and its value."""

    line: int
    fields: dict[str, tuple[int, Tree]] = field(default_factory=dict)


Tree = Scalar | Items | Table


def shown(text: str) -> str:
    """A found text as a message repeats it: quoted, cut, without control characters."""
    return repr(text if len(text) <= SHOWN_MAX else text[: SHOWN_MAX - 1] + "…")


def describe(tree: Tree) -> str:
    """What was found, for messages."""
    if isinstance(tree, Items):
        return "a list"
    if isinstance(tree, Table):
        return "a mapping"
    value = tree.value
    if value is None:
        return "nothing"
    return shown(tree.text) if isinstance(value, str) else tree.text


def load(source: str | bytes, limits: Limits) -> Tree | tuple[Fault, ...]:
    """The tree of a text, or its faults: every doubled key, or else the first thing that stops the reading."""
    text = _clean(source, limits)
    if isinstance(text, Fault):
        return (text,)
    builder = _Builder(limits)
    try:
        for event in YAML(typ="safe", pure=True).parse(text):
            builder.take(event)
    except _StopError as stop:
        return (stop.fault,)
    except MarkedYAMLError as error:
        return (_syntax_fault(error, text, builder.path),)
    except YAMLError as error:
        return (Fault(0, "", f"not YAML: {' '.join(str(error).split())}"),)
    except (ValueError, OverflowError):  # an escape such as \UFFFFFFFF names no character
        return (Fault(builder.line, builder.path, "not YAML: an escape in a quoted string names no character"),)
    if builder.doubled:
        return tuple(builder.doubled[:FAULTS_MAX])
    if builder.root is None or (isinstance(builder.root, Scalar) and builder.root.value is None):
        return (Fault(0, "", "empty: found no fields, only blank lines or comments"),)
    return builder.root


def _clean(source: str | bytes, limits: Limits) -> str | Fault:
    size = len(source)
    if size > limits.bytes_max:
        return Fault(0, "", f"found {size} bytes; allowed: at most {limits.bytes_max}")
    if isinstance(source, bytes):
        if source.startswith((b"\xff\xfe", b"\xfe\xff")):
            return Fault(1, "", "found UTF-16 text; allowed: UTF-8")
        try:
            text = source.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            line = source.count(b"\n", 0, error.start) + 1
            return Fault(line, "", f"found the byte 0x{source[error.start]:02x}, which is not UTF-8; allowed: UTF-8 text")
    else:
        text = source.removeprefix("\ufeff")
    if surrogate := _SURROGATE.search(text):
        line = text.count("\n", 0, surrogate.start()) + 1
        return Fault(line, "", "found half of a surrogate pair; allowed: UTF-8 text")
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    if odd := _UNPRINTABLE.search(text):
        line = text.count("\n", 0, odd.start()) + 1
        return Fault(
            line, "", f"found the control character U+{ord(odd[0]):04X}; allowed: printable text, line ends and tabs"
        )
    if _is_json(text):
        # YAML may not be indented by tabs, JSON may; inside its strings no raw tab is legal, so none of those is changed.
        return text.replace("\t", " ")
    word = next((word for word in text.split() if len(word) - word.find("!") > TAG_WORD_MAX and "!" in word), "")
    if word:
        line = text.count("\n", 0, text.index(word)) + 1
        return Fault(line, "", f"found a word of more than {TAG_WORD_MAX} characters after '!'; allowed: shorter ones")
    return text


def _is_json(text: str) -> bool:
    if not text.lstrip().startswith(("{", "[")):
        return False
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _syntax_fault(error: MarkedYAMLError, text: str, path: str) -> Fault:
    mark = error.problem_mark or error.context_mark
    line = mark.line + 1 if mark else 0
    lines = text.split("\n")
    written = lines[line - 1] if 0 < line <= len(lines) else ""
    if "\t" in written[: len(written) - len(written.lstrip())]:
        return Fault(line, path, "found a tab in the indentation; allowed: spaces")
    problem = error.problem or "cannot be read"
    context = f", {error.context}" if error.context else ""
    hint = "; a value that contains ': ' needs quotes" if problem.startswith("mapping values") else ""
    return Fault(line, path, f"not YAML: {problem}{context}{hint}")


class _StopError(Exception):
    """Ends the reading at its first fault."""

    def __init__(self, line: int, path: str, message: str) -> None:
        super().__init__(message)
        self.fault = Fault(line, path, message)


@dataclass(slots=True)
class _Open:
    """A list or mapping that is being read. `anchor` names it once it is complete, so it cannot contain itself."""

    tree: Items | Table
    anchor: str | None
    size: int = 1
    key: Scalar | None = None


class _Builder:
    """Takes YAML events; never recursive, so depth is bounded by its limit and not by Python's stack."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._open: list[_Open] = []
        self._anchors: dict[str, tuple[Tree, int]] = {}
        self._values = 0
        self._documents = 0
        self.root: Tree | None = None
        self.doubled: list[Fault] = []
        self.line = 0

    @property
    def path(self) -> str:
        """Of the value that is read next."""
        path = ""
        for one in self._open:
            if isinstance(one.tree, Items):
                path += f"[{len(one.tree.items)}]"
            elif one.key is not None:
                path = join(path, one.key.text)
        return path

    def take(self, event: Event) -> None:
        self.line = event.start_mark.line + 1
        if isinstance(event, AliasEvent):
            self._alias(str(event.anchor))
        elif isinstance(event, ScalarEvent):
            self._refuse_tag(event)
            scalar = Scalar(self.line, self._paired(event.value), quoted=not event.implicit[0])
            if event.anchor is not None:
                self._anchors[event.anchor] = (scalar, 1)
            self._add(scalar, 1)
        elif isinstance(event, (MappingStartEvent, SequenceStartEvent)):
            self._refuse_tag(event)
            self._begin(Table(self.line) if isinstance(event, MappingStartEvent) else Items(self.line), event.anchor)
        elif isinstance(event, (MappingEndEvent, SequenceEndEvent)):
            done = self._open.pop()
            if done.anchor is not None:
                self._anchors[done.anchor] = (done.tree, done.size)
            self._add(done.tree, done.size, counted=True)
        elif isinstance(event, DocumentStartEvent):
            self._documents += 1
            if self._documents > 1:
                raise _StopError(self.line, "", "found a second document after '---'; allowed: one")

    def _paired(self, text: str) -> str:
        """JSON writes a character above U+FFFF as two escapes."""
        if not _SURROGATE.search(text):
            return text
        try:
            return text.encode("utf-16", "surrogatepass").decode("utf-16")
        except UnicodeDecodeError:
            raise _StopError(self.line, self.path, "found half of a surrogate pair; allowed: whole characters") from None

    def _refuse_tag(self, event: ScalarEvent | MappingStartEvent | SequenceStartEvent) -> None:
        if event.ctag is not None:
            raise _StopError(
                self.line, self.path, f"found the tag {shown(str(event.ctag))}; allowed: plain values without tags"
            )

    def _begin(self, tree: Items | Table, anchor: str | None) -> None:
        if self._open and isinstance(self._open[-1].tree, Table) and self._open[-1].key is None:
            raise _StopError(self.line, self.path, f"found {describe(tree)} as a key; allowed: a name")
        if len(self._open) >= self._limits.depth_max:
            raise _StopError(self.line, self.path[:SHOWN_MAX], f"nested deeper than {self._limits.depth_max} levels")
        self._count(1)
        self._open.append(_Open(tree, anchor))

    def _alias(self, anchor: str) -> None:
        if anchor not in self._anchors:
            raise _StopError(
                self.line, self.path, f"found the alias *{shown(anchor)[1:-1]}, which names no complete value above it"
            )
        tree, size = self._anchors[anchor]
        self._add(tree, size)

    def _count(self, size: int) -> None:
        self._values += size
        if self._values > self._limits.values_max:
            raise _StopError(self.line, self.path, f"more than {self._limits.values_max} values, aliases written out")

    def _add(self, tree: Tree, size: int, *, counted: bool = False) -> None:
        if not counted:
            self._count(size)
        if not self._open:
            self.root = tree
            return
        parent = self._open[-1]
        parent.size += size
        if isinstance(parent.tree, Items):
            parent.tree.items.append(tree)
        elif parent.key is None:
            if not isinstance(tree, Scalar):
                raise _StopError(self.line, self.path, f"found {describe(tree)} as a key; allowed: a name")
            parent.key = tree
        else:
            self._set(parent.tree, parent.key, tree)
            parent.key = None

    def _set(self, table: Table, key: Scalar, tree: Tree) -> None:
        if key.text in table.fields:
            first = table.fields[key.text][0]
            self.doubled.append(Fault(key.line, self.path, f"given twice, first in line {first}; allowed: once"))
            return
        table.fields[key.text] = (key.line, tree)


_PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")


def join(path: str, key: str) -> str:
    """The path of a field: `spec.name`, and `spec["a b"]` where the key is not plain."""
    if len(key) > SHOWN_MAX or not _PLAIN_KEY.fullmatch(key):
        return f"{path}[{shown(key)}]"
    return f"{path}.{key}" if path else key
