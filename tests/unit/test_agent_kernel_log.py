"""Xids in the kernel log: every form of the line, and a log that is read without blocking, from now on."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fmagent.devices.kernel_log import EVENTS_MAX, PATH, KernelLog, place, xid_of
from tests.support.shared_data import shared

NEW = "NVRM: Xid (PCI:0000:3a:00): 119, pid=4242, name=python3, Timeout after 6s of waiting for RPC response from GPU2 GSP!"


@pytest.mark.parametrize(
    ("line", "pci", "code", "text"),
    [
        (NEW, "0000:3a:00", 119, "pid=4242, name=python3, Timeout after 6s of waiting for RPC response from GPU2 GSP!"),
        (f"[Mon Jan  5 10:11:12 2026] {NEW}", "0000:3a:00", 119, NEW.partition("119, ")[2]),
        (f"[74889.644138] {NEW}", "0000:3a:00", 119, NEW.partition("119, ")[2]),
        (f"Jan  5 10:11:12 n17 kernel: [  12.5] {NEW}", "0000:3a:00", 119, NEW.partition("119, ")[2]),
        (f"3,1041,74889644138,-;{NEW}", "0000:3a:00", 119, NEW.partition("119, ")[2]),
        (f"4,1041,74889644138,-,caller=T4242;{NEW}", "0000:3a:00", 119, NEW.partition("119, ")[2]),
        ("NVRM: Xid (0000:05:00): 14, Channel 00000001", "0000:05:00", 14, "Channel 00000001"),
        ("NVRM: Xid (PCI:0000:05:00): 79, GPU has fallen off the bus.", "0000:05:00", 79, "GPU has fallen off the bus."),
        (
            "NVRM: Xid (PCI:0000:05:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen",
            "0000:05:00",
            79,
            "pid='<unknown>', name=<unknown>, GPU has fallen",
        ),
        ("NVRM: Xid (PCI:00000002:41:00 GPU-I:05): 31, pid=7", "00000002:41:00", 31, "pid=7"),
        ("NVRM: Xid (PCI:0000:C1:00.0): 45", "0000:c1:00", 45, ""),
    ],
)
def test_every_form_of_the_line(line: str, pci: str, code: int, text: str) -> None:
    event = xid_of(line, 7.0)
    assert event is not None
    assert (event.at_s, event.pci, event.code, event.text, event.source, event.uuid) == (7.0, pci, code, text, "kernel", "")


@pytest.mark.parametrize(
    "line",
    [
        "",
        "NVRM: GPU at PCI:0000:9b:00: GPU-00000000-0000-0000-0000-000000000000",
        "NVRM: Xid (PCI:0000:9b:00): x",
        "NVRM: Xid (PCI:9b:00): 79",
        "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 12028, Non-fatal",
        f" SUBSYSTEM={NEW}",  # what kmsg appends to a record
        f"14,1041,74889644138,-;{NEW}",  # written by a program: facility 1, not the kernel's 0
    ],
)
def test_lines_that_tell_of_no_xid(line: str) -> None:
    assert xid_of(line, 0.0) is None


@given(st.text(max_size=300))
def test_no_line_raises(text: str) -> None:
    for line in (text, f"NVRM: Xid (PCI:0000:9b:00): {text}", f"3,1,1,-;NVRM: Xid ({text}"):
        xid_of(line, 0.0)


def test_a_huge_line_ends_fast() -> None:
    began_s = time.monotonic()
    for line in (
        "NVRM: Xid (" * 100_000,
        "NVRM: Xid (PCI:0000:9b:00" + " " * 1_000_000,
        "3," * 1_000_000,
        "\0" * 1_000_000,
    ):
        xid_of(line, 0.0)
    assert time.monotonic() - began_s < 0.5


def test_places_are_alike_however_they_are_written() -> None:
    assert place("00000000:9B:00.0") == place("0000:9b:00") == (0, 0x9B, 0)
    assert place("0001:9b:00") != place("0000:9b:00")
    assert place("") is None


def test_a_log_is_read_from_now_on(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text(f"{NEW}\n")
    log = KernelLog(path)
    assert log.read(1.0) == ()
    with path.open("a") as file:
        file.write(f"nothing\n{NEW}\n{NEW[:30]}")
        file.flush()
        assert [event.code for event in log.read(2.0)] == [119]
        file.write(f"{NEW[30:]}\n")
    assert [(event.code, event.at_s) for event in log.read(3.0)] == [(119, 3.0)]
    assert log.read(4.0) == ()
    log.close()
    log.close()
    assert log.read(5.0) == ()


def test_a_pipe_does_not_block(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    log = KernelLog(path)
    assert (log.read(1.0), log.fault) == ((), "")
    writer = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    assert log.read(2.0) == ()
    os.write(writer, f"3,1,1,-;{NEW}\n".encode())
    assert [event.code for event in log.read(3.0)] == [119]
    os.close(writer)
    log.close()


def test_a_storm_is_bounded_and_read_on(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.touch()
    log = KernelLog(path)
    with path.open("a") as file:
        file.writelines(f"{NEW}\n" for _ in range(3 * EVENTS_MAX))
    counts = [len(log.read(1.0)) for _ in range(4)]
    assert counts[0] == EVENTS_MAX
    assert counts[-1] == 0
    log.close()


def test_a_line_without_end_is_not_kept(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.touch()
    log = KernelLog(path)
    path.write_bytes(b"x" * 3_000_000)
    assert log.read(1.0) == ()
    with path.open("a") as file:
        file.write(f"\n{NEW}\n")
    assert [event.code for event in log.read(2.0)] == [119]
    log.close()


def test_a_log_that_is_absent_is_no_fault(tmp_path: Path) -> None:
    log = KernelLog(tmp_path / "none")
    assert "No such file" in log.fault
    assert log.read(1.0) == ()
    assert KernelLog(None).fault == ""


def test_the_real_log_does_not_block() -> None:
    log = KernelLog()
    began_s = time.monotonic()
    log.read(1.0)
    assert time.monotonic() - began_s < 1.0
    if not PATH.exists():
        assert log.fault
    log.close()


def test_real_logs() -> None:
    """Every Xid line of the collection, with the code that stands after its address."""
    read = 0
    for path in sorted(shared("nvsmi").glob("dmesg*.log")):
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        told = [line for line in lines if "NVRM: Xid (" in line]
        events = [event for line in lines if (event := xid_of(line, 0.0))]
        assert [f"): {event.code}," in line for event, line in zip(events, told, strict=True)] == [True] * len(told)
        assert len(told) > 0
        read += 1
    assert read >= 2


def test_an_xid_in_a_storm_of_other_records_is_found_at_once(tmp_path: Path) -> None:
    """Ten thousand records a second, over a look's period, one a read as /dev/kmsg gives them."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    log = KernelLog(path)
    writer = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    storm = [f"4,{n},{n},-;a driver says much, line {n}\n".encode() for n in range(50_000)]
    storm[40_000] = f"3,40000,1,-;{NEW}\n".encode()
    with pytest.MonkeyPatch.context() as patch:
        records = iter(storm)
        patch.setattr(log, "_next", lambda: next(records, None))
        began_s = time.process_time()
        assert [event.code for event in log.read(1.0)] == [119]
        assert time.process_time() - began_s < 2.0
    os.close(writer)
    log.close()
