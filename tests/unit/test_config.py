"""fm-scheduler's configuration: the sample parses, and each fault names the place, what was found and what is allowed."""

from __future__ import annotations

from pathlib import Path

import pytest

from fmsched.config import Config, ConfigError, load

SAMPLE = Path(__file__).resolve().parents[2] / "deploy/scheduler.toml"


def test_the_sample_is_valid_and_shows_the_defaults() -> None:
    sample, defaults = load(str(SAMPLE), {}), Config()
    assert sample.timeouts == defaults.timeouts
    assert len(sample.etcd.endpoints) == 3


def test_flags_go_over_the_file() -> None:
    assert load(str(SAMPLE), {"listen": "127.0.0.1:1", "etcd.endpoints": ["a:1"]}).etcd.endpoints == ("a:1",)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("lisen = 'x:1'", ["lisen"]),
        ("listen = 7070", ["listen", "int", "str"]),
        ("listen = 'nowhere'", ["listen", "nowhere", "host:port"]),
        ("[etcd]\nendpoints = []", ["etcd.endpoints"]),
        ("[etcd]\nendpoints = ['a']", ["etcd.endpoints", "'a'"]),
        ("[etcd]\nelection_ttl_s = 1", ["election_ttl_s", "at least 2"]),
        ("[timeouts]\nprepare_s = -1", ["timeouts.prepare_s", "-1"]),
        ("[timeouts]\nnode_lost_after_s = 70", ["node_lost_after_s", "70", "exceed"]),
        ("listen = ", ["bad.toml"]),
    ],
)
def test_faults_are_named(tmp_path: Path, text: str, words: list[str]) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(str(path), {})
    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nothing\.toml: No such file"):
        load(str(tmp_path / "nothing.toml"), {})
