"""Files that commands read: manifests and Cluster files, with messages that name the file and the line."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from fmclient.cli.exits import USAGE, complain, fail

if TYPE_CHECKING:
    from fmproto.v1.scheduler_pb2 import FieldViolation

STDIN = "-"
# Read and no more: a wrong path may name a device or a data set. Cluster files of 12,500 nodes are far smaller.
FILE_BYTES_MAX = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Source:
    """`where`: what messages call it."""

    where: str
    raw: bytes


def read(path: str) -> Source:
    """The file, or standard input for "-". Exit 2, with one line, where it cannot be read."""
    try:
        if path == STDIN:
            source = Source("<stdin>", sys.stdin.buffer.read(FILE_BYTES_MAX + 1))
        else:
            with Path(path).open("rb") as file:
                source = Source(path, file.read(FILE_BYTES_MAX + 1))
    except OSError as error:
        raise fail(f"fmctl: cannot read {path}: {error.strerror or error}", USAGE) from error
    if len(source.raw) > FILE_BYTES_MAX:
        raise fail(
            f"fmctl: {source.where} has more than {FILE_BYTES_MAX:,} bytes: neither a manifest nor a Cluster file", USAGE
        )
    return source


def print_violations(where: str, violations: Iterable[FieldViolation]) -> None:
    """FILE:LINE: path: message, one a line; without what the fault has not."""
    for each in violations:
        place = f"{where}:{each.line}" if each.line else where
        complain(": ".join(part for part in (place, each.path, each.message) if part))


@contextmanager
def naming(where: str) -> Iterator[None]:
    """Faults of a manifest found inside are printed with its name; exit 2."""
    from fmclient.errors import InvalidManifest

    try:
        yield
    except InvalidManifest as error:
        print_violations(where, error.violations)
        raise typer.Exit(USAGE) from error
