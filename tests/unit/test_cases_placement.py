"""Every file of tests/cases/placement: the placement, or the reasons, are the expected ones."""

from __future__ import annotations

from typing import Any

import pytest

from fmsched.model.placement import Budget, Placement, Unplaceable, Why
from fmsched.place.check import check
from fmsched.place.solve import solve
from tests.support.cases import Case, load_cases


@pytest.mark.parametrize("case", load_cases("placement"), ids=str)
def test_case(case: Case) -> None:
    verdict = solve(case.snapshot, case.request, Budget())
    if "placed" in case.expect:
        _placed(case, verdict)
    else:
        assert isinstance(verdict, Unplaceable), verdict
        assert verdict.never is case.expect["never"]
        assert [why.constraint for why in verdict.why] == [why["constraint"] for why in case.expect["why"]], verdict.why
        for why, expected in zip(verdict.why, case.expect["why"], strict=True):
            _reason(why, expected)


def _placed(case: Case, verdict: Any) -> None:
    assert isinstance(verdict, Placement), verdict
    assert check(case.snapshot, case.request, verdict) == ()
    assert verdict.objective.optimal
    for group, nodes in case.expect["placed"].items():
        cells = [
            [rank for rank in verdict.ranks if (rank.group, rank.replica) == (group, r)]
            for r in range(case.request.replicas)
        ]
        assert ["+".join(dict.fromkeys(rank.node for rank in cell)) for cell in cells] == nodes
        if group in case.expect.get("gpus", {}):
            assert [[rank.gpu for rank in cell] for cell in cells] == case.expect["gpus"][group]
    terms = {term.name: int(term.value) for term in verdict.objective.terms}
    for name, value in case.expect.get("terms", {}).items():
        assert terms[name] == value, terms


def _reason(why: Why, expected: dict[str, str]) -> None:
    for field, text in expected.items():
        found = getattr(why, field)
        assert text in found, f"{field} says {found!r}"
        assert bool(text) == bool(found), f"{field} says {found!r}"
