"""A live cluster for end-to-end tests: real etcd, scheduler and agents, described hardware, short time limits."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from fmclient import Client
from fmproto.v1 import job_pb2 as pb
from fmsched.offline.local import LocalCluster

T = TypeVar("T")

NODES = ("n1", "n2", "n3", "n4")
CLUSTER = """
apiVersion: fmsched/v1
kind: Cluster
nodes:
  - {name: "n[1-2]", type: hgx-h100, leaf: leaf1}
  - {name: "n[3-4]", type: hgx-h100, leaf: leaf2}
fabric:
  links:
    - {between: [leaf1, spine1], gbps: 400, count: 8}
    - {between: [leaf2, spine1], gbps: 400, count: 8}
"""

# A fence of 20 s and a loss after 30 s: long enough that a loaded test machine loses nobody by accident.
TIMEOUTS = {
    "unreachable_after_s": 6.0,
    "node_lost_after_s": 40.0,
    "agent_fence_after_s": 30.0,
    "agent_fence_grace_s": 5.0,
    "mass_lost_after_s": 120.0,
    "prepare_s": 30.0,
    "start_s": 30.0,
}


def until(what: str, probe: Callable[[], T | None], timeout_s: float = 30.0) -> T:
    """The first true answer of `probe`; AssertionError naming `what` and the last answer after `timeout_s`."""
    deadline_s = time.monotonic() + timeout_s
    answer: object = None
    while time.monotonic() < deadline_s:
        answer = probe()
        if answer:
            return answer  # type: ignore[return-value]
        time.sleep(0.05)
    raise AssertionError(f"{what}: not within {timeout_s:g} s; the last answer was {answer!r}")


def manifest(
    name: str, script: str, *, gpus: int = 2, replicas: int = 1, kind: str = "TensorParallel", extra: str = ""
) -> str:
    """A job whose ranks run `script` in a shell."""
    quoted = script.replace("'", "''")
    return f"""
apiVersion: ai.example.com/v1alpha1
kind: FoundationModelTrainingJob
metadata: {{name: {name}}}
spec:
  replicaCount: {replicas}
  resourceGroups:
    - {{name: cell, type: {kind}, gpusPerGroup: {gpus}}}
  template:
    command: ["/bin/sh", "-c", '{quoted}']
{extra}
"""


@contextmanager
def live(
    root: Path, *, nodes: tuple[str, ...] = NODES, period_s: float = 1.0, **options: object
) -> Iterator[tuple[LocalCluster, Client]]:
    """The cluster with every node ready, and a client. `period_s`: of the agents."""
    root.mkdir(parents=True, exist_ok=True)
    cluster_file = root / "cluster.yaml"
    cluster_file.write_text(CLUSTER)
    cluster = LocalCluster(
        root,
        cluster_file,
        nodes,
        agent={"period_s": period_s, "fence_after_s": 30.0, "fence_grace_s": 5.0},
        scheduler={"timeouts": TIMEOUTS, "etcd": {"election_ttl_s": 3.0}},
        **options,  # type: ignore[arg-type]
    )
    with cluster, Client(cluster.server, timeout_s=20, patience_s=60) as client:
        until("every node is ready", lambda: cluster.check() or ready(client) == len(nodes))  # type: ignore[func-returns-value]
        yield cluster, client
    assert not cluster.leftovers(), "processes were left behind"


def ready(client: Client) -> int:
    return sum(node.state == "ready" for node in client.nodes().nodes)


def state(client: Client, job: str) -> str:
    """ "running", "queued"…"""
    return pb.JobState.Name(client.get(job).status.state).removeprefix("JOB_STATE_").lower()


def starts(folder: Path) -> list[tuple[int, int, int]]:
    """(rank, attempt, pid) of every start that ranks of RECORD wrote down."""
    path = folder / "starts"
    if not path.exists():
        return []
    return [tuple(map(int, line.split())) for line in path.read_text().splitlines()]  # type: ignore[misc]


def record(folder: Path, then: str) -> str:
    """A script that writes down its start, then does `then`."""
    return f'echo "$RANK $FMSCHED_ATTEMPT $$" >> {folder}/starts; {then}'


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
