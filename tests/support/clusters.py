"""Small clusters for tests: node shapes of known machines, trees of switches, snapshots with things held, sick and closed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from fmsched.model.fabric import Fabric, Link, Switch, Topology
from fmsched.model.hardware import GpuId, GpuSpec, HcaSpec, Node, NodeShape
from fmsched.model.job import GroupKind, Reach, Request, ResourceGroup
from fmsched.model.snapshot import Snapshot
from fmsched.topology.graph import build_topology

H100 = GpuSpec("H100-SXM5-80GB", "h100", 80)
A100 = GpuSpec("A100-SXM4-80GB", "a100", 80)
A100_40 = GpuSpec("A100-SXM4-40GB", "a100", 40)
V100 = GpuSpec("V100-SXM2-32GB", "v100", 32)
L40S = GpuSpec("L40S", "l40s", 48)
GB200 = GpuSpec("GB200-186GB", "gb200", 186)

# DGX-1V: how many NVLink 2 bricks (50 GB/s both ways) join each pair of its eight GPUs.
CUBE_MESH = {
    (0, 1): 1, (0, 2): 1, (0, 3): 2, (0, 4): 2, (1, 2): 2, (1, 3): 1, (1, 5): 2, (2, 3): 2,
    (2, 6): 1, (3, 7): 1, (4, 5): 1, (4, 6): 1, (4, 7): 2, (5, 6): 2, (5, 7): 1, (6, 7): 2,
}  # fmt: skip


def all_to_all(count: int, gbytes_per_s: float) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(0.0 if i == j else gbytes_per_s for j in range(count)) for i in range(count))


def linked(count: int, pairs: Mapping[tuple[int, int], float]) -> tuple[tuple[float, ...], ...]:
    return tuple(
        tuple(pairs.get((min(i, j), max(i, j)), 0.0) if i != j else 0.0 for j in range(count)) for i in range(count)
    )


def rail_hcas(count: int, gbps: float) -> tuple[HcaSpec, ...]:
    """One adapter near each GPU."""
    return tuple(HcaSpec(f"mlx5_{i}", 1, gbps, (i,)) for i in range(count))


def shape(
    name: str,
    gpus: Sequence[GpuSpec],
    nvlink: tuple[tuple[float, ...], ...] | float = 0.0,
    gbps: float = 400,
    domain_gbytes_per_s: float = 0.0,
) -> NodeShape:
    matrix = all_to_all(len(gpus), nvlink) if isinstance(nvlink, int | float) else nvlink
    return NodeShape(name, tuple(gpus), matrix, rail_hcas(len(gpus), gbps), domain_nvlink_gbytes_per_s=domain_gbytes_per_s)


HGX_H100 = shape("hgx-h100", [H100] * 8, 900)
HGX_A100 = shape("hgx-a100", [A100] * 8, 600, gbps=200)
DGX_1V = shape("dgx-1v", [V100] * 8, linked(8, {pair: 50.0 * n for pair, n in CUBE_MESH.items()}), gbps=100)
L40S_BOX = shape("l40s", [L40S] * 4, 0, gbps=200)
BRIDGED = shape("a100-bridges", [A100] * 4, linked(4, {(0, 1): 600, (2, 3): 600}), gbps=200)
NVL72_TRAY = shape("nvl72-tray", [GB200] * 4, 1800, domain_gbytes_per_s=1800)

SHAPES = {
    "hgx-h100": HGX_H100,
    "hgx-a100": HGX_A100,
    "dgx-1v": DGX_1V,
    "l40s": L40S_BOX,
    "a100-bridges": BRIDGED,
    "nvl72-tray": NVL72_TRAY,
    "h100-x4": shape("h100-x4", [H100] * 4, 900),
    "h100-x2": shape("h100-x2", [H100] * 2, 900),
    "a100-x4": shape("a100-x4", [A100] * 4, 600, gbps=200),
    "a100-x3": shape("a100-x3", [A100] * 3, 600, gbps=200),
    "a100-x4-16-cpus": replace(shape("a100-x4-16-cpus", [A100] * 4, 600, gbps=200), cpus=16, memory_gb=256),
    "l40s-x2": shape("l40s-x2", [L40S] * 2, 0, gbps=200),
}


def node(name: str, of: NodeShape, domain: str = "") -> Node:
    return Node(name, of, tuple(f"GPU-{name}-{i}" for i in range(len(of.gpus))), domain, f"10.0.0.{name}")


def tree(
    leaves: Mapping[str, Sequence[Node]], pods: Mapping[str, Sequence[str]] | None = None, uplink_gbps: float = 400
) -> Topology:
    """Leaf switches with their nodes; `pods` maps spines to leaf switches (default: one spine over all). One core joins spines."""
    pods = {"spine0": list(leaves)} if pods is None else pods
    switches = [Switch(leaf) for leaf in leaves] + [Switch(spine, 1) for spine in pods]
    links = [Link(each.name, leaf, each.shape.link_gbps) for leaf, nodes in leaves.items() for each in nodes]
    links += [Link(leaf, spine, uplink_gbps) for spine, below in pods.items() for leaf in below]
    if len(pods) > 1:
        switches.append(Switch("core0", 2))
        links += [Link(spine, "core0", uplink_gbps) for spine in pods]
    return build_topology([each for nodes in leaves.values() for each in nodes], Fabric(tuple(switches), tuple(links)))


def boxes(of: NodeShape, count: int, prefix: str = "n") -> list[Node]:
    return [node(f"{prefix}{i}", of) for i in range(count)]


def gpu_ids(names: Iterable[str]) -> list[GpuId]:
    """ "n1g2" → GPU 2 of n1; "n1" followed by nothing is not allowed."""
    found = []
    for name in names:
        owner, _, index = name.rpartition("g")
        found.append(GpuId(owner, int(index)))
    return found


def snapshot(
    topology: Topology,
    held: Mapping[str, Sequence[str]] | None = None,
    unfit: Mapping[str, str] | None = None,
    closed: Mapping[str, str] | None = None,
) -> Snapshot:
    """held: job → GPU names ("n1g2")."""
    return Snapshot(
        1,
        topology,
        {gpu: job for job, names in (held or {}).items() for gpu in gpu_ids(names)},
        {gpu_ids([name])[0]: reason for name, reason in (unfit or {}).items()},
        dict(closed or {}),
    )


def group(
    name: str,
    kind: str,
    gpus: int,
    *,
    preferred: Sequence[str] = (),
    tolerated: Sequence[str] = (),
    memory: float = 0,
    nvlink: float = 0,
    hops: int | None = None,
    rate: float = 0,
    reserve: float = 0,
    reach: bool | None = None,
    links: int = 0,
    aggregate: float = 0,
    apart: str = "",
) -> ResourceGroup:
    """`reach` defaults to whether hops, rate or reserve are given."""
    given = hops is not None or rate > 0 or reserve > 0 if reach is None else reach
    kinds = {
        "TP": "TensorParallel",
        "DP": "DataParallel",
        "PP": "PipelineParallel",
        "EP": "ExpertParallel",
        "AUX": "Auxiliary",
    }
    return ResourceGroup(
        name,
        GroupKind(kinds.get(kind, kind)),
        gpus,
        tuple(preferred),
        tuple(tolerated),
        memory,
        nvlink,
        Reach(hops, rate, reserve) if given else None,
        links,
        aggregate,
        apart=apart,
    )


def request(*groups: ResourceGroup, replicas: int = 1, job: str = "job", avoid: Iterable[str] = ()) -> Request:
    return Request(job, groups, replicas, frozenset(avoid))


def seed_request(replicas: int = 20) -> Request:
    """The seed manifest: a TP group of 8 H100 and a DP group of one H100 or A100 for each replica."""
    tp = group(
        "tensor-parallel-group-1", "TP", 8, preferred=["h100"], tolerated=["a100"], memory=80, nvlink=900, hops=1, rate=400
    )
    dp = group("data-parallel-replica-resources", "DP", 1, tolerated=["h100", "a100"], memory=80, nvlink=600, rate=200)
    return request(tp, dp, replicas=replicas, job="llama-3-120b-finetune")
