from fmproto.v1 import hardware_pb2 as _hardware_pb2
from fmproto.v1 import job_pb2 as _job_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class FieldViolation(_message.Message):
    __slots__ = ("line", "path", "message")
    LINE_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    line: int
    path: str
    message: str
    def __init__(self, line: _Optional[int] = ..., path: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class SubmitRequest(_message.Message):
    __slots__ = ("manifest", "request_id", "submitter", "hold_s")
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    SUBMITTER_FIELD_NUMBER: _ClassVar[int]
    HOLD_S_FIELD_NUMBER: _ClassVar[int]
    manifest: str
    request_id: str
    submitter: str
    hold_s: float
    def __init__(self, manifest: _Optional[str] = ..., request_id: _Optional[str] = ..., submitter: _Optional[str] = ..., hold_s: _Optional[float] = ...) -> None: ...

class SubmitResponse(_message.Message):
    __slots__ = ("job", "existed")
    JOB_FIELD_NUMBER: _ClassVar[int]
    EXISTED_FIELD_NUMBER: _ClassVar[int]
    job: Job
    existed: bool
    def __init__(self, job: _Optional[_Union[Job, _Mapping]] = ..., existed: bool = ...) -> None: ...

class ValidateRequest(_message.Message):
    __slots__ = ("manifest",)
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    manifest: str
    def __init__(self, manifest: _Optional[str] = ...) -> None: ...

class SumLine(_message.Message):
    __slots__ = ("group", "gpus_per_group", "replicas", "gpus")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    GPUS_PER_GROUP_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    group: str
    gpus_per_group: int
    replicas: int
    gpus: int
    def __init__(self, group: _Optional[str] = ..., gpus_per_group: _Optional[int] = ..., replicas: _Optional[int] = ..., gpus: _Optional[int] = ...) -> None: ...

class ValidateResponse(_message.Message):
    __slots__ = ("violations", "name", "lines", "gpus")
    VIOLATIONS_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    LINES_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    violations: _containers.RepeatedCompositeFieldContainer[FieldViolation]
    name: str
    lines: _containers.RepeatedCompositeFieldContainer[SumLine]
    gpus: int
    def __init__(self, violations: _Optional[_Iterable[_Union[FieldViolation, _Mapping]]] = ..., name: _Optional[str] = ..., lines: _Optional[_Iterable[_Union[SumLine, _Mapping]]] = ..., gpus: _Optional[int] = ...) -> None: ...

class PlanRequest(_message.Message):
    __slots__ = ("manifest",)
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    manifest: str
    def __init__(self, manifest: _Optional[str] = ...) -> None: ...

class PlanResponse(_message.Message):
    __slots__ = ("json",)
    JSON_FIELD_NUMBER: _ClassVar[int]
    json: str
    def __init__(self, json: _Optional[str] = ...) -> None: ...

class Job(_message.Message):
    __slots__ = ("spec", "status", "decision", "queue_position", "runs")
    SPEC_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    DECISION_FIELD_NUMBER: _ClassVar[int]
    QUEUE_POSITION_FIELD_NUMBER: _ClassVar[int]
    RUNS_FIELD_NUMBER: _ClassVar[int]
    spec: _job_pb2.JobSpec
    status: _job_pb2.JobStatus
    decision: _job_pb2.Decision
    queue_position: int
    runs: _containers.RepeatedCompositeFieldContainer[_job_pb2.RunReport]
    def __init__(self, spec: _Optional[_Union[_job_pb2.JobSpec, _Mapping]] = ..., status: _Optional[_Union[_job_pb2.JobStatus, _Mapping]] = ..., decision: _Optional[_Union[_job_pb2.Decision, _Mapping]] = ..., queue_position: _Optional[int] = ..., runs: _Optional[_Iterable[_Union[_job_pb2.RunReport, _Mapping]]] = ...) -> None: ...

class GetJobRequest(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    def __init__(self, id: _Optional[str] = ...) -> None: ...

class ListJobsRequest(_message.Message):
    __slots__ = ("live_only",)
    LIVE_ONLY_FIELD_NUMBER: _ClassVar[int]
    live_only: bool
    def __init__(self, live_only: bool = ...) -> None: ...

class ListJobsResponse(_message.Message):
    __slots__ = ("jobs", "revision")
    JOBS_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    jobs: _containers.RepeatedCompositeFieldContainer[Job]
    revision: int
    def __init__(self, jobs: _Optional[_Iterable[_Union[Job, _Mapping]]] = ..., revision: _Optional[int] = ...) -> None: ...

class WatchJobsRequest(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    def __init__(self, id: _Optional[str] = ...) -> None: ...

class JobChange(_message.Message):
    __slots__ = ("job", "deleted", "initial")
    JOB_FIELD_NUMBER: _ClassVar[int]
    DELETED_FIELD_NUMBER: _ClassVar[int]
    INITIAL_FIELD_NUMBER: _ClassVar[int]
    job: Job
    deleted: bool
    initial: bool
    def __init__(self, job: _Optional[_Union[Job, _Mapping]] = ..., deleted: bool = ..., initial: bool = ...) -> None: ...

class ExplainRequest(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    def __init__(self, id: _Optional[str] = ...) -> None: ...

class ExplainResponse(_message.Message):
    __slots__ = ("id", "state", "summary", "why", "never", "ahead")
    ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    NEVER_FIELD_NUMBER: _ClassVar[int]
    AHEAD_FIELD_NUMBER: _ClassVar[int]
    id: str
    state: _job_pb2.JobState
    summary: str
    why: _containers.RepeatedCompositeFieldContainer[_job_pb2.Why]
    never: bool
    ahead: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, id: _Optional[str] = ..., state: _Optional[_Union[_job_pb2.JobState, str]] = ..., summary: _Optional[str] = ..., why: _Optional[_Iterable[_Union[_job_pb2.Why, _Mapping]]] = ..., never: bool = ..., ahead: _Optional[_Iterable[str]] = ...) -> None: ...

class CancelRequest(_message.Message):
    __slots__ = ("id", "reason")
    ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    id: str
    reason: str
    def __init__(self, id: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class CancelResponse(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: Job
    def __init__(self, job: _Optional[_Union[Job, _Mapping]] = ...) -> None: ...

class LogsRequest(_message.Message):
    __slots__ = ("id", "ranks", "follow", "tail_lines", "attempt")
    ID_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    FOLLOW_FIELD_NUMBER: _ClassVar[int]
    TAIL_LINES_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    id: str
    ranks: _containers.RepeatedScalarFieldContainer[int]
    follow: bool
    tail_lines: int
    attempt: int
    def __init__(self, id: _Optional[str] = ..., ranks: _Optional[_Iterable[int]] = ..., follow: bool = ..., tail_lines: _Optional[int] = ..., attempt: _Optional[int] = ...) -> None: ...

class LogChunk(_message.Message):
    __slots__ = ("rank", "node", "data", "stderr")
    RANK_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    STDERR_FIELD_NUMBER: _ClassVar[int]
    rank: int
    node: str
    data: bytes
    stderr: bool
    def __init__(self, rank: _Optional[int] = ..., node: _Optional[str] = ..., data: _Optional[bytes] = ..., stderr: bool = ...) -> None: ...

class HoldRequest(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    def __init__(self, id: _Optional[str] = ...) -> None: ...

class Node(_message.Message):
    __slots__ = ("name", "inventory", "health", "state", "reason", "holders", "leaf")
    class HoldersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: str
        def __init__(self, key: _Optional[int] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    INVENTORY_FIELD_NUMBER: _ClassVar[int]
    HEALTH_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    HOLDERS_FIELD_NUMBER: _ClassVar[int]
    LEAF_FIELD_NUMBER: _ClassVar[int]
    name: str
    inventory: _hardware_pb2.Inventory
    health: _hardware_pb2.Health
    state: str
    reason: str
    holders: _containers.ScalarMap[int, str]
    leaf: str
    def __init__(self, name: _Optional[str] = ..., inventory: _Optional[_Union[_hardware_pb2.Inventory, _Mapping]] = ..., health: _Optional[_Union[_hardware_pb2.Health, _Mapping]] = ..., state: _Optional[str] = ..., reason: _Optional[str] = ..., holders: _Optional[_Mapping[int, str]] = ..., leaf: _Optional[str] = ...) -> None: ...

class ListNodesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListNodesResponse(_message.Message):
    __slots__ = ("nodes", "revision", "fabric", "links")
    NODES_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    FABRIC_FIELD_NUMBER: _ClassVar[int]
    LINKS_FIELD_NUMBER: _ClassVar[int]
    nodes: _containers.RepeatedCompositeFieldContainer[Node]
    revision: int
    fabric: _hardware_pb2.Fabric
    links: _containers.RepeatedCompositeFieldContainer[LinkUse]
    def __init__(self, nodes: _Optional[_Iterable[_Union[Node, _Mapping]]] = ..., revision: _Optional[int] = ..., fabric: _Optional[_Union[_hardware_pb2.Fabric, _Mapping]] = ..., links: _Optional[_Iterable[_Union[LinkUse, _Mapping]]] = ...) -> None: ...

class LinkUse(_message.Message):
    __slots__ = ("a", "b", "gbps", "measured_gbps", "reserved_gbps")
    class ReservedGbpsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    A_FIELD_NUMBER: _ClassVar[int]
    B_FIELD_NUMBER: _ClassVar[int]
    GBPS_FIELD_NUMBER: _ClassVar[int]
    MEASURED_GBPS_FIELD_NUMBER: _ClassVar[int]
    RESERVED_GBPS_FIELD_NUMBER: _ClassVar[int]
    a: str
    b: str
    gbps: float
    measured_gbps: float
    reserved_gbps: _containers.ScalarMap[str, float]
    def __init__(self, a: _Optional[str] = ..., b: _Optional[str] = ..., gbps: _Optional[float] = ..., measured_gbps: _Optional[float] = ..., reserved_gbps: _Optional[_Mapping[str, float]] = ...) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = ("node", "reason", "by")
    NODE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    node: str
    reason: str
    by: str
    def __init__(self, node: _Optional[str] = ..., reason: _Optional[str] = ..., by: _Optional[str] = ...) -> None: ...

class UndrainRequest(_message.Message):
    __slots__ = ("node",)
    NODE_FIELD_NUMBER: _ClassVar[int]
    node: str
    def __init__(self, node: _Optional[str] = ...) -> None: ...

class DrainResponse(_message.Message):
    __slots__ = ("node",)
    NODE_FIELD_NUMBER: _ClassVar[int]
    node: Node
    def __init__(self, node: _Optional[_Union[Node, _Mapping]] = ...) -> None: ...

class GetVersionRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class VersionInfo(_message.Message):
    __slots__ = ("version", "leader", "leader_address", "store")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    LEADER_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    STORE_FIELD_NUMBER: _ClassVar[int]
    version: str
    leader: bool
    leader_address: str
    store: str
    def __init__(self, version: _Optional[str] = ..., leader: bool = ..., leader_address: _Optional[str] = ..., store: _Optional[str] = ...) -> None: ...
