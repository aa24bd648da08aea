"""The weakest link of a group of GPUs, and the α and β of its collectives.

An island is what NVLink or PCIe joins: the group's GPUs of one node, or of one multi-node NVLink domain. Between islands each GPU
has its share of the node's adapters. Every figure is per GPU and one direction.

α: NCCL's own model, src/graph/tuning.cc, Simple protocol: 3.4 µs over NVLink, 5.7 over PCIe, 9.6 over the network; more
switches add their own latency. β: what the topology says, times the share of it that NCCL reaches on large messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fmproto.gpus import lookup
from fmsched.model.fabric import UNREACHABLE_HOPS, Topology
from fmsched.model.hardware import NodeShape
from fmsched.model.placement import RankPlacement
from fmsched.predict.collectives import Span

NVLINK_ALPHA_S = 3.4e-6
PCIE_ALPHA_S = 5.7e-6
LEAF_ALPHA_S = 9.6e-6
SWITCH_ALPHA_S = 0.3e-6  # each switch beyond the first, with its cable
NVLINK_SHARE = 0.78  # bus bandwidth of large all-reduces: NCCL counts at most 235 GB/s of an A100's 300 (tuning.cc)
NETWORK_SHARE = 0.92  # of the line rate: NCCL's figure for its LL128 protocol, 120 of 128 bytes (tuning.cc)
PCIE_SHARE = 0.80  # of x16, headers and read requests taken off
# One direction of x16, GB/s: generation 3, 4, 5 and 6.
PCIE_GBYTES_PER_S = {
    "Pascal": 16.0, "Volta": 16.0, "Turing": 16.0, "Hopper": 64.0, "Blackwell": 64.0, "Blackwell Ultra": 128.0,
    "CDNA3": 64.0, "CDNA4": 64.0,
}  # fmt: skip
PCIE_DEFAULT_GBYTES_PER_S = 32.0

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Weakest:
    """The link that limits a group.

    kind       "NVLink", "PCIe" or "network": what joins the group's islands, where it touches several, never has more
    a, b       two nodes that it lies between; the same node inside one
    hops       switches crossed, the most between any two nodes of the group; 0 inside an island
    gbps       what one GPU has of it, one direction, Gb/s: before the share of it that software reaches
    link_gbps  the link itself, one direction: the weakest port or bundle of cables; inside an island as gbps. NVLink of
               900 GB/s, both directions together as datasheets count it, is 3,600 Gb/s
    """

    kind: str
    a: str
    b: str
    hops: int
    gbps: float
    link_gbps: float


@dataclass(frozen=True, slots=True)
class NoPathError(Exception):
    """Two nodes of a group are joined by nothing that is known. Becomes Unpredicted in step.predict()."""

    a: str
    b: str

    def __str__(self) -> str:
        return f"{self.a} and {self.b} are joined by no link that is known"


@dataclass(frozen=True, slots=True)
class _Inside:
    """How one island is joined inside: per GPU and direction, as the topology has it and as software reaches it."""

    kind: str
    alpha_s: float
    bytes_per_s: float
    gbytes_per_s: float
    node: str
    other: str


class Links:
    """Spans of groups of one placement."""

    def __init__(self, topology: Topology, ranks: Sequence[RankPlacement]) -> None:
        self._topology = topology
        self._node: Ints = np.array([topology.index[rank.node] for rank in ranks], dtype=np.int64)
        self._gpu: Ints = np.array([rank.gpu for rank in ranks], dtype=np.int64)
        domains: dict[str, int] = {}
        island = []
        for i in self._node.tolist():
            node = topology.nodes[i]
            joined = node.nvlink_domain and node.shape.domain_nvlink_gbytes_per_s > 0
            island.append(-1 - domains.setdefault(node.nvlink_domain, len(domains)) if joined else i)
        self._island: Ints = np.array(island, dtype=np.int64)
        shapes: dict[int, int] = {}
        for i in np.unique(self._node).tolist():
            shapes.setdefault(id(topology.nodes[i].shape), len(shapes))
        # By identity: a shape is shared by its nodes, and its hash is dear.
        self._shape: Ints = np.array([shapes[id(topology.nodes[i].shape)] for i in self._node.tolist()], dtype=np.int64)
        rates = {number: _pcie(topology.nodes[int(self._node[at])].shape) for number, at in self._one_of_each_shape()}
        self._pcie = {int(i): rates[int(number)] for i, number in zip(self._node, self._shape, strict=True)}
        self._rates: dict[tuple[int, tuple[int, ...]], float] = {}
        self._paths: dict[bytes, tuple[float, int, int, int]] = {}

    def _one_of_each_shape(self) -> list[tuple[int, int]]:
        """(number of the shape, position of a rank on it)."""
        numbers, first = np.unique(self._shape, return_index=True)
        return list(zip(numbers.tolist(), first.tolist(), strict=True))

    def spans(self, groups: Ints) -> dict[Span, Weakest]:
        """Every way in which the groups lie (a row of rank positions each, two or more), with the weakest of its links.

        Raises NoPathError. Groups that lie alike are looked at once: alone on equal nodes of the same leaf groups, or on the same
        GPUs of equal nodes.
        """
        found: dict[Span, Weakest] = {}
        for row in groups[self._first_of_each(groups)]:
            span, weakest = self.span(row)
            if span not in found or (weakest.gbps, -weakest.hops) < (found[span].gbps, -found[span].hops):
                found[span] = weakest
        return found

    def _first_of_each(self, groups: Ints) -> Ints:
        """Row numbers, one for each kind of row."""
        if not len(groups):
            return np.empty(0, dtype=np.int64)
        nodes, islands, gpus = self._node[groups], np.sort(self._island[groups], axis=1), self._gpu[groups]
        alone = (np.diff(islands, axis=1) != 0).all(axis=1, keepdims=True)
        inside = (nodes == nodes[:, :1]).all(axis=1, keepdims=True)
        shape, leaf = self._shape[groups], self._topology.leaf_of[nodes].astype(np.int64)
        wide = int(gpus.max()) + 1
        shapes, node_count = int(self._shape.max()) + 1, len(self._topology.nodes)
        code = np.where(inside, shape * wide + gpus, (node_count + nodes) * wide * shapes + gpus)
        code = np.where(alone, -1 - (leaf * shapes + shape), code)
        return np.unique(code, axis=0, return_index=True)[1]

    def span(self, members: Ints) -> tuple[Span, Weakest]:
        """Of the ranks at these positions; at least two. Raises NoPathError."""
        islands, sizes = np.unique(self._island[members], return_counts=True)
        insides = [self._inside(members[self._island[members] == island]) for island in islands[sizes > 1]]
        inner = min(insides, key=lambda inside: inside.bytes_per_s) if insides else None
        inner_alpha_s = max((inside.alpha_s for inside in insides), default=NVLINK_ALPHA_S)
        if len(islands) == 1:
            assert inner is not None
            span = Span(len(members), 1, len(members), inner_alpha_s, inner.bytes_per_s, inner_alpha_s, inner.bytes_per_s)
            return span, _within(inner)
        weakest = self._outside(np.unique(self._node[members]))
        outer = weakest.gbps / 8 * 1e9 * NETWORK_SHARE
        span = Span(
            ranks=len(members),
            islands=len(islands),
            fewest=int(sizes.min()),
            inner_alpha_s=inner_alpha_s,
            inner_bytes_per_s=inner.bytes_per_s if inner is not None else outer,
            outer_alpha_s=LEAF_ALPHA_S + SWITCH_ALPHA_S * (weakest.hops - 1),
            outer_bytes_per_s=outer,
        )
        return span, weakest

    def _inside(self, members: Ints) -> _Inside:
        """How the GPUs of an island reach one another."""
        nodes = np.unique(self._node[members])
        owners = [self._topology.nodes[int(i)] for i in nodes]
        pcie = min(self._pcie[int(i)] for i in nodes)
        rates = []
        for i, owner in zip(nodes, owners, strict=True):
            gpus = tuple(sorted(self._gpu[members[self._node[members] == i]].tolist()))
            if len(gpus) > 1:
                rates.append((self._rate(owner.shape, gpus), owner, owner))
        if len(owners) > 1:
            rates.append((min(owner.shape.domain_nvlink_gbytes_per_s for owner in owners), owners[0], owners[1]))
        both_ways, a, b = min(rates, key=lambda rate: rate[0])
        rate = both_ways / 2
        if rate * NVLINK_SHARE >= pcie * PCIE_SHARE:
            return _Inside("NVLink", NVLINK_ALPHA_S, rate * NVLINK_SHARE * 1e9, rate, a.name, b.name)
        return _Inside("PCIe", PCIE_ALPHA_S, pcie * PCIE_SHARE * 1e9, pcie, a.name, b.name)

    def _rate(self, shape: NodeShape, gpus: tuple[int, ...]) -> float:
        key = id(shape), gpus
        found = self._rates.get(key)
        if found is None:
            found = self._rates[key] = nvlink_rate(shape, gpus)
        return found

    def _outside(self, nodes: Ints) -> Weakest:
        """The weakest link between nodes, several: port, cable or adapters per GPU."""
        leaves = self._topology.leaf_of[nodes]
        path_gbps, hops, at, to = self._path(np.unique(leaves).astype(np.int64))
        owners = [self._topology.nodes[int(i)] for i in nodes]
        a = owners[int(np.flatnonzero(leaves == at)[0])]
        b = next(owner for owner, leaf in zip(owners, leaves, strict=True) if leaf == to and owner is not a)
        if hops >= UNREACHABLE_HOPS:
            raise NoPathError(a.name, b.name)
        slow = min(owners, key=lambda owner: owner.shape.link_gbps)
        if slow.shape.link_gbps <= path_gbps and slow not in (a, b):
            a, b = slow, a
        link_gbps = min(slow.shape.link_gbps, path_gbps)
        if link_gbps <= 0:
            raise NoPathError(a.name, b.name)
        share = min(_adapters_per_gpu(owner.shape) for owner in owners)
        cap = min(self._pcie[int(i)] for i in nodes) * PCIE_SHARE / NETWORK_SHARE * 8
        return Weakest("network", a.name, b.name, hops, min(link_gbps * share, cap), link_gbps)

    def _path(self, leaves: Ints) -> tuple[float, int, int, int]:
        """(Gb/s, hops, leaf group, leaf group) of the worst path among leaf groups: the least Gb/s; hops: the most of any."""
        key = leaves.tobytes()
        found = self._paths.get(key)
        if found is None:
            if len(leaves) == 1:
                found = (float("inf"), 1, int(leaves[0]), int(leaves[0]))
            else:
                hops = self._topology.hops[np.ix_(leaves, leaves)]
                gbps = np.where(hops >= UNREACHABLE_HOPS, 0.0, self._topology.path_gbps[np.ix_(leaves, leaves)])
                np.fill_diagonal(gbps, np.inf)
                worst = np.flatnonzero(gbps == gbps.min())
                i, j = divmod(int(worst[np.argmax(hops.ravel()[worst])]), len(leaves))
                found = (float(gbps[i, j]), int(hops.max()), int(leaves[i]), int(leaves[j]))
            self._paths[key] = found
        return found


@dataclass(frozen=True, slots=True)
class Best:
    """What the GPUs of one node of a shape can have at best, one GPU and one direction.

    outside_gbps                  Gb/s towards other nodes: adapters per GPU, and no more than its slot
    adapters_per_gpu              of the node's best rate
    inside_alpha_s                the least start of a message inside the node
    inside_bytes_per_s[k]         of any group of two to k GPUs of the node; by k, 0 for fewer than two
    """

    outside_gbps: float
    adapters_per_gpu: float
    inside_alpha_s: float
    inside_bytes_per_s: tuple[float, ...]


def best_of(shape: NodeShape) -> Best:
    """No group of GPUs on such a node does better."""
    pcie, share, count = _pcie(shape), _adapters_per_gpu(shape), len(shape.gpus)
    cap = pcie * PCIE_SHARE / NETWORK_SHARE * 8
    links = {shape.nvlink[i][j] for i in range(count) for j in range(count) if i != j}
    alike = len(links) == 1 and len({spec.model for spec in shape.gpus}) == 1
    # Links that are not alike: no cut and no pair has more than all links of the best joined GPU together.
    most = max((sum(row) for row in shape.nvlink), default=0.0)
    alpha_s, rates = PCIE_ALPHA_S, [0.0, 0.0]
    for size in range(2, count + 1):
        rate = (nvlink_rate(shape, range(size)) if alike else most) / 2
        if rate * NVLINK_SHARE >= pcie * PCIE_SHARE:
            alpha_s = NVLINK_ALPHA_S
            rates.append(max(rates[-1], rate * NVLINK_SHARE * 1e9))
        else:
            rates.append(max(rates[-1], pcie * PCIE_SHARE * 1e9))
    return Best(min(shape.link_gbps * share, cap), share, alpha_s, tuple(rates))


def _within(inside: _Inside) -> Weakest:
    return Weakest(inside.kind, inside.node, inside.other, 0, inside.gbytes_per_s * 8, inside.gbytes_per_s * 8)


def _adapters_per_gpu(shape: NodeShape) -> float:
    """Adapters of the node's best rate over its GPUs: slower ones carry storage or management."""
    best = shape.link_gbps
    return sum(1 for hca in shape.hcas if hca.rate_gbps == best) / max(1, len(shape.gpus)) if best > 0 else 0.0


def _pcie(shape: NodeShape) -> float:
    """GB/s of a GPU's x16 slot, one direction, by its architecture; the slowest of the node."""
    facts = [lookup(spec.model) for spec in dict.fromkeys(shape.gpus)]
    return min(PCIE_GBYTES_PER_S.get(fact.architecture if fact else "", PCIE_DEFAULT_GBYTES_PER_S) for fact in facts)


def nvlink_rate(shape: NodeShape, gpus: Sequence[int]) -> float:
    """GB/s, both directions together, that each of these GPUs of one node can exchange with the others; 0 without NVLink.

    Through NVSwitch (a pair has more than half of what the GPU has in all) it is the weakest pair. Over direct links a GPU uses
    all of its links to the group at once, over several rings; then no cut of the group has less than the rings need: it is
    the least cut, and at most what the GPU has in all.
    """
    pairs = np.array(shape.nvlink, dtype=np.float64)[np.ix_(list(gpus), list(gpus))]
    np.fill_diagonal(pairs, 0.0)
    apart = pairs[~np.eye(len(gpus), dtype=bool)]
    facts = [lookup(shape.gpus[gpu].model) for gpu in gpus]
    known = [fact.nvlink_gbytes_per_s for fact in facts if fact is not None and fact.nvlink_gbytes_per_s > 0]
    total = min(known) if known else float(apart.max())
    if apart.min() > total / 2:
        return float(apart.min())
    return min(total, _least_cut(pairs))


def _least_cut(weights: npt.NDArray[np.float64]) -> float:
    """The least sum of weights between two parts of an undirected graph: Stoer and Wagner, J. ACM 44(4), 1997."""
    left = weights.copy()
    best = float("inf")
    while len(left) > 1:  # ends: each round merges two vertices
        joined = left[0].copy()
        seen = np.zeros(len(left), dtype=bool)
        seen[0] = True
        before = last = 0
        for _ in range(len(left) - 1):
            before, last = last, int(np.argmax(np.where(seen, -1.0, joined)))
            seen[last] = True
            cut = float(joined[last])
            joined = joined + left[last]
        best = min(best, cut)
        left[before] += left[last]
        left[:, before] += left[:, last]
        left[before, before] = 0.0
        left = np.delete(np.delete(left, last, axis=0), last, axis=1)
    return best
