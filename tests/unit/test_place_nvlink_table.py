"""The best GPUs of one node for 1 to all of them, against enumeration: cube mesh, bridges, NVSwitch, a dead link, a degraded tray."""

from __future__ import annotations

from itertools import combinations

import pytest

from fmproto.nodetypes import builtin_types
from fmsched.model.fabric import Fabric
from fmsched.model.hardware import GpuSpec, Node, NodeShape
from fmsched.model.job import GroupKind, Request, ResourceGroup
from fmsched.model.placement import Budget, Placement, Unplaceable
from fmsched.model.snapshot import Snapshot
from fmsched.place.solve import solve
from fmsched.topology.clusterfile import shape_of
from fmsched.topology.graph import build_topology

Pairs = dict[tuple[int, int], float]


def shape(name: str, count: int, pairs: Pairs) -> NodeShape:
    links = [[0.0] * count for _ in range(count)]
    for (a, b), value in pairs.items():
        links[a][b] = links[b][a] = value
    return NodeShape(name, (GpuSpec("H100-NVL-94GB", "h100", 94.0),) * count, tuple(map(tuple, links)))


def changed(kind: str, pairs: Pairs, **more: float) -> NodeShape:
    """A built-in type with some pairs changed."""
    base = shape_of(builtin_types()[kind])
    links = [list(row) for row in base.nvlink]
    for (a, b), value in pairs.items():
        links[a][b] = links[b][a] = value
    return NodeShape(f"{kind} changed", base.gpus, tuple(map(tuple, links)), **more)


SHAPES = {
    "DGX-1V": shape_of(builtin_types()["dgx-1v"]),
    "two bridges": shape("two bridges", 4, {(0, 3): 600.0, (1, 2): 600.0}),
    "four bridges": shape("four bridges", 8, {(0, 5): 600.0, (1, 4): 600.0, (2, 7): 600.0, (3, 6): 600.0}),
    "DGX A100": shape_of(builtin_types()["dgx-a100"]),
    "cube mesh with a dead link": changed("dgx-1v", {(0, 7): 50.0, (1, 2): 0.0}),
    "NVL72 tray, one GPU with half of its links": changed(
        "gb200-nvl72-tray", {(0, 2): 900.0, (1, 2): 900.0, (2, 3): 900.0}
    ),
}
CASES = [(name, count) for name, each in SHAPES.items() for count in range(1, len(each.gpus) + 1)]


def linked(node: NodeShape, gpus: tuple[int, ...], everywhere: tuple[int, ...]) -> bool:
    """Whether all lie in one NVLink domain, over whatever GPUs of the node."""
    found, frontier = {gpus[0]}, [gpus[0]]
    while frontier:
        here = frontier.pop()
        near = {there for there in everywhere if node.nvlink[here][there] > 0} - found
        found |= near
        frontier += near
    return set(gpus) <= found


def worth(node: NodeShape, gpus: tuple[int, ...]) -> tuple[float, float]:
    """(GB/s short of the best pair inside the set, GB/s taken from what stays free), lower is better."""
    every = range(len(node.gpus))
    best = max(max(row) for row in node.nvlink)
    missing = sum(best - node.nvlink[a][b] for a, b in combinations(gpus, 2))
    rest = [i for i in every if i not in gpus]
    total = sum(node.nvlink[a][b] for a, b in combinations(every, 2))
    return missing, total - sum(node.nvlink[a][b] for a, b in combinations(rest, 2))


@pytest.mark.parametrize(("name", "count"), CASES)
def test_the_set_is_the_best_of_all_sets(name: str, count: int) -> None:
    node = SHAPES[name]
    every = tuple(range(len(node.gpus)))
    topology = build_topology([Node("n", node, tuple(f"GPU-{i}" for i in every))], Fabric())
    request = Request("job", (ResourceGroup("cell", GroupKind.TENSOR_PARALLEL, count),), 1)
    verdict = solve(Snapshot(0, topology), request, Budget())
    allowed = [gpus for gpus in combinations(every, count) if linked(node, gpus, every)]
    if not allowed:
        assert isinstance(verdict, Unplaceable)
        assert verdict.never
        return
    assert isinstance(verdict, Placement)
    assert verdict.objective.optimal
    chosen = tuple(sorted(rank.gpu for rank in verdict.ranks))
    assert chosen in allowed
    assert worth(node, chosen) == min(worth(node, gpus) for gpus in allowed)


@pytest.mark.parametrize("name", SHAPES)
def test_two_linked_ones_where_half_of_the_node_is_taken(name: str) -> None:
    """Slurm's picker of linked GPUs takes an unlinked pair here: four GPUs in two bridged pairs, two wanted."""
    from fmsched.model.hardware import GpuId

    node = SHAPES[name]
    every = tuple(range(len(node.gpus)))
    topology = build_topology([Node("n", node, tuple(f"GPU-{i}" for i in every))], Fabric())
    for taken in combinations(every, len(every) // 2):
        free = tuple(i for i in every if i not in taken)
        pairs = [pair for pair in combinations(free, 2) if linked(node, pair, every)]
        request = Request("job", (ResourceGroup("cell", GroupKind.TENSOR_PARALLEL, 2),), 1)
        snapshot = Snapshot(0, topology, held={GpuId("n", i): "other" for i in taken})
        verdict = solve(snapshot, request, Budget(explain_solves_max=0))
        assert isinstance(verdict, Placement) == bool(pairs)
        if isinstance(verdict, Placement):
            best = max(node.nvlink[a][b] for a, b in pairs)
            first, second = sorted(rank.gpu for rank in verdict.ranks)
            assert node.nvlink[first][second] == best
