"""fmctl top: the cluster as it is now, drawn again and again."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from fmclient.cli.options import FormOption, ServerOption, TimeoutOption, connect
from fmclient.cli.output import Form, Table, console, print_data, say

if TYPE_CHECKING:
    from rich.console import Console

    from fmclient.cli.picture import Picture
    from fmclient.client import Client

INTERVAL_S = 2.0
# Each picture asks the service three times.
INTERVAL_MIN_S = 0.2
# The screen follows a resized terminal, and ages go on, so often.
FRAMES_PER_S = 2.0
KEYS_THAT_END = "qQ"


class Section(StrEnum):
    NODES = "nodes"
    JOBS = "jobs"


def top(
    ctx: typer.Context,
    section: Annotated[Section | None, typer.Argument(metavar="nodes|jobs", help="Only these.")] = None,
    interval_s: Annotated[
        float, typer.Option("--interval", metavar="SECONDS", min=INTERVAL_MIN_S, help="Between two pictures.")
    ] = INTERVAL_S,
    once: Annotated[
        bool, typer.Option("--once", help="One picture, then end: as where standard output is no terminal.")
    ] = False,
    output: FormOption = Form.TEXT,
    server: ServerOption = None,
    timeout_s: TimeoutOption = None,
) -> None:
    """Watch nodes with their held GPUs, and jobs; q or Ctrl-C ends. -o json and -o yaml print one picture."""
    from fmclient.cli.picture import data

    nodes, jobs = section is not Section.JOBS, section is not Section.NODES
    with connect(ctx, server, timeout_s) as client:
        picture = _load(client)
        if output is not Form.TEXT:
            found = data(picture)
            print_data({name: found[name] for name in found if section is None or name in ("cluster", section)}, output)
            return
        out = console()
        if once or not sys.stdout.isatty() or out.is_dumb_terminal:
            _print(picture, nodes, jobs)
            return
        try:
            _follow(client, out, picture, nodes, jobs, interval_s)
        except KeyboardInterrupt:
            return  # there is no other way to end it: nothing has failed


def _load(client: Client) -> Picture:
    from fmclient.cli.picture import picture_of

    return picture_of(client.nodes().nodes, client.list(live_only=True), client.version())


def _print(picture: Picture, nodes: bool, jobs: bool) -> None:
    from fmclient.cli.picture import JOB_COLUMNS, NODE_COLUMNS, cluster_lines, job_row, node_row

    for line in cluster_lines(picture):
        say(line)
    if nodes and picture.nodes:
        say()
        Table(NODE_COLUMNS, wide=False).print([node_row(node) for node in picture.nodes])
    if jobs and picture.jobs:
        say()
        Table(JOB_COLUMNS, wide=False).print([job_row(job, _now_ms()) for job in picture.jobs])


def _follow(client: Client, out: Console, picture: Picture, nodes: bool, jobs: bool, interval_s: float) -> None:
    """Until a key or Ctrl-C ends it. Where the service goes away, the last picture stays, with its age, until it is back."""
    from rich.live import Live

    from fmclient.cli.screen import Screen
    from fmclient.errors import DeadlineExceeded, Unreachable

    screen = Screen(picture, nodes, jobs, _now_ms())
    # SIGTERM ends it as Ctrl-C does: the terminal is given back first.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    live = Live(screen, console=out, screen=True, refresh_per_second=FRAMES_PER_S)
    with _keys() as keys:
        try:
            with _undisturbed():
                live.start(refresh=True)
            while not _ended(keys, interval_s):
                try:
                    screen = Screen(_load(client), nodes, jobs, _now_ms())
                except (DeadlineExceeded, Unreachable) as error:
                    screen = replace(screen, trouble=str(error))
                live.update(screen, refresh=True)
        finally:
            with _undisturbed():
                live.stop()


@contextmanager
def _undisturbed() -> Iterator[None]:
    """SIGINT and SIGTERM wait: half-way through, they would leave the terminal without a cursor, on the wrong screen."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _keys() -> Iterator[int | None]:
    """The descriptor on which keys come one by one, not echoed; None where standard input is no terminal."""
    if not sys.stdin.isatty():
        yield None
        return
    import termios
    import tty

    keys = sys.stdin.fileno()
    before = termios.tcgetattr(keys)
    try:
        tty.setcbreak(keys)
        yield keys
    finally:
        termios.tcsetattr(keys, termios.TCSADRAIN, before)


def _ended(keys: int | None, within_s: float) -> bool:
    """Waits `within_s`; True as soon as a key came that ends it. Other keys are forgotten."""
    import os
    import select

    if keys is None:
        time.sleep(within_s)
        return False
    deadline_s = time.monotonic() + within_s
    while (left_s := deadline_s - time.monotonic()) > 0:
        if select.select([keys], [], [], left_s)[0]:
            typed = os.read(keys, 64).decode(errors="replace")
            if not typed or any(key in KEYS_THAT_END for key in typed):  # nothing: the terminal has gone
                return True
    return False


def _now_ms() -> int:
    return int(time.time() * 1000)
