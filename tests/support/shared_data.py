"""Real tool outputs that are kept beside the project, where they are: tests walk them, and say so where they are absent."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[3] / "shared/data"


def shared(name: str) -> Path:
    """The folder `name` of the collection; skips the test where it is absent."""
    folder = FOLDER / name
    if not folder.is_dir():
        pytest.skip(f"the collection of real outputs is absent: {folder}")
    return folder


def files(name: str, pattern: str = "*") -> list[Path]:
    """The files of a folder of the collection, by name; empty where it is absent, so that it can parametrise a test."""
    return sorted(path for path in (FOLDER / name).glob(pattern) if path.is_file())


def index() -> dict[str, dict[str, str]]:
    """INDEX.tsv by file ("topo_m/…"): what each file is, and what is odd about it."""
    with shared(".").joinpath("INDEX.tsv").open(encoding="utf-8", newline="") as rows:
        return {row["file"]: row for row in csv.DictReader(rows, delimiter="\t")}
