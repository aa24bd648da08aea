"""Where an allocation's ranks go, and the environment that each is to be started with."""

from __future__ import annotations

from dataclasses import dataclass

from fmproto.v1.job_pb2 import Decision, RankPlacement
from fmproto.v1.scheduler_pb2 import Job


@dataclass(frozen=True, slots=True)
class NodeShare:
    """One node's part. `ranks` in the order of local_rank."""

    name: str
    node_rank: int
    ranks: tuple[RankPlacement, ...]


@dataclass(frozen=True, slots=True)
class Placement:
    """rank → GPU, of one attempt. `nodes` in the order of their lowest rank: the position is the NODE_RANK.

    master_port   0 where no agent has held a port: choose one on nodes[0]
    """

    job: str
    attempt: int
    nodes: tuple[NodeShare, ...]
    master_addr: str
    master_port: int

    @property
    def world_size(self) -> int:
        return sum(len(node.ranks) for node in self.nodes)

    @property
    def ranks(self) -> tuple[RankPlacement, ...]:
        """All, in rank order."""
        return tuple(sorted((rank for node in self.nodes for rank in node.ranks), key=lambda rank: rank.rank))

    def node_of(self, rank: int) -> NodeShare:
        """KeyError for a rank that the placement does not have."""
        for node in self.nodes:
            if any(each.rank == rank for each in node.ranks):
                return node
        raise KeyError(f"rank {rank}: the placement has ranks 0 to {self.world_size - 1}")

    def env(self, rank: int) -> dict[str, str]:
        """What programs written for torchrun read, under the names that fm-agent gives its own ranks.

        Every rank of a node sees all of the job's GPUs there, in the order of LOCAL_RANK, which is thus the CUDA device number.
        NCCL_SOCKET_IFNAME is left to the launcher: it is a fact of the node. KeyError for an unknown rank.
        """
        node = self.node_of(rank)
        placed = next(each for each in node.ranks if each.rank == rank)
        uuids = ",".join(each.gpu_uuid for each in node.ranks)
        hcas = tuple(dict.fromkeys(hca for each in node.ranks for hca in each.hcas))
        env = {
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "CUDA_VISIBLE_DEVICES": uuids,
            "RANK": str(rank),
            "WORLD_SIZE": str(self.world_size),
            "LOCAL_RANK": str(placed.local_rank),
            "LOCAL_WORLD_SIZE": str(len(node.ranks)),
            "NODE_RANK": str(node.node_rank),
            "MASTER_ADDR": self.master_addr,
            "FMSCHED_JOB": self.job,
            "FMSCHED_ATTEMPT": str(self.attempt),
            "FMSCHED_NODE": node.name,
            "FMSCHED_GROUP": placed.group,
            "FMSCHED_REPLICA": str(placed.replica),
            "FMSCHED_CELL": str(placed.cell),
            "FMSCHED_GPU_UUIDS": uuids,
            "FMSCHED_GPU_INDICES": ",".join(str(each.gpu_index) for each in node.ranks),
        }
        if self.master_port:
            env["MASTER_PORT"] = str(self.master_port)
        if hcas:
            env["NCCL_IB_HCA"] = "=" + ",".join(hcas)  # "=": these names exactly, not every name that begins so
        return env


def placement_of(job: Job) -> Placement | None:
    """None while no decision is held."""
    if not job.HasField("decision") or not job.decision.ranks:
        return None
    decision = job.decision
    return Placement(decision.job, decision.attempt, _nodes(decision), decision.master_address, decision.master_port)


def _nodes(decision: Decision) -> tuple[NodeShare, ...]:
    by_node: dict[str, list[RankPlacement]] = {}
    for rank in sorted((each for each in decision.ranks if not each.spare), key=lambda each: each.rank):
        by_node.setdefault(rank.node, []).append(rank)
    return tuple(
        NodeShare(name, position, tuple(sorted(ranks, key=lambda each: each.local_rank)))
        for position, (name, ranks) in enumerate(by_node.items())
    )
