"""Made-up clusters as Cluster files: pods of leaf switches, a core above them, and a share of the GPUs busy with ragged jobs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from fmproto.described import API_VERSION, KIND
from fmproto.hostlist import fold
from fmproto.nodetypes import NodeType, builtin_types
from fmsched.topology.clusterfile import CABLES_MAX

PODS_MAX = LEAVES_MAX = NODES_PER_LEAF_MAX = 1000
NODES_MAX = 100_000
SPINES_MAX = 8  # of a pod; cables are added instead of more spines
TRAYS_PER_RACK = 18  # nodes of one multi-node NVLink domain (NVL72)

_WHOLE_NODES = (1, 1, 1, 2, 2, 4, 4, 8, 16, 32)
_PARTIAL_SHARE = 0.4  # of the jobs hold part of one node
_SHARED = 0.5  # of those, join a node that is partly held already


class Chance(Protocol):
    """Randomness is an argument: a seeded random.Random does."""

    def random(self) -> float: ...
    def randrange(self, stop: int, /) -> int: ...


@dataclass(frozen=True, slots=True)
class Plan:
    """What to make. Raises ValueError, with what is allowed, where a figure cannot be."""

    pods: int
    leaves: int  # of each pod
    nodes_per_leaf: int
    type: str  # a built-in node type
    busy: float = 0.0  # share of the GPUs that jobs hold

    def __post_init__(self) -> None:
        limits = {"pods": PODS_MAX, "leaves": LEAVES_MAX, "nodes_per_leaf": NODES_PER_LEAF_MAX}
        for name, high in limits.items():
            if not 1 <= getattr(self, name) <= high:
                raise ValueError(f"{name.replace('_', '-')}: found {getattr(self, name)}; allowed: from 1 to {high}")
        if self.nodes > NODES_MAX:
            raise ValueError(f"found {self.nodes} nodes in all; allowed: at most {NODES_MAX}")
        if not 0.0 <= self.busy <= 1.0:
            raise ValueError(f"busy: found {self.busy:g}; allowed: from 0 to 1")
        if self.type not in builtin_types():
            raise ValueError(f"type: found {self.type!r}; allowed: {', '.join(builtin_types())}")

    @property
    def nodes(self) -> int:
        return self.pods * self.leaves * self.nodes_per_leaf

    @property
    def kind(self) -> NodeType:
        return builtin_types()[self.type]


def generate(plan: Plan, chance: Chance) -> str:
    """The text of a Cluster file. The same plan and the same chance give the same text."""
    names = _numbered("n", plan.nodes)
    lines = [f"apiVersion: {API_VERSION}", f"kind: {KIND}", "nodes:", *_node_lines(plan, names), *_fabric_lines(plan)]
    jobs = _jobs(plan, chance)
    if jobs:
        lines.append("busy:")
        lines += [f'  {job}: "{_gpus_text(held, names, len(plan.kind.gpus))}"' for job, held in jobs.items()]
    return "\n".join(lines) + "\n"


def _numbered(prefix: str, count: int) -> list[str]:
    width = len(str(count))
    return [f"{prefix}{number:0{width}}" for number in range(1, count + 1)]


def _leaves(plan: Plan) -> list[str]:
    return [f"{pod}-{leaf}" for pod in _numbered("pod", plan.pods) for leaf in _numbered("leaf", plan.leaves)]


def _range(prefix: str, count: int) -> str:
    return fold(_numbered(prefix, count))


def _node_lines(plan: Plan, names: list[str]) -> Iterator[str]:
    if not plan.kind.domain_nvlink_gbytes_per_s:
        leaves = f"{_range('pod', plan.pods)}-{_range('leaf', plan.leaves)}"
        yield f'  - {{name: "{fold(names)}", type: {plan.type}, leaf: "{leaves}", nodesPerLeaf: {plan.nodes_per_leaf}}}'
        return
    rack = 0
    for number, leaf in enumerate(_leaves(plan)):
        under = names[number * plan.nodes_per_leaf : (number + 1) * plan.nodes_per_leaf]
        for start in range(0, len(under), TRAYS_PER_RACK):
            rack += 1
            trays = fold(under[start : start + TRAYS_PER_RACK])
            yield f'  - {{name: "{trays}", type: {plan.type}, leaf: {leaf}, nvlinkDomain: rack{rack}}}'


def _fabric_lines(plan: Plan) -> Iterator[str]:
    """Two levels, or three where there are several pods; as many cables up as down, while CABLES_MAX allows."""
    ports, rate = len(plan.kind.hcas), max(hca.rate_gbps for hca in plan.kind.hcas)
    spines = min(SPINES_MAX, ports * plan.nodes_per_leaf)
    up = min(CABLES_MAX, math.ceil(ports * plan.nodes_per_leaf / spines))
    pods, leaves, spine = _range("pod", plan.pods), _range("leaf", plan.leaves), _range("spine", spines)
    yield "fabric:"
    yield "  switches:"
    yield f'    "{pods}-{leaves}": 0'
    yield f'    "{pods}-{spine}": 1'
    if plan.pods > 1:
        yield f'    "{_range("core", spines)}": 2'
    yield "  links:"
    for pod in _numbered("pod", plan.pods):
        yield f'    - {{between: ["{pod}-{leaves}", "{pod}-{spine}"], gbps: {rate:g}, count: {up}}}'
    if plan.pods > 1:
        over = min(CABLES_MAX, math.ceil(plan.leaves * up / spines))
        yield f'    - {{between: ["{pods}-{spine}", "{_range("core", spines)}"], gbps: {rate:g}, count: {over}}}'


def _jobs(plan: Plan, chance: Chance) -> dict[str, dict[int, range]]:
    """Job → node number → the GPUs it holds there; in all, the busy share rounded to a GPU."""
    size = len(plan.kind.gpus)
    left = round(plan.busy * plan.nodes * size)
    free = _Free(plan.nodes)
    partial: dict[int, int] = {}  # node → GPUs held, always its first ones
    jobs: dict[str, dict[int, range]] = {}
    while left > 0:  # ends: each round holds at least one GPU more
        job = f"busy-{len(jobs) + 1}"
        if free.count == 0 or left < size or chance.random() < _PARTIAL_SHARE:
            jobs[job] = _partial_job(size, left, free, partial, chance)
        else:
            nodes = min(_WHOLE_NODES[chance.randrange(len(_WHOLE_NODES))], left // size, free.count)
            start = chance.randrange(plan.nodes)
            jobs[job] = {node: range(size) for node in (free.take(start) for _ in range(nodes))}
        left -= sum(len(gpus) for gpus in jobs[job].values())
    return jobs


def _partial_job(size: int, left: int, free: _Free, partial: dict[int, int], chance: Chance) -> dict[int, range]:
    if partial and (free.count == 0 or chance.random() < _SHARED):
        node = list(partial)[chance.randrange(len(partial))]
    else:
        node = free.take(chance.randrange(free.nodes))
    first = partial.pop(node, 0)
    count = min(size - first, left, 1 << chance.randrange(max(1, size.bit_length() - 1)))
    if first + count < size:
        partial[node] = first + count
    return {node: range(first, first + count)}


class _Free:
    """Nodes that nobody holds. take() gives the next one at or after a start, counted round."""

    def __init__(self, nodes: int) -> None:
        self.nodes = nodes
        self.count = nodes
        self._next = list(range(nodes + 1))  # a path to the next free node; `nodes` stands for the end

    def _find(self, node: int) -> int:
        root = node
        while self._next[root] != root:  # ends: the path only rises
            root = self._next[root]
        while self._next[node] != root:  # shorten it for the next search
            self._next[node], node = root, self._next[node]
        return root

    def take(self, start: int) -> int:
        assert self.count > 0
        node = self._find(start)
        if node == self.nodes:
            node = self._find(0)
        self._next[node] = node + 1
        self.count -= 1
        return node


def _gpus_text(held: Mapping[int, range], names: list[str], size: int) -> str:
    whole = [names[node] for node, gpus in held.items() if len(gpus) == size]
    parts = [fold(whole)] if whole else []
    parts += [f"{names[node]}/{fold(f'gpu{i}' for i in gpus)}" for node, gpus in held.items() if len(gpus) < size]
    return ",".join(parts)
