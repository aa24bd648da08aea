"""The world as one decision sees it: the static topology, shared, and the small changing state beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from fmsched.model.fabric import Topology
from fmsched.model.hardware import GpuId, JobId, NodeName


@dataclass(frozen=True, slots=True)
class PowerBudget:
    """What the GPUs of some nodes may draw together: those of a rack, or behind one feed."""

    name: str
    nodes: frozenset[NodeName]
    watts: float


@dataclass(frozen=True, slots=True)
class HostShare:
    """What each GPU that a job holds takes of its node."""

    cpus: float = 0.0
    memory_gb: float = 0.0


@dataclass(frozen=True, slots=True)
class Snapshot:
    revision: int
    topology: Topology
    held: Mapping[GpuId, JobId] = field(default_factory=dict)  # by a decision, or still seen in use by an agent
    unfit: Mapping[GpuId, str] = field(default_factory=dict)  # sick GPUs, with the reason
    closed: Mapping[NodeName, str] = field(default_factory=dict)  # drained, unreachable, lost: reason
    power: tuple[PowerBudget, ...] = ()
    per_gpu: Mapping[JobId, HostShare] = field(default_factory=dict)  # of jobs that asked for CPUs or host memory
    prices: Mapping[str, float] = field(default_factory=dict)  # of a GPU-hour, by family; no currency of its own
    # Gb/s that running jobs reserve between two switches (names in order); derived of their placements, so gone with them
    links_held: Mapping[JobId, Mapping[tuple[str, str], float]] = field(default_factory=dict)
    links_measured: Mapping[tuple[str, str], float] = field(default_factory=dict)  # Gb/s of other traffic seen there

    def usable(self, gpu: GpuId) -> bool:
        return gpu not in self.held and gpu not in self.unfit and gpu.node not in self.closed

    def free_indices(self, node: NodeName) -> tuple[int, ...]:
        """GPU indices of a node that may be given out now."""
        if node in self.closed:
            return ()
        count = len(self.topology.node(node).shape.gpus)
        return tuple(i for i in range(count) if self.usable(GpuId(node, i)))

    def emptied(self) -> Snapshot:
        """The same cluster with nothing held and everything well: what "never" is judged on."""
        return replace(self, held={}, unfit={}, closed={}, links_held={}, links_measured={})
