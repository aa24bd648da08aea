"""Flapping ports: when one counts as unstable, and when it is trusted again."""

from __future__ import annotations

from fmagent.health.flaps import QUIET_S, PortPast, look, reason


def watch(looks: list[tuple[float, bool]]) -> list[bool]:
    """Whether the port is unstable after each look."""
    past: dict[str, PortPast] = {}
    seen = []
    for now_s, up in looks:
        past = look(past, {"mlx5_0/1": up}, now_s)
        seen.append(past["mlx5_0/1"].unstable)
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


def test_the_reason_stays_the_same_while_unstable() -> None:
    past: dict[str, PortPast] = {}
    told = set()
    for n in range(40):
        past = look(past, {"p": n % 2 == 0}, 5.0 * n)
        told.add(reason(past["p"]))
    assert len(told) == 2
    assert "" in told


def test_a_port_that_is_no_longer_listed_is_forgotten() -> None:
    assert look({"p": PortPast(True, (1.0,), True)}, {}, 2.0) == {}
