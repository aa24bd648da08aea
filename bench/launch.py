"""submit → all ranks running, and cancel → all gone: `python -m bench.launch [--agents 8] [--gpus 8] [--rounds 20] [--json]`.

A whole cluster on this machine: real etcd, scheduler, agents and processes; only the hardware is described. Each round submits a gang over
every GPU, waits until the scheduler says that every rank runs, cancels it, and waits until it has ended. The times are a client's:
its calls are in them. With all parts on one machine's cores the figure is an upper bound for the product and says so.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from fmclient import Client
from fmsched.offline.local import LocalCluster

MANIFEST = """
apiVersion: ai.example.com/v1alpha1
kind: FoundationModelTrainingJob
metadata: {{name: bench}}
spec:
  replicaCount: {replicas}
  resourceGroups:
    - {{name: cell, type: TensorParallel, gpusPerGroup: {gpus}, gpuRequirements: {{acceleratorType: H100}}}}
  template: {{command: [sleep, "3600"]}}
"""

CLUSTER = """
apiVersion: fmsched/v1
kind: Cluster
nodes:
  - {{name: "n[1-{agents}]", type: {type}, leaf: leaf1}}
"""


def wait_for_nodes(client: Client, count: int, timeout_s: float = 30.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while sum(node.state == "ready" for node in client.nodes().nodes) < count:
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"{count} nodes were not ready within {timeout_s:g} s")
        time.sleep(0.05)


def measure(client: Client, manifest: str, rounds: int) -> tuple[list[float], list[float]]:
    """Seconds from submit to running, and from cancel to ended, of each round."""
    started, gone = [], []
    for _ in range(rounds):
        began_s = time.perf_counter()
        job = client.submit(manifest)
        client.wait(job.spec.id, until="running", timeout_s=60)
        started.append(time.perf_counter() - began_s)
        began_s = time.perf_counter()
        client.cancel(job.spec.id)
        client.wait(job.spec.id, until="ended", timeout_s=60)
        gone.append(time.perf_counter() - began_s)
    return started, gone


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of all values do not exceed."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", type=int, default=8)
    parser.add_argument("--gpus", type=int, default=8, choices=[8])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    ranks = args.agents * args.gpus
    with tempfile.TemporaryDirectory(prefix="fmsched-bench-") as folder:
        root = Path(folder)
        cluster_file = root / "cluster.yaml"
        cluster_file.write_text(CLUSTER.format(agents=args.agents, type="hgx-h100"))
        nodes = [f"n{i}" for i in range(1, args.agents + 1)]
        with LocalCluster(root, cluster_file, nodes) as cluster, Client(cluster.server) as client:
            wait_for_nodes(client, args.agents)
            manifest = MANIFEST.format(replicas=args.agents, gpus=args.gpus)
            measure(client, manifest, 1)  # the first pays for imports
            started, gone = measure(client, manifest, args.rounds)
    rows = {"submit to all ranks running": started, "cancel to all gone": gone}
    print(f"{ranks} ranks on {args.agents} agents, {args.rounds} rounds, {os.cpu_count()} cores for all parts together")
    print(f"{'':<30}{'p50 s':>8}{'p99 s':>8}{'max s':>8}")
    for name, values in rows.items():
        print(f"{name:<30}{statistics.median(values):>8.3f}{quantile(values, 0.99):>8.3f}{max(values):>8.3f}")
    if args.json:
        figures = {
            "ranks": ranks, "agents": args.agents, "rounds": args.rounds, "cores": os.cpu_count(),
            "p50_s": statistics.median(started), "p99_s": quantile(started, 0.99), "max_s": max(started),
            "cancel_p50_s": statistics.median(gone), "cancel_p99_s": quantile(gone, 0.99),
        }  # fmt: skip
        print(json.dumps(figures))


if __name__ == "__main__":
    main()
