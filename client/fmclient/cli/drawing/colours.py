"""Colours: of states, and of jobs. None of a job's is red, orange or grey: those are for trouble. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

INK, FAINT, FRAME, PANEL = "#263238", "#607d8b", "#b0bec5", "#f7f9fa"
FREE, FREE_EDGE = "#ffffff", "#90a4ae"
FAILED, CLOSED, CLOSED_EDGE = "#d50000", "#cfd8dc", "#78909c"
DRAINING, DEGRADED = "#ffb300", "#ff6d00"
NVLINK = "#cfe3f8"
PORT_UP, PORT_DOWN = "#66bb6a", "#d50000"
HELD = "#455a64"

_JOBS = (
    "#1f77b4", "#2ca02c", "#9467bd", "#17becf", "#8c564b", "#a5b300", "#d65db1", "#283593",
    "#00897b", "#7cb342", "#5e35b1", "#4fc3f7", "#a1887f", "#6d7f00", "#8e24aa", "#005662",
    "#81c784", "#b39ddb", "#1b5e20", "#4a148c",
)  # fmt: skip
_PALER = 0.45  # the second round of the palette is mixed with so much white
COLOURS = len(_JOBS) * 2  # jobs beyond have colours that came before


def job_colours(sizes: Mapping[str, int]) -> dict[str, str]:
    """A colour for each job, the largest first: those one looks for differ most."""
    ordered: Iterable[str] = sorted(sizes, key=lambda job: (-sizes[job], job))
    return {job: _colour(place) for place, job in enumerate(ordered)}


def _colour(place: int) -> str:
    base = _JOBS[place % len(_JOBS)]
    return base if place % COLOURS < len(_JOBS) else _mixed(base)


def _mixed(colour: str) -> str:
    parts = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(part + (255 - part) * _PALER):02x}" for part in parts)


def is_dark(colour: str) -> bool:
    """Whether white text reads better on it than black."""
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return 0.3 * red + 0.59 * green + 0.11 * blue < 150
