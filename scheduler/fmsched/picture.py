"""From the mirror to the values that decisions are made of: the topology (built anew only when hardware or fabric changed), the
liveness of nodes, the snapshot.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

import structlog

from fmproto import keys
from fmproto.v1 import hardware_pb2 as hw
from fmproto.v1 import job_pb2 as pb
from fmsched.lifecycle.liveness import Liveness, LivenessLimits, Sign, judge
from fmsched.lifecycle.step import NodeState
from fmsched.model.fabric import Fabric, Topology
from fmsched.model.hardware import GpuId, JobId, NodeName, NodeShape
from fmsched.model.record import Decision, Run
from fmsched.model.snapshot import HostShare, PowerBudget, Snapshot
from fmsched.place.links import reservations
from fmsched.place.spares import widened
from fmsched.store import codec
from fmsched.store.mirror import Mirror
from fmsched.topology.graph import build_topology
from fmsched.topology.routes import Edge, measured_of

log = structlog.get_logger(__name__)

Value = TypeVar("Value")
Derived = TypeVar("Derived")


@dataclass(frozen=True, slots=True)
class _Judgement:
    """What an agent's judgement means for placement: GPUs (by uuid) that may not be given out, and why the node is closed, if it is."""

    unfit: Mapping[str, str]
    closed: str


@dataclass(frozen=True, slots=True)
class _Taken:
    """What may not be given out, as the store says; what silence says comes on top. `version` is the mirror's capacity_version."""

    version: int
    held: Mapping[GpuId, JobId]
    unfit: Mapping[GpuId, str]
    unwell: Mapping[NodeName, str]  # closed by the agent's judgement
    barred: Mapping[NodeName, str]  # drained, or with a key that cannot be read; stands above every other reason


def _judgement(health: hw.Health) -> _Judgement:
    return _Judgement(codec.unfit_of(health), codec.closed_by(health))


@dataclass(frozen=True, slots=True)
class _Reserved:
    """What a job reserves on links, and what that was derived of."""

    topology: Topology
    decision: Decision
    spec: pb.JobSpec
    links: Mapping[Edge, float]


def _held_by_runs(runs: Mapping[NodeName, Run]) -> dict[GpuId, None]:
    return {GpuId(node, gpu): None for node, run in runs.items() for gpu in run.gpus}


def _held_by_decision(decision: Decision) -> dict[GpuId, None]:
    return {rank.gpu_id: None for rank in decision.placement.ranks}


class _Derived(Generic[Value, Derived]):
    """What is derived of the values under some keys, once for each: the mirror replaces a value that changes, and never changes one."""

    def __init__(self, derive: Callable[[Value], Derived]) -> None:
        self._derive = derive
        self._known: dict[str, tuple[Value, Derived]] = {}

    def of(self, values: Mapping[str, Value]) -> dict[str, Derived]:
        known = self._known
        self._known = {
            key: entry if (entry := known.get(key)) is not None and entry[0] is value else (value, self._derive(value))
            for key, value in values.items()
        }
        return {key: derived for key, (_, derived) in self._known.items()}


class Picture:
    """Derives from one mirror, and caches what is dear."""

    def __init__(
        self,
        mirror: Mirror,
        limits: LivenessLimits,
        power: tuple[PowerBudget, ...] = (),
        prices: Mapping[str, float] | None = None,
    ) -> None:
        self._mirror = mirror
        self._limits = limits
        self._power = power
        self._prices = dict(prices or {})
        self._judged = _Derived(_judgement)
        self._of_runs = _Derived(_held_by_runs)
        self._of_decisions = _Derived(_held_by_decision)
        self._reserved: dict[JobId, _Reserved] = {}
        self._topology: Topology | None = None
        self._built_of = -1
        self._taken: _Taken | None = None
        self._well: tuple[int, float] | None = None  # (capacity_version, the longest silence's start) when all were ready

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
        taken = self._taken_now()
        closed = {node: f"{node} is {state}" for node, state in self._unready(now_s).items()}
        for node, reason in taken.unwell.items():
            closed.setdefault(node, reason)
        closed |= taken.barred
        return Snapshot(
            mirror.revision,
            topology,
            taken.held,
            taken.unfit,
            closed,
            self._power,
            self._per_gpu(),
            self._prices,
            links_held=self.links_held(),
            links_measured=measured_of(topology.fabric),
        )

    def _unready(self, now_s: float) -> dict[NodeName, NodeState]:
        """The nodes that are not ready. Where all were and no key came or went, beats can only have put off the first silence: nothing
        is judged again until it is due."""
        mirror, version = self._mirror, self._mirror.capacity_version
        well = self._well
        if well and well[0] == version and mirror.counted_s(now_s) - well[1] <= self._limits.unreachable_s:
            return {}
        states = self.liveness(now_s).states
        unready: dict[NodeName, NodeState] = {node: state for node, state in states.items() if state is not NodeState.READY}
        self._well = None if unready else (version, min((mirror.heard_s[node] for node in states), default=now_s))
        return unready

    def _taken_now(self) -> _Taken:
        """Derived again only when the mirror's capacity has changed: between, every question sees the same values."""
        mirror = self._mirror
        if self._taken is not None and self._taken.version == mirror.capacity_version:
            return self._taken
        judgements = self._judged.of(mirror.healths)
        barred: dict[NodeName, str] = {}
        for node, intent in mirror.intents.items():
            if intent.drained:
                barred[node] = f"{node} is drained" + (f": {intent.reason}" if intent.reason else "")
        for key, error in mirror.unreadable.items():
            if key.startswith(keys.NODES):
                # What runs there is not known, so nothing new may.
                barred[key.removeprefix(keys.NODES).split("/")[0]] = f"{key} cannot be read: {error}"
        self._taken = _Taken(
            mirror.capacity_version,
            self._held(),
            self._by_gpu({node: judgement.unfit for node, judgement in judgements.items()}),
            {node: judgement.closed for node, judgement in judgements.items() if judgement.closed},
            barred,
        )
        return self._taken

    def _held(self) -> Mapping[GpuId, JobId]:
        """By decisions, and by whatever agents still see running: a release is observed, never assumed."""
        held: dict[GpuId, JobId] = {}
        for by_job in (self._of_runs.of(self._mirror.runs), self._of_decisions.of(self._mirror.decisions)):
            for job, gpus in by_job.items():
                held.update(dict.fromkeys(gpus, job))
        return held

    def _per_gpu(self) -> dict[JobId, HostShare]:
        """Of decided jobs that asked for CPUs or memory of their nodes."""
        specs = ((job, self._mirror.specs.get(job)) for job in self._mirror.decisions)
        found = {job: codec.share_of(spec) for job, spec in specs if spec is not None}
        return {job: share for job, share in found.items() if share is not None}

    def links_held(self) -> dict[JobId, Mapping[Edge, float]]:
        """Gb/s that each decided job reserves, by link between two switches; gone with its decision."""
        topology, known = self.topology(), self._reserved
        self._reserved = {}
        for job, decision in self._mirror.decisions.items():
            spec = self._mirror.specs.get(job)
            if spec is None or not any(group.connectivity.reserve_gbps for group in spec.groups):
                continue
            entry = known.get(job)
            if entry is None or not (entry.topology is topology and entry.decision is decision and entry.spec is spec):
                links = reservations(topology, widened(codec.spec_of(spec).request), decision.placement.ranks)
                entry = _Reserved(topology, decision, spec, links)
            self._reserved[job] = entry
        return {job: entry.links for job, entry in self._reserved.items() if entry.links}

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
