"""Name ranges as people write them: `n[0001-1250]`, `p[1-2]-leaf[01,03-05]`. Expanding them, and folding names back.

The notation is that of Slurm's host lists; the width of the first number of a range pads its numbers.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence

EXPANDED_MAX = 200_000  # names; a typing error such as n[1-99999999] must not fill the memory

_PART = re.compile(r"[^][,\s]+|\[[^][]*\]")
_SPAN = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")
_TAIL_NUMBER = re.compile(r"(.*?)(\d{1,9})(\D*)", re.DOTALL)


def expand(text: str) -> tuple[str, ...]:
    """The names that `text` stands for, in order; several ranges are separated by commas outside brackets.

    Raises ValueError, saying what was found and what is allowed.
    """
    names: list[str] = []
    for item in split(text):
        names.extend(_expand_one(item))
        if len(names) > EXPANDED_MAX:
            raise ValueError(f"{text!r} stands for more than {EXPANDED_MAX} names")
    return tuple(names)


def split(text: str) -> list[str]:
    """The ranges of a text, at its commas outside brackets, not yet expanded."""
    items, depth, start = [], 0, 0
    for at, char in enumerate(text):
        depth += (char == "[") - (char == "]")
        if char == "," and depth == 0:
            items.append(text[start:at].strip())
            start = at + 1
    items.append(text[start:].strip())
    return items


def _expand_one(item: str) -> list[str]:
    parts = _PART.findall(item)
    if not item or "".join(parts) != item:
        raise ValueError(f"{item!r} is not a name or a range such as n[0001-1250]")
    choices: list[Sequence[str]] = []
    total = 1
    for part in parts:
        choices.append(_expand_brackets(part, item) if part.startswith("[") else (part,))
        total *= len(choices[-1])
        if total > EXPANDED_MAX:
            raise ValueError(f"{item!r} stands for more than {EXPANDED_MAX} names")
    return ["".join(combination) for combination in itertools.product(*choices)]


def _expand_brackets(part: str, item: str) -> list[str]:
    numbers: list[str] = []
    for span in part[1:-1].split(","):
        match = _SPAN.fullmatch(span.strip())
        if not match:
            raise ValueError(f"{span!r} in {item!r} is not a number or a range such as 0001-1250")
        low, high = match[1], match[2] or match[1]
        if int(high) < int(low):
            raise ValueError(f"{span!r} in {item!r} runs backwards")
        if int(high) - int(low) >= EXPANDED_MAX:
            raise ValueError(f"{item!r} stands for more than {EXPANDED_MAX} names")
        width = len(low)
        numbers.extend(str(number).zfill(width) for number in range(int(low), int(high) + 1))
    return numbers


def fold(names: Iterable[str]) -> str:
    """A short text that expand() turns into the same names in the same order."""
    runs: list[_Run] = []
    for name in names:
        if not (runs and runs[-1].take(name)):
            runs.append(_Run(name))
    items: list[str] = []
    # Names without a number cannot share brackets, not even with those that begin alike: "a" beside "a0".
    for (prefix, suffix, numbered), group in itertools.groupby(
        runs, key=lambda run: (run.prefix, run.suffix, run.width > 0)
    ):
        members = list(group)
        if not numbered:
            items.extend(run.name for run in members)
        elif len(members) == 1 and members[0].low == members[0].high:
            items.append(members[0].name)
        else:
            items.append(f"{prefix}[{','.join(run.span for run in members)}]{suffix}")
    return ",".join(items)


class _Run:
    """Consecutive names that differ only in their last number, which rises by one at one width."""

    def __init__(self, name: str) -> None:
        self.name = name
        match = _TAIL_NUMBER.fullmatch(name)
        self.prefix, digits, self.suffix = (match[1], match[2], match[3]) if match else (name, "", "")
        self.width = len(digits)
        self.low = self.high = int(digits) if digits else -1

    @property
    def span(self) -> str:
        low = str(self.low).zfill(self.width)
        return low if self.low == self.high else f"{low}-{str(self.high).zfill(self.width)}"

    def take(self, name: str) -> bool:
        if self.width == 0:
            return False
        following = str(self.high + 1).zfill(self.width)
        if name != f"{self.prefix}{following}{self.suffix}":
            return False
        self.high += 1
        return True
