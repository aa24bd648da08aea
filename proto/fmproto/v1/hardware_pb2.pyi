from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class HealthState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    HEALTH_STATE_UNSPECIFIED: _ClassVar[HealthState]
    HEALTH_STATE_OK: _ClassVar[HealthState]
    HEALTH_STATE_DEGRADED: _ClassVar[HealthState]
    HEALTH_STATE_DRAINING: _ClassVar[HealthState]
    HEALTH_STATE_FAILED: _ClassVar[HealthState]
HEALTH_STATE_UNSPECIFIED: HealthState
HEALTH_STATE_OK: HealthState
HEALTH_STATE_DEGRADED: HealthState
HEALTH_STATE_DRAINING: HealthState
HEALTH_STATE_FAILED: HealthState

class Gpu(_message.Message):
    __slots__ = ("index", "uuid", "name", "model", "pci_address", "memory_bytes", "sm_count", "compute_capability", "minor", "numa_node", "memory_gb", "family", "vendor", "power_limit_w", "power_limit_default_w", "power_limit_max_w", "pcie_gen", "pcie_width", "ecc_enabled", "nvlink_ports", "fabric", "mig_enabled", "mig_instances", "mig_profiles")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    UUID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    PCI_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    SM_COUNT_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_CAPABILITY_FIELD_NUMBER: _ClassVar[int]
    MINOR_FIELD_NUMBER: _ClassVar[int]
    NUMA_NODE_FIELD_NUMBER: _ClassVar[int]
    MEMORY_GB_FIELD_NUMBER: _ClassVar[int]
    FAMILY_FIELD_NUMBER: _ClassVar[int]
    VENDOR_FIELD_NUMBER: _ClassVar[int]
    POWER_LIMIT_W_FIELD_NUMBER: _ClassVar[int]
    POWER_LIMIT_DEFAULT_W_FIELD_NUMBER: _ClassVar[int]
    POWER_LIMIT_MAX_W_FIELD_NUMBER: _ClassVar[int]
    PCIE_GEN_FIELD_NUMBER: _ClassVar[int]
    PCIE_WIDTH_FIELD_NUMBER: _ClassVar[int]
    ECC_ENABLED_FIELD_NUMBER: _ClassVar[int]
    NVLINK_PORTS_FIELD_NUMBER: _ClassVar[int]
    FABRIC_FIELD_NUMBER: _ClassVar[int]
    MIG_ENABLED_FIELD_NUMBER: _ClassVar[int]
    MIG_INSTANCES_FIELD_NUMBER: _ClassVar[int]
    MIG_PROFILES_FIELD_NUMBER: _ClassVar[int]
    index: int
    uuid: str
    name: str
    model: str
    pci_address: str
    memory_bytes: int
    sm_count: int
    compute_capability: str
    minor: int
    numa_node: int
    memory_gb: float
    family: str
    vendor: str
    power_limit_w: float
    power_limit_default_w: float
    power_limit_max_w: float
    pcie_gen: int
    pcie_width: int
    ecc_enabled: bool
    nvlink_ports: _containers.RepeatedCompositeFieldContainer[NvLinkPort]
    fabric: FabricPart
    mig_enabled: bool
    mig_instances: _containers.RepeatedCompositeFieldContainer[MigInstance]
    mig_profiles: _containers.RepeatedCompositeFieldContainer[MigProfile]
    def __init__(self, index: _Optional[int] = ..., uuid: _Optional[str] = ..., name: _Optional[str] = ..., model: _Optional[str] = ..., pci_address: _Optional[str] = ..., memory_bytes: _Optional[int] = ..., sm_count: _Optional[int] = ..., compute_capability: _Optional[str] = ..., minor: _Optional[int] = ..., numa_node: _Optional[int] = ..., memory_gb: _Optional[float] = ..., family: _Optional[str] = ..., vendor: _Optional[str] = ..., power_limit_w: _Optional[float] = ..., power_limit_default_w: _Optional[float] = ..., power_limit_max_w: _Optional[float] = ..., pcie_gen: _Optional[int] = ..., pcie_width: _Optional[int] = ..., ecc_enabled: bool = ..., nvlink_ports: _Optional[_Iterable[_Union[NvLinkPort, _Mapping]]] = ..., fabric: _Optional[_Union[FabricPart, _Mapping]] = ..., mig_enabled: bool = ..., mig_instances: _Optional[_Iterable[_Union[MigInstance, _Mapping]]] = ..., mig_profiles: _Optional[_Iterable[_Union[MigProfile, _Mapping]]] = ...) -> None: ...

class NvLinkPort(_message.Message):
    __slots__ = ("link", "version", "active", "remote", "remote_pci")
    LINK_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_FIELD_NUMBER: _ClassVar[int]
    REMOTE_FIELD_NUMBER: _ClassVar[int]
    REMOTE_PCI_FIELD_NUMBER: _ClassVar[int]
    link: int
    version: int
    active: bool
    remote: str
    remote_pci: str
    def __init__(self, link: _Optional[int] = ..., version: _Optional[int] = ..., active: bool = ..., remote: _Optional[str] = ..., remote_pci: _Optional[str] = ...) -> None: ...

class FabricPart(_message.Message):
    __slots__ = ("cluster_uuid", "clique", "state", "status", "health")
    CLUSTER_UUID_FIELD_NUMBER: _ClassVar[int]
    CLIQUE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    HEALTH_FIELD_NUMBER: _ClassVar[int]
    cluster_uuid: str
    clique: int
    state: str
    status: str
    health: str
    def __init__(self, cluster_uuid: _Optional[str] = ..., clique: _Optional[int] = ..., state: _Optional[str] = ..., status: _Optional[str] = ..., health: _Optional[str] = ...) -> None: ...

class MigInstance(_message.Message):
    __slots__ = ("uuid", "profile", "gpu_instance", "compute_instance", "start", "size")
    UUID_FIELD_NUMBER: _ClassVar[int]
    PROFILE_FIELD_NUMBER: _ClassVar[int]
    GPU_INSTANCE_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_INSTANCE_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    uuid: str
    profile: str
    gpu_instance: int
    compute_instance: int
    start: int
    size: int
    def __init__(self, uuid: _Optional[str] = ..., profile: _Optional[str] = ..., gpu_instance: _Optional[int] = ..., compute_instance: _Optional[int] = ..., start: _Optional[int] = ..., size: _Optional[int] = ...) -> None: ...

class MigProfile(_message.Message):
    __slots__ = ("name", "id", "slices", "multiprocessors", "memory_gb", "instances_max", "starts", "size")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    SLICES_FIELD_NUMBER: _ClassVar[int]
    MULTIPROCESSORS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_GB_FIELD_NUMBER: _ClassVar[int]
    INSTANCES_MAX_FIELD_NUMBER: _ClassVar[int]
    STARTS_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    name: str
    id: int
    slices: int
    multiprocessors: int
    memory_gb: float
    instances_max: int
    starts: _containers.RepeatedScalarFieldContainer[int]
    size: int
    def __init__(self, name: _Optional[str] = ..., id: _Optional[int] = ..., slices: _Optional[int] = ..., multiprocessors: _Optional[int] = ..., memory_gb: _Optional[float] = ..., instances_max: _Optional[int] = ..., starts: _Optional[_Iterable[int]] = ..., size: _Optional[int] = ...) -> None: ...

class GpuPath(_message.Message):
    __slots__ = ("gpu_a", "gpu_b", "path", "p2p")
    GPU_A_FIELD_NUMBER: _ClassVar[int]
    GPU_B_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    P2P_FIELD_NUMBER: _ClassVar[int]
    gpu_a: int
    gpu_b: int
    path: str
    p2p: str
    def __init__(self, gpu_a: _Optional[int] = ..., gpu_b: _Optional[int] = ..., path: _Optional[str] = ..., p2p: _Optional[str] = ...) -> None: ...

class NvLinkPair(_message.Message):
    __slots__ = ("gpu_a", "gpu_b", "gbytes_per_s")
    GPU_A_FIELD_NUMBER: _ClassVar[int]
    GPU_B_FIELD_NUMBER: _ClassVar[int]
    GBYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    gpu_a: int
    gpu_b: int
    gbytes_per_s: float
    def __init__(self, gpu_a: _Optional[int] = ..., gpu_b: _Optional[int] = ..., gbytes_per_s: _Optional[float] = ...) -> None: ...

class HcaPort(_message.Message):
    __slots__ = ("hca", "port", "state", "physical_state", "rate_gbps", "link_layer", "port_guid", "node_guid", "firmware", "pci_address", "numa_node", "near_gpus", "rate_max_gbps", "lid", "netdev", "roce_gid_index", "hca_type", "virtual_function", "bond")
    HCA_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    PHYSICAL_STATE_FIELD_NUMBER: _ClassVar[int]
    RATE_GBPS_FIELD_NUMBER: _ClassVar[int]
    LINK_LAYER_FIELD_NUMBER: _ClassVar[int]
    PORT_GUID_FIELD_NUMBER: _ClassVar[int]
    NODE_GUID_FIELD_NUMBER: _ClassVar[int]
    FIRMWARE_FIELD_NUMBER: _ClassVar[int]
    PCI_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    NUMA_NODE_FIELD_NUMBER: _ClassVar[int]
    NEAR_GPUS_FIELD_NUMBER: _ClassVar[int]
    RATE_MAX_GBPS_FIELD_NUMBER: _ClassVar[int]
    LID_FIELD_NUMBER: _ClassVar[int]
    NETDEV_FIELD_NUMBER: _ClassVar[int]
    ROCE_GID_INDEX_FIELD_NUMBER: _ClassVar[int]
    HCA_TYPE_FIELD_NUMBER: _ClassVar[int]
    VIRTUAL_FUNCTION_FIELD_NUMBER: _ClassVar[int]
    BOND_FIELD_NUMBER: _ClassVar[int]
    hca: str
    port: int
    state: str
    physical_state: str
    rate_gbps: float
    link_layer: str
    port_guid: str
    node_guid: str
    firmware: str
    pci_address: str
    numa_node: int
    near_gpus: _containers.RepeatedScalarFieldContainer[int]
    rate_max_gbps: float
    lid: int
    netdev: str
    roce_gid_index: int
    hca_type: str
    virtual_function: bool
    bond: bool
    def __init__(self, hca: _Optional[str] = ..., port: _Optional[int] = ..., state: _Optional[str] = ..., physical_state: _Optional[str] = ..., rate_gbps: _Optional[float] = ..., link_layer: _Optional[str] = ..., port_guid: _Optional[str] = ..., node_guid: _Optional[str] = ..., firmware: _Optional[str] = ..., pci_address: _Optional[str] = ..., numa_node: _Optional[int] = ..., near_gpus: _Optional[_Iterable[int]] = ..., rate_max_gbps: _Optional[float] = ..., lid: _Optional[int] = ..., netdev: _Optional[str] = ..., roce_gid_index: _Optional[int] = ..., hca_type: _Optional[str] = ..., virtual_function: bool = ..., bond: bool = ...) -> None: ...

class NetInterface(_message.Message):
    __slots__ = ("name", "addresses", "up")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    UP_FIELD_NUMBER: _ClassVar[int]
    name: str
    addresses: _containers.RepeatedScalarFieldContainer[str]
    up: bool
    def __init__(self, name: _Optional[str] = ..., addresses: _Optional[_Iterable[str]] = ..., up: bool = ...) -> None: ...

class Host(_message.Message):
    __slots__ = ("hostname", "cpu_model", "cpus", "memory_bytes", "numa_nodes", "kernel", "interfaces", "sockets", "cores", "numa", "disks", "pcie_gen")
    HOSTNAME_FIELD_NUMBER: _ClassVar[int]
    CPU_MODEL_FIELD_NUMBER: _ClassVar[int]
    CPUS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    NUMA_NODES_FIELD_NUMBER: _ClassVar[int]
    KERNEL_FIELD_NUMBER: _ClassVar[int]
    INTERFACES_FIELD_NUMBER: _ClassVar[int]
    SOCKETS_FIELD_NUMBER: _ClassVar[int]
    CORES_FIELD_NUMBER: _ClassVar[int]
    NUMA_FIELD_NUMBER: _ClassVar[int]
    DISKS_FIELD_NUMBER: _ClassVar[int]
    PCIE_GEN_FIELD_NUMBER: _ClassVar[int]
    hostname: str
    cpu_model: str
    cpus: int
    memory_bytes: int
    numa_nodes: int
    kernel: str
    interfaces: _containers.RepeatedCompositeFieldContainer[NetInterface]
    sockets: int
    cores: int
    numa: _containers.RepeatedCompositeFieldContainer[NumaNode]
    disks: _containers.RepeatedCompositeFieldContainer[Disk]
    pcie_gen: int
    def __init__(self, hostname: _Optional[str] = ..., cpu_model: _Optional[str] = ..., cpus: _Optional[int] = ..., memory_bytes: _Optional[int] = ..., numa_nodes: _Optional[int] = ..., kernel: _Optional[str] = ..., interfaces: _Optional[_Iterable[_Union[NetInterface, _Mapping]]] = ..., sockets: _Optional[int] = ..., cores: _Optional[int] = ..., numa: _Optional[_Iterable[_Union[NumaNode, _Mapping]]] = ..., disks: _Optional[_Iterable[_Union[Disk, _Mapping]]] = ..., pcie_gen: _Optional[int] = ...) -> None: ...

class NumaNode(_message.Message):
    __slots__ = ("number", "cpus", "memory_bytes")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    CPUS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    number: int
    cpus: str
    memory_bytes: int
    def __init__(self, number: _Optional[int] = ..., cpus: _Optional[str] = ..., memory_bytes: _Optional[int] = ...) -> None: ...

class Disk(_message.Message):
    __slots__ = ("mount", "device", "bytes_total", "rotational")
    MOUNT_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    BYTES_TOTAL_FIELD_NUMBER: _ClassVar[int]
    ROTATIONAL_FIELD_NUMBER: _ClassVar[int]
    mount: str
    device: str
    bytes_total: int
    rotational: bool
    def __init__(self, mount: _Optional[str] = ..., device: _Optional[str] = ..., bytes_total: _Optional[int] = ..., rotational: bool = ...) -> None: ...

class Inventory(_message.Message):
    __slots__ = ("node", "agent_address", "address", "socket_interface", "host", "gpus", "nvlinks", "hca_ports", "nvlink_domain", "nvlink_domain_gbytes_per_s", "source", "driver_version", "agent_version", "labels", "gpu_paths")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NODE_FIELD_NUMBER: _ClassVar[int]
    AGENT_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    SOCKET_INTERFACE_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    NVLINKS_FIELD_NUMBER: _ClassVar[int]
    HCA_PORTS_FIELD_NUMBER: _ClassVar[int]
    NVLINK_DOMAIN_FIELD_NUMBER: _ClassVar[int]
    NVLINK_DOMAIN_GBYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    DRIVER_VERSION_FIELD_NUMBER: _ClassVar[int]
    AGENT_VERSION_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    GPU_PATHS_FIELD_NUMBER: _ClassVar[int]
    node: str
    agent_address: str
    address: str
    socket_interface: str
    host: Host
    gpus: _containers.RepeatedCompositeFieldContainer[Gpu]
    nvlinks: _containers.RepeatedCompositeFieldContainer[NvLinkPair]
    hca_ports: _containers.RepeatedCompositeFieldContainer[HcaPort]
    nvlink_domain: str
    nvlink_domain_gbytes_per_s: float
    source: str
    driver_version: str
    agent_version: str
    labels: _containers.ScalarMap[str, str]
    gpu_paths: _containers.RepeatedCompositeFieldContainer[GpuPath]
    def __init__(self, node: _Optional[str] = ..., agent_address: _Optional[str] = ..., address: _Optional[str] = ..., socket_interface: _Optional[str] = ..., host: _Optional[_Union[Host, _Mapping]] = ..., gpus: _Optional[_Iterable[_Union[Gpu, _Mapping]]] = ..., nvlinks: _Optional[_Iterable[_Union[NvLinkPair, _Mapping]]] = ..., hca_ports: _Optional[_Iterable[_Union[HcaPort, _Mapping]]] = ..., nvlink_domain: _Optional[str] = ..., nvlink_domain_gbytes_per_s: _Optional[float] = ..., source: _Optional[str] = ..., driver_version: _Optional[str] = ..., agent_version: _Optional[str] = ..., labels: _Optional[_Mapping[str, str]] = ..., gpu_paths: _Optional[_Iterable[_Union[GpuPath, _Mapping]]] = ...) -> None: ...

class DeviceHealth(_message.Message):
    __slots__ = ("device", "state", "reason", "findings")
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    FINDINGS_FIELD_NUMBER: _ClassVar[int]
    device: str
    state: HealthState
    reason: str
    findings: _containers.RepeatedCompositeFieldContainer[Finding]
    def __init__(self, device: _Optional[str] = ..., state: _Optional[_Union[HealthState, str]] = ..., reason: _Optional[str] = ..., findings: _Optional[_Iterable[_Union[Finding, _Mapping]]] = ...) -> None: ...

class Finding(_message.Message):
    __slots__ = ("concern", "state", "reason", "evidence", "action")
    CONCERN_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    EVIDENCE_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    concern: str
    state: HealthState
    reason: str
    evidence: str
    action: str
    def __init__(self, concern: _Optional[str] = ..., state: _Optional[_Union[HealthState, str]] = ..., reason: _Optional[str] = ..., evidence: _Optional[str] = ..., action: _Optional[str] = ...) -> None: ...

class Health(_message.Message):
    __slots__ = ("node", "gpus", "hca_ports", "disks", "host")
    NODE_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    HCA_PORTS_FIELD_NUMBER: _ClassVar[int]
    DISKS_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    node: str
    gpus: _containers.RepeatedCompositeFieldContainer[DeviceHealth]
    hca_ports: _containers.RepeatedCompositeFieldContainer[DeviceHealth]
    disks: _containers.RepeatedCompositeFieldContainer[DeviceHealth]
    host: _containers.RepeatedCompositeFieldContainer[DeviceHealth]
    def __init__(self, node: _Optional[str] = ..., gpus: _Optional[_Iterable[_Union[DeviceHealth, _Mapping]]] = ..., hca_ports: _Optional[_Iterable[_Union[DeviceHealth, _Mapping]]] = ..., disks: _Optional[_Iterable[_Union[DeviceHealth, _Mapping]]] = ..., host: _Optional[_Iterable[_Union[DeviceHealth, _Mapping]]] = ...) -> None: ...

class Alive(_message.Message):
    __slots__ = ("node", "session", "beat", "period_s", "fence_s")
    NODE_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    BEAT_FIELD_NUMBER: _ClassVar[int]
    PERIOD_S_FIELD_NUMBER: _ClassVar[int]
    FENCE_S_FIELD_NUMBER: _ClassVar[int]
    node: str
    session: str
    beat: int
    period_s: float
    fence_s: float
    def __init__(self, node: _Optional[str] = ..., session: _Optional[str] = ..., beat: _Optional[int] = ..., period_s: _Optional[float] = ..., fence_s: _Optional[float] = ...) -> None: ...

class Switch(_message.Message):
    __slots__ = ("name", "level")
    NAME_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    name: str
    level: int
    def __init__(self, name: _Optional[str] = ..., level: _Optional[int] = ...) -> None: ...

class Link(_message.Message):
    __slots__ = ("a", "b", "gbps", "count", "down", "hca", "measured_gbps")
    A_FIELD_NUMBER: _ClassVar[int]
    B_FIELD_NUMBER: _ClassVar[int]
    GBPS_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    DOWN_FIELD_NUMBER: _ClassVar[int]
    HCA_FIELD_NUMBER: _ClassVar[int]
    MEASURED_GBPS_FIELD_NUMBER: _ClassVar[int]
    a: str
    b: str
    gbps: float
    count: int
    down: bool
    hca: str
    measured_gbps: float
    def __init__(self, a: _Optional[str] = ..., b: _Optional[str] = ..., gbps: _Optional[float] = ..., count: _Optional[int] = ..., down: bool = ..., hca: _Optional[str] = ..., measured_gbps: _Optional[float] = ...) -> None: ...

class Fabric(_message.Message):
    __slots__ = ("switches", "links", "source", "packed")
    SWITCHES_FIELD_NUMBER: _ClassVar[int]
    LINKS_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    PACKED_FIELD_NUMBER: _ClassVar[int]
    switches: _containers.RepeatedCompositeFieldContainer[Switch]
    links: _containers.RepeatedCompositeFieldContainer[Link]
    source: str
    packed: bytes
    def __init__(self, switches: _Optional[_Iterable[_Union[Switch, _Mapping]]] = ..., links: _Optional[_Iterable[_Union[Link, _Mapping]]] = ..., source: _Optional[str] = ..., packed: _Optional[bytes] = ...) -> None: ...

class NodeIntent(_message.Message):
    __slots__ = ("node", "drained", "reason", "by", "since_ms")
    NODE_FIELD_NUMBER: _ClassVar[int]
    DRAINED_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    SINCE_MS_FIELD_NUMBER: _ClassVar[int]
    node: str
    drained: bool
    reason: str
    by: str
    since_ms: int
    def __init__(self, node: _Optional[str] = ..., drained: bool = ..., reason: _Optional[str] = ..., by: _Optional[str] = ..., since_ms: _Optional[int] = ...) -> None: ...
