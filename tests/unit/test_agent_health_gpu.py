"""The concerns about GPUs, each by a small series of looks."""

from __future__ import annotations

import math

import pytest

from fmagent.health.judge import told
from fmagent.health.readings import Readings
from fmagent.health.rules import NvlinkRules, PowerRules, Rules, ThermalRules
from tests.support.health import DEGRADED, DRAINING, FAILED, GPU, OK, Watch, gpu_look, links, well


def test_a_gpu_that_is_well_has_no_findings() -> None:
    watched = Watch()
    assert watched.last(gpu_look(), 3600, 60) == OK
    assert watched.changes == 0


def test_a_gpu_that_can_say_nothing_more_than_its_name_is_well() -> None:
    """An older card, or a virtual machine: what it cannot say is no fault."""
    values = dict.fromkeys(
        (
            "temperature_c",
            "slowdown_c",
            "ecc_uncorrected",
            "ecc_corrected",
            "retired_pages",
            "remap_pending",
            "remap_failed",
        )
    )
    assert Watch().last(gpu_look(**values, links=(), links_expected=0, fabric_state=""), 600) == OK


# --- lost


@pytest.mark.parametrize(
    ("error", "states"),
    [
        ("NVML_ERROR_GPU_IS_LOST", "FAILED FAILED"),
        ("missing: NVML no longer lists it", "FAILED FAILED"),
        ("NVML_ERROR_RESET_REQUIRED", "FAILED FAILED"),
        ("NVML hung in nvmlDeviceGetTemperature for 3 s", "DRAINING FAILED"),
        ("NVML_ERROR_UNKNOWN", "DRAINING FAILED"),
    ],
)
def test_a_gpu_that_cannot_be_read(error: str, states: str) -> None:
    """At once, and after a minute."""
    watched = Watch()
    watched.look(gpu_look())
    first = watched.look(gpu_look(error=error))
    assert (watched.worst.reason, watched.worst.concern) == (error, "lost")
    assert f"{first.name} {watched.last(gpu_look(error=error), 70).name}" == states
    assert watched.last(gpu_look(), 40) == OK


@pytest.mark.parametrize(
    ("error", "states"),
    [
        ("NVML hung: no answer in 20 s", "DRAINING FAILED"),
        ("NVML_ERROR_DRIVER_NOT_LOADED", "FAILED FAILED"),
        ("NVML_ERROR_LIB_RM_VERSION_MISMATCH", "DRAINING DRAINING"),  # what runs goes on
    ],
)
def test_nvml_as_a_whole(error: str, states: str) -> None:
    watched = Watch()
    watched.look(gpu_look())
    dumb = Readings(gpus=(well("GPU-0000"), well("GPU-0001")), nvml_error=error)
    first = watched.look(dumb)
    assert {each.device for each in watched.findings} == {"GPU-0000", "GPU-0001"}
    assert f"{first.name} {watched.last(dumb, 70).name}" == states


def test_an_nvml_that_hangs_once_in_a_while_fails_nothing() -> None:
    watched = Watch()
    hung, well_again = Readings(gpus=(well(),), nvml_error="NVML hung: no answer in 20 s"), gpu_look()
    states = watched.looks([hung if n % 40 == 0 else well_again for n in range(1, 200)])
    assert set(states) == {OK, DRAINING}


def test_a_gpu_in_mig_mode_is_not_granted_whole() -> None:
    watched = Watch()
    assert watched.look(gpu_look(mig_enabled=True)) == FAILED
    assert watched.worst.reason == "MIG mode is on; only whole GPUs are granted"
    assert "mig 0" in watched.worst.action


# --- ecc and remapped rows


def test_uncorrectable_errors_drain_until_the_counter_is_back_at_zero() -> None:
    watched = Watch()
    assert watched.looks([gpu_look(), gpu_look(ecc_uncorrected=1)]) == [OK, DRAINING]
    assert watched.worst.reason == "1 uncorrectable memory error since the driver started"
    assert watched.worst.action.startswith("reset the GPU")
    assert watched.last(gpu_look(ecc_uncorrected=1), 86400, 600) == DRAINING
    assert watched.changes == 1
    assert watched.look(gpu_look(ecc_uncorrected=0)) == OK


def test_a_rate_of_corrected_errors_drains_before_a_failure() -> None:
    watched = Watch()
    grown = watched.looks((gpu_look(ecc_corrected=10 * minute) for minute in range(180)), 60)
    assert (grown[5], grown[12], grown[-1]) == (OK, DEGRADED, DEGRADED)
    faster = watched.looks((gpu_look(ecc_corrected=1800 + 40 * minute) for minute in range(60)), 60)
    assert faster[-1] == DRAINING
    assert watched.worst.evidence.startswith("corrected ECC errors within 3600 s: 10")
    assert watched.changes == 2
    assert watched.last(gpu_look(ecc_corrected=4200), 3 * 3600, 60) == OK


def test_many_corrected_errors_of_long_ago_are_no_rate() -> None:
    assert Watch().last(gpu_look(ecc_corrected=5_000_000), 600) == OK


@pytest.mark.parametrize(
    ("values", "state", "words"),
    [
        ({"remap_pending": True, "remapped_uncorrectable": 2}, DRAINING, "a row remapping waits for a reset"),
        ({"remap_failed": True}, FAILED, "a row remapping failed"),
        ({"remap_failed": True, "remap_pending": True}, FAILED, "a row remapping failed"),
        ({"retired_pending": True, "retired_pages": 3}, DRAINING, "a page retirement waits"),
        (
            {"remapped_correctable": 200, "remapped_uncorrectable": 60},
            DEGRADED,
            "remapped rows near their end: 256 or more",
        ),
        ({"remapped_correctable": 448}, DRAINING, "remapped rows near their end: 448 or more"),
        ({"retired_pages": 30}, DEGRADED, "retired pages near their end: 30 or more"),
        ({"retired_pages": 61}, DRAINING, "retired pages near their end: 60 or more"),
        ({"remapped_correctable": 4}, OK, ""),
    ],
)
def test_rows_and_pages(values: dict[str, object], state: object, words: str) -> None:
    watched = Watch()
    assert watched.look(gpu_look(**values)) == state
    if words:
        assert watched.worst.reason.startswith(words)
        assert watched.worst.evidence
        assert watched.worst.action
    assert watched.look(gpu_look()) == OK


def test_rows_that_are_remapped_fast_drain_long_before_the_end() -> None:
    watched = Watch()
    assert watched.looks((gpu_look(remapped_correctable=100 + 2 * hour) for hour in range(8)), 3600)[-1] == OK
    assert watched.looks((gpu_look(remapped_correctable=116 + 2 * hour) for hour in range(8)), 3600)[-1] == DRAINING
    assert watched.worst.evidence == "rows remapped within 86400 s: 16"
    assert watched.last(gpu_look(remapped_correctable=130), 2 * 86400, 3600) == OK


def test_a_gpu_that_does_not_answer_is_not_healed_by_it() -> None:
    watched = Watch()
    watched.look(gpu_look(remap_pending=True))
    watched.last(gpu_look(remap_pending=None, retired_pending=None, error="NVML_ERROR_TIMEOUT"), 600)
    assert {each.concern for each in watched.findings} == {"lost", "remap"}


# --- nvlink


def fast(watched: Watch, gbytes_per_s: float = 900.0) -> Watch:
    watched.past = told(watched.past, "nvlink", {GPU: gbytes_per_s})
    return watched


def test_links_that_are_down_are_told_with_what_is_lost() -> None:
    watched = fast(Watch())
    assert watched.looks([gpu_look(), gpu_look(links=links(16)), gpu_look(links=links(16))]) == [OK, OK, DEGRADED]
    assert watched.worst.reason == "2 of 18 NVLinks down: 800 of 900 GB/s left"
    assert watched.worst.evidence == "inactive links: 16, 17"
    assert watched.look(gpu_look(links=links(15))) == DEGRADED
    assert watched.worst.reason == "3 of 18 NVLinks down: 750 of 900 GB/s left"
    assert watched.last(gpu_look(links=links(8)), 20) == DRAINING
    assert watched.worst.reason == "10 of 18 NVLinks down: 400 of 900 GB/s left"
    assert watched.last(gpu_look(), 310) == OK


def test_a_link_that_flaps_costs_few_writes() -> None:
    watched = fast(Watch())
    watched.looks(gpu_look(links=links(18 - n % 3)) for n in range(720))
    assert watched.changes <= 2


def test_a_link_that_was_down_from_the_start_is_seen_by_the_catalogue() -> None:
    watched = Watch()
    watched.last(gpu_look(links=links(17)), 20)
    assert watched.worst.reason == "1 of 18 NVLinks down"


def test_bridged_cards_have_the_links_that_their_bridges_give() -> None:
    pair = Readings(
        gpus=(
            well("GPU-0000", links=links(4, 12), links_expected=12),
            well("GPU-0001", links=links(4, 12), links_expected=12),
        )
    )
    watched = Watch()
    assert watched.last(pair, 60) == OK
    one_down = Readings(gpus=(pair.gpus[0], well("GPU-0001", links=links(3, 12), links_expected=12)))
    assert watched.last(one_down, 20) == DEGRADED
    assert (watched.worst.device, watched.worst.reason) == ("GPU-0001", "1 of 4 NVLinks down")


def test_cards_without_a_bridge_are_well() -> None:
    cards = tuple(well(f"GPU-000{n}", links=links(0, 12), links_expected=12) for n in range(4))
    assert Watch().last(Readings(gpus=cards), 60) == OK


def test_the_one_gpu_without_links_among_others_that_have_them_is_at_fault() -> None:
    cards = tuple(well(f"GPU-000{n}", links=links(0 if n == 2 else 18)) for n in range(8))
    watched = Watch()
    assert watched.last(Readings(gpus=cards), 60) == DRAINING
    assert (watched.worst.device, watched.worst.reason) == ("GPU-0002", "18 of 18 NVLinks down")


def test_a_rate_of_link_errors() -> None:
    watched = Watch()
    assert watched.looks(gpu_look(links=links(18, errors=5 * n)) for n in range(60))[-1] == DEGRADED
    assert "within 300 s" in watched.worst.evidence
    assert watched.looks(gpu_look(links=links(18, errors=300 + 500 * n)) for n in range(60))[-1] == DRAINING
    assert watched.last(gpu_look(links=links(18, errors=29_800)), 700) == OK


@pytest.mark.parametrize(
    ("values", "state", "words"),
    [
        ({"fabric_state": "in progress"}, DRAINING, "the NVLink fabric is not ready: in progress"),
        ({"fabric_state": "not started"}, DRAINING, "the NVLink fabric is not ready: not started"),
        (
            {"fabric_state": "completed", "fabric_status": "NVML_ERROR_UNKNOWN"},
            FAILED,
            "the NVLink fabric failed: NVML_ERROR_UNKNOWN",
        ),
        (
            {"fabric_state": "completed", "fabric_health": "degraded bandwidth"},
            DEGRADED,
            "the NVLink fabric is degraded: degraded bandwidth",
        ),
        ({"fabric_state": "not supported"}, OK, ""),
        ({"fabric_state": ""}, OK, ""),
    ],
)
def test_the_fabric(values: dict[str, object], state: object, words: str) -> None:
    watched = Watch()
    assert watched.look(gpu_look(**values)) == state
    if words:
        assert watched.worst.reason == words
    assert watched.look(gpu_look()) == OK


# --- heat and power


def test_throttling_for_heat_degrades_and_then_drains() -> None:
    watched = Watch()
    hot = gpu_look(temperature_c=82.0, throttle=frozenset({"hw_thermal", "hw_slowdown"}))
    states = watched.looks([hot] * 200)
    assert [states.index(state) * 5 for state in (DEGRADED, DRAINING)] == [60, 900]
    assert watched.worst.reason == "clocks are lowered for heat"
    assert watched.worst.evidence == "throttle reasons: hw_thermal; temperature 82 C"
    assert {each.concern for each in watched.findings} == {"thermal"}, "the heat explains the slowdown"
    assert watched.last(gpu_look(), 310) == OK


def test_a_moment_of_throttling_is_normal() -> None:
    watched = Watch()
    hot = gpu_look(throttle=frozenset({"sw_thermal"}))
    assert set(watched.looks([hot if n % 12 < 6 else gpu_look() for n in range(200)])) == {OK}


def test_near_the_limit() -> None:
    watched = Watch()
    assert watched.last(gpu_look(temperature_c=88.0), 90) == DEGRADED
    assert watched.worst.evidence == "temperature 88 C, slowdown at 90 C"
    assert Watch().last(gpu_look(memory_temperature_c=97.0), 90) == DEGRADED


def test_a_climbing_temperature_drains_before_the_hardware_slows_down() -> None:
    watched = Watch()
    series = [gpu_look(temperature_c=74.0 + n / 12) for n in range(140)]  # a degree a minute, up to 85.6
    states = watched.looks(series)
    assert DRAINING in states
    assert watched.worst.reason == "temperature climbs towards where the hardware slows down"
    assert "slowdown at 90 C in about" in watched.worst.evidence


def test_a_gpu_that_starts_to_work_is_not_climbing() -> None:
    warming = [gpu_look(temperature_c=min(35.0 + 2 * n, 84.0)) for n in range(200)]
    assert set(Watch().looks(warming)) == {OK}


def test_the_power_brake() -> None:
    watched = Watch()
    braked = gpu_look(power_w=250.0, throttle=frozenset({"hw_power_brake", "hw_slowdown"}))
    states = watched.looks([braked] * 200)
    assert [states.index(state) * 5 for state in (DEGRADED, DRAINING)] == [60, 900]
    assert watched.worst.evidence == "throttle reasons: hw_power_brake, hw_slowdown; 250 W of 700 W"


def test_a_power_cap_is_how_gpus_run() -> None:
    assert Watch().last(gpu_look(throttle=frozenset({"sw_power_cap"})), 3600) == OK


# --- rules


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_was_not_measured(value: float) -> None:
    look = gpu_look(temperature_c=value, memory_temperature_c=value, power_w=value, slowdown_c=value)
    assert Watch().last(look, 300) == OK


def test_a_concern_that_is_turned_off_finds_nothing() -> None:
    rules = Rules(thermal=ThermalRules(enabled=False), power=PowerRules(enabled=False), nvlink=NvlinkRules(enabled=False))
    sick = gpu_look(temperature_c=99.0, throttle=frozenset({"hw_thermal", "hw_power_brake"}), links=links(2))
    assert Watch(rules).last(sick, 3600) == OK
    assert Watch().last(sick, 3600) == DRAINING
