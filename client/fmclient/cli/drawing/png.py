"""A picture as PNG, drawn by Pillow. Raises ImportError where Pillow is missing: the extra `draw` has it."""

from __future__ import annotations

import io
from functools import cache

from PIL import Image, ImageDraw, ImageFont

from fmclient.cli.drawing.shapes import Line, Picture, Rect, Text

SCALE = 2.0  # pixels for each unit of the picture: sharp on today's screens
PIXELS_MAX = 60_000_000  # 180 MB while it is drawn; a larger picture is drawn smaller

_GLYPHS = {"×": "x"}  # what the font that Pillow brings lacks
_ANCHORS = {"start": "ls", "middle": "ms", "end": "rs"}


def write(picture: Picture) -> bytes:
    scale = scale_of(picture)
    size = (max(1, round(picture.width * scale)), max(1, round(picture.height * scale)))
    image = Image.new("RGB", size, "#ffffff")
    canvas = ImageDraw.Draw(image)
    for shape in picture.shapes:
        if isinstance(shape, Rect):
            _rect(canvas, shape, scale)
        elif isinstance(shape, Line):
            ends = (shape.x1 * scale, shape.y1 * scale, shape.x2 * scale, shape.y2 * scale)
            canvas.line(ends, fill=shape.stroke, width=max(1, round(shape.width * scale)))
        else:
            _text(canvas, shape, scale)
    content = io.BytesIO()
    image.save(content, "PNG", optimize=size[0] * size[1] < 4_000_000)
    return content.getvalue()


def scale_of(picture: Picture) -> float:
    area = max(1.0, picture.width * picture.height)
    return float(min(SCALE, (PIXELS_MAX / area) ** 0.5))


def _rect(canvas: ImageDraw.ImageDraw, shape: Rect, scale: float) -> None:
    left, top = round(shape.x * scale), round(shape.y * scale)
    right = max(left, round((shape.x + shape.width) * scale) - 1)
    bottom = max(top, round((shape.y + shape.height) * scale) - 1)
    canvas.rounded_rectangle(
        (left, top, right, bottom),
        radius=min(shape.radius * scale, (right - left) / 2, (bottom - top) / 2),
        fill=shape.fill or None,
        outline=shape.stroke or None,
        width=max(1, round(shape.stroke_width * scale)) if shape.stroke else 0,
    )


def _text(canvas: ImageDraw.ImageDraw, shape: Text, scale: float) -> None:
    font = _font(max(1, round(shape.size * scale)))
    place = (shape.x * scale, shape.y * scale)
    # The font that Pillow brings has one weight: a thin outline makes it bold.
    stroke = max(1, round(shape.size * scale / 40)) if shape.bold else 0
    text = "".join(_GLYPHS.get(c, c if c.isprintable() else " ") for c in shape.text)
    canvas.text(
        place, text, fill=shape.fill, font=font, anchor=_ANCHORS[shape.anchor], stroke_width=stroke, stroke_fill=shape.fill
    )


@cache
def _font(pixels: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(pixels)
