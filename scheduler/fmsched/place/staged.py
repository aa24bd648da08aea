"""The last step of a job of several pipeline stages: what is proven of its spread, and small jobs asked again where that is not all.

The engines count: they minimise what the counts promise at least (chains.py). The finished placement is measured. Where both agree it is
best; where they do not, the promise is the bound, and a job small enough is solved with its replicas told apart.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np

from fmsched.model.placement import RankPlacement
from fmsched.place.chains import least_spread
from fmsched.place.hosts import static_of
from fmsched.place.problem import Problem

SPANNED_BY_GROUPS = " spanned by its groups"


def promised(problem: Problem, ranks: Sequence[RankPlacement], values: Sequence[int]) -> tuple[int, ...]:
    """The values of a placement, but of the spread what its counts promise: no placement with the best counts has less."""
    topology, ruler = problem.snapshot.topology, problem.ruler
    leaf_of = static_of(topology).leaf_of
    gpus: defaultdict[str, Counter[int]] = defaultdict(Counter)  # by group, by leaf group
    for rank in ranks:
        gpus[rank.group][leaf_of[topology.index[rank.node]]] += 1
    found = list(values)
    for level, name in zip(ruler.levels, ruler.level_names, strict=True):
        found[ruler.names.index(name + SPANNED_BY_GROUPS)] = _least(problem, gpus, level)
    return tuple(found)


def _least(problem: Problem, gpus: defaultdict[str, Counter[int]], level: int) -> int:
    assert problem.chains is not None
    domain = problem.snapshot.topology.domains[level]
    inside: defaultdict[int, Counter[int]] = defaultdict(Counter)  # by domain, by group of the problem
    for g, group in enumerate(problem.asked.groups):
        for leaf, n in gpus[group.name].items():
            inside[int(domain[leaf])][0 if problem.chains.folded else g] += n
    sizes = [group.gpus for group in problem.request.groups]
    numbers = np.array([[-(-of[g] // size) for of in inside.values()] for g, size in enumerate(sizes)], dtype=np.int64)
    return int(least_spread(problem.chains, problem.request.replicas, level, numbers).sum())
