"""A node that falls silent while it runs ranks: its fence ends them before its gang runs again elsewhere, whoever is dead."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from fmclient import Client
from fmsched.offline.local import LocalCluster
from tests.support.live import CLUSTER, alive, manifest, ready, starts, state, until

# Short, and in the order that the configuration demands: fence 6 + grace 1 < lost 12.
AGENT = {"period_s": 1.0, "fence_after_s": 6.0, "fence_grace_s": 1.0}
TIMEOUTS = {
    "unreachable_after_s": 3.0,
    "node_lost_after_s": 12.0,
    "agent_fence_after_s": 6.0,
    "agent_fence_grace_s": 1.0,
    "mass_lost_after_s": 120.0,
}
TICK = 'echo "$FMSCHED_ATTEMPT $FMSCHED_NODE $(cut -d\\  -f1 /proc/uptime)" >> {folder}/ticks'


def ticks(folder: Path) -> list[tuple[int, str, float]]:
    """(attempt, node, uptime in seconds) of every sign of life that a rank wrote."""
    path = folder / "ticks"
    rows = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
    return [(int(attempt), node, float(at)) for attempt, node, at in rows]


@pytest.mark.parametrize("how", ["agent killed", "agent frozen", "agent cut off, then back"])
def test_two_attempts_never_run_at_once(tmp_path: Path, how: str) -> None:
    cluster_file = tmp_path / "cluster.yaml"
    cluster_file.write_text(CLUSTER)
    local = LocalCluster(
        tmp_path / "cluster", cluster_file, ("n1", "n2", "n3", "n4"),
        agent=AGENT, scheduler={"timeouts": TIMEOUTS, "etcd": {"election_ttl_s": 3.0}},
    )  # fmt: skip
    with local, Client(local.server, timeout_s=20, patience_s=60) as client:
        until("every node is ready", lambda: ready(client) == 4)
        # Ranks that will not go by SIGTERM: only SIGKILL, at the end of the fence's grace, ends them.
        tick = TICK.format(folder=tmp_path)
        script = f'trap "" TERM; echo "$RANK $FMSCHED_ATTEMPT $$" >> {tmp_path}/starts; while :; do {tick}; sleep 0.2; done'
        text = manifest("gang", script, gpus=8, replicas=2).replace("  template:", "  gracePeriod: 2s\n  template:")
        job = client.submit(text).spec.id
        client.wait(job, until="running", timeout_s=30)
        victim = client.get(job).decision.ranks[0].node
        pids = [pid for _, _, pid in until("all have started", lambda: len(starts(tmp_path)) == 16 and starts(tmp_path))]
        agent = local.part(f"agent-{victim}")
        if how == "agent killed":
            agent.kill()
        else:
            os.kill(agent.pid, signal.SIGSTOP)
        again = until("it runs again elsewhere", lambda: (j := client.get(job)).decision.attempt == 2 and j, timeout_s=60)
        until("attempt 2 ticks", lambda: any(attempt == 2 for attempt, _, _ in ticks(tmp_path)))
        assert victim not in {rank.node for rank in again.decision.ranks}
        first = [at for attempt, node, at in ticks(tmp_path) if (attempt, node) == (1, victim)]
        second = [at for attempt, _, at in ticks(tmp_path) if attempt == 2]
        assert max(first) < min(second), "attempt 1 was still alive when attempt 2 began"
        assert not any(alive(pid) for pid in pids)
        if how == "agent cut off, then back":
            os.kill(agent.pid, signal.SIGCONT)
            until("the node is back, and clean", lambda: ready(client) == 4)
            until("its old report is gone", lambda: not any(run.attempt == 1 for run in client.get(job).runs))
            time.sleep(1)  # long enough for a revived attempt 1 to tick
            assert max(at for attempt, _, at in ticks(tmp_path) if attempt == 1) == max(
                at for attempt, node, at in ticks(tmp_path) if attempt == 1
            )
            assert state(client, job) == "running"
        client.cancel(job)
        client.wait(job, until="ended", timeout_s=60)
        os.kill(agent.pid, signal.SIGCONT) if agent.alive() else None
    assert not local.leftovers()
