"""sd_notify over a real socket, and the unit file as systemd reads it."""

from __future__ import annotations

import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from fmagent import systemd

UNIT = Path(__file__).resolve().parents[2] / "deploy/fm-agent.service"


def test_notify_reaches_the_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind("\0fm-agent-test-notify")
        receiver.settimeout(5)
        monkeypatch.setenv("NOTIFY_SOCKET", "@fm-agent-test-notify")
        systemd.notify("READY=1")
        assert receiver.recv(100) == b"READY=1"


def test_without_systemd_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"):
        monkeypatch.delenv(name, raising=False)
    systemd.notify("READY=1")
    assert systemd.watchdog_s() == 0.0


def test_the_watchdog_is_fed_twice_a_period(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WATCHDOG_PID", raising=False)
    monkeypatch.setenv("WATCHDOG_USEC", "60000000")
    assert systemd.watchdog_s() == 30.0
    monkeypatch.setenv("WATCHDOG_PID", "1")
    assert systemd.watchdog_s() == 0.0


def test_the_unit_leaves_ranks_alone_and_is_valid(tmp_path: Path) -> None:
    text = UNIT.read_text()
    assert "KillMode=process\n" in text
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is missing: the unit's keys are not checked")
    # The command of the unit is not installed where tests run.
    unit = tmp_path / "fm-agent.service"
    unit.write_text(text.replace("/opt/fmsched/bin/fm-agent", "/bin/true"))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--recursive-errors=no", str(unit)], capture_output=True, text=True, timeout=30
    )
    assert "Unknown key" not in done.stderr, done.stderr
    assert f"{unit}:" not in done.stderr, done.stderr
