"""Counting and searching say the same of whether a job fits."""

from __future__ import annotations

import random
from collections import Counter

from fmsched.model.job import GroupKind, Reach, Request, ResourceGroup
from fmsched.place.cpsat import feasible
from fmsched.place.objective import ruler_of
from fmsched.place.problem import problem_of
from fmsched.place.room import fits
from fmsched.topology.clusterfile import ClusterFile, parse, to_snapshot
from fmsched.topology.generate import Plan, generate

CASES = 400
TYPES = ["hgx-h100", "hgx-h100", "dgx-1v", "h100-nvl-4", "gb200-nvl72-tray"]


def group(chance: random.Random, name: str) -> ResourceGroup:
    kind = chance.choice([GroupKind.TENSOR_PARALLEL, GroupKind.DATA_PARALLEL, GroupKind.AUXILIARY])
    reach = Reach(chance.choice([0, 1, 3, 5]), chance.choice([0.0, 400.0, 800.0])) if chance.random() < 0.5 else None
    nvlink = chance.choice([0.0, 0.0, 100.0, 600.0, 900.0])
    return ResourceGroup(name, kind, chance.choice([1, 1, 2, 4, 8, 8, 12, 16]), min_nvlink_gbytes_per_s=nvlink, reach=reach)


def test_counting_says_what_searching_says() -> None:
    answers: Counter[tuple[int, bool | None]] = Counter()
    for seed in range(CASES):
        chance = random.Random(seed)
        pods, leaves, nodes = chance.choice([(1, 1, 3), (1, 3, 2), (2, 2, 2)])
        found = parse(generate(Plan(pods, leaves, nodes, chance.choice(TYPES), chance.choice([0.0, 0.3, 0.6])), chance))
        assert isinstance(found, ClusterFile)
        snapshot = to_snapshot(found)
        groups = tuple(group(chance, f"g{i}") for i in range(chance.choice([1, 1, 2])))
        free = sum(len(snapshot.free_indices(node.name)) for node in snapshot.topology.nodes)
        size = sum(each.gpus for each in groups)
        asked = Request("job", groups, max(1, round(chance.choice([0.3, 0.7, 0.9, 1.0, 1.1]) * free / size)))
        for spanning in (False, True):
            problem = problem_of(snapshot, asked, ruler_of(snapshot.topology), spanning=spanning)
            counted = fits(problem)
            answers[len(groups), counted] += 1
            if counted is not None:
                assert counted == feasible(problem, 20.0), (seed, spanning)
    # The test bites only where counting answers, and both ways.
    assert min(answers[n, answer] for n in (1, 2) for answer in (True, False)) >= 20, answers
