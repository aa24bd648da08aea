"""A real fm-scheduler over a real etcd whose nodes are described: what 1,250 agents would have written is written once.

Inventories and healths are those that `fm-agent --hardware FILE` makes of the same file. What a node runs is a run report, as an agent
writes it, so the scheduler counts those GPUs as held. No agent process runs: there are no beats, and the limits on silence are set so
high that nobody is missed. So what agents cost the scheduler (a beat of each every few seconds) is not in any time measured here.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from fmclient import Client
from fmproto import keys
from fmproto.described import describe_node
from fmproto.etcd import Etcd
from fmproto.kv import OPERATIONS_MAX, Conflict, Delete, Op, Put
from fmproto.v1 import hardware_pb2 as hw
from fmproto.v1 import job_pb2
from fmsched.offline.local import LocalCluster, LocalClusterError

NEVER_S = 86_400.0
TIMEOUTS = {
    "unreachable_after_s": NEVER_S,
    "node_lost_after_s": 2 * NEVER_S,
    "mass_lost_after_s": 2 * NEVER_S,
}
STARTS_MAX = 5
SEEN_S_MAX = 60.0
POLL_S = 0.05


class DescribedService:
    """Use as a context manager. `client` may ask it as soon as the block begins."""

    def __init__(self, root: Path, cluster_text: str, nodes: Sequence[str], gpus_per_node: int) -> None:
        root.mkdir(parents=True, exist_ok=True)
        cluster_file = root / "cluster.yaml"
        cluster_file.write_text(cluster_text)
        self._text, self._nodes, self._gpus = cluster_text, nodes, gpus_per_node
        self._root, self._file = root, cluster_file
        self._cluster: LocalCluster
        self._held: dict[tuple[str, str], tuple[int, ...]] = {}  # (node, job) → GPU indices
        self.client: Client

    def __enter__(self) -> DescribedService:
        self._start()
        try:
            self.client = Client(self._cluster.server)
            self._write([op for node in self._nodes for op in self._agent_of(node)])
        except BaseException:
            self.close()
            raise
        return self

    def _start(self) -> None:
        """Ports are looked up first and taken later: on a machine with much traffic another process may be quicker."""
        for attempt in range(STARTS_MAX):
            self._cluster = LocalCluster(self._root / f"{attempt}", self._file, (), scheduler={"timeouts": TIMEOUTS})
            try:
                self._cluster.__enter__()
            except LocalClusterError as error:
                if "address already in use" not in str(error) or attempt == STARTS_MAX - 1:
                    raise
            else:
                return

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if hasattr(self, "client"):
            self.client.close()
        self._cluster.close()

    @property
    def server(self) -> str:
        return self._cluster.server

    def hold(self, jobs: Mapping[str, Mapping[str, int]]) -> None:
        """From now on exactly these jobs run, each on so many GPUs of its nodes. Returns when the scheduler has seen it."""
        wanted = {(node, f"other-{job}"): gpus for job, nodes in jobs.items() for node, gpus in nodes.items()}
        gone = [place for place in self._held if place not in wanted]
        ops: list[Op] = [Delete(keys.run(node, job)) for node, job in gone]
        for place in gone:
            del self._held[place]
        taken: dict[str, set[int]] = {}
        for (node, _), indices in self._held.items():
            taken.setdefault(node, set()).update(indices)
        for (node, job), gpus in wanted.items():
            if (node, job) not in self._held:
                in_use = taken.setdefault(node, set())
                indices = tuple(index for index in range(self._gpus) if index not in in_use)[:gpus]
                assert len(indices) == gpus, f"{node}: {gpus} GPUs for {job}, and only {len(indices)} free"
                in_use.update(indices)
                self._held[node, job] = indices
                report = job_pb2.RunReport(
                    job=job, attempt=1, node=node, phase=job_pb2.RUN_PHASE_RUNNING, gpu_indices=indices
                )
                ops.append(Put(keys.run(node, job), report.SerializeToString()))
        self._write(ops)

    @property
    def pid(self) -> int:
        """Of the scheduler process."""
        return self._cluster.part("scheduler").pid

    def _agent_of(self, node: str) -> list[Op]:
        inventory, health = describe_node(self._text, node)
        inventory.address = inventory.address or "127.0.0.1"
        alive = hw.Alive(node=node, session="bench", beat=1, period_s=NEVER_S, fence_s=NEVER_S)
        return [
            Put(keys.inventory(node), inventory.SerializeToString()),
            Put(keys.health(node), health.SerializeToString()),
            Put(keys.alive(node), alive.SerializeToString()),
        ]

    def _write(self, ops: Sequence[Op]) -> None:
        revision = asyncio.run(self._written(ops)) if ops else 0
        deadline_s = time.monotonic() + SEEN_S_MAX
        while self.client.nodes().revision < revision:
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"the scheduler has not seen revision {revision} within {SEEN_S_MAX:g} s")
            time.sleep(POLL_S)

    async def _written(self, ops: Sequence[Op]) -> int:
        store = Etcd([self._cluster.etcd_endpoint])
        revision = 0
        try:
            for first in range(0, len(ops), OPERATIONS_MAX):
                outcome = await store.write([], ops[first : first + OPERATIONS_MAX])
                assert not isinstance(outcome, Conflict), "a write without guards cannot conflict"
                revision = outcome
        finally:
            await store.close()
        return revision
