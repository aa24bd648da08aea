"""A prediction as the JSON that `fmctl plan -o json` prints under `predicted`. Plain dicts, lists, strings and numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fmsched.predict.compare import Choice
from fmsched.predict.sizes import Unpredicted
from fmsched.predict.step import Predicted

SECONDS = ("compute_s", "tp_s", "cp_s", "ep_s", "pp_s", "dp_s", "bubble_s", "exposed_s", "step_s")


def predicted_json(found: Predicted | Unpredicted) -> dict[str, Any]:
    """{"unknown": reason}, or every figure by its name (docs/predict.md has the table)."""
    if isinstance(found, Unpredicted):
        return {"unknown": found.reason}
    return {
        **{name: round(getattr(found, name), 9) for name in SECONDS},
        "tokens_per_s": round(found.tokens_per_s, 3),
        "mfu": round(found.mfu, 6),
        "gpus": found.gpus,
        "tokens": found.tokens,
        "micro_batches": found.micro_batches,
        "slowest": found.slowest,
        "links": [
            {
                "group": group.kind,
                "ranks": group.ranks,
                "islands": group.islands,
                "kind": group.link.kind,
                "between": [group.link.a, group.link.b],
                "hops": group.link.hops,
                "gbps": round(group.link.gbps, 3),
                "link_gbps": round(group.link.link_gbps, 3),
            }
            for group in found.links
        ],
        "assumed": list(found.assumed),
    }


def choices_json(choices: Sequence[Choice]) -> list[dict[str, Any]]:
    """The answer of compare(), best first."""
    return [
        {
            "name": choice.name,
            "gpus": choice.gpus,
            "step_s": round(choice.step_s, 9),
            "tokens_per_s": round(choice.tokens_per_s, 3),
            "wait_s": round(choice.wait_s, 3),
            "run_s": round(choice.run_s, 3),
            "completion_s": round(choice.completion_s, 3),
            "later_s": round(choice.later_s, 3),
            "gpu_hours": round(choice.gpu_hours, 3),
        }
        for choice in choices
    ]
