"""The node part of a Cluster file: node types and nodes, and one node of it as an agent would read it from the hardware.

The notation is in docs/cluster-file.md. What joins the nodes (fabric) and what runs on them (busy) is read by
fmsched.topology.clusterfile; this part stands here because agents run described nodes too (`fm-agent --hardware FILE`).
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from fmproto import gpus
from fmproto.fields import Faults, Fields, TooManyFaultsError, name_hint
from fmproto.hostlist import expand
from fmproto.nodetypes import ACTIVE, TYPE_NAME, HcaType, NodeType, builtin_types, read_node_type
from fmproto.v1 import hardware_pb2
from fmproto.yamltext import Fault, Limits, Table, Tree, join, load, shown

API_VERSION = "fmsched/v1"
KIND = "Cluster"
READ_ELSEWHERE = ("fabric", "busy", "closed", "problems")
# A hand-written or generated file of 100,000 nodes stays far below these.
LIMITS = Limits(bytes_max=64 << 20, depth_max=16, values_max=2_000_000)

# What an agent says of such a GPU.
MIG_REASON = "MIG mode is on; only whole GPUs are granted"
NODE_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")
UUID_MAX = 80
_UUIDS = uuid.UUID("6f1d3c5e-8a52-5b0e-9d57-0a4c1f6b2e90")  # the namespace of described GPUs
_GPU = re.compile(r"gpu([0-9]{1,3})")
# A reason that is what the port itself says: "Down/Polling", "Initializing/LinkUp".
_PORT_STATE = re.compile(r"(Down|Initializing|Initialized|Armed|Init|Disabled)(?:/([A-Za-z][A-Za-z0-9_]{0,30}))?")
GPU_UUID = re.compile(rf"GPU-[A-Za-z0-9-]{{1,{UUID_MAX}}}")


@dataclass(frozen=True, slots=True)
class NodeEntry:
    """One row of `nodes`, as written: one node or many alike."""

    names: str  # a range: fmproto.hostlist
    type: str
    leaf: tuple[str, ...] = ()  # switches, ranges allowed: see docs/cluster-file.md
    nodes_per_leaf: int = 0  # fill the leaf switches one after another; 0: every node is on all of them
    nvlink_domain: str = ""
    address: str = ""
    socket_interface: str = ""
    uuids: tuple[str, ...] = ()
    labels: tuple[tuple[str, str], ...] = ()
    faults: tuple[tuple[str, str], ...] = ()  # ("gpu3" or "n0003/gpu3" or "mlx5_0", reason)


@dataclass(frozen=True, slots=True)
class DeviceFault:
    """A sick device of one node; `gpu` is -1 where it is an adapter port."""

    gpu: int
    hca: str
    port: int
    reason: str


class DescriptionError(ValueError):
    """A Cluster file that cannot be used; `faults` has every reason."""

    def __init__(self, faults: tuple[Fault, ...]) -> None:
        super().__init__("; ".join(str(fault) for fault in faults))
        self.faults = faults


@dataclass(frozen=True, slots=True)
class Described:
    """The nodes of a Cluster file. Mappings are by name; entries keep the order of the file."""

    own_types: tuple[NodeType, ...]
    types: Mapping[str, NodeType]  # own and built in
    entries: tuple[NodeEntry, ...]
    entry_of: Mapping[str, NodeEntry]


def read_described(top: Fields) -> Described:
    """Reads nodeTypes and nodes; what is wrong goes to top.faults."""
    own = _read_types(top)
    types = {**builtin_types(), **{one.name: one for one in own}}
    entries: list[NodeEntry] = []
    entry_of: dict[str, NodeEntry] = {}
    for path, tree in top.items("nodes", "a list of {name, type, ...}", required=True):
        entry = _read_entry(Fields(tree, path, top.faults), types, entry_of)
        if entry is not None:
            entries.append(entry)
    return Described(own, types, tuple(entries), entry_of)


def read_header(top: Fields) -> str:
    """apiVersion, kind and metadata.name; returns the name, empty where none is given."""
    top.choice("apiVersion", (API_VERSION,), required=True)
    top.choice("kind", (KIND,), required=True)
    metadata = top.table("metadata")
    if metadata is None:
        return ""
    name = metadata.name("name")
    metadata.finish()
    return name


def _read_types(top: Fields) -> tuple[NodeType, ...]:
    table = top.raw("nodeTypes")
    if table is None:
        return ()
    if not isinstance(table, Table):
        top.wrong(table, top.at("nodeTypes"), "a mapping of type names to node types")
        return ()
    types: dict[str, NodeType] = {}
    for name, (line, tree) in table.fields.items():
        path = join(top.at("nodeTypes"), name)
        if not TYPE_NAME.fullmatch(name):
            top.faults.add(
                line, path, f"found the name {shown(name)}; allowed: letters, digits, '.', '_' and '-', at most 63"
            )
            continue
        types[name] = read_node_type(name, tree, path, top.faults, {**builtin_types(), **types})
    return tuple(types.values())


def _read_entry(fields: Fields, types: Mapping[str, NodeType], entry_of: dict[str, NodeEntry]) -> NodeEntry | None:
    names = fields.text("name", "a node name or a range such as n[0001-1250]", required=True)
    kind = fields.text("type", "the name of a node type", required=True)
    entry = NodeEntry(
        names=names,
        type=kind,
        leaf=fields.strings("leaf", "a leaf switch, a range of them, or a list", single=True),
        nodes_per_leaf=fields.whole("nodesPerLeaf", 1, 100_000),
        nvlink_domain=fields.text("nvlinkDomain", "the name of a multi-node NVLink domain"),
        address=fields.text("address", "a host name or address"),
        socket_interface=fields.text("socketInterface", "the name of a network interface"),
        uuids=fields.strings("uuids", "a list of GPU UUIDs"),
        labels=fields.texts_by_name("labels", "a mapping of names to strings"),
        faults=fields.texts_by_name("faults", 'a mapping of devices to reasons, such as gpu3: "Xid 79"'),
    )
    fields.finish()
    if kind and kind not in types:
        fields.faults.add(fields.line_of("type"), fields.at("type"), f"found {shown(kind)}; {name_hint(kind, list(types))}")
        return None
    members = _members(fields, names, entry_of)
    if not members or not kind:
        return None
    _check_uuids(fields, entry, types[kind], len(members))
    known = set(members)
    for key, _ in entry.faults:
        if isinstance(problem := _device(key, known, types[kind]), str):
            fields.faults.add(fields.line_of("faults"), join(fields.at("faults"), key), problem)
    entry_of.update(dict.fromkeys(members, entry))
    return entry


def _members(fields: Fields, names: str, taken: Mapping[str, NodeEntry]) -> tuple[str, ...]:
    if not names:
        return ()
    line, path = fields.line_of("name"), fields.at("name")
    try:
        members = expand(names)
    except ValueError as error:
        fields.faults.add(line, path, f"{error}")
        return ()
    if odd := next((name for name in members if not NODE_NAME.fullmatch(name)), None):
        fields.faults.add(line, path, f"found the node name {shown(odd)}; allowed: letters, digits, '.', '_' and '-'")
        return ()
    if len(set(members)) != len(members):
        fields.faults.add(line, path, f"{shown(names)} names a node twice; allowed: once")
        return ()
    if twice := next((name for name in members if name in taken), None):
        fields.faults.add(line, path, f"node {twice} is named by an earlier entry too; allowed: once")
        return ()
    return members


def _check_uuids(fields: Fields, entry: NodeEntry, kind: NodeType, count: int) -> None:
    if not entry.uuids:
        return
    line, path = fields.line_of("uuids"), fields.at("uuids")
    if count > 1:
        fields.faults.add(line, path, f"found UUIDs for {count} nodes; allowed: in an entry of one node")
    elif len(entry.uuids) != len(kind.gpus):
        fields.faults.add(line, path, f"found {len(entry.uuids)} UUIDs; allowed: {len(kind.gpus)}, one for each GPU")
    elif odd := next((one for one in entry.uuids if not GPU_UUID.fullmatch(one)), None):
        fields.faults.add(line, path, f"found {shown(odd)}; allowed: GPU-… as nvidia-smi -L prints it")
    elif len(set(entry.uuids)) != len(entry.uuids):
        fields.faults.add(line, path, "found the same UUID twice; allowed: once")


def _device(key: str, members: set[str], kind: NodeType) -> tuple[str, int, str, int] | str:
    """(node or empty for all, GPU index or -1, adapter, port) of a key of `faults`; a message where it names nothing."""
    node, slash, device = key.partition("/")
    if not slash or node not in members:
        node, device = "", key
    if match := _GPU.fullmatch(device):
        index = int(match[1])
        if index < len(kind.gpus):
            return node, index, "", 0
        allowed = f"gpu0 to gpu{len(kind.gpus) - 1}" if kind.gpus else "none"
        return f"found GPU {index}; allowed: {allowed} of type {kind.name}"
    name, _, port = device.partition("/")
    for hca in kind.hcas:
        if hca.name == name and port in ("", str(hca.port)):
            return node, -1, hca.name, hca.port
    devices = [f"gpu{i}" for i in range(len(kind.gpus))] + [hca.name for hca in kind.hcas]
    return (
        f"found {shown(key)}; allowed: a GPU or adapter of type {kind.name}, or NODE/DEVICE; {name_hint(device, devices)}"
    )


def device_faults(described: Described, entry: NodeEntry) -> Mapping[str, tuple[DeviceFault, ...]]:
    """The devices that `faults` names, for each node of an entry that has some, in the order of the file."""
    if not entry.faults:
        return {}
    members = expand(entry.names)
    known = set(members)
    found: dict[str, tuple[DeviceFault, ...]] = {}
    for key, reason in entry.faults:
        device = _device(key, known, described.types[entry.type])
        assert not isinstance(device, str), f"{entry.names}: {device}"  # checked when it was read
        where, gpu, hca, port = device
        for node in (where,) if where else members:
            found[node] = (*found.get(node, ()), DeviceFault(gpu, hca, port, reason))
    return found


def type_faults(kind: NodeType) -> tuple[DeviceFault, ...]:
    """What cannot be used in any node of a type: GPUs in MIG mode, ports that are not Active."""
    gpus = [DeviceFault(index, "", 0, MIG_REASON) for index, gpu in enumerate(kind.gpus) if gpu.mig is not None]
    ports = [DeviceFault(-1, hca.name, hca.port, hca.state) for hca in kind.hcas if hca.state != ACTIVE]
    return (*gpus, *ports)


def gpu_uuids(entry: NodeEntry, node: str, count: int) -> tuple[str, ...]:
    """Those of the file, else made from node and index: the same in every process that reads the file."""
    return entry.uuids or tuple(made_uuid(node, i) for i in range(count))


def made_uuid(node: str, index: int) -> str:
    return f"GPU-{uuid.uuid5(_UUIDS, f'{node}/gpu{index}')}"


def load_cluster(source: str | bytes) -> Tree | tuple[Fault, ...]:
    """The tree of a Cluster file, or its faults."""
    return load(source, LIMITS)


def describe_node(source: str | bytes | Path, node: str) -> tuple[hardware_pb2.Inventory, hardware_pb2.Health]:
    """What an agent on `node` would find: the inventory, and the health of every GPU and adapter port.

    `source` is the text of a Cluster file, or the path of one. Addresses of the agent are not in it: the agent knows its own.
    Raises DescriptionError for a bad file or an unknown node, OSError where the file cannot be read.
    """
    described = _described(source.read_bytes() if isinstance(source, Path) else source)
    if node not in described.entry_of:
        hint = name_hint(node, list(described.entry_of))
        raise DescriptionError((Fault(0, "nodes", f"found no node {shown(node)}; {hint}"),))
    entry = described.entry_of[node]
    return node_messages(described, node, device_faults(described, entry).get(node, ()))


def node_messages(
    described: Described, node: str, named: tuple[DeviceFault, ...]
) -> tuple[hardware_pb2.Inventory, hardware_pb2.Health]:
    """Inventory and health of a node of the file; `named` are its device_faults."""
    entry = described.entry_of[node]
    kind = described.types[entry.type]
    sick = (*type_faults(kind), *named)
    uuids = gpu_uuids(entry, node, len(kind.gpus))
    return _inventory(entry, node, kind, uuids, sick), _health(node, kind, uuids, sick)


# A process that runs many described nodes reads one file.
@lru_cache(maxsize=2)
def _described(source: str | bytes) -> Described:
    tree = load_cluster(source)
    if isinstance(tree, tuple):
        raise DescriptionError(tree)
    faults = Faults()
    try:
        top = Fields(tree, "", faults)
        read_header(top)
        described = read_described(top)
        for name in READ_ELSEWHERE:
            top.raw(name)
        top.finish()
    except TooManyFaultsError:
        raise DescriptionError(faults.sorted()) from None
    if faults:
        raise DescriptionError(faults.sorted())
    return described


def _inventory(
    entry: NodeEntry, node: str, kind: NodeType, uuids: tuple[str, ...], sick: tuple[DeviceFault, ...]
) -> hardware_pb2.Inventory:
    down = {(fault.hca, fault.port): fault.reason for fault in sick if fault.gpu < 0}
    return hardware_pb2.Inventory(
        node=node,
        address=entry.address,
        socket_interface=entry.socket_interface,
        host=hardware_pb2.Host(
            hostname=node, cpu_model="described", cpus=kind.cpus, memory_bytes=round(kind.memory_gb * 1e9), numa_nodes=1
        ),
        gpus=[_gpu(kind, index, uuid_) for index, uuid_ in enumerate(uuids)],
        nvlinks=[
            hardware_pb2.NvLinkPair(gpu_a=a, gpu_b=b, gbytes_per_s=kind.nvlink[a][b])
            for a in range(len(kind.gpus))
            for b in range(a + 1, len(kind.gpus))
            if kind.nvlink[a][b] > 0
        ],
        hca_ports=[_port(hca, down.get((hca.name, hca.port))) for hca in kind.hcas],
        nvlink_domain=entry.nvlink_domain,
        nvlink_domain_gbytes_per_s=kind.domain_nvlink_gbytes_per_s if entry.nvlink_domain else 0.0,
        source="described",
        labels=dict(entry.labels),
    )


def _port(hca: HcaType, reason: str | None) -> hardware_pb2.HcaPort:
    """`reason`: why it cannot be used; where it is a state ("Down/Disabled"), the port says that, else it is Down, Polling."""
    state, physical = ACTIVE, "LinkUp"
    if reason is not None:
        match = _PORT_STATE.fullmatch(reason)
        state, physical = (match[1], match[2] or "") if match else ("Down", "Polling")
    return hardware_pb2.HcaPort(
        hca=hca.name,
        port=hca.port,
        state=state,
        physical_state=physical,
        rate_gbps=hca.rate_gbps,
        link_layer=hca.link_layer,
        numa_node=-1,
        near_gpus=hca.near,
        roce_gid_index=-1,
    )


def _gpu(kind: NodeType, index: int, uuid_: str) -> hardware_pb2.Gpu:
    gpu = kind.gpus[index]
    facts = gpus.lookup(gpu.name, gpu.memory_gb * 1024)
    return hardware_pb2.Gpu(
        index=index,
        uuid=uuid_,
        name=gpu.name,
        model=gpu.model,
        memory_bytes=round(
            gpu.memory_gb * (1 << 30)
        ),  # nominal sizes are binary: an "80 GB" card reports just under 80 GiB
        sm_count=gpu.multiprocessors,
        compute_capability=gpu.compute_capability,
        minor=index,
        numa_node=-1,
        memory_gb=gpu.memory_gb,
        family=gpu.family,
        vendor=(facts.vendor if facts else "") or "nvidia",
        mig_enabled=gpu.mig is not None,
        mig_instances=[hardware_pb2.MigInstance(profile=profile) for profile in gpu.mig or ()],
    )


def _health(node: str, kind: NodeType, uuids: tuple[str, ...], sick: tuple[DeviceFault, ...]) -> hardware_pb2.Health:
    gpus = {fault.gpu: fault.reason for fault in sick if fault.gpu >= 0}
    ports = {(fault.hca, fault.port): fault.reason for fault in sick if fault.gpu < 0}
    return hardware_pb2.Health(
        node=node,
        gpus=[_device_health(uuid_, gpus.get(index)) for index, uuid_ in enumerate(uuids)],
        hca_ports=[_device_health(f"{hca.name}/{hca.port}", ports.get((hca.name, hca.port))) for hca in kind.hcas],
    )


def _device_health(device: str, reason: str | None) -> hardware_pb2.DeviceHealth:
    if reason is None:
        return hardware_pb2.DeviceHealth(device=device, state=hardware_pb2.HEALTH_STATE_OK)
    return hardware_pb2.DeviceHealth(device=device, state=hardware_pb2.HEALTH_STATE_FAILED, reason=reason)
