"""Node agents under test: orders to give, a real agent process to give them to, its runner alone, and what they leave behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from fmagent.launch.environment import NodeFacts
from fmagent.orders import Command, Order, PlacedRank, RankOrder, RunState
from fmagent.runner import files, procfs
from fmagent.runner.process import ProcessLimits, ProcessRunner
from fmproto import keys
from fmproto.etcd import Etcd
from fmproto.kv import KV, Delete, Op, Put
from fmproto.v1 import job_pb2 as pb
from tests.support.etcd import free_port

T = TypeVar("T")

CLUSTER = """
apiVersion: fmsched/v1
kind: Cluster
nodes:
  - {name: n1, type: hgx-h100, leaf: leaf1}
"""
PATH = os.environ.get("PATH", os.defpath)


async def until(probe: Callable[[], Awaitable[T | None]], what: str, timeout_s: float = 15.0) -> T:
    """The first true answer of `probe`; AssertionError naming `what` and the last answer after `timeout_s`."""
    deadline_s = time.monotonic() + timeout_s
    answer: T | None = None
    while time.monotonic() < deadline_s:
        answer = await probe()
        if answer:
            return answer
        await asyncio.sleep(0.01)
    raise AssertionError(f"{what}: not within {timeout_s:g} s; the last answer was {answer!r}")


def lives(pid: int) -> bool:
    """Zombies count as dead: some init processes reap late."""
    proc = procfs.read_proc(pid)
    return proc is not None and proc.state not in "ZX"


def processes_naming(text: str) -> list[int]:
    """Living processes with `text` in their environment or command line."""
    found = []
    for proc in procfs.all_processes():
        with contextlib.suppress(OSError):
            folder = Path(f"/proc/{proc.pid}")
            words = folder.joinpath("environ").read_bytes() + folder.joinpath("cmdline").read_bytes()
            if proc.state not in "ZX" and proc.pid != os.getpid() and text.encode() in words:
                found.append(proc.pid)
    return found


def kill_all(text: str) -> None:
    deadline_s = time.monotonic() + 5.0
    while (left := processes_naming(text)) and time.monotonic() < deadline_s:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


# --- the runner alone ---------------------------------------------------------------------------------------------------


def order(job: str, argv: Sequence[str] | None, *, attempt: int = 1, gpus: Sequence[int] = (0,), **values: object) -> Order:
    """`argv` None: an allocation."""
    ranks = tuple(RankOrder(gpu, gpu, "cell", 0, 0, gpu, f"GPU-{gpu}") for gpu in gpus)
    env = values.pop("env", ())
    command = None if argv is None else Command(tuple(argv), tuple(env))  # type: ignore[arg-type]
    settings: dict[str, object] = {"holds_port": True, "grace_period_s": 5.0, "start": False, **values}
    return Order(
        job=job,
        attempt=attempt,
        term=1,
        revision=1,
        node_rank=0,
        node_count=1,
        world_size=len(ranks),
        ranks=ranks,
        command=command,
        **settings,  # type: ignore[arg-type]
    )


def gang(wanted: Order) -> tuple[PlacedRank, ...]:
    return tuple(
        PlacedRank(rank.rank, "n1", rank.local_rank, rank.group, 0, 0, rank.gpu_index, rank.gpu_uuid)
        for rank in wanted.ranks
    )


@dataclass
class Bench:
    """A runner on its own, and the shorthand that its tests share."""

    runner: ProcessRunner
    state_dir: Path
    contacts: bool = True

    async def prepare(self, wanted: Order) -> RunState:
        await self.contact()
        await self.runner.prepare(wanted, NodeFacts("n1"), gang(wanted))
        return await self.state(wanted.job, lambda run: run.stage.value != "preparing")

    async def contact(self) -> None:
        if self.contacts:
            await self.runner.contact(0.0)

    async def start(self, wanted: Order) -> RunState:
        prepared = await self.prepare(wanted)
        assert prepared.stage.value == "prepared", prepared
        await self.runner.start(wanted.job, wanted.attempt, "127.0.0.1", prepared.held_port)
        return await self.state(wanted.job, lambda run: run.stage.value not in {"preparing", "prepared"})

    async def stop(self, wanted: Order, grace_s: float) -> RunState:
        await self.runner.stop(wanted.job, wanted.attempt, grace_s, "the test stops it", device_fault=False)
        return await self.gone(wanted.job)

    async def gone(self, job: str) -> RunState:
        return await self.state(job, lambda run: run.gone)

    async def state(self, job: str, accept: Callable[[RunState], bool], timeout_s: float = 15.0) -> RunState:
        async def probe() -> RunState | None:
            await self.contact()
            found = [run for run in await self.runner.observe() if run.job == job]
            return found[0] if found and accept(found[0]) else None

        return await until(probe, f"state of {job}", timeout_s)

    def output(self, wanted: Order, rank: int = 0, name: str = "out") -> bytes:
        return (self.state_dir / "runs" / f"{wanted.job}.{wanted.attempt}" / f"rank-{rank}.{name}").read_bytes()

    def supervisor(self, wanted: Order) -> int:
        state = files.read_json(str(self.state_dir / "runs" / f"{wanted.job}.{wanted.attempt}" / files.STATE_FILE))
        assert state is not None
        return int(state["pid"])


@contextlib.asynccontextmanager
async def bench(state_dir: Path, limits: ProcessLimits | None = None, *, contacts: bool = True) -> AsyncIterator[Bench]:
    """Fails where a process is left at the end that no test has accounted for."""
    state_dir.mkdir(parents=True, exist_ok=True)
    runner = ProcessRunner(state_dir, "n1", limits)
    await runner.adopt()
    try:
        yield Bench(runner, state_dir, contacts)
    finally:
        await runner.close()
        kill_all(str(state_dir))


# --- a whole agent ------------------------------------------------------------------------------------------------------


@dataclass
class Agent:
    """A real fm-agent process on described hardware, and the store it obeys."""

    kv: KV
    endpoint: str
    root: Path
    node: str = "n1"
    period_s: float = 0.5
    fence_after_s: float = 30.0
    listen: str = field(default_factory=lambda: f"127.0.0.1:{free_port()}")
    process: subprocess.Popen[bytes] | None = None

    @property
    def state_dir(self) -> Path:
        return self.root / "state"

    @property
    def hardware(self) -> Path:
        return self.root / "cluster.yaml"

    def start(self, *extra: str) -> None:
        if not self.hardware.exists():
            self.hardware.write_text(CLUSTER)
        command = [
            sys.executable, "-m", "fmagent", "--node", self.node, "--etcd", self.endpoint, "--state-dir", str(self.state_dir),
            "--hardware", str(self.hardware), "--listen", self.listen, "--address", "127.0.0.1",
            "--period", str(self.period_s), "--fence-after", str(self.fence_after_s), *extra,
        ]  # fmt: skip
        with (self.root / "agent.log").open("ab") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def end(self) -> int:
        """SIGTERM, as systemd does."""
        assert self.process is not None
        self.process.terminate()
        code = self.process.wait(timeout=10)
        self.process = None
        return code

    def log(self) -> str:
        return (self.root / "agent.log").read_text()

    async def ready(self) -> None:
        session = await self.session()

        async def probe() -> bool:
            assert self.process is None or self.process.poll() is None, f"the agent ended:\n{self.log()}"
            return (await self.session()) not in {"", session} and await self.kv.get(keys.health(self.node)) is not None

        await until(probe, f"agent of {self.node} is ready")

    async def session(self) -> str:
        from fmproto.v1 import hardware_pb2 as hw

        entry = await self.kv.get(keys.alive(self.node))
        return hw.Alive.FromString(entry.value).session if entry is not None else ""

    async def report(self, job: str) -> pb.RunReport | None:
        entry = await self.kv.get(keys.run(self.node, job))
        return pb.RunReport.FromString(entry.value) if entry is not None else None

    async def reports(self, job: str, phase: pb.RunPhase, timeout_s: float = 15.0) -> pb.RunReport:
        async def probe() -> pb.RunReport | None:
            report = await self.report(job)
            return report if report is not None and report.phase == phase else None

        return await until(probe, f"{job} reaches {pb.RunPhase.Name(phase)}; now {await self.report(job)}", timeout_s)

    async def withdrawn(self, job: str, timeout_s: float = 15.0) -> None:
        async def probe() -> bool:
            return await self.report(job) is None

        await until(probe, f"the report of {job} is withdrawn", timeout_s)

    def assignment(self, job: str, argv: Sequence[str] | None, gpus: Sequence[int], attempt: int = 1) -> pb.Assignment:
        """A prepare order for one rank per GPU, with the UUIDs of the described node."""
        from fmproto.described import describe_node

        inventory, _ = describe_node(self.hardware, self.node)
        ranks = [
            pb.RankPlacement(
                rank=rank,
                local_rank=rank,
                group="cell",
                node=self.node,
                gpu_index=gpu,
                gpu_uuid=inventory.gpus[gpu].uuid,
                hcas=[f"mlx5_{gpu}"],
            )
            for rank, gpu in enumerate(gpus)
        ]
        return pb.Assignment(
            job=job,
            attempt=attempt,
            term=1,
            phase=pb.PHASE_PREPARE,
            node=self.node,
            node_count=1,
            world_size=len(ranks),
            ranks=ranks,
            holds_port=True,
            grace_period_s=5.0,
            template=None if argv is None else pb.Template(command=list(argv)),
        )

    async def give(self, wanted: pb.Assignment) -> None:
        decision = pb.Decision(job=wanted.job, attempt=wanted.attempt, term=wanted.term, ranks=wanted.ranks)
        ops: list[Op] = [Put(keys.decision(wanted.job), decision.SerializeToString())]
        ops.append(Put(keys.assignment(self.node, wanted.job), wanted.SerializeToString()))
        await self.kv.write([], ops)

    async def take_back(self, job: str) -> None:
        await self.kv.write([], [Delete(keys.assignment(self.node, job))])

    async def run(self, wanted: pb.Assignment) -> pb.RunReport:
        """Through prepare and start to RUNNING."""
        await self.give(wanted)
        prepared = await self.reports(wanted.job, pb.RUN_PHASE_PREPARED)
        started = pb.Assignment()
        started.CopyFrom(wanted)
        started.phase, started.master_address, started.master_port = pb.PHASE_START, "127.0.0.1", prepared.held_port
        await self.give(started)

        async def probe() -> pb.RunReport | None:
            report = await self.report(wanted.job)
            return report if report is not None and report.phase in {pb.RUN_PHASE_RUNNING, pb.RUN_PHASE_EXITED} else None

        return await until(probe, f"{wanted.job} runs")

    def leftovers(self) -> list[int]:
        return processes_naming(str(self.state_dir))


@contextlib.contextmanager
def cleaned(root: Path) -> Iterator[None]:
    """Whatever names `root` is gone afterwards."""
    try:
        yield
    finally:
        kill_all(str(root))


@contextlib.asynccontextmanager
async def agent(endpoint: str, root: Path, **settings: object) -> AsyncIterator[Agent]:
    root.mkdir(parents=True, exist_ok=True)
    kv = Etcd([endpoint])
    made = Agent(kv, endpoint, root, **settings)  # type: ignore[arg-type]
    try:
        with cleaned(root):
            made.start()
            await made.ready()
            yield made
    finally:
        made.kill()
        kill_all(str(root))
        await kv.close()
