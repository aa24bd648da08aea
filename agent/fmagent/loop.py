"""The shell: reads what is wanted and what is there, asks reconcile, does what it says. It awaits only ports (store, devices, runner)
and the event loop's clock, so that it also runs in virtual time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

from fmagent import codec
from fmagent.codec import BadOrder
from fmagent.devices.port import Devices, HoldersUnknown
from fmagent.launch.environment import NodeFacts
from fmagent.orders import Order, RunState, Stage
from fmagent.reconcile import (
    Action,
    Announce,
    DeclareLost,
    Decline,
    Ignore,
    Prepare,
    Release,
    Seen,
    Start,
    Stop,
    Withdraw,
    World,
    foreign,
    note,
    reconcile,
    restored,
)
from fmagent.register import Log, Register
from fmagent.runner.port import CannotPrepare, Runner
from fmproto import keys
from fmproto.kv import KV, Changes, Entry, Resync, StoreUnavailable
from fmproto.v1 import hardware_pb2 as hw

# Rounds of decide-and-do before the loop waits for news again. A job needs a handful (stop, release, announce, prepare, start);
# more means that doing changes nothing, which waits for the next second.
ROUNDS_MAX = 16
# Between two tries of following the orders, seconds, where the store ended the following.
FOLLOW_RETRY_S = 1.0
# Attempts that are remembered, so that older orders can be refused: of so many jobs, the newest.
ATTEMPTS_MAX = 1024


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """`session` as in register.py: "IDENTITY/TOKEN". `address` is what ranks on other nodes reach this node by, `agent_address` the
    agent's own gRPC server. Times in seconds."""

    node: str
    session: str
    agent_address: str = ""
    address: str = ""
    socket_interface: str = ""
    version: str = ""
    labels: tuple[tuple[str, str], ...] = ()
    period_s: float = 5.0
    fence_after_s: float = 60.0
    fence_grace_s: float = 10.0


class AgentLoop:
    """One node's agent. `await run()` until cancelled; cancelling leaves every run as it is."""

    def __init__(self, kv: KV, devices: Devices, runner: Runner, settings: AgentSettings, log: Log) -> None:
        self._kv = kv
        self._devices = devices
        self._runner = runner
        self._settings = settings
        self._log = log
        self._wake = asyncio.Event()
        self.ready = asyncio.Event()  # set once the devices were read, what ran was adopted, and the node is registered
        self.steps = 0  # rounds done: that it grows is the proof of life for a watchdog
        self._register = Register(
            kv,
            settings.node,
            settings.session,
            settings.period_s,
            settings.fence_after_s + settings.fence_grace_s,
            log,
            self._contacted,
            self._wake.set,
        )
        self._orders: dict[str, Order] | None = None
        self._entries: dict[str, Entry] = {}
        self._seen = Seen()
        self._seen_unsaved = False
        self._unreadable: frozenset[str] = frozenset()
        self._store_id: int | None = None
        self._memory_store_id = 0
        self._ignored: dict[str, str] = {}
        self._facts = NodeFacts(settings.node)
        self._gpus: Mapping[str, str] | None = None
        self._contact_s = 0.0
        self._contact_news = False
        self._told_no_gpus = False

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        adopted = await self._runner.adopt()
        self._contact_s = loop.time() - (adopted.contact_age_s or 0.0)
        memory = await self._runner.load()
        self._seen, self._memory_store_id = _seen_of(memory), _integer(memory, "store")
        if adopted.runs:
            self._log.info("adopted", node=self._settings.node, runs=[f"{run.job}.{run.attempt}" for run in adopted.runs])
        work: tuple[Coroutine[Any, Any, None], ...] = (
            self._register.run_beat(),
            self._register.run_flush(),
            self._watch_orders(),
            self._watch_devices(),
            self._watch_runs(),
            self._work(),
        )
        tasks = [loop.create_task(one) for one in work]
        try:
            # One that ends has met a bug: the agent ends with it, systemd starts it again, and it adopts what runs.
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    # --- what comes in -------------------------------------------------------------------------------------------------

    def _contacted(self, sent_s: float) -> None:
        if sent_s > self._contact_s:
            self._contact_s = sent_s
            self._contact_news = True
            self._wake.set()

    async def _watch_orders(self) -> None:
        prefix = keys.assignments_of(self._settings.node)
        told = False
        while True:
            items = self._kv.follow(prefix)
            try:
                await self._identify()
                async for item in items:
                    self._take(item)
            except StoreUnavailable as error:
                if self._orders is not None or not told:
                    self._log.warning("the orders cannot be followed", node=self._settings.node, error=str(error))
                told = True
            finally:
                if isinstance(items, AsyncGenerator):
                    await items.aclose()
            # Unsynchronised from here on: what runs, runs on.
            self._orders = None
            await asyncio.sleep(FOLLOW_RETRY_S)

    async def _identify(self) -> None:
        """Terms and revisions mean something within one store only."""
        if self._store_id is not None:
            return
        store_id = (await self._kv.status()).cluster_id
        known = self._memory_store_id
        if known not in {0, store_id}:
            self._log.warning(
                "another store than before; terms and attempts seen there are forgotten", node=self._settings.node
            )
            self._seen = Seen()
        self._store_id = store_id

    def _take(self, item: Resync | Changes) -> None:
        if isinstance(item, Resync):
            self._notice_restore(item.revision)
            self._entries = {entry.key: entry for entry in item.entries}
        else:
            if not item.changes and self._orders is not None:
                return
            for change in item.changes:
                if change.entry is None:
                    self._entries.pop(change.key, None)
                else:
                    self._entries[change.key] = change.entry
        orders: dict[str, Order] = {}
        unreadable: set[str] = set()
        for key, entry in self._entries.items():
            try:
                order = codec.order_of(entry.value, entry.mod_revision, key)
                if key != keys.assignment(self._settings.node, order.job):
                    raise BadOrder(f"{key}: a key of this node has one part after the node's name")
            except BadOrder as error:
                # Not obeyed, and no order to stop either: whoever wrote it wants something of this job.
                unreadable.add(key.removeprefix(keys.assignments_of(self._settings.node)))
                self._log.warning("an order cannot be read", node=self._settings.node, error=str(error))
            else:
                orders[order.job] = order
        self._orders, self._unreadable = orders, frozenset(unreadable)
        self._ignored = {job: reason for job, reason in self._ignored.items() if job in orders}
        self._wake.set()

    def _notice_restore(self, revision: int) -> None:
        reason = restored(self._seen, revision)
        if reason:
            self._log.warning(
                "terms and attempts are forgotten", node=self._settings.node, term=self._seen.term, reason=reason
            )
            self._seen = Seen()
            self._seen_unsaved = True  # the store's revision will pass the remembered one: the next start would not notice

    async def _watch_devices(self) -> None:
        while True:
            inventory, health = await self._devices.observe()
            self._take_devices(inventory, health)
            await asyncio.sleep(self._settings.period_s)

    def _take_devices(self, inventory: hw.Inventory, health: hw.Health) -> None:
        settings = self._settings
        inventory.node = health.node = settings.node
        inventory.agent_address = settings.agent_address
        inventory.agent_version = settings.version
        inventory.address = settings.address or inventory.address
        inventory.socket_interface = settings.socket_interface or inventory.socket_interface
        inventory.labels.update(dict(settings.labels))
        disk = self._runner.disk_fault()
        if disk:
            health.disks.append(hw.DeviceHealth(device="state", state=hw.HEALTH_STATE_FAILED, reason=disk))
        self._register.put(keys.inventory(settings.node), inventory.SerializeToString(deterministic=True))
        self._register.put(keys.health(settings.node), health.SerializeToString(deterministic=True))
        if not inventory.gpus and not self._told_no_gpus:
            self._told_no_gpus = True
            hint = "no NVML library, no driver or no GPU; nothing is placed on this node"
            self._log.warning("no GPU was found", node=settings.node, source=inventory.source, hint=hint)
        ports: dict[str, list[int]] = {}
        for port in inventory.hca_ports:
            ports.setdefault(port.hca, []).append(port.port)
        self._facts = NodeFacts(
            settings.node, inventory.socket_interface, tuple((hca, tuple(found)) for hca, found in ports.items())
        )
        failed = {
            device.device: device.reason or "failed" for device in health.gpus if device.state == hw.HEALTH_STATE_FAILED
        }
        gpus = {gpu.uuid: failed.get(gpu.uuid, "") for gpu in inventory.gpus}
        gpus |= {str(gpu.index): failed.get(gpu.uuid, "") for gpu in inventory.gpus}
        if gpus | failed != self._gpus:
            self._gpus = gpus | failed
            self._wake.set()

    async def _watch_runs(self) -> None:
        while True:
            await self._runner.changed()
            self._wake.set()

    # --- decide and do -------------------------------------------------------------------------------------------------

    async def _work(self) -> None:
        while True:
            await self._wake.wait()
            for _ in range(ROUNDS_MAX):
                self._wake.clear()
                self.steps += 1
                if not await self._round():
                    break
            if self._register.was_read and self._gpus is not None:
                self.ready.set()

    async def _round(self) -> bool:
        """Whether anything was done, so that looking again is worth it."""
        if self._contact_news:
            self._contact_news = False
            await self._runner.contact(max(0.0, asyncio.get_running_loop().time() - self._contact_s))
        runs = await self._runner.observe()
        self._report(runs)
        world = self._world(runs)
        if world.seen != self._seen or self._seen_unsaved:
            await self._remember(world.seen)
        actions = reconcile(world)
        progress = [await self._try(action) for action in actions]
        return any(progress)

    async def _try(self, action: Action) -> bool:
        try:
            return await self._do(action)
        except OSError as error:
            # A full or failing disk. It is tried again every second; what runs, runs on meanwhile.
            self._log.warning(
                "cannot be done now", node=self._settings.node, action=type(action).__name__, error=str(error)
            )
            return False

    def _world(self, runs: tuple[RunState, ...]) -> World:
        # Until the store's reports of this node are known, an absent run is not known to be a new one.
        orders = self._orders if self._register.was_read else None
        reports = {}
        prefix = keys.run(self._settings.node, "")
        for key, (value, confirmed) in self._register.newest(prefix).items():
            reports[key.removeprefix(prefix)] = codec.published_of(value, confirmed=confirmed)
        silent_s = asyncio.get_running_loop().time() - self._contact_s
        fenced = ""
        if silent_s > self._settings.fence_after_s:
            fenced = f"fenced: no contact with the store for {silent_s:.0f} s"
        return World(
            desired=orders,
            runs=runs,
            reports=reports,
            seen=note(self._seen, orders) if orders is not None else self._seen,
            gpus=self._gpus,
            node_fault=self._runner.disk_fault(),
            fenced=fenced,
            fence_grace_s=self._settings.fence_grace_s,
            unreadable=self._unreadable,
        )

    def _report(self, runs: tuple[RunState, ...]) -> None:
        for run in runs:
            if run.gpus:  # processes without a record: what was reported of them earlier says more
                self._put(run)

    def _put(self, run: RunState) -> None:
        self._register.put(keys.run(self._settings.node, run.job), codec.report_of(run, self._settings.node))

    async def _do(self, action: Action) -> bool:
        match action:
            case Announce(order, reason):
                self._put(codec.unstarted(order, Stage.PREPARING, reason))
                return False  # goes on when the store has it
            case Prepare(order):
                return await self._prepare(order)
            case Decline(order, reason, device_fault):
                self._log.warning("refused", **self._names(order.job, order.attempt), reason=reason)
                self._put(codec.unstarted(order, Stage.REFUSED, reason, device_fault=device_fault))
            case DeclareLost(order, reason):
                self._log.warning("lost", **self._names(order.job, order.attempt), reason=reason)
                self._put(codec.unstarted(order, Stage.EXITED, reason, device_fault=True))
            case Start(job, attempt, address, port):
                self._log.info("start", **self._names(job, attempt), master=f"{address}:{port}")
                await self._runner.start(job, attempt, address, port)
            case Stop(job, attempt, grace_s, reason, device_fault):
                self._log.info("stop", **self._names(job, attempt), grace_s=grace_s, reason=reason)
                await self._runner.stop(job, attempt, grace_s, reason, device_fault=device_fault)
            case Release(job, attempt):
                self._log.info("released", **self._names(job, attempt))
                await self._runner.release(job, attempt)
            case Withdraw(job):
                self._register.delete(keys.run(self._settings.node, job))
            case Ignore(order, reason):
                if self._ignored.get(order.job) != reason:
                    self._log.warning("ignored", **self._names(order.job, order.attempt), term=order.term, reason=reason)
                    self._ignored[order.job] = reason
                return False
        return True

    def _names(self, job: str, attempt: int) -> dict[str, object]:
        return {"node": self._settings.node, "job": job, "attempt": attempt}

    async def _prepare(self, order: Order) -> bool:
        names = self._names(order.job, order.attempt)
        try:
            value = await self._kv.get(keys.decision(order.job))
        except StoreUnavailable as error:
            self._log.warning("waits for the decision", **names, error=str(error))
            return False
        gang = codec.gang_of(value.value, order.attempt) if value is not None else None
        if gang is None:
            # The order is out of date: its successor, or its withdrawal, is under way.
            self._log.warning("the decision is of another attempt, or cannot be read", **names)
            return False
        fault = await self._strangers(order) or await self._remember_attempt(order)
        try:
            if fault:
                raise CannotPrepare(fault, device_fault=True)
            await self._runner.prepare(order, self._facts, gang)
        except CannotPrepare as error:
            self._log.warning("refused", **names, reason=error.reason)
            self._put(codec.unstarted(order, Stage.REFUSED, error.reason, device_fault=error.device_fault))
        else:
            self._log.info("prepare", **names, ranks=len(order.ranks))
        return True

    async def _strangers(self, order: Order) -> str:
        """Why the GPUs cannot be taken, or empty: somebody uses one, or whether anybody does cannot be read."""
        try:
            return foreign(await self._devices.holders(order.gpus), await self._runner.processes())
        except HoldersUnknown as error:
            return str(error)

    # --- memory --------------------------------------------------------------------------------------------------------

    async def _remember_attempt(self, order: Order) -> str:
        attempts = {job: attempt for job, attempt in self._seen.attempts.items() if job != order.job}
        attempts[order.job] = order.attempt
        for job in list(attempts)[: max(0, len(attempts) - ATTEMPTS_MAX)]:
            del attempts[job]
        return await self._remember(Seen(self._seen.term, self._seen.term_revision, attempts))

    async def _remember(self, seen: Seen) -> str:
        """Why it could not be made durable, or empty."""
        self._seen = seen
        memory = {
            "store": self._store_id or self._memory_store_id,
            "term": seen.term,
            "term_revision": seen.term_revision,
            "attempts": dict(seen.attempts),
        }
        try:
            await self._runner.remember(memory)
            self._seen_unsaved = False
        except OSError as error:
            return f"cannot write the agent's memory: {error}"
        return ""


def _integer(memory: Mapping[str, object], name: str) -> int:
    value = memory.get(name, 0)
    return value if isinstance(value, int) else 0


def _seen_of(memory: Mapping[str, object]) -> Seen:
    attempts = memory.get("attempts")
    known = {}
    if isinstance(attempts, dict):
        known = {str(job): attempt for job, attempt in attempts.items() if isinstance(attempt, int)}
    return Seen(_integer(memory, "term"), _integer(memory, "term_revision"), known)
