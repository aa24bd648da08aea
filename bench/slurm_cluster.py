"""A live Slurm without any slurmd, for bench.slurm: Debian's slurmctld and munged, with nodes in State=CLOUD.

    cloud form    a CLOUD node starts powered down, yet may be given to jobs: slurmctld allocates it and waits for a boot that never ends
                  (ResumeTimeout), so `sbatch` holds nodes and `scancel` frees them. Every decision is made as with real nodes.
    one machine   each node has NodeAddr 127.0.0.1 and a port of its own (slurm.conf(5)): a node without an address has slurmctld look
                  its name up at each scancel, and stall.

Everything lies under one folder; the daemons run in the foreground as children, and end with the block. Nothing is installed here:
`missing()` names the Debian packages that are not there.
"""

from __future__ import annotations

import os
import pwd
import random
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from tests.support.etcd import free_port

from fmproto.hostlist import expand, fold
from fmsched.topology.clusterfile import ClusterFile, parse, to_snapshot
from fmsched.topology.export_slurm import write as topology_conf

# Daemons live in sbin, which is not on every user's PATH.
SEARCH_PATH = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/sbin"))
PROGRAMS = {
    "slurmctld": ("slurmctld",),
    "slurm-client": ("sbatch", "scancel", "scontrol", "sdiag", "sinfo", "squeue"),
    "munge": ("munged",),
}
PLUGINS = "slurm-wlm-basic-plugins"
UP_S, DOWN_S, SETTLE_S, COMMAND_S = 30.0, 5.0, 60.0, 60.0
POLL_S = 0.1
JOBS_MAX = 20_000
NODE_PORT = 20_001

Held = Mapping[str, Mapping[str, int]]  # job id → node → GPUs

# Nodes of the jobs that fill the cluster: many small ones, few large ones.
WHOLE_NODES = (1,) * 8 + (2,) * 6 + (4,) * 5 + (8,) * 4 + (16,) * 2 + (32,)

_TEST_ONLY = re.compile(r"to start at (\S+) using \d+ processors on nodes (\S+)")
_WILL_RUN = re.compile(r"REQUEST_JOB_WILL_RUN\s+\(\s*\d+\) count:(\d+)\s+ave_time:\d+\s+total_time:(\d+)")


def total(held: Held) -> int:
    """GPUs."""
    return sum(sum(nodes.values()) for nodes in held.values())


class SlurmError(Exception):
    """A command or daemon failed; the message ends with what it said."""


@dataclass(frozen=True, slots=True)
class Layout:
    """`nodes` under leaf switches of `nodes_per_leaf`, these under spines of `leaves_per_spine`, a core above them."""

    nodes: int
    gpus_per_node: int = 8
    nodes_per_leaf: int = 32
    leaves_per_spine: int = 10

    @property
    def leaves(self) -> int:
        return -(-self.nodes // self.nodes_per_leaf)

    @property
    def spines(self) -> int:
        return -(-self.leaves // self.leaves_per_spine)

    @property
    def names(self) -> list[str]:
        return [f"node{number:04d}" for number in range(1, self.nodes + 1)]

    def spans(self, nodes: Iterable[str]) -> tuple[int, int]:
        """(spines, leaves) that these nodes hang on."""
        leaves = {(int(name.removeprefix("node")) - 1) // self.nodes_per_leaf for name in nodes}
        return len({leaf // self.leaves_per_spine for leaf in leaves}), len(leaves)

    def cluster_file(self) -> str:
        """The same cluster for us. Slurm's topology.conf is written from it by our own exporter."""
        leaves = [f"leaf{number:03d}" for number in range(1, self.leaves + 1)]
        spines = [f"spine{number:02d}" for number in range(1, self.spines + 1)]
        lines = ["apiVersion: fmsched/v1", "kind: Cluster", "nodes:"]
        for number, leaf in enumerate(leaves):
            under = fold(self.names[number * self.nodes_per_leaf : (number + 1) * self.nodes_per_leaf])
            lines.append(f'  - {{name: "{under}", type: hgx-h200, leaf: {leaf}}}')
        lines += ["fabric:", "  switches:", f'    "{fold(leaves)}": 0', f'    "{fold(spines)}": 1']
        lines += ['    "core": 2'] if self.spines > 1 else []
        lines.append("  links:")
        for number, spine in enumerate(spines):
            of_spine = fold(leaves[number * self.leaves_per_spine : (number + 1) * self.leaves_per_spine])
            lines.append(f'    - {{between: ["{of_spine}", {spine}], gbps: 400, count: 32}}')
        lines += [f'    - {{between: ["{fold(spines)}", core], gbps: 400, count: 64}}'] if self.spines > 1 else []
        return "\n".join(lines) + "\n"


def missing() -> list[str]:
    """Debian packages of which a part is not on this machine."""
    packages = [name for name, programs in PROGRAMS.items() if any(_which(program) is None for program in programs)]
    if not any(Path("/usr/lib").glob("*/slurm-wlm/topology_tree.so")):
        packages.append(PLUGINS)
    return packages


def _which(program: str) -> str | None:
    return shutil.which(program, path=SEARCH_PATH)


@dataclass(frozen=True, slots=True)
class WillRun:
    """Slurm's answer to `sbatch --test-only`: where the job would start, now or later; no nodes: never, and what it said."""

    nodes: tuple[str, ...]
    said: str


@dataclass(slots=True)
class Slurm:
    """Use as a context manager."""

    root: Path
    layout: Layout
    _daemons: list[subprocess.Popen[bytes]] = field(default_factory=list)
    _ctld: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Slurm:
        self._write()
        try:
            munge = self.root / "run"
            self._start(
                "munged", "--foreground", "--force", f"--key-file={self.root / 'munge.key'}",
                f"--socket={munge / 'munge.socket'}", f"--pid-file={munge / 'munged.pid'}",
                f"--log-file={self.root / 'munged.log'}", f"--seed-file={munge / 'munge.seed'}", "--num-threads=4",
            )  # fmt: skip
            self._wait("munged", (munge / "munge.socket").exists)
            self._ctld = self._start("slurmctld", "-D", "-c", "-f", str(self.root / "slurm.conf"))
            self._wait("slurmctld", lambda: " is UP" in self._run("scontrol", "ping", check=False).stdout)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        for daemon in reversed(self._daemons):
            if daemon.poll() is None:
                daemon.terminate()
                try:
                    daemon.wait(DOWN_S)
                except subprocess.TimeoutExpired:
                    daemon.kill()
                    daemon.wait(DOWN_S)

    # --- what is asked of it

    def version(self) -> str:
        return self._run("sbatch", "--version").stdout.strip()

    def will_run(self, gpus: int, cell: int) -> tuple[WillRun, float]:
        """(its answer, seconds of the whole client call). Whole nodes are asked for by `-N n --gpus-per-node=8 --exclusive`, Slurm's
        fastest form; smaller cells as tasks: `--ntasks=n --gpus-per-task=CELL`."""
        command = self._ask(gpus, cell)
        began_s = time.perf_counter()
        done = self._run("sbatch", "--test-only", *command, "--wrap", "true", check=False)
        seconds = time.perf_counter() - began_s
        said = (done.stderr or done.stdout).strip()
        match = _TEST_ONLY.search(said)
        return WillRun(tuple(expand(match[2])) if match else (), said[-200:]), seconds

    def client_start_s(self, repeats: int) -> list[float]:
        """What starting the client program costs by itself: `sbatch --version` asks no server."""
        times = []
        for _ in range(repeats):
            began_s = time.perf_counter()
            self._run("sbatch", "--version")
            times.append(time.perf_counter() - began_s)
        return times

    def decisions(self) -> tuple[int, float]:
        """(will-run requests served since its start, seconds in its server for all of them), by sdiag."""
        match = _WILL_RUN.search(self._run("sdiag").stdout)
        return (int(match[1]), int(match[2]) / 1e6) if match else (0, 0.0)

    @property
    def pid(self) -> int:
        """Of slurmctld."""
        assert self._ctld is not None, "slurmctld was not started"
        return self._ctld.pid

    def held(self) -> dict[str, dict[str, int]]:
        """Job id → node → how many of its GPUs Slurm has given to the job."""
        lines = self._run("squeue", "-h", "-r", "-o", "%i %N %b").stdout.splitlines()
        jobs = (words for line in lines if len(words := line.split()) == 3)
        return {job: dict.fromkeys(expand(nodes), int(gres.rpartition(":")[2])) for job, nodes, gres in jobs}

    def idle(self) -> set[str]:
        lines = self._run("sinfo", "-h", "-t", "idle", "-o", "%N").stdout.split()
        return {name for line in lines for name in expand(line)}

    # --- filling it

    def fill(self, share: float, chance: random.Random, ragged: float = 0.0) -> None:
        """Jobs until every GPU is held, then random ones end until `share` of the GPUs is. They take whole nodes, 1 to 32, but for the
        share `ragged` of the nodes, which jobs of 1 to 7 GPUs fill."""
        in_parts = round(ragged * self.layout.nodes)
        left = self.layout.nodes - in_parts
        for _ in range(JOBS_MAX):
            if left <= 0:
                break
            left -= self._submit(min(chance.choice(WHOLE_NODES), left))
        wanted = (self.layout.nodes - in_parts) * self.layout.gpus_per_node
        self._settle(wanted)
        # As many of each size; what is left over of the last nodes stays free.
        for gpus in range(self.layout.gpus_per_node - 1, 0, -1):
            count = in_parts * self.layout.gpus_per_node // sum(range(self.layout.gpus_per_node))
            if count:
                part = (f"--array=1-{count}", "-N1", "-n1", "-c1", f"--gpus-per-node={gpus}", "-t", "60")
                self._run("sbatch", *part, "--output=/dev/null", "--wrap", "sleep 99999")
                wanted += count * gpus
        self._settle(wanted)
        self._end_down_to(share, chance)

    def change(self, share: float, turnover: float, chance: random.Random) -> None:
        """Another pattern: jobs on `turnover` of the nodes begin, then random ones end until `share` of the GPUs is held."""
        left = min(round(turnover * self.layout.nodes), len(self.idle()))
        wanted = total(self.held()) + left * self.layout.gpus_per_node
        for _ in range(JOBS_MAX):
            if left <= 0:
                break
            left -= self._submit(min(chance.choice(WHOLE_NODES), left))
        self._settle(wanted)
        self._end_down_to(share, chance)

    def _end_down_to(self, share: float, chance: random.Random) -> None:
        held = self.held()
        used = total(held)
        target = share * self.layout.nodes * self.layout.gpus_per_node
        jobs = sorted(held, key=lambda job: [int(part) for part in job.split("_")])
        chance.shuffle(jobs)
        ended = []
        for job in jobs:
            if used - sum(held[job].values()) >= target:
                used -= sum(held[job].values())
                ended.append(job)
        if ended:
            self._run("scancel", *ended)
        self._settle(used)

    def _submit(self, nodes: int) -> int:
        self._run("sbatch", *self._request(nodes), "--output=/dev/null", "--wrap", "sleep 99999")
        return nodes

    def _settle(self, gpus: int) -> None:
        """Until no job waits, so many GPUs are held, and every node that no job holds is idle."""
        deadline_s = time.monotonic() + SETTLE_S
        held: Held = {}
        while time.monotonic() < deadline_s:
            held = self.held()
            waiting = self._run("squeue", "-h", "-t", "PD", "-o", "%i").stdout.split()
            count = len({node for nodes in held.values() for node in nodes})
            if total(held) == gpus and not waiting and len(self.idle()) == self.layout.nodes - count:
                return
            time.sleep(POLL_S)
        raise SlurmError(
            f"not settled within {SETTLE_S:g} s: {total(held)} of {gpus} GPUs held, {len(self.idle())} nodes idle"
        )

    @staticmethod
    def _request(nodes: int) -> list[str]:
        return ["-N", str(nodes), "--gpus-per-node=8", "--exclusive", "-t", "60"]

    def _ask(self, gpus: int, cell: int) -> list[str]:
        if cell == self.layout.gpus_per_node:
            return self._request(gpus // cell)
        return [f"--ntasks={gpus // cell}", f"--gpus-per-task={cell}", "-c1", "-t", "60"]

    # --- its files and processes

    def _write(self) -> None:
        for name in ("run", "state", "spool"):
            (self.root / name).mkdir(parents=True, exist_ok=True)
        # munged refuses a socket that others could not reach, and a key that others could read.
        for folder in (self.root, self.root / "run"):
            folder.chmod(0o755)
        key = self.root / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        found = parse(self.layout.cluster_file())
        assert isinstance(found, ClusterFile), found
        (self.root / "topology.conf").write_text(topology_conf(to_snapshot(found).topology))
        gpus = self.layout.gpus_per_node
        (self.root / "gres.conf").write_text(f"AutoDetect=off\nName=gpu Type=h200 Count={gpus}\n")
        (self.root / "plugstack.conf").write_text("")
        (self.root / "slurm.conf").write_text(self._conf())

    def _conf(self) -> str:
        user = pwd.getpwuid(os.getuid()).pw_name
        names, count, root = fold(self.layout.names), self.layout.nodes, self.root
        # Of nodes; slurmctld may knock there to end a job, so none of our own parts may listen in this range.
        ports = range(NODE_PORT, NODE_PORT + count)
        port = next(port for port in iter(free_port, 0) if port not in ports)
        return f"""ClusterName=bench
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={root}/run/munge.socket
CredType=cred/munge
SlurmctldPidFile={root}/run/slurmctld.pid
SlurmctldLogFile={root}/slurmctld.log
SlurmctldDebug=error
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
ReturnToService=2
SlurmctldTimeout=300
SlurmdTimeout=0
InactiveLimit=0
MessageTimeout=60
TreeWidth=65533
SchedulerType=sched/backfill
SchedulerParameters=default_queue_depth=10000
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
TopologyPlugin=topology/tree
GresTypes=gpu
PriorityType=priority/basic
MaxJobCount=50000
RebootProgram=/bin/true
SuspendProgram=/bin/true
ResumeProgram=/bin/true
SuspendTime=INFINITE
ResumeTimeout=65000
SuspendTimeout=1
BatchStartTimeout=65000
PrivateData=cloud
NodeName={names} CPUs=128 Sockets=2 CoresPerSocket=64 ThreadsPerCore=1 RealMemory=2000000 Gres=gpu:h200:{self.layout.gpus_per_node} \
NodeHostname=localhost NodeAddr=127.0.0.1 Port=[{ports[0]}-{ports[-1]}] State=CLOUD
PartitionName=gpu Nodes={names} Default=YES MaxTime=INFINITE State=UP
"""

    def _environment(self) -> dict[str, str]:
        return {**os.environ, "PATH": SEARCH_PATH, "SLURM_CONF": str(self.root / "slurm.conf")}

    def _start(self, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        command = _which(program)
        if command is None:
            raise SlurmError(f"{program} is not on this machine")
        with (self.root / f"{program}.out").open("ab") as out:
            daemon = subprocess.Popen(
                [command, *arguments], stdout=out, stderr=out, stdin=subprocess.DEVNULL, env=self._environment()
            )
        self._daemons.append(daemon)
        return daemon

    def _wait(self, name: str, up: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + UP_S
        while time.monotonic() < deadline_s and self._daemons[-1].poll() is None:
            if up():
                return
            time.sleep(POLL_S / 2)
        tail = (self.root / f"{name}.out").read_text(errors="replace")[-1000:]
        raise SlurmError(f"{name} did not come up; it said:\n{tail}")

    def _run(self, program: str, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        command = _which(program)
        if command is None:
            raise SlurmError(f"{program} is not on this machine")
        done = subprocess.run(
            [command, *arguments],
            capture_output=True,
            text=True,
            env=self._environment(),
            cwd=self.root,
            timeout=COMMAND_S,
            check=False,
        )
        if check and done.returncode:
            raise SlurmError(f"{program} {' '.join(arguments)[:200]}: {(done.stderr or done.stdout).strip()[-300:]}")
        return done
