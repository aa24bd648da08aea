"""Names out of dumps as a Cluster file may have them: allowed characters only, each thing its own name, ranges short. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from fmproto.dumptext import Problem
from fmproto.hostlist import fold, split

NAME_MAX = 200  # characters of a node's or switch's name; what was longer is cut, and that is told
RANGE_MAX = 160  # characters of one written range; a YAML key may have 1,024
PROBLEMS_MAX = 1000  # of what merging finds; each file's own are bounded by its reader

_ODD = re.compile(r"[^A-Za-z0-9._-]+")
_DIGITS = re.compile(r"(\d{1,18})")


class Notes:
    """What merging set aside, bounded; what is beyond is counted in the last one."""

    def __init__(self) -> None:
        self._found: list[Problem] = []
        self._more = 0

    def add(self, file: str, what: str, why: str) -> None:
        if len(self._found) < PROBLEMS_MAX:
            self._found.append(Problem(file, 0, what, why))
        else:
            self._more += 1

    def found(self) -> tuple[Problem, ...]:
        if not self._more:
            return tuple(self._found)
        return (*self._found, Problem("", 0, f"{self._more} more problems", "only the first are listed"))


def allowed_name(text: str, fallback: str) -> str:
    """The name with what a Cluster file does not allow made '-'; `fallback` where nothing is left. At most NAME_MAX characters."""
    plain = _ODD.sub("-", text).strip("-._")
    return plain[:NAME_MAX].rstrip("-._") or fallback


def natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """Sorts n2 before n10."""
    parts = _DIGITS.split(name)
    return tuple((1, int(part), part) if i % 2 else (0, 0, part) for i, part in enumerate(parts) if part)


def unique_names(
    wanted: Mapping[str, str], taken: Iterable[str], suffix: str, tell: Callable[[str, Sequence[str]], None]
) -> dict[str, str]:
    """Allowed names of things by their id. Things that share a name get their id behind it, all of them, and `tell` hears of it:
    (the name, the new names). A name in `taken` gets `suffix`.
    """
    plain = {key: allowed_name(name, allowed_name(key, "unnamed")) for key, name in wanted.items()}
    shared = Counter(plain.values())
    used = set(taken)
    numbers: dict[str, int] = {}
    found: dict[str, str] = {}
    told: dict[str, list[str]] = {}
    for key, name in plain.items():
        chosen = name
        if shared[name] > 1 and allowed_name(key, "") not in ("", name):
            chosen = allowed_name(f"{name[: NAME_MAX - 64]}-{allowed_name(key, '')[:60]}", name)
        if chosen in used:
            chosen = f"{chosen}-{suffix}" if f"{chosen}-{suffix}" not in used else chosen
        base = chosen
        while (
            chosen in used
        ):  # ends: the number of a base only grows, so all names together need as many rounds as there are names
            numbers[base] = numbers.get(base, 1) + 1
            chosen = f"{base}-{numbers[base]}"
        used.add(chosen)
        found[key] = chosen
        if chosen != name or len(_ODD.sub("-", wanted[key]).strip("-._")) > NAME_MAX:
            told.setdefault(name, []).append(chosen)
    for name, chosen_names in told.items():
        tell(name, chosen_names)
    return found


def ranges(names: Iterable[str]) -> Iterator[str]:
    """Short texts that expand() turns into the same names, sorted, each at most about RANGE_MAX characters long."""
    line = ""
    for item in split(fold(sorted(names, key=natural))):
        for part in _cut(item):
            if line and len(line) + len(part) + 1 > RANGE_MAX:
                yield line
                line = ""
            line = f"{line},{part}" if line else part
    if line:
        yield line


def _cut(item: str) -> Iterator[str]:
    """`n[1,3,5,…]` with many spans, as several ranges."""
    if len(item) <= RANGE_MAX or "[" not in item:
        yield item
        return
    prefix, rest = item.split("[", 1)
    inside, _, suffix = rest.partition("]")
    spans: list[str] = []
    for span in inside.split(","):
        if spans and len(prefix) + len(suffix) + sum(len(one) + 1 for one in spans) + len(span) > RANGE_MAX:
            yield _joined(prefix, spans, suffix)
            spans = []
        spans.append(span)
    yield _joined(prefix, spans, suffix)


def _joined(prefix: str, spans: list[str], suffix: str) -> str:
    if len(spans) == 1 and "-" not in spans[0]:
        return f"{prefix}{spans[0]}{suffix}"
    return f"{prefix}[{','.join(spans)}]{suffix}"
