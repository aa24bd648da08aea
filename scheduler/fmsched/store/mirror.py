"""The store's picture in memory, kept by following it. Reads are answered from here; every write is guarded by the revisions that
this picture was taken at, so a stale picture costs a retry and never a wrong write.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import structlog
from google.protobuf.message import DecodeError

from fmproto import keys
from fmproto.kv import Changes, Entry, Guard, Resync
from fmproto.v1 import hardware_pb2 as hw
from fmproto.v1 import job_pb2 as pb
from fmsched.model.hardware import JobId, NodeName
from fmsched.model.record import Decision, Job, Order, Run, Spec, Status
from fmsched.store import codec

log = structlog.get_logger(__name__)

# The leader's echo comes back every few seconds. While it does not, for whatever reason (the store is frozen, full, or cut off from
# here), nobody's silence is counted: it is the store's.
ECHO_GAP_S = 8.0


@dataclass(slots=True)
class Touched:
    """What one batch changed."""

    jobs: set[JobId] = field(default_factory=set)
    nodes: set[NodeName] = field(default_factory=set)
    hardware: bool = False  # inventory or fabric: the topology must be built anew
    capacity: bool = False  # what can be placed may have changed


class Subscription:
    """Collects touched jobs and nodes for one reader; never grows beyond the number of them. With `only`, of that job alone."""

    def __init__(self, only: JobId | None = None) -> None:
        self._only = only
        self._event = asyncio.Event()
        self._jobs: set[JobId] = set()
        self._nodes: set[NodeName] = set()

    def add(self, touched: Touched) -> None:
        if self._only is not None:
            if self._only in touched.jobs:
                self._jobs.add(self._only)
                self._event.set()
            return
        self._jobs |= touched.jobs
        self._nodes |= touched.nodes
        if touched.jobs or touched.nodes or touched.capacity:
            self._event.set()

    async def take(self, timeout_s: float | None) -> tuple[set[JobId], set[NodeName]]:
        """What was touched since the last call; two empty sets after `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._event.wait()
        except TimeoutError:
            pass
        self._event.clear()
        jobs, nodes = self._jobs, self._nodes
        self._jobs, self._nodes = set(), set()
        return jobs, nodes


class Mirror:
    """All of keys.ROOT, decoded. Fed by apply(); read by everybody else."""

    def __init__(self) -> None:
        self.revision = 0
        self.synced = False
        self.hardware_version = 0
        self.capacity_version = 0
        self.inventories: dict[NodeName, hw.Inventory] = {}
        self.healths: dict[NodeName, hw.Health] = {}
        self.alives: dict[NodeName, hw.Alive] = {}
        self.heard_s: dict[NodeName, float] = {}  # monotonic, of this process: when the beat last changed
        self.fences_s: dict[NodeName, float] = {}  # as each agent says: its ranks are gone after so long without contact
        self.intents: dict[NodeName, hw.NodeIntent] = {}
        self.fabric = hw.Fabric()
        self.specs: dict[JobId, pb.JobSpec] = {}
        self.spec_values: dict[JobId, Spec] = {}
        self.statuses: dict[JobId, Status] = {}
        self.wanted: set[JobId] = set()
        self.decisions: dict[JobId, Decision] = {}
        self.decision_messages: dict[JobId, pb.Decision] = {}
        self.orders: dict[JobId, dict[NodeName, Order]] = {}
        self.runs: dict[JobId, dict[NodeName, Run]] = {}
        self.run_messages: dict[JobId, dict[NodeName, pb.RunReport]] = {}
        self.sequence = 0
        self.unreadable: dict[str, str] = {}  # key → why: what it says is unknown, so it is never taken as absent
        self._mods: dict[str, int] = {}
        self._echo_s: float | None = None
        self._subscriptions: set[Subscription] = set()
        self._progress = asyncio.Condition()

    # --- feeding

    async def apply(self, item: Resync | Changes, now_s: float) -> Touched:
        """Takes one item of KV.follow; `now_s` is this process's monotonic clock."""
        touched = Touched()
        if isinstance(item, Resync):
            present = {entry.key for entry in item.entries}
            for key in [key for key in self._mods if key not in present]:
                self._put(key, None, touched, now_s)
            for entry in item.entries:
                if self._mods.get(entry.key) != entry.mod_revision:
                    self._put(entry.key, entry, touched, now_s)
            self.synced = True
        else:
            for change in item.changes:
                self._put(change.key, change.entry, touched, now_s)
        self.hardware_version += touched.hardware
        self.capacity_version += touched.capacity or touched.hardware
        for subscription in self._subscriptions:
            subscription.add(touched)
        async with self._progress:
            self.revision = max(self.revision, item.revision)
            self._progress.notify_all()
        return touched

    def start_listening(self, now_s: float) -> None:
        """Everybody's silence counts from now: a new leader has heard nobody yet."""
        self.heard_s = dict.fromkeys(self.heard_s, now_s)
        self._echo_s = now_s

    def counted_s(self, now_s: float) -> float:
        """Up to when silence counts: now, unless the echo is overdue."""
        return now_s if self._echo_s is None else min(now_s, self._echo_s + ECHO_GAP_S)

    async def reached(self, revision: int) -> None:
        """Returns once the picture is at least as new as `revision`: how a writer reads its own write."""
        async with self._progress:
            await self._progress.wait_for(lambda: self.revision >= revision)

    def subscribe(self, only: JobId | None = None) -> Subscription:
        subscription = Subscription(only)
        self._subscriptions.add(subscription)
        return subscription

    def unsubscribe(self, subscription: Subscription) -> None:
        self._subscriptions.discard(subscription)

    # --- reading

    def guard(self, key: str) -> Guard:
        """Holds while `key` is as this picture has it; absent counts."""
        return Guard(key, mod_revision=self._mods.get(key, 0))

    def job(self, job: JobId) -> Job | None:
        spec, status = self.spec_values.get(job), self.statuses.get(job)
        if spec is None or status is None:
            return None
        return Job(
            spec=spec,
            status=status,
            wanted=job in self.wanted,
            decision=self.decisions.get(job),
            orders=self.orders.get(job, {}),
            runs=self.runs.get(job, {}),
        )

    def dead_ports(self, node: NodeName) -> frozenset[str]:
        """Adapter ports ("mlx5_0/1") over which nothing may be placed."""
        health = self.healths.get(node)
        return codec.dead_ports_of(health) if health is not None else frozenset()

    def addresses(self) -> dict[NodeName, str]:
        return {node: inventory.address or node for node, inventory in self.inventories.items()}

    # --- one key

    def _put(self, key: str, entry: Entry | None, touched: Touched, now_s: float) -> None:
        if entry is None:
            self._mods.pop(key, None)
        else:
            self._mods[key] = entry.mod_revision
        parts = key.removeprefix(keys.ROOT).split("/")
        handler = _HANDLERS.get((parts[0], parts[2] if parts[0] in ("nodes", "jobs") and len(parts) > 2 else ""))
        if handler is None:
            return
        try:
            handler(self, parts, None if entry is None else entry.value, touched, now_s)
        except (DecodeError, KeyError, ValueError, IndexError) as error:
            # One key that cannot be read must not blind the scheduler to the others. What it said before stands.
            if entry is not None:
                self.unreadable[key] = repr(error)
                touched.capacity = True
                log.error("unreadable key", key=key, error=repr(error))
                return
        if self.unreadable.pop(key, None) is not None:
            touched.capacity = True

    def _inventory(self, parts: list[str], value: bytes | None, touched: Touched, _now_s: float) -> None:
        _store(self.inventories, parts[1], value, lambda raw: _named(hw.Inventory.FromString(raw), parts[1]))
        touched.hardware = touched.capacity = True
        touched.nodes.add(parts[1])

    def _health(self, parts: list[str], value: bytes | None, touched: Touched, _now_s: float) -> None:
        before = self.dead_ports(parts[1])
        _store(self.healths, parts[1], value, hw.Health.FromString)
        touched.capacity = True
        touched.hardware |= before != self.dead_ports(parts[1])
        touched.nodes.add(parts[1])

    def _alive(self, parts: list[str], value: bytes | None, touched: Touched, now_s: float) -> None:
        node = parts[1]
        if (value is None) == (node in self.alives):  # appeared or vanished: the beats between change nothing
            touched.capacity = True
            touched.nodes.add(node)
        _store(self.alives, node, value, hw.Alive.FromString)
        if value is not None:
            self.heard_s[node] = now_s
            self.fences_s[node] = self.alives[node].fence_s
        else:
            self.heard_s.setdefault(node, now_s)

    def _echo(self, _parts: list[str], value: bytes | None, _touched: Touched, now_s: float) -> None:
        if value is None:
            return
        if self._echo_s is not None and now_s - self._echo_s > ECHO_GAP_S:
            lost_s = now_s - self._echo_s
            self.heard_s = {node: min(now_s, at_s + lost_s) for node, at_s in self.heard_s.items()}
        self._echo_s = now_s

    def _sequence(self, _parts: list[str], value: bytes | None, _touched: Touched, _now_s: float) -> None:
        self.sequence = 0 if value is None else int(value)

    def _run(self, parts: list[str], value: bytes | None, touched: Touched, _now_s: float) -> None:
        node, job = parts[1], parts[3]
        message = None if value is None else pb.RunReport.FromString(value)
        run = None if message is None else codec.run_of(message)
        messages = self.run_messages.setdefault(job, {})
        runs = self.runs[job] = dict(self.runs.get(job, {}))  # values handed out earlier stay as they were
        held_before = runs[node].gpus if node in runs else ()
        if message is None or run is None:
            messages.pop(node, None)
            runs.pop(node, None)
        else:
            messages[node], runs[node] = message, run
        touched.capacity |= held_before != (runs[node].gpus if node in runs else ())
        touched.jobs.add(job)
        if not runs:
            del self.runs[job], self.run_messages[job]

    def _intent(self, parts: list[str], value: bytes | None, touched: Touched, _now_s: float) -> None:
        _store(self.intents, parts[1], value, hw.NodeIntent.FromString)
        touched.capacity = True
        touched.nodes.add(parts[1])

    def _fabric(self, _parts: list[str], value: bytes | None, touched: Touched, _now_s: float) -> None:
        self.fabric = hw.Fabric() if value is None else codec.unpacked(hw.Fabric.FromString(value))
        touched.hardware = touched.capacity = True

    def _spec(self, parts: list[str], value: bytes | None, touched: Touched, _now_s: float) -> None:
        job = parts[1]
        _store(self.spec_values, job, value, lambda raw: codec.spec_of(pb.JobSpec.FromString(raw)))
        _store(self.specs, job, value, pb.JobSpec.FromString)
        touched.jobs.add(job)

    def _status(self, parts: list[str], value: bytes | None, touched: Touched, _now_s: float) -> None:
        _store(self.statuses, parts[1], value, lambda raw: codec.status_of(pb.JobStatus.FromString(raw)))
        touched.jobs.add(parts[1])

    def _wanted(self, parts: list[str], value: bytes | None, touched: Touched, _now_s: float) -> None:
        (self.wanted.discard if value is None else self.wanted.add)(parts[1])
        touched.jobs.add(parts[1])

    def _decision(self, parts: list[str], value: bytes | None, touched: Touched, _now_s: float) -> None:
        job = parts[1]
        _store(self.decisions, job, value, lambda raw: codec.decision_of(pb.Decision.FromString(raw)))
        _store(self.decision_messages, job, value, pb.Decision.FromString)
        touched.capacity = True
        touched.jobs.add(job)

    def _order(self, parts: list[str], value: bytes | None, touched: Touched, _now_s: float) -> None:
        node, job = parts[1], parts[2]
        orders = self.orders[job] = dict(self.orders.get(job, {}))
        _store(orders, node, value, lambda raw: codec.order_of(pb.Assignment.FromString(raw)))
        touched.jobs.add(job)
        if not orders:
            del self.orders[job]


def _named(inventory: hw.Inventory, node: NodeName) -> hw.Inventory:
    if inventory.node != node:
        raise ValueError(f"the inventory of {node} calls itself {inventory.node!r}")
    return inventory


def _store(table: dict[str, Any], key: str, value: bytes | None, decode: Callable[[bytes], Any]) -> None:
    if value is None:
        table.pop(key, None)
    else:
        table[key] = decode(value)


_Handler = Callable[[Mirror, list[str], bytes | None, Touched, float], None]
_HANDLERS: dict[tuple[str, str], _Handler] = {
    ("nodes", "inventory"): Mirror._inventory,
    ("nodes", "health"): Mirror._health,
    ("nodes", "alive"): Mirror._alive,
    ("nodes", "runs"): Mirror._run,
    ("intents", ""): Mirror._intent,
    ("fabric", ""): Mirror._fabric,
    ("jobs", "spec"): Mirror._spec,
    ("jobs", "status"): Mirror._status,
    ("jobs", "wanted"): Mirror._wanted,
    ("echo", ""): Mirror._echo,
    ("sequence", ""): Mirror._sequence,
    ("decisions", ""): Mirror._decision,
    ("assignments", ""): Mirror._order,
}
