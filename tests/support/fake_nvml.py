"""Builds fake_nvml.c and describes machines to it."""

from __future__ import annotations

import atexit
import functools
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("fake_nvml.c")
NAME = "NVIDIA H100 80GB HBM3"
MEMORY_MIB = 81559


@functools.cache
def library_folder(driver: str = "") -> Path:
    """Of libnvidia-ml.so.1, for LD_LIBRARY_PATH; skips where there is no C compiler. `driver`: "OLD_DRIVER" lacks what drivers before 510
    lack, "NEW_DRIVER" what CUDA 14 is to remove."""
    if shutil.which("gcc") is None:
        pytest.skip("gcc is missing: the fake libnvidia-ml.so.1 cannot be built")
    folder = Path(tempfile.mkdtemp(prefix="fake-nvml-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    library = folder / "libnvidia-ml.so.1"
    flags = ["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-Wno-format-truncation"]
    if driver:
        flags.append(f"-D{driver}")
    subprocess.run(["gcc", *flags, "-pthread", "-Wl,-soname,libnvidia-ml.so.1", "-o", library, SOURCE], check=True)
    return folder


def address(slot: int) -> str:
    return f"00000000:{slot:02X}:00.0"


def gpu_line(index: int, slot: int) -> str:
    """The GPU of a slot, enumerated at `index`."""
    return f"gpu {index} GPU-{slot:04d} {address(slot)} {MEMORY_MIB} {NAME}"


def hgx(slots: tuple[int, ...] = tuple(range(8))) -> list[str]:
    """GPUs with 18 links each into four switches."""
    lines = [gpu_line(index, slot) for index, slot in enumerate(slots)]
    for index in range(len(slots)):
        lines += [f"link {index} {link} 2 {address(0xA0 + link % 4)}" for link in range(18)]
    return lines
