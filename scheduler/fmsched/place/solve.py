"""Where a gang goes. Start here.

    snapshot, request ──► problem ──► count model ──► CP-SAT, term by term ──► cells ──► ranks ──► Placement
                             │                             │
                             └── nothing fits ─────────────┴──► explain ──► Unplaceable (never, or not now, and why)

1. problem.py makes the request countable. Equal nodes fall into bins (hosts.py); ways.py lists how one node of a bin can be
   used, with the valid GPU sets of nodes whose links are uneven; zones.py finds where things that must be near may lie.
2. counts.py states all hard rules over counts: so many nodes of this bin used that way. GPUs and ranks do not appear, so equal
   nodes, replicas and GPUs cost no search, and the model is exact, also where instance sizes do not divide one another.
3. cpsat.py minimises the terms of objective.py one after the other; each proven optimum binds the later stages. Where
   instances keep to nodes and groups are few, tables.py answers the same question by dynamic programming, exact and faster;
   where every instance is larger than a node, spanning.py asks the tables GPU by GPU; where one group's zones are no domains,
   by_zone.py asks them zone by zone.
4. realise.py picks nodes, GPU sets and instances, all of equal worth; ranks.py orders them.
   Where talks of the job that reserve bandwidth may meet on a link, settle.py holds the answer against all of them together.
5. fastest.py asks this again for narrower parts of the cluster where the job says what it trains, and takes the placement with the
   least predicted step time.
6. The terms are then measured on the finished placement, not taken from the solver, and the proven bound stands beside them.

Pipeline stages that are alike are one group to all this (chains.py): the counts promise a spread, gridmap.py says which instance is
which, and where it does not reach what was promised, the promise is the bound, and identities.py solves small jobs exactly.

Where some ranks stay (a repair), repair.py places the others by trying: they are few, and the rest of the gang is given.

The limit is deterministic. A search that it cuts answers with its best placement and an honest gap, or with Undecided.
"""

from __future__ import annotations

from dataclasses import replace

from fmsched.model.job import Request
from fmsched.model.placement import Budget, Placement, Undecided, Unplaceable, Verdict
from fmsched.model.snapshot import Snapshot
from fmsched.place import by_zone, identities, spanning, tables
from fmsched.place.counts import within_feeds
from fmsched.place.cpsat import Found, Infeasible, LimitReached, search
from fmsched.place.measure import measure
from fmsched.place.objective import Ruler, left_out, objective, terms_max, weights
from fmsched.place.price import by_policy, in_full, ruler_for
from fmsched.place.problem import Problem, problem_of
from fmsched.place.ranks import rank_placements
from fmsched.place.realise import cells_of
from fmsched.place.settle import may_meet, settle
from fmsched.place.spares import flagged, widened
from fmsched.place.staged import promised


def solve(snapshot: Snapshot, request: Request, budget: Budget) -> Verdict:
    """The best placement of the request, or why there is none. Same snapshot, same answer.

    Raises ValueError for a request that asks for nothing (no groups, no replicas, or a group without GPUs), or keeps parts of instances.
    """
    if not request.groups or request.replicas < 1 or any(group.gpus < 1 for group in request.groups):
        raise ValueError(
            f"job {request.job}: {request.replicas} replicas of {[group.gpus for group in request.groups]} GPUs ask for nothing"
        )
    if request.spares and request.kept:
        raise ValueError(
            f"job {request.job}: spares: found {request.spares} beside {len(request.kept)} kept ranks; allowed: one of the two"
        )
    if request.spares:
        verdict = solve(snapshot, replace(widened(request), spares=0), budget)
        if isinstance(verdict, Unplaceable):
            return _refusal(snapshot, widened(request), budget)
        return flagged(request, verdict) if isinstance(verdict, Placement) else verdict
    question = by_policy(snapshot, request)
    if request.kept:
        return _kept(snapshot, request, question, budget)
    if request.work is not None:
        from fmsched.place.fastest import fastest

        found = fastest(snapshot, question, budget)
    else:
        found = best(snapshot, question, budget)
    if found is None:
        return _refusal(snapshot, request, budget)
    return in_full(snapshot, question, found) if isinstance(found, Placement) and question is not request else found


def _kept(snapshot: Snapshot, request: Request, question: Request, budget: Budget) -> Verdict:
    from fmsched.place.repair import refusal, repaired

    found = repaired(snapshot, question, budget)
    if found is None:
        return refusal(snapshot, request, budget)
    return in_full(snapshot, question, found) if isinstance(found, Placement) and question is not request else found


def best(snapshot: Snapshot, request: Request, budget: Budget) -> Placement | Undecided | None:
    """By the terms of objective.py alone; None: proven, there is no placement."""
    ruler = ruler_for(snapshot, request)
    maxima = terms_max(snapshot, request, ruler)
    problem, found = _search(snapshot, request, ruler, maxima, budget)
    if isinstance(found, Found):
        placement = _placement(problem, found, maxima)
        untold = problem.chains is not None and found.bound is None and not may_meet(problem)
        if untold and not placement.objective.optimal:
            return _told_apart(problem, placement, maxima, budget)
        return placement
    if isinstance(found, LimitReached) or not problem.exact:
        return Undecided(request.job, f"no placement and no proof within {budget.deterministic_s:g} deterministic seconds")
    return None


def _search(
    snapshot: Snapshot, request: Request, ruler: Ruler, maxima: tuple[int, ...], budget: Budget
) -> tuple[Problem, Found | Infeasible | LimitReached]:
    """The best counts; first with every instance on one node.

    Only the preference order stands above whole instances. So where whole instances on the most preferred GPUs fit, no
    placement with an instance across nodes is better, and the wider question need not be asked.
    """
    scale = weights(maxima)
    seconds = budget.deterministic_s

    def whole(problem: Problem, limit_s: float = seconds) -> Found | Infeasible | LimitReached:
        return _powered(problem, tables.search(problem) or by_zone.search(problem)) or search(problem, scale, limit_s)

    def across(problem: Problem, limit_s: float = seconds) -> Found | Infeasible | LimitReached:
        return _powered(problem, spanning.search(problem)) or search(problem, scale, limit_s)

    narrow = problem_of(snapshot, request, ruler, spanning=False)
    narrow, found = settle(narrow, whole(narrow), whole, scale, seconds)
    if isinstance(found, Found) and found.preference == 0:
        return narrow, found
    wide = problem_of(snapshot, request, ruler)
    if not wide.spans:
        # The same bins and ways; perhaps not all that may span was looked at.
        return (narrow if wide.exact else wide), found
    wide, wider = settle(wide, across(wide), across, scale, seconds)
    if isinstance(found, Found) and isinstance(wider, LimitReached):
        return narrow, replace(found, bound=0, floor=None)  # a placement all the same, of which nothing is proven
    return wide, wider


def _powered(problem: Problem, found: Found | Infeasible | None) -> Found | Infeasible | None:
    """The tables know no power budgets: their answer, unless it breaks one. The count model knows them."""
    return None if isinstance(found, Found) and not within_feeds(problem, found.counts.ways) else found


def _placement(problem: Problem, found: Found, maxima: tuple[int, ...]) -> Placement:
    ranks = rank_placements(problem, cells_of(problem, found.counts), found.counts)
    values = measure(problem, ranks)
    bound = found.bound if problem.exact else 0
    if problem.exact and found.floor is not None:
        bound = sum(weight * value for weight, value in zip(weights(maxima), found.floor, strict=True))
    elif bound is None and problem.chains is not None and not found.counts.seats:
        bound = sum(w * v for w, v in zip(weights(maxima), promised(problem, ranks, values), strict=True))
    elif bound is not None:
        bound -= left_out(problem.ruler, maxima, problem.request.gpus)
    return Placement(problem.request.job, ranks, objective(problem.ruler, maxima, values, bound))


def _told_apart(problem: Problem, placement: Placement, maxima: tuple[int, ...], budget: Budget) -> Placement:
    """The same job with its replicas told apart, where it is small: the counts promised more than there may be."""
    apart = problem_of(
        problem.snapshot, problem.asked, problem.ruler, spanning=problem.spans, masks=problem.masks, fold=False
    )
    if not identities.small(apart):
        return placement
    found = identities.search(apart, weights(maxima), budget.deterministic_s)
    if not isinstance(found, Found):
        return placement
    other = _placement(apart, found, maxima)
    best = min(other, placement, key=lambda each: each.objective.value)
    bound = max(other.objective.bound, placement.objective.bound)
    return replace(best, objective=replace(best.objective, bound=min(bound, best.objective.value)))


def _refusal(snapshot: Snapshot, request: Request, budget: Budget) -> Unplaceable:
    from fmsched.place.explain import explain

    return explain(snapshot, request, budget)
