"""How results reach stdout: tables for people, JSON, YAML or names for programs. stderr is written by exits.complain alone."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from google.protobuf.message import Message
    from rich.console import Console

# Nothing may be folded or cut, since programs read lines.
PIPE_WIDTH = 100_000

_STYLE_OF = {
    "running": "green", "ready": "green", "free": "green", "succeeded": "green", "placed": "cyan", "preparing": "cyan",
    "waiting": "yellow", "recovering": "yellow", "stopping": "yellow", "drained": "yellow", "draining": "yellow",
    "failed": "red", "lost": "red", "unreachable": "red", "absent": "red", "cancelled": "dim",
}  # fmt: skip


class Output(StrEnum):
    """-o of the commands that list."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"
    NAME = "name"


class Form(StrEnum):
    """-o of the commands that answer with one thing."""

    TEXT = "text"
    JSON = "json"
    YAML = "yaml"


@dataclass(frozen=True, slots=True)
class Column:
    """`wide`: shown by -o wide only. `age`: grows by itself, which is no change."""

    title: str
    wide: bool = False
    right: bool = False
    age: bool = False


def console() -> Console:
    """For stdout as it is now: colours only on a terminal and without NO_COLOR, folding only on a terminal."""
    from rich.console import Console

    class Quiet(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # exits.Commands ends it quietly, with its own code

    found = Quiet(file=sys.stdout, highlight=False, markup=False, emoji=False)
    return (
        found if found.is_terminal else Quiet(file=sys.stdout, highlight=False, markup=False, emoji=False, width=PIPE_WIDTH)
    )


def say(line: str = "") -> None:
    typer.echo(line)


def state_style(words: str) -> str:
    return _STYLE_OF.get(words.split(" ", maxsplit=1)[0].rstrip(","), "")


class Table:
    """Rows under titles, of fixed widths once the first rows are out, so that rows which a watch adds later stay in line."""

    def __init__(self, columns: Sequence[Column], wide: bool) -> None:
        self._columns = columns
        self._shown = [place for place, column in enumerate(columns) if wide or not column.wide]
        self._widths = [len(columns[place].title) for place in self._shown]
        self._titled = False

    def key(self, row: Sequence[str]) -> tuple[str, ...]:
        """What is shown of a row, ages aside: a row with the same key says nothing new."""
        return tuple(row[place] for place in self._shown if not self._columns[place].age)

    def print(self, rows: Sequence[Sequence[str]]) -> None:
        """Never folds or cuts: on a terminal that is too narrow the lines go on below, as the terminal has it."""
        cells = [[row[place] for place in self._shown] for row in rows]
        for place in range(len(self._shown)):
            self._widths[place] = max([self._widths[place], *(len(row[place]) for row in cells)])
        titles = [] if self._titled else [[self._columns[position].title for position in self._shown]]
        if sys.stdout.isatty():
            self._print_rich(titles, cells)
        else:
            for row in titles + cells:
                sys.stdout.write("  ".join(self._padded(row)).rstrip() + "\n")
            sys.stdout.flush()
        self._titled = True

    def _padded(self, row: list[str]) -> list[str]:
        return [
            cell.rjust(width) if self._columns[position].right else cell.ljust(width)
            for cell, width, position in zip(row, self._widths, self._shown, strict=True)
        ]

    def _print_rich(self, titles: list[list[str]], cells: list[list[str]]) -> None:
        """With colours. For pipes and files it is not used: a script that asks often should not wait for rich."""
        from rich.text import Text

        out, gap = console(), Text("  ")
        for row in titles:
            out.print(Text("  ".join(self._padded(row)).rstrip(), style="bold"), soft_wrap=True)
        for row in cells:
            parts = [Text(padded, style=state_style(cell)) for padded, cell in zip(self._padded(row), row, strict=True)]
            line = gap.join(parts)
            line.rstrip()
            out.print(line, soft_wrap=True)


def to_data(message: Message) -> dict[str, Any]:
    """protobuf's own JSON form: lowerCamelCase, 64-bit integers as strings, unset fields with their defaults."""
    from google.protobuf.json_format import MessageToDict

    return MessageToDict(message, always_print_fields_with_no_presence=True)


def print_data(data: Any, form: str, *, line: bool = False) -> None:
    """`form`: json or yaml. `line`: one JSON object a line, or one YAML document, for streams."""
    if form == Form.YAML:
        from ruamel.yaml import YAML

        yaml = YAML(typ="safe", pure=True)
        yaml.default_flow_style = False
        yaml.width = PIPE_WIDTH
        if line:
            sys.stdout.write("---\n")
        yaml.dump(data, sys.stdout)
    else:
        import json

        sys.stdout.write(json.dumps(data, ensure_ascii=False, indent=None if line else 2) + "\n")
    sys.stdout.flush()
