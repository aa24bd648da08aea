"""Which of several placements finishes first: "16 A100 now, 8 + 8 now, or wait for 16 H100?"."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from fmsched.predict.step import Predicted


@dataclass(frozen=True, slots=True)
class Choice:
    """One way to run the work. Seconds from now; gpu_hours counts running time alone."""

    name: str
    gpus: int
    step_s: float
    tokens_per_s: float
    wait_s: float
    run_s: float
    completion_s: float  # wait_s + run_s
    later_s: float  # than the best choice
    gpu_hours: float


def compare(predictions: Mapping[str, Predicted], waits_s: Mapping[str, float], work_tokens: float) -> tuple[Choice, ...]:
    """The choices by completion time, then GPU hours, then name.

    predictions   by the name of the choice
    waits_s       by name: seconds until its GPUs are free; a name that is absent can start now
    work_tokens   tokens that are left to train on

    Raises ValueError where a wait or the work is negative or not finite, or a wait is for a choice that is not there.
    """
    if not (math.isfinite(work_tokens) and work_tokens >= 0):
        raise ValueError(f"work_tokens: found {work_tokens}; allowed: a number that is not negative")
    for name, wait_s in waits_s.items():
        if name not in predictions or not (math.isfinite(wait_s) and wait_s >= 0):
            raise ValueError(
                f"waits_s[{name!r}]: found {wait_s}; allowed: seconds, not negative, of a choice that is predicted"
            )
    ends_s = {name: waits_s.get(name, 0.0) + work_tokens / found.tokens_per_s for name, found in predictions.items()}
    first_s = min(ends_s.values(), default=0.0)
    choices = []
    for name, found in predictions.items():
        run_s = work_tokens / found.tokens_per_s
        choices.append(
            Choice(
                name=name,
                gpus=found.gpus,
                step_s=found.step_s,
                tokens_per_s=found.tokens_per_s,
                wait_s=waits_s.get(name, 0.0),
                run_s=run_s,
                completion_s=ends_s[name],
                later_s=ends_s[name] - first_s,
                gpu_hours=run_s * found.gpus / 3600,
            )
        )
    return tuple(sorted(choices, key=lambda choice: (choice.completion_s, choice.gpu_hours, choice.name)))
