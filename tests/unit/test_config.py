"""fm-scheduler's configuration: the sample parses, and each fault names the place, what was found and what is allowed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from fmsched.config import Config, ConfigError, load
from tests.support.etcd import make_certificates

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
        ("listen = '0.0.0.0:7070'", ["advertise", "0.0.0.0:7070", "clients reach"]),
        ("listen = '[::]:7070'", ["advertise", "[::]:7070"]),
        ("advertise = 'sched'", ["advertise", "'sched'", "host:port"]),
        ("[etcd]\nendpoints = ['https://a:1']", ["etcd.endpoints", "https://a:1", "host:port"]),
        ("[etcd]\nuser = 'fmsched'", ["etcd.user, etcd.password_file", "'fmsched' and ''", "both or neither"]),
        ("[tls]\ncrt = 'x'", ["tls", "crt"]),
        ("[tls]\ncert = 'x'", ["tls.cert, tls.key", "'x' and ''", "both or neither"]),
        ("[tls]\nclient_ca = 'x'", ["tls.client_ca", "'x'", "tls.cert is empty", "together with tls.cert and tls.key"]),
        ("[tls]\ncert = '/no/c'\nkey = '/no/k'", ["tls.cert", "'/no/c'", "No such file", "a PEM file"]),
        ("[tls.agents]\nkey = 'x'", ["tls.agents.cert, tls.agents.key", "'' and 'x'"]),
        ("[tls.agents]\ncert = 'x'\nkey = 'y'", ["tls.agents.ca", "tls.agents.cert is 'x'", "a PEM file"]),
        ("[tls.agents]\nca = '/no/ca'", ["tls.agents.ca", "'/no/ca'", "No such file"]),
        ("[[power]]\nname = 'a'\nnodes = 'n[1-'\nwatts = 9.0", ["power[0].nodes", "n[1-"]),
        ("[[power]]\nname = 'a'\nnodes = 'n1'\nwatts = -1.0", ["power[0].watts", "-1.0", "W, not negative"]),
        ("[[power]]\nname = ''\nnodes = 'n1'\nwatts = 1.0", ["power[0].name", "''", "each once"]),
        ("[prices]\nH100 = 2.5", ["prices", "'H100'", "such as h100"]),
        ("[prices]\nh100 = -2.5", ["prices.h100", "-2.5", "from 0"]),
        ("[etcd]\ncert = 'x'", ["etcd.cert, etcd.key", "'x' and ''"]),
        ("[etcd]\ncert = 'x'\nkey = 'y'", ["etcd.ca", "etcd.cert is 'x'", "no TLS"]),
    ],
)
def test_faults_are_named(tmp_path: Path, text: str, words: list[str]) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(str(path), {})
    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes its certificates with openssl")
def test_what_the_certificates_files_hold_is_checked(tmp_path: Path) -> None:
    client, cert, key = make_certificates(tmp_path)
    assert client.key is not None
    good = {"cert": cert, "key": key, "client_ca": client.ca}
    assert load(str(write(tmp_path, good)), {}).tls.client_ca == str(client.ca)
    empty = tmp_path / "empty.pem"
    empty.touch()
    locked = tmp_path / "locked.key"
    command = ["openssl", "ec", "-in", key, "-out", locked, "-aes256", "-passout", "pass:secret"]
    subprocess.run(command, check=True, capture_output=True)
    for wrong, words in (
        ({"key": client.key}, ["tls.cert, tls.key", str(client.key), "mismatch", "its own key"]),
        ({"cert": empty}, ["tls.cert, tls.key", str(empty), "a PEM certificate"]),
        ({"key": locked}, ["tls.cert, tls.key", str(locked), "not encrypted"]),
        ({"client_ca": empty}, ["tls.client_ca", str(empty), "PEM certificates"]),
        ({"key": tmp_path}, ["tls.key", str(tmp_path), "Is a directory"]),
    ):
        path = write(tmp_path, {**good, **wrong})
        with pytest.raises(ConfigError) as caught:
            load(str(path), {})
        assert all(word in str(caught.value) for word in [str(path), *words]), str(caught.value)


def write(folder: Path, tls: dict[str, Path]) -> Path:
    path = folder / "scheduler.toml"
    path.write_text("[tls]\n" + "".join(f"{key} = '{value}'\n" for key, value in tls.items()))
    return path


def test_a_missing_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nothing\.toml: No such file"):
        load(str(tmp_path / "nothing.toml"), {})
