"""A picture as values: a few shapes with places in pixels, the first ones lowest. Pure; svg.py and png.py write it."""

from __future__ import annotations

from dataclasses import dataclass

# Of a character's size: what one is wide on average in the fonts that are used. Text that would not fit is cut by it.
CHARACTER_WIDTH = 0.56


@dataclass(frozen=True, slots=True)
class Rect:
    """`title` is what a browser shows when the mouse is over it; `kind` names what it stands for ("gpu free")."""

    x: float
    y: float
    width: float
    height: float
    fill: str = ""  # "#rrggbb"; empty: none
    stroke: str = ""
    stroke_width: float = 1.0
    radius: float = 0.0
    title: str = ""
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Line:
    x1: float
    y1: float
    x2: float
    y2: float
    stroke: str
    width: float = 1.0


@dataclass(frozen=True, slots=True)
class Text:
    """`y` is the base line; `anchor` says what of the text is at x: "start" | "middle" | "end"."""

    x: float
    y: float
    text: str
    size: float
    fill: str = "#263238"
    bold: bool = False
    anchor: str = "start"


Shape = Rect | Line | Text


@dataclass(frozen=True, slots=True)
class Picture:
    width: float
    height: float
    shapes: tuple[Shape, ...]


def text_width(text: str, size: float) -> float:
    return len(text) * size * CHARACTER_WIDTH


def fitted(text: str, size: float, width: float) -> str:
    """The text, cut where it is too wide; empty where not even three characters fit."""
    if text_width(text, size) <= width:
        return text
    room = int(width / (size * CHARACTER_WIDTH)) - 1
    return text[:room].rstrip() + "…" if room >= 2 else ""
