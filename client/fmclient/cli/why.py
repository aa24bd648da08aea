"""Reasons for waiting, as lines for people."""

from __future__ import annotations

from collections.abc import Iterable

from fmproto.v1.job_pb2 import Why


def why_line(why: Why) -> str:
    """One constraint: what was asked, the best there is, and where."""
    parts = [part for part in (why.group, why.constraint) if part]
    where = f" ({why.where})" if why.where else ""
    return ": ".join([*parts, f"asked {why.asked or '-'}; best is {why.best or 'none'}{where}"])


def why_lines(whys: Iterable[Why]) -> list[str]:
    """Every constraint, each with what would help under it."""
    lines = []
    for why in whys:
        lines.append(why_line(why))
        if why.relax:
            lines.append(f"  would help: {why.relax}")
    return lines


def why_of(found: object) -> Why:
    """From one entry of a plan's "why"."""
    entry = found if isinstance(found, dict) else {}
    names = ("constraint", "group", "asked", "best", "where", "relax")
    return Why(**{name: "" if entry.get(name) is None else str(entry[name]) for name in names})
