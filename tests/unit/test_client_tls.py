"""Both clients over TLS, with certificates made by openssl for the test."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import grpc
import pytest

from fmclient import Tls, errors
from tests.support.both_clients import KINDS, Either
from tests.support.scripted_scheduler import Scheduler, Served

pytestmark = [
    pytest.mark.skipif(shutil.which("openssl") is None, reason="makes its certificates with openssl"),
    pytest.mark.parametrize("kind", KINDS),
]


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for the name "scheduler" that is its own authority, and another one that nobody trusts."""
    folder = tmp_path_factory.mktemp("pki")
    for name in ("scheduler", "stranger"):
        files = ("-keyout", folder / f"{name}.key", "-out", folder / f"{name}.pem")
        names = ("-subj", f"/CN={name}", "-addext", f"subjectAltName=DNS:{name}")
        command = ("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *files, *names)
        subprocess.run(command, check=True, capture_output=True, timeout=30)
    return folder


def served(pki: Path) -> Served:
    """Asks clients for a certificate of the same authority."""
    pair = ((pki / "scheduler.key").read_bytes(), (pki / "scheduler.pem").read_bytes())
    credentials = grpc.ssl_server_credentials([pair], root_certificates=pair[1], require_client_auth=True)
    return Served(Scheduler(), credentials=credentials)


def test_a_client_that_proves_who_it_is_is_served(kind: str, pki: Path) -> None:
    tls = Tls(pki / "scheduler.pem", pki / "scheduler.pem", pki / "scheduler.key", server_name="scheduler")
    with served(pki) as found, Either(kind, found.address, tls=tls) as client:
        assert client.call("version").version == "0.1.0"


@pytest.mark.parametrize(("ca", "pair"), [("stranger", "scheduler"), ("scheduler", "stranger"), ("scheduler", None)])
def test_neither_end_trusts_a_stranger(kind: str, pki: Path, ca: str, pair: str | None) -> None:
    cert, key = (pki / f"{pair}.pem", pki / f"{pair}.key") if pair else (None, None)
    tls = Tls(pki / f"{ca}.pem", cert, key, server_name="scheduler")
    with (
        served(pki) as found,
        Either(kind, found.address, tls=tls, retry_s=0.3) as client,
        pytest.raises(errors.Unreachable),
    ):
        client.call("version")
    assert found.scheduler.calls == []
