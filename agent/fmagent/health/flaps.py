"""Ports that come and go: a port whose state changed too often counts as failed until it has been quiet. Pure: time is an argument.

One look at a flapping port may well find it up, and a job placed on it hangs (ROCm/rccl#1423). While a port is held unstable its
health does not change with it, so that it costs one write to the store at each end and none between.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

# A link that is trained again goes down and up once: two changes. Four within the window are two such events.
CHANGES_MAX = 3
WINDOW_S = 120.0
QUIET_S = 300.0


@dataclass(frozen=True, slots=True)
class PortPast:
    """`changes_s`: when the state changed, within the window, oldest first."""

    up: bool
    changes_s: tuple[float, ...] = ()
    unstable: bool = False


def look(past: Mapping[str, PortPast], up: Mapping[str, bool], now_s: float) -> dict[str, PortPast]:
    """What is known of each port after a look at `now_s`. A port that is no longer listed is forgotten."""
    return {port: _look(past.get(port), state, now_s) for port, state in up.items()}


def _look(past: PortPast | None, up: bool, now_s: float) -> PortPast:
    if past is None:
        return PortPast(up)
    changed = (now_s,) if up != past.up else ()
    # An unstable port's last change is kept for as long as its quiet time is measured from it.
    keep_s = QUIET_S if past.unstable else WINDOW_S
    changes_s = tuple(at_s for at_s in (*past.changes_s, *changed) if now_s - at_s < keep_s)
    if past.unstable:
        return PortPast(up, changes_s, unstable=bool(changes_s))
    return PortPast(up, changes_s, unstable=len(changes_s) > CHANGES_MAX)


def reason(past: PortPast) -> str:
    """Why the port must not be used; empty where it may. It does not change while the port is unstable."""
    if not past.unstable:
        return ""
    return f"unstable: more than {CHANGES_MAX} changes of state in {WINDOW_S:g} s; held until quiet for {QUIET_S:g} s"
