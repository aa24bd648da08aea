"""A manifest as frozen values, and what follows from it: the request that is placed, and the sum of its GPUs."""

from __future__ import annotations

from dataclasses import dataclass

from fmproto.hostlist import expand
from fmsched.model.hardware import JobId, NodeName
from fmsched.model.job import Request, ResourceGroup
from fmsched.model.work import NOTHING_GIVEN, ModelSizes, Work

PRIORITIES = {"low": 100, "normal": 500, "high": 1000, "urgent": 2000}
DEFAULT_PRIORITY_CLASS = "normal"
LAUNCHERS = ("torchrun", "mpirun", "deepspeed", "jax", "none")
POLICIES = ("fastest", "cheapest", "balanced")
DEFAULT_GRACE_PERIOD_S = 30.0
DEFAULT_MAX_RESTARTS = 3


@dataclass(frozen=True, slots=True)
class Template:
    """What each rank runs."""

    image: str = ""  # empty: a bare process
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    working_dir: str = ""
    volumes: tuple[str, ...] = ()  # host:container[:ro]
    cpus: float = 0.0  # per rank; 0: not asked
    memory_gb: float = 0.0  # per rank, decimal; 0: not asked


@dataclass(frozen=True, slots=True)
class Parallelism:
    """Degrees; 1 is none. A rank belongs to tensor × context × pipeline × data; experts are spread over data × context."""

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    expert: int = 1
    context: int = 1

    @property
    def gpus(self) -> int:
        return self.tensor * self.context * self.pipeline * self.data


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """`signal` is sent so long before a stop as `grace_period_s` says; `interval_s` is the job's own rhythm. 0: not given."""

    signal: str = ""
    grace_period_s: float = 0.0
    interval_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Manifest:
    name: str
    replicas: int
    groups: tuple[ResourceGroup, ...]
    template: Template | None = None  # None: an allocation
    launcher: str = "none"
    model: str = ""
    priority_class: str = DEFAULT_PRIORITY_CLASS  # empty where priority is a number
    priority: int = PRIORITIES[DEFAULT_PRIORITY_CLASS]
    tenant: str = ""
    queue: str = ""
    grace_period_s: float = DEFAULT_GRACE_PERIOD_S
    max_runtime_s: float = 0.0  # 0: no limit
    max_restarts: int = DEFAULT_MAX_RESTARTS
    checkpoint_strategy: str = ""
    checkpoint: Checkpoint | None = None
    parallelism: Parallelism | None = None
    sizes: ModelSizes | None = None
    min_replicas: int = 0  # elastic; 0: not elastic
    policy: str = ""
    spares: int = 0
    allowed_nodes: tuple[str, ...] = ()  # ranges; none: any node
    denied_nodes: tuple[str, ...] = ()
    labels: tuple[tuple[str, str], ...] = ()
    annotations: tuple[tuple[str, str], ...] = ()

    @property
    def gpus(self) -> int:
        return (self.replicas + self.spares) * sum(group.gpus for group in self.groups)


@dataclass(frozen=True, slots=True)
class SumLine:
    """`gpus` = `gpus_per_group` × `replicas`."""

    group: str
    gpus_per_group: int
    replicas: int

    @property
    def gpus(self) -> int:
        return self.gpus_per_group * self.replicas


def request(manifest: Manifest, job_id: JobId) -> Request:
    """What is placed."""
    return Request(
        job=job_id,
        groups=manifest.groups,
        replicas=manifest.replicas,
        spares=manifest.spares,
        allowed_nodes=_names(manifest.allowed_nodes) if manifest.allowed_nodes else None,
        denied_nodes=_names(manifest.denied_nodes),
        cpus_per_gpu=manifest.template.cpus if manifest.template is not None else 0.0,
        memory_gb_per_gpu=manifest.template.memory_gb if manifest.template is not None else 0.0,
        policy=manifest.policy,
        work=work(manifest),
    )


def _names(ranges: tuple[str, ...]) -> frozenset[NodeName]:
    return frozenset(name for text in ranges for name in expand(text))


def work(manifest: Manifest) -> Work | None:
    """What is trained; None where the manifest names no model and gives no sizes."""
    sizes = manifest.sizes or NOTHING_GIVEN
    if not manifest.model and not sizes.parameters and not sizes.layers:
        return None
    asked = manifest.parallelism
    degrees = (asked.tensor, asked.pipeline, asked.data, asked.expert, asked.context) if asked is not None else None
    return Work(manifest.model, sizes, degrees)


def summary(manifest: Manifest) -> tuple[SumLine, ...]:
    """The GPUs asked for, a line for each group; another for the spares of all groups."""
    lines = tuple(SumLine(group.name, group.gpus, manifest.replicas) for group in manifest.groups)
    spare = SumLine("spares", sum(group.gpus for group in manifest.groups), manifest.spares)
    return (*lines, spare) if manifest.spares else lines
