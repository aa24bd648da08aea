"""The agent's shell and its register, over the store in memory and a runner in memory: write-ahead, lost answers, lost leases."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace

import pytest
from google.protobuf.message import DecodeError

from fmagent.codec import BadOrder, order_of
from fmagent.devices.port import HoldersUnknown
from fmagent.launch.environment import NodeFacts
from fmagent.loop import AgentLoop, AgentSettings
from fmagent.orders import Order, PlacedRank, RankStatus, RunState, Stage
from fmagent.register import Register
from fmagent.runner.port import Adopted, CannotPrepare
from fmproto import keys
from fmproto.etcd_faults import StoreReplaced
from fmproto.kv import Conflict, Delete, Guard, Op, Page, Put, StoreUnavailable
from fmproto.v1 import hardware_pb2 as hw
from fmproto.v1 import job_pb2 as pb
from fmsched.store.memory import MemoryStore
from tests.support.agent import until

PERIOD_S = 0.05


class Silent:
    """A log that keeps what it is told."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def info(self, event: str, **_values: object) -> None:
        self.events.append(event)

    def warning(self, event: str, **_values: object) -> None:
        self.events.append(event)

    async def has(self, text: str) -> bool:
        return any(text in event for event in self.events)


class TwoGpus:
    """`users`: processes on each GPU; `mute`: why that cannot be read."""

    def __init__(self) -> None:
        self.users: dict[str, tuple[int, ...]] = {}
        self.mute = ""

    async def observe(self) -> tuple[hw.Inventory, hw.Health]:
        gpus = [hw.Gpu(index=index, uuid=f"GPU-{index}") for index in range(2)]
        health = [hw.DeviceHealth(device=gpu.uuid, state=hw.HEALTH_STATE_OK) for gpu in gpus]
        return hw.Inventory(gpus=gpus), hw.Health(gpus=health)

    async def holders(self, uuids: Sequence[str]) -> dict[str, tuple[int, ...]]:
        if self.mute:
            raise HoldersUnknown(self.mute)
        return {uuid: self.users.get(uuid, ()) for uuid in uuids}

    async def close(self) -> None: ...


@dataclass
class MemoryRunner:
    """Runs that are only said to be. `refuse`: the next prepare fails so."""

    runs: dict[str, RunState] = field(default_factory=dict)
    memory: dict[str, object] = field(default_factory=dict)
    refuse: CannotPrepare | None = None
    news: asyncio.Event = field(default_factory=asyncio.Event)
    contacts: int = 0

    def set(self, job: str, **values: object) -> None:
        self.runs[job] = replace(self.runs[job], **values)  # type: ignore[arg-type]
        self.news.set()

    async def adopt(self) -> Adopted:
        return Adopted(tuple(self.runs.values()), None)

    async def observe(self) -> tuple[RunState, ...]:
        return tuple(self.runs.values())

    async def changed(self) -> None:
        await self.news.wait()
        self.news.clear()

    async def prepare(self, order: Order, facts: NodeFacts, gang: tuple[PlacedRank, ...]) -> None:
        if self.refuse is not None:
            raise self.refuse
        assert order.job not in self.runs
        ranks = tuple(RankStatus(rank.rank) for rank in order.ranks)
        self.runs[order.job] = RunState(
            order.job,
            order.attempt,
            Stage.PREPARED,
            ranks,
            order.gpus,
            held_port=20000,
            grace_period_s=order.grace_period_s,
        )
        self.news.set()

    async def start(self, job: str, attempt: int, master_address: str, master_port: int) -> None:
        self.set(job, stage=Stage.RUNNING, start_ordered=True)

    async def stop(self, job: str, attempt: int, grace_s: float, reason: str, *, device_fault: bool) -> None:
        self.set(job, stage=Stage.STOPPING, stop_ordered=True, reason=reason, device_fault=device_fault)

    async def release(self, job: str, attempt: int) -> None:
        del self.runs[job]

    async def contact(self, age_s: float) -> None:
        self.contacts += 1

    async def processes(self) -> frozenset[int]:
        return frozenset()

    def disk_fault(self) -> str:
        return ""

    async def load(self) -> Mapping[str, object]:
        return self.memory

    async def remember(self, memory: Mapping[str, object]) -> None:
        self.memory = dict(memory)


class Unlucky(MemoryStore):
    """Applies the next `lose` writes and loses their answers; keeps reports back while `held` is not set; refuses all while it is
    `replaced`."""

    lose = 0
    replaced = False
    held: asyncio.Event | None = None
    waiting = False

    async def waits(self) -> bool:
        return self.waiting

    def _check(self) -> None:
        if self.replaced:
            raise StoreReplaced("memory: cluster id 2; this process has seen 1")

    async def read(self, prefix: str) -> Page:
        self._check()
        return await super().read(prefix)

    async def renew(self, lease: int) -> None:
        self._check()
        await super().renew(lease)

    async def write(self, guards: Sequence[Guard], ops: Sequence[Op]) -> int | Conflict:
        self._check()
        if self.held is not None and any("/runs/" in op.key for op in ops):
            self.waiting = True
            await self.held.wait()
        answer = await super().write(guards, ops)
        if self.lose:
            self.lose -= 1
            raise StoreUnavailable("the answer was lost")
        return answer


@dataclass
class Node:
    """An agent in memory; `watcher` is another connection, as the scheduler has."""

    store: Unlucky
    watcher: MemoryStore
    runner: MemoryRunner
    log: Silent
    devices: TwoGpus = field(default_factory=TwoGpus)

    async def order(
        self, job: str, phase: pb.Phase = pb.PHASE_PREPARE, *, attempt: int = 1, gpu: int = 0, term: int = 1
    ) -> None:
        ranks = [pb.RankPlacement(gpu_index=gpu, gpu_uuid=f"GPU-{gpu}", node="n1")]
        decision = pb.Decision(job=job, attempt=attempt, ranks=ranks)
        assignment = pb.Assignment(job=job, attempt=attempt, term=term, phase=phase, ranks=ranks, holds_port=True)
        ops: list[Op] = [Put(keys.decision(job), decision.SerializeToString())]
        ops.append(Put(keys.assignment("n1", job), assignment.SerializeToString()))
        await self.watcher.write([], ops)

    async def report(self, job: str) -> pb.RunReport | None:
        entry = await self.watcher.get(keys.run("n1", job))
        if entry is None:
            return None
        report = pb.RunReport(reason="not a report")
        with suppress(DecodeError):
            report = pb.RunReport.FromString(entry.value)
        return report

    async def reports(self, job: str, phase: pb.RunPhase) -> pb.RunReport:
        async def probe() -> pb.RunReport | None:
            report = await self.report(job)
            return report if report is not None and report.phase == phase else None

        return await until(probe, f"{job} reaches {pb.RunPhase.Name(phase)}")

    async def withdrawn(self, job: str) -> None:
        async def probe() -> bool:
            return await self.report(job) is None

        await until(probe, f"the report of {job} is withdrawn")


@asynccontextmanager
async def node(
    runner: MemoryRunner | None = None, world: Unlucky | None = None, *, waits: bool = True, **settings: object
) -> AsyncIterator[Node]:
    """`world`: another node's connection to the store that this one has too. `waits`: until it is ready."""
    store = Unlucky(follow_period_s=0.1, _world=world._world if world is not None else None)
    made = Node(store, store.beside(), runner or MemoryRunner(), Silent())
    values: dict[str, object] = {"node": "n1", "session": "s1", "period_s": PERIOD_S, "fence_after_s": 60.0, **settings}
    agent = AgentLoop(store, made.devices, made.runner, AgentSettings(**values), made.log)  # type: ignore[arg-type]
    task = asyncio.create_task(agent.run())
    try:
        if waits:
            await asyncio.wait_for(agent.ready.wait(), 10)
        yield made
    finally:
        task.cancel()
        outcome = await asyncio.gather(task, return_exceptions=True)
        assert isinstance(outcome[0], asyncio.CancelledError), outcome


async def test_a_life_from_prepare_to_withdrawal() -> None:
    async with node() as at:
        await at.order("a")
        report = await at.reports("a", pb.RUN_PHASE_PREPARED)
        assert (report.held_port, list(report.gpu_indices)) == (20000, [])
        await at.order("a", pb.PHASE_START)
        await at.reports("a", pb.RUN_PHASE_RUNNING)
        await at.watcher.write([], [Delete(keys.assignment("n1", "a"))])
        await at.reports("a", pb.RUN_PHASE_STOPPING)
        at.runner.set("a", stage=Stage.EXITED, gone=True)
        await at.withdrawn("a")
        assert at.runner.runs == {}


async def test_no_process_before_the_report_is_stored() -> None:
    async with node() as at:
        at.store.held = asyncio.Event()
        await at.order("a")
        await until(at.store.waits, "the report is on its way")
        await asyncio.sleep(4 * PERIOD_S)  # time itself is what is tested: nothing may happen in it
        assert at.runner.runs == {}
        at.store.held.set()
        await at.reports("a", pb.RUN_PHASE_PREPARED)


async def test_a_full_store_begins_nothing_and_goes_on_with_space() -> None:
    async with node() as at:
        await at.order("a")
        await at.reports("a", pb.RUN_PHASE_PREPARED)
        await at.order("b", gpu=1)
        await at.reports("b", pb.RUN_PHASE_PREPARED)
        at.store.full = True
        at.runner.set("a", stage=Stage.EXITED, gone=True)
        await at.watcher.write([], [Delete(keys.assignment("n1", "b"))])

        async def stopping() -> bool:
            return at.runner.runs["b"].stop_ordered

        await until(stopping, "the order to stop is followed")
        at.runner.set("b", stage=Stage.EXITED, gone=True)
        await at.withdrawn("b")
        assert (await at.reports("a", pb.RUN_PHASE_PREPARED)).phase == pb.RUN_PHASE_PREPARED
        at.store.full = False
        await at.reports("a", pb.RUN_PHASE_EXITED)


@pytest.mark.parametrize("lost", [1, 2, 3])
async def test_lost_answers_change_nothing(lost: int) -> None:
    async with node() as at:
        at.store.lose = lost
        await at.order("a")
        await at.reports("a", pb.RUN_PHASE_PREPARED)
        at.store.lose = lost
        at.runner.set("a", stage=Stage.EXITED, gone=True)
        await at.watcher.write([], [Delete(keys.assignment("n1", "a"))])
        await at.withdrawn("a")


async def test_an_unreachable_store_stops_nothing_before_the_fence() -> None:
    async with node(fence_after_s=1.0, fence_grace_s=0.5) as at:
        await at.order("a")
        await at.reports("a", pb.RUN_PHASE_PREPARED)
        at.store.reachable = False
        await at.watcher.write([], [Delete(keys.assignment("n1", "a"))])
        await asyncio.sleep(0.3)  # time itself is what is tested: nothing may happen in it
        assert not at.runner.runs["a"].stop_ordered
        for _ in range(30):
            at.runner.news.set()  # as a real runner does every second
            await asyncio.sleep(0.05)
        assert at.runner.runs["a"].stop_ordered
        assert at.runner.runs["a"].reason.startswith("fenced")
        assert at.runner.runs["a"].device_fault


async def test_a_replaced_store_is_no_contact() -> None:
    """It answers, and what it says is not what the scheduler of the known store saw: the gang may be placed again there."""
    async with node(fence_after_s=0.5, fence_grace_s=0.5) as at:
        await at.order("a")
        await at.reports("a", pb.RUN_PHASE_PREPARED)
        at.store.replaced = True
        await fenced(at, "a")
        assert await at.log.has("this is not the store that was known")


async def fenced(at: Node, job: str) -> None:
    async def stopped() -> bool:
        at.runner.news.set()  # as a real runner does every second
        return at.runner.runs[job].stop_ordered

    await until(stopped, f"{job} is fenced")
    assert at.runner.runs[job].reason.startswith("fenced")


async def test_the_beat_says_when_ranks_are_gone_without_contact() -> None:
    async with node(fence_after_s=33.0, fence_grace_s=7.0) as at:
        entry = await at.watcher.get(keys.alive("n1"))
        assert entry is not None
        assert hw.Alive.FromString(entry.value).fence_s == 40.0


async def test_a_second_host_of_one_name_follows_nothing_until_the_first_is_gone() -> None:
    async with node(session="host-a/1") as first:
        await first.order("a")
        await first.reports("a", pb.RUN_PHASE_PREPARED)
        before = await first.watcher.read(f"{keys.NODES}n1/")
        async with node(world=first.store, session="host-b/1", waits=False, fence_after_s=0.5) as second:
            await until(lambda: second.log.has("another agent has this node's name"), "the rival is told")
            await asyncio.sleep(6 * PERIOD_S)  # time itself is what is tested: nothing may happen in it
            assert second.runner.runs == {}
            assert second.runner.contacts == 0
            after = await first.watcher.read(f"{keys.NODES}n1/")
            alive = keys.alive("n1")
            assert [entry for entry in after.entries if entry.key != alive] == [
                entry for entry in before.entries if entry.key != alive
            ]
            assert len([event for event in second.log.events if "another agent" in event]) == 1
            first.store.reachable = False  # its lease ends
            await until(lambda: second.log.has("this one takes over"), "the second host takes over")
            await second.reports("a", pb.RUN_PHASE_EXITED)  # it has no such run
            first.store.reachable = True
            await until(lambda: first.log.has("another agent has this node's name"), "the first host stands back")
            assert (await second.reports("a", pb.RUN_PHASE_EXITED)).device_fault


async def test_a_rival_is_no_contact() -> None:
    async with node(session="host-a/1", fence_after_s=0.5, fence_grace_s=0.5) as at:
        await at.order("a")
        await at.reports("a", pb.RUN_PHASE_PREPARED)
        lease = await at.watcher.grant(600.0)
        rival = hw.Alive(node="n1", session="host-b/1", beat=1)
        await at.watcher.write([], [Put(keys.alive("n1"), rival.SerializeToString(), lease)])
        await fenced(at, "a")


async def test_nothing_is_written_under_the_alive_key_of_a_rival() -> None:
    """Between the rival's beat and this agent's next one, only the guard knows."""
    async with node(session="host-a/1", period_s=600.0, fence_after_s=6000.0) as at:
        lease = await at.watcher.grant(600.0)
        rival = hw.Alive(node="n1", session="host-b/1", beat=1)
        await at.watcher.write([], [Put(keys.alive("n1"), rival.SerializeToString(), lease)])
        await at.order("a")
        await until(lambda: at.log.has("another agent has this node's name"), "the rival is seen at the write")
        assert await at.report("a") is None
        assert at.runner.runs == {}


@pytest.mark.parametrize("earlier", ["host-a/1", "without identity"])
async def test_the_next_agent_of_a_host_takes_over_at_once(earlier: str) -> None:
    async with (
        node(session=earlier, period_s=600.0, fence_after_s=6000.0) as first,
        node(world=first.store, session="host-a/2", period_s=600.0, fence_after_s=6000.0) as second,
    ):
        assert not await second.log.has("another agent has this node's name")
        entry = await second.watcher.get(keys.alive("n1"))
        assert entry is not None
        assert hw.Alive.FromString(entry.value).session == "host-a/2"


async def test_after_a_restore_from_a_backup_new_terms_count() -> None:
    runner = MemoryRunner(memory={"store": 1, "term": 9, "term_revision": 10_000, "attempts": {"a": 5}})
    async with node(runner) as at:
        assert await at.log.has("terms and attempts are forgotten")
        await at.order("a", term=2, attempt=3)
        await at.reports("a", pb.RUN_PHASE_PREPARED)
        assert runner.memory["term"] == 2
        assert runner.memory["attempts"] == {"a": 3}


async def test_a_restore_is_forgotten_durably_before_any_order() -> None:
    runner = MemoryRunner(memory={"store": 1, "term": 9, "term_revision": 10_000})
    async with node(runner):

        async def saved() -> bool:
            return runner.memory["term"] == 0

        await until(saved, "the term is forgotten in the memory too")


async def test_a_gpu_that_cannot_say_who_uses_it_is_refused() -> None:
    async with node() as at:
        at.devices.mute = "GPU GPU-0: whether a process uses it cannot be read: NVML_ERROR_UNKNOWN"
        await at.order("a")
        report = await at.reports("a", pb.RUN_PHASE_REFUSED)
        assert (report.reason, report.device_fault) == (at.devices.mute, True)


async def test_a_report_that_cannot_be_read_is_written_over_or_withdrawn() -> None:
    async with node() as at:
        await at.watcher.write([], [Put(keys.run("n1", job), b"\xff no message") for job in "ab"])
        lease = await at.watcher.grant(600.0)
        await at.watcher.write([], [Put(keys.alive("n1"), b"\xff no message", lease)])  # makes the agent read all again
        await at.order("a")
        await at.reports("a", pb.RUN_PHASE_PREPARED)
        await at.withdrawn("b")


async def test_all_is_registered_again_after_a_lost_lease() -> None:
    async with node() as at:
        await at.order("a")
        await at.reports("a", pb.RUN_PHASE_PREPARED)
        own = [keys.inventory("n1"), keys.health("n1"), keys.run("n1", "a")]
        alive = await at.watcher.get(keys.alive("n1"))
        assert alive is not None
        await at.watcher.write([], [Delete(key) for key in own])
        await at.watcher.revoke(alive.lease)

        async def back() -> bool:
            return all([await at.watcher.get(key) for key in [*own, keys.alive("n1")]])

        await until(back, "the node is registered again")


async def test_beats_change_and_are_leased() -> None:
    async with node() as at:
        beats = set()

        async def several() -> bool:
            entry = await at.watcher.get(keys.alive("n1"))
            assert entry is not None
            assert entry.lease
            beats.add(hw.Alive.FromString(entry.value).beat)
            return len(beats) > 3

        await until(several, "the beat changes")
        assert at.runner.contacts > 3


async def test_a_refused_prepare_is_reported_with_its_blame() -> None:
    runner = MemoryRunner(refuse=CannotPrepare("disk full", device_fault=True))
    async with node(runner) as at:
        await at.order("a")
        report = await at.reports("a", pb.RUN_PHASE_REFUSED)
        assert (report.reason, report.device_fault) == ("disk full", True)
        runner.refuse = None
        await at.watcher.write([], [Delete(keys.assignment("n1", "a"))])
        await at.withdrawn("a")
        await at.order("a", attempt=2)
        await at.reports("a", pb.RUN_PHASE_PREPARED)


async def test_a_gpu_that_a_stranger_uses_is_refused() -> None:
    async with node() as at:
        at.devices.users["GPU-1"] = (4711,)
        await at.order("a", gpu=0)
        await at.reports("a", pb.RUN_PHASE_PREPARED)
        await at.order("b", gpu=1)
        report = await at.reports("b", pb.RUN_PHASE_REFUSED)
        assert report.device_fault
        assert "GPU-1 is in use by process 4711" in report.reason


async def test_terms_are_remembered_over_a_restart() -> None:
    runner = MemoryRunner()
    async with node(runner) as at:
        for number in range(7):  # a term is a revision, and older than what is written under it
            await at.store.write([], [Put(f"/elsewhere/{number}", b"")])
        await at.order("a", term=7)
        await at.reports("a", pb.RUN_PHASE_PREPARED)
        await at.order("b", gpu=1, term=6)

        report = await at.reports("b", pb.RUN_PHASE_REFUSED)
        assert (report.reason, report.device_fault) == ("its term 6 is older than 7, which was seen earlier", True)
    assert runner.memory["term"] == 7
    assert runner.memory["attempts"] == {"a": 1}


async def test_a_write_that_arrives_late_is_not_applied() -> None:
    store = MemoryStore()
    register = Register(store, "n1", "s", PERIOD_S, 70.0, Silent(), lambda _sent_s: None, lambda: None)
    flush = asyncio.create_task(register.run_flush())
    try:
        register.put(keys.health("n1"), b"old")

        async def stored(value: bytes) -> bool:
            entry = await store.get(keys.health("n1"))
            return entry is not None and entry.value == value

        await until(lambda: stored(b"old"), "the first value stands")
        entry = await store.get(keys.health("n1"))
        assert entry is not None
        late = ([Guard(keys.health("n1"), mod_revision=0)], [Put(keys.health("n1"), b"old")])
        register.put(keys.health("n1"), b"new")
        await until(lambda: stored(b"new"), "the second value stands")
        await store.write(*late)
        assert await stored(b"new")
    finally:
        flush.cancel()
        await asyncio.gather(flush, return_exceptions=True)


GARBAGE = (b"", b"\xff no message", b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", bytes(range(256)))


@pytest.mark.parametrize("value", GARBAGE)
async def test_garbage_in_this_nodes_keys_ends_nothing(value: bytes) -> None:
    async with node() as at:
        await at.order("a")
        await at.reports("a", pb.RUN_PHASE_PREPARED)
        strange = ["x", "x/y", "", "ü", "../a", "a/b"]
        written = [keys.run("n1", job) for job in strange] + [keys.assignment("n1", job) for job in strange]
        written += [keys.decision("g"), keys.inventory("n1"), keys.health("n1"), keys.run("n1", "a")]
        await at.watcher.write([], [Put(key, value) for key in written])
        assignment = pb.Assignment(
            job="g", attempt=1, term=1, phase=pb.PHASE_PREPARE, ranks=[pb.RankPlacement(gpu_index=1, gpu_uuid="GPU-1")]
        )
        await at.watcher.write([], [Put(keys.assignment("n1", "g"), assignment.SerializeToString())])
        lease = await at.watcher.grant(600.0)
        await at.watcher.write([], [Put(keys.alive("n1"), value, lease)])  # makes the agent read all again
        await at.reports("a", pb.RUN_PHASE_PREPARED)
        await at.reports("g", pb.RUN_PHASE_PREPARING)
        await at.watcher.write([], [Delete(keys.assignment("n1", job)) for job in strange])
        for job in strange:
            await at.withdrawn(job)
        assert set(at.runner.runs) == {"a"}


@pytest.mark.parametrize("grace_s", [float("nan"), float("inf"), -1.0])
async def test_an_order_with_a_grace_that_never_ends_is_not_obeyed(grace_s: float) -> None:
    ranks = [pb.RankPlacement(gpu_index=0, gpu_uuid="GPU-0", node="n1")]
    assignment = pb.Assignment(job="a", attempt=1, term=1, phase=pb.PHASE_PREPARE, ranks=ranks, grace_period_s=grace_s)
    with pytest.raises(BadOrder, match="grace_period_s"):
        order_of(assignment.SerializeToString(), 5, keys.assignment("n1", "a"))


async def test_a_memory_of_nonsense_is_forgotten() -> None:
    async with node(MemoryRunner(memory={"term": "x", "attempts": {"a": [], "b": 3}})) as at:
        await at.order("a")
        await at.reports("a", pb.RUN_PHASE_PREPARED)


async def test_a_node_without_gpus_says_so_once() -> None:
    class NoGpus(TwoGpus):
        async def observe(self) -> tuple[hw.Inventory, hw.Health]:
            return hw.Inventory(source="nvml"), hw.Health()

    store = Unlucky(follow_period_s=0.1)
    log = Silent()
    settings = AgentSettings(node="n1", session="s1", period_s=PERIOD_S)
    task = asyncio.create_task(AgentLoop(store, NoGpus(), MemoryRunner(), settings, log).run())
    try:

        async def told() -> bool:
            return await log.has("no GPU was found")

        await until(told, "the agent says that there is no GPU")
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
