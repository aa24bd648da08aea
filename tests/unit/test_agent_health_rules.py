"""The rules file: its sample tells the defaults, and what is wrong is said with key, what was found and what is allowed."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from fmagent.__main__ import health_rules, main
from fmagent.config import AgentConfig
from fmagent.health.judge import CONCERNS
from fmagent.health.rules import Rules, RulesError, parse
from fmagent.health.xids import XidClass

SAMPLE = Path(__file__).resolve().parents[2] / "deploy/health.toml"


def test_the_sample_has_every_key_with_its_default() -> None:
    text = SAMPLE.read_text(encoding="utf-8")
    assert parse(text, "health.toml") == Rules()
    said = {table: set(rows) for table, rows in tomllib.loads(text).items()}
    known = {table: set(getattr(Rules(), table).__struct_fields__) for table in Rules.__struct_fields__}
    assert said == known


def test_every_concern_has_its_rules() -> None:
    tables = {"port": "ports"}
    assert {tables.get(name, name) for name in CONCERNS} == set(Rules.__struct_fields__)


def test_an_empty_file_is_the_defaults_and_one_key_changes_one_thing() -> None:
    assert parse("", "x") == Rules()
    assert parse("\ufeff[power]\r\nfor_s = 3\r\n", "x").power.for_s == 3
    assert parse('[xid]\nclasses = { 94 = "reset_later" }', "x").xid.classes == {94: XidClass.RESET_LATER}
    rules = parse("[thermal]\nthrottle_for_s = 5\n[xid]\nignore = [43]", "x")
    assert (rules.thermal.throttle_for_s, rules.thermal.clear_s, rules.xid.ignore) == (5.0, 300.0, (43,))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[thermall]\n", ["thermall: unknown key", "did you mean thermal?", "Allowed: clock, disk, ecc"]),
        ("[thermal]\nfor = 3", ["thermal.for: unknown key", "did you mean for_s?"]),
        ("[thermal]\nfor_s = -3", ["thermal.for_s: found -3", ">= 0"]),
        ('[thermal]\nfor_s = "long"', ["thermal.for_s: found 'long'", "expected `float`"]),
        ("[thermal]\nfor_s = nan", ["thermal.for_s: found nan", "a number"]),
        ("[thermal]\nclear_s = inf", ["thermal.clear_s: found inf"]),
        ("[thermal]\nclear_s = 1e300", ["thermal.clear_s: found 1e+300", "<= 31622400"]),
        ("[thermal]\nenabled = 1", ["thermal.enabled: found 1", "expected `bool`"]),
        ("[ports]\nchanges_max = 0", ["ports.changes_max: found 0", ">= 1"]),
        ("[xid]\nignore = [0]", ["xid.ignore", "found [0]", ">= 1"]),
        (
            "[ecc]\ncorrected_degraded = 5000",
            ["ecc.corrected_degraded: found 5000", "at most ecc.corrected_draining, 1000"],
        ),
        ("[disk]\nfree_degraded = 0.01", ["disk.free_draining: found 0.02", "at most disk.free_degraded, 0.01"]),
        ("[disk]\nfree_degraded = 10", ["disk.free_degraded: found 10", "<= 1"]),
        ("thermal = 3", ["thermal: found 3", "expected `object`"]),
        ("[thermal", ["not TOML"]),
        ("[thermal]\nfoo = 1", ["thermal.foo: unknown key. Allowed: clear_s"]),
        ("[thermal]\n'' = 1", ["thermal.'': unknown key", "Allowed: clear_s"]),
        ('[thermal]\n"a\\nb" = 1', ["thermal.a b: unknown key"]),
        ("[ecc]\ncorrected_degraded = " + "9" * 5000, ["not TOML: an integer has too many digits"]),
        ("[thermal]\nfor_s = '" + "x" * 100_000 + "'", ["thermal.for_s: found 'xxx", "expected `float`"]),
        ("[[thermal]]\nfor_s = 3", ["thermal: found [{'for_s': 3}]", "expected `object`"]),
        ('[xid]\nclasses = { 94 = "often" }', ["xid.classes: found {'94': 'often'}"]),
        ('[xid]\nclasses = { often = "reset" }', ["xid.classes: found {'often': 'reset'}", "expected `int`"]),
        ('[xid]\nclasses = { 0 = "reset" }', ["xid.classes: found {'0': 'reset'}", ">= 1"]),
        ("a = " + "[" * 5000, ["health.toml: not"]),
    ],
)
def test_faults_are_named(text: str, said: list[str]) -> None:
    with pytest.raises(RulesError) as caught:
        parse(text, "health.toml")
    message = str(caught.value)
    assert message.startswith("health.toml: ")
    assert len(message) < 600
    assert message.isprintable(), "one line"
    assert [part for part in said if part not in message] == [], message


def test_the_agent_reads_the_file_that_its_configuration_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert health_rules(AgentConfig(node="n1")) == Rules()
    path = tmp_path / "health.toml"
    path.write_text("[power]\nenabled = false\n")
    assert not health_rules(AgentConfig(node="n1", health_rules=str(path))).power.enabled
    with pytest.raises(RulesError, match=r"health_rules: .*/none: found No such file or directory; allowed: a TOML file"):
        health_rules(AgentConfig(node="n1", health_rules=str(tmp_path / "none")))
    agent = tmp_path / "agent.toml"
    agent.write_text(f'node = "n1"\nstate_dir = "{tmp_path}/state"\nlisten = "127.0.0.1:0"\nhealth_rules = "{path}"\n')
    path.write_text("[power]\nfor_s = -1\n")
    assert main(["--config", str(agent)]) == 2
    assert f"fm-agent: {path}: power.for_s: found -1" in capsys.readouterr().err
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="not TOML"):
        health_rules(AgentConfig(node="n1", health_rules=str(path)))
