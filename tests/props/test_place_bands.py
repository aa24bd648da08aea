"""What bands leave out of the tables changes no answer, nor does how costs are cut into limbs."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from fmsched.model.job import GroupKind, Reach, Request, ResourceGroup
from fmsched.model.placement import Budget, Placement
from fmsched.model.snapshot import Snapshot
from fmsched.place import options, tables
from fmsched.place.bands import Bands, bands_of
from fmsched.place.check import check
from fmsched.place.solve import solve
from fmsched.topology.clusterfile import ClusterFile, parse, to_snapshot
from fmsched.topology.generate import Plan, generate


def cluster(chance: random.Random) -> Snapshot:
    pods, leaves, nodes = chance.choice([(6, 4, 4), (3, 6, 3), (8, 2, 5), (1, 12, 3), (4, 4, 6)])
    kind = chance.choice(["hgx-h100", "hgx-h100", "h100-nvl-4", "dgx-1v"])
    found = parse(generate(Plan(pods, leaves, nodes, kind, chance.choice([0.0, 0.3, 0.6, 0.8])), chance))
    assert isinstance(found, ClusterFile)
    snapshot = to_snapshot(found)
    if pods > 3 and chance.random() < 0.5:
        # A third level: two or three pods a core.
        topology = snapshot.topology
        cores = (topology.domains[1] // chance.choice([2, 3])).astype(np.int32)
        snapshot = replace(snapshot, topology=replace(topology, domains=(*topology.domains[:2], cores)))
    return snapshot


def request(chance: random.Random, free: int) -> Request:
    cell = chance.choice([1, 1, 1, 2, 3, 4, 8, 12])
    kind = chance.choice([GroupKind.TENSOR_PARALLEL, GroupKind.DATA_PARALLEL])
    reach = Reach(chance.choice([1, 3, 5])) if kind is GroupKind.DATA_PARALLEL or cell > 8 else None
    group = ResourceGroup("cell", kind, cell, preferred=chance.choice([(), ("h100",), ("v100", "h100")]), reach=reach)
    return Request("job", (group,), max(1, round(chance.random() * free / cell)))


def values(snapshot: Snapshot, asked: Request) -> list[float] | None:
    answer = solve(snapshot, asked, Budget(explain_solves_max=0))
    if not isinstance(answer, Placement):
        return None
    assert not check(snapshot, asked, answer)
    return [term.value for term in answer.objective.terms] if answer.objective.optimal else None


@pytest.mark.parametrize("seed", range(40))
def test_bands_and_limbs_change_no_answer(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(seed)
    snapshot = cluster(chance)
    free = sum(len(snapshot.free_indices(node.name)) for node in snapshot.topology.nodes)
    asked = request(chance, max(free, 1))
    ours = values(snapshot, asked)
    monkeypatch.setattr(options, "LIMB_BITS", chance.choice([8, 14, 25]))
    assert values(snapshot, asked) == ours
    monkeypatch.setattr(tables, "bands_of", lambda *_: None)
    assert values(snapshot, asked) == ours


def test_bands_are_found_and_leave_little(monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(5)
    found = parse(generate(Plan(6, 4, 8, "hgx-h100", 0.6), chance))
    assert isinstance(found, ClusterFile)
    snapshot = to_snapshot(found)
    seen: list[Bands | None] = []

    def remembered(*args: object) -> Bands | None:
        seen.append(bands_of(*args))  # type: ignore[arg-type]
        return seen[-1]

    monkeypatch.setattr(tables, "bands_of", remembered)
    group = ResourceGroup("cell", GroupKind.TENSOR_PARALLEL, 1, preferred=("h100",))
    answer = solve(snapshot, Request("job", (group,), 300), Budget())
    assert isinstance(answer, Placement)
    (bands,) = seen
    assert bands is not None
    spans = {term.name: term.value for term in answer.objective.terms}
    assert bands.spans == (spans["leaf groups spanned by the job"], spans["pods spanned by the job"])
    assert bands.work < 300 * 300 * len(bands.leaves) / 20
