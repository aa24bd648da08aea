"""A picture of the cluster fitted to a terminal of any size. Pure: values in, rich renderables out."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from fmclient.cli.draw import MARK_CLOSED, MARK_FREE, MARK_SICK
from fmclient.cli.human import age
from fmclient.cli.output import Column, state_style
from fmclient.cli.picture import (
    JOB_COLUMNS,
    MARK_HELD,
    NODE_COLUMNS,
    Picture,
    cluster_lines,
    job_row,
    node_row,
)

_MARK_STYLES = {MARK_HELD: "cyan", MARK_FREE: "green", MARK_SICK: "red", MARK_CLOSED: "dim"}
# Of a section: an empty line and its titles.
_SECTION_LINES = 2


@dataclass(frozen=True, slots=True)
class Screen:
    """Drawn anew for each frame, so that it follows the terminal's size and ages go on between two answers.

    taken_ms  when the picture was taken, Unix time
    trouble   why there is no newer picture; empty where all is well
    """

    picture: Picture
    nodes: bool
    jobs: bool
    taken_ms: int
    trouble: str = ""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        now_ms = time.time_ns() // 1_000_000
        head = self._head(now_ms)
        yield from head
        left = max(0, (options.height or console.size.height) - len(head))
        node_lines, job_lines = shares(left, len(self.picture.nodes) * self.nodes, len(self.picture.jobs) * self.jobs)
        if self.nodes:
            yield from _section(NODE_COLUMNS, [node_row(node) for node in self.picture.nodes], node_lines)
        if self.jobs:
            yield from _section(JOB_COLUMNS, [job_row(job, now_ms) for job in self.picture.jobs], job_lines)

    def _head(self, now_ms: int) -> list[Text]:
        load, jobs, service = cluster_lines(self.picture)
        well = self.picture.store == "ok" and self.picture.leader
        lines = [_line(load, "bold"), _line(jobs, "bold"), _line(service, "" if well else "red")]
        if self.trouble:
            lines.append(_line(f"as it was {age(self.taken_ms, now_ms)} ago: {self.trouble}", "red"))
        return lines


def shares(lines: int, nodes: int, jobs: int) -> tuple[int, int]:
    """Of `lines`, how many each section gets: what it needs, where both fit; else half, or what the other leaves."""
    need_nodes, need_jobs = (rows + _SECTION_LINES if rows else 0 for rows in (nodes, jobs))
    if need_nodes + need_jobs <= lines:
        return need_nodes, need_jobs
    half = lines // 2
    if need_jobs <= half:
        return lines - need_jobs, need_jobs
    if need_nodes <= half:
        return need_nodes, lines - need_nodes
    return lines - half, half


def _section(columns: Sequence[Column], rows: list[tuple[str, ...]], lines: int) -> RenderResult:
    """At most `lines` lines; the last one counts the rows that had no room."""
    room = lines - _SECTION_LINES
    if room <= 0:
        return
    shown = rows if len(rows) <= room else rows[: room - 1]
    yield Text("")
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in columns:
        # Rich shortens first what may be wrapped: the last column, which holds the sentence. Its cells are cut, not wrapped.
        last = column is columns[-1]
        table.add_column(column.title, justify="right" if column.right else "left", no_wrap=not last, overflow="ellipsis")
    for row in shown:
        table.add_row(*(_cell(cell) for cell in row))
    yield table
    if len(shown) < len(rows):
        yield _line(f"and {len(rows) - len(shown):,} more", "dim")


def _cell(cell: str) -> Text:
    if not set(cell) <= set(_MARK_STYLES) or cell == "-":
        return _line(cell, state_style(cell))
    text = _line("", "")
    for mark in cell:
        text.append(mark, style=_MARK_STYLES[mark])
    return text


def _line(words: str, style: str) -> Text:
    return Text(words, style=style, no_wrap=True, overflow="ellipsis")
