"""The whole cluster drawn: a panel for each leaf group, its nodes in it, the legend above, jobs and faults below. Pure: messages in, a
picture out. The more nodes, the smaller each; at every size one look shows what is busy, free and broken.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from fmclient.cli.draw import NO_LEAF, leaf_of
from fmclient.cli.drawing import colours
from fmclient.cli.drawing.nodes import NodeBlock, Style, is_down, style_for
from fmclient.cli.drawing.shapes import Line, Picture, Rect, Shape, Text, fitted, text_width
from fmclient.cli.human import count
from fmclient.cli.nodes import DEGRADED, IN_USE, READY, faults, is_free, reason_of
from fmproto.hostlist import fold
from fmproto.v1.hardware_pb2 import Fabric
from fmproto.v1.scheduler_pb2 import Node

MARGIN, GAP = 20.0, 12.0
WIDE = 1.6  # a picture's width by its height, about
WIDTH_MIN, WIDTH_MAX = 760.0, 6000.0
WIDTHS_TRIED = 60
BESIDES = 260.0  # height of legend, jobs and faults, about
JOBS_SHOWN_MAX, FAULTS_SHOWN_MAX = 40, 24
ALIKE_MAX = 3  # faults of one kind; more of them share a line
_DIGITS = re.compile(r"(\d{1,18})")


def natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """Sorts n2 before n10."""
    parts = _DIGITS.split(name)
    return tuple((1, int(part), part) if i % 2 else (0, 0, part) for i, part in enumerate(parts) if part)


def cluster_picture(
    nodes: Sequence[Node], fabric: Fabric, names: Mapping[str, str], leaves: set[str], title: str = "cluster"
) -> Picture:
    """`names`: job id → name; `leaves`: only these leaf groups, all where empty."""
    shown = [node for node in nodes if not leaves or leaf_of(node) in leaves]
    style = style_for(len(shown), sum(len(node.inventory.gpus) for node in shown))
    widest: dict[str, float] = {}
    for node in shown:
        widest[leaf_of(node)] = max(widest.get(leaf_of(node), 0.0), text_width(node.name, style.name_size))
    blocks = [NodeBlock(node, style, widest[leaf_of(node)]) for node in shown]
    sizes: dict[str, int] = {}
    for view in (view for block in blocks for view in block.views if view.job):
        sizes[view.job] = sizes.get(view.job, 0) + 1
    colour_of = colours.job_colours(sizes)
    by_leaf: dict[str, list[NodeBlock]] = {}
    for block in blocks:
        by_leaf.setdefault(leaf_of(block.node), []).append(block)
    ordered = sorted(by_leaf, key=lambda name: (name == NO_LEAF, natural(name)))
    panels = [_Panel(name, by_leaf[name], style) for name in ordered]
    width = _width(panels)
    shapes: list[Shape] = list(_head(title, blocks, width))
    y = max(shape.y + shape.height for shape in shapes if isinstance(shape, Rect)) + 14
    for shelf in _shelves(panels, width - 2 * MARGIN):
        x = MARGIN
        for column in shelf.columns:
            top = y
            for panel in column.panels:
                shapes += panel.draw(x, top, colour_of)
                top += panel.height + GAP
            x += column.width + GAP
        y += shelf.height + GAP
    y += 8
    jobs = _jobs(sizes, colour_of, names, width, y)
    trouble = _trouble(shown, fabric, width, y + jobs.height)
    shapes += jobs.shapes + trouble.shapes
    y += jobs.height + trouble.height
    background = Rect(0, 0, width, y + MARGIN, "#ffffff")
    return Picture(width, y + MARGIN, (background, *shapes))


@dataclass(frozen=True, slots=True)
class _Part:
    shapes: list[Shape]
    height: float


def _counted(blocks: Iterable[NodeBlock]) -> tuple[int, int, int]:
    """GPUs: (held, free, not usable)."""
    held = free = total = 0
    for block in blocks:
        total += len(block.views)
        held += sum(view.state == IN_USE or (view.state == DEGRADED and bool(view.job)) for view in block.views)
        free += sum(is_free(block.node, view) for view in block.views)
    return held, free, total - held - free


def _said(held: int, free: int, other: int) -> str:
    return f"{count(held + free + other, 'GPU')}: {held:,} in use, {free:,} free" + (
        f", {other:,} not usable" if other else ""
    )


def _head(title: str, blocks: Sequence[NodeBlock], width: float) -> Iterator[Shape]:
    text = f"{title}: {count(len(blocks), 'node')}, {_said(*_counted(blocks))}"
    yield Text(MARGIN, MARGIN + 14, fitted(text, 17, width - 2 * MARGIN), 17, bold=True)
    x, y = MARGIN, MARGIN + 30
    entries = (
        ("free", colours.FREE, colours.FREE_EDGE, 1.0),
        ("in use: a colour for each job", "#1f77b4", "", 0.0),
        ("degraded", colours.FREE, colours.DEGRADED, 2.0),
        ("draining", colours.DRAINING, "", 0.0),
        ("failed", colours.FAILED, "", 0.0),
        ("closed with its node", colours.CLOSED, colours.CLOSED_EDGE, 1.0),
        ("joined by NVLink", colours.NVLINK, "", 0.0),
        ("adapter port down", "", "", 0.0),
    )
    for words, fill, edge, edge_width in entries:
        if x + 22 + text_width(words, 11) > width - MARGIN and x > MARGIN:
            x, y = MARGIN, y + 18
        if fill:
            yield Rect(x, y, 12, 12, fill, edge, edge_width or 1.0, 1.5)
        else:
            yield Rect(x + 4, y, 4, 12, colours.PORT_DOWN)
        if words == "failed":
            yield Line(x + 3, y + 3, x + 9, y + 9, "#ffffff", 1.4)
            yield Line(x + 3, y + 9, x + 9, y + 3, "#ffffff", 1.4)
        yield Text(x + 17, y + 10, words, 11)
        x += 17 + text_width(words, 11) + 14


class _Panel:
    """A leaf group: its name, a bar of what is used, its nodes in columns, those of one NVLink domain in a frame of their own."""

    def __init__(self, name: str, blocks: Sequence[NodeBlock], style: Style) -> None:
        self.name = name
        self._style = style
        self._blocks = blocks
        groups: dict[str, list[NodeBlock]] = {}
        for block in sorted(
            blocks, key=lambda block: (natural(block.node.inventory.nvlink_domain), natural(block.node.name))
        ):
            groups.setdefault(block.node.inventory.nvlink_domain, []).append(block)
        self._groups = [_Group(domain, members, style) for domain, members in groups.items()]
        self._pad = 8 if style.words else 5
        self._head = style.title_size + 14

    @cached_property
    def width(self) -> float:
        inner: float = max(group.width for group in self._groups)
        return inner + 2 * self._pad

    @cached_property
    def height(self) -> float:
        return self._head + sum(group.height for group in self._groups) + 2 * self._pad

    def draw(self, x: float, y: float, colour_of: Mapping[str, str]) -> Iterator[Shape]:
        size, inner = self._style.title_size, self.width - 2 * self._pad
        held, free, other = _counted(self._blocks)
        title = f"{self.name}: {count(len(self._blocks), 'node')}, {_said(held, free, other)}"
        yield Rect(x, y, self.width, self.height, colours.PANEL, colours.FRAME, 1, 4, title, "leaf")
        name = fitted(self.name, size, inner)
        yield Text(x + self._pad, y + self._pad + size - 1, name, size, bold=True)
        numbers = f"{held:,}/{held + free + other:,}"
        if self._style.words:
            numbers = f"{held:,} of {held + free + other:,} in use"
        if text_width(name, size) * 1.15 + text_width(numbers, size - 1) + 6 < inner:
            yield Text(x + self.width - self._pad, y + self._pad + size - 1, numbers, size - 1, colours.FAINT, anchor="end")
        yield from self._bar(x + self._pad, y + self._pad + size + 3, inner, (held, free, other))
        top = y + self._pad + self._head
        for group in self._groups:
            yield from group.draw(x + self._pad, top, colour_of)
            top += group.height

    def _bar(self, x: float, y: float, width: float, numbers: tuple[int, int, int]) -> Iterator[Shape]:
        total = sum(numbers)
        for number, colour in zip(numbers, (colours.HELD, "#dfe6e9", colours.FAILED), strict=True):
            if number and total:
                part = width * number / total
                yield Rect(x, y, part, 4, colour)
                x += part


class _Group:
    """The nodes of one NVLink domain, or of none."""

    def __init__(self, domain: str, blocks: Sequence[NodeBlock], style: Style) -> None:
        self._domain = domain
        self._blocks = blocks
        self._gap = 16.0 if style.words else 2 * style.gap
        self._size = max(8.0, style.title_size - 2)
        self._cell_width: float = max(block.width for block in blocks) + self._gap
        below = 10.0 if style.words else style.gap
        # A group about as wide as high, and at least as wide as the words above it.
        area = self._cell_width * sum(block.height + below for block in blocks)
        self._columns = max(1, min(len(blocks), round(math.sqrt(area * 1.1) / self._cell_width)))
        self._rows = -(-len(blocks) // self._columns)
        # Nodes stand in columns, one below the other; those beside one another share the height of the highest.
        self._heights = [max(block.height for block in blocks[row :: self._rows]) + below for row in range(self._rows)]
        self._frame = (self._size + 8) if domain else 0.0

    @property
    def width(self) -> float:
        return max(self._columns * self._cell_width - self._gap + (8 if self._domain else 0), 70.0)

    @property
    def height(self) -> float:
        return sum(self._heights) + self._frame + (8 if self._domain else 0)

    def draw(self, x: float, y: float, colour_of: Mapping[str, str]) -> Iterator[Shape]:
        left, top = x, y
        if self._domain:
            title = f"NVLink domain {self._domain}: {count(len(self._blocks), 'node')}"
            yield Rect(x, y, self.width, self.height - 5, "#eaf3fd", "#7aaee0", 1, 3, title, "nvlink domain")
            yield Text(x + 4, y + self._size + 2, fitted(self._domain, self._size, self.width - 8), self._size, "#1f5f99")
            left, top = x + 4, y + self._frame
        for place, block in enumerate(self._blocks):
            row, column = place % self._rows, place // self._rows
            yield from block.draw(left + column * self._cell_width, top + sum(self._heights[:row]), colour_of)


def _width(panels: Sequence[_Panel]) -> float:
    """That which makes the picture's form come nearest to WIDE, the panels being put in rows."""
    widths = list(itertools.accumulate((panel.width + GAP for panel in panels), initial=2 * MARGIN - GAP))
    widest = max((panel.width for panel in panels), default=0.0) + 2 * MARGIN
    tried = {max(widest, min(WIDTH_MAX, max(WIDTH_MIN, width))) for width in widths[:: max(1, len(widths) // WIDTHS_TRIED)]}

    def form(width: float) -> float:
        height = sum(shelf.height + GAP for shelf in _shelves(panels, width - 2 * MARGIN))
        return abs(math.log(width / (height + BESIDES) / WIDE))

    return min(sorted(tried), key=form)


@dataclass(slots=True)
class _Column:
    width: float
    height: float
    panels: list[_Panel]


@dataclass(slots=True)
class _Shelf:
    columns: list[_Column]
    height: float


def _shelves(panels: Sequence[_Panel], width: float) -> list[_Shelf]:
    """Panels from left to right, in rows; a small one goes below another where a column has room for it."""
    shelves: list[_Shelf] = []
    used = 0.0
    for panel in panels:
        shelf = shelves[-1] if shelves else _Shelf([], 0.0)
        column = next((each for each in shelf.columns if _has_room(each, panel, shelf.height)), None)
        if column is not None:
            column.panels.append(panel)
            column.height += GAP + panel.height
            continue
        if not shelves or used + panel.width > width + 0.5:
            shelf, used = _Shelf([], 0.0), 0.0
            shelves.append(shelf)
        shelf.columns.append(_Column(panel.width, panel.height, [panel]))
        shelf.height = max(shelf.height, panel.height)
        used += panel.width + GAP
    return shelves


def _has_room(column: _Column, panel: _Panel, height: float) -> bool:
    return panel.width <= column.width and column.height + GAP + panel.height <= height


def _jobs(
    sizes: Mapping[str, int], colour_of: Mapping[str, str], names: Mapping[str, str], width: float, y: float
) -> _Part:
    """In columns, the largest first."""
    if not sizes:
        return _Part([], 0.0)
    listed = list(colour_of)[:JOBS_SHOWN_MAX]
    words = []
    for job in listed:
        name = f" ({names[job]})" if names.get(job) and names[job] != job else ""
        words.append(f"{job}{name}: {count(sizes[job], 'GPU')}")
    column = min(max(text_width(text, 11) for text in words) + 40, width - 2 * MARGIN)
    columns = max(1, int((width - 2 * MARGIN) / column))
    rows = -(-len(listed) // columns)
    shapes: list[Shape] = [Text(MARGIN, y + 12, f"{count(len(sizes), 'job')}, the largest first", 13, bold=True)]
    for place, (job, text) in enumerate(zip(listed, words, strict=True)):
        left, top = MARGIN + place // rows * column, y + 22 + place % rows * 17
        shapes.append(Rect(left, top, 12, 12, colour_of[job], radius=1.5, kind="job"))
        shapes.append(Text(left + 17, top + 10, fitted(text, 11, column - 22), 11))
    height = 22 + rows * 17 + 10.0
    if len(sizes) > len(listed):
        more = f"and {len(sizes) - len(listed):,} more"
        more += f"; colours come again after {colours.COLOURS} jobs" if len(sizes) > colours.COLOURS else ""
        shapes.append(Text(MARGIN, y + height + 2, more, 11, colours.FAINT))
        height += 16
    return _Part(shapes, height)


def _parted(fault: str) -> tuple[str, str, str]:
    """(device, state, ": reason") of a fault's sentence: "GPU 3 failed: Xid 79"."""
    head, colon, why = fault.partition(": ")
    device, _, state = head.rpartition(" ")
    return device, state, f"{colon}{why}"


def _trouble(nodes: Sequence[Node], fabric: Fabric, width: float, y: float) -> _Part:
    """What is wrong with nodes, devices and links, a line each, those of nodes first."""
    closed: dict[str, list[str]] = {}
    sick: dict[tuple[str, str], list[str]] = {}
    for node in sorted(nodes, key=lambda node: natural(node.name)):
        if node.state != READY:
            reason = reason_of(node)
            closed.setdefault(node.state + (f": {reason}" if reason else ""), []).append(node.name)
        for fault in faults(node):
            device, state, why = _parted(fault)
            noun = "GPU" if device.startswith("GPU ") else "device"
            sick.setdefault((noun, f"{state}{why}"), []).append(f"{node.name} {device}")
    lines = [f"{fold(names)} {what}" for what, names in closed.items()]
    total = sum(map(len, (*closed.values(), *sick.values())))
    for (noun, what), devices in sick.items():
        if len(devices) > ALIKE_MAX:
            lines.append(f"{count(len(devices), noun)} {what}: {', '.join(devices)}")
        else:
            lines += [f"{device} {what}" for device in devices]
    # The link of a port that is down is told of with the port.
    told = {(node.name, port.hca) for node in nodes for port in node.inventory.hca_ports if is_down(node, port)}
    known = {switch.name for switch in fabric.switches} | {node.name for node in nodes}
    for link in fabric.links:
        if link.down and link.a in known and link.b in known and told.isdisjoint(((link.a, link.hca), (link.b, link.hca))):
            lines.append(f"link {link.a} to {link.b}{f' ({link.hca})' if link.hca else ''} down")
            total += 1
    if not lines:
        return _Part([], 0.0)
    shapes: list[Shape] = [Text(MARGIN, y + 12, count(total, "fault"), 13, colours.FAILED, bold=True)]
    listed = lines[:FAULTS_SHOWN_MAX]
    columns = 2 if len(listed) > 8 and width > 1000 else 1
    rows = -(-len(listed) // columns)
    column = (width - 2 * MARGIN) / columns
    for place, line in enumerate(listed):
        text = fitted(line, 11, column - 12)
        shapes.append(Text(MARGIN + place // rows * column, y + 32 + place % rows * 16, text, 11))
    height = 26 + rows * 16.0
    if len(lines) > len(listed):
        shapes.append(Text(MARGIN, y + height + 10, f"and {len(lines) - len(listed):,} more", 11, colours.FAINT))
        height += 16
    return _Part(shapes, height + 8)
