"""The house stays as ARCHITECTURE.md draws it: imports go down, packages go one way, pure code stays pure."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {
    "fmproto": ROOT / "proto/fmproto",
    "fmsched": ROOT / "scheduler/fmsched",
    "fmagent": ROOT / "agent/fmagent",
    "fmclient": ROOT / "client/fmclient",
}

# A package may import itself and these.
MAY_IMPORT = {"fmproto": set(), "fmsched": {"fmproto"}, "fmclient": {"fmproto"}, "fmagent": {"fmproto"}}

# fmsched by floors; a part imports only from parts on lower floors. Parts of one floor do not know each other.
FLOORS = {
    "model": 0, "catalogue": 1,
    "topology": 2, "manifest": 2, "lifecycle": 2, "store": 2, "predict": 2,
    "place": 3,
    "policy": 4,
    "picture": 5, "loop": 6, "solver": 5, "maintenance": 5, "discovery": 5, "config": 5,
    "service": 7, "metrics": 7,
    "offline": 8, "__main__": 8, "start": 9,
}  # fmt: skip

PURE = (
    "scheduler/fmsched/model", "scheduler/fmsched/catalogue", "scheduler/fmsched/topology", "scheduler/fmsched/manifest",
    "scheduler/fmsched/lifecycle", "scheduler/fmsched/place", "scheduler/fmsched/policy", "scheduler/fmsched/predict",
    "agent/fmagent/reconcile.py", "agent/fmagent/launch", "agent/fmagent/health",
)  # fmt: skip
IMPURE = {"grpc", "etcd3", "asyncio", "time", "random", "logging", "structlog", "threading", "subprocess", "socket"}

FUNCTION_LINES_MAX = 70
FILE_LINES_MAX = 500


def sources(folder: Path) -> Iterator[Path]:
    yield from (path for path in sorted(folder.rglob("*.py")) if "_pb2" not in path.name)


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """(line, dotted module) of every import, also of those inside functions; type-checking ones count too."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.lineno, node.module
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


ALL_SOURCES = [path for folder in PACKAGES.values() for path in sources(folder)]


def test_the_table_of_floors_names_every_part() -> None:
    parts = {path.stem if path.is_file() else path.name for path in PACKAGES["fmsched"].iterdir()}
    parts -= {"__init__", "__pycache__", "py"}
    assert parts == set(FLOORS)


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_import_one_way(package: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {module}"
        for path in sources(PACKAGES[package])
        for line, module in imports(path)
        if (top := module.split(".")[0]) in PACKAGES and top != package and top not in MAY_IMPORT[package]
    ]
    assert not wrong


def test_floors_of_the_scheduler() -> None:
    wrong = []
    for path in sources(PACKAGES["fmsched"]):
        inside = path.relative_to(PACKAGES["fmsched"])
        here = inside.parts[0].removesuffix(".py")
        for line, module in imports(path):
            parts = module.split(".")
            if parts[0] != "fmsched" or len(parts) < 2 or parts[1] == here or here == "__init__":
                continue
            if parts[1] in FLOORS and FLOORS[parts[1]] >= FLOORS[here]:
                wrong.append(f"{path.relative_to(ROOT)}:{line}: {here} (floor {FLOORS[here]}) imports {module}")
    assert not wrong


def test_pure_code_knows_nothing_of_the_outside() -> None:
    wrong = []
    for name in PURE:
        place = ROOT / name
        for path in [place] if place.is_file() else sources(place):
            wrong += [f"{path.relative_to(ROOT)}:{line}: {m}" for line, m in imports(path) if m.split(".")[0] in IMPURE]
    assert not wrong


@pytest.mark.parametrize("path", ALL_SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_functions_and_files_stay_small(path: Path) -> None:
    text = path.read_text()
    assert text.count("\n") <= FILE_LINES_MAX
    long = [
        f"{node.name} has {length} lines"
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (length := (node.end_lineno or 0) - node.lineno + 1) > FUNCTION_LINES_MAX
    ]
    assert not long


@pytest.mark.parametrize("path", ALL_SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_modules_say_what_they_are_for(path: Path) -> None:
    text = path.read_text()
    assert not text.strip() or ast.get_docstring(ast.parse(text))


def test_unfinished_words_do_not_stay() -> None:
    words = ("TO" + "DO", "FIX" + "ME", "X" + "XX", "Not" + "ImplementedError")
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in [*ALL_SOURCES, *sources(ROOT / "tests"), *sources(ROOT / "bench"), *sources(ROOT / "examples")]
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if any(word in line for word in words)
    ]
    assert not found
