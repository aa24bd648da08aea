"""The faults that a seed names, done to a world; and their end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.sim.clock import Process
from tests.sim.network import Fuse, Host, done_at_once
from tests.sim.scenario import Fault

if TYPE_CHECKING:
    from tests.sim.world import Seat, World

# The longest silence of a watch, seconds: an adapter notices a dead watch and follows anew.
SILENCE_MAX_S = 4.0


class Faults:
    def __init__(self, world: World) -> None:
        self._world = world

    def strike(self, fault: Fault) -> None:
        """One method for each kind that scenario.FAULTS names."""
        self._world.note("fault", fault.kind)
        getattr(self, f"_{fault.kind}")(fault)

    def _pick(self, seats: list[Seat], fault: Fault) -> Seat:
        return seats[int(fault.victim * len(seats))]

    def _kill_scheduler(self, fault: Fault) -> None:
        self._world.kill(self._pick(self._world.schedulers, fault).process)

    def _kill_agent(self, fault: Fault) -> None:
        self._world.kill(self._pick(self._world.agents, fault).process)

    def _fuse_scheduler(self, fault: Fault) -> None:
        self._fuse(self._pick(self._world.schedulers, fault), fault)

    def _fuse_agent(self, fault: Fault) -> None:
        self._fuse(self._pick(self._world.agents, fault), fault)

    def _fuse(self, seat: Seat, fault: Fault) -> None:
        if seat.kv is not None and seat.alive:
            calls = 1 + int(fault.size * 40)
            seat.kv.fuse = Fuse(calls, after=calls % 2 == 0)

    def _pause_scheduler(self, fault: Fault) -> None:
        self._pause(self._pick(self._world.schedulers, fault).process, 0.5 + 9 * fault.size)

    def _pause_agent(self, fault: Fault) -> None:
        self._pause(self._pick(self._world.agents, fault).process, 0.5 + 12 * fault.size)

    def _pause(self, process: Process, for_s: float) -> None:
        process.paused = True
        self._world.loop.later(for_s, self._resume, process)

    def _resume(self, process: Process) -> None:
        if process.paused:
            self._world.note("resumed", process.name)
            process.paused = False
            if not process.dead:
                self._world.loop.thaw(process)

    def _cut_scheduler(self, fault: Fault) -> None:
        self._cut(self._pick(self._world.schedulers, fault).host, 0.3 + 8 * fault.size)

    def _cut_node(self, fault: Fault) -> None:
        self._cut(self._pick(self._world.agents, fault).host, 0.3 + 14 * fault.size)

    def _cut(self, host: Host, for_s: float) -> None:
        host.set(cut=True)
        self._world.loop.later(for_s, lambda: host.set(cut=False))

    def _silence_scheduler(self, fault: Fault) -> None:
        self._silence(self._pick(self._world.schedulers, fault).host, SILENCE_MAX_S * fault.size)

    def _silence_node(self, fault: Fault) -> None:
        self._silence(self._pick(self._world.agents, fault).host, SILENCE_MAX_S * fault.size)

    def _silence(self, host: Host, for_s: float) -> None:
        host.set(silent=True)
        self._world.loop.later(for_s, lambda: host.set(silent=False))

    def _power_cut(self, fault: Fault) -> None:
        seat = self._pick(self._world.agents, fault)
        assert seat.node is not None
        seat.process.dead = True
        seat.node.power_off()
        self._world.loop.later(0.5 + 16 * fault.size, self._power_on, seat)

    def _power_on(self, seat: Seat) -> None:
        assert seat.node is not None
        if not seat.node.powered:
            seat.node.powered = True
            seat.start()

    def _kill_supervisor(self, fault: Fault) -> None:
        node = self._pick(self._world.agents, fault).node
        assert node is not None
        runs = [run for run in node.disk.runs.values() if not run.gone]
        if runs:
            node.kill_supervisor(runs[int(fault.size * len(runs))], "its supervisor was killed")

    def _fail_gpu(self, fault: Fault) -> None:
        node = self._pick(self._world.agents, fault).node
        assert node is not None
        index = int(fault.size * len(node.inventory.gpus))
        node.fail_gpu(index, "XID 79")
        if fault.victim * 100 % 1 < 0.5:  # else it stays as it is to the end
            self._world.loop.later(10.0, node.sick.clear)

    def _drain(self, fault: Fault) -> None:
        name = self._pick(self._world.agents, fault).host.name
        self._world.loop.spawn(self._world.clients.process, self._world.clients.set_drain(name, drained=True))
        self._world.loop.later(
            1.0 + 10 * fault.size,
            lambda: self._world.loop.spawn(self._world.clients.process, self._world.clients.set_drain(name, drained=False)),
        )

    def _store_gone(self, fault: Fault) -> None:
        self._world.store.reachable = False
        self._world.loop.later(0.3 + (5 if fault.victim < 0.7 else 12) * fault.size, self._store_back)

    def _store_back(self) -> None:
        self._world.store.reachable = True
        self._world.safety.catch_up()

    def _store_full(self, fault: Fault) -> None:
        self._world.store.full = True
        self._world.loop.later(0.5 + 13 * fault.size, self._store_roomy)

    def _store_roomy(self) -> None:
        self._world.store.full = False

    def _compact(self, fault: Fault) -> None:
        if self._world.store.reachable:
            self._world.safety.catch_up()
            done_at_once(self._world.store.compact(max(1, self._world.safety.revision - int(fault.size * 5))))

    def heal(self) -> None:
        """Ends every fault: what was promised must come true now."""
        self._world.note("heal")
        self._world.network.calm = True
        self._store_roomy()
        self._store_back()
        for seat in (*self._world.schedulers, *self._world.agents):
            seat.host.set(cut=False, silent=False)
            self._resume(seat.process)
            if seat.kv is not None:
                seat.kv.fuse = None
            if seat.node is not None:
                self._power_on(seat)
                self._world.loop.spawn(
                    self._world.clients.process, self._world.clients.set_drain(seat.host.name, drained=False)
                )
            if not seat.alive:
                seat.start()
