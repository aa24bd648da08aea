"""What stays where it is when a gang is repaired: the meaning of Request.kept, shared by solve and check.

Kept ranks make up whole instances. Their GPUs, held by the job itself, are free for these instances alone, and a closed node (drained,
say) keeps what it has but takes nothing new. What else the job still holds stays held: a release is seen, never assumed.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from fmsched.model.hardware import GpuId
from fmsched.model.job import Request
from fmsched.model.snapshot import Snapshot

Instance = tuple[int, int]  # number of the group, replica


def given_back(snapshot: Snapshot, request: Request) -> Snapshot:
    """As the cluster would be without the ranks that stay, and without what the job reserves on links."""
    if not request.kept:
        return snapshot
    mine = {rank.gpu_id for rank in request.kept}
    held = {gpu: job for gpu, job in snapshot.held.items() if gpu not in mine or job != request.job}
    nodes = {gpu.node for gpu in mine}
    shut = {name: reason for name, reason in snapshot.closed.items() if name in nodes}
    unfit = dict(snapshot.unfit)
    for name, reason in shut.items():
        for index in range(len(snapshot.topology.node(name).shape.gpus)):
            if (gpu := GpuId(name, index)) not in mine:
                unfit.setdefault(gpu, reason)
    return replace(
        snapshot,
        held=held,
        unfit=unfit,
        closed={name: reason for name, reason in snapshot.closed.items() if name not in shut},
        links_held={job: links for job, links in snapshot.links_held.items() if job != request.job},
    )


def lost(request: Request) -> tuple[Instance, ...]:
    """The instances that are placed anew, in the order of their ranks.

    Raises ValueError where the kept ranks are not whole instances of the request, or name a rank or a GPU twice.
    """
    groups = {group.name: g for g, group in enumerate(request.groups)}
    size = Counter((groups.get(rank.group, -1), rank.replica) for rank in request.kept)
    for (g, replica), count in sorted(size.items()):
        if g < 0 or not 0 <= replica < request.replicas or count != request.groups[g].gpus:
            where = f"replica {replica}" if g < 0 else f"group {request.groups[g].name} replica {replica}"
            raise ValueError(
                f"job {request.job}: kept: found {count} ranks of {where}; allowed: whole instances of the request"
            )
    for what, found in (
        ("rank", Counter(rank.rank for rank in request.kept)),
        ("GPU", Counter(rank.gpu_id for rank in request.kept)),
    ):
        if twice := [each for each, count in found.items() if count > 1]:
            raise ValueError(f"job {request.job}: kept: found {what} {twice[0]} twice; allowed: once")
    return tuple((g, r) for g in range(len(request.groups)) for r in range(request.replicas) if (g, r) not in size)
