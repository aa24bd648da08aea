"""GPU nodes: GPUs, a disk that outlives the agent, and supervised runs that outlive it too. What fmagent/runner/{process,shim}.py do with
real processes happens here in virtual time, by the same rules: a stop outweighs a start, a supervisor fences itself by the contact file,
a run is gone only when no rank of it is left.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from fmagent.launch.environment import NodeFacts
from fmagent.orders import Order, PlacedRank, RankStatus, RunState, Stage
from fmagent.runner.port import Adopted, CannotPrepare
from fmproto.v1 import hardware_pb2 as hw
from tests.sim.clock import VirtualLoop
from tests.sim.network import FaultyKV

SIGTERM_CODE, SIGKILL_CODE = 143, 137
# As runner/contact.py and runner/process.py have them.
CONTACT_EVERY_S = 0.5
RESCAN_S = 1.0
LEFTOVER_MAX_S = 2.0


@dataclass(frozen=True, slots=True)
class RankPlan:
    """How long a rank runs if nobody stops it, how it ends, and how long it takes to end when told (None: it must be killed)."""

    runs_s: float
    exit_code: int
    stops_s: float | None


@dataclass(frozen=True, slots=True)
class PreparePlan:
    takes_s: float
    refused: str = ""
    device_fault: bool = False


class Script(Protocol):
    """What jobs do once they are there; from the seed."""

    def rank(self, job: str, attempt: int, rank: int) -> RankPlan: ...

    def prepare(self, job: str, attempt: int, node: str) -> PreparePlan: ...


class Truth(Protocol):
    """Who is told of what really happens on the nodes."""

    def rank_started(self, node: str, gpu: int, job: str, attempt: int) -> None: ...

    def rank_ended(self, node: str, gpu: int, job: str, attempt: int) -> None: ...

    def wrong(self, what: str) -> None: ...

    def told_to_stop(self, node: str, job: str, attempt: int, reason: str) -> None: ...

    def note(self, *what: object) -> None: ...


@dataclass(frozen=True, slots=True)
class FenceRule:
    after_s: float
    grace_s: float


@dataclass(slots=True)
class _Rank:
    rank: int
    gpu: int
    pid: int = 0
    exit_code: int | None = None
    reason: str = ""

    @property
    def lives(self) -> bool:
        return self.pid > 0 and self.exit_code is None


@dataclass(eq=False, slots=True)
class Run:
    """One run with its supervisor. `released`: only its logs are left."""

    order: Order
    ranks: list[_Rank]
    stage: Stage = Stage.PREPARING
    supervised: bool = True
    held_port: int = 0
    reason: str = ""
    device_fault: bool = False
    first_failed_ms: int = 0
    gone: bool = False
    start: tuple[str, int] | None = None
    stop: tuple[float, str, bool] | None = None
    deadline_s: float = 0.0
    released: bool = False

    @property
    def key(self) -> tuple[str, int]:
        return (self.order.job, self.order.attempt)

    def state(self) -> RunState:
        return RunState(
            job=self.order.job,
            attempt=self.order.attempt,
            stage=self.stage,
            ranks=tuple(RankStatus(r.rank, r.pid, r.exit_code, r.reason) for r in self.ranks),
            gpus=self.order.gpus,
            gpu_indices=tuple(rank.gpu_index for rank in self.order.ranks),
            held_port=self.held_port,
            reason=self.reason,
            device_fault=self.device_fault,
            first_failed_ms=self.first_failed_ms,
            gone=self.gone,
            start_ordered=self.start is not None,
            stop_ordered=self.stop is not None,
            grace_period_s=self.order.grace_period_s,
        )


@dataclass(eq=False, slots=True)
class Disk:
    """What survives a power cut. `contact_s` does not: its clock is that of a boot."""

    memory: dict[str, object] = field(default_factory=dict)
    runs: dict[tuple[str, int], Run] = field(default_factory=dict)


class Node:
    """One machine. Its supervisors run in the world's time, whatever becomes of the agent."""

    def __init__(
        self,
        name: str,
        inventory: hw.Inventory,
        loop: VirtualLoop,
        truth: Truth,
        script: Script,
        fence: FenceRule,
        seed: str,
    ) -> None:
        self.name = name
        self.inventory = inventory
        self.disk = Disk()
        self.contact_s: float | None = None
        self.sick: dict[str, str] = {}
        self.powered = True
        self.over = False
        self.news: Callable[[], None] = lambda: None
        self._loop = loop
        self.truth = truth
        self._script = script
        self._fence = fence
        self._rng = random.Random(f"{seed}:node:{name}")
        self._pids = 100

    # --- what the agent's runner asks

    def prepare(self, order: Order) -> None:
        plan = self._script.prepare(order.job, order.attempt, self.name)
        run = Run(order, [_Rank(rank.rank, rank.gpu_index) for rank in order.ranks])
        if run.key in self.disk.runs:
            raise CannotPrepare(f"cannot record the run: {run.key} is there already", device_fault=True)
        self.disk.runs[run.key] = run
        if self.contact_s is None:
            self.contact_s = self._loop.time()
        self._loop.later(plan.takes_s, self._prepared, run, plan)

    def command(self, run: Run) -> None:
        """A command was written: the supervisor reads it soon."""
        self._loop.later(0.001 + 0.02 * self._rng.random(), self._obey, run)

    def living(self) -> list[tuple[Run, _Rank]]:
        return [(run, rank) for run in self.disk.runs.values() for rank in run.ranks if rank.lives]

    # --- the supervisor

    def _prepared(self, run: Run, plan: PreparePlan) -> None:
        if not run.supervised or run.stage is not Stage.PREPARING:
            return
        if plan.refused:
            self._refuse(run, plan.refused, device_fault=plan.device_fault)
            return
        if run.order.holds_port:
            run.held_port = 20_000 + self._rng.randrange(10_000)
        run.stage = Stage.PREPARED
        self._loop.later(self._fence.after_s, self._look_at_contact, run)
        self._obey(run)
        self._tell()

    def _obey(self, run: Run) -> None:
        if not run.supervised or self.over:
            return
        if run.stop is not None:
            grace_s, reason, device_fault = run.stop
            self._begin_stop(run, grace_s, reason, device_fault=device_fault)
        elif run.start is not None and run.stage is Stage.PREPARED:
            self._start(run, run.start[1])

    def _start(self, run: Run, master_port: int) -> None:
        job, attempt = run.key
        if run.held_port and master_port != run.held_port:
            self.wrong(f"{job}.{attempt} was to start with port {master_port}; {run.held_port} is held")
            return
        run.stage = Stage.RUNNING
        self.truth.note("start", self.name, job, attempt)
        if run.order.command is not None:
            for rank in run.ranks:
                self._pids += 1
                rank.pid = self._pids
                self.truth.rank_started(self.name, rank.gpu, job, attempt)
                plan = self._script.rank(job, attempt, rank.rank)
                self._loop.later(plan.runs_s, self._exits, run, rank, plan.exit_code, "")
        self._tell()

    def _exits(self, run: Run, rank: _Rank, code: int, reason: str) -> None:
        if not rank.lives:
            return
        rank.exit_code, rank.reason = code, reason
        if code and not run.first_failed_ms:
            run.first_failed_ms = int(self._loop.time() * 1000)
        self.truth.rank_ended(self.name, rank.gpu, *run.key)
        if run.stage is Stage.RUNNING and not any(one.lives for one in run.ranks):
            run.stage = Stage.EXITED
            leftover_s = LEFTOVER_MAX_S * self._rng.random() if self._rng.random() < 0.2 else 0.02
            self._loop.later(leftover_s, self._finish, run)
        elif run.stage is Stage.STOPPING:
            self._loop.later(0.01, self._finish, run)
        self._tell()

    def _begin_stop(self, run: Run, grace_s: float, reason: str, *, device_fault: bool = False) -> None:
        if run.stage not in {Stage.PREPARING, Stage.PREPARED, Stage.RUNNING}:
            return
        run.stage, run.reason, run.device_fault = Stage.STOPPING, reason, run.device_fault or device_fault
        run.deadline_s = self._loop.time() + grace_s
        for rank in run.ranks:
            stops_s = self._script.rank(*run.key, rank.rank).stops_s
            if rank.lives and stops_s is not None:
                self._loop.later(stops_s, self._exits, run, rank, SIGTERM_CODE, "ended by SIGTERM")
        self._loop.later(grace_s, self._kill_late, run)
        self._loop.later(0.01, self._finish, run)
        self._tell()

    def _kill_late(self, run: Run) -> None:
        if not run.supervised or self._loop.time() < run.deadline_s:
            return
        for rank in run.ranks:
            self._exits(run, rank, SIGKILL_CODE, "ended by SIGKILL")

    def _finish(self, run: Run) -> None:
        """Closes the run where nothing of it is left."""
        ending = run.stage in {Stage.STOPPING, Stage.EXITED, Stage.REFUSED}
        if run.gone or not run.supervised or not ending or any(rank.lives for rank in run.ranks):
            return
        if run.stage is Stage.STOPPING:
            run.stage = Stage.EXITED
        run.gone = True
        self._tell()

    def _refuse(self, run: Run, reason: str, *, device_fault: bool) -> None:
        run.stage, run.reason, run.device_fault = Stage.REFUSED, reason, device_fault
        self._loop.later(0.01, self._finish, run)
        self._tell()

    def _look_at_contact(self, run: Run) -> None:
        """The fence. A supervisor looks every tick; here, when the silence could be long enough."""
        if run.gone or not run.supervised or self.over:
            return
        now_s = self._loop.time()
        tick_s = min(1.0, self._fence.after_s / 4)
        silent_s = now_s - (self.contact_s if self.contact_s is not None else now_s)
        if silent_s <= self._fence.after_s:
            self._loop.later(self._fence.after_s - silent_s + tick_s * self._rng.random(), self._look_at_contact, run)
            return
        grace_s = min(run.order.grace_period_s, self._fence.grace_s)
        if run.stage is Stage.STOPPING:
            run.deadline_s = min(run.deadline_s, now_s + grace_s)
            self._loop.later(max(0.0, run.deadline_s - now_s), self._kill_late, run)
        elif run.stage in {Stage.PREPARED, Stage.RUNNING}:
            self.truth.note("fence", self.name, *run.key)
            self._begin_stop(run, grace_s, f"fenced: no contact for {silent_s:.1f} s", device_fault=True)
        self._loop.later(tick_s, self._look_at_contact, run)

    def wrong(self, what: str) -> None:
        self.truth.wrong(f"{self.name}: {what}")

    # --- faults

    def kill_supervisor(self, run: Run, cause: str) -> None:
        """Its ranks die with it; the agent closes the run when it looks."""
        if run.gone:
            return
        run.supervised = False
        for rank in run.ranks:
            if rank.lives:
                rank.exit_code, rank.reason = SIGKILL_CODE, cause
                self.truth.rank_ended(self.name, rank.gpu, *run.key)
        if run.stage not in {Stage.EXITED, Stage.REFUSED}:
            started = run.stage in {Stage.RUNNING, Stage.STOPPING}
            run.stage = Stage.EXITED if started else Stage.REFUSED
            run.reason, run.device_fault = cause, True
        run.gone = True
        self._tell()

    def power_off(self) -> None:
        self.powered = False
        for run in list(self.disk.runs.values()):
            self.kill_supervisor(run, "the node was rebooted")
        self.contact_s = None

    def fail_gpu(self, index: int, reason: str) -> None:
        self.sick[self.inventory.gpus[index].uuid] = reason
        for run, rank in self.living():
            if rank.gpu == index and self._rng.random() < 0.5:
                self._loop.later(2 * self._rng.random(), self._exits, run, rank, 1, "its GPU failed")

    def _tell(self) -> None:
        self.news()


class SimDevices:
    """Satisfies fmagent.devices.port.Devices."""

    def __init__(self, node: Node) -> None:
        self._node = node

    async def observe(self) -> tuple[hw.Inventory, hw.Health]:
        node = self._node
        inventory = hw.Inventory()
        inventory.CopyFrom(node.inventory)
        health = hw.Health(node=node.name)
        for gpu in inventory.gpus:
            reason = node.sick.get(gpu.uuid, "")
            state = hw.HEALTH_STATE_FAILED if reason else hw.HEALTH_STATE_OK
            health.gpus.append(hw.DeviceHealth(device=gpu.uuid, state=state, reason=reason))
        return inventory, health

    async def holders(self, uuids: Sequence[str]) -> dict[str, tuple[int, ...]]:
        node = self._node
        found: dict[str, tuple[int, ...]] = {}
        for _, rank in node.living():
            uuid = node.inventory.gpus[rank.gpu].uuid
            if uuid in uuids:
                found[uuid] = (*found.get(uuid, ()), rank.pid)
        return found

    async def close(self) -> None:
        """Nothing is held open."""


class SimRunner:
    """Satisfies fmagent.runner.port.Runner for one incarnation of the agent. Each call is a place where the agent may be killed:
    `kv` has the fuse."""

    def __init__(self, node: Node, loop: VirtualLoop, kv: FaultyKV) -> None:
        self._node = node
        self._loop = loop
        self._kv = kv
        self._news = asyncio.Event()
        self._known: dict[tuple[str, int], Run] = {}
        self._written_s = float("-inf")
        node.news = self._news.set

    async def adopt(self) -> Adopted:
        node = self._node
        self._known = {key: run for key, run in node.disk.runs.items() if not run.released}
        age_s = self._loop.time() - node.contact_s if node.contact_s is not None else None
        return Adopted(await self.observe(), age_s)

    async def observe(self) -> tuple[RunState, ...]:
        return tuple(run.state() for run in self._known.values())

    async def changed(self) -> None:
        timer = self._loop.call_later(RESCAN_S, self._news.set)
        await self._news.wait()
        self._news.clear()
        timer.cancel()

    async def prepare(self, order: Order, facts: NodeFacts, gang: tuple[PlacedRank, ...]) -> None:
        await self._kv.step()
        self._node.prepare(order)
        self._known[order.job, order.attempt] = self._node.disk.runs[order.job, order.attempt]
        await self._kv.step()

    async def start(self, job: str, attempt: int, master_address: str, master_port: int) -> None:
        await self._kv.step()
        run = self._known[job, attempt]
        run.start = (master_address, master_port)
        self._node.command(run)
        await self._kv.step()

    async def stop(self, job: str, attempt: int, grace_s: float, reason: str, *, device_fault: bool) -> None:
        await self._kv.step()
        run = self._known.get((job, attempt))
        if run is not None:
            if not device_fault:  # else the fence stops it, order or not
                self._node.truth.told_to_stop(self._node.name, job, attempt, reason)
            run.stop = (grace_s, reason, device_fault)
            self._node.command(run)
        await self._kv.step()

    async def release(self, job: str, attempt: int) -> None:
        await self._kv.step()
        run = self._known.pop((job, attempt), None)
        if run is not None:
            if not run.gone:
                self._node.wrong(f"{job}.{attempt} was released before it was gone")
            run.released = True
        await self._kv.step()

    async def contact(self, age_s: float) -> None:
        stamp_s = self._loop.time() - age_s
        if stamp_s - self._written_s >= CONTACT_EVERY_S:
            self._written_s = self._node.contact_s = stamp_s

    async def processes(self) -> frozenset[int]:
        return frozenset(rank.pid for run, rank in self._node.living() if run.key in self._known)

    def disk_fault(self) -> str:
        return ""

    async def load(self) -> Mapping[str, object]:
        return dict(self._node.disk.memory)

    async def remember(self, memory: Mapping[str, object]) -> None:
        await self._kv.step()
        self._node.disk.memory = dict(memory)
