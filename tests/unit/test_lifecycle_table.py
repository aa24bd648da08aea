"""Every pair of states: what the table does not list is refused."""

from __future__ import annotations

import itertools
import re

import pytest

from fmsched.lifecycle.table import EVENTS_MAX, NEXT, InvalidTransition, mermaid, move, submitted
from fmsched.model.record import State
from tests.support.jobs import status


@pytest.mark.parametrize(("a", "b"), list(itertools.product(State, State)), ids=str)
def test_every_pair(a: State, b: State) -> None:
    if b in NEXT[a]:
        moved = move(status(a), b, 5, "because", attempt=3)
        assert (moved.state, moved.since_ms, moved.reason) == (b, 5, "because")
        assert (moved.events[-1].state, moved.events[-1].attempt) == (b, 3)
    else:
        with pytest.raises(InvalidTransition, match=re.escape(f"{a} → {b}")):
            move(status(a), b, 5, "because")


def test_ended_states_are_final_and_every_state_is_reached() -> None:
    assert all(not NEXT[state] for state in State if state.ended)
    reached = {State.SUBMITTED}
    for _ in State:
        reached |= {b for a in reached for b in NEXT[a]}
    assert reached == set(State)
    assert all(any(True for _ in NEXT[state]) for state in State if not state.ended)


def test_events_are_bounded_and_the_newest_kept() -> None:
    now = submitted(0)
    for round_ in range(EVENTS_MAX):
        now = move(now, State.COMMITTED, round_, "placed")
        now = move(now, State.RECOVERING, round_, "lost")
        now = move(now, State.QUEUED, round_, f"round {round_}")
    assert len(now.events) == EVENTS_MAX
    assert now.events[-1].reason == f"round {EVENTS_MAX - 1}"


def test_diagram_lists_exactly_the_table() -> None:
    drawn = set(re.findall(r"^    (\w+) --> (\w+)$", mermaid(), re.MULTILINE))
    assert drawn == {(str(a), str(b)) for a in State for b in NEXT[a]}
