"""A verdict as the JSON that `fmctl plan -o json` prints. Plain dicts, lists, strings and finite numbers only."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from fmsched.model.job import Request
from fmsched.model.placement import Objective, Placement, RankPlacement, Undecided, Unplaceable, Verdict, Why
from fmsched.place.choices import Option, options_json
from fmsched.predict import Predicted, Unpredicted, predicted_json


def plan_json(
    request: Request,
    verdict: Verdict,
    seconds: float,
    nodes: int,
    gpus: int,
    predicted: Predicted | Unpredicted | None = None,
    choices: Sequence[Option] = (),
) -> dict[str, Any]:
    """The answer to "where would this job go?".

    seconds       wall time of the solve, measured by the caller
    nodes, gpus   size of the cluster that it was solved on
    choices       what else the job could run on (place.choices)
    predicted     what place.forecast says of the placement; None: nothing is placed
    """
    return {
        "job": request.job,
        "verdict": _word(verdict),
        "ranks": [_rank(rank) for rank in verdict.ranks] if isinstance(verdict, Placement) else [],
        "objective": _objective(verdict.objective) if isinstance(verdict, Placement) else None,
        "solve": {"seconds": round(seconds, 6), "nodes": nodes, "gpus": gpus},
        "predicted": predicted_json(predicted) if predicted is not None else {},
        "choices": options_json(choices),
        "why": [_why(why) for why in _whys(request, verdict)],
    }


def _word(verdict: Verdict) -> str:
    match verdict:
        case Placement():
            return "placed"
        case Unplaceable(never=True):
            return "never"
        case _:
            return "waits"


def _rank(rank: RankPlacement) -> dict[str, Any]:
    return {
        "rank": rank.rank,
        "group": rank.group,
        "replica": rank.replica,
        "cell": rank.cell,
        "local_rank": rank.local_rank,
        "node": rank.node,
        "gpu": {"index": rank.gpu, "uuid": rank.uuid},
        "hcas": list(rank.hcas),
        **({"spare": True} if rank.spare else {}),
    }


def _objective(objective: Objective) -> dict[str, Any]:
    return {
        "value": _finite(objective.value),
        "bound": _finite(objective.bound),
        "gap": _finite(objective.gap),
        "optimal": objective.optimal,
        "terms": [
            {"name": term.name, "weight": _finite(term.weight), "value": _finite(term.value)} for term in objective.terms
        ],
    }


def _finite(value: float) -> float:
    """JSON has no infinity: the largest number stands for it."""
    return value if math.isfinite(value) else math.copysign(1.7976931348623157e308, value)


def _whys(request: Request, verdict: Verdict) -> tuple[Why, ...]:
    match verdict:
        case Unplaceable():
            return verdict.why
        case Undecided():
            asked = f"{request.gpus} GPUs"
            return (Why("search limit", "", asked, verdict.reason, ""),)
        case _:
            return ()


def _why(why: Why) -> dict[str, str]:
    return {
        "constraint": why.constraint,
        "group": why.group,
        "asked": why.asked,
        "best": why.best,
        "where": why.where,
        "relax": why.relax,
    }
