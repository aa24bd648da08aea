"""The agent's configuration: what is wrong is said with file, key, what was found and what is allowed."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from fmagent.config import AgentConfig, ConfigError, advertised, arguments_of, ephemeral_ports, load

ROOT = Path(__file__).resolve().parents[2]


def read(text: str, tmp_path: Path, *flags: str) -> AgentConfig:
    path = tmp_path / "agent.toml"
    path.write_text(text)
    return load(arguments_of(["--config", str(path), *flags]))


def test_flags_go_over_the_file(tmp_path: Path) -> None:
    text = 'node = "n1"\nperiod_s = 2\n[etcd]\nendpoints = ["a:1"]\n[labels]\nrack = "r1"\n'
    config = read(
        text, tmp_path, "--etcd", "b:2,[::1]:3", "--state-dir", "/x", "--listen", "127.0.0.1:0", "--fence-after", "9"
    )
    assert config.etcd.endpoints == ("b:2", "[::1]:3")
    assert (config.node, config.period_s, config.state_dir, config.fence_after_s) == ("n1", 2.0, "/x", 9.0)
    assert config.labels == {"rack": "r1"}


def test_the_sample_is_valid_and_complete() -> None:
    config = load(arguments_of(["--config", str(ROOT / "deploy/agent.toml")]))
    text = (ROOT / "deploy/agent.toml").read_text()
    # One that is active would give every host that the file is copied to the same name.
    assert config.node == socket.gethostname()
    missing = [key for key in AgentConfig.__struct_fields__ if key not in text]
    assert missing == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('node = "n1"\nperiod_s = "fast"', ["period_s: found 'fast'", "expected `float`"]),
        ('node = "n1"\nperiod_s = 0', ["period_s: found 0", "> 0.0"]),
        ('node = "n1"\nperoid_s = 5', ["peroid_s: unknown key", "did you mean period_s?"]),
        ('node = "n1"\n[etcd]\nendpoint = "a:1"', ["etcd.endpoint: unknown key", "did you mean endpoints?"]),
        ('node = "n1"\n[etcd]\nendpoints = ["http://a:1"]', ["etcd.endpoints", "found ['http://a:1']; allowed: host:port"]),
        ('node = "../x"', ["node: found '../x'"]),
        (
            'node = "n1"\nport_first = 30000\nport_last = 40000',
            ["port_first, port_last: found 30000-40000", "ip_local_port_range"],
        ),
        ('node = "n1"\nfence_after_s = 6', ["fence_after_s: found 6", "at least two periods"]),
        ('node = "n1"\n[etcd]\ncert = "x"', ["etcd.cert, etcd.key"]),
        ('node = "n1"\n[etcd]\ncert = "x"\nkey = "y"', ["etcd.ca: found ''", "etcd.cert is 'x'"]),
        ('node = "n1"\n[tls]\ncert = "x"', ["tls.cert, tls.key: found 'x' and ''", "both or neither"]),
        ('node = "n1"\n[tls]\nclient_ca = "x"', ["tls.client_ca: found 'x'", "only together with"]),
        ('node = "n1"\n[tls]\ncert = "/no/c"\nkey = "/no/k"', ["tls.cert: found '/no/c': No such file"]),
        ('node = "n1"\n[tls]\nclient_cas = "x"', ["tls.client_cas: unknown key", "did you mean client_ca?"]),
        ('node = "n1', ["not TOML"]),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, said: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        read(text, tmp_path)
    message = str(caught.value)
    assert str(tmp_path / "agent.toml") in message
    assert [part for part in said if part not in message] == [], message


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        load(arguments_of(["--config", str(tmp_path / "none")]))


def test_the_default_ports_are_outside_the_ephemeral_range() -> None:
    low, high = ephemeral_ports()
    config = AgentConfig(node="n1")
    assert config.port_last < low or config.port_first > high


@pytest.mark.parametrize(
    ("listen", "route", "said"),
    [
        ("127.0.0.1:7181", "10.0.0.5", "127.0.0.1:7"),
        ("[::1]:7181", "10.0.0.5", "[::1]:7"),
        ("gpu1.example:7181", "10.0.0.5", "gpu1.example:7"),
        ("0.0.0.0:7072", "10.0.0.5", "10.0.0.5:7"),
        ("[::]:7072", "fd00::5", "[fd00::5]:7"),
    ],
)
def test_an_agent_is_reached_where_it_listens(listen: str, route: str, said: str) -> None:
    assert advertised(listen, route, 7) == said
