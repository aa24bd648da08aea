"""Host lists of Slurm and Topograph ("n[1-3],m4"), expanded within a budget for the whole file, so that a short text cannot stand for
millions of names."""

from __future__ import annotations

import re

from fmproto.dumptext import Problems, shown
from fmproto.hostlist import expand, split

NAMES_MAX = 1_000_000  # of one file, each as often as it is named: 100,000 nodes, ten times each
LIST_CHARS_MAX = 4 << 20
NAME_CHARS_MAX = 256

# Blanks, and what templates, manuals and shells write where a name will stand: {{ x }}, <nodes>, $NODES, "...".
_ODD = re.compile(r"[\s\"'=\\{}<>$]")
_SOME_LETTER = re.compile(r"[A-Za-z0-9]")
_BRACKETS = re.compile(r"\[([^][]*)\]")
_SPAN = re.compile(r"\s*(\d{1,9})-(\d{1,9})\s*")
# What Slurm prints or takes in place of a list; no node has such a name.
_NOT_A_NAME = {"(null)", "none", "all"}
_GUID = re.compile(r"0[xX]([0-9A-Fa-f]{8,16})")


class Names:
    """Expands the lists of one file; what cannot be expanded is a problem, and stands for no name."""

    def __init__(self, problems: Problems) -> None:
        self._problems = problems
        self._left = NAMES_MAX

    def expand(self, text: str, line: int, field: str) -> tuple[str, ...]:
        """Distinct names in their order. Commas without a name between them are passed over, as Slurm does."""
        if len(text) > LIST_CHARS_MAX:
            self._problems.add(
                line, f"{field}={text[:80]}", f"a list of {len(text):,} characters; allowed: at most {LIST_CHARS_MAX:,}"
            )
            return ()
        names: dict[str, None] = {}
        for item in split(text):
            if not item or item.lower() in _NOT_A_NAME:
                continue
            size = _size(item, self._left)
            if size > self._left:
                self._problems.add(line, f"{field}={item}", f"the file's lists stand for more than {NAMES_MAX:,} names")
                continue
            self._left -= size
            try:
                names.update(dict.fromkeys(_expand(item)))
            except ValueError as error:
                self._problems.add(line, f"{field}={item}", f"not a name or a host list: {shown(str(error))}")
        return tuple(names)


def _expand(item: str) -> tuple[str, ...]:
    if _ODD.search(item):
        raise ValueError("it has blanks, quotes, '=', a backslash, or one of {}<>$")
    if not _SOME_LETTER.search(item):
        raise ValueError("it has no letter and no digit")
    names = expand(item) if "[" in item or "]" in item else (item,)
    if any(len(name) > NAME_CHARS_MAX for name in names):
        raise ValueError(f"names of more than {NAME_CHARS_MAX} characters")
    return names


def _size(item: str, most: int) -> int:
    """How many names an item stands for, without expanding it; exact enough to refuse by. Stops above `most`."""
    size = 1
    for brackets in _BRACKETS.finditer(item):
        inside = 0
        for span in brackets[1].split(","):
            match = _SPAN.fullmatch(span)
            inside += max(1, int(match[2]) - int(match[1]) + 1) if match else 1
        size *= inside
        if size > most:
            break
    return size


def guid_of(name: str) -> str:
    """The GUID that stands in place of a node's name, as 16 small digits; empty where the name is a name."""
    match = _GUID.fullmatch(name)
    return match[1].lower().zfill(16) if match else ""
