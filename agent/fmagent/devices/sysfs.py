"""Reading files of /sys and /proc. Any of them may be missing, empty, unreadable, or say what its documentation does not: then the answer
is empty or None. The root is an argument, so that a tree on disk stands for another machine."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

SYS = Path("/sys")
PROC = Path("/proc")

TEXT_BYTES_MAX = 8 << 20  # mountinfo of a host with 2,000 containers; /proc/cpuinfo of 512 threads is 800 kB
NAMES_MAX = 8_192  # entries of one folder

_NUMBER = re.compile(r"-?(?:0x[0-9a-fA-F]{1,16}|\d{1,20})")
_PCI = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_PARTS = re.compile(r"(\d{1,18})")


def text(path: Path, bytes_max: int = TEXT_BYTES_MAX) -> str:
    """What the file says, without blanks around it; empty where it cannot be read."""
    try:
        with path.open("rb") as file:
            content = file.read(bytes_max)
    except (OSError, ValueError):
        return ""
    return content.decode("utf-8", errors="replace").strip().strip("\0")


def number(path: Path) -> int | None:
    """The integer that the file begins with, decimal or 0x…; None where it does not."""
    match = _NUMBER.match(text(path, 256))
    return int(match[0], 0 if "x" in match[0] else 10) if match else None


def names(folder: Path) -> list[str]:
    """Entries of a folder, "mlx5_2" before "mlx5_10", those that no kernel gives left out; empty where there is no such folder."""
    try:
        found = [entry.name for _, entry in zip(range(NAMES_MAX), folder.iterdir(), strict=False)]
    except OSError:
        return []
    return sorted((name for name in found if name.isprintable()), key=natural)


def natural(name: str) -> list[tuple[int, int, str]]:
    """Sort key: digits count as numbers."""
    return [(0, int(part), "") if part.isdecimal() and part.isascii() else (1, 0, part) for part in _PARTS.split(name)]


def real_parts(path: Path) -> tuple[str, ...]:
    """Components of the real path from the first PCI host bridge on ("pci0000:10", "0000:10:01.0", ...); empty where it has none."""
    try:
        parts = path.resolve(strict=True).parts
    except (OSError, RuntimeError):
        return ()
    for place, part in enumerate(parts):
        if part.startswith("pci") and ":" in part:
            return parts[place:]
    return ()


def pci_address(path: Path) -> str:
    """The PCI function that a device link leads to, or that its target hangs below (a sub-function); empty: none."""
    try:
        parts = path.resolve(strict=True).parts
    except (OSError, RuntimeError):
        return ""
    return next((part for part in reversed(parts) if _PCI.fullmatch(part)), "")


def pci_parts(address: str, sys: Path = SYS) -> tuple[str, ...]:
    """The way from the host bridge down to a function, by its address as NVML ("00000000:1B:00.0") or sysfs writes it."""
    domain, _, rest = address.lower().partition(":")
    short = f"{domain[-4:]}:{rest}" if domain[:-4].strip("0") == "" else address.lower()
    return real_parts(sys / "bus/pci/devices" / short) if _PCI.fullmatch(short) else ()


def nearest(parts: tuple[str, ...], others: Sequence[tuple[int, tuple[str, ...]]]) -> tuple[int, ...]:
    """Numbers of those `others` that share the longest way with `parts`, if it goes through a common bridge below the host bridge: a PCIe
    switch (or the very same slot). Empty where none does: a host bridge alone joins all that hangs below one processor, and in a virtual
    machine everything there is."""
    shared = {number: _shared(parts, other) for number, other in others}
    most = max(shared.values(), default=0)
    return tuple(sorted(number for number, length in shared.items() if length == most)) if most >= 2 else ()


def _shared(a: tuple[str, ...], b: tuple[str, ...]) -> int:
    """Common components from the top, the devices themselves left out."""
    length = 0
    for left, right in zip(a[:-1], b[:-1], strict=False):
        if left != right:
            break
        length += 1
    return length
