"""fmctl topo: the cluster drawn, and Cluster files made."""

from __future__ import annotations

from typing import Annotated

import typer

from fmclient.cli import topo_draw, topo_export, topo_import
from fmclient.cli.offline import offline

app = typer.Typer(
    no_args_is_help=True, help="Show or draw the cluster; make Cluster files, and write them for other tools."
)
app.command()(topo_draw.show)
app.command()(topo_draw.draw)
app.command("import")(topo_import.import_)
app.command()(topo_export.export)


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
