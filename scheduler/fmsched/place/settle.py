"""From an answer that looks at each talk alone to one in which all talks of the job have room on the links together.

Alone is what zones say, and it asks for less: where its best answer has room for all talks together, nothing is better; where it has
none, there is none. Where it has an answer that has no room:

1. every talk is asked to leave room for all the others, everywhere. What then is found has room, and is best where its terms equal
   those of the answer for talks alone.
2. the count model is asked with all talks in it (together.py): exact, while it is small.
3. beyond that, the answer of 1 stands, with the distance to the answer for talks alone as its gap. Without an answer of 1 nothing is
   claimed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from fmsched.place import together
from fmsched.place.cpsat import Found, Infeasible, LimitReached, feasible, search
from fmsched.place.links import leaves_of, stricter, talks
from fmsched.place.measure import measure
from fmsched.place.problem import Problem, problem_of
from fmsched.place.ranks import rank_placements
from fmsched.place.realise import cells_of
from fmsched.place.staged import promised

Answer = Found | Infeasible | LimitReached


def may_meet(problem: Problem) -> bool:
    """Whether talks of the job could meet on a link without room for all."""
    return problem.room is not None and problem.room.shared


def settle(
    problem: Problem,
    alone: Answer,
    best: Callable[[Problem, float], Answer],
    weights: Sequence[int],
    deterministic_s: float,
) -> tuple[Problem, Answer]:
    """(the problem that the answer is of, the answer). `alone`: that of `best`, which looks at each talk alone, within a limit."""
    if not may_meet(problem) or not isinstance(alone, Found):
        return problem, alone
    values, fits = _look(problem, alone)
    if fits:
        return problem, alone
    strict = _strict(problem)
    found = best(strict, deterministic_s / 2)
    answer: Answer = LimitReached()
    if isinstance(found, Found):
        answer = replace(found, bound=alone.bound, floor=values if alone.bound is None else None)
        if alone.bound is None and problem.chains is None and _look(strict, found)[0] == values:
            return strict, replace(answer, floor=None)
    if together.rows(problem) <= together.ROWS_MAX:
        exact = search(problem, weights, deterministic_s / 2, together=True)
        if isinstance(exact, Infeasible) or (
            isinstance(exact, Found) and (exact.bound is None or answer == LimitReached())
        ):
            return problem, exact
    return strict, answer


def possible(problem: Problem, alone: Callable[[Problem], bool | None], deterministic_s: float) -> bool | None:
    """Whether there is a placement; None where it stays open. `alone` answers for each talk alone."""
    if not may_meet(problem):
        return alone(problem)
    if alone(problem) is False:
        return False
    if alone(_strict(problem)):
        return True
    if together.rows(problem) <= together.ROWS_MAX:
        return feasible(problem, deterministic_s, together=True)
    return None


def _look(problem: Problem, found: Found) -> tuple[tuple[int, ...], bool]:
    """(values of all terms, of the spread what is promised at least; whether all talks have room together)."""
    ranks = rank_placements(problem, cells_of(problem, found.counts), found.counts)
    assert problem.room is not None
    leaves = leaves_of(problem.snapshot.topology, problem.request, ranks)
    values = measure(problem, ranks)
    if problem.chains is not None:
        values = promised(problem, ranks, values)
    return values, problem.room.holds(talks(problem.request, leaves))


def _strict(problem: Problem) -> Problem:
    spanning = any(any(of_bin) for of_bin in problem.span_zones)
    request = stricter(problem.request, spanning=spanning)
    strict = problem_of(problem.snapshot, request, problem.ruler, spanning=spanning, masks=problem.masks)
    return replace(strict, exact=problem.exact)  # of a proof by the answer for talks alone
