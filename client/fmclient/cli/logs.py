"""fmctl logs."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from fmclient.cli.options import JobArgument, ServerOption, TimeoutOption, connect

COLOURS = ("cyan", "green", "yellow", "magenta", "blue", "bright_cyan", "bright_green", "bright_yellow")
# A rank that writes without ever ending a line must not fill the client's memory.
LINE_BYTES_MAX = 1024 * 1024


def logs(
    ctx: typer.Context,
    job: JobArgument,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on until the job has ended.")] = False,
    rank: Annotated[
        list[int] | None, typer.Option("--rank", metavar="N", min=0, help="Only this rank; may be repeated.")
    ] = None,
    tail: Annotated[int, typer.Option("--tail", metavar="N", min=0, help="The last N lines of each rank; 0: all.")] = 0,
    attempt: Annotated[
        int, typer.Option("--attempt", metavar="N", min=0, help="Of an earlier attempt; 0: the newest.")
    ] = 0,
    server: ServerOption = None,
    timeout_s: TimeoutOption = None,
) -> None:
    """Print what a job's ranks wrote, each line with its rank; without prefix where one rank is asked for."""
    ranks = rank or []
    lines = Lines(prefixed=len(ranks) != 1)
    with connect(ctx, server, timeout_s) as client:
        try:
            for chunk in client.logs(job, follow=follow, ranks=ranks, tail=tail, attempt=attempt):
                lines.add(chunk.rank, chunk.stderr, chunk.data)
        finally:
            lines.end()


class Lines:
    """Joins chunks to whole lines, so that ranks which write at the same time do not tear each other's."""

    def __init__(self, prefixed: bool) -> None:
        self._prefixed = prefixed
        self._open: dict[tuple[int, bool], bytes] = {}
        self._coloured = prefixed and _in_colour()

    def add(self, rank: int, stderr: bool, data: bytes) -> None:
        *whole, rest = (self._open.pop((rank, stderr), b"") + data).split(b"\n")
        for line in whole:
            self._print(rank, line)
        if len(rest) >= LINE_BYTES_MAX:
            self._print(rank, rest)
            rest = b""
        if rest:
            self._open[rank, stderr] = rest
        sys.stdout.flush()

    def end(self) -> None:
        """Prints what was not ended by a newline."""
        for (rank, _), rest in self._open.items():
            self._print(rank, rest)
        self._open.clear()
        sys.stdout.flush()

    def _print(self, rank: int, line: bytes) -> None:
        prefix = f"[{rank}] " if self._prefixed else ""
        if self._coloured:
            prefix = typer.style(prefix, fg=COLOURS[rank % len(COLOURS)])
        sys.stdout.write(prefix + line.decode("utf-8", "replace") + "\n")


def _in_colour() -> bool:
    from fmclient.cli.output import console

    found = console()
    return found.color_system is not None and not found.no_color
