"""From instances to ranks: order of replicas, order of ranks, and the adapters near each GPU.

Ranks go by group, then replica, then GPU of the cell. Cells of a group are numbered as the fabric lies: widest domain first, then
leaf group, node, GPU, so that neighbouring replicas are neighbours: data-parallel rings leave each domain once. Where stages are alike,
gridmap.py says which cell is which; else neighbouring stages that must be near each other are matched, in the order of the first.

This is the default order of Megatron-LM, tp-cp-ep-dp-pp with tensor fastest and pipeline slowest, for groups that are stages: ranks of a
cell are adjacent and in the order of their GPUs, so that rank i of every cell of whole nodes stands on GPU i, and on rail i where
fabrics have rails; experts and context divide a cell. predict/groups.py reads the ranks in the same order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from fmsched.model.fabric import Topology
from fmsched.model.hardware import NodeShape
from fmsched.model.job import Reach
from fmsched.model.placement import RankPlacement
from fmsched.place import relations
from fmsched.place.cpsat import Counts
from fmsched.place.gridmap import arranged
from fmsched.place.identities import seated
from fmsched.place.links import reserve_of, room_ok
from fmsched.place.problem import Problem
from fmsched.place.realise import Cells, Gpu


def rank_placements(problem: Problem, cells: Cells, counts: Counts) -> tuple[RankPlacement, ...]:
    """The ranks of all cells, in rank order."""
    topology = problem.snapshot.topology
    ordered = _ordered(problem, cells, counts)
    on_node: Counter[int] = Counter()
    ranks: list[RankPlacement] = []
    # By identity: a shape is shared by its nodes, and its hash is dear.
    known: dict[tuple[int, int], tuple[str, ...]] = {}
    for g, group in enumerate(problem.asked.groups):
        for replica, cell in enumerate(ordered[g]):
            for node, gpu in cell:
                owner = topology.nodes[node]
                near = known.get((id(owner.shape), gpu))
                if near is None:
                    near = known[id(owner.shape), gpu] = adapters(owner.shape, gpu)
                ranks.append(
                    RankPlacement(
                        rank=len(ranks),
                        group=group.name,
                        replica=replica,
                        cell=g * problem.asked.replicas + replica,
                        local_rank=on_node[node],
                        node=owner.name,
                        gpu=gpu,
                        uuid=owner.uuids[gpu],
                        hcas=near,
                    )
                )
                on_node[node] += 1
    return tuple(ranks)


def _ordered(problem: Problem, cells: Cells, counts: Counts) -> list[list[list[Gpu]]]:
    """By group as it was asked for, the cells in order of replicas."""
    topology = problem.snapshot.topology
    placed = [sorted((sorted(cell) for cell in group), key=lambda cell: _place(topology, cell)) for group in cells]
    if counts.chosen is not None and (matched := counts.chosen.groups):
        # These cells stand beside one another by replica already (together.py).
        first = [sorted(cell) for cell in cells[min(matched)]]
        order = sorted(range(len(first)), key=lambda at: _place(topology, first[at]))
        for g in matched:
            placed[g] = [sorted(cells[g][at]) for at in order]
        return placed
    if problem.chains is None:
        return placed
    if counts.seats:
        return seated(problem, counts.seats, placed)
    if problem.chains.folded:
        return arranged(problem, placed[0])
    _match_stages(problem, placed)
    return placed


def _place(topology: Topology, cell: Sequence[Gpu]) -> tuple[int, ...]:
    node, gpu = cell[0]
    leaf = int(topology.leaf_of[node])
    return (*(int(level[leaf]) for level in reversed(topology.domains)), node, gpu)


def _match_stages(problem: Problem, ordered: list[list[list[Gpu]]]) -> None:
    """Reorders the cells of each later stage so that every replica's neighbouring stages are near enough."""
    topology = problem.snapshot.topology
    for first, second, reaches in relations.stage_pairs(problem.request):

        def near(ours: Sequence[Gpu], theirs: Sequence[Gpu], reaches: Sequence[Reach] = reaches) -> bool:
            pairs = {(topology.nodes[a].name, topology.nodes[b].name) for a, _ in ours for b, _ in theirs}
            return all(
                relations.hops_ok(topology, reaches, a, b)
                and relations.rate_ok(topology, reaches, a, b)
                and room_ok(problem.room, topology, reaches, a, b)
                for a, b in pairs
            )

        allowed = [[j for j, theirs in enumerate(ordered[second]) if near(ours, theirs)] for ours in ordered[first]]
        if reserve_of(reaches) > 0:  # pairs inside one leaf group first: they reserve nothing
            for options, ours in zip(allowed, ordered[first], strict=True):
                leaf = topology.leaf_of[ours[0][0]]
                options.sort(key=lambda j: topology.leaf_of[ordered[second][j][0][0]] != leaf)
        ordered[second] = [ordered[second][j] for j in _matching(allowed, len(ordered[second]))]


def _matching(allowed: Sequence[Sequence[int]], count: int) -> list[int]:
    """A perfect matching by augmenting paths: the counts guarantee that there is one."""
    owner = [-1] * count
    for start in range(len(allowed)):
        came_from: dict[int, int] = {}
        frontier = [start]
        end = -1
        while frontier and end < 0:  # ends: a right side enters came_from once
            i = frontier.pop(0)
            for j in allowed[i]:
                if j in came_from:
                    continue
                came_from[j] = i
                if owner[j] < 0:
                    end = j
                    break
                frontier.append(owner[j])
        assert end >= 0, "the count model gave both stages as many instances in every zone"
        while end >= 0:  # back along the path to `start`
            i = came_from[end]
            previous = next((j for j, of in enumerate(owner) if of == i), -1)
            owner[end] = i
            end = previous
    found = [0] * len(allowed)
    for j, i in enumerate(owner):
        found[i] = j
    return found


def adapters(shape: NodeShape, gpu: int) -> tuple[str, ...]:
    """The adapter ports near a GPU, all of the node's where none is near; "name:port" where an adapter has several ports."""
    near = [hca for hca in shape.hcas if gpu in hca.near] or list(shape.hcas)
    ports = Counter(hca.name for hca in shape.hcas)
    return tuple(f"{hca.name}:{hca.port}" if ports[hca.name] > 1 else hca.name for hca in near)
