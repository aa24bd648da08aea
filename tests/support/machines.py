"""Two nodes whose agents read NVML and ibstat, as files say: real agents, the real pynvml over a fake library, a real cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from fmclient import Client
from fmclient.cli.nodes import fault_lines
from fmproto.v1 import scheduler_pb2 as pb
from fmsched.offline.local import LocalCluster
from tests.support import fake_nvml
from tests.support.live import TIMEOUTS, manifest, ready, until

GPUS = 4
ADAPTER = (
    "CA 'mlx5_0'\n CA type: MT4129\n Port 1:\n  State: {}\n  Physical state: {}\n  Rate: 400\n  Link layer: InfiniBand\n"
)
DEVICES_CLUSTER = """
apiVersion: fmsched/v1
kind: Cluster
nodes:
  - {name: "n[1-2]", type: hgx-h100, leaf: leaf1}
fabric: {}
"""


class Machines:
    """Two nodes of four GPUs that talk to NVML, and a file a node that says how its GPUs fare."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch, *, rules: str = "") -> None:
        self.root = root
        self.monkeypatch = monkeypatch
        cluster_file = root / "cluster.yaml"
        cluster_file.write_text(DEVICES_CLUSTER)
        self.rules = root / "health.toml"
        self.rules.write_text(
            f"{rules}[nvlink]\ndown_for_s = 0\n[disk]\nenabled = false\n[memory]\nenabled = false\n[clock]\nenabled = false\n"
        )
        common: dict[str, object] = {"period_s": 0.5, "hardware": "", "health_rules": str(self.rules), "kernel_log": ""}
        common["ibstat"] = ["sh", "-c", 'cat "$FAKE_NVML.ibstat" 2>/dev/null || true']
        scheduler = {"timeouts": TIMEOUTS, "etcd": {"election_ttl_s": 3.0}}
        self.local = LocalCluster(
            root / "cluster",
            cluster_file,
            (),
            agent={**common, "fence_after_s": 30.0, "fence_grace_s": 5.0},
            scheduler=scheduler,
        )

    def __enter__(self) -> Machines:
        self.local.__enter__()
        self.client = Client(self.local.server, timeout_s=20, patience_s=60).__enter__()
        for node in ("n1", "n2"):
            self.has(node)
            self.start(node)
        until(
            "both nodes are ready",
            lambda: ready(self.client) == 2 and all(len(self.node(n).inventory.gpus) == GPUS for n in ("n1", "n2")),
        )
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()
        self.local.close()
        assert not self.local.leftovers()

    def start(self, node: str) -> None:
        self.monkeypatch.setenv("FAKE_NVML", str(self.root / node))
        self.monkeypatch.setenv("LD_LIBRARY_PATH", str(fake_nvml.library_folder()))
        self.local.start_agent(node)

    def has(self, node: str, *more: str, slots: tuple[int, ...] = tuple(range(GPUS))) -> None:
        """What is wrong with its GPUs, and which slots NVML enumerates; each GPU's minor is its slot."""
        minors = [f"set {index} minor {slot}" for index, slot in enumerate(slots)]
        self._put(node, "\n".join([*fake_nvml.hgx(slots), *minors, *more]))

    def port(self, node: str, state: str = "Active", physical: str = "LinkUp") -> None:
        self._put(f"{node}.ibstat", ADAPTER.format(state, physical))

    def _put(self, name: str, text: str) -> None:
        # Whole or not at all: the agent reads while this writes.
        written = self.root / f"{name}.new"
        written.write_text(text)
        written.replace(self.root / name)

    def node(self, name: str) -> pb.Node:
        return next(each for each in self.client.nodes().nodes if each.name == name)

    def fault(self, node: str) -> str:
        """What `fmctl describe node` says is wrong."""
        return "\n".join(fault_lines(self.node(node)))

    def runs(self, name: str, gpus: int) -> set[tuple[str, int]]:
        """Submits a job that stays, and answers the GPUs that it got."""
        self.client.submit(manifest(name, "sleep 600", gpus=gpus))
        self.client.wait(name, until="running", timeout_s=30)
        return self.placed(name)

    def placed(self, name: str) -> set[tuple[str, int]]:
        return {(rank.node, rank.gpu_index) for rank in self.client.get(name).decision.ranks}
