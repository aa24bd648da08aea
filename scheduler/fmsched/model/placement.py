"""The answers: a placement with its bound, or a refusal with its reasons. Both are values."""

from __future__ import annotations

from dataclasses import dataclass

from fmsched.model.hardware import GpuId, JobId, NodeName


@dataclass(frozen=True, slots=True)
class RankPlacement:
    rank: int
    group: str
    replica: int
    cell: int  # number of the group instance in the job: group-major, then replica; spares after all that run
    local_rank: int  # among the job's ranks of that node
    node: NodeName
    gpu: int  # index
    uuid: str
    hcas: tuple[str, ...] = ()  # near the GPU first
    spare: bool = False  # held for a repair; nothing is started there

    @property
    def gpu_id(self) -> GpuId:
        return GpuId(self.node, self.gpu)


@dataclass(frozen=True, slots=True)
class Term:
    """One named part of the objective; its contribution is weight × value. Lower is better."""

    name: str
    weight: float
    value: float


@dataclass(frozen=True, slots=True)
class Objective:
    """`bound` is proven: no placement has a lower value. gap = (value - bound) / max(1, |value|)."""

    value: float
    bound: float
    terms: tuple[Term, ...] = ()

    @property
    def gap(self) -> float:
        return max(0.0, self.value - self.bound) / max(1.0, abs(self.value))

    @property
    def optimal(self) -> bool:
        return self.value <= self.bound + 1e-9


@dataclass(frozen=True, slots=True)
class Placement:
    job: JobId
    ranks: tuple[RankPlacement, ...]  # in rank order
    objective: Objective

    @property
    def nodes(self) -> tuple[NodeName, ...]:
        """Where ranks run, in order of their lowest rank: a node's position is its NODE_RANK. One with spares alone is none of them."""
        return tuple(dict.fromkeys(rank.node for rank in self.ranks if not rank.spare))

    @property
    def running(self) -> tuple[RankPlacement, ...]:
        """All ranks but the spares, in rank order."""
        return tuple(rank for rank in self.ranks if not rank.spare)


@dataclass(frozen=True, slots=True)
class Why:
    """One constraint of a minimal set that cannot be met together; `relax` is a single change proven to help, or empty."""

    constraint: str  # "free GPUs", "GPU type", "memory", "NVLink", "hops", "link rate", "NVLink domain"
    group: str
    asked: str
    best: str
    where: str
    relax: str = ""

    def __str__(self) -> str:
        of = f"{self.group}: " if self.group else ""
        where = f" ({self.where})" if self.where else ""
        return f"{of}{self.constraint}: asked {self.asked}; best is {self.best}{where}"


@dataclass(frozen=True, slots=True)
class Unplaceable:
    """`never`: not on this cluster, even if it were empty and whole. Otherwise: not now."""

    job: JobId
    never: bool
    why: tuple[Why, ...]

    def __str__(self) -> str:
        return "; ".join(map(str, self.why))


@dataclass(frozen=True, slots=True)
class Undecided:
    """The search limit was reached with neither a placement nor a proof: an outcome, not an error. The job stays queued."""

    job: JobId
    reason: str


Verdict = Placement | Unplaceable | Undecided


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken promise of a placement, found by check()."""

    constraint: str
    where: str
    message: str


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits of one solve. Deterministic: the same snapshot gives the same answer on one machine and version."""

    deterministic_s: float = 5.0
    explain_solves_max: int = 60
