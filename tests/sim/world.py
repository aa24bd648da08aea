"""One seed, run: the real scheduler and agent shells as processes in virtual time, over one store, under the faults that the seed names.
Then everything is healed, and what was promised must come true.
"""

from __future__ import annotations

import asyncio
import contextvars
import hashlib
import random
import traceback
from collections import deque
from collections.abc import Callable, Coroutine, MutableMapping
from dataclasses import dataclass
from typing import Any, NoReturn

import structlog

from fmagent.loop import AgentLoop
from fmproto import keys
from fmproto.kv import Change, Put
from fmproto.v1 import hardware_pb2 as hw
from fmsched.loop import Scheduler
from fmsched.store.ledger import Ledger
from fmsched.store.memory import MemoryStore
from tests.sim.clients import Clients
from tests.sim.clock import OWNER, Livelock, Process, VirtualLoop
from tests.sim.ending import Ending
from tests.sim.faults import SILENCE_MAX_S, Faults
from tests.sim.network import FaultyKV, Host, Network, Request, done_at_once
from tests.sim.nodes import FenceRule, Node, SimDevices, SimRunner
from tests.sim.programs import FENCE_AFTER_S, FENCE_GRACE_S, SchedulerProgram, agent_settings
from tests.sim.safety import Safety
from tests.sim.scenario import CALM_S, SETTLE_S, WALL_START_MS, Scenario, SeededScript
from tests.sim.story import shown

# How long a rank may live after the order to stop: its node may be cut off until the fence, or its watch be silent; then comes the
# job's grace. The rest is latency and ticks.
LINGER_MAX_S = max(FENCE_AFTER_S, SILENCE_MAX_S) + 3.0 + 3.0
# Events kept for the report of a failing seed.
EVENTS_KEPT = 120
# Rounds of cancelling at the end of a run, after which a task counts as one that cannot be cancelled.
UNWIND_ROUNDS_MAX = 50


@dataclass(frozen=True, slots=True)
class Outcome:
    """`violation` is empty where all held. `trace` is a hash of every change of the store and every event on the nodes."""

    seed: int
    violation: str
    trace: str
    events: tuple[str, ...]
    virtual_s: float
    revisions: int
    ranks_started: int

    def report(self) -> str:
        lines = [f"seed {self.seed}: {self.violation or 'no violation'} (at {self.virtual_s:.3f} s of virtual time)"]
        lines += ["the last events:", *(f"  {event}" for event in self.events)]
        lines.append(f"again: python -m tests.sim.campaign --first {self.seed} --seeds 1 --show")
        return "\n".join(lines)


@dataclass(eq=False, slots=True)
class Seat:
    """A place for one program: its host, and the incarnation that runs there now."""

    host: Host
    start: Callable[[], None]
    process: Process
    kv: FaultyKV | None = None
    node: Node | None = None
    scheduler: Scheduler | None = None
    incarnation: int = 0

    @property
    def alive(self) -> bool:
        return not self.process.dead

    @property
    def ledger(self) -> Ledger | None:
        """Of one that leads, as far as it knows."""
        return self.scheduler.ledger if self.scheduler is not None and self.alive else None


class World:
    """Made, run once, and thrown away."""

    def __init__(self, plan: Scenario) -> None:
        self.plan = plan
        self.loop = VirtualLoop(f"{plan.seed}:loop")
        self.loop.set_exception_handler(self._loop_error)
        self.violation = ""
        self.store = MemoryStore()
        self.network = Network(self.loop, self.store, plan.weather, self._requested, self.kill)
        self.safety = Safety(self.store, self.loop.time, self.wrong, LINGER_MAX_S)
        self.safety.on_change = self._changed
        self.script = SeededScript(plan)
        self.schedulers = [self._scheduler_seat(f"s{i}") for i in range(plan.schedulers)]
        self.agents = [self._agent_seat(inventory) for inventory in plan.inventories]
        self.ending = Ending(self.store, self.safety, [seat.node for seat in self.agents if seat.node], plan)
        self.clients = Clients(self)
        self._faults = Faults(self)
        self._processes = [self.clients.process]
        self._events: deque[tuple[float, tuple[object, ...]]] = deque(maxlen=EVENTS_KEPT)
        self._hash = hashlib.blake2b(digest_size=16)
        self._ranks_started = 0

    # --- what is told to the world

    def wrong(self, what: str) -> None:
        if not self.violation and not self.network.over:
            self.violation = what
            self.note("VIOLATION", what)
            self.loop.stop()

    def note(self, *what: object) -> None:
        self._events.append((self.loop.time(), what))
        self._hash.update(f"{self.loop.time()!r} {what!r}\n".encode())

    def rank_started(self, node: str, gpu: int, job: str, attempt: int) -> None:
        self._ranks_started += 1
        self.safety.rank_started((node, gpu), job, attempt)

    def rank_ended(self, node: str, gpu: int, job: str, attempt: int) -> None:
        self.note("end", node, gpu, job, attempt)
        self.safety.rank_ended((node, gpu), job, attempt)

    def told_to_stop(self, node: str, job: str, attempt: int, reason: str) -> None:
        self.safety.told_to_stop(node, job, attempt, reason)

    def _changed(self, change: Change) -> None:
        value = change.entry.value if change.entry is not None else None
        self._hash.update(f"{change.revision} {change.key} {value!r}\n".encode())
        if not change.key.endswith("/alive"):
            self._events.append((self.loop.time(), ("store", change.revision, change.key, value)))

    def _requested(self, request: Request) -> None:
        self.safety.catch_up()
        self.safety.request(request)

    def _loop_error(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """A callback raised. What the garbage collector finds ("never retrieved") is of killed processes."""
        if "handle" in context:
            self.wrong(f"{context['message']}: {_story(context.get('exception'))}")

    # --- processes

    def _scheduler_seat(self, name: str) -> Seat:
        seat = Seat(Host(name), lambda: self._start_scheduler(seat), Process(name))
        seat.process.dead = True
        return seat

    def _agent_seat(self, inventory: hw.Inventory) -> Seat:
        name = inventory.node
        fence = FenceRule(FENCE_AFTER_S, FENCE_GRACE_S)
        node = Node(name, inventory, self.loop, self, self.script, fence, str(self.plan.seed))
        seat = Seat(Host(name), lambda: self._start_agent(seat), Process(name), node=node)
        seat.process.dead = True
        return seat

    def _incarnate(self, seat: Seat) -> random.Random:
        seat.incarnation += 1
        name = f"{seat.host.name}.{seat.incarnation}"
        seat.process = Process(name)
        self._processes.append(seat.process)
        rng = random.Random(f"{self.plan.seed}:{name}")
        seat.kv = FaultyKV(self.network, seat.host, seat.process, rng)
        self.note("begins", name)
        return rng

    def _start_scheduler(self, seat: Seat) -> None:
        rng = self._incarnate(seat)
        assert seat.kv is not None
        skew_ms = WALL_START_MS + rng.randrange(2_000)
        program = SchedulerProgram(seat.kv, seat.process.name, lambda: skew_ms + int(self.loop.time() * 1000), rng)
        scheduler = seat.scheduler = program.scheduler
        seat.kv.term_of_sender = lambda: scheduler.ledger.term if scheduler.ledger is not None else 0
        self._run(seat, program.run())

    def _start_agent(self, seat: Seat) -> None:
        self._incarnate(seat)
        assert seat.kv is not None and seat.node is not None
        name = seat.process.name
        settings = agent_settings(seat.node.name, name)
        runner = SimRunner(seat.node, self.loop, seat.kv)
        agent = AgentLoop(seat.kv, SimDevices(seat.node), runner, settings, _Log(self, name))
        self._run(seat, agent.run())

    def _run(self, seat: Seat, main: Coroutine[Any, Any, Any]) -> None:
        process = seat.process
        task = self.loop.spawn(process, main)
        task.add_done_callback(lambda done: self._ended(process, done), context=contextvars.Context())

    def _ended(self, process: Process, task: asyncio.Task[Any]) -> None:
        if self.network.over or process.dead:
            return
        error = task.exception() if not task.cancelled() else None
        self.wrong(f"{process.name} ended by itself: {_story(error)}")

    def kill(self, process: Process) -> None:
        """As kill -9. It is started again some seconds later."""
        if not process.dead:
            self.note("killed", process.name)
            process.dead = True
            if not self.network.over:
                seat = next(seat for seat in (*self.schedulers, *self.agents) if seat.process is process)
                self.loop.later(0.5 + 5 * random.Random(process.name).random(), self._restart, seat, process)

    def _restart(self, seat: Seat, process: Process) -> None:
        if seat.process is process and process.dead and (seat.node is None or seat.node.powered):
            seat.start()

    # --- the run

    def run(self) -> Outcome:
        _CURRENT.append(self)
        structlog.configure(processors=[_to_current_world])
        asyncio.set_event_loop(None)
        try:
            self.loop.later(0.0, self._begin)
            self.loop.run_forever()
        except Livelock as error:
            self.violation = str(error)
        finally:
            virtual_s, trace, events = self.loop.time(), self._hash.hexdigest(), self._story()
            self._unwind()
            structlog.reset_defaults()
            _CURRENT.remove(self)
        revisions = self.safety.revision
        return Outcome(self.plan.seed, self.violation, trace, events, virtual_s, revisions, self._ranks_started)

    def _begin(self) -> None:
        fabric = Put(keys.FABRIC, self.plan.fabric.SerializeToString(deterministic=True))
        done_at_once(self.store.write([], [fabric]))
        self.safety.catch_up()
        rng = random.Random(f"{self.plan.seed}:begin")
        for seat in (*self.agents, *self.schedulers):
            self.loop.later(rng.random() * 0.5, seat.start)
        for job in self.plan.jobs:
            self.loop.spawn(self.clients.process, self.clients.use(job))
        for fault in self.plan.faults:
            self.loop.later(fault.at_s, self._faults.strike, fault)
        self.loop.later(CALM_S, self._faults.heal)
        self.loop.later(1.0, self._every_second)

    def _every_second(self) -> None:
        self.safety.catch_up()
        self.safety.lingering()
        if self.network.calm:
            left = self.ending.unsettled(self.loop.time())
            if not left:
                self.loop.stop()
            elif self.loop.time() > CALM_S + SETTLE_S:
                self.wrong(f"{SETTLE_S:g} s after the last fault: {'; '.join(left)}")
        self.loop.later(1.0, self._every_second)

    def _unwind(self) -> None:
        """Ends every task, so that nothing is left for the garbage collector to complain about."""
        self.network.over = True
        for seat in self.agents:
            assert seat.node is not None
            seat.node.over = True
        loop = self.loop
        loop.forget_timers()
        for _ in range(UNWIND_ROUNDS_MAX):
            for process in self._processes:
                process.dead = process.paused = False
                loop.thaw(process)
            for task in list(loop.tasks):
                task.cancel()
            loop.run_forever()
            if not loop.tasks:
                break
        assert not loop.tasks, f"cancelled, and still there: {loop.tasks}"
        loop.close()

    def _story(self) -> tuple[str, ...]:
        return tuple(f"{at_s:9.3f} {_told(what)}" for at_s, what in self._events)


def _told(what: tuple[object, ...]) -> str:
    if what[0] == "store":
        _, revision, key, value = what
        assert isinstance(key, str) and (value is None or isinstance(value, bytes))
        return f"store {revision}: {key.removeprefix(keys.ROOT)} {shown(key, value)}"
    return " ".join(map(str, what))


def _story(error: BaseException | None) -> str:
    return "".join(traceback.format_exception(error)) if error is not None else "no error"


_CURRENT: list[World] = []  # the one that runs


def _to_current_world(_logger: object, _method: str, event: MutableMapping[str, Any]) -> NoReturn:
    """What the scheduler logs goes into the story of the run."""
    if _CURRENT and not _CURRENT[0].network.over:
        process = OWNER.get()
        _CURRENT[0].note(process.name if process is not None else "?", dict(event))
    raise structlog.DropEvent


class _Log:
    """fmagent.register.Log into the story of the run."""

    def __init__(self, world: World, name: str) -> None:
        self._world = world
        self._name = name

    def info(self, event: str, **values: object) -> None:
        self._world.note(self._name, event, values)

    warning = info
