"""Whatever a node says, the rules answer: never an exception, the same answer to the same look, and few changes however readings move."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from fmagent.devices.health_messages import health_of
from fmagent.health import record
from fmagent.health.findings import State
from fmagent.health.judge import CONCERNS, Past, judge
from fmagent.health.readings import DiskReading, GpuReading, HostReading, LinkReading, PortReading, Readings, XidEvent
from fmagent.health.rules import PortRules, Rules
from tests.support.health import Watch, port_look

UUIDS = ("GPU-0000", "GPU-0001", "unknown-2")
WORDS = st.sampled_from(
    ["", "Active", "Down", "LinkUp", "in progress", "completed", "NVML_ERROR_GPU_IS_LOST", "x" * 300, "\x00\x1b["]
)
FIGURES = st.one_of(st.none(), st.floats(), st.integers(0, 100).map(float))
COUNTS = st.one_of(st.none(), st.integers(0, 50), st.integers(0, 2**70))
MAYBE = st.sampled_from([None, True, False])
BYTES = st.integers(0, 2**50)

GPUS = st.builds(
    GpuReading,
    uuid=st.sampled_from(UUIDS),
    error=WORDS,
    temperature_c=FIGURES, slowdown_c=FIGURES, memory_temperature_c=FIGURES, power_w=FIGURES, power_limit_w=FIGURES,
    throttle=st.frozensets(st.sampled_from(["hw_slowdown", "hw_thermal", "sw_thermal", "hw_power_brake", "sw_power_cap", "?"])),
    ecc_uncorrected=COUNTS, ecc_corrected=COUNTS, retired_pages=COUNTS, remapped_correctable=COUNTS, remapped_uncorrectable=COUNTS,
    retired_pending=MAYBE, remap_pending=MAYBE, remap_failed=MAYBE,
    links=st.lists(st.builds(LinkReading, st.integers(0, 20), MAYBE, COUNTS), max_size=4).map(tuple),
    links_expected=st.integers(-1, 20),
    fabric_state=WORDS, fabric_status=WORDS, fabric_health=WORDS,
    mig_enabled=st.booleans(),
)  # fmt: skip
XIDS = st.builds(
    XidEvent, st.floats(), st.integers(-5, 200), st.sampled_from((*UUIDS, "")), st.sampled_from(("", "0000:9b:00")),
    st.sampled_from(("nvml", "kernel", "?")), WORDS,
)  # fmt: skip
PORTS = st.builds(
    PortReading, st.sampled_from(("mlx5_0/1", "mlx5_1/1")), WORDS, WORDS, WORDS, st.floats(), st.floats(),
    st.dictionaries(st.sampled_from(("symbol_error", "link_downed", "port_rcv_errors", "?")), st.integers(0, 2**70)),
)  # fmt: skip
HOSTS = st.builds(
    HostReading, FIGURES, MAYBE, BYTES, BYTES, FIGURES,
    st.lists(st.builds(DiskReading, st.sampled_from(("/", "/data")), st.integers(-1, 2**50), BYTES, WORDS), max_size=2).map(tuple),
)  # fmt: skip
LOOKS = st.builds(
    Readings,
    st.lists(GPUS, max_size=3, unique_by=lambda gpu: gpu.uuid).map(tuple),
    WORDS,
    st.lists(XIDS, max_size=4).map(tuple),
    st.lists(PORTS, max_size=2, unique_by=lambda port: port.device).map(tuple),
    WORDS,
    HOSTS,
)
GAPS_S = st.one_of(st.sampled_from([0.0, 5.0, 5.0, 5.0, 700.0]), st.floats(-1e9, 1e9))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(LOOKS, GAPS_S), max_size=4))
def test_no_reading_raises_and_the_answer_is_sound(series: Sequence[tuple[Readings, float]]) -> None:
    past, now_s = Past(), 1000.0
    for readings, gap_s in series:
        now_s += gap_s
        past, findings = judge(past, readings, Rules(), now_s)
        assert {each.state for each in findings} <= set(State) - {State.OK}
        assert all(each.reason and each.concern in CONCERNS for each in findings)
        # One finding a condition.
        assert len({(each.device, each.concern, each.reason, each.evidence) for each in findings}) == len(findings)
        health = health_of("n1", (gpu.uuid for gpu in readings.gpus), (port.device for port in readings.ports), findings)
        for device in (*health.gpus, *health.hca_ports, *health.disks, *health.host):
            assert device.state == max([each.state for each in device.findings], default=State.OK)
        # What is written can be read, and goes on as if nothing had been.
        again = record.read(record.written(past, "boot"), "boot")
        assert judge(again, readings, Rules(), now_s)[1] == judge(past, readings, Rules(), now_s)[1]


@settings(max_examples=30, deadline=None)
@given(st.lists(LOOKS, min_size=1, max_size=3))
def test_the_same_look_at_the_same_time_changes_nothing(series: Sequence[Readings]) -> None:
    """But for Xids, which are events: each counts."""
    past, now_s, findings = Past(), 1000.0, ()
    for readings in series:
        quiet = Readings(readings.gpus, readings.nvml_error, (), readings.ports, readings.ports_error, readings.host)
        now_s += 5.0
        past, findings = judge(past, quiet, Rules(), now_s)
        past, again = judge(past, quiet, Rules(), now_s)
        assert again == findings


@settings(max_examples=40, deadline=None)
@given(st.lists(st.booleans(), min_size=60, max_size=200))
def test_a_port_may_do_what_it_likes_and_writes_stay_few(ups: list[bool]) -> None:
    watched = Watch()
    watched.looks(port_look() if up else port_look("Down", "Polling") for up in ups)
    # At most: the changes before it counts as unstable, and its beginning and end, in each stretch between two quiet times.
    rules = PortRules()
    stretches = math.ceil(len(ups) * 5 / rules.quiet_s)
    assert watched.changes <= stretches * (rules.changes_max + 3)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(40, 110), min_size=50, max_size=150))
def test_a_temperature_may_do_what_it_likes_and_writes_stay_few(temperatures_c: list[int]) -> None:
    watched = Watch()
    gpus = [GpuReading("GPU-0000", temperature_c=float(heat), slowdown_c=90.0) for heat in temperatures_c]
    watched.looks(Readings(gpus=(gpu,)) for gpu in gpus)
    assert watched.changes <= 2 * (1 + len(gpus) * 5 // 300) + 2
