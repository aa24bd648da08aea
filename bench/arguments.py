"""What the benchmarks' command lines share: values that are refused in one line, and where a picture goes."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path


def whole(least: int = 1, multiple_of: int = 1) -> Callable[[str], int]:
    """A whole number, at least so large."""

    def read(text: str) -> int:
        if text.strip().isdecimal() and int(text) >= least and int(text) % multiple_of == 0:
            return int(text)
        kind = f"multiples of {multiple_of}" if multiple_of > 1 else "whole numbers"
        raise argparse.ArgumentTypeError(f"found {text!r}; allowed: {kind} from {least}")

    return read


def wholes(least: int = 1, multiple_of: int = 1) -> Callable[[str], list[int]]:
    """Such numbers, separated by commas."""
    return lambda text: [whole(least, multiple_of)(part) for part in text.split(",")]


def share(text: str) -> float:
    """From 0 to below 1."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if 0.0 <= value < 1.0:
        return value
    raise argparse.ArgumentTypeError(f"found {text!r}; allowed: from 0 to below 1")


def add_output(parser: argparse.ArgumentParser) -> None:
    """--picture and --json, the same everywhere. Without a path the picture is called after the benchmark."""
    path = Path(f"{parser.prog.replace('.', '-')}.png")
    parser.add_argument("--picture", type=Path, nargs="?", const=path, metavar="FILE.png", help=f"default: {path}")
    parser.add_argument("--json", action="store_true", help="one object at the end")


def parsed(parser: argparse.ArgumentParser) -> argparse.Namespace:
    args = parser.parse_args()
    if args.picture and find_spec("matplotlib") is None:
        parser.error("--picture needs matplotlib: pip install 'fmsched[bench]'")
    return args


def kinds_of(parser: argparse.ArgumentParser, gangs: list[int], cells: list[int]) -> list[tuple[int, int]]:
    """(GPUs of the gang, of a cell): every pair in which a gang is made of whole cells."""
    kinds = [(gang, cell) for gang in gangs for cell in cells if gang % cell == 0]
    if not kinds:
        parser.error(f"no gang of {gangs} is made of whole cells of {cells}")
    return kinds
