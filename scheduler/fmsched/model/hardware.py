"""What nodes are made of. Equal nodes share one NodeShape, so that 12,500 nodes are a handful of shapes and as many names."""

from __future__ import annotations

from dataclasses import dataclass

NodeName = str
JobId = str


@dataclass(frozen=True, slots=True, order=True)
class GpuId:
    """A GPU by its place: node, and index in the node's shape."""

    node: NodeName
    index: int

    def __str__(self) -> str:
        return f"{self.node}/gpu{self.index}"


@dataclass(frozen=True, slots=True)
class GpuSpec:
    """One GPU slot of a shape. `memory_gb` is nominal and decimal: an "80 GB" card is 80."""

    model: str  # catalogue key ("H100-SXM5-80GB"), or the name that NVML prints where the catalogue has none
    family: str  # "h100": what acceleratorType and tolerations match, lower case
    memory_gb: float


@dataclass(frozen=True, slots=True)
class HcaSpec:
    """One adapter port. `near` lists the GPU indices that share its PCIe switch or NUMA node."""

    name: str  # "mlx5_0"
    port: int
    rate_gbps: float
    near: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeShape:
    """What a class of equal nodes is.

    nvlink[i][j] is the bandwidth between GPUs i and j in GB/s, both directions together (A100 600, H100 900); 0 is none.
    `domain_nvlink_gbytes_per_s` is the same between GPUs of two nodes of one multi-node NVLink domain.
    """

    name: str
    gpus: tuple[GpuSpec, ...]
    nvlink: tuple[tuple[float, ...], ...]
    hcas: tuple[HcaSpec, ...] = ()
    cpus: int = 0
    memory_gb: float = 0.0
    domain_nvlink_gbytes_per_s: float = 0.0

    @property
    def link_gbps(self) -> float:
        """The rate of the node's best port, Gb/s; 0 without a fabric port."""
        return max((hca.rate_gbps for hca in self.hcas), default=0.0)


@dataclass(frozen=True, slots=True)
class Node:
    name: NodeName
    shape: NodeShape
    uuids: tuple[str, ...]  # by GPU index
    nvlink_domain: str = ""  # multi-node NVLink clique; empty: the node alone
    address: str = ""  # what ranks elsewhere reach it by
    socket_interface: str = ""
