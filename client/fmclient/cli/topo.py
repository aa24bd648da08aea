"""fmctl topo: the cluster drawn, and Cluster files made."""

from __future__ import annotations

from typing import Annotated

import typer

from fmclient.cli.exits import NOT_FOUND, fail
from fmclient.cli.offline import offline
from fmclient.cli.options import ServerOption, TimeoutOption, connect

app = typer.Typer(no_args_is_help=True, help="Show the live cluster, or make a Cluster file.")


@app.command()
def show(
    ctx: typer.Context,
    leaf: Annotated[list[str] | None, typer.Option("--leaf", help="Only this leaf group; may be repeated.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Draw each node, however many there are.")] = False,
    server: ServerOption = None,
    timeout_s: TimeoutOption = None,
) -> None:
    """Draw leaves, nodes and GPUs, with holders and faults."""
    from fmclient.cli.draw import drawing, leaves_of
    from fmclient.cli.human import missing
    from fmclient.cli.output import console

    with connect(ctx, server, timeout_s) as client:
        found = client.nodes().nodes
        for name in leaf or ():
            if name not in leaves_of(found):
                raise fail(f"fmctl: {missing('leaf group', name, leaves_of(found))}", NOT_FOUND)
        names = {job.spec.id: job.spec.name for job in client.list(live_only=True)}
    out = console()
    for part in drawing(found, names, set(leaf or ()), every):
        out.print(part)


@app.command()
def generate(
    pods: Annotated[int, typer.Option("--pods", min=1, help="Groups of leaves under spines of their own.")],
    leaves: Annotated[int, typer.Option("--leaves", min=1, help="Leaf switches in a pod.")],
    nodes_per_leaf: Annotated[int, typer.Option("--nodes-per-leaf", min=1)],
    node_type: Annotated[str, typer.Option("--type", help="A node type of the catalogue, such as hgx-h100.")],
    busy: Annotated[
        float, typer.Option("--busy", min=0.0, max=1.0, help="Share of the GPUs that jobs hold already.")
    ] = 0.0,
    seed: Annotated[int, typer.Option("--seed", help="The same seed makes the same file.")] = 0,
) -> None:
    """Write a Cluster file to standard output."""
    text = offline(
        "topo-generate", pods=pods, leaves=leaves, nodes_per_leaf=nodes_per_leaf, type=node_type, busy=busy, seed=seed
    )
    typer.echo(text, nl=not text.endswith("\n"))
