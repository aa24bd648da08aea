"""A cluster whose every gRPC connection is mutual TLS: clients to fm-scheduler, fm-scheduler to the agents' log servers."""

from __future__ import annotations

import os
import shutil
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest

from fmclient import Client, Tls
from fmproto.etcd import Tls as Files
from fmproto.v1 import agent_pb2, agent_pb2_grpc
from fmsched.offline.local import LocalCluster
from tests.support.etcd import make_certificates
from tests.support.live import CLUSTER, TIMEOUTS, manifest, ready, until

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="makes its certificates with openssl")

NODES = ("n1", "n3")


@dataclass(frozen=True, slots=True)
class Secured:
    local: LocalCluster
    client: Client
    files: Files  # a client's
    server_cert: Path
    server_key: Path

    def fmctl(self, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
        """No TLS but what is said."""
        rest = {name: value for name, value in os.environ.items() if not name.startswith("FMSCHED_")}
        command = [sys.executable, "-m", "fmclient.cli.main", "--server", self.local.server, *words]
        return subprocess.run(command, capture_output=True, text=True, env={**rest, **env}, timeout=60)

    def flags(self) -> list[str]:
        return ["--tls-ca", str(self.files.ca), "--tls-cert", str(self.files.cert), "--tls-key", str(self.files.key)]


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    root = tmp_path_factory.mktemp("tls")
    files, cert, key = make_certificates(root / "pki")
    cluster_file = root / "cluster.yaml"
    cluster_file.write_text(CLUSTER)
    own = {"cert": str(cert), "key": str(key), "client_ca": str(files.ca)}
    agents = {"ca": str(files.ca), "cert": str(files.cert), "key": str(files.key)}
    local = LocalCluster(
        root / "cluster",
        cluster_file,
        NODES,
        agent={"period_s": 1.0, "fence_after_s": 30.0, "fence_grace_s": 5.0, "tls": own},
        scheduler={"timeouts": TIMEOUTS, "etcd": {"election_ttl_s": 3.0}, "tls": own, "tls.agents": agents},
    )
    with local, Client(local.server, timeout_s=20, tls=Tls(files.ca, files.cert, files.key)) as client:
        until("every node is ready", lambda: local.check() or ready(client) == len(NODES))  # type: ignore[func-returns-value]
        yield Secured(local, client, files, cert, key)
    assert not local.leftovers(), "processes were left behind"


def test_a_job_runs_and_its_logs_come_through_the_agents_tls(secured: Secured) -> None:
    job = secured.client.submit(manifest("secret", "echo whispered by $RANK", gpus=8, replicas=2))
    secured.client.wait(job.spec.id, timeout_s=60)
    said = b"".join(chunk.data for chunk in secured.client.logs(job.spec.id)).decode()
    assert sorted(said.splitlines()) == sorted(f"whispered by {rank}" for rank in range(16))


def test_fmctl_takes_flags_and_variables(secured: Secured) -> None:
    files = secured.files
    by_flags = secured.fmctl(*secured.flags(), "get", "nodes", "-o", "name")
    assert (by_flags.returncode, by_flags.stdout.split()) == (0, list(NODES)), by_flags.stderr
    named = {"FMSCHED_TLS_CA": files.ca, "FMSCHED_TLS_CERT": files.cert, "FMSCHED_TLS_KEY": files.key}
    by_variables = secured.fmctl("get", "nodes", "-o", "name", **{name: str(path) for name, path in named.items()})
    assert (by_variables.returncode, by_variables.stdout.split()) == (0, list(NODES)), by_variables.stderr


def test_who_cannot_prove_who_he_is_reaches_nobody(secured: Secured, tmp_path: Path) -> None:
    stranger, _, _ = make_certificates(tmp_path / "stranger")
    for words in (
        [],
        ["--tls-ca", str(secured.files.ca)],
        ["--tls-ca", str(secured.files.ca), "--tls-cert", str(stranger.cert), "--tls-key", str(stranger.key)],
        ["--tls-ca", str(stranger.ca), "--tls-cert", str(secured.files.cert), "--tls-key", str(secured.files.key)],
    ):
        done = secured.fmctl(*words, "get", "nodes")
        assert done.returncode == 5, done.stderr
        assert secured.local.server in done.stderr
        assert "--tls-ca, --tls-cert and --tls-key must be what" in done.stderr
        assert "Traceback" not in done.stderr


def test_an_agent_shows_output_to_nobody_else(secured: Secured) -> None:
    address = _address(secured.local, "n1")
    ask = agent_pb2.PingRequest()
    for channel in (
        grpc.insecure_channel(address),
        grpc.secure_channel(address, grpc.ssl_channel_credentials(secured.files.ca.read_bytes())),
    ):
        with channel, pytest.raises(grpc.RpcError) as caught:
            agent_pb2_grpc.AgentStub(channel).Ping(ask, timeout=10)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    with grpc.secure_channel(address, secured.files.credentials()) as channel:
        assert agent_pb2_grpc.AgentStub(channel).Ping(ask, timeout=10).node == "n1"


def test_a_renewed_certificate_is_taken_without_a_restart(secured: Secured) -> None:
    before = _certificate_of(secured)
    good = secured.server_cert.read_bytes()
    secured.server_cert.write_bytes(good[:100])
    assert _certificate_of(secured) == before, "a half-written file must not stop the service"
    renewed = secured.server_cert.parent / "renewed.pem"
    sign = ["openssl", "x509", "-req", "-days", "2", "-CAcreateserial", "-in", "server.csr", "-extfile", "server.ext"]
    sign += ["-CA", "ca.pem", "-CAkey", "ca.key", "-out", renewed.name]
    subprocess.run(sign, check=True, capture_output=True, cwd=renewed.parent)
    renewed.replace(secured.server_cert)
    assert _certificate_of(secured) == ssl.PEM_cert_to_DER_cert(secured.server_cert.read_text()) != before


def _address(local: LocalCluster, node: str) -> str:
    config = (local.root / f"agent-{node}.toml").read_text()
    return next(line.split('"')[1] for line in config.splitlines() if line.startswith("listen"))


def _certificate_of(secured: Secured) -> bytes:
    """What fm-scheduler shows to a new connection, DER."""
    host, _, port = secured.local.server.rpartition(":")
    context = ssl.create_default_context(cafile=str(secured.files.ca))
    context.load_cert_chain(str(secured.files.cert), str(secured.files.key))
    context.set_alpn_protocols(["h2"])
    with (
        socket.create_connection((host, int(port)), timeout=10) as plain,
        context.wrap_socket(plain, server_hostname=host) as tls,
    ):
        shown = tls.getpeercert(binary_form=True)
    assert shown
    return shown
