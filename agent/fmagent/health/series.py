"""Readings over a window of time: growth of counters and slopes. Pure; every series is bounded."""

from __future__ import annotations

import math
from typing import TypeAlias

# (time, value), oldest first. Times are the looker's, seconds.
Series: TypeAlias = tuple[tuple[float, float], ...]

# More points than this tell a window no better.
POINTS_MAX = 60


def number(value: float | None) -> float | None:
    """None for what is no number: a tool that prints "nan" has not measured."""
    return value if value is not None and math.isfinite(value) else None


def extended(series: Series, now_s: float, value: float, window_s: float) -> Series:
    """With this look's value, and without what is older than the window (but for the last point before it, which growth is measured
    from). A clock that goes back, or a gap of a whole window, begins the series anew."""
    if series and not 0 <= now_s - series[-1][0] <= window_s:
        series = ()
    start_s = now_s - window_s
    first = 0
    while first + 1 < len(series) and series[first + 1][0] <= start_s:
        first += 1
    kept = series[first:]
    # Points closer than this replace one another; the first stays, it is what growth is measured from.
    if len(kept) >= 2 and kept[-1][0] - kept[-2][0] < window_s / POINTS_MAX:
        kept = kept[:-1]
    return (*kept, (now_s, value))[-POINTS_MAX - 2 :]


def counted(series: Series, now_s: float, value: float, window_s: float) -> Series:
    """As `extended`, of a counter: one that is smaller than before was reset, and the series begins anew at zero."""
    if series and value < series[-1][1]:
        series = ((series[-1][0], 0.0),)
    return extended(series, now_s, value, window_s)


def growth(series: Series) -> float:
    """Of a counter, over what the series spans."""
    return series[-1][1] - series[0][1] if series else 0.0


def span_s(series: Series) -> float:
    return series[-1][0] - series[0][0] if series else 0.0


def slope_per_minute(series: Series) -> float:
    """The least-squares slope; 0 for fewer than three points or no time between them."""
    if len(series) < 3:
        return 0.0
    mean_t = sum(at_s for at_s, _ in series) / len(series)
    mean_v = sum(value for _, value in series) / len(series)
    spread = sum((at_s - mean_t) ** 2 for at_s, _ in series)
    if spread <= 0:
        return 0.0
    return 60 * sum((at_s - mean_t) * (value - mean_v) for at_s, value in series) / spread


def within(series: Series, now_s: float, window_s: float) -> Series:
    """The events of the window, at most POINTS_MAX, the newest."""
    return tuple(point for point in series if 0 <= now_s - point[0] < window_s)[-POINTS_MAX:]
