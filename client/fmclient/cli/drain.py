"""fmctl drain and undrain."""

from __future__ import annotations

from typing import Annotated

import typer

from fmclient.cli.options import NodeArgument, ServerOption, TimeoutOption, connect
from fmclient.cli.output import say


def drain(
    ctx: typer.Context,
    node: NodeArgument,
    reason: Annotated[str, typer.Option("--reason", help="Shown to whoever asks why the node is closed.")] = "",
    server: ServerOption = None,
    timeout_s: TimeoutOption = None,
) -> None:
    """Close a node to new jobs; what runs there goes on."""
    with connect(ctx, server, timeout_s) as client:
        found = client.drain(node, reason)
    say(f"node {found.name}: {found.state}")


def undrain(ctx: typer.Context, node: NodeArgument, server: ServerOption = None, timeout_s: TimeoutOption = None) -> None:
    """Open a drained node to jobs again."""
    with connect(ctx, server, timeout_s) as client:
        found = client.undrain(node)
    say(f"node {found.name}: {found.state}")
