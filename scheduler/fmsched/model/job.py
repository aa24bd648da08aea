"""What a job asks for, free of everything that placement does not need."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from fmsched.model.hardware import JobId
from fmsched.model.placement import RankPlacement
from fmsched.model.work import Work


class GroupKind(StrEnum):
    TENSOR_PARALLEL = "TensorParallel"
    DATA_PARALLEL = "DataParallel"
    PIPELINE_PARALLEL = "PipelineParallel"
    EXPERT_PARALLEL = "ExpertParallel"
    AUXILIARY = "Auxiliary"


@dataclass(frozen=True, slots=True)
class Reach:
    """interNodeConnectivity. What it holds between depends on the group's kind:

    TensorParallel, ExpertParallel   between the nodes of one instance (it may then span nodes)
    DataParallel                     between all nodes of all instances of the group
    PipelineParallel                 between the nodes of neighbouring stages: consecutive PipelineParallel groups of a replica
    Auxiliary                        nothing
    """

    max_hops: int | None = None  # switches crossed
    min_link_gbps: float = 0.0  # Gb/s of a port, the weakest link on the path
    reserve_gbps: float = 0.0  # Gb/s set aside for the job on every link that its traffic crosses, until it ends


@dataclass(frozen=True, slots=True)
class ResourceGroup:
    """One instance of it per replica.

    preferred   families from acceleratorType, best first; tolerated: what tolerations add, without order. With neither, any
                type will do; with tolerated alone, exactly those.
    """

    name: str
    kind: GroupKind
    gpus: int  # per instance
    preferred: tuple[str, ...] = ()
    tolerated: tuple[str, ...] = ()
    min_memory_gb: float = 0.0
    min_nvlink_gbytes_per_s: float = 0.0  # between every two GPUs of one instance
    reach: Reach | None = None
    min_nvlink_links: int = 0  # NVLink links that each GPU has to the others of its instance
    min_nvlink_aggregate_gbytes_per_s: float = 0.0  # over all GPUs of one instance together
    apart: str = ""  # "node", "leaf" or "pod": no two instances in one of these, each on one node; empty: no matter
    costs: tuple[tuple[str, int], ...] = ()  # by GPU model, above the cheapest allowed: place/price.py puts it for the list
    models: tuple[str, ...] = ()  # GPU models, names in order, that place/fastest.py narrows a question to; empty: any

    @property
    def families(self) -> tuple[str, ...]:
        """Allowed GPU families, preferred first; empty: any."""
        return (*self.preferred, *(family for family in self.tolerated if family not in self.preferred))


@dataclass(frozen=True, slots=True)
class Request:
    job: JobId
    groups: tuple[ResourceGroup, ...]
    replicas: int
    avoid_nodes: frozenset[str] = frozenset()  # an earlier attempt could not be prepared there
    allowed_nodes: frozenset[str] | None = None  # the manifest's list; None: any
    denied_nodes: frozenset[str] = frozenset()
    cpus_per_gpu: float = 0.0  # of every rank; 0: not asked
    memory_gb_per_gpu: float = 0.0  # host memory of every rank, decimal; 0: not asked
    spares: int = 0  # replicas placed beside `replicas`, by the same rules: held idle for a repair
    policy: str = ""  # "fastest", "cheapest", "balanced"; empty: none
    work: Work | None = None  # what is trained; None: the manifest names no model
    kept: tuple[RankPlacement, ...] = ()  # ranks that stay where they are, whole instances: only the others are placed

    @property
    def gpus(self) -> int:
        return self.replicas * sum(group.gpus for group in self.groups)
