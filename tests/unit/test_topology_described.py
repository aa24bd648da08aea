"""One node of a Cluster file, as its agent reports it; and the node types that are built in."""

from __future__ import annotations

from pathlib import Path

import pytest

from fmproto.described import DescriptionError, describe_node
from fmproto.nodetypes import builtin_types
from fmproto.v1 import hardware_pb2
from fmsched.topology.clusterfile import ClusterFile, parse, to_snapshot

TEXT = """\
apiVersion: fmsched/v1
kind: Cluster
nodes:
  - {name: "n[1-2]", type: hgx-h100, leaf: leaf1, labels: {zone: a}, faults: {n2/gpu3: "Xid 79", n2/mlx5_1: cut}}
  - {name: v1, type: dgx-1v, leaf: leaf1}
  - {name: "t[1-18]", type: gb200-nvl72-tray, nvlinkDomain: rack1}
busy: {job: n1}
"""


def test_the_inventory_of_a_node() -> None:
    inventory, health = describe_node(TEXT, "n1")
    assert inventory.node == "n1"
    assert inventory.source == "described"
    assert dict(inventory.labels) == {"zone": "a"}
    gpu = inventory.gpus[7]
    assert (gpu.index, gpu.name, gpu.model, gpu.family, gpu.memory_gb) == (
        7,
        "NVIDIA H100 80GB HBM3",
        "H100-SXM5-80GB",
        "h100",
        80,
    )
    assert (gpu.sm_count, gpu.compute_capability, gpu.memory_bytes) == (132, "9.0", 80 << 30)
    assert len(inventory.nvlinks) == 28
    assert {pair.gbytes_per_s for pair in inventory.nvlinks} == {900.0}
    assert [(port.hca, list(port.near_gpus)) for port in inventory.hca_ports[:2]] == [("mlx5_0", [0]), ("mlx5_1", [1])]
    assert {port.rate_gbps for port in inventory.hca_ports} == {400.0}
    assert {port.state for port in inventory.hca_ports} == {"Active"}
    assert [device.device for device in health.gpus] == [one.uuid for one in inventory.gpus]
    assert {device.state for device in (*health.gpus, *health.hca_ports)} == {hardware_pb2.HEALTH_STATE_OK}


def test_faults_are_seen_by_the_node_they_name() -> None:
    inventory, health = describe_node(TEXT, "n2")
    sick = [device for device in (*health.gpus, *health.hca_ports) if device.state == hardware_pb2.HEALTH_STATE_FAILED]
    assert [(device.device, device.reason) for device in sick] == [(inventory.gpus[3].uuid, "Xid 79"), ("mlx5_1/1", "cut")]
    assert inventory.hca_ports[1].state == "Down"


def test_agent_and_scheduler_read_the_same_node(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(TEXT)
    cluster = parse(TEXT)
    assert isinstance(cluster, ClusterFile)
    for node in to_snapshot(cluster).topology.nodes:
        inventory, _ = describe_node(path, node.name)
        assert [gpu.uuid for gpu in inventory.gpus] == list(node.uuids)
        assert inventory.nvlink_domain == node.nvlink_domain
        assert [(gpu.model, gpu.family, gpu.memory_gb) for gpu in inventory.gpus] == [
            (gpu.model, gpu.family, gpu.memory_gb) for gpu in node.shape.gpus
        ]
        assert {(pair.gpu_a, pair.gpu_b): pair.gbytes_per_s for pair in inventory.nvlinks} == {
            (i, j): node.shape.nvlink[i][j]
            for i in range(len(node.uuids))
            for j in range(i + 1, len(node.uuids))
            if node.shape.nvlink[i][j]
        }


def test_the_hybrid_cube_mesh_has_six_links_for_each_gpu() -> None:
    inventory, _ = describe_node(TEXT, "v1")
    for index in range(8):
        mine = [pair.gbytes_per_s for pair in inventory.nvlinks if index in (pair.gpu_a, pair.gpu_b)]
        assert sum(mine) == 6 * 50


def test_a_bad_file_or_an_unknown_node_is_told() -> None:
    with pytest.raises(DescriptionError, match="found no node 'n3'; known here: n1, n2"):
        describe_node(TEXT, "n3")
    with pytest.raises(
        DescriptionError, match=r"line 4: nodes\[0\]\.type: found 'hgx-h1000'; nearest known name: hgx-h100"
    ):
        describe_node(TEXT.replace("hgx-h100", "hgx-h1000"), "n1")
    with pytest.raises(DescriptionError, match="line 8: nonsense: found an unknown field"):
        describe_node(TEXT + "nonsense: 1\n", "n1")
    with pytest.raises(OSError, match="no-such-file"):
        describe_node(Path("no-such-file"), "n1")


@pytest.mark.parametrize("name", builtin_types())
def test_built_in_types_hold_together(name: str) -> None:
    kind = builtin_types()[name]
    count = len(kind.gpus)
    assert count > 0
    assert kind.name == name
    assert all(gpu.model and gpu.family and gpu.memory_gb > 0 for gpu in kind.gpus), "every GPU is in the catalogue"
    assert len(kind.nvlink) == count
    assert all(kind.nvlink[i][j] == kind.nvlink[j][i] for i in range(count) for j in range(count))
    assert {index for hca in kind.hcas for index in hca.near} == set(range(count)), "every GPU has a near adapter"


ODD = """\
apiVersion: fmsched/v1
kind: Cluster
nodeTypes:
  odd:
    gpus:
      - {model: NVIDIA H100 80GB HBM3, memoryGB: 80, mig: [3g.40gb, 4g.40gb]}
      - {model: AMD Instinct MI300X, memoryGB: 192}
    hcas:
      - {name: mlx5_0, rateGbps: 400}
      - {name: mlx5_1, rateGbps: 100, linkLayer: Ethernet, state: Down/Disabled}
      - {name: mlx5_2, rateGbps: 400}
  host: {gpus: []}
nodes:
  - {name: o1, type: odd, faults: {mlx5_0: Initializing/LinkUp, mlx5_2: "cable cut"}}
  - {name: h1, type: host}
problems: [{file: a.txt, what: x, why: y}]
"""


def test_mig_link_layers_and_states_reach_the_agent() -> None:
    inventory, health = describe_node(ODD, "o1")
    assert [gpu.mig_enabled for gpu in inventory.gpus] == [True, False]
    assert [each.profile for each in inventory.gpus[0].mig_instances] == ["3g.40gb", "4g.40gb"]
    assert [gpu.vendor for gpu in inventory.gpus] == ["nvidia", "amd"]
    assert [(each.state, each.reason) for each in health.gpus] == [
        (hardware_pb2.HEALTH_STATE_FAILED, "MIG mode is on; only whole GPUs are granted"),
        (hardware_pb2.HEALTH_STATE_OK, ""),
    ]
    assert [(port.hca, port.state, port.physical_state, port.link_layer) for port in inventory.hca_ports] == [
        ("mlx5_0", "Initializing", "LinkUp", "InfiniBand"),
        ("mlx5_1", "Down", "Disabled", "Ethernet"),
        ("mlx5_2", "Down", "Polling", "InfiniBand"),
    ]
    assert [each.reason for each in health.hca_ports] == ["Initializing/LinkUp", "Down/Disabled", "cable cut"]
    assert {port.roce_gid_index for port in inventory.hca_ports} == {-1}


def test_a_host_without_gpus() -> None:
    inventory, health = describe_node(ODD, "h1")
    assert (len(inventory.gpus), len(inventory.hca_ports), len(health.gpus)) == (0, 0, 0)
