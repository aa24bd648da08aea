"""A picture as SVG 1.1 text. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import escape

from fmclient.cli.drawing.shapes import Line, Picture, Rect, Shape, Text

FONTS = "DejaVu Sans, Verdana, Arial, sans-serif"
# What XML 1.0 cannot hold, not even escaped.
_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def write(picture: Picture) -> str:
    width, height = _figure(picture.width), _figure(picture.height)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    lines = ['<?xml version="1.0" encoding="UTF-8"?>', f'{head} font-family="{FONTS}">']
    lines += (line for shape in picture.shapes for line in _lines(shape))
    return "\n".join([*lines, "</svg>", ""])


def _lines(shape: Shape) -> Iterator[str]:
    if isinstance(shape, Rect):
        yield from _rect(shape)
    elif isinstance(shape, Line):
        ends = f'x1="{_figure(shape.x1)}" y1="{_figure(shape.y1)}" x2="{_figure(shape.x2)}" y2="{_figure(shape.y2)}"'
        yield f'<line {ends} stroke="{shape.stroke}" stroke-width="{_figure(shape.width)}"/>'
    else:
        yield _text(shape)


def _rect(shape: Rect) -> Iterator[str]:
    place = f'x="{_figure(shape.x)}" y="{_figure(shape.y)}" width="{_figure(shape.width)}" height="{_figure(shape.height)}"'
    words = [place, f'fill="{shape.fill or "none"}"']
    if shape.kind:
        words.insert(0, f'class="{_escaped(shape.kind)}"')
    if shape.stroke:
        words.append(f'stroke="{shape.stroke}"')
        if shape.stroke_width != 1:
            words.append(f'stroke-width="{_figure(shape.stroke_width)}"')
    if shape.radius:
        words.append(f'rx="{_figure(shape.radius)}"')
    start = f"<rect {' '.join(words)}"
    yield f"{start}><title>{_escaped(shape.title)}</title></rect>" if shape.title else f"{start}/>"


def _text(shape: Text) -> str:
    words = [f'x="{_figure(shape.x)}" y="{_figure(shape.y)}" font-size="{_figure(shape.size)}" fill="{shape.fill}"']
    if shape.bold:
        words.append('font-weight="bold"')
    if shape.anchor != "start":
        words.append(f'text-anchor="{shape.anchor}"')
    return f"<text {' '.join(words)}>{_escaped(shape.text)}</text>"


def _escaped(text: str) -> str:
    return escape(_FORBIDDEN.sub("\ufffd", text), quote=True)


def _figure(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")
