"""The Cluster file: what it stands for, and what is said of its faults."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest

from fmproto.dumptext import Problem
from fmproto.nodetypes import builtin_types
from fmsched.model.hardware import GpuId
from fmsched.model.snapshot import Snapshot
from fmsched.topology.clusterfile import ClusterFile, parse, to_snapshot
from fmsched.topology.clustertext import write, write_json

FEEDS = """\
power:
  - {name: rack1, nodes: "n[01-03]", watts: 9000.5}
  - {name: hall, nodes: "n[01-04],s1", watts: 90000}
prices: {h100: 2.5, a100: 1.1}
"""
EXAMPLES = Path(__file__).parents[2] / "examples"
CLUSTERS = sorted(path for path in EXAMPLES.glob("*.yaml") if "kind: Cluster" in path.read_text())

FULL = """\
apiVersion: fmsched/v1
kind: Cluster
metadata: {name: lab}
nodeTypes:
  rail-box:
    base: hgx-h100
    hcas: {count: 4, rateGbps: 200}
  host:
    gpus: []
    hcas: [{name: mlx5_0, rateGbps: 200}, {name: mlx5_1, rateGbps: 0}, {name: mlx5_2, rateGbps: 200, state: Down/Disabled}]
  sliced:
    gpus:
      - {model: NVIDIA A100-SXM4-80GB, memoryGB: 80, mig: [3g.40gb, "1g.10gb+me"]}
      - {model: NVIDIA A100-SXM4-80GB, memoryGB: 80, mig: []}
      - {model: unknown, memoryGB: 0}
    hcas: [{name: mlx5_0, rateGbps: 200}, {name: eth0, rateGbps: 25, linkLayer: Ethernet}]
  mixed:
    gpus:
      - {model: NVIDIA A10, memoryGB: 24, count: 2}
      - {model: Frobnicator 9000, memoryGB: 33, family: frob}
    nvlink: {pairs: {0-1: 112.5}}
    hcas:
      - {name: mlx5_0, rateGbps: 100, near: [0, 1]}
      - {name: mlx5_0, port: 2, rateGbps: 25}
    cpus: 64
    memoryGB: 512
nodes:
  - {name: "n[01-04]", type: hgx-h100, leaf: "leaf[1-2]", nodesPerLeaf: 2, faults: {n03/gpu3: "Xid 79: fallen off the bus"}}
  - {name: "r[1-2]", type: rail-box, leaf: "rail[1-4]", faults: {r2/mlx5_1: "port down"}, labels: {zone: "7"}}
  - name: m1
    type: mixed
    leaf: leaf1
    address: 10.0.0.9
    socketInterface: eth0
    uuids: [GPU-aa, GPU-bb, GPU-cc]
    faults: {gpu2: "ECC", mlx5_0/2: unplugged}
  - {name: "t[1-2]", type: gb200-nvl72-tray, nvlinkDomain: rack1}
  - {name: "h[1-2]", type: host, leaf: leaf2, faults: {h2/mlx5_0: Down/Polling}}
  - {name: s1, type: sliced, leaf: leaf2}
fabric:
  switches: {"leaf[1-2]": 0, "rail[1-4]": 0, "spine[1-2]": 1}
  links:
    - {between: ["leaf[1-2]", spine1], gbps: 400, count: 4, measuredGbps: 120.5}
    - {between: ["leaf[1-2]", spine2], gbps: 400, count: 4}
    - {between: [spine1, "rail[1-4]"], gbps: 200}
    - {between: [spine2, "rail[1-4]"], gbps: 200, down: true}
    - {between: [t1, leaf2], gbps: 400, hca: mlx5_3}
    - {between: ["h[1-2]", leaf1], gbps: 0, hca: mlx5_0}
busy:
  job-1: "n01,n02/gpu[0-3]"
  job-2: [n04/gpu7, m1/gpu0]
closed: {t2: "repair"}
reserved:
  - {job: job-1, between: [spine1, leaf1], gbps: 100}
  - {job: job-2, between: [leaf1, spine2], gbps: 62.5}
problems:
  - {file: net.txt, line: 12, what: "cut row", why: "the file ends there"}
  - {file: "7", what: "", why: "the whole file"}
"""


def read(text: str) -> ClusterFile:
    cluster = parse(text)
    assert isinstance(cluster, ClusterFile), [str(fault) for fault in cluster]
    return cluster


@pytest.fixture(scope="module")
def snapshot() -> Snapshot:
    return to_snapshot(read(FULL))


def test_what_is_held_sick_and_closed(snapshot: Snapshot) -> None:
    assert set(snapshot.held) == {
        *(GpuId("n01", i) for i in range(8)),
        *(GpuId("n02", i) for i in range(4)),
        GpuId("n04", 7),
        GpuId("m1", 0),
    }
    assert snapshot.held[GpuId("n04", 7)] == "job-2"
    mig = "MIG mode is on; only whole GPUs are granted"
    sliced = {GpuId("s1", 0): mig, GpuId("s1", 1): mig}
    assert snapshot.unfit == {GpuId("n03", 3): "Xid 79: fallen off the bus", GpuId("m1", 2): "ECC", **sliced}
    assert snapshot.closed == {"t2": "repair"}


def test_traffic_is_measured_on_each_pair_of_switches(snapshot: Snapshot) -> None:
    assert snapshot.links_measured == {("leaf1", "spine1"): 120.5, ("leaf2", "spine1"): 120.5}
    assert snapshot.emptied().links_measured == {}


def test_links_are_reserved_by_job(snapshot: Snapshot) -> None:
    assert snapshot.links_held == {"job-1": {("leaf1", "spine1"): 100}, "job-2": {("leaf1", "spine2"): 62.5}}
    assert snapshot.emptied().links_held == {}


def test_nodes_of_one_type_share_one_shape(snapshot: Snapshot) -> None:
    topology = snapshot.topology
    assert topology.node("n01").shape is topology.node("n04").shape
    mixed = topology.node("m1")
    assert [(gpu.family, gpu.memory_gb) for gpu in mixed.shape.gpus] == [("a10", 24.0), ("a10", 24.0), ("frob", 33.0)]
    assert mixed.shape.gpus[2].model == "Frobnicator 9000"
    assert mixed.shape.nvlink == ((0.0, 112.5, 0.0), (112.5, 0.0, 0.0), (0.0, 0.0, 0.0))
    assert mixed.uuids == ("GPU-aa", "GPU-bb", "GPU-cc")
    assert (mixed.address, mixed.socket_interface) == ("10.0.0.9", "eth0")
    assert [hca.near for hca in topology.node("r1").shape.hcas] == [(0, 1), (2, 3), (4, 5), (6, 7)]
    assert topology.nvlink_gbytes_per_s("t1", 0, "t2", 3) == 1800.0


def test_hosts_without_gpus_ports_that_are_down_and_ethernet_beside_infiniband(snapshot: Snapshot) -> None:
    topology = snapshot.topology
    assert topology.node("h1").shape.gpus == ()
    assert [hca.name for hca in topology.node("h1").shape.hcas] == ["mlx5_0", "mlx5_1"]
    assert [hca.name for hca in topology.node("h2").shape.hcas] == ["mlx5_1"]
    assert [(hca.name, hca.rate_gbps) for hca in topology.node("s1").shape.hcas] == [("mlx5_0", 200.0)]
    links = {(link.a, link.b, link.hca): link.down for link in topology.fabric.links}
    # A port that faults or the type take away is down wherever a row names it; another cable of the node is not.
    assert links["h1", "leaf1", "mlx5_0"] is False
    assert links["h2", "leaf1", "mlx5_0"] is True
    assert (links["h1", "leaf2", "mlx5_0"], links["h1", "leaf2", "mlx5_2"]) == (False, True)
    assert ("s1", "leaf2", "eth0") not in links


def test_links_of_unknown_rate_join(snapshot: Snapshot) -> None:
    topology = snapshot.topology
    assert topology.leaves[topology.leaf_of[topology.index["h1"]]] == "leaf[1-2]"
    text = (
        NODES.replace("leaf: leaf1", 'leaf: "leaf[1-2]", nodesPerLeaf: 1')
        + "fabric: {links: [{between: [leaf1, leaf2], gbps: 0}]}\n"
    )
    topology = to_snapshot(read(text)).topology
    assert topology.hop_count("n1", "n2") == 2
    assert topology.link_gbps("n1", "n2") == 0.0


def test_problems_are_kept() -> None:
    assert read(FULL).problems == (
        Problem("net.txt", 12, "cut row", "the file ends there"),
        Problem("7", 0, "", "the whole file"),
    )


def test_where_nodes_hang(snapshot: Snapshot) -> None:
    topology = snapshot.topology
    assert topology.leaves[topology.leaf_of[topology.index["n02"]]] == "leaf1"
    assert topology.leaves[topology.leaf_of[topology.index["n03"]]] == "leaf2"
    assert topology.leaves[topology.leaf_of[topology.index["r1"]]] == "rail[1-4]"
    assert topology.leaves[topology.leaf_of[topology.index["r2"]]] == "rail[1,3-4]"  # its second port is down
    assert topology.hop_count("n01", "m1") == 1
    assert topology.hop_count("r1", "r2") == 1
    assert topology.hop_count("n01", "r1") == 3
    assert topology.path_gbps[topology.leaf_of[topology.index["n01"]], topology.leaf_of[topology.index["r1"]]] == 200.0
    assert topology.hop_count("t1", "n03") == 1
    assert topology.hop_count("t2", "n03") > 1000


def test_uuids_are_the_same_in_every_process(snapshot: Snapshot) -> None:
    uuids = [uuid for node in snapshot.topology.nodes for uuid in node.uuids]
    assert len(set(uuids)) == len(uuids)
    assert snapshot.topology.node("n01").uuids[0] == "GPU-bec331f7-9600-5173-8e8e-388829c75f94"


def test_power_budgets_reach_the_snapshot() -> None:
    rack, hall = to_snapshot(read(FULL + FEEDS)).power
    assert (rack.name, rack.nodes, rack.watts) == ("rack1", {"n01", "n02", "n03"}, 9000.5)
    assert to_snapshot(read(FULL + FEEDS)).prices == {"h100": 2.5, "a100": 1.1}
    assert hall.nodes == {"n01", "n02", "n03", "n04", "s1"}


@pytest.mark.parametrize("text", [FULL, FULL + FEEDS, *(path.read_text() for path in CLUSTERS)])
def test_what_is_written_reads_back_the_same(text: str) -> None:
    cluster = read(text)
    assert read(write(cluster)) == cluster
    assert read(write_json(cluster)) == cluster
    assert write(read(write(cluster))) == write(cluster)


@pytest.mark.parametrize("path", CLUSTERS, ids=lambda path: path.name)
def test_every_example_is_a_cluster(path: Path) -> None:
    assert to_snapshot(read(path.read_text())).topology.nodes


def test_the_examples_of_the_documentation_are_right() -> None:
    text = (Path(__file__).parents[2] / "docs" / "cluster-file.md").read_text()
    blocks = re.findall(r"(?:^ {4}.*\n|^\n(?= {4}))+", text, re.MULTILINE)
    whole, types = (textwrap.dedent(block) for block in blocks)
    assert len(to_snapshot(read(whole)).topology.nodes) == 1250
    cluster = read(types + NODES)
    assert cluster.described.types["my-box"].gpus[3].model == "L40S"
    built_in = text[text.index("Built in:") : text.index("## fabric")]
    assert set(re.findall(r"`([a-z0-9-]+)`", built_in)) >= set(builtin_types())


def test_levels_of_switches_that_are_not_listed() -> None:
    text = """\
apiVersion: fmsched/v1
kind: Cluster
nodes: [{name: "n[1-2]", type: l40s-8, leaf: "a[1-2]", nodesPerLeaf: 1}]
fabric:
  links:
    - {between: [a1, b], gbps: 400}
    - {between: [c, b], gbps: 400}
    - {between: [b, a2], gbps: 400}
    - {between: [lone, other], gbps: 1}
"""
    assert read(text).level_of == {"a1": 0, "a2": 0, "b": 1, "c": 2, "lone": 0, "other": 0}


HEAD = "apiVersion: fmsched/v1\nkind: Cluster\n"
NODES = HEAD + 'nodes:\n  - {name: "n[1-2]", type: hgx-h100, leaf: leaf1}\n'

FAULTS = {
    "not a cluster": ("kind: Clutser\napiVersion: fmsched/v1\nnodes: []\n", 1, "kind", "nearest known name: Cluster"),
    "no nodes": (HEAD, 1, "nodes", "found nothing; allowed: a list of {name, type, ...}"),
    "field": (NODES + "fabrik: {}\n", 5, "fabrik", "found an unknown field; nearest known name: fabric"),
    "type": (NODES.replace("hgx-h100", "hgx-h10"), 4, "nodes[0].type", "found 'hgx-h10'; nearest known name: hgx-h100"),
    "range": (NODES.replace("[1-2]", "[2-1]"), 4, "nodes[0].name", "'2-1' in 'n[2-1]' runs backwards"),
    "node name": (NODES.replace("n[1-2]", "n_/1"), 4, "nodes[0].name", "found the node name 'n_/1'"),
    "node twice": (
        NODES + "  - {name: n2, type: l40s-8}\n",
        5,
        "nodes[1].name",
        "node n2 is named by an earlier entry too",
    ),
    "uuids of many": (NODES.replace("leaf:", "uuids: [GPU-a], leaf:"), 4, "nodes[0].uuids", "found UUIDs for 2 nodes"),
    "fault device": (
        NODES.replace("leaf:", "faults: {gpu8: x}, leaf:"),
        4,
        "nodes[0].faults.gpu8",
        "allowed: gpu0 to gpu7",
    ),
    "fault adapter": (
        NODES.replace("leaf:", "faults: {mlx5_9: x}, leaf:"),
        4,
        "nodes[0].faults.mlx5_9",
        "allowed: a GPU or adapter of type hgx-h100, or NODE/DEVICE",
    ),
    "leaf unknown": (
        NODES + "fabric: {switches: {leaf2: 0}}\n",
        4,
        "nodes[0].leaf",
        "found 'leaf1', which fabric.switches does not name; nearest known name: leaf2",
    ),
    "leaves too few": (
        NODES.replace("leaf1", "leaf1, nodesPerLeaf: 1"),
        4,
        "nodes[0].leaf",
        "found 1 leaf switches of 1 nodes; allowed: enough for 2 nodes",
    ),
    "link end": (
        NODES + "fabric: {switches: {leaf1: 0, spine1: 1}, links: [{between: [leaf1, spin1], gbps: 1}]}\n",
        5,
        "fabric.links[0].between",
        "found 'spin1', neither a switch nor a node; nearest known name: spine1",
    ),
    "link of three": (
        NODES + "fabric: {links: [{between: [a, b, c], gbps: 1}]}\n",
        5,
        "fabric.links[0].between",
        "two ends",
    ),
    "link to itself": (
        NODES + "fabric: {links: [{between: [a, a], gbps: 1}]}\n",
        5,
        "fabric.links[0].between",
        "joins a to itself",
    ),
    "link unit": (NODES + "fabric: {links: [{between: [a, b], gbps: 400G}]}\n", 5, "fabric.links[0].gbps", "found '400G'"),
    "level": (
        NODES + "fabric: {switches: {leaf1: 9}}\n",
        5,
        "fabric.switches.leaf1",
        "allowed: a level from 0 (leaf) to 8",
    ),
    "busy node": (NODES + "busy: {j: n3}\n", 5, "busy.j", "found no node 'n3'; known here: n1, n2"),
    "busy GPU": (NODES + "busy: {j: n1/gpu8}\n", 5, "busy.j", "found 'n1/gpu8'; allowed: gpu0 to gpu7"),
    "busy twice": (NODES + "busy: {j: n1, k: n1/gpu0}\n", 5, "busy.k", "n1/gpu0 is held by j already; allowed: one job"),
    "closed": (NODES + "closed: {x9: y}\n", 5, "closed.x9", "found no node 'x9'"),
    "base": (NODES + "nodeTypes: {t: {base: hgx-h1000}}\n", 5, "nodeTypes.t.base", "nearest known name: hgx-h100"),
    "no GPUs": (NODES + "nodeTypes: {t: {cpus: 1}}\n", 5, "nodeTypes.t.gpus", "found nothing"),
    "unknown GPU's memory": (
        NODES + "nodeTypes: {t: {gpus: {model: X1}}}\n",
        5,
        "nodeTypes.t.gpus.memoryGB",
        "the memory of 'X1'",
    ),
    "pair": (
        NODES + "nodeTypes: {t: {base: l40s-8, nvlink: {pairs: {0-8: 1}}}}\n",
        5,
        "nodeTypes.t.nvlink.pairs",
        "0 to 7",
    ),
    "matrix": (
        NODES + "nodeTypes: {t: {base: l40s-8, nvlink: {matrix: [[0]]}}}\n",
        5,
        "nodeTypes.t.nvlink.matrix",
        "8 rows of 8",
    ),
    "near": (
        NODES + "nodeTypes: {t: {base: l40s-8, hcas: [{name: a, rateGbps: 1, near: [8]}]}}\n",
        5,
        "nodeTypes.t.hcas[0].near[0]",
        "found 8; allowed: a list of GPU numbers from 0 to 7",
    ),
    "MIG profile": (
        NODES + "nodeTypes: {t: {gpus: {model: A30, mig: [1g.6gb, half]}}}\n",
        5,
        "nodeTypes.t.gpus.mig[1]",
        "found 'half'; allowed: a list of MIG profiles, such as 1g.10gb",
    ),
    "MIG instances that do not fit together": (
        NODES + "nodeTypes: {t: {gpus: {model: H100-SXM5-80GB, mig: [4g.40gb, 4g.40gb]}}}\n",
        5,
        "nodeTypes.t.gpus.mig",
        "found 2 x 4g.40gb; allowed: instances that fit on one H100-SXM5-80GB together (7 compute slices, 8 of memory)",
    ),
    "MIG profile of another model": (
        NODES + "nodeTypes: {t: {gpus: {model: A30, mig: [3g.40gb]}}}\n",
        5,
        "nodeTypes.t.gpus.mig",
        "found '3g.40gb'; allowed on A30: 1g.6gb, ",
    ),
    "link layer": (
        NODES + "nodeTypes: {t: {base: l40s-8, hcas: [{name: a, rateGbps: 1, linkLayer: Ethernett}]}}\n",
        5,
        "nodeTypes.t.hcas[0].linkLayer",
        "nearest known name: Ethernet",
    ),
    "port state": (
        NODES + "nodeTypes: {t: {base: l40s-8, hcas: [{name: a, rateGbps: 1, state: not up}]}}\n",
        5,
        "nodeTypes.t.hcas[0].state",
        "allowed: a port's state, such as Down or Down/Disabled",
    ),
    "near without GPUs": (
        NODES + "nodeTypes: {t: {gpus: [], hcas: [{name: a, rateGbps: 1, near: [0]}]}}\n",
        5,
        "nodeTypes.t.hcas[0].near[0]",
        "allowed: nothing: the type has no GPU",
    ),
    "problem": (NODES + "problems: [{file: a, lin: 3, why: b}]\n", 5, "problems[0].lin", "nearest known name: line"),
    "reserved on no switch": (
        NODES + "fabric: {switches: {leaf1: 0, s1: 1}}\nreserved: [{job: j, between: [leaf1, s2], gbps: 1}]\n",
        6,
        "reserved[0].between",
        "found no switch 's2'",
    ),
    "reserved on one switch": (
        NODES + "fabric: {switches: {leaf1: 0}}\nreserved: [{job: j, between: [leaf1], gbps: 1}]\n",
        6,
        "reserved[0].between",
        "allowed: two switches",
    ),
    "reserved between nothing": (NODES + "reserved: [{job: j, gbps: 1}]\n", 5, "reserved[0].between", "found nothing"),
    "power of nobody": (
        NODES + "power: [{name: a, nodes: n3, watts: 1}]\n",
        5,
        "power[0].nodes",
        "found no node 'n3'",
    ),
    "price of no family": (NODES + "prices: {H100: 2}\n", 5, "prices.H100", "a GPU family in lower case"),
    "power twice": (
        NODES + "power:\n  - {name: a, nodes: n1, watts: 1}\n  - {name: a, nodes: n2, watts: 1}\n",
        7,
        "power[1].name",
        "found a again",
    ),
    "power without watts": (NODES + "power: [{name: a, nodes: n1}]\n", 5, "power[0].watts", "found nothing"),
    "port twice": (
        NODES + "nodeTypes: {t: {base: l40s-8, hcas: [{name: a, rateGbps: 1}, {name: a, rateGbps: 1}]}}\n",
        5,
        "nodeTypes.t.hcas[1]",
        "port 1 of a is given twice",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_one_message_for_one_fault(name: str) -> None:
    text, line, path, part = FAULTS[name]
    found = parse(text)
    assert not isinstance(found, ClusterFile)
    assert len(found) == 1, [str(fault) for fault in found]
    assert (found[0].line, part in found[0].message) == (line, True), str(found[0])
    assert found[0].path.startswith(path)
