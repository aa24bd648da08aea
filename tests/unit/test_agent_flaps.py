"""Flapping ports: when one counts as unstable, and when it is trusted again."""

from __future__ import annotations

from fmagent.health.rules import PortRules, Rules
from tests.support.health import FAILED, OK, Watch, port_look

QUIET_S = PortRules().quiet_s
UP, DOWN = port_look(), port_look("Down", "Polling")


def watch(looks: list[tuple[float, bool]]) -> list[bool]:
    """Whether the port is unstable after each look."""
    watched = Watch(now_s=0.0)
    seen = []
    for now_s, up in looks:
        watched.look(UP if up else DOWN, now_s - watched.now_s)
        seen.append(any("unstable" in each.reason for each in watched.findings))
    return seen


def test_one_flap_changes_nothing() -> None:
    assert watch([(0, True), (5, False), (10, True), (500, True)]) == [False] * 4


def test_a_port_that_stays_down_is_not_unstable() -> None:
    assert not any(watch([(0, True), *((5.0 * n, False) for n in range(1, 50))]))


def test_ten_flaps_in_two_minutes_are_unstable_until_quiet() -> None:
    flapping = [(6.0 * n, n % 2 == 0) for n in range(20)]
    seen = watch(flapping)
    assert seen.index(True) == 4
    assert all(seen[4:])
    last_s = flapping[-1][0]
    quiet = watch([*flapping, (last_s + QUIET_S - 1, False), (last_s + QUIET_S, False), (last_s + QUIET_S + 5, False)])[20:]
    assert quiet == [True, False, False]


def test_a_change_while_unstable_starts_the_quiet_time_again() -> None:
    flapping = [(5.0 * n, n % 2 == 0) for n in range(6)]
    later = [(200.0, True), (25.0 + QUIET_S, True), (200.0 + QUIET_S, True)]
    assert watch([*flapping, *later])[6:] == [True, True, False]


def test_an_hour_of_flapping_costs_a_handful_of_writes() -> None:
    watched = Watch()
    states = watched.looks(UP if n % 2 else DOWN for n in range(720))
    assert watched.changes <= 5
    assert set(states[5:]) == {FAILED}


def test_flaps_between_two_looks_are_counted_by_the_adapter() -> None:
    watched = Watch()
    states = watched.looks(port_look(counters={"link_downed": count}) for count in (7, 7, 8, 9, 10, 10))
    assert states == [OK, OK, OK, FAILED, FAILED, FAILED]
    assert "unstable" in watched.worst.reason


def test_a_link_that_was_down_before_the_agent_began_is_no_flap() -> None:
    assert Watch().looks([port_look(counters={"link_downed": 4000})] * 3) == [OK] * 3


def test_the_limits_are_the_rules() -> None:
    watched = Watch(Rules(ports=PortRules(changes_max=1, quiet_s=10.0)))
    assert watched.looks([UP, DOWN, UP]) == [OK, FAILED, FAILED]
    assert watched.looks([UP, UP]) == [FAILED, OK]


def test_a_port_that_is_no_longer_listed_is_forgotten() -> None:
    watched = Watch()
    watched.looks(UP if n % 2 else DOWN for n in range(12))
    assert watched.look(port_look().__class__()) == OK
    assert watched.look(UP) == OK
