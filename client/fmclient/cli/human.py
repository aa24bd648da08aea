"""Numbers and times as people read them. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime

EXAMPLES_MAX = 5
# The nouns that objective terms begin with.
_PLURAL = re.compile(r"^(free |leaf )?(step|instance|group|pod|core|domain|node|GPU)s\b")
MINUTE_S, HOUR_S, DAY_S = 60, 3600, 86_400


def age(since_ms: int, now_ms: int) -> str:
    """ "12s", "3m10s", "5h2m", "4d7h"; "-" for a time that is not set. A clock that runs behind gives "0s"."""
    if since_ms <= 0:
        return "-"
    seconds = max(0, now_ms - since_ms) // 1000
    for unit_s, unit, part_s, part in ((DAY_S, "d", HOUR_S, "h"), (HOUR_S, "h", MINUTE_S, "m"), (MINUTE_S, "m", 1, "s")):
        if seconds >= unit_s:
            rest = seconds % unit_s // part_s
            return f"{seconds // unit_s}{unit}" + (f"{rest}{part}" if rest else "")
    return f"{seconds}s"


def moment(at_ms: int) -> str:
    """ "2026-03-01T12:00:05Z"; "-" for a time that is not set."""
    return f"{datetime.fromtimestamp(at_ms // 1000, UTC):%Y-%m-%dT%H:%M:%SZ}" if at_ms > 0 else "-"


def count(number: int, noun: str) -> str:
    """ "1 GPU", "8 GPUs"."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def amount(number: float) -> str:
    """ "1,612,800", "2.5"."""
    return f"{number:,.0f}" if number == int(number) else f"{number:,.3g}"


def one(phrase: str) -> str:
    """The phrase as it goes with 1: its first plural noun and the verb after it in the singular."""
    return _PLURAL.sub(r"\1\2", phrase, count=1).replace(" that leave ", " that leaves ")


def missing(noun: str, name: str, known: Iterable[str]) -> str:
    """As the service says it: "no node named 'n9'; there are: n1, n2"."""
    examples = ", ".join(sorted(known)[:EXAMPLES_MAX])
    return f"no {noun} named {name!r}" + (f"; there are: {examples}" if examples else "")


def ranges(numbers: Iterable[int]) -> str:
    """ "0-3,7" of 0, 1, 2, 3, 7; "-" of none."""
    parts: list[list[int]] = []
    for number in sorted(set(numbers)):
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in parts) or "-"


def few(names: Iterable[str], shown_max: int = 3) -> str:
    """ "n1,n2,n3 and 5 more"; "-" of none."""
    listed = list(names)
    more = f" and {len(listed) - shown_max} more" if len(listed) > shown_max else ""
    return (",".join(listed[:shown_max]) + more) or "-"
