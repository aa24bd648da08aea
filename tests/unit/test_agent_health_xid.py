"""Xids: NVIDIA's classes, what stands until a reset, what repeats, and that two sources count once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fmagent.health.judge import forgiven
from fmagent.health.readings import Readings, XidEvent
from fmagent.health.rules import Rules, XidRules
from fmagent.health.xids import XidClass, catalogue, xid
from tests.support.health import DEGRADED, DRAINING, FAILED, GPU, OK, Watch, gpu_look, well

DAY = 86400.0


def seen(*codes: int, source: str = "nvml", text: str = "", **values: object) -> Readings:
    events = tuple(XidEvent(0.0, code, GPU, source=source, text=text) for code in codes)
    return replace(gpu_look(**values), xids=events)


def test_the_catalogue_is_whole() -> None:
    """Codes 1 to 172, each once, as in the catalogue."""
    assert sorted(catalogue()) == list(range(1, 173))
    names = [each.mnemonic for each in catalogue().values()]
    assert len(set(names)) == len(names)
    assert (catalogue()[79].mnemonic, catalogue()[79].kind) == (
        "ROBUST_CHANNEL_GPU_HAS_FALLEN_OFF_THE_BUS",
        XidClass.REBOOT,
    )


@pytest.mark.parametrize(
    ("code", "states", "words"),
    [
        (13, "OK OK OK", ""),
        (31, "OK OK OK", ""),
        (43, "OK OK OK", ""),
        (45, "OK OK OK", ""),
        (63, "OK OK OK", ""),
        (94, "OK OK OK", ""),
        (48, "DRAINING DRAINING DRAINING", "Xid 48 (ROBUST_CHANNEL_GPU_ECC_DBE)"),
        (64, "DRAINING DRAINING DRAINING", "Xid 64"),
        (79, "FAILED FAILED FAILED", "Xid 79"),
        (95, "FAILED FAILED FAILED", "Xid 95"),
        (119, "FAILED FAILED FAILED", "Xid 119 (GSP_RPC_TIMEOUT)"),
        (140, "FAILED FAILED FAILED", "Xid 140"),
        (74, "DEGRADED DEGRADED OK", "Xid 74 (NVLINK_ERROR)"),
        (145, "DEGRADED DEGRADED OK", "Xid 145"),
        (54, "DEGRADED DEGRADED OK", "Xid 54"),
        (78, "DEGRADED DEGRADED OK", "Xid 78"),
        (123, "DEGRADED DEGRADED OK", "Xid 123"),
        (901, "DRAINING DRAINING OK", "Xid 901 (not in NVIDIA's catalogue)"),
    ],
)
def test_classes(code: int, states: str, words: str) -> None:
    """At once, after half an hour and after a day without another."""
    watched = Watch()
    found = [watched.look(seen(code)), watched.last(gpu_look(), 1800)]
    if words:
        assert watched.worst.reason.startswith(words)
        assert watched.worst.action
    found.append(watched.last(gpu_look(), DAY, 300))
    assert " ".join(state.name for state in found) == states


def test_the_words_of_the_kernel_log_are_the_evidence() -> None:
    watched = Watch()
    watched.look(
        seen(
            119,
            source="kernel",
            text="pid=11, name=python3, Timeout after 6s of waiting for RPC response from GPU4 GSP!\x1b[0m",
        )
    )
    assert watched.worst.evidence.startswith("the kernel log: pid=11, name=python3, Timeout after 6s")
    assert watched.worst.action == "reset the GPU"


@pytest.mark.parametrize(
    "way",
    [
        [gpu_look(error="NVML_ERROR_GPU_IS_LOST"), gpu_look()],
        [gpu_look(error="missing: NVML no longer lists it"), gpu_look(error="NVML_ERROR_TIMEOUT"), gpu_look()],
        [seen(154, source="kernel", text="GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)")],
    ],
    ids=["lost and back", "unlisted and back", "154 none"],
)
def test_a_reset_ends_it(way: list[Readings]) -> None:
    watched = Watch()
    watched.look(seen(119))
    assert watched.looks(way)[-1] in (OK, FAILED)
    assert not [each for each in watched.findings if each.concern == "xid"]
    assert watched.last(gpu_look(), 60) == OK


def test_volatile_counters_that_fell_tell_of_a_reset() -> None:
    watched = Watch()
    watched.look(gpu_look(ecc_corrected=12))
    assert watched.look(seen(119, ecc_corrected=12)) == FAILED
    assert watched.look(gpu_look(ecc_corrected=13)) == FAILED
    assert watched.look(gpu_look(ecc_corrected=0)) == OK


def test_a_hang_of_nvml_is_no_reset() -> None:
    watched = Watch()
    watched.look(seen(119))
    watched.looks([Readings(gpus=(well(),), nvml_error="NVML hung"), gpu_look(error="NVML_ERROR_UNKNOWN"), gpu_look()])
    assert [each.reason for each in watched.findings if each.concern == "xid"] == ["Xid 119 (GSP_RPC_TIMEOUT)"]


def test_an_xid_after_the_reset_counts_anew() -> None:
    watched = Watch()
    watched.look(seen(79))
    lost = watched.look(gpu_look(error="NVML_ERROR_GPU_IS_LOST"))
    assert (lost, watched.look(seen(79))) == (FAILED, FAILED)
    assert [each.concern for each in watched.findings if each.concern == "xid"] == ["xid"]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)", XidClass.RESET),
        ("GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)", XidClass.REBOOT),
        ("GPU recovery action changed from 0x0 (None) to 0x3 (Drain P2P)", XidClass.RESET_LATER),
        ("GPU recovery action changed from 0x0 (None) to 0x4 (Drain and Reset)", XidClass.RESET_LATER),
        ("GPU recovery action changed from 0x2 (Node Reboot Required) to 0x0 (None)", XidClass.RECOVERED),
        ("GPU recovery action changed from 0x0 (None) to 0x9 (Sing)", XidClass.UNKNOWN),
        ("", XidClass.IGNORE),  # NVML's event has no words; the Xid that it belongs to has come as well
    ],
)
def test_154_says_itself_what_is_to_be_done(text: str, kind: XidClass) -> None:
    assert xid(154, text).kind is kind


def test_an_application_is_not_the_gpu_until_it_repeats() -> None:
    watched = Watch()
    assert watched.looks([seen(31)] * 4) == [OK] * 4
    assert watched.look(seen(31)) == DEGRADED
    assert watched.worst.reason == "Xid 31 (ROBUST_CHANNEL_FIFO_ERROR_MMU_ERR_FLT) again and again"
    assert watched.worst.evidence.startswith("5 times within 3600 s")
    assert watched.looks([seen(31)] * 4, 4000) == [OK] * 4


def test_links_that_repeat_drain() -> None:
    watched = Watch()
    assert watched.looks([seen(74)] * 5) == [DEGRADED] * 4 + [DRAINING]


def test_both_sources_tell_of_one_xid() -> None:
    """In one look, and the second one a look later."""
    both = replace(gpu_look(), xids=seen(31).xids + seen(31, source="kernel", text="pid=1").xids)
    assert Watch().looks([both] * 4) == [OK] * 4
    late = [seen(31), seen(31, source="kernel")] * 4
    assert Watch().looks(late) == [OK] * 8
    assert Watch().looks([both] * 5)[-1] == DEGRADED


def test_a_storm_costs_one_write() -> None:
    watched = Watch()
    watched.looks(seen(*[119] * 50, text=f"number {n}") for n in range(200))
    assert watched.changes == 1
    assert len(watched.past.memories["xid"].series) < 10


def test_a_gpu_that_nvml_never_listed_is_known_by_its_address() -> None:
    watched = Watch()
    event = XidEvent(0.0, 79, pci="0000:9b:00", source="kernel", text="GPU has fallen off the bus.")
    watched.look(replace(gpu_look(), xids=(event,)))
    assert (watched.worst.device, watched.worst.state) == ("0000:9b:00", FAILED)
    assert watched.last(gpu_look(), DAY, 600) == FAILED


def test_codes_may_be_ignored() -> None:
    assert Watch(Rules(xid=XidRules(ignore=(119,)))).look(seen(119)) == OK
    watched = Watch()
    watched.look(seen(119, 95))
    watched.rules = Rules(xid=XidRules(ignore=(119,)))
    watched.look(gpu_look())
    assert [each.reason for each in watched.findings] == ["Xid 95 (ROBUST_CHANNEL_UNCONTAINED_ERROR)"]


def test_the_rules_class_a_code_anew() -> None:
    rules = Rules(xid=XidRules(classes={31: XidClass.RESET, 901: XidClass.IGNORE, 119: XidClass.APPLICATION}))
    watched = Watch(rules)
    assert watched.look(seen(901, 119)) == OK
    assert watched.look(seen(31)) == FAILED
    assert watched.worst.reason == f"Xid 31 ({catalogue()[31].mnemonic})"
    watched.rules = Rules(xid=XidRules(classes={31: XidClass.IGNORE}))
    assert watched.look(gpu_look()) == OK, "what was held by the older rules goes"


def test_an_operator_forgives() -> None:
    watched = Watch()
    watched.look(seen(119, 95))
    watched.past, count = forgiven(watched.past, GPU)
    assert count == 2
    assert watched.look(gpu_look()) == OK
    assert forgiven(watched.past, "all")[1] == 0
