"""fmctl topo show and topo draw: the cluster, live or out of a Cluster file, as text or as a picture."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fmclient.cli.exits import FAILED, NOT_FOUND, USAGE, fail
from fmclient.cli.files import STDIN, read
from fmclient.cli.offline import offline
from fmclient.cli.options import ServerOption, TimeoutOption, connect
from fmclient.cli.topo_export import ClusterOption

if TYPE_CHECKING:
    from fmclient.cli.drawing.shapes import Picture
    from fmproto.v1.scheduler_pb2 import ListNodesResponse

LeafOption = Annotated[list[str] | None, typer.Option("--leaf", help="Only this leaf group; may be repeated.")]


class PictureForm(StrEnum):
    SVG = "svg"
    PNG = "png"


def show(
    ctx: typer.Context,
    leaf: LeafOption = None,
    every: Annotated[bool, typer.Option("--all", help="Draw each node, however many there are.")] = False,
    cluster: ClusterOption = None,
    server: ServerOption = None,
    timeout_s: TimeoutOption = None,
) -> None:
    """Draw leaves, nodes and GPUs, with NVLink sets, holders and faults."""
    from fmclient.cli.draw import drawing, links_text
    from fmclient.cli.output import console

    found, names = _seen(ctx, cluster, leaf, server, timeout_s)
    out = console()
    for part in drawing(found.nodes, names, set(leaf or ()), every):
        out.print(part)
    if (links := links_text(found.links, names)) and not leaf:
        out.print(links)


def draw(
    ctx: typer.Context,
    target: Annotated[str, typer.Argument(metavar="[FILE]", help="Where to write; - is standard output.")] = STDIN,
    output: Annotated[PictureForm, typer.Option("-o", "--output", help="The picture's format.")] = PictureForm.SVG,
    leaf: LeafOption = None,
    cluster: ClusterOption = None,
    server: ServerOption = None,
    timeout_s: TimeoutOption = None,
) -> None:
    """Draw the cluster as a picture: leaves, nodes, GPUs, NVLink sets, holders and faults."""
    from fmclient.cli.drawing.cluster import cluster_picture

    if output is PictureForm.PNG and target == STDIN and sys.stdout.isatty():
        raise fail("fmctl: a PNG is no text for a terminal: name a file, or send it on with > FILE", USAGE)
    found, names = _seen(ctx, cluster, leaf, server, timeout_s)
    leaves = set(leaf or ())
    title = f"{', '.join(sorted(leaves))} of the cluster" if leaves else cluster or "cluster"
    content = _written(cluster_picture(found.nodes, found.fabric, names, leaves, title), output)
    if target == STDIN:
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
        return
    try:
        Path(target).write_bytes(content)
    except OSError as error:
        raise fail(f"fmctl: cannot write {target}: {error.strerror or error}", FAILED) from error


def _seen(
    ctx: typer.Context, cluster: str | None, leaf: list[str] | None, server: str | None, timeout_s: float | None
) -> tuple[ListNodesResponse, dict[str, str]]:
    """(nodes and fabric, names of jobs by id). Exit 3 for a leaf group that is not there."""
    from fmclient.cli.draw import leaves_of
    from fmclient.cli.human import missing

    found: ListNodesResponse
    names: dict[str, str] = {}
    if cluster is not None:
        source = read(cluster)
        found = offline("topo-view", source.raw, source.where)
    else:
        with connect(ctx, server, timeout_s) as client:
            found = client.nodes()
            names = {job.spec.id: job.spec.name for job in client.list(live_only=True)}
    known = leaves_of(found.nodes)
    for name in leaf or ():
        if name not in known:
            raise fail(f"fmctl: {missing('leaf group', name, known)}", NOT_FOUND)
    return found, names


def _written(picture: Picture, form: PictureForm) -> bytes:
    if form is PictureForm.SVG:
        from fmclient.cli.drawing import svg

        return svg.write(picture).encode()
    try:
        from fmclient.cli.drawing import png
    except ImportError as error:
        raise fail(f"fmctl: topo draw -o png needs: pip install 'fmsched[draw]' ({error})", USAGE) from error
    return png.write(picture)
