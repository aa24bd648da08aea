"""A simulated InfiniBand fabric: Debian's ibsim and opensm, and the real tools of infiniband-diags, which its preloaded library joins to
the simulator. Each command runs as if on one host of the fabric.
"""

from __future__ import annotations

import contextlib
import shlex
import shutil
import subprocess
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

LIBRARY = "umad2sim/libumad2sim.so"
UP_S = 20.0


def library() -> Path | None:
    """The library that puts itself between the tools and the kernel's umad devices."""
    places = (Path("/usr/lib"), Path("/usr/lib64"), Path("/usr/local/lib"), *Path("/usr/lib").glob("*-linux-gnu"))
    return next((place / LIBRARY for place in places if (place / LIBRARY).is_file()), None)


def tool(name: str) -> str | None:
    return shutil.which(name, path="/usr/sbin:/sbin:/usr/bin:/bin:/usr/local/bin")


def require_ibsim() -> None:
    """Skips the test where a part is missing, and names it."""
    missing = [name for name in ("ibsim", "opensm", "ibnetdiscover", "ibstat") if tool(name) is None]
    if library() is None:
        missing.append(LIBRARY)
    if missing:
        pytest.skip(f"needs ibsim-utils, opensm and infiniband-diags; missing: {', '.join(missing)}")


def fat_tree(leaves: int, spines: int, hosts: int, cables: int) -> str:
    """A net file: two levels, `hosts` on each leaf, `cables` between each leaf and each spine, all 4xHDR. Hosts are H003-05 (on leaf L003,
    described as "bare-003-05 mlx5_0"), spines S000; a leaf's ports are its hosts from 1 on, then its cables, spine by spine."""
    lines = ["hcaguids=0x0002c90300000000", "switchguid=0x0002c90200000000", "devid=0x101b", ""]
    rate = "lid 0 4xHDR"

    def uplink(leaf: int, spine: int, cable: int) -> tuple[int, int]:
        return hosts + 1 + spine * cables + cable, leaf * cables + cable + 1

    for leaf in range(leaves):
        for host in range(hosts):
            lines += [f'Hca\t1 "H{leaf:03}-{host:02}"\t# "bare-{leaf:03}-{host:02} mlx5_0"']
            lines += [f'[1]\t"L{leaf:03}"[{host + 1}]\t# lid 0 lmc 0 "leaf-{leaf:03}" {rate}', ""]
    for leaf in range(leaves):
        lines.append(f'Switch\t{hosts + spines * cables} "L{leaf:03}"\t# "leaf-{leaf:03}" base port 0')
        lines += [
            f'[{host + 1}]\t"H{leaf:03}-{host:02}"[1]\t# "bare-{leaf:03}-{host:02} mlx5_0" {rate}' for host in range(hosts)
        ]
        for spine in range(spines):
            for cable in range(cables):
                near, far = uplink(leaf, spine, cable)
                lines.append(f'[{near}]\t"S{spine:03}"[{far}]\t# "spine-{spine:03}" {rate}')
        lines.append("")
    for spine in range(spines):
        lines.append(f'Switch\t{leaves * cables} "S{spine:03}"\t# "spine-{spine:03}" base port 0')
        for leaf in range(leaves):
            for cable in range(cables):
                near, far = uplink(leaf, spine, cable)
                lines.append(f'[{far}]\t"L{leaf:03}"[{near}]\t# "leaf-{leaf:03}" {rate}')
        lines.append("")
    return "\n".join(lines)


@dataclass(slots=True)
class IbSim:
    """Running: `say` takes ibsim's own commands; `at` makes a program of a tool on one host."""

    folder: Path
    socket: str
    process: subprocess.Popen[bytes]

    def say(self, command: str) -> None:
        """Such as: Unlink "L000"[9]; Unlink "S001"; ReLink "S001"."""
        assert self.process.stdin is not None, "ibsim was started with a pipe"
        self.process.stdin.write(f"{command}\n".encode())
        self.process.stdin.flush()

    def at(self, host: str, name: str) -> str:
        """The path of a script that runs the tool `name` on `host`, in a folder of its own: the library leaves files where it runs."""
        script = self.folder / "bin" / f"{name}-{host}"
        script.parent.mkdir(exist_ok=True)
        binary = tool(name)
        assert binary is not None, f"{name} is not installed"
        scratch = self.folder / "scratch"
        scratch.mkdir(exist_ok=True)
        words = [f"SIM_HOST={host}", f"IBSIM_SOCKNAME={self.socket}", f"LD_PRELOAD={library()}", binary]
        script.write_text(
            f"#!/bin/sh\nhere={shlex.quote(str(scratch))}/$$; mkdir -p $here && cd $here || exit 9\n"
            f'trap "rm -rf $here" EXIT\nenv {shlex.join(words)} "$@"\n'
        )
        script.chmod(0o755)
        return str(script)

    def run(self, host: str, name: str, *arguments: str) -> str:
        done = subprocess.run([self.at(host, name), *arguments], check=True, capture_output=True, text=True, timeout=UP_S)
        return done.stdout


@contextlib.contextmanager
def ibsim(folder: Path, net: str, manager: str) -> Iterator[IbSim]:
    """The fabric of a net file, with opensm on the host `manager`; yields once its port is Active."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "net").write_text(net)
    binary = tool("ibsim")
    assert binary is not None, "ibsim is not installed"
    # The sockets are abstract, and one name serves one simulator of a machine.
    socket = f"fmsched-{uuid.uuid4().hex[:12]}"
    log = (folder / "ibsim.log").open("wb")
    process = subprocess.Popen(
        [binary, "-s", "net"],
        cwd=folder,
        stdin=subprocess.PIPE,
        stdout=log,
        stderr=log,
        env={"IBSIM_SOCKNAME": socket, "PATH": "/usr/bin:/bin"},
    )
    opensm: subprocess.Popen[bytes] | None = None
    try:
        sim = IbSim(folder, socket, process)
        _wait("ibsim is ready", lambda: b"simulator ready" in (folder / "ibsim.log").read_bytes(), process)
        state = folder / "opensm"
        state.mkdir()
        opensm = subprocess.Popen(
            [str(tool("opensm")), "-s", "1", "-f", str(state / "log")],
            cwd=state,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={
                "SIM_HOST": manager, "IBSIM_SOCKNAME": socket, "LD_PRELOAD": str(library()), "OSM_TMP_DIR": str(state),
                "OSM_CACHE_DIR": str(state), "PATH": "/usr/sbin:/usr/bin:/bin",
            },
        )  # fmt: skip
        _wait("the subnet is up", lambda: "State: Active" in sim.run(manager, "ibstat"), opensm)
        yield sim
    finally:
        for child in (opensm, process):  # opensm first: without its fabric it does not end
            if child is not None:
                child.kill()
                child.wait()
        if process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
        log.close()


def _wait(what: str, probe: object, process: subprocess.Popen[bytes]) -> None:
    assert callable(probe)
    deadline_s = time.monotonic() + UP_S
    while time.monotonic() < deadline_s:
        if probe():
            return
        assert process.poll() is None, f"{what}: the process ended with {process.returncode}"
        time.sleep(0.1)
    raise AssertionError(f"{what}: not within {UP_S:g} s")
