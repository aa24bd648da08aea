"""fmctl drain and undrain."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from fmclient.cli.exits import DONE, report
from fmclient.cli.options import ServerOption, TimeoutOption, connect
from fmclient.cli.output import say

if TYPE_CHECKING:
    from fmproto.v1.scheduler_pb2 import Node

NodesArgument = Annotated[list[str], typer.Argument(metavar="NODE...", help="Names of nodes.")]


def drain(
    ctx: typer.Context,
    nodes: NodesArgument,
    reason: Annotated[str, typer.Option("--reason", help="Shown to whoever asks why the node is closed.")] = "",
    server: ServerOption = None,
    timeout_s: TimeoutOption = None,
) -> None:
    """Close nodes to new jobs; what runs there goes on. Each is tried; the exit code is that of the first which failed."""
    with connect(ctx, server, timeout_s) as client:
        raise typer.Exit(_each(nodes, lambda node: client.drain(node, reason)))


def undrain(ctx: typer.Context, nodes: NodesArgument, server: ServerOption = None, timeout_s: TimeoutOption = None) -> None:
    """Open drained nodes to jobs again. Each is tried; the exit code is that of the first which failed."""
    with connect(ctx, server, timeout_s) as client:
        raise typer.Exit(_each(nodes, client.undrain))


def _each(nodes: list[str], change: Callable[[str], Node]) -> int:
    """Tells of each; the code of the first that failed."""
    from fmclient.errors import FmschedError

    code = DONE
    for node in nodes:
        try:
            found = change(node)
        except FmschedError as error:
            failed = report(error)
            code = code or failed
        else:
            say(f"node {found.name}: {found.state}")
    return code
