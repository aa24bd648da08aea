"""A fabric of 128 hosts that loses a cable, a host and a spine while the scheduler and agents run: ibsim's switches and adapters, the real
ibnetdiscover and ibstat over them, a real etcd, the real fm-scheduler and fm-agents."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fmclient import Client
from fmproto.dumptext import ReaderError
from fmproto.v1 import hardware_pb2 as hw
from fmsched.discovery import fabric_of
from fmsched.model.fabric import UNREACHABLE_HOPS, Topology
from fmsched.model.hardware import NodeShape
from fmsched.offline.local import LocalCluster, Part
from fmsched.store import codec
from fmsched.topology.graph import build_topology
from fmsched.topology.readers.ibnetdiscover import read
from tests.support.ibsim import IbSim, fat_tree, ibsim, require_ibsim
from tests.support.live import TIMEOUTS, until

LEAVES, SPINES, HOSTS, CABLES = 16, 2, 8, 2
CABLE_GBPS = 200.0  # 4xHDR
# opensm and ibnetdiscover run on hosts that nothing is cut from.
MANAGER, LOOKOUT = "H015-07", "H015-06"
# Node → its host. No node is named as its adapter describes itself: the agents' GUIDs tell whose it is.
NODES = {"gpu-1": "H000-00", "gpu-2": "H000-01", "gpu-3": "H001-00", "gpu-4": "H002-00"}
PERIOD_S = 1.0
# From a cut to what clients are told: one period, the tool's run, opensm's sweep where a port comes back, and a busy machine.
SEEN_S = PERIOD_S + 9.0


class Live:
    def __init__(self, sim: IbSim, client: Client) -> None:
        self.sim = sim
        self.client = client

    def topology(self) -> Topology:
        """As a client can derive it from what it is told."""
        answer = self.client.nodes()
        shapes: dict[NodeShape, NodeShape] = {}
        nodes = [codec.node_of(node.inventory, frozenset(), shapes) for node in answer.nodes]
        return build_topology(nodes, codec.fabric_of(answer.fabric))

    def path(self, a: str, b: str) -> tuple[int, float]:
        """(switches crossed, Gb/s of the switches' links on the way) between two nodes; the nodes' own ports are not in it."""
        topology = self.topology()
        i, j = topology.leaf_of[topology.index[a]], topology.leaf_of[topology.index[b]]
        return topology.hop_count(a, b), float(topology.path_gbps[i, j])

    def fabric(self) -> hw.Fabric:
        return self.client.nodes().fabric

    def switches(self) -> set[str]:
        return {switch.name for switch in self.fabric().switches}

    def port(self, node: str) -> tuple[str, int]:
        """(state in the inventory, health) of a node's only port."""
        found = next(entry for entry in self.client.nodes().nodes if entry.inventory.node == node)
        health = {port.device: port.state for port in found.health.hca_ports}
        return found.inventory.hca_ports[0].state, health["ibsim0/1"]

    def after(self, command: str, what: str, probe: Callable[[], bool]) -> None:
        """Gives ibsim a command; clients must see what it led to within SEEN_S."""
        self.sim.say(command)
        started_s = time.monotonic()
        until(f"{command}: {what}", probe, SEEN_S)
        print(f"{command}: {what} after {time.monotonic() - started_s:.2f} s")


def run_agent(cluster: LocalCluster, sim: IbSim, node: str) -> None:
    """A real agent whose `ibstat` sees the node's host; without a GPU driver it has no GPUs."""
    name = f"agent-{node}"
    config = cluster.root / f"{name}.toml"
    config.write_text(
        f'node = "{node}"\nlisten = "127.0.0.1:0"\naddress = "127.0.0.1"\nstate_dir = "{cluster.root / name}"\nperiod_s = 1.0\n'
        f'ibstat = ["{sim.at(NODES[node], "ibstat")}"]\n[etcd]\nendpoints = ["{cluster.etcd_endpoint}"]\n'
    )
    part = Part(name, [sys.executable, "-m", "fmagent", "--config", str(config)], cluster.root / f"{name}.log")
    cluster.parts[name] = part
    part.start()


@contextmanager
def running(folder: Path) -> Iterator[Live]:
    folder.mkdir()
    with ibsim(folder / "ib", fat_tree(LEAVES, SPINES, HOSTS, CABLES), MANAGER) as sim:
        discover = {"discover": [sim.at(LOOKOUT, "ibnetdiscover")], "period_s": PERIOD_S, "timeout_s": 20.0}
        scheduler = {"fabric": discover, "timeouts": TIMEOUTS, "etcd": {"election_ttl_s": 3.0}}
        cluster = LocalCluster(folder / "cluster", folder / "none.yaml", (), scheduler=scheduler)
        with cluster, Client(cluster.server, timeout_s=20, patience_s=60) as client:
            for node in NODES:
                run_agent(cluster, sim, node)
            live = Live(sim, client)
            until("every port is up", lambda: cluster.check() or ports_up(live), 40)  # type: ignore[func-returns-value]
            until("the fabric is known", lambda: cluster.check() or len(own_links(live.fabric())) == len(NODES), 20)  # type: ignore[func-returns-value]
            yield live
            cluster.check()


def ports_up(live: Live) -> bool:
    nodes = live.client.nodes().nodes
    return len(nodes) == len(NODES) and all(
        [port.state for port in node.inventory.hca_ports] == ["Active"]
        and [port.state for port in node.health.hca_ports] == [hw.HEALTH_STATE_OK]
        for node in nodes
    )


def own_links(fabric: hw.Fabric) -> dict[str, str]:
    """The leaf of each node that has a link."""
    links = {link.a: link.b for link in fabric.links} | {link.b: link.a for link in fabric.links}
    return {node: links[node] for node in NODES if node in links}


def test_every_format_of_the_tool_says_the_same(tmp_path: Path) -> None:
    require_ibsim()
    net = fat_tree(LEAVES, SPINES, HOSTS, CABLES)
    with ibsim(tmp_path / "ib", net, MANAGER) as sim:
        sim.say('Unlink "L003"[1]')
        plain = read(sim.run(LOOKOUT, "ibnetdiscover"), "plain")
        assert (len(plain.switches), len(plain.hosts)) == (LEAVES + SPINES, LEAVES * HOSTS - 1)
        assert len(plain.cables) == LEAVES * (HOSTS + SPINES * CABLES) - 1
        assert plain.complete
        for options in (["--full"], ["--group"], ["--show"], ["--ports"], ["--show", "--ports"], ["--max_hops"]):
            found = read(sim.run(LOOKOUT, "ibnetdiscover", *options), " ".join(options))
            assert found.complete, found.problems
            assert fabric_of(found) == fabric_of(plain), options
        with pytest.raises(ReaderError, match="a list of nodes"):
            read(sim.run(LOOKOUT, "ibnetdiscover", "--list"), "list")
    from_net_file = read(net, "net")
    assert len(from_net_file.cables) == len(plain.cables) + 1
    assert {host.name for host in plain.hosts} < {host.name for host in from_net_file.hosts}


@pytest.mark.timeout(180)
def test_cuts_are_seen_and_heal(tmp_path: Path) -> None:
    require_ibsim()
    with running(tmp_path / "run") as live:
        whole = live.fabric()
        assert sorted((switch.level, switch.name[:4]) for switch in whole.switches) == (
            [(0, "leaf")] * LEAVES + [(1, "spin")] * SPINES
        )
        assert len([link for link in whole.links if not link.hca]) == LEAVES * SPINES
        assert sum(bool(link.hca) for link in whole.links) == LEAVES * HOSTS
        assert own_links(whole) == {"gpu-1": "leaf-000", "gpu-2": "leaf-000", "gpu-3": "leaf-001", "gpu-4": "leaf-002"}
        assert {link.hca for link in whole.links if NODES.keys() & {link.a, link.b}} == {"ibsim0"}
        full_gbps = CABLES * CABLE_GBPS
        assert live.path("gpu-1", "gpu-2")[0] == 1
        assert live.path("gpu-1", "gpu-3") == (3, full_gbps)

        live.after('Unlink "S001"', "a spine is gone", lambda: "spine-001" not in live.switches())
        assert live.path("gpu-1", "gpu-3") == (3, full_gbps)  # by the other spine
        cut = f'"L000"[{HOSTS + 1}]'
        live.after(f"Unlink {cut}", "half of the way", lambda: live.path("gpu-1", "gpu-3") == (3, CABLE_GBPS))
        assert live.path("gpu-3", "gpu-4") == (3, full_gbps)
        other = f'"L000"[{HOSTS + 2}]'
        live.after(f"Unlink {other}", "no way", lambda: live.path("gpu-1", "gpu-3") == (UNREACHABLE_HOPS, 0.0))
        # What the tool cannot reach it cannot see: nothing is promised inside the leaf that is cut off.
        assert live.path("gpu-1", "gpu-2")[0] == UNREACHABLE_HOPS
        assert live.port("gpu-1") == ("Active", hw.HEALTH_STATE_OK)  # its cable to the leaf is whole

        live.after('Unlink "H002-00"', "the host has no leaf", lambda: "gpu-4" not in own_links(live.fabric()))
        until("its port is down", lambda: live.port("gpu-4") == ("Down", hw.HEALTH_STATE_FAILED), SEEN_S)
        assert live.path("gpu-3", "gpu-4") == (UNREACHABLE_HOPS, 0.0)
        assert live.port("gpu-3") == ("Active", hw.HEALTH_STATE_OK)

        live.after('ReLink "S001"', "the spine is back", lambda: live.path("gpu-1", "gpu-3") == (3, full_gbps))
        for command in (f"ReLink {cut}", f"ReLink {other}"):
            live.sim.say(command)
        live.after('ReLink "H002-00"', "all is as before", lambda: live.fabric() == whole)
        assert live.path("gpu-1", "gpu-4") == (3, full_gbps)
        until("its port is up", lambda: live.port("gpu-4")[0] == "Active", SEEN_S)
