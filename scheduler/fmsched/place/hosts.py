"""Nodes by what is free on them, in bins of equal ones: what the model counts instead of naming nodes.

Two nodes share a bin when nothing that a request can ask tells them apart: same leaf group, same shape, same free GPUs (their
number alone where all GPUs of the shape are alike and linked alike, else the very set), and, where an instance may span a
multi-node NVLink domain, the same domain. A node whose links are too slow for some group can hold only all of that group or
none of it, and stands in a bin of its own. Nodes on different power feeds that may bind are told apart too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations

from fmsched.model.fabric import Topology
from fmsched.model.hardware import NodeShape
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
    return Static(
        shapes,
        tuple(shape_of),
        tuple(is_uniform(shape) for shape in shapes),
        tuple(int(leaf) for leaf in topology.leaf_of),
        tuple(full[number] for number in shape_of),
    )


def is_uniform(shape: NodeShape) -> bool:
    """Whether all GPUs of the shape are alike and linked alike, so that their number says all."""
    links = {pair_gbytes_per_s(shape, i, j) for i, j in combinations(range(len(shape.gpus)), 2)}
    exact = {shape.nvlink[i][j] for i in range(len(shape.gpus)) for j in range(len(shape.gpus)) if i != j}
    return len(set(shape.gpus)) <= 1 and len(links) <= 1 and len(exact) <= 1


def free_masks(snapshot: Snapshot) -> list[int]:
    """By node, the GPUs that may be given out, as a bit mask. One pass over what is taken, not over all GPUs."""
    topology = snapshot.topology
    masks = list(static_of(topology).full)
    index = topology.index
    for taken in (snapshot.held, snapshot.unfit):
        for gpu in taken:
            node = index.get(gpu.node)
            if node is not None:
                masks[node] &= ~(1 << gpu.index)
    for name in snapshot.closed:
        node = index.get(name)
        if node is not None:
            masks[node] = 0
    return masks


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
    static = static_of(topology)
    avoided = {topology.index[name] for name in avoid if name in topology.index}
    slow = tuple(shape.link_gbps < rate_asked for shape in static.shapes)
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
    return tuple(
        Bin(
            leaf,
            static.shapes[shape],
            static.uniform[shape],
            mask_indices(masks[nodes[0]]),
            domain,
            apart >= 0,
            tuple(nodes),
            most,
        )
        for (leaf, shape, _, domain, apart, _, most), nodes in found.items()
    )
