"""The simulation in the ordinary test run: a hundred seeds, the planted bugs, and that a seed means one thing only. `python -m
tests.sim.campaign` runs a thousand.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sim.bugs import BUGS, Bug
from tests.sim.campaign import first_catch, run_seed

SEEDS = 100
BLOCK = 10
# Seeds with faults of many kinds.
REPEATED = (5, 39, 56)


@pytest.mark.parametrize("first", range(0, SEEDS, BLOCK))
def test_seeds_hold_every_promise(first: int) -> None:
    for seed in range(first, first + BLOCK):
        outcome = run_seed(seed)
        assert not outcome.violation, outcome.report()


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_planted_bugs_are_found(bug: Bug) -> None:
    assert first_catch(bug) is not None, f"no seed finds: {bug.sentence}"


def test_a_seed_gives_one_trace() -> None:
    first = [run_seed(seed).trace for seed in REPEATED]
    assert [run_seed(seed).trace for seed in REPEATED] == first
    program = f"from tests.sim.campaign import run_seed; print(*(run_seed(seed).trace for seed in {REPEATED}))"
    elsewhere = subprocess.run(
        [sys.executable, "-c", program],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONHASHSEED": "4711"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert elsewhere.stdout.split() == first, elsewhere.stderr
