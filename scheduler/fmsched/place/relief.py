"""Single changes that would make room on links, or return what jobs hold: what explain proves and tells."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import floor, inf

import numpy as np

from fmsched.model.job import Request
from fmsched.model.snapshot import Snapshot
from fmsched.place import words
from fmsched.place.links import room_of, talks_max

# Jobs, GPUs or nodes tried one by one as the single thing whose return would help; beyond it they are tried together.
SINGLES_MAX = 6
TOGETHER_MAX = 16  # talks on one link that a lower reservation is tried for


@dataclass(frozen=True, slots=True)
class Change:
    """One change to the request or to the cluster, in words and as the question that it makes."""

    words: str
    snapshot: Snapshot
    request: Request


def growing(count: int) -> Iterator[int]:
    """2, 4, 8… and all: how many together, once none alone has helped."""
    size = 2
    while size < count:  # doubles
        yield size
        size *= 2
    if count > 1:
        yield count


def released(snapshot: Snapshot, jobs: set[str]) -> Snapshot:
    """Without these jobs: neither GPUs nor links are held by them."""
    return replace(
        snapshot,
        held={gpu: job for gpu, job in snapshot.held.items() if job not in jobs},
        links_held={job: links for job, links in snapshot.links_held.items() if job not in jobs},
    )


def links_end(snapshot: Snapshot, request: Request) -> Iterator[Change]:
    """The end of a job that reserves links, the one that reserves least first; then of several; then of other traffic."""
    most = {job: max(links.values()) for job, links in snapshot.links_held.items() if links}
    jobs = sorted(most, key=lambda job: (most[job] * len(snapshot.links_held[job]), job))
    for job in jobs[:SINGLES_MAX]:
        on = len(snapshot.links_held[job])
        text = f"the end of job {job}, which reserves {most[job]:g} Gb/s on {on} link{'s' if on > 1 else ''}"
        yield Change(text, released(snapshot, {job}), request)
    for count in growing(len(jobs)):
        names = words.listed([f"{job} ({most[job]:g} Gb/s)" for job in jobs[:count]])
        yield Change(f"the end of jobs {names}", released(snapshot, set(jobs[:count])), request)
    if snapshot.links_measured:
        yield Change("the end of the traffic measured on links", replace(snapshot, links_measured={}), request)


def lower_reserve(
    snapshot: Snapshot, request: Request, g: int, can: Callable[[Snapshot, Request], bool | None]
) -> Iterator[Change]:
    """The most that the group could reserve, found by halving: what is enough for less is enough for the least."""
    room, reach = room_of(snapshot, request), request.groups[g].reach
    if room is None or reach is None:
        return
    found = np.unique(room.headroom[(room.headroom > 0) & (room.headroom < inf)])
    together = min(TOGETHER_MAX, talks_max(request, spanning=True)[0])
    values = {_plain(float(value) / n) for value in found for n in range(1, together + 1)}
    order = [*sorted((value for value in values if 0 < value < reach.reserve_gbps), reverse=True), 0.0]

    def change(value: float) -> Change:
        group = replace(request.groups[g], reach=replace(reach, reserve_gbps=value))
        groups = (*request.groups[:g], group, *request.groups[g + 1 :])
        return Change(f"reserveBandwidthGbps {value:g}", snapshot, replace(request, groups=groups))

    low, high = 0, len(order) - 1  # the first that helps is in [low, high], if any does
    while low < high:  # halves each time
        middle = (low + high) // 2
        tried = change(order[middle])
        if can(tried.snapshot, tried.request):
            high = middle
        else:
            low = middle + 1
    yield change(order[low])


def _plain(value: float) -> float:
    """Rounded down to what people write: whole Gb/s, or tenths of small ones."""
    return float(floor(value)) if value >= 10 else floor(value * 10) / 10
