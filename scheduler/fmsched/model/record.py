"""A job as the scheduler keeps it: what was asked, how it stands, what was decided, and what agents saw run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from fmsched.model.hardware import JobId, NodeName
from fmsched.model.job import Request
from fmsched.model.placement import Placement, Why


class State(StrEnum):
    SUBMITTED = "submitted"
    QUEUED = "queued"
    COMMITTED = "committed"
    PREPARING = "preparing"
    RUNNING = "running"
    CHECKPOINTING = "checkpointing"
    PREEMPTED = "preempted"
    RECOVERING = "recovering"
    STOPPING = "stopping"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def ended(self) -> bool:
        return self in _ENDED

    @property
    def waits(self) -> bool:
        """Waits for a placement."""
        return self in _WAITS


_ENDED = frozenset({State.SUCCEEDED, State.FAILED, State.CANCELLED})
_WAITS = frozenset({State.SUBMITTED, State.QUEUED, State.PREEMPTED})


class Phase(StrEnum):
    """What an assignment tells its node."""

    PREPARE = "prepare"
    START = "start"


class RunPhase(StrEnum):
    """What a node says of its part of a gang."""

    PREPARING = "preparing"
    PREPARED = "prepared"
    RUNNING = "running"
    STOPPING = "stopping"
    EXITED = "exited"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Spec:
    id: JobId
    name: str
    request: Request
    priority: int
    submitted_ms: int
    allocation: bool = False  # holds its GPUs for a launcher; agents start nothing
    max_runtime_s: float = 0.0  # 0: no limit
    hold_s: float = 0.0  # 0: held until cancelled
    max_restarts: int = 3
    queue: str = ""
    tenant: str = ""


@dataclass(frozen=True, slots=True)
class RankFailure:
    node: NodeName
    rank: int
    exit_code: int  # 128 + signal where a signal ended it
    reason: str = ""
    last_lines: str = ""


@dataclass(frozen=True, slots=True)
class Event:
    at_ms: int
    state: State
    attempt: int
    reason: str


@dataclass(frozen=True, slots=True)
class Status:
    state: State
    since_ms: int
    attempt: int = 0
    reason: str = ""
    why: tuple[Why, ...] = ()
    never: bool = False
    started_ms: int = 0
    finished_ms: int = 0
    failure: RankFailure | None = None
    events: tuple[Event, ...] = ()
    outcome: State | None = None  # while it is stopped: what it will be then
    restarts: int = 0
    avoid: tuple[NodeName, ...] = ()
    nodes: tuple[NodeName, ...] = ()  # of the newest attempt


@dataclass(frozen=True, slots=True)
class Decision:
    """A committed placement: from here on its GPUs are held."""

    attempt: int
    term: int
    placement: Placement
    decided_ms: int
    revision: int = 0
    solve_s: float = 0.0
    start: bool = False
    stop: bool = False
    master_port: int = 0


@dataclass(frozen=True, slots=True)
class RankRun:
    rank: int
    ended: bool
    exit_code: int = 0
    reason: str = ""
    last_lines: str = ""


@dataclass(frozen=True, slots=True)
class Run:
    """A node's report on one job."""

    attempt: int
    phase: RunPhase
    ranks: tuple[RankRun, ...] = ()
    held_port: int = 0
    reason: str = ""
    device_fault: bool = False
    gpus: tuple[int, ...] = ()
    first_failed_ms: int = 0


@dataclass(frozen=True, slots=True)
class Order:
    """An assignment as it stands in the store."""

    attempt: int
    phase: Phase


@dataclass(frozen=True, slots=True)
class Job:
    """Everything the store says about one job."""

    spec: Spec
    status: Status
    wanted: bool = True
    decision: Decision | None = None
    orders: Mapping[NodeName, Order] = field(default_factory=dict)
    runs: Mapping[NodeName, Run] = field(default_factory=dict)

    @property
    def id(self) -> JobId:
        return self.spec.id
