from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GroupKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    GROUP_KIND_UNSPECIFIED: _ClassVar[GroupKind]
    GROUP_KIND_TENSOR_PARALLEL: _ClassVar[GroupKind]
    GROUP_KIND_DATA_PARALLEL: _ClassVar[GroupKind]
    GROUP_KIND_PIPELINE_PARALLEL: _ClassVar[GroupKind]
    GROUP_KIND_EXPERT_PARALLEL: _ClassVar[GroupKind]
    GROUP_KIND_AUXILIARY: _ClassVar[GroupKind]

class JobState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    JOB_STATE_UNSPECIFIED: _ClassVar[JobState]
    JOB_STATE_SUBMITTED: _ClassVar[JobState]
    JOB_STATE_QUEUED: _ClassVar[JobState]
    JOB_STATE_COMMITTED: _ClassVar[JobState]
    JOB_STATE_PREPARING: _ClassVar[JobState]
    JOB_STATE_RUNNING: _ClassVar[JobState]
    JOB_STATE_CHECKPOINTING: _ClassVar[JobState]
    JOB_STATE_PREEMPTED: _ClassVar[JobState]
    JOB_STATE_RECOVERING: _ClassVar[JobState]
    JOB_STATE_STOPPING: _ClassVar[JobState]
    JOB_STATE_SUCCEEDED: _ClassVar[JobState]
    JOB_STATE_FAILED: _ClassVar[JobState]
    JOB_STATE_CANCELLED: _ClassVar[JobState]

class Phase(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PHASE_UNSPECIFIED: _ClassVar[Phase]
    PHASE_PREPARE: _ClassVar[Phase]
    PHASE_START: _ClassVar[Phase]

class RunPhase(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RUN_PHASE_UNSPECIFIED: _ClassVar[RunPhase]
    RUN_PHASE_PREPARING: _ClassVar[RunPhase]
    RUN_PHASE_PREPARED: _ClassVar[RunPhase]
    RUN_PHASE_RUNNING: _ClassVar[RunPhase]
    RUN_PHASE_STOPPING: _ClassVar[RunPhase]
    RUN_PHASE_EXITED: _ClassVar[RunPhase]
    RUN_PHASE_REFUSED: _ClassVar[RunPhase]

class RankState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RANK_STATE_UNSPECIFIED: _ClassVar[RankState]
    RANK_STATE_PREPARED: _ClassVar[RankState]
    RANK_STATE_RUNNING: _ClassVar[RankState]
    RANK_STATE_EXITED: _ClassVar[RankState]
GROUP_KIND_UNSPECIFIED: GroupKind
GROUP_KIND_TENSOR_PARALLEL: GroupKind
GROUP_KIND_DATA_PARALLEL: GroupKind
GROUP_KIND_PIPELINE_PARALLEL: GroupKind
GROUP_KIND_EXPERT_PARALLEL: GroupKind
GROUP_KIND_AUXILIARY: GroupKind
JOB_STATE_UNSPECIFIED: JobState
JOB_STATE_SUBMITTED: JobState
JOB_STATE_QUEUED: JobState
JOB_STATE_COMMITTED: JobState
JOB_STATE_PREPARING: JobState
JOB_STATE_RUNNING: JobState
JOB_STATE_CHECKPOINTING: JobState
JOB_STATE_PREEMPTED: JobState
JOB_STATE_RECOVERING: JobState
JOB_STATE_STOPPING: JobState
JOB_STATE_SUCCEEDED: JobState
JOB_STATE_FAILED: JobState
JOB_STATE_CANCELLED: JobState
PHASE_UNSPECIFIED: Phase
PHASE_PREPARE: Phase
PHASE_START: Phase
RUN_PHASE_UNSPECIFIED: RunPhase
RUN_PHASE_PREPARING: RunPhase
RUN_PHASE_PREPARED: RunPhase
RUN_PHASE_RUNNING: RunPhase
RUN_PHASE_STOPPING: RunPhase
RUN_PHASE_EXITED: RunPhase
RUN_PHASE_REFUSED: RunPhase
RANK_STATE_UNSPECIFIED: RankState
RANK_STATE_PREPARED: RankState
RANK_STATE_RUNNING: RankState
RANK_STATE_EXITED: RankState

class Connectivity(_message.Message):
    __slots__ = ("min_link_gbps", "max_hops", "reserve_gbps")
    MIN_LINK_GBPS_FIELD_NUMBER: _ClassVar[int]
    MAX_HOPS_FIELD_NUMBER: _ClassVar[int]
    RESERVE_GBPS_FIELD_NUMBER: _ClassVar[int]
    min_link_gbps: float
    max_hops: int
    reserve_gbps: float
    def __init__(self, min_link_gbps: _Optional[float] = ..., max_hops: _Optional[int] = ..., reserve_gbps: _Optional[float] = ...) -> None: ...

class ResourceGroup(_message.Message):
    __slots__ = ("name", "kind", "gpus_per_group", "min_memory_gb", "min_nvlink_gbytes_per_s", "preferred_types", "tolerated_types", "connectivity", "min_nvlink_links", "min_nvlink_aggregate_gbytes_per_s", "apart")
    NAME_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    GPUS_PER_GROUP_FIELD_NUMBER: _ClassVar[int]
    MIN_MEMORY_GB_FIELD_NUMBER: _ClassVar[int]
    MIN_NVLINK_GBYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    PREFERRED_TYPES_FIELD_NUMBER: _ClassVar[int]
    TOLERATED_TYPES_FIELD_NUMBER: _ClassVar[int]
    CONNECTIVITY_FIELD_NUMBER: _ClassVar[int]
    MIN_NVLINK_LINKS_FIELD_NUMBER: _ClassVar[int]
    MIN_NVLINK_AGGREGATE_GBYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    APART_FIELD_NUMBER: _ClassVar[int]
    name: str
    kind: GroupKind
    gpus_per_group: int
    min_memory_gb: float
    min_nvlink_gbytes_per_s: float
    preferred_types: _containers.RepeatedScalarFieldContainer[str]
    tolerated_types: _containers.RepeatedScalarFieldContainer[str]
    connectivity: Connectivity
    min_nvlink_links: int
    min_nvlink_aggregate_gbytes_per_s: float
    apart: str
    def __init__(self, name: _Optional[str] = ..., kind: _Optional[_Union[GroupKind, str]] = ..., gpus_per_group: _Optional[int] = ..., min_memory_gb: _Optional[float] = ..., min_nvlink_gbytes_per_s: _Optional[float] = ..., preferred_types: _Optional[_Iterable[str]] = ..., tolerated_types: _Optional[_Iterable[str]] = ..., connectivity: _Optional[_Union[Connectivity, _Mapping]] = ..., min_nvlink_links: _Optional[int] = ..., min_nvlink_aggregate_gbytes_per_s: _Optional[float] = ..., apart: _Optional[str] = ...) -> None: ...

class EnvVar(_message.Message):
    __slots__ = ("name", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: str
    def __init__(self, name: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...

class Template(_message.Message):
    __slots__ = ("image", "command", "args", "env", "working_dir", "volumes")
    IMAGE_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    ARGS_FIELD_NUMBER: _ClassVar[int]
    ENV_FIELD_NUMBER: _ClassVar[int]
    WORKING_DIR_FIELD_NUMBER: _ClassVar[int]
    VOLUMES_FIELD_NUMBER: _ClassVar[int]
    image: str
    command: _containers.RepeatedScalarFieldContainer[str]
    args: _containers.RepeatedScalarFieldContainer[str]
    env: _containers.RepeatedCompositeFieldContainer[EnvVar]
    working_dir: str
    volumes: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, image: _Optional[str] = ..., command: _Optional[_Iterable[str]] = ..., args: _Optional[_Iterable[str]] = ..., env: _Optional[_Iterable[_Union[EnvVar, _Mapping]]] = ..., working_dir: _Optional[str] = ..., volumes: _Optional[_Iterable[str]] = ...) -> None: ...

class Work(_message.Message):
    __slots__ = ("model", "parameters", "layers", "hidden_size", "attention_heads", "vocabulary", "sequence_length", "experts", "micro_batch", "global_batch", "degrees")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    HIDDEN_SIZE_FIELD_NUMBER: _ClassVar[int]
    ATTENTION_HEADS_FIELD_NUMBER: _ClassVar[int]
    VOCABULARY_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_LENGTH_FIELD_NUMBER: _ClassVar[int]
    EXPERTS_FIELD_NUMBER: _ClassVar[int]
    MICRO_BATCH_FIELD_NUMBER: _ClassVar[int]
    GLOBAL_BATCH_FIELD_NUMBER: _ClassVar[int]
    DEGREES_FIELD_NUMBER: _ClassVar[int]
    model: str
    parameters: float
    layers: int
    hidden_size: int
    attention_heads: int
    vocabulary: int
    sequence_length: int
    experts: int
    micro_batch: int
    global_batch: int
    degrees: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, model: _Optional[str] = ..., parameters: _Optional[float] = ..., layers: _Optional[int] = ..., hidden_size: _Optional[int] = ..., attention_heads: _Optional[int] = ..., vocabulary: _Optional[int] = ..., sequence_length: _Optional[int] = ..., experts: _Optional[int] = ..., micro_batch: _Optional[int] = ..., global_batch: _Optional[int] = ..., degrees: _Optional[_Iterable[int]] = ...) -> None: ...

class JobSpec(_message.Message):
    __slots__ = ("id", "name", "request_id", "manifest", "submitted_ms", "submitter", "replica_count", "groups", "template", "launcher", "priority_class", "priority", "tenant", "queue", "grace_period_s", "max_runtime_s", "hold_s", "model", "max_restarts", "policy", "spares", "allowed_nodes", "denied_nodes", "cpus_per_gpu", "memory_gb_per_gpu", "work")
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    SUBMITTED_MS_FIELD_NUMBER: _ClassVar[int]
    SUBMITTER_FIELD_NUMBER: _ClassVar[int]
    REPLICA_COUNT_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    TEMPLATE_FIELD_NUMBER: _ClassVar[int]
    LAUNCHER_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_CLASS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    GRACE_PERIOD_S_FIELD_NUMBER: _ClassVar[int]
    MAX_RUNTIME_S_FIELD_NUMBER: _ClassVar[int]
    HOLD_S_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    MAX_RESTARTS_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    SPARES_FIELD_NUMBER: _ClassVar[int]
    ALLOWED_NODES_FIELD_NUMBER: _ClassVar[int]
    DENIED_NODES_FIELD_NUMBER: _ClassVar[int]
    CPUS_PER_GPU_FIELD_NUMBER: _ClassVar[int]
    MEMORY_GB_PER_GPU_FIELD_NUMBER: _ClassVar[int]
    WORK_FIELD_NUMBER: _ClassVar[int]
    id: str
    name: str
    request_id: str
    manifest: str
    submitted_ms: int
    submitter: str
    replica_count: int
    groups: _containers.RepeatedCompositeFieldContainer[ResourceGroup]
    template: Template
    launcher: str
    priority_class: str
    priority: int
    tenant: str
    queue: str
    grace_period_s: float
    max_runtime_s: float
    hold_s: float
    model: str
    max_restarts: int
    policy: str
    spares: int
    allowed_nodes: _containers.RepeatedScalarFieldContainer[str]
    denied_nodes: _containers.RepeatedScalarFieldContainer[str]
    cpus_per_gpu: float
    memory_gb_per_gpu: float
    work: Work
    def __init__(self, id: _Optional[str] = ..., name: _Optional[str] = ..., request_id: _Optional[str] = ..., manifest: _Optional[str] = ..., submitted_ms: _Optional[int] = ..., submitter: _Optional[str] = ..., replica_count: _Optional[int] = ..., groups: _Optional[_Iterable[_Union[ResourceGroup, _Mapping]]] = ..., template: _Optional[_Union[Template, _Mapping]] = ..., launcher: _Optional[str] = ..., priority_class: _Optional[str] = ..., priority: _Optional[int] = ..., tenant: _Optional[str] = ..., queue: _Optional[str] = ..., grace_period_s: _Optional[float] = ..., max_runtime_s: _Optional[float] = ..., hold_s: _Optional[float] = ..., model: _Optional[str] = ..., max_restarts: _Optional[int] = ..., policy: _Optional[str] = ..., spares: _Optional[int] = ..., allowed_nodes: _Optional[_Iterable[str]] = ..., denied_nodes: _Optional[_Iterable[str]] = ..., cpus_per_gpu: _Optional[float] = ..., memory_gb_per_gpu: _Optional[float] = ..., work: _Optional[_Union[Work, _Mapping]] = ...) -> None: ...

class Why(_message.Message):
    __slots__ = ("constraint", "group", "asked", "best", "where", "relax")
    CONSTRAINT_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    ASKED_FIELD_NUMBER: _ClassVar[int]
    BEST_FIELD_NUMBER: _ClassVar[int]
    WHERE_FIELD_NUMBER: _ClassVar[int]
    RELAX_FIELD_NUMBER: _ClassVar[int]
    constraint: str
    group: str
    asked: str
    best: str
    where: str
    relax: str
    def __init__(self, constraint: _Optional[str] = ..., group: _Optional[str] = ..., asked: _Optional[str] = ..., best: _Optional[str] = ..., where: _Optional[str] = ..., relax: _Optional[str] = ...) -> None: ...

class JobEvent(_message.Message):
    __slots__ = ("at_ms", "state", "attempt", "reason")
    AT_MS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    at_ms: int
    state: JobState
    attempt: int
    reason: str
    def __init__(self, at_ms: _Optional[int] = ..., state: _Optional[_Union[JobState, str]] = ..., attempt: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class RankFailure(_message.Message):
    __slots__ = ("node", "rank", "exit_code", "reason", "last_lines")
    NODE_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    LAST_LINES_FIELD_NUMBER: _ClassVar[int]
    node: str
    rank: int
    exit_code: int
    reason: str
    last_lines: str
    def __init__(self, node: _Optional[str] = ..., rank: _Optional[int] = ..., exit_code: _Optional[int] = ..., reason: _Optional[str] = ..., last_lines: _Optional[str] = ...) -> None: ...

class JobStatus(_message.Message):
    __slots__ = ("id", "state", "attempt", "reason", "why", "never", "since_ms", "started_ms", "finished_ms", "first_failure", "events", "outcome", "restarts", "avoid_nodes", "nodes")
    ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    NEVER_FIELD_NUMBER: _ClassVar[int]
    SINCE_MS_FIELD_NUMBER: _ClassVar[int]
    STARTED_MS_FIELD_NUMBER: _ClassVar[int]
    FINISHED_MS_FIELD_NUMBER: _ClassVar[int]
    FIRST_FAILURE_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    RESTARTS_FIELD_NUMBER: _ClassVar[int]
    AVOID_NODES_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    id: str
    state: JobState
    attempt: int
    reason: str
    why: _containers.RepeatedCompositeFieldContainer[Why]
    never: bool
    since_ms: int
    started_ms: int
    finished_ms: int
    first_failure: RankFailure
    events: _containers.RepeatedCompositeFieldContainer[JobEvent]
    outcome: JobState
    restarts: int
    avoid_nodes: _containers.RepeatedScalarFieldContainer[str]
    nodes: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, id: _Optional[str] = ..., state: _Optional[_Union[JobState, str]] = ..., attempt: _Optional[int] = ..., reason: _Optional[str] = ..., why: _Optional[_Iterable[_Union[Why, _Mapping]]] = ..., never: bool = ..., since_ms: _Optional[int] = ..., started_ms: _Optional[int] = ..., finished_ms: _Optional[int] = ..., first_failure: _Optional[_Union[RankFailure, _Mapping]] = ..., events: _Optional[_Iterable[_Union[JobEvent, _Mapping]]] = ..., outcome: _Optional[_Union[JobState, str]] = ..., restarts: _Optional[int] = ..., avoid_nodes: _Optional[_Iterable[str]] = ..., nodes: _Optional[_Iterable[str]] = ...) -> None: ...

class Term(_message.Message):
    __slots__ = ("name", "weight", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    weight: float
    value: float
    def __init__(self, name: _Optional[str] = ..., weight: _Optional[float] = ..., value: _Optional[float] = ...) -> None: ...

class Objective(_message.Message):
    __slots__ = ("value", "bound", "gap", "optimal", "terms")
    VALUE_FIELD_NUMBER: _ClassVar[int]
    BOUND_FIELD_NUMBER: _ClassVar[int]
    GAP_FIELD_NUMBER: _ClassVar[int]
    OPTIMAL_FIELD_NUMBER: _ClassVar[int]
    TERMS_FIELD_NUMBER: _ClassVar[int]
    value: float
    bound: float
    gap: float
    optimal: bool
    terms: _containers.RepeatedCompositeFieldContainer[Term]
    def __init__(self, value: _Optional[float] = ..., bound: _Optional[float] = ..., gap: _Optional[float] = ..., optimal: bool = ..., terms: _Optional[_Iterable[_Union[Term, _Mapping]]] = ...) -> None: ...

class SolveStats(_message.Message):
    __slots__ = ("seconds", "nodes", "gpus")
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    seconds: float
    nodes: int
    gpus: int
    def __init__(self, seconds: _Optional[float] = ..., nodes: _Optional[int] = ..., gpus: _Optional[int] = ...) -> None: ...

class RankPlacement(_message.Message):
    __slots__ = ("rank", "group", "replica", "cell", "local_rank", "node", "gpu_index", "gpu_uuid", "hcas", "spare")
    RANK_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    CELL_FIELD_NUMBER: _ClassVar[int]
    LOCAL_RANK_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    GPU_INDEX_FIELD_NUMBER: _ClassVar[int]
    GPU_UUID_FIELD_NUMBER: _ClassVar[int]
    HCAS_FIELD_NUMBER: _ClassVar[int]
    SPARE_FIELD_NUMBER: _ClassVar[int]
    rank: int
    group: str
    replica: int
    cell: int
    local_rank: int
    node: str
    gpu_index: int
    gpu_uuid: str
    hcas: _containers.RepeatedScalarFieldContainer[str]
    spare: bool
    def __init__(self, rank: _Optional[int] = ..., group: _Optional[str] = ..., replica: _Optional[int] = ..., cell: _Optional[int] = ..., local_rank: _Optional[int] = ..., node: _Optional[str] = ..., gpu_index: _Optional[int] = ..., gpu_uuid: _Optional[str] = ..., hcas: _Optional[_Iterable[str]] = ..., spare: bool = ...) -> None: ...

class Decision(_message.Message):
    __slots__ = ("job", "attempt", "term", "ranks", "objective", "solve", "decided_ms", "revision", "start", "master_node", "master_address", "master_port", "stop")
    JOB_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    OBJECTIVE_FIELD_NUMBER: _ClassVar[int]
    SOLVE_FIELD_NUMBER: _ClassVar[int]
    DECIDED_MS_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    MASTER_NODE_FIELD_NUMBER: _ClassVar[int]
    MASTER_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    MASTER_PORT_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    job: str
    attempt: int
    term: int
    ranks: _containers.RepeatedCompositeFieldContainer[RankPlacement]
    objective: Objective
    solve: SolveStats
    decided_ms: int
    revision: int
    start: bool
    master_node: str
    master_address: str
    master_port: int
    stop: bool
    def __init__(self, job: _Optional[str] = ..., attempt: _Optional[int] = ..., term: _Optional[int] = ..., ranks: _Optional[_Iterable[_Union[RankPlacement, _Mapping]]] = ..., objective: _Optional[_Union[Objective, _Mapping]] = ..., solve: _Optional[_Union[SolveStats, _Mapping]] = ..., decided_ms: _Optional[int] = ..., revision: _Optional[int] = ..., start: bool = ..., master_node: _Optional[str] = ..., master_address: _Optional[str] = ..., master_port: _Optional[int] = ..., stop: bool = ...) -> None: ...

class Assignment(_message.Message):
    __slots__ = ("job", "attempt", "term", "phase", "node", "node_rank", "node_count", "world_size", "ranks", "master_address", "master_port", "holds_port", "template", "launcher", "grace_period_s", "job_name")
    JOB_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    NODE_RANK_FIELD_NUMBER: _ClassVar[int]
    NODE_COUNT_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    MASTER_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    MASTER_PORT_FIELD_NUMBER: _ClassVar[int]
    HOLDS_PORT_FIELD_NUMBER: _ClassVar[int]
    TEMPLATE_FIELD_NUMBER: _ClassVar[int]
    LAUNCHER_FIELD_NUMBER: _ClassVar[int]
    GRACE_PERIOD_S_FIELD_NUMBER: _ClassVar[int]
    JOB_NAME_FIELD_NUMBER: _ClassVar[int]
    job: str
    attempt: int
    term: int
    phase: Phase
    node: str
    node_rank: int
    node_count: int
    world_size: int
    ranks: _containers.RepeatedCompositeFieldContainer[RankPlacement]
    master_address: str
    master_port: int
    holds_port: bool
    template: Template
    launcher: str
    grace_period_s: float
    job_name: str
    def __init__(self, job: _Optional[str] = ..., attempt: _Optional[int] = ..., term: _Optional[int] = ..., phase: _Optional[_Union[Phase, str]] = ..., node: _Optional[str] = ..., node_rank: _Optional[int] = ..., node_count: _Optional[int] = ..., world_size: _Optional[int] = ..., ranks: _Optional[_Iterable[_Union[RankPlacement, _Mapping]]] = ..., master_address: _Optional[str] = ..., master_port: _Optional[int] = ..., holds_port: bool = ..., template: _Optional[_Union[Template, _Mapping]] = ..., launcher: _Optional[str] = ..., grace_period_s: _Optional[float] = ..., job_name: _Optional[str] = ...) -> None: ...

class RankReport(_message.Message):
    __slots__ = ("rank", "state", "pid", "exit_code", "reason", "last_lines")
    RANK_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    LAST_LINES_FIELD_NUMBER: _ClassVar[int]
    rank: int
    state: RankState
    pid: int
    exit_code: int
    reason: str
    last_lines: str
    def __init__(self, rank: _Optional[int] = ..., state: _Optional[_Union[RankState, str]] = ..., pid: _Optional[int] = ..., exit_code: _Optional[int] = ..., reason: _Optional[str] = ..., last_lines: _Optional[str] = ...) -> None: ...

class RunReport(_message.Message):
    __slots__ = ("job", "attempt", "node", "phase", "ranks", "held_port", "reason", "gpu_indices", "device_fault", "first_failed_ms")
    JOB_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    HELD_PORT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    GPU_INDICES_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FAULT_FIELD_NUMBER: _ClassVar[int]
    FIRST_FAILED_MS_FIELD_NUMBER: _ClassVar[int]
    job: str
    attempt: int
    node: str
    phase: RunPhase
    ranks: _containers.RepeatedCompositeFieldContainer[RankReport]
    held_port: int
    reason: str
    gpu_indices: _containers.RepeatedScalarFieldContainer[int]
    device_fault: bool
    first_failed_ms: int
    def __init__(self, job: _Optional[str] = ..., attempt: _Optional[int] = ..., node: _Optional[str] = ..., phase: _Optional[_Union[RunPhase, str]] = ..., ranks: _Optional[_Iterable[_Union[RankReport, _Mapping]]] = ..., held_port: _Optional[int] = ..., reason: _Optional[str] = ..., gpu_indices: _Optional[_Iterable[int]] = ..., device_fault: bool = ..., first_failed_ms: _Optional[int] = ...) -> None: ...

class Wanted(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    def __init__(self, id: _Optional[str] = ...) -> None: ...
