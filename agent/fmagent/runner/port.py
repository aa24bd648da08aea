"""The runner port: how runs are carried out on a node. One file per engine stands behind it; the shell knows only this."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from fmagent.launch.environment import NodeFacts
from fmagent.orders import Order, PlacedRank, RunState


class CannotPrepare(Exception):
    """The run cannot be prepared and nothing of it is left. `device_fault`: the node is to blame, not the job."""

    def __init__(self, reason: str, *, device_fault: bool) -> None:
        super().__init__(reason)
        self.reason = reason
        self.device_fault = device_fault


@dataclass(frozen=True, slots=True)
class Adopted:
    """What a starting agent finds. `contact_age_s`: since the store last answered any agent of this node; None: never."""

    runs: tuple[RunState, ...]
    contact_age_s: float | None


class Runner(Protocol):
    """Every method returns soon; what takes time shows in observe() later, and changed() returns when it does."""

    async def adopt(self) -> Adopted:
        """Take over what an earlier agent left, and end processes of runs that have no record. Called once, first."""
        ...

    async def observe(self) -> tuple[RunState, ...]:
        """Every run that was prepared or adopted and not released."""
        ...

    async def changed(self) -> None:
        """Returns when observe() may answer something new, at the latest after a second."""
        ...

    async def prepare(self, order: Order, facts: NodeFacts, gang: tuple[PlacedRank, ...]) -> None:
        """Durably record the run, then make it ready. Raises CannotPrepare."""
        ...

    async def start(self, job: str, attempt: int, master_address: str, master_port: int) -> None: ...

    async def stop(self, job: str, attempt: int, grace_s: float, reason: str, *, device_fault: bool) -> None:
        """Irrevocable, and durable before it returns."""
        ...

    async def release(self, job: str, attempt: int) -> None:
        """Forget a run that is gone. Its logs are kept as configured."""
        ...

    async def contact(self, age_s: float) -> None:
        """The store answered a request that was sent `age_s` seconds ago: runs are fenced so long after the last one."""
        ...

    async def processes(self) -> frozenset[int]:
        """The pids of all living processes of all runs."""
        ...

    def disk_fault(self) -> str:
        """Why nothing can be prepared here, or empty."""
        ...

    async def load(self) -> Mapping[str, object]:
        """What the agent remembered on this node; empty at first."""
        ...

    async def remember(self, memory: Mapping[str, object]) -> None:
        """Whole or not at all, and durable before it returns: orders that are older than what was seen before a power cut are still old
        after it."""
        ...
