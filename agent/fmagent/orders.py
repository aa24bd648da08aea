"""What the agent is told and what it sees, as frozen values: orders (decoded assignments) and run states. The wire messages stop in
codec.py; nothing here does I/O.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

# A job id names a directory, a store key and an environment variable; anything else is refused before it can be a path.
JOB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,200}")


@dataclass(frozen=True, slots=True)
class RankOrder:
    """One rank that this node carries out. `hcas` as the decision names them: "mlx5_0" or "mlx5_0:1"."""

    rank: int
    local_rank: int
    group: str
    replica: int
    cell: int
    gpu_index: int
    gpu_uuid: str
    hcas: tuple[str, ...] = ()

    @property
    def gpu(self) -> str:
        """The GPU's identity on this node: its UUID, or its index where the decision has no UUID."""
        return self.gpu_uuid or str(self.gpu_index)


@dataclass(frozen=True, slots=True)
class Command:
    """What each rank executes. `env` is the user's own, and wins over everything but FMSCHED_*."""

    argv: tuple[str, ...]
    env: tuple[tuple[str, str], ...] = ()
    working_dir: str = ""
    image: str = ""
    volumes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Order:
    """One assignment. `revision` is the store's revision of the key; `command` is None for an allocation."""

    job: str
    attempt: int
    term: int
    revision: int
    start: bool
    node_rank: int
    node_count: int
    world_size: int
    ranks: tuple[RankOrder, ...]
    master_address: str = ""
    master_port: int = 0
    holds_port: bool = False
    command: Command | None = None
    launcher: str = ""
    grace_period_s: float = 0.0
    job_name: str = ""

    @property
    def gpus(self) -> tuple[str, ...]:
        return tuple(rank.gpu for rank in self.ranks)


class Stage(Enum):
    """How far a run on this node is. EXITED and REFUSED are final; whether processes are left is RunState.gone."""

    PREPARING = "preparing"
    PREPARED = "prepared"
    RUNNING = "running"
    STOPPING = "stopping"
    EXITED = "exited"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class RankStatus:
    """`exit_code` is 128 + signal where a signal ended it, None while it lives or never started (pid 0)."""

    rank: int
    pid: int = 0
    exit_code: int | None = None
    reason: str = ""
    last_lines: str = ""


@dataclass(frozen=True, slots=True)
class RunState:
    """A run as the runner sees it. `gone`: no process of it is left and its GPUs are free."""

    job: str
    attempt: int
    stage: Stage
    ranks: tuple[RankStatus, ...] = ()
    gpus: tuple[str, ...] = ()
    gpu_indices: tuple[int, ...] = ()
    held_port: int = 0
    reason: str = ""
    device_fault: bool = False
    first_failed_ms: int = 0
    gone: bool = False
    start_ordered: bool = False
    stop_ordered: bool = False
    grace_period_s: float = 0.0

    @property
    def ended(self) -> bool:
        return self.stage in {Stage.EXITED, Stage.REFUSED}


@dataclass(frozen=True, slots=True)
class PlacedRank:
    """One rank of the whole gang, wherever it is: for the placement file."""

    rank: int
    node: str
    local_rank: int
    group: str
    replica: int
    cell: int
    gpu_index: int
    gpu_uuid: str
    hcas: tuple[str, ...] = ()
