"""Hysteresis and series: when a state is reached, how long it stays, what a look without an answer means."""

from __future__ import annotations

import pytest

from fmagent.health.findings import Kind, State
from fmagent.health.hold import Held, Sign, Step, findings_of, settle
from fmagent.health.series import POINTS_MAX, Series, counted, extended, growth, slope_per_minute, span_s

OK, DEGRADED, DRAINING, FAILED = State


def sign(
    steps: tuple[Step, ...] = (Step(DEGRADED, 10), Step(DRAINING, 30)),
    clear_s: float = 20,
    weight: float = 0,
    reason: str = "hot",
) -> Sign:
    return Sign(Kind.GPU, "g", "k", steps, reason, f"weight {weight:g}", "look", clear_s, weight)


def run(series: str, made: Sign | None = None, every_s: float = 5.0) -> list[State]:
    """A look a letter: "x" the condition, "." none, "?" no answer. The state after each."""
    held: dict[str, Held] = {}
    seen = []
    for place, letter in enumerate(series):
        signs = [made or sign()] if letter == "x" else []
        held = settle(held, signs, every_s * place, {"g"}, {"g"} if letter == "?" else ())
        seen.append(max((each.state for each in held.values()), default=OK))
    return seen


@pytest.mark.parametrize(
    ("series", "states"),
    [
        ("xx", "OK OK"),
        ("xxx", "OK OK DEGRADED"),
        ("xx.xx", "OK OK OK OK OK"),  # not for long enough at once
        ("xx?xx", "OK OK OK OK OK"),  # nobody knows whether it stood
        ("xxxxxxx", "OK OK DEGRADED DEGRADED DEGRADED DEGRADED DRAINING"),
        ("xxx....", "OK OK DEGRADED DEGRADED DEGRADED DEGRADED OK"),
        ("xxx..x....", "OK OK DEGRADED DEGRADED DEGRADED DEGRADED DEGRADED DEGRADED DEGRADED OK"),
        ("xxx????????", "OK OK" + " DEGRADED" * 9),  # silence heals nothing
        ("xxx??....", "OK OK DEGRADED DEGRADED DEGRADED DEGRADED DEGRADED DEGRADED OK"),
        # On and off without ever being away for clear_s: the trouble lasts, and gets worse as if it had stood.
        ("xxx.x.xx", "OK OK DEGRADED DEGRADED DEGRADED DEGRADED DRAINING DRAINING"),
    ],
)
def test_a_state_gets_worse_after_for_s_and_better_after_clear_s(series: str, states: str) -> None:
    assert [state.name for state in run(series)] == states.split()


def test_a_hard_fault_counts_at_once_and_goes_at_once() -> None:
    hard = sign((Step(FAILED),), clear_s=0)
    assert run(".x.x", hard) == [OK, FAILED, OK, FAILED]


def test_words_are_frozen_while_the_state_stands() -> None:
    held = settle({}, [sign((Step(DEGRADED),), reason="first")], 0, {"g"})
    later = settle(held, [sign((Step(DEGRADED),), reason="second")], 5, {"g"})
    assert findings_of("c", later) == findings_of("c", held)
    assert findings_of("c", held)[0].since_s == 0


def test_words_are_renewed_when_it_gets_worse_in_steps_and_when_it_has_been_better_for_long() -> None:
    def at(now_s: float, weight: float) -> Sign:
        return sign((Step(DEGRADED),), clear_s=20, weight=weight, reason=f"{weight:g} lost")

    held: dict[str, Held] = {}
    told = []
    for now_s, weight in ((0, 1), (5, 2), (10, 1), (15, 2), (20, 1), (25, 1), (30, 1), (35, 1), (40, 1)):
        held = settle(held, [at(now_s, weight)], now_s, {"g"})
        told.append(findings_of("c", held)[0].reason)
    assert told == ["1 lost", *["2 lost"] * 6, "1 lost", "1 lost"]


def test_a_device_that_is_not_there_any_more_is_forgotten() -> None:
    held = settle({}, [sign((Step(FAILED),))], 0, {"g"})
    assert settle(held, [], 5, set()) == {}


def test_a_clock_that_goes_back_makes_nothing_worse() -> None:
    held = settle({}, [sign()], 100, {"g"})
    assert findings_of("c", settle(held, [sign()], 0, {"g"})) == ()


def filled(values: list[float], window_s: float, every_s: float = 5.0) -> Series:
    series: Series = ()
    for place, value in enumerate(values):
        series = counted(series, every_s * place, value, window_s)
    return series


def test_growth_is_that_of_the_window() -> None:
    assert growth(filled([float(n) for n in range(100)], 50)) == pytest.approx(10, abs=1)
    assert growth(()) == 0
    assert growth(filled([5.0], 50)) == 0


def test_a_counter_that_was_reset_begins_at_zero() -> None:
    assert growth(filled([90, 100, 3], 50)) == 3


def test_a_series_is_bounded_and_still_spans_its_window() -> None:
    series = filled([float(n) for n in range(5000)], 3600)
    assert len(series) <= POINTS_MAX + 2
    assert span_s(series) == pytest.approx(3600, rel=0.05)
    assert growth(series) == pytest.approx(720, rel=0.05)


def test_a_gap_of_a_window_begins_anew() -> None:
    """What grew while nobody looked did not come fast."""
    series = counted(filled([0, 0, 0], 60), 1000, 5000, 60)
    assert growth(series) == 0


def test_slopes() -> None:
    climbing: Series = ()
    for n in range(10):
        climbing = extended(climbing, 10.0 * n, 50 + n, 600)
    assert slope_per_minute(climbing) == pytest.approx(6)
    assert slope_per_minute(climbing[:2]) == 0
    assert slope_per_minute(((1.0, 1.0), (1.0, 2.0), (1.0, 3.0))) == 0
