"""fmctl topo import: what tools printed, made the one Cluster file."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from fmclient.cli.exits import USAGE, complain, fail
from fmclient.cli.files import STDIN
from fmclient.cli.offline import offline


class Kind(StrEnum):
    """What --kind says. The readers are the scheduler's (fmsched.topology.readers.kinds)."""

    IBSTAT = "ibstat"
    NVIDIA_SMI_TOPO = "nvidia-smi-topo"
    NVIDIA_SMI_Q = "nvidia-smi-q"
    NVIDIA_SMI_LIST = "nvidia-smi-list"
    NVLINK_STATUS = "nvlink-status"
    NCCL_TOPO = "nccl-topo"
    IBNETDISCOVER = "ibnetdiscover"
    SLURM_TOPOLOGY = "slurm-topology"
    TOPOGRAPH = "topograph"


class TextForm(StrEnum):
    YAML = "yaml"
    JSON = "json"


_FILES_HELP = "Dumps, also compressed by gzip; - is standard input; KIND=FILE is of another kind."


def import_(
    files: Annotated[list[str], typer.Argument(metavar="FILE...", help=_FILES_HELP)],
    kind: Annotated[
        Kind | None, typer.Option("--kind", help="What the files are, where they do not say KIND=FILE.")
    ] = None,
    output: Annotated[TextForm, typer.Option("-o", "--output", help="How to print the Cluster file.")] = TextForm.YAML,
    node: Annotated[str, typer.Option("--node", help="The node that all node dumps are of.")] = "",
    node_type: Annotated[str, typer.Option("--type", help="The node type of hosts that no dump describes.")] = "",
    guids: Annotated[
        str | None, typer.Option("--guids", metavar="FILE", help="A map of host names and their adapters' GUIDs.")
    ] = None,
    name: Annotated[str, typer.Option("--name", help="What the cluster is called.")] = "",
    gbps: Annotated[float, typer.Option("--gbps", min=0.0, help="Gb/s of each cable whose file has no rate.")] = 0.0,
) -> None:
    """Make one Cluster file of what tools printed, with what was set aside. Exit 2 where no file can be used."""
    if [*(_split(file)[1] for file in files), guids].count(STDIN) > 1:
        raise fail("fmctl: - can be given once: standard input is one file", USAGE)
    dumps = []
    for file in files:
        own, path = _split(file)
        if own is None and kind is None:
            raise fail(f"fmctl: what is {file}? --kind KIND says it of all files, KIND=FILE of one", USAGE)
        dumps.append((str(own or kind), *_read(path)))
    text, problems = offline(
        "topo-import",
        dumps,
        str(output),
        node=node,
        type=node_type,
        guids=None if guids is None else _read(guids),
        cluster_name=name,
        gbps=gbps,
    )
    if output is TextForm.YAML:
        for problem in problems:
            complain(problem)
    typer.echo(text, nl=not text.endswith("\n"))


def _split(file: str) -> tuple[Kind | None, str]:
    """(kind, path) of KIND=FILE; a path may have a "=" in it."""
    word, _, path = file.partition("=")
    return (Kind(word), path) if path and word in set(Kind) else (None, file)


def _read(path: str) -> tuple[str, bytes]:
    """(what messages call it, content); no more is read than a reader may see. Exit 2 where it cannot be read."""
    from fmproto.dumptext import BYTES_MAX

    try:
        if path == STDIN:
            return "<stdin>", sys.stdin.buffer.read(BYTES_MAX + 1)
        with Path(path).open("rb") as file:
            return path, file.read(BYTES_MAX + 1)
    except OSError as error:
        raise fail(f"fmctl: cannot read {path}: {error.strerror or error}", USAGE) from error
