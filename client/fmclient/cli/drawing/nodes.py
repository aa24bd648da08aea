"""One node drawn: its GPUs in their NVLink sets, its adapters, its name and state where there is room. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from fmclient.cli.drawing import colours
from fmclient.cli.drawing.sets import NvlinkSet, nvlink_sets
from fmclient.cli.drawing.shapes import Line, Rect, Shape, Text, fitted, text_width
from fmclient.cli.nodes import CLOSED, DEGRADED, FAILED, READY, GpuView, faults, gpu_views, reason_of, types
from fmproto.v1.hardware_pb2 import HEALTH_STATE_DRAINING, HEALTH_STATE_FAILED, HcaPort
from fmproto.v1.scheduler_pb2 import Node

IN_ROW = 8  # GPUs; of nodes with more, the others are below
FAULTS_MAX = 3  # written under a node; all are in the list below the picture
DRAINING = "draining"


@dataclass(frozen=True, slots=True)
class Style:
    """Sizes in pixels. `words`: names, numbers, adapters and faults are written; `name_size` without them: only names, before the GPUs."""

    cell: float
    gap: float
    words: bool = False
    name_size: float = 0.0
    title_size: float = 11.0


# By the number of nodes and GPUs: what of them can be told apart by eye.
DETAILED = Style(24, 4, words=True, name_size=12, title_size=14)
NAMED = Style(11, 2, name_size=9, title_size=12)
SMALL = Style(6.5, 1.2, title_size=10)
TINY = Style(3.5, 0.7, title_size=9)


def style_for(nodes: int, gpus: int) -> Style:
    if nodes <= 48 and gpus <= 600:
        return DETAILED
    if nodes <= 320 and gpus <= 3000:
        return NAMED
    return SMALL if gpus <= 24_000 else TINY


@dataclass(frozen=True)
class NodeBlock:
    """`name_width`: kept for the name before the GPUs, so that those of several nodes stand in line."""

    node: Node
    style: Style
    name_width: float = 0.0

    @cached_property
    def views(self) -> tuple[GpuView, ...]:
        return gpu_views(self.node)

    @cached_property
    def sets(self) -> tuple[NvlinkSet, ...]:
        return nvlink_sets(self.node.inventory)

    @cached_property
    def _rows(self) -> list[list[NvlinkSet]]:
        """NVLink sets beside one another as far as IN_ROW GPUs go; a larger set has rows of its own."""
        rows: list[list[NvlinkSet]] = []
        room = 0
        for each in self.sets:
            if not rows or len(each.gpus) > room:
                rows.append([])
                room = IN_ROW
            rows[-1].append(each)
            room -= len(each.gpus)
        return rows

    @property
    def _label_width(self) -> float:
        if self.style.words or not self.style.name_size:
            return 0.0
        return max(self.name_width, text_width(self.node.name, self.style.name_size)) + 6

    def _set_width(self, each: NvlinkSet) -> float:
        return min(len(each.gpus), IN_ROW) * (self.style.cell + self.style.gap) + self.style.gap

    def _set_height(self, each: NvlinkSet) -> float:
        return -(-len(each.gpus) // IN_ROW) * (self.style.cell + self.style.gap) + self.style.gap

    @cached_property
    def width(self) -> float:
        width = max((sum(self._set_width(each) + self.style.gap for each in row) for row in self._rows), default=0.0)
        if self.style.words:
            width = max(width, 8 * 28.0, 12.0 * len(self.node.inventory.hca_ports))
        return max(self._label_width + width, self.style.cell)

    @cached_property
    def height(self) -> float:
        rows = sum(max(self._set_height(each) for each in row) + self.style.gap for row in self._rows)
        if not self.style.words:
            return max(rows, self.style.cell + self.style.gap, self.style.name_size)
        has_sets = any(each.label for each in self.sets)
        return (
            34 + rows + 13 * has_sets * len(self._rows) + 16 * bool(self.node.inventory.hca_ports) + 14 * self._fault_lines
        )

    @property
    def _fault_lines(self) -> int:
        found = len(faults(self.node)) + (self.node.state != READY)
        return min(found, FAULTS_MAX + 1)

    def draw(self, x: float, y: float, job_colour: Mapping[str, str]) -> Iterator[Shape]:
        left, top = x + self._label_width, y
        if self.style.words:
            yield Text(x, y + 11, fitted(self.node.name, 12, self.width), 12, bold=True)
            yield Text(x, y + 26, fitted(types(self.node), 10, self.width), 10, colours.FAINT)
            top = y + 32
        elif self.style.name_size:
            middle = y + self.height / 2 + self.style.name_size * 0.35
            colour = colours.INK if self.node.state == READY else colours.FAILED
            yield Text(x, middle, self.node.name, self.style.name_size, colour)
        for row in self._rows:
            at = left
            for each in row:
                yield from self._draw_set(each, at, top, job_colour)
                at += self._set_width(each) + self.style.gap
            top += max(self._set_height(each) for each in row) + self.style.gap
            if self.style.words and any(each.label for each in self.sets):
                top += 13
        if self.style.words:
            yield from self._draw_words(x, top)
        elif any(is_down(self.node, port) for port in self.node.inventory.hca_ports):
            wide = max(1.5, self.style.cell / 4)
            yield Rect(
                x + self.width - self.style.gap, y, wide, self.height - self.style.gap, colours.PORT_DOWN, kind="port down"
            )

    def _draw_set(self, each: NvlinkSet, x: float, y: float, job_colour: Mapping[str, str]) -> Iterator[Shape]:
        cell, gap = self.style.cell, self.style.gap
        if each.label:
            title = f"{self.node.name} GPU {', '.join(map(str, each.gpus))}: {each.label}"
            width, height = self._set_width(each), self._set_height(each)
            yield Rect(x, y, width, height, colours.NVLINK, radius=gap, title=title, kind="nvlink")
            if self.style.words:
                words = each.label if text_width(each.label, 9) <= width else each.rate
                yield Text(x + width / 2, y + height + 10, fitted(words, 9, width + gap), 9, colours.FAINT, anchor="middle")
        view_of = {view.gpu.index: view for view in self.views}
        for place, index in enumerate(each.gpus):
            left = x + gap + place % IN_ROW * (cell + gap)
            top = y + gap + place // IN_ROW * (cell + gap)
            yield from self._draw_gpu(view_of[index], left, top, job_colour)

    def _draw_gpu(self, view: GpuView, x: float, y: float, job_colour: Mapping[str, str]) -> Iterator[Shape]:
        cell = self.style.cell
        held = job_colour.get(view.job, colours.HELD) if view.job else ""
        fill, edge, width = held or colours.FREE, held or colours.FREE_EDGE, max(0.5, cell / 24)
        if view.state == FAILED:
            fill, edge = colours.FAILED, held or colours.FAILED
        elif view.state == DRAINING:
            fill, edge = colours.DRAINING, held or colours.DRAINING
        elif view.state == CLOSED:
            fill, edge = colours.CLOSED, colours.CLOSED_EDGE
        if view.state == FAILED and not self.style.words:
            # Small ones must be seen too: wholly red, and a little larger.
            edge, more = colours.FAILED, self.style.gap / 2
            x, y, cell = x - more, y - more, cell + 2 * more
        elif view.state in (FAILED, DRAINING, DEGRADED) and (held or view.state == DEGRADED):
            edge, width = (held, cell / 6) if view.state != DEGRADED else (colours.DEGRADED, max(1.0, cell / 6))
        title = f"{self.node.name} GPU {view.gpu.index}: {view.state}" + (f", {view.job}" if view.job else "")
        title += f": {view.reason}" if view.reason else ""
        yield Rect(x, y, cell, cell, fill, edge, width, cell / 8, title, f"gpu {view.state}")
        if view.state == FAILED:
            inner = cell / 4
            yield Line(x + inner, y + inner, x + cell - inner, y + cell - inner, "#ffffff", max(0.7, cell / 10))
            yield Line(x + inner, y + cell - inner, x + cell - inner, y + inner, "#ffffff", max(0.7, cell / 10))
        elif view.state == CLOSED and cell > 5:
            yield Line(x + 1, y + cell - 1, x + cell - 1, y + 1, colours.CLOSED_EDGE, max(0.5, cell / 24))
        if self.style.words and view.state != FAILED:
            ink = "#ffffff" if colours.is_dark(fill) else colours.INK
            yield Text(x + cell / 2, y + cell / 2 + 4, str(view.gpu.index), 11, ink, anchor="middle")

    def _draw_words(self, x: float, y: float) -> Iterator[Shape]:
        top = y
        if ports := self.node.inventory.hca_ports:
            for place, port in enumerate(ports):
                down = is_down(self.node, port)
                title = (
                    f"{port.hca} port {port.port}: {port.rate_gbps:g} Gb/s {port.link_layer}, {'down' if down else 'up'}"
                )
                colour = colours.PORT_DOWN if down else colours.PORT_UP
                yield Rect(
                    x + place * 12, top, 9, 9, colour, radius=4.5, title=title, kind=f"port {'down' if down else 'up'}"
                )
            top += 16
        lines = list(faults(self.node))
        if self.node.state != READY:
            reason = reason_of(self.node)
            lines.insert(0, self.node.state + (f": {reason}" if reason else ""))
        if len(lines) > FAULTS_MAX + 1:
            lines = [*lines[:FAULTS_MAX], f"and {len(lines) - FAULTS_MAX} more"]
        for place, line in enumerate(lines):
            yield Text(x, top + 10 + 14 * place, fitted(line, 10, self.width), 10, colours.FAILED)


def is_down(node: Node, port: HcaPort) -> bool:
    """Not Active, or out of use by its health. A port whose state nobody tells is up."""
    sick = {each.device for each in node.health.hca_ports if each.state in (HEALTH_STATE_FAILED, HEALTH_STATE_DRAINING)}
    return port.state not in ("", "Active") or f"{port.hca}/{port.port}" in sick
