"""Spares: replicas beside those that run, placed by the same rules and held idle, so that a repair finds its GPUs in the right place.

They are solved as replicas like any other; which of them are spare is said afterwards. Running ranks keep the numbers 0, 1, 2… in the
order that launchers expect; those of spares come after them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from fmsched.model.job import Request
from fmsched.model.placement import Placement


def widened(request: Request) -> Request:
    """What is placed: the spares as replicas. The step time is that of the replicas that run, so it is no term of such a request."""
    return replace(request, replicas=request.replicas + request.spares, work=None) if request.spares else request


def flagged(request: Request, placement: Placement) -> Placement:
    """The placement of widened(request), with the last replicas as spares."""
    number = {group.name: g for g, group in enumerate(request.groups)}
    running = request.replicas
    order = sorted(placement.ranks, key=lambda rank: (rank.replica >= running, rank.rank))
    on_node: Counter[str] = Counter()
    ranks = []
    for position, rank in enumerate(order):
        spare = rank.replica >= running
        g = number[rank.group]
        cell = g * running + rank.replica
        if spare:
            cell = running * len(request.groups) + g * request.spares + rank.replica - running
        ranks.append(replace(rank, rank=position, cell=cell, local_rank=on_node[rank.node], spare=spare))
        on_node[rank.node] += 1
    return replace(placement, ranks=tuple(ranks))
