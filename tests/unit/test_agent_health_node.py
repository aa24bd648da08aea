"""The concerns about adapter ports, and about the node as a whole."""

from __future__ import annotations

import pytest

from fmagent.health.findings import Kind
from fmagent.health.judge import told
from fmagent.health.readings import DiskReading, Readings
from fmagent.health.rules import DiskRules, Rules
from tests.support.health import DEGRADED, DRAINING, FAILED, OK, PORT, Watch, host_look, port_look

GB = 1_000_000_000

# --- ports


@pytest.mark.parametrize(
    ("state", "physical", "worst"),
    [
        ("Active", "LinkUp", OK),
        ("4: ACTIVE", "5: LinkUp", OK),
        ("Down", "LinkUp", FAILED),
        ("Down", "Polling", FAILED),
        ("Down", "Disabled", FAILED),
        ("Initializing", "LinkUp", FAILED),
        ("Active", "LinkErrorRecovery", FAILED),
        ("Inactive", "LinkUp", FAILED),
        ("", "", FAILED),
    ],
)
def test_a_port_carries_only_when_active_and_linked(state: str, physical: str, worst: object) -> None:
    watched = Watch()
    assert watched.look(port_look(state, physical)) == worst
    if worst == FAILED:
        assert watched.worst.reason == f"port is {state or 'of unknown state'}/{physical or 'unknown'}"
        assert "cable" in watched.worst.action
    assert watched.look(port_look()) == OK


def test_a_port_that_is_slower_than_its_adapter() -> None:
    watched = Watch()
    assert watched.last(port_look(rate=200.0), 60) == DEGRADED
    assert watched.worst.reason == "runs at 200 of 400 Gb/s"
    assert watched.last(port_look(rate=100.0), 10) == DEGRADED
    assert watched.worst.reason == "runs at 100 of 400 Gb/s"
    assert watched.last(port_look(), 320) == OK


@pytest.mark.parametrize(("rate", "most"), [(400.0, 0.0), (0.0, 400.0), (396.0, 400.0), (400.0, 200.0)])
def test_rates_that_say_nothing(rate: float, most: float) -> None:
    assert Watch().last(port_look(rate=rate, most=most), 120) == OK


def test_a_slow_port_that_is_down_has_one_fault() -> None:
    watched = Watch()
    watched.last(port_look("Down", "Polling", rate=40.0), 120)
    assert [each.reason for each in watched.findings] == ["port is Down/Polling"]


@pytest.mark.parametrize("counter", ["symbol_error", "port_rcv_errors", "link_error_recovery"])
def test_errors_that_come_fast(counter: str) -> None:
    watched = Watch()
    watched.look(port_look(counters={counter: 70_000}))
    states = watched.looks(port_look(counters={counter: 70_000 + 2 * n}) for n in range(80))
    assert (states[10], states[-1]) == (OK, DEGRADED)
    assert f"counters now: {counter} 70" in watched.worst.evidence
    assert watched.changes == 1


def test_a_counter_that_was_cleared_is_no_error() -> None:
    watched = Watch()
    assert watched.looks(port_look(counters={"symbol_error": count}) for count in (65_535, 65_535, 0, 0)) == [OK] * 4


def test_a_tool_that_hangs_fails_what_it_hides_and_forgets_nothing() -> None:
    watched = Watch()
    hung = Readings(ports_error="ibstat hung: no answer in 10 s")
    assert watched.look(hung) == FAILED
    assert [each.device for each in watched.findings] == ["ibstat"]
    watched.looks([port_look(), port_look()])
    assert watched.findings == ()
    assert watched.look(hung) == FAILED
    assert [(each.device, each.reason) for each in watched.findings] == [(PORT, "ibstat hung: no answer in 10 s")]
    assert watched.look(port_look()) == OK


def test_an_error_beside_a_port_that_could_be_read_degrades_it() -> None:
    both = Readings(ports=port_look().ports, ports_error="perfquery hung")
    assert Watch().look(both) == DEGRADED


def test_a_flapping_port_stays_unstable_while_the_tool_hangs() -> None:
    watched = Watch()
    watched.looks(port_look() if n % 2 else port_look("Down", "Polling") for n in range(8))
    watched.last(Readings(ports_error="ibstat hung"), 600)
    assert watched.look(port_look()) == FAILED
    assert "unstable" in watched.worst.reason


# --- clock


@pytest.mark.parametrize(
    ("values", "seconds", "state", "reason"),
    [
        ({"clock_offset_s": 0.02, "clock_synchronised": True}, 3600, OK, ""),
        ({"clock_offset_s": -0.3}, 30, OK, ""),
        ({"clock_offset_s": -0.3}, 90, DEGRADED, "the clock is off by more than 0.1 s"),
        ({"clock_offset_s": 45.0}, 90, DRAINING, "the clock is off by more than 30 s"),
        ({"clock_synchronised": False}, 600, OK, ""),
        ({"clock_synchronised": False}, 1000, DEGRADED, "the clock is not synchronised"),
        ({}, 3600, OK, ""),
    ],
)
def test_the_clock(values: dict[str, object], seconds: float, state: object, reason: str) -> None:
    watched = Watch()
    assert watched.last(host_look(**values), seconds) == state
    if reason:
        assert (watched.worst.kind, watched.worst.device, watched.worst.reason) == (Kind.HOST, "clock", reason)
        assert watched.last(host_look(clock_offset_s=0.0, clock_synchronised=True), 310) == OK


# --- disks


def full(free: int, mount: str = "/data", error: str = "") -> Readings:
    return host_look(disks=(DiskReading(mount, 1000 * GB, free * GB, error),))


def test_a_full_disk_drains_the_node_only_where_runs_need_it() -> None:
    watched = Watch()
    assert watched.last(full(50), 60) == DEGRADED
    assert watched.worst.reason == "less than 10% of the disk is free"
    assert watched.worst.evidence == "50.0 of 1000.0 GB free"
    assert watched.last(full(5), 60) == DEGRADED
    watched = Watch(past=told(Watch().past, "disk", {"/data": 1.0}))
    assert watched.last(full(5), 60) == DRAINING
    assert watched.last(full(500), 70) == OK


def test_a_disk_that_cannot_be_read() -> None:
    watched = Watch()
    assert watched.last(full(0, error="Input/output error"), 60) == DEGRADED
    assert watched.worst.reason == "Input/output error"
    assert Watch(Rules(disk=DiskRules(ignore=("/data",)))).last(full(0), 60) == OK


def test_a_disk_of_no_size_is_no_disk() -> None:
    assert Watch().last(host_look(disks=(DiskReading("/proc", 0, 0),)), 60) == OK


# --- memory


def memory(available: int, stall: float | None = 0.0) -> Readings:
    return host_look(memory_total_bytes=1000 * GB, memory_available_bytes=available * GB, memory_stall_share=stall)


def test_memory() -> None:
    watched = Watch()
    assert watched.last(memory(500), 600) == OK
    assert watched.last(memory(20), 90) == DEGRADED
    assert watched.worst.reason == "less than 3% of the memory is available"
    assert watched.last(memory(500), 310) == OK
    assert watched.last(memory(500, 0.2), 90) == DEGRADED
    assert watched.last(memory(500, 0.8), 400) == DRAINING
    assert watched.worst.evidence == "stalled 80% of the last 60 s; 500.0 of 1000.0 GB available"
    assert (watched.worst.kind, watched.worst.device) == (Kind.HOST, "memory")


def test_a_kernel_without_pressure_information_says_nothing_of_it() -> None:
    assert Watch().last(memory(500, None), 600) == OK
