"""From the mirror to the values that decisions are made of: the topology (built anew only when hardware or fabric changed), the
liveness of nodes, the snapshot.
"""

from __future__ import annotations

from collections.abc import Mapping

import structlog

from fmproto import keys
from fmsched.lifecycle.liveness import Liveness, LivenessLimits, Sign, judge
from fmsched.lifecycle.step import NodeState
from fmsched.model.fabric import Fabric, Topology
from fmsched.model.hardware import GpuId, JobId, NodeName, NodeShape
from fmsched.model.snapshot import Snapshot
from fmsched.store import codec
from fmsched.store.mirror import Mirror
from fmsched.topology.graph import build_topology

log = structlog.get_logger(__name__)


class Picture:
    """Derives from one mirror, and caches what is dear."""

    def __init__(self, mirror: Mirror, limits: LivenessLimits) -> None:
        self._mirror = mirror
        self._limits = limits
        self._topology: Topology | None = None
        self._built_of = -1

    def topology(self) -> Topology:
        if self._topology is None or self._built_of != self._mirror.hardware_version:
            self._built_of = self._mirror.hardware_version
            shapes: dict[NodeShape, NodeShape] = {}
            inventories = sorted(self._mirror.inventories.items())
            nodes = [codec.node_of(inventory, self._mirror.dead_ports(name), shapes) for name, inventory in inventories]
            try:
                self._topology = build_topology(nodes, codec.fabric_of(self._mirror.fabric))
            except ValueError as error:
                log.error("the fabric cannot be used; every node stands alone until it can", error=str(error))
                self._topology = build_topology(nodes, Fabric())
        return self._topology

    def liveness(self, now_s: float) -> Liveness:
        """`now_s` is the monotonic clock that fed the mirror."""
        mirror = self._mirror
        counted_s = mirror.counted_s(now_s)
        signs = {}
        # Nodes that hold a gang and have left the inventory are judged like the others: their ranks may run.
        holders = {node for decision in mirror.decisions.values() for node in decision.placement.nodes}
        for node in mirror.inventories.keys() | holders:
            heard_s = mirror.heard_s.setdefault(node, now_s)
            alive = mirror.alives.get(node) if node in mirror.inventories else None
            fence_s = mirror.fences_s.get(node, 0.0)
            signs[node] = Sign(key=alive is not None, silent_s=max(0.0, counted_s - heard_s), fence_s=fence_s)
        return judge(signs, self._limits)

    def failed_gpus(self) -> dict[GpuId, str]:
        return self._by_gpu({node: codec.failed_of(health) for node, health in self._mirror.healths.items()})

    def snapshot(self, now_s: float) -> Snapshot:
        mirror = self._mirror
        topology = self.topology()
        closed: dict[NodeName, str] = {}
        for node, state in self.liveness(now_s).states.items():
            if state is not NodeState.READY:
                closed[node] = f"{node} is {state}"
        for node, health in mirror.healths.items():
            reason = codec.closed_by(health)
            if reason:
                closed.setdefault(node, reason)
        for node, intent in mirror.intents.items():
            if intent.drained:
                closed[node] = f"{node} is drained" + (f": {intent.reason}" if intent.reason else "")
        for key, error in mirror.unreadable.items():
            if key.startswith(keys.NODES):
                # What runs there is not known, so nothing new may.
                closed[key.removeprefix(keys.NODES).split("/")[0]] = f"{key} cannot be read: {error}"
        unfit = self._by_gpu({node: codec.unfit_of(health) for node, health in mirror.healths.items()})
        return Snapshot(mirror.revision, topology, self._held(), unfit, closed)

    def _held(self) -> Mapping[GpuId, JobId]:
        """By decisions, and by whatever agents still see running: a release is observed, never assumed."""
        held: dict[GpuId, JobId] = {}
        for job, runs in self._mirror.runs.items():
            held |= {GpuId(node, gpu): job for node, run in runs.items() for gpu in run.gpus}
        for job, decision in self._mirror.decisions.items():
            held |= {rank.gpu_id: job for rank in decision.placement.ranks}
        return held

    def _by_gpu(self, by_node: Mapping[NodeName, Mapping[str, str]]) -> dict[GpuId, str]:
        topology = self.topology()
        result = {}
        for node, by_uuid in by_node.items():
            if not by_uuid or node not in topology.index:
                continue
            for index, uuid in enumerate(topology.node(node).uuids):
                if uuid in by_uuid:
                    result[GpuId(node, index)] = by_uuid[uuid]
        return result
