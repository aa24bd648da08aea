"""The client's values: addresses, manifests, placements, back-off, what an import costs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fmclient import Tls, placement_of
from fmclient.errors import InvalidManifest
from fmclient.manifest import MANIFEST_BYTES_MAX, manifest_text
from fmclient.retry import BACKOFF_FIRST_S, BACKOFF_MAX_S, Backoff
from fmclient.servers import Servers, parse_servers
from fmclient.states import WORDS, words
from fmproto.v1.job_pb2 import JobState
from tests.support.scripted_scheduler import job


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("h:1", ("h:1",)),
        ("a:1, b:2,a:1", ("a:1", "b:2")),
        ("[::1]:7070", ("[::1]:7070",)),
        ("sched.example.com:65535,", ("sched.example.com:65535",)),
    ],
)
def test_servers(text: str, expected: tuple[str, ...]) -> None:
    assert parse_servers(text) == expected


@pytest.mark.parametrize(
    "text", ["", ",", "host", "host:", ":7070", "host:0", "host:65536", "::1:7070", "http://h:1", "a:1 b:2"]
)
def test_what_is_no_server_is_named(text: str) -> None:
    with pytest.raises(ValueError, match="server "):
        parse_servers(text)


def test_the_server_comes_from_the_environment_else_from_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FMSCHED_SERVER", "there:1")
    assert parse_servers(None) == ("there:1",)
    monkeypatch.delenv("FMSCHED_SERVER")
    assert parse_servers(None) == ("127.0.0.1:7070",)


def test_a_server_that_failed_is_passed_over_once() -> None:
    servers = Servers(("a:1", "b:1"))
    servers.advance("a:1")
    servers.advance("a:1")  # another thread had the same failure
    assert servers.current == "b:1"
    assert servers.follow("c:1")
    assert not servers.follow("c:1")
    servers.advance("c:1")
    assert servers.current == "a:1"


def test_pauses_double_up_to_a_limit_and_are_spread() -> None:
    backoff = Backoff()
    pauses = [backoff.next_s() for _ in range(20)]
    assert BACKOFF_FIRST_S / 2 <= pauses[0] <= BACKOFF_FIRST_S
    assert all(BACKOFF_MAX_S / 2 <= pause <= BACKOFF_MAX_S for pause in pauses[10:])
    assert len(set(pauses[10:])) > 1
    backoff.reset()
    assert backoff.next_s() <= BACKOFF_FIRST_S


def test_a_manifest_is_text_bytes_path_or_mapping(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_bytes(b"\xef\xbb\xbfkind: x\n")
    assert manifest_text(tmp_path / "job.yaml") == "kind: x\n"
    assert manifest_text("kind: x") == manifest_text(b"kind: x") == "kind: x"
    assert manifest_text({"kind": "x"}) == '{\n  "kind": "x"\n}'
    with pytest.raises(FileNotFoundError):
        manifest_text(tmp_path / "none.yaml")


def test_a_manifest_that_is_not_utf8_is_refused_with_its_line() -> None:
    with pytest.raises(InvalidManifest, match="byte 0xff at offset 5 is not UTF-8") as caught:
        manifest_text(b"a: 1\n\xff")
    assert caught.value.violations[0].line == 2


def test_a_manifest_that_is_too_big_is_refused_before_it_is_sent() -> None:
    assert manifest_text("x" * MANIFEST_BYTES_MAX)
    with pytest.raises(InvalidManifest, match="1,048,577 bytes; at most 1,048,576"):
        manifest_text("x" * (MANIFEST_BYTES_MAX + 1))


def test_a_job_without_a_decision_has_no_placement() -> None:
    assert placement_of(job("a")) is None


def test_every_state_has_words_and_a_newer_one_its_number() -> None:
    assert set(WORDS) == set(JobState.values())
    assert len(set(WORDS.values())) == len(WORDS)
    assert words(99) == "state 99"


def test_tls_needs_certificate_and_key_together(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="go together"):
        Tls(cert_file=tmp_path / "cert.pem").credentials()
    with pytest.raises(FileNotFoundError):
        Tls(ca_file=tmp_path / "ca.pem").credentials()


def test_importing_the_client_brings_in_grpc_and_protobuf_and_no_scheduler() -> None:
    script = "import sys, fmclient; fmclient.Client; fmclient.AsyncClient; print(*sys.modules)"
    found = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=30, check=True
    ).stdout.split()
    tops = {name.partition(".")[0] for name in found}
    assert {"grpc", "google", "fmproto"} <= tops
    assert not tops & {"fmsched", "fmagent", "rich", "typer", "ruamel", "msgspec", "ortools", "networkx", "numpy", "etcd3"}


INTERRUPTED = """
import signal
from fmclient.transport import _signals_wait
signal.signal(signal.SIGINT, signal.default_int_handler)
try:
    with _signals_wait():
        signal.raise_signal(signal.SIGINT)
        print("whole", flush=True)
except KeyboardInterrupt:
    print("then interrupted", flush=True)
try:
    signal.raise_signal(signal.SIGINT)
except KeyboardInterrupt:
    print("and again", flush=True)
"""


def test_a_signal_does_not_come_between_the_two_halves_of_opening_a_stream() -> None:
    """In a process of its own: an interrupt that comes a moment late would end the one that runs the tests."""
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=30)
    assert done.stdout.splitlines() == ["whole", "then interrupted", "and again"], done.stderr
