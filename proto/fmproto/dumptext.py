"""Text that tools printed, made readable: what every reader of dumps shares. Escape codes, byte order marks, carriage returns and NULs
go; lines keep their numbers; what cannot be used is a Problem with its place, and hides nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

BYTES_MAX = 256 << 20  # ibnetdiscover of 12,500 hosts is below 30 MB
LINE_MAX = 65_536  # characters; the rest of a longer line is cut, and the cut is a problem
PROBLEMS_MAX = 200  # of one file; what is beyond is counted in the last one
SHOWN_MAX = 80  # characters of a line that a problem repeats

# CSI and OSC sequences, and two-character escapes (ECMA-48).
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]{0,64}[ -/]{0,8}[@-~]|\][^\x07\x1b]{0,512}(?:\x07|\x1b\\)?|[@-Z\\^_])")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ufeff\u200b]")


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """Something that a reader set aside. `line` is 1-based, 0 for the whole file."""

    file: str
    line: int
    what: str  # what was found there
    why: str  # why it was set aside, and what is allowed

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.what}: {self.why}" if self.line else f"{self.file}: {self.what}: {self.why}"


class ReaderError(ValueError):
    """The whole file is not what it was said to be; `problem` says why. The only error that a reader raises."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(str(problem))
        self.problem = problem


class Problems:
    """What one reader set aside in one file, bounded."""

    def __init__(self, file: str) -> None:
        self.file = file
        self._found: list[Problem] = []
        self._more = 0

    def add(self, line: int, what: str, why: str) -> None:
        if len(self._found) < PROBLEMS_MAX:
            self._found.append(Problem(self.file, line, shown(what), why))
        else:
            self._more += 1

    def refuse(self, why: str, what: str = "the whole file", line: int = 0) -> ReaderError:
        """The error to raise where nothing of the file can be used."""
        return ReaderError(Problem(self.file, line, shown(what), why))

    def found(self) -> tuple[Problem, ...]:
        if not self._more:
            return tuple(self._found)
        return (*self._found, Problem(self.file, 0, f"{self._more} more problems", "only the first are listed"))


def shown(text: str) -> str:
    """As a message repeats it: one line, printable, not long."""
    plain = "".join(c if c.isprintable() else " " for c in text[: SHOWN_MAX + 1]).strip()
    return plain if len(plain) <= SHOWN_MAX and len(text) <= SHOWN_MAX + 1 else plain[: SHOWN_MAX - 1] + "…"


def decode(content: bytes, problems: Problems) -> str:
    """UTF-8 (UTF-16 where a byte order mark says so); what cannot be decoded becomes U+FFFD. Raises ReaderError above BYTES_MAX."""
    if len(content) > BYTES_MAX:
        raise problems.refuse(f"found {len(content):,} bytes; allowed: at most {BYTES_MAX:,}")
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        return content.decode("utf-16", errors="replace")
    return content.decode("utf-8", errors="replace")


def clean(text: str) -> str:
    """Without escape codes and control characters; newline and tab stay."""
    if "\x1b" in text:
        text = _ESCAPES.sub("", text)
    return _CONTROL.sub("", text)


def lines_of(text: str, problems: Problems) -> Iterator[tuple[int, str]]:
    """(number, line) of a dump: cleaned, without the line end, trailing blanks kept out; a line that is too long is cut."""
    for number, raw in enumerate(text.replace("\r\n", "\n").replace("\r", "\n").split("\n"), 1):
        if len(raw) > LINE_MAX:
            problems.add(
                number, raw[:SHOWN_MAX], f"found a line of {len(raw):,} characters; only the first {LINE_MAX:,} are read"
            )
            raw = raw[:LINE_MAX]  # noqa: PLW2901
        yield number, clean(raw).rstrip()
