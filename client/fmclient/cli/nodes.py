"""What is shown of nodes and GPUs: states, rows and columns. Pure, from messages."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from fmclient.cli.output import Column
from fmproto.v1 import hardware_pb2
from fmproto.v1.hardware_pb2 import DeviceHealth, Gpu
from fmproto.v1.scheduler_pb2 import Node

NODE_COLUMNS = (
    Column("NAME"),
    Column("STATE"),
    Column("GPUS", right=True),
    Column("FREE", right=True),
    Column("TYPE"),
    Column("LEAF"),
    Column("ADDRESS", wide=True),
    Column("CPUS", wide=True, right=True),
    Column("MEMORY", wide=True, right=True),
    Column("PORTS", wide=True, right=True),
    Column("DRIVER", wide=True),
    Column("AGENT", wide=True),
    Column("REASON"),
)
GPU_COLUMNS = (
    Column("NODE"),
    Column("GPU", right=True),
    Column("TYPE"),
    Column("MEMORY", right=True),
    Column("STATE"),
    Column("JOB"),
    Column("UUID", wide=True),
    Column("PCI", wide=True),
    Column("NUMA", wide=True, right=True),
    Column("REASON"),
)
READY = "ready"
FREE, IN_USE, FAILED, CLOSED, DEGRADED = "free", "in use", "failed", "closed", "degraded"
_UNFIT = {
    hardware_pb2.HEALTH_STATE_FAILED: FAILED,
    hardware_pb2.HEALTH_STATE_DRAINING: "draining",
    hardware_pb2.HEALTH_STATE_DEGRADED: DEGRADED,
}


@dataclass(frozen=True, slots=True)
class GpuView:
    """`state`: free, in use, failed, draining, degraded, or closed where the node takes no jobs. `job`: its holder, or empty."""

    gpu: Gpu
    state: str
    job: str
    reason: str


def gpu_views(node: Node) -> tuple[GpuView, ...]:
    """A node's GPUs by index. A failed GPU that a job still holds is shown as failed, with its job."""
    faults = {each.device: each for each in node.health.gpus if each.state in _UNFIT}
    views = []
    for gpu in sorted(node.inventory.gpus, key=lambda each: each.index):
        holder = node.holders.get(gpu.index, "")
        fault = faults.get(gpu.uuid)
        if fault is not None:
            views.append(GpuView(gpu, _UNFIT[fault.state], holder, fault.reason))
        elif holder:
            views.append(GpuView(gpu, IN_USE, holder, ""))
        elif node.state != READY:
            reason = reason_of(node)
            views.append(GpuView(gpu, CLOSED, "", f"node is {node.state}" + (f": {reason}" if reason else "")))
        else:
            views.append(GpuView(gpu, FREE, "", ""))
    return tuple(views)


def is_free(node: Node, view: GpuView) -> bool:
    """Whether a job may be placed on it: a degraded GPU still works."""
    return view.state == FREE or (view.state == DEGRADED and not view.job and node.state == READY)


def reason_of(node: Node) -> str:
    """The node's reason; empty where it only names the state again."""
    return "" if node.reason == f"{node.name} is {node.state}" else node.reason


def trouble(node: Node) -> str:
    """Its reason and what is wrong with its devices, as one line; empty where all is well."""
    reason = reason_of(node)
    return "; ".join(([reason] if reason else []) + list(faults(node)))


def gpu_type(gpu: Gpu) -> str:
    return gpu.model or gpu.name or "unknown"


def types(node: Node) -> str:
    """ "8× H100-SXM5-80GB", the commonest first."""
    counts = Counter(gpu_type(gpu) for gpu in node.inventory.gpus)
    return ", ".join(f"{number}× {name}" for name, number in counts.most_common()) or "no GPU"


def faults(node: Node) -> tuple[str, ...]:
    """What is wrong with a node's devices, a sentence each."""
    index = {gpu.uuid: f"GPU {gpu.index}" for gpu in node.inventory.gpus}
    return tuple(
        f"{index.get(each.device, each.device)} {_UNFIT[each.state]}" + (f": {each.reason}" if each.reason else "")
        for each in _devices(node)
        if each.state in _UNFIT
    )


def _devices(node: Node) -> list[DeviceHealth]:
    health = node.health
    return [*health.host, *health.gpus, *health.hca_ports, *health.disks]


def fault_lines(node: Node) -> list[str]:
    """As `faults`, with all that was found of each device, the worst first: why, by which readings, and what to do."""
    index = {gpu.uuid: f"GPU {gpu.index}" for gpu in node.inventory.gpus}
    lines = []
    for device in _devices(node):
        if device.state not in _UNFIT:
            continue
        name, state = index.get(device.device, device.device), _UNFIT[device.state]
        if not device.findings:
            lines.append(f"{name} {state}" + (f": {device.reason}" if device.reason else ""))
        for finding in device.findings:
            lines.append(f"{name} {_UNFIT.get(finding.state, state)}: {finding.reason} ({finding.concern})")
            lines += [f"  evidence: {finding.evidence}"] if finding.evidence else []
            lines += [f"  action: {finding.action}"] if finding.action else []
    return lines


def node_row(node: Node) -> tuple[str, ...]:
    views, host = gpu_views(node), node.inventory.host
    up = sum(port.state == "Active" for port in node.inventory.hca_ports)
    return (
        node.name,
        node.state,
        str(len(views)),
        str(sum(is_free(node, view) for view in views)),
        types(node),
        node.leaf or "-",
        node.inventory.address or "-",
        str(host.cpus) if host.cpus else "-",
        f"{host.memory_bytes / 1e9:.0f} GB" if host.memory_bytes else "-",
        f"{up}/{len(node.inventory.hca_ports)}",
        node.inventory.driver_version or "-",
        node.inventory.agent_version or "-",
        trouble(node) or "-",
    )


def gpu_row(node: Node, view: GpuView) -> tuple[str, ...]:
    gpu = view.gpu
    return (
        node.name,
        str(gpu.index),
        gpu_type(gpu),
        f"{gpu.memory_gb:g} GB" if gpu.memory_gb else "-",
        view.state,
        view.job or "-",
        gpu.uuid,
        gpu.pci_address or "-",
        str(gpu.numa_node) if gpu.numa_node >= 0 else "-",
        view.reason or "-",
    )
