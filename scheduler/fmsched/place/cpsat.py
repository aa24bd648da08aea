"""The search: CP-SAT on the count model, term by term in order of importance, each stage bound by the proven best of those before.

Terms whose ranges are small together are weighed into one stage. A stage whose best possible value is already reached needs no
search. One worker, a fixed seed and a deterministic limit: the wall clock decides nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from ortools.sat.python import cp_model

from fmsched.place.counts import CountModel, Linear, PoolKey, Seat, build, term_expressions
from fmsched.place.problem import Problem
from fmsched.place.together import Chosen, Sites, add, chosen

Key = TypeVar("Key")

SEED = 7
# The largest ratio between the weights of one stage. Beyond it the solver's floating-point relaxation loses the small terms.
STAGE_RANGE_MAX = 1 << 30


@dataclass(frozen=True, slots=True)
class Counts:
    """A solution by counts; keys as in CountModel, zeros left out. `chosen`: which instance lies where, if that was asked."""

    ways: Mapping[tuple[int, int], int]
    whole: Mapping[tuple[int, int, int], int]
    part: Mapping[tuple[int, int, int, int], int]
    pool_leaf: Mapping[tuple[PoolKey, int], int]
    chosen: Chosen | None = None
    seats: Mapping[Seat, int] = field(default_factory=dict)  # identities.py: who sits where
    cuts: Mapping[PoolKey, tuple[Mapping[int, int], ...]] = field(
        default_factory=dict
    )  # of each instance across leaf groups, GPUs by leaf group


@dataclass(frozen=True, slots=True)
class Found:
    """A solution and what is proven of it.

    bound         below it no placement's weighted sum of terms lies, in the weights given, constants left out; None: all proven
    preference    the first term's value
    floor         where not all is proven: values of all terms below which, in their order, no placement lies; overrides `bound`
    """

    counts: Counts
    bound: int | None
    preference: int
    floor: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Infeasible:
    """Proven: no placement."""


@dataclass(frozen=True, slots=True)
class LimitReached:
    """Neither a placement nor a proof."""


def search(
    problem: Problem, weights: Sequence[int], deterministic_s: float, *, together: bool = False
) -> Found | Infeasible | LimitReached:
    """The best counts. `weights` by term, each a multiple of the next. `together`: talks that meet on a link add up."""
    built = build(problem)
    if built is None:
        return Infeasible()
    return search_built(built, weights, deterministic_s, add(built) if together else None)


def search_built(
    built: CountModel, weights: Sequence[int], deterministic_s: float, sites: Sites | None = None
) -> Found | Infeasible | LimitReached:
    """The same for a model that has been built already."""
    return _Search(built, weights, deterministic_s, sites).run()


def feasible(problem: Problem, deterministic_s: float, *, together: bool = False) -> bool | None:
    """Whether any placement exists; None where the limit was reached first."""
    built = build(problem)
    if built is None:
        return False
    if together:
        add(built)
    status, _ = _solve(built.model, deterministic_s)
    if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return True
    return False if status == cp_model.INFEASIBLE else None


def _solve(model: cp_model.CpModel, deterministic_s: float) -> tuple[cp_model.CpSolverStatus, cp_model.CpSolver]:
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = SEED
    solver.parameters.max_deterministic_time = max(deterministic_s, 1e-3)
    return solver.solve(model), solver


class _Search:
    """One staged solve. Holds the model, what is known so far, and what is left of the limit."""

    def __init__(
        self, built: CountModel, weights: Sequence[int], deterministic_s: float, sites: Sites | None = None
    ) -> None:
        self._built = built
        self._sites = sites
        self._terms = term_expressions(built)
        self._weights = weights
        self._left_s = deterministic_s
        self._variables = [built.model.get_int_var_from_proto_index(i) for i in range(len(built.model.proto.variables))]
        self._values: list[int] = []

    def run(self) -> Found | Infeasible | LimitReached:
        bound, proven = 0, True
        for stage in _stages(self._weights):
            unit = self._weights[stage[-1]]
            goal = self._goal(stage)
            if self._values and (goal.empty or self._value(goal) == 0):
                self._built.model.add(goal.expression() <= 0)
                continue
            status, best = self._improve(goal)
            if status == cp_model.INFEASIBLE:
                return Infeasible()
            if not self._values:
                return LimitReached()
            value = self._value(goal)
            if proven:
                bound += unit * (value if status == cp_model.OPTIMAL else best)
            proven = proven and status == cp_model.OPTIMAL
            self._built.model.add(goal.expression() <= value)
        return Found(self._counts(), None if proven else bound, self._value(self._terms[0]))

    def _goal(self, stage: Sequence[int]) -> Linear:
        goal = Linear()
        for number in stage:
            ratio = self._weights[number] // self._weights[stage[-1]]
            for variable, factor in zip(self._terms[number].variables, self._terms[number].factors, strict=True):
                goal.add(variable, factor * ratio)
        return goal

    def _value(self, goal: Linear) -> int:
        return sum(
            self._values[variable.index] * factor for variable, factor in zip(goal.variables, goal.factors, strict=True)
        )

    def _improve(self, goal: Linear) -> tuple[cp_model.CpSolverStatus, int]:
        """(status, proven bound of the goal). Keeps the old values where nothing better was found in time."""
        model = self._built.model
        model.clear_hints()  # type: ignore[no-untyped-call]
        for variable, value in zip(self._variables, self._values, strict=False):
            model.add_hint(variable, value)
        if goal.empty:
            model.clear_objective()  # type: ignore[no-untyped-call]
        else:
            model.minimize(goal.expression())
        status, solver = _solve(model, self._left_s)
        self._left_s -= solver.response_proto.deterministic_time
        if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            self._values = list(solver.response_proto.solution)
        bound = 0 if goal.empty or status == cp_model.UNKNOWN else round(solver.best_objective_bound)
        return status, bound

    def _counts(self) -> Counts:
        built = self._built
        used = self._used
        sites = chosen(self._sites, self._values) if self._sites is not None else None
        return Counts(
            used(built.ways), used(built.whole), used(built.part), used(built.pool_leaf), sites, used(built.seats)
        )

    def _used(self, variables: Mapping[Key, cp_model.IntVar]) -> dict[Key, int]:
        return {key: n for key, variable in variables.items() if (n := self._values[variable.index])}


def _stages(weights: Sequence[int]) -> list[list[int]]:
    """Terms, in order, in runs whose weights differ by no more than STAGE_RANGE_MAX."""
    stages: list[list[int]] = []
    for number, weight in enumerate(weights):
        if stages and weights[stages[-1][0]] // weight <= STAGE_RANGE_MAX:
            stages[-1].append(number)
        else:
            stages.append([number])
    return stages
