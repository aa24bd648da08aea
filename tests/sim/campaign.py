"""Many seeds, then the planted bugs: `python -m tests.sim.campaign --seeds 1000 [--first N] [--jobs 2] [--show] [--no-bugs]`.

Prints progress, every violation with how to see it again, the first seed that finds each bug, and the time. Exit 1 on a violation or a
bug not found.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext

from tests.sim.bugs import BUGS, Bug
from tests.sim.scenario import scenario
from tests.sim.world import Outcome, World

# Each planted bug must be found within so many seeds.
BUG_SEEDS_MAX = 200
PROGRESS_EVERY = 100


def run_seed(seed: int, bug: Bug | None = None) -> Outcome:
    with bug.planted() if bug is not None else nullcontext():
        return World(scenario(seed)).run()


def first_catch(bug: Bug, seeds: Iterable[int] = range(BUG_SEEDS_MAX)) -> Outcome | None:
    """Of the first seed that finds the bug."""
    return next((outcome for seed in seeds if (outcome := run_seed(seed, bug)).violation), None)


def _catch_by_name(name: str) -> tuple[str, Outcome | None]:
    bug = next(bug for bug in BUGS if bug.name == name)
    return name, first_catch(bug)


def _outcomes(seeds: Sequence[int], jobs: int) -> Iterator[Outcome]:
    if jobs == 1:
        yield from map(run_seed, seeds)
        return
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap(run_seed, seeds, chunksize=5)


def _catches(jobs: int) -> Iterator[tuple[str, Outcome | None]]:
    names = [bug.name for bug in BUGS]
    if jobs == 1:
        yield from map(_catch_by_name, names)
        return
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap(_catch_by_name, names)


def run_seeds(seeds: Sequence[int], jobs: int, *, show: bool) -> int:
    """The number of violations."""
    began_s, bad, revisions, ranks, virtual_s = time.monotonic(), 0, 0, 0, 0.0
    for count, outcome in enumerate(_outcomes(seeds, jobs), 1):
        revisions, ranks, virtual_s = (
            revisions + outcome.revisions,
            ranks + outcome.ranks_started,
            virtual_s + outcome.virtual_s,
        )
        if outcome.violation:
            bad += 1
        if outcome.violation or show:
            print(outcome.report(), flush=True)
        if count % PROGRESS_EVERY == 0 or count == len(seeds):
            print(f"{count} seeds, {bad} violations, {time.monotonic() - began_s:.1f} s", flush=True)
    print(f"in all: {virtual_s / 3600:.1f} h of virtual time, {revisions} revisions, {ranks} ranks started")
    return bad


def run_bugs(jobs: int) -> int:
    """The number of planted bugs that no seed finds."""
    began_s, missed = time.monotonic(), 0
    for name, outcome in _catches(jobs):
        missed += outcome is None
        found = f"seed {outcome.seed}: {outcome.violation}" if outcome else f"NOT FOUND within {BUG_SEEDS_MAX} seeds"
        print(f"planted {name}: {found}", flush=True)
    print(f"{len(BUGS) - missed} of {len(BUGS)} planted bugs found, {time.monotonic() - began_s:.1f} s")
    return missed


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim.campaign", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--show", action="store_true", help="print the story of every seed")
    parser.add_argument("--no-bugs", action="store_true", help="leave the planted bugs out")
    options = parser.parse_args(argv)
    began_s = time.monotonic()
    bad = run_seeds(range(options.first, options.first + options.seeds), options.jobs, show=options.show)
    missed = 0 if options.no_bugs or options.show else run_bugs(options.jobs)
    print(f"{'ok' if not bad and not missed else 'FAILED'}, {time.monotonic() - began_s:.1f} s")
    return 1 if bad or missed else 0


if __name__ == "__main__":
    sys.exit(main())
