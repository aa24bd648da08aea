"""fmctl topo export: the cluster in the notation of another tool."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from fmclient.cli.exits import NOT_FOUND, fail
from fmclient.cli.files import read
from fmclient.cli.offline import offline
from fmclient.cli.options import ServerOption, TimeoutOption, connect

if TYPE_CHECKING:
    from fmproto.v1.scheduler_pb2 import ListNodesResponse

ClusterOption = Annotated[
    str | None, typer.Option("--cluster", metavar="FILE", help="This Cluster file, with no service; else the live cluster.")
]


class Notation(StrEnum):
    SLURM = "slurm-topology"
    NCCL = "nccl-topo"
    GRAPHML = "graphml"


def export(
    ctx: typer.Context,
    kind: Annotated[Notation, typer.Option("--kind", help="The notation: topology.conf, NCCL's XML, or GraphML.")],
    cluster: ClusterOption = None,
    node: Annotated[str, typer.Option("--node", help="Which node, for nccl-topo.")] = "",
    server: ServerOption = None,
    timeout_s: TimeoutOption = None,
) -> None:
    """Print the cluster as Slurm's topology.conf, a node as NCCL's topology file, or all of it as GraphML."""
    if cluster is not None:
        source = read(cluster)
        text = offline("topo-export", str(kind), (source.raw, source.where), node=node)
    else:
        text = offline("topo-export", str(kind), _live(ctx, server, timeout_s, node), node=node)
    typer.echo(text, nl=not text.endswith("\n"))


def _live(ctx: typer.Context, server: str | None, timeout_s: float | None, node: str) -> ListNodesResponse:
    from fmclient.cli.human import missing

    with connect(ctx, server, timeout_s) as client:
        answer = client.nodes()
    names = [each.name for each in answer.nodes]
    if node and node not in names:
        raise fail(f"fmctl: {missing('node', node, names)}", NOT_FOUND)
    return answer
