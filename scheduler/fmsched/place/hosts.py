"""Nodes by what is free on them, in bins of equal ones: what the model counts instead of naming nodes.

Two nodes share a bin when nothing that a request can ask tells them apart: same leaf group, same shape, same free GPUs (their
number alone where all GPUs of the shape are alike and linked alike, else the very set), and, where an instance may span a
multi-node NVLink domain, the same domain. A node whose links are too slow for some group can hold only all of that group or
none of it, and stands in a bin of its own. Nodes on different power feeds that may bind are told apart too.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations

import numpy as np
import numpy.typing as npt

from fmsched.model.fabric import Topology
from fmsched.model.hardware import GpuId, NodeShape
from fmsched.model.snapshot import Snapshot
from fmsched.place.nodes import ANY_NUMBER
from fmsched.place.objective import TOPOLOGIES_KEPT, pair_gbytes_per_s


@dataclass(frozen=True, slots=True)
class Bin:
    """Equal nodes. `free` is one node's free GPUs; in a uniform shape it only stands for their number."""

    leaf: int
    shape: NodeShape
    uniform: bool
    free: tuple[int, ...]
    nvlink_domain: str  # empty where it plays no part
    alone: bool  # apart from its equals, because of its slow links
    nodes: tuple[int, ...]
    most: int  # GPUs that one node can give: all free ones, or as many as its CPUs and memory can feed

    @property
    def count(self) -> int:
        return len(self.nodes)


@dataclass(frozen=True, slots=True)
class Static:
    """What never changes while a topology lives, by node."""

    shapes: tuple[NodeShape, ...]
    shape_of: tuple[int, ...]  # index into shapes
    uniform: tuple[bool, ...]  # by shape
    leaf_of: tuple[int, ...]
    full: tuple[int, ...]  # mask of all GPUs, by node
    uniform_of: npt.NDArray[np.bool_]
    place: npt.NDArray[np.int64]  # equal for nodes of one leaf group and shape
    place_in_domain: npt.NDArray[np.int64]  # equal for those of one multi-node NVLink domain as well
    narrow: bool  # whether masks fit into 63 bits


@lru_cache(maxsize=TOPOLOGIES_KEPT)
def static_of(topology: Topology) -> Static:
    """Computed once per topology."""
    by_identity: dict[int, int] = {}
    by_value: dict[NodeShape, int] = {}
    shape_of = []
    for node in topology.nodes:
        number = by_identity.get(id(node.shape))
        if number is None:
            number = by_value.setdefault(node.shape, len(by_value))
            by_identity[id(node.shape)] = number
        shape_of.append(number)
    shapes = tuple(by_value)
    full = tuple((1 << len(shape.gpus)) - 1 for shape in shapes)
    uniform = tuple(is_uniform(shape) for shape in shapes)
    leaf_of = tuple(int(leaf) for leaf in topology.leaf_of)
    places = list(zip(leaf_of, shape_of, strict=True))
    in_domains = [(place, node.nvlink_domain) for place, node in zip(places, topology.nodes, strict=True)]
    return Static(
        shapes,
        tuple(shape_of),
        uniform,
        leaf_of,
        tuple(full[number] for number in shape_of),
        np.array([uniform[number] for number in shape_of], dtype=np.bool_),
        _numbered(places),
        _numbered(in_domains),
        all(len(shape.gpus) < 63 for shape in shapes),
    )


def _numbered(labels: Sequence[Hashable]) -> npt.NDArray[np.int64]:
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(label, len(numbers)) for label in labels], dtype=np.int64)


def is_uniform(shape: NodeShape) -> bool:
    """Whether all GPUs of the shape are alike and linked alike, so that their number says all."""
    links = {pair_gbytes_per_s(shape, i, j) for i, j in combinations(range(len(shape.gpus)), 2)}
    exact = {shape.nvlink[i][j] for i in range(len(shape.gpus)) for j in range(len(shape.gpus)) if i != j}
    return len(set(shape.gpus)) <= 1 and len(links) <= 1 and len(exact) <= 1


Taken = set[GpuId]


@lru_cache(maxsize=TOPOLOGIES_KEPT)
def _last_of(topology: Topology) -> list[tuple[Taken, list[int]]]:
    """One entry, replaced whole: what was taken when masks were last asked for, and the masks that it made, nobody closed."""
    return [(set(), list(static_of(topology).full))]


def free_masks(snapshot: Snapshot) -> list[int]:
    """By node, the GPUs that may be given out, as a bit mask. Only what differs from the last snapshot of the topology is looked at."""
    topology = snapshot.topology
    static, last = static_of(topology), _last_of(topology)
    taken: Taken = set(snapshot.held)
    taken.update(snapshot.unfit)
    known, before = last[0]
    changed = taken ^ known
    afresh = len(taken) <= len(changed)
    masks = list(static.full if afresh else before)
    index = topology.index
    for gpu in taken if afresh else changed:
        node = index.get(gpu.node)
        if node is not None:
            bit = 1 << gpu.index
            masks[node] = masks[node] & ~bit if gpu in taken else masks[node] | bit & static.full[node]
    if changed and (len(taken) > len(known) // 2 or not known):  # a question about an empty cluster is no new state of it
        last[0] = taken, list(masks)
    for name in snapshot.closed:
        node = index.get(name)
        if node is not None:
            masks[node] = 0
    return masks


def leaf_free_of(topology: Topology, masks: Sequence[int]) -> tuple[int, ...]:
    """Free GPUs by leaf group."""
    gpus = np.fromiter(map(int.bit_count, masks), dtype=np.int64, count=len(masks))
    found = np.zeros(len(topology.leaves), dtype=np.int64)
    np.add.at(found, topology.leaf_of, gpus)
    return tuple(found.tolist())


@lru_cache(maxsize=1 << 16)
def mask_indices(mask: int) -> tuple[int, ...]:
    """The positions of the bits that are set."""
    return tuple(i for i in range(mask.bit_length()) if mask >> i & 1)


def bins_of(
    topology: Topology,
    masks: Sequence[int],
    avoid: frozenset[str],
    by_domain: bool,
    rate_asked: float,
    labels: Mapping[int, tuple[int, ...]],
    caps: Mapping[int, int],
) -> tuple[Bin, ...]:
    """The bins of all nodes with something free.

    by_domain     keep multi-node NVLink domains apart
    rate_asked    Gb/s: nodes with slower links stand alone
    labels        by position of a node: what else tells it from others; none for most
    caps          by position: GPUs that it can give at most, where fewer than all
    """
    asked = list(masks), avoid, by_domain, rate_asked, dict(labels), dict(caps)
    last = _last_bins_of(topology)
    known, bins = last[0]
    if known != asked:  # the same question comes several times for one snapshot
        bins = _bins(topology, masks, avoid, by_domain, rate_asked, labels, caps)
        last[0] = asked, bins
    return bins


@lru_cache(maxsize=TOPOLOGIES_KEPT)
def _last_bins_of(topology: Topology) -> list[tuple[object, tuple[Bin, ...]]]:
    """One entry, replaced whole: what was asked of bins_of last, and the answer."""
    return [(None, ())]


def _bins(
    topology: Topology,
    masks: Sequence[int],
    avoid: frozenset[str],
    by_domain: bool,
    rate_asked: float,
    labels: Mapping[int, tuple[int, ...]],
    caps: Mapping[int, int],
) -> tuple[Bin, ...]:
    static = static_of(topology)
    avoided = {topology.index[name] for name in avoid if name in topology.index}
    slow = tuple(shape.link_gbps < rate_asked for shape in static.shapes)
    if labels or caps or any(slow) or not static.narrow:
        alike = _alike_one_by_one(topology, masks, avoided, by_domain, slow, labels, caps)
    else:
        alike = _alike(static, masks, avoided, by_domain)
    found = []
    for nodes in alike:
        first = nodes[0]
        shape = static.shape_of[first]
        domain = topology.nodes[first].nvlink_domain if by_domain else ""
        indices = mask_indices(masks[first])
        found.append(
            Bin(
                static.leaf_of[first],
                static.shapes[shape],
                static.uniform[shape],
                indices,
                domain,
                slow[shape],
                nodes,
                min(len(indices), caps.get(first, ANY_NUMBER)),
            )
        )
    return tuple(found)


def _alike_one_by_one(
    topology: Topology,
    masks: Sequence[int],
    avoided: Collection[int],
    by_domain: bool,
    slow: Sequence[bool],
    labels: Mapping[int, tuple[int, ...]],
    caps: Mapping[int, int],
) -> list[tuple[int, ...]]:
    """Nodes with something free, in bins, in the order of each bin's first node."""
    static = static_of(topology)
    found: dict[tuple[int, int, int, str, int, tuple[int, ...], int], list[int]] = {}
    for node, mask in enumerate(masks):
        most = min(mask.bit_count(), caps.get(node, ANY_NUMBER))
        if most == 0 or node in avoided:
            continue
        shape = static.shape_of[node]
        state = mask.bit_count() if static.uniform[shape] else mask
        domain = topology.nodes[node].nvlink_domain if by_domain else ""
        key = (static.leaf_of[node], shape, state, domain, node if slow[shape] else -1, labels.get(node, ()), most)
        found.setdefault(key, []).append(node)
    return [tuple(nodes) for nodes in found.values()]


def _alike(static: Static, masks: Sequence[int], avoided: Collection[int], by_domain: bool) -> list[tuple[int, ...]]:
    """The same where no node is slow or labelled: by sorting."""
    free = np.array(masks, dtype=np.int64)
    free[list(avoided)] = 0
    nodes = np.flatnonzero(free)
    if not len(nodes):
        return []
    state = np.where(static.uniform_of[nodes], np.bitwise_count(free[nodes]), free[nodes])
    place = static.place_in_domain if by_domain else static.place
    order = np.lexsort((state, place[nodes]))  # stable: nodes of one bin keep their order
    nodes, state, where = nodes[order], state[order], place[nodes][order]
    starts = np.flatnonzero(np.concatenate(([True], (state[1:] != state[:-1]) | (where[1:] != where[:-1]))))
    ends = [*starts[1:].tolist(), len(nodes)]
    numbers = nodes.tolist()
    found = [tuple(numbers[start:end]) for start, end in zip(starts.tolist(), ends, strict=True)]
    return sorted(found)
