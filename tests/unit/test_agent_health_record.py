"""What the rules remember over a restart of the agent, and what a reboot or an operator makes them forget."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fmagent.__main__ import main
from fmagent.devices.health_record import HealthRecord, boot_id
from fmagent.health import record
from fmagent.health.judge import Past, judge
from fmagent.health.readings import XidEvent
from fmagent.health.rules import Rules
from fmagent.runner.lock import hold_state_dir
from tests.support.health import FAILED, GPU, Watch, gpu_look, port_look


def sick() -> Watch:
    """A GPU that needs a reset, one with a throttled past, and a flapping port."""
    watched = Watch()
    watched.last(gpu_look(throttle=frozenset({"hw_thermal"})), 90)
    watched.look(replace(gpu_look(ecc_corrected=4), xids=(XidEvent(0.0, 119, GPU, text="GSP"),), ports=port_look().ports))
    for n in range(6):
        watched.look(replace(gpu_look(ecc_corrected=4), ports=port_look("Down" if n % 2 else "Active").ports))
    return watched


def test_a_record_says_again_what_was_remembered() -> None:
    past = sick().past
    assert record.read(record.written(past, "boot-1"), "boot-1") == past


def test_a_restarted_agent_finds_the_same_and_writes_nothing() -> None:
    before = sick()
    after = Watch(past=record.read(record.written(before.past, "b"), "b"), now_s=before.now_s)
    after.findings = before.findings
    after.look(replace(gpu_look(ecc_corrected=4), ports=port_look("Down").ports))
    assert after.changes == 0
    assert after.state == FAILED
    assert {each.concern for each in after.findings} >= {"xid", "port"}


def test_a_reset_while_the_agent_was_away_is_seen_by_the_counters() -> None:
    before = sick()
    after = Watch(past=record.read(record.written(before.past, "b"), "b"), now_s=before.now_s + 600)
    after.look(gpu_look(ecc_corrected=0))
    assert "xid" not in {each.concern for each in after.findings}


def test_a_reboot_forgets() -> None:
    assert record.read(record.written(sick().past, "boot-1"), "boot-2") == Past()
    assert record.read(record.written(sick().past, ""), "") == Past(), "nobody knows which boot this is"


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b'{"boot": 1}', b'{"boot": "b", "past": {"memories": {"xid": {"held": 3}}}}', b"[" * 100_000, b"\xff\x00"],
)
def test_a_record_that_cannot_be_read_is_set_aside(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "health.json"
    path.write_bytes(content)
    kept = HealthRecord(path, "b")
    assert kept.load() == Past()
    assert str(path) in kept.fault
    assert (tmp_path / "health.json.bad").read_bytes() == content
    assert kept.save(sick().past)
    assert HealthRecord(path, "b").load() == sick().past


def test_concerns_that_are_no_more_are_left_out() -> None:
    past = Past({**sick().past.memories, "tarot": sick().past.memories["xid"]})
    assert "tarot" not in record.read(record.written(past, "b"), "b").memories


def test_a_disk_that_takes_nothing_is_told(tmp_path: Path) -> None:
    assert not HealthRecord(tmp_path / "none/health.json", "b").save(Past())


def test_this_machine_has_a_boot() -> None:
    assert len(boot_id()) == 36
    assert boot_id() == boot_id()


# --- fm-agent --forgive


def command(state_dir: Path, device: str) -> int:
    config = state_dir.parent / "agent.toml"
    config.write_text(f'node = "n1"\nstate_dir = "{state_dir}"\n')
    return main(["--config", str(config), "--forgive", device])


def test_an_operator_forgives_one_gpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state_dir = tmp_path / "state"
    state_dir.mkdir()
    watched = Watch()
    watched.look(replace(gpu_look(), xids=(XidEvent(0.0, 119, GPU), XidEvent(0.0, 74, GPU))))
    kept = HealthRecord(state_dir / "health.json")
    kept.save(watched.past)
    assert command(state_dir, "GPU-0009") == 1
    assert "GPU-0009: 0 findings of Xids forgotten" in capsys.readouterr().out
    assert judge(kept.load(), gpu_look(), Rules(), watched.now_s)[1][0].state == FAILED
    assert command(state_dir, GPU) == 0
    assert "GPU-0000: 2 findings of Xids forgotten" in capsys.readouterr().out
    assert judge(kept.load(), gpu_look(), Rules(), watched.now_s)[1] == ()


def test_nobody_forgives_under_a_running_agent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state_dir = tmp_path / "state"
    with hold_state_dir(state_dir):
        assert command(state_dir, "all") == 2
    assert "another agent runs with this state directory" in capsys.readouterr().err
