"""Many random small clusters against trying everything: `python -m tests.support.brute_campaign --seeds 4000 [--first N] [--jobs 2]`.

Each seed: both engines of solve give what exhaustive search gives, feasibility and every term; where there is no placement, "never"
is true, the reasons together cannot be met, without any one of them they can, and every change offered helps, all by exhaustive search.
Prints progress, each difference with its seed, how often each kind of case occurred, and the time. Exit 1 on a difference, or where a
kind occurred too seldom.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random

from fmsched.model.job import Request
from fmsched.model.placement import Budget, Placement, Unplaceable
from fmsched.model.snapshot import Snapshot
from fmsched.place import tables
from fmsched.place.check import check
from fmsched.place.solve import solve
from tests.props.test_place_explain import COUNTS, keep_only, relaxed
from tests.support import brute, random_cases
from tests.support.brute_kinds import FLOORS, kinds_of

PROGRESS_EVERY = 200
COMPARED_MIN = 0.75  # of the seeds: a case generator whose cases are too big to try teaches nothing


@dataclass(frozen=True, slots=True)
class Result:
    seed: int
    compared: bool  # False: too big to try everything
    kinds: frozenset[str] = frozenset()
    differences: tuple[str, ...] = ()
    claims: int = 0  # claims of refusals that were held against exhaustive search
    unproven: int = 0  # claims whose question was too big to try everything


def run_seed(seed: int) -> Result:
    snapshot, request = random_cases.case(Random(seed))
    try:
        best = brute.best(snapshot, request)
    except brute.TooManyError:
        return Result(seed, compared=False)
    kinds = kinds_of(snapshot, request)
    states_max = tables.STATES_MAX
    differences: list[str] = []
    try:
        for states in (0, states_max):
            tables.STATES_MAX = states  # 0 leaves everything to the count model
            engine = "tables" if states else "counts"
            differences += [f"{engine}: {text}" for text in _difference(snapshot, request, best)]
    finally:
        tables.STATES_MAX = states_max
    if best is not None:
        return Result(seed, True, frozenset(kinds | {"answer: placed"}), tuple(differences))
    verdict = solve(snapshot, request, Budget())
    if not isinstance(verdict, Unplaceable):
        return Result(seed, True, frozenset(kinds), (*differences, f"no refusal but {verdict}"))
    claims = list(_claims(snapshot, request, verdict))
    differences += [text for text, holds in claims if holds is False]
    kinds.add("answer: never" if verdict.never else "answer: not now")
    unproven = sum(holds is None for _, holds in claims)
    return Result(seed, True, frozenset(kinds), tuple(differences), len(claims), unproven)


def _difference(snapshot: Snapshot, request: Request, best: tuple[int, ...] | None) -> Iterator[str]:
    verdict = solve(snapshot, request, Budget(explain_solves_max=0))
    if best is None:
        if not isinstance(verdict, Unplaceable):
            yield f"placed where nothing is allowed: {verdict}"
        return
    if not isinstance(verdict, Placement):
        yield f"{verdict}, but {best} is possible"
        return
    yield from (f"broken rule: {violation}" for violation in check(snapshot, request, verdict))
    found = tuple(int(term.value) for term in verdict.objective.terms)
    if found != best:
        yield f"{[(term.name, int(term.value)) for term in verdict.objective.terms]}, best is {best}"
    if not verdict.objective.optimal:
        yield "not proven"


def _can(snapshot: Snapshot, request: Request) -> bool | None:
    """Whether anything is allowed, by trying; None: too much to try."""
    try:
        return next(brute.choices(snapshot, request), None) is not None
    except brute.TooManyError:
        return None


def _not(answer: bool | None) -> bool | None:
    return None if answer is None else not answer


def _claims(snapshot: Snapshot, request: Request, verdict: Unplaceable) -> Iterator[tuple[str, bool | None]]:
    """Every claim of a refusal, with whether it holds; None: too much to try."""
    whole, unhurried = snapshot.emptied(), replace(request, avoid_nodes=frozenset[str]())
    possible = _can(whole, unhurried)
    yield f"never is {verdict.never}: {verdict}", _not(possible) if verdict.never else possible
    base, asked = (whole, unhurried) if verdict.never else (snapshot, request)
    reasons = [why for why in verdict.why if why.constraint not in COUNTS]
    yield f"these could be met together: {verdict}", _not(_can(*keep_only(base, asked, reasons)))
    for why in reasons:
        others = [other for other in reasons if other is not why]
        yield f"{why.constraint} of {why.group!r} is not needed in {verdict}", _can(*keep_only(base, asked, others))
    for why in verdict.why:
        if why.relax:
            yield f"{why.relax!r} does not help: {verdict}", _can(*relaxed(base, asked, why))


def _results(seeds: Sequence[int], jobs: int) -> Iterator[Result]:
    if jobs == 1:
        yield from map(run_seed, seeds)
        return
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap(run_seed, seeds, chunksize=10)


def too_seldom(kinds: Counter[str], compared: int) -> list[str]:
    """The kinds that occurred in fewer cases than FLOORS asks."""
    return [name for name, share in FLOORS.items() if kinds[name] * 1000 < share * compared]


def run(seeds: Sequence[int], jobs: int) -> int:
    """The number of differences and of kinds that occurred too seldom."""
    began_s, kinds = time.monotonic(), Counter[str]()
    compared = skipped = bad = claims = unproven = 0
    for count, result in enumerate(_results(seeds, jobs), 1):
        compared, skipped = compared + result.compared, skipped + (not result.compared)
        claims, unproven = claims + result.claims, unproven + result.unproven
        kinds.update(result.kinds)
        bad += bool(result.differences)
        for text in result.differences:
            print(f"DIFFERENCE seed {result.seed}: {text}\n  again: --first {result.seed} --seeds 1", flush=True)
        if count % PROGRESS_EVERY == 0 or count == len(seeds):
            line = f"{count} of {len(seeds)} seeds: {compared} compared, {skipped} too big, {bad} with differences"
            print(f"{line}, {time.monotonic() - began_s:.0f} s", flush=True)
    print(f"{claims} claims of refusals held against exhaustive search, {unproven} of them too big to try")
    for name, share in FLOORS.items():
        print(f"  {name:32}{kinds[name]:6}" + (f"  (at least {share / 10:g} %)" if share else "  (not generated yet)"))
    unknown = sorted(set(kinds) - set(FLOORS))
    seldom = too_seldom(kinds, compared) if len(seeds) >= 1000 else []  # few seeds say nothing of shares
    for name in seldom:
        print(f"TOO SELDOM: {name}, {kinds[name]} of {compared} cases")
    for name in unknown:
        print(f"NO FLOOR: {name}")
    if compared < COMPARED_MIN * len(seeds) and len(seeds) > 1:
        print(f"TOO BIG: only {compared} of {len(seeds)} cases were compared")
        bad += 1
    return bad + len(seldom) + len(unknown)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.support.brute_campaign", description=__doc__)
    parser.add_argument("--seeds", type=int, default=4000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args(argv)
    bad = run(range(options.first, options.first + options.seeds), options.jobs)
    print("FAILED" if bad else "ok")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
