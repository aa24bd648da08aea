"""The environment of a rank, from the order and the node's facts. Pure.

CUDA_VISIBLE_DEVICES is the same for all of the job's ranks of a node: UUIDs in local-rank order, so that device LOCAL_RANK is the rank's
own, as programs written for torchrun expect. FMSCHED_GPU_INDICES has the indices for programs that parse integers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from fmagent.orders import Order, PlacedRank, RankOrder

# The agent's own variables that a rank inherits; everything else of the agent's environment stays its own.
INHERITED = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "TZ", "TMPDIR", "LD_LIBRARY_PATH")

RESERVED = "FMSCHED_"


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What of the inventory a launch needs. `hca_ports`: adapter → its ports."""

    node: str
    socket_interface: str = ""
    hca_ports: tuple[tuple[str, tuple[int, ...]], ...] = ()


@dataclass(frozen=True, slots=True)
class Launch:
    """`environments` by rank order; `overridden`: variables of ours that the user's template replaced."""

    environments: tuple[Mapping[str, str], ...]
    overridden: tuple[str, ...]
    refused: tuple[str, ...]  # FMSCHED_* variables of the template, which are ours


def launch_of(order: Order, facts: NodeFacts, inherited: Mapping[str, str], run_id: str, placement_path: str) -> Launch:
    """MASTER_ADDR and MASTER_PORT are missing unless the user set them: they are known at the start, and added there."""
    user = dict(order.command.env) if order.command is not None else {}
    refused = tuple(sorted(name for name in user if name.startswith(RESERVED)))
    wanted = {name: value for name, value in user.items() if name not in refused}
    shared = _shared(order, facts, run_id, placement_path)
    own = [shared | _of_rank(order, rank) for rank in order.ranks]
    ours = {*shared, *(own[0] if own else ()), "MASTER_ADDR", "MASTER_PORT"}
    base = {name: inherited[name] for name in INHERITED if name in inherited}
    return Launch(
        environments=tuple(base | mine | wanted for mine in own),
        overridden=tuple(sorted(ours & set(wanted))),
        refused=refused,
    )


def _shared(order: Order, facts: NodeFacts, run_id: str, placement_path: str) -> dict[str, str]:
    ranks = sorted(order.ranks, key=lambda rank: rank.local_rank)
    uuids = ",".join(rank.gpu_uuid for rank in ranks if rank.gpu_uuid)
    indices = ",".join(str(rank.gpu_index) for rank in ranks)
    env = {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": uuids or indices,
        "WORLD_SIZE": str(order.world_size),
        "LOCAL_WORLD_SIZE": str(len(order.ranks)),
        "NODE_RANK": str(order.node_rank),
        "FMSCHED_JOB": order.job,
        "FMSCHED_ATTEMPT": str(order.attempt),
        "FMSCHED_NODE": facts.node,
        "FMSCHED_GPU_UUIDS": uuids,
        "FMSCHED_GPU_INDICES": indices,
        "FMSCHED_PLACEMENT": placement_path,
        "FMSCHED_RUN": run_id,
    }
    if facts.socket_interface:
        env["NCCL_SOCKET_IFNAME"] = exact((facts.socket_interface,))
    adapters = adapter_ports(order, facts)
    if adapters:
        env["NCCL_IB_HCA"] = exact(adapters)
    return env


def _of_rank(order: Order, rank: RankOrder) -> dict[str, str]:
    return {
        "RANK": str(rank.rank),
        "LOCAL_RANK": str(rank.local_rank),
        "FMSCHED_GROUP": rank.group,
        "FMSCHED_REPLICA": str(rank.replica),
        "FMSCHED_CELL": str(rank.cell),
    }


def exact(names: tuple[str, ...]) -> str:
    """NCCL's exact form: without "=", mlx5_1 means every name that starts so, mlx5_10 too (NVIDIA/nccl#236)."""
    return "=" + ",".join(names)


def adapter_ports(order: Order, facts: NodeFacts) -> tuple[str, ...]:
    """The adapters that the decision granted on this node, each once, with its port: ("mlx5_0:1", "mlx5_1:1")."""
    ports = dict(facts.hca_ports)
    found: dict[str, None] = {}
    for rank in sorted(order.ranks, key=lambda rank: rank.local_rank):
        for name in rank.hcas:
            if ":" in name:
                found[name] = None
            else:
                found |= dict.fromkeys(f"{name}:{port}" for port in ports.get(name, (1,)))
    return tuple(found)


def placement_json(order: Order, gang: tuple[PlacedRank, ...]) -> str:
    """What the file at FMSCHED_PLACEMENT says: every rank of the gang, in rank order."""
    ranks = [
        {
            "rank": rank.rank,
            "node": rank.node,
            "local_rank": rank.local_rank,
            "group": rank.group,
            "replica": rank.replica,
            "cell": rank.cell,
            "gpu": {"index": rank.gpu_index, "uuid": rank.gpu_uuid},
            "hcas": list(rank.hcas),
        }
        for rank in sorted(gang, key=lambda rank: rank.rank)
    ]
    # A line per rank, for readers; json's own indentation is ten times as slow.
    lines = ",\n".join(json.dumps(rank) for rank in ranks)
    head = json.dumps({"job": order.job, "name": order.job_name, "attempt": order.attempt, "world_size": order.world_size})
    return f'{head[:-1]}, "ranks": [\n{lines}\n]}}\n'
