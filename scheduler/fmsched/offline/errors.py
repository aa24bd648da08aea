"""The one error of offline commands."""

from __future__ import annotations

from collections.abc import Iterable

from fmproto.yamltext import Fault


class OfflineError(Exception):
    """Input that cannot be used. `lines` has one message for each fault: `where:line: path: message`."""

    def __init__(self, lines: Iterable[str]) -> None:
        self.lines = tuple(lines)
        super().__init__("\n".join(self.lines))


def refuse(where: str, faults: Iterable[Fault]) -> OfflineError:
    """The error for the faults of a text that came from `where`."""
    return OfflineError(located(where, fault) for fault in faults)


def located(where: str, fault: Fault) -> str:
    place = f"{where}:{fault.line}" if fault.line else where
    return f"{place}: {fault.path}: {fault.message}" if fault.path else f"{place}: {fault.message}"
