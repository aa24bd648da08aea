"""Reading the fields of a tree against what is allowed: one fault per thing wrong, with line, path, found, allowed, nearest name.

A reader returns a usable default where it reports a fault, so that one pass finds every fault; whoever reads must look at
`Faults` before using what was read.
"""

from __future__ import annotations

import difflib
import itertools
import math
import re
from collections.abc import Iterable, Sequence

from fmproto.yamltext import FAULTS_MAX, Fault, Items, Scalar, Table, Tree, describe, join

KNOWN_SHOWN_MAX = 12
CANDIDATES_MAX = 2000  # names compared in search of the nearest: a cluster may have 100,000
NEAR = 0.6  # difflib's own cutoff for a near name

NAME_MAX = 63
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")
NAME_ALLOWED = f"lower-case letters, digits and '-', a letter or digit at both ends, at most {NAME_MAX} (DNS-1123)"


class TooManyFaultsError(Exception):
    """The reading ends here: Faults is full."""


class Faults:
    """What is wrong so far, at most FAULTS_MAX: then add() raises TooManyFaultsError, and whoever reads ends there."""

    def __init__(self) -> None:
        self._found: list[Fault] = []

    def add(self, line: int, path: str, message: str) -> None:
        self._found.append(Fault(line, path, message))
        if len(self._found) >= FAULTS_MAX:
            raise TooManyFaultsError

    def __bool__(self) -> bool:
        return bool(self._found)

    def sorted(self) -> tuple[Fault, ...]:
        """By line."""
        return tuple(sorted(self._found))


def nearest(name: str, known: Iterable[str]) -> str:
    """The known name that is most like `name`, ignoring case; empty where none is near."""
    by_lower = {one.lower(): one for one in itertools.islice(known, CANDIDATES_MAX)}
    close = difflib.get_close_matches(name[:NAME_MAX].lower(), by_lower, n=1, cutoff=NEAR)
    return by_lower[close[0]] if close else ""


def name_hint(name: str, known: Sequence[str]) -> str:
    """What to say of a name that is not known."""
    if near := nearest(name, known):
        return f"nearest known name: {near}"
    listed = sorted(known)
    more = f" and {len(listed) - KNOWN_SHOWN_MAX} more" if len(listed) > KNOWN_SHOWN_MAX else ""
    return f"known here: {', '.join(listed[:KNOWN_SHOWN_MAX])}{more}" if listed else "none is known here"


class Fields:
    """The fields of one mapping. Ask for each known field once, then call finish()."""

    def __init__(self, tree: Tree, path: str, faults: Faults) -> None:
        self.path = path
        self.line = tree.line
        self.faults = faults
        self._asked: dict[str, None] = {}
        self._missing: dict[str, str] = {}  # required and absent: what is allowed
        self._table = tree if isinstance(tree, Table) else None
        if self._table is None:
            self.wrong(tree, path, "a mapping of fields")

    def wrong(self, tree: Tree, path: str, allowed: str) -> None:
        self.faults.add(tree.line, path, f"found {describe(tree)}; allowed: {allowed}")

    def at(self, name: str) -> str:
        """The path of a field."""
        return join(self.path, name)

    def line_of(self, name: str) -> int:
        """The line of a field's key; of the mapping where the field is absent."""
        return self._table.fields[name][0] if self._table and name in self._table.fields else self.line

    def has(self, name: str) -> bool:
        """Whether a field was given, with a value."""
        return self._present(name) is not None

    def _present(self, name: str) -> Tree | None:
        if self._table is None or name not in self._table.fields:
            return None
        tree = self._table.fields[name][1]
        return None if isinstance(tree, Scalar) and tree.value is None else tree

    def raw(self, name: str, allowed: str = "", *, required: bool = False) -> Tree | None:
        """The field's tree; None where it is absent or empty."""
        self._asked[name] = None
        tree = self._present(name)
        if tree is None and required:
            self._missing[name] = allowed
        return tree

    def text(self, name: str, allowed: str, *, required: bool = False, pattern: re.Pattern[str] | None = None) -> str:
        """A string; empty where absent. A number or a truth value must be quoted to be one."""
        tree = self.raw(name, allowed, required=required)
        if tree is None:
            return ""
        if not isinstance(tree, Scalar) or not isinstance(tree.value, str) or not tree.text:
            self.wrong(tree, self.at(name), allowed)
            return ""
        if pattern is not None and not pattern.fullmatch(tree.text):
            self.wrong(tree, self.at(name), allowed)
            return ""
        return tree.text

    def name(self, name: str, *, required: bool = False) -> str:
        """A DNS-1123 label; a number such as 7 is one too."""
        tree = self.raw(name, NAME_ALLOWED, required=required)
        if tree is None:
            return ""
        if not isinstance(tree, Scalar) or len(tree.text) > NAME_MAX or not _NAME.fullmatch(tree.text):
            self.wrong(tree, self.at(name), NAME_ALLOWED)
            return ""
        return tree.text

    def choice(self, name: str, options: Sequence[str], *, default: str = "", required: bool = False) -> str:
        allowed = ", ".join(options)
        tree = self.raw(name, allowed, required=required)
        if tree is None:
            return default
        if isinstance(tree, Scalar) and tree.text in options:
            return tree.text
        near = nearest(tree.text, options) if isinstance(tree, Scalar) else ""
        hint = f"; nearest known name: {near}" if near else ""
        self.wrong(tree, self.at(name), allowed + hint)
        return default

    def whole(self, name: str, low: int, high: int, *, default: int = 0, required: bool = False) -> int:
        allowed = f"a whole number from {low} to {high}"
        tree = self.raw(name, allowed, required=required)
        if tree is None:
            return default
        value = tree.value if isinstance(tree, Scalar) else None
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            self.wrong(tree, self.at(name), allowed)
            return default
        return value

    def number(self, name: str, unit: str, high: float, *, default: float = 0.0, required: bool = False) -> float:
        """A number of `unit` from 0 to `high`, written without its unit."""
        allowed = f"a number of {unit} from 0 to {high:g}, without unit"
        tree = self.raw(name, allowed, required=required)
        if tree is None:
            return default
        value = tree.value if isinstance(tree, Scalar) else None
        if (
            isinstance(value, bool)
            or not isinstance(value, (int, float))
            or not math.isfinite(value)
            or not 0 <= value <= high
        ):
            self.wrong(tree, self.at(name), allowed)
            return default
        return float(value)

    def flag(self, name: str) -> bool:
        tree = self.raw(name)
        if tree is None:
            return False
        value = tree.value if isinstance(tree, Scalar) else None
        if not isinstance(value, bool):
            self.wrong(tree, self.at(name), "true or false")
            return False
        return value

    def items(self, name: str, allowed: str, *, required: bool = False) -> list[tuple[str, Tree]]:
        """(path, tree) of each member of a list; empty where absent."""
        tree = self.raw(name, allowed, required=required)
        if tree is None:
            return []
        if not isinstance(tree, Items):
            self.wrong(tree, self.at(name), allowed)
            return []
        return [(f"{self.at(name)}[{i}]", item) for i, item in enumerate(tree.items)]

    def strings(self, name: str, allowed: str, *, single: bool = False) -> tuple[str, ...]:
        """A list of scalars, each as it is written; with `single`, one scalar stands for a list of it."""
        tree = self.raw(name, allowed)
        if tree is None:
            return ()
        if single and isinstance(tree, Scalar):
            return (tree.text,)
        texts = []
        for path, item in self.items(name, allowed):
            if isinstance(item, Scalar) and (item.quoted or item.value is not None):
                texts.append(item.text)
            else:
                self.wrong(item, path, "a string")
        return tuple(texts)

    def table(self, name: str, allowed: str = "a mapping of fields", *, required: bool = False) -> Fields | None:
        tree = self.raw(name, allowed, required=required)
        if tree is None:
            return None
        if not isinstance(tree, Table):
            self.wrong(tree, self.at(name), allowed)
            return None
        return Fields(tree, self.at(name), self.faults)

    def texts_by_name(self, name: str, allowed: str) -> tuple[tuple[str, str], ...]:
        """A mapping of names to scalars, each as it is written, in the order of the text."""
        return tuple((key, text) for key, _, text in self.scalars_by_name(name, allowed))

    def scalars_by_name(self, name: str, allowed: str) -> tuple[tuple[str, int, str], ...]:
        """(key, line, scalar as written) of a mapping, in the order of the text."""
        tree = self.raw(name, allowed)
        if tree is None:
            return ()
        if not isinstance(tree, Table):
            self.wrong(tree, self.at(name), allowed)
            return ()
        pairs = []
        for key, (line, value) in tree.fields.items():
            if isinstance(value, Scalar) and (value.quoted or value.value is not None):
                pairs.append((key, line, value.text))
            else:
                self.wrong(value, join(self.at(name), key), "a string")
        return tuple(pairs)

    def finish(self) -> None:
        """Reports unknown fields, and missing ones unless an unknown one is most likely meant to be it."""
        if self._table is None:
            return
        for key, (line, _) in self._table.fields.items():
            if key in self._asked:
                continue
            near = nearest(key, self._asked)
            self._missing.pop(near, None)
            hint = name_hint(key, list(self._asked))
            self.faults.add(line, self.at(key), f"found an unknown field; {hint}")
        for name, allowed in self._missing.items():
            self.faults.add(self.line, self.at(name), f"found nothing; allowed: {allowed}")


def whole_of(text: str, low: int, high: int) -> int | None:
    """The whole number that a text is, within limits; else None."""
    if not re.fullmatch(r"[0-9]{1,9}", text):
        return None
    return int(text) if low <= int(text) <= high else None
