"""Dumps of a node merged, fabrics merged, and both made one Cluster file: every oddity by itself."""

from __future__ import annotations

import time

import pytest

from fmproto.described import describe_node, made_uuid
from fmproto.dumptext import Problem
from fmproto.nodetypes import NodeType
from fmsched.model.hardware import GpuId
from fmsched.topology.clusterfile import ClusterFile, parse, to_fabric, to_snapshot
from fmsched.topology.clustertext import write, write_json
from fmsched.topology.imported import Choices, guid_key, to_cluster
from fmsched.topology.imported_gpus import pci_key
from fmsched.topology.readers.found import (
    CableFound,
    FabricFound,
    Found,
    GpuFound,
    HostFound,
    MigFound,
    NodeFound,
    NvlinkFound,
    PortFound,
    SwitchFound,
)

H100 = "NVIDIA H100 80GB HBM3"
A, B, C = (f"GPU-0a1b2c3{i}-1111-2222-3333-444455556666" for i in range(3))


def dump(file: str = "n1.txt", *gpus: GpuFound, **more: object) -> NodeFound:
    return NodeFound("x", file, gpus=gpus, **more)  # type: ignore[arg-type]


def made(*found: Found, **choices: object) -> ClusterFile:
    """The Cluster file, which reads back the same as YAML and as JSON."""
    cluster = to_cluster(found, {"n1.txt": "n1", "n1.more.txt": "n1", "n2.txt": "n2"}, Choices(**choices))  # type: ignore[arg-type]
    assert parse(write(cluster)) == cluster
    assert parse(write_json(cluster)) == cluster
    return cluster


def kind_of(cluster: ClusterFile, node: str = "n1") -> NodeType:
    return cluster.described.types[cluster.described.entry_of[node].type]


def faults_of(cluster: ClusterFile, node: str = "n1") -> dict[str, str]:
    return dict(cluster.described.entry_of[node].faults)


def whys(cluster: ClusterFile) -> list[str]:
    return [f"{problem.what}: {problem.why}" for problem in cluster.problems]


# --- GPUs ---


def test_two_dumps_of_a_node_are_joined_by_uuid() -> None:
    listed = dump("n1.txt", GpuFound(0, H100, A), GpuFound(1, H100, B))
    # The second numbers them the other way round, and knows more of them.
    queried = dump(
        "n1.more.txt",
        GpuFound(0, H100, B, memory_mib=81559.0),
        GpuFound(1, H100, A, memory_mib=81559.0, fault="GPU is lost"),
    )
    cluster = made(listed, queried)
    assert cluster.described.entries[0].uuids == (A, B)
    assert [(gpu.model, gpu.memory_gb) for gpu in kind_of(cluster).gpus] == [("H100-SXM5-80GB", 80.0)] * 2
    assert faults_of(cluster) == {"gpu0": "GPU is lost"}
    assert whys(cluster) == [
        "GPU 0: by its UUID or PCI address it is GPU 1 of n1.txt",
        "GPU 1: by its UUID or PCI address it is GPU 0 of n1.txt",
    ]
    assert to_snapshot(cluster).unfit == {GpuId("n1", 0): "GPU is lost"}


def test_pci_addresses_join_however_wide_they_are_written() -> None:
    assert pci_key("00000000:1B:00.0") == pci_key("0000:1b:00.0") == pci_key("1b:00.0") == (0, 0x1B, 0, 0)
    assert pci_key("00000008:01:00.0") != pci_key("0000:01:00.0")
    assert pci_key("nonsense") == ()
    cluster = made(
        dump("n1.txt", GpuFound(0, H100, A, "00000000:1B:00.0"), GpuFound(1, H100, B, "00000000:2B:00.0")),
        dump(
            "n1.more.txt",
            GpuFound(0, pci="0000:2b:00.0"),
            GpuFound(1, pci="0000:1b:00.0"),
            nvlinks=(NvlinkFound(0, 1, 18),),
        ),
    )
    assert cluster.described.entries[0].uuids == (A, B)
    assert kind_of(cluster).nvlink == ((0.0, 900.0), (900.0, 0.0))


def test_indices_join_where_nothing_else_is_said() -> None:
    cluster = made(
        dump("n1.txt", GpuFound(0), GpuFound(1), nvlinks=(NvlinkFound(0, 1, 12),)),
        dump("n1.more.txt", GpuFound(0, "NVIDIA A100-SXM4-80GB", A), GpuFound(1, "NVIDIA A100-SXM4-80GB", B)),
    )
    assert kind_of(cluster).nvlink[0][1] == 600.0
    assert cluster.described.entries[0].uuids == (A, B)
    assert not cluster.problems


def test_another_gpu_at_the_same_place_is_set_aside() -> None:
    cluster = made(dump("n1.txt", GpuFound(0, H100, A)), dump("n1.more.txt", GpuFound(0, H100, C)))
    assert cluster.described.entries[0].uuids == (A,)
    assert whys(cluster) == [f"GPU 0 {C}: n1.txt has another GPU of that number ({A}): set aside"]


def test_another_address_at_the_same_index_is_another_gpu() -> None:
    listed = dump("n1.txt", GpuFound(0, H100, A, "0000:1b:00.0"))
    cluster = made(listed, dump("n1.more.txt", GpuFound(0, pci="0000:2b:00.0", fault="GPU is lost")))
    assert faults_of(cluster) == {}
    assert whys(cluster) == [f"GPU 0 0000:2b:00.0: n1.txt has another GPU of that number ({A}): set aside"]


@pytest.mark.parametrize(
    ("one", "other", "told"),
    [
        ({"name": H100}, {"name": "NVIDIA L40S"}, f"GPU 0: NVIDIA L40S: a.txt says {H100}; that stands"),
        ({"memory_mib": 81559.0}, {"memory_mib": 40960.0}, "GPU 0: 40960 MiB: a.txt says 81559 MiB; that stands"),
        ({"mig_enabled": False}, {"mig_enabled": True}, "GPU 0: MIG is on: a.txt says the opposite; that stands"),
        ({"nvlinks_active": 18}, {"nvlinks_active": 17}, "GPU 0: 17 NVLinks active: a.txt says 18; that stands"),
    ],
)
def test_what_contradicts_is_told_and_the_first_stands(one: dict[str, object], other: dict[str, object], told: str) -> None:
    cluster = made(dump("a.txt", GpuFound(0, **one)), dump("b.txt", GpuFound(0, **other)), node="n1")  # type: ignore[arg-type]
    assert [why for why in whys(cluster) if why == told] == [told]


def test_spellings_of_one_model_do_not_contradict() -> None:
    cluster = made(
        dump("a.txt", GpuFound(0, "A100-SXM4-80GB")), dump("b.txt", GpuFound(0, "NVIDIA A100-SXM4-80GB")), node="n1"
    )
    assert not cluster.problems


def test_a_number_that_is_missing_is_a_gpu_that_cannot_be_used() -> None:
    cluster = made(dump("n1.txt", GpuFound(0, H100, A), GpuFound(3, H100, B)))
    assert len(kind_of(cluster).gpus) == 4
    assert {gpu.model for gpu in kind_of(cluster).gpus} == {"H100-SXM5-80GB"}
    assert faults_of(cluster) == {"gpu1": "no file tells of it", "gpu2": "no file tells of it"}
    assert cluster.described.entries[0].uuids == (A, made_uuid("n1", 1), made_uuid("n1", 2), B)
    assert whys(cluster) == ["GPU 1, 2: no file tells of it, though later numbers are there; kept, as what cannot be used"]


def test_a_gpu_that_no_file_names_is_unknown_and_still_usable() -> None:
    cluster = made(dump("n1.txt", GpuFound(0), GpuFound(1), nvlinks=(NvlinkFound(0, 1, 4),)))
    assert [(gpu.name, gpu.family, gpu.memory_gb) for gpu in kind_of(cluster).gpus] == [("unknown", "unknown", 0.0)] * 2
    assert kind_of(cluster).nvlink[0][1] == 200.0
    assert whys(cluster) == ["NVLink: no file names the GPUs' model: 50 GB/s is taken for each NVLink"]


def test_the_vendor_of_a_gpu_without_a_name_is_kept() -> None:
    cluster = made(dump("n1.txt", GpuFound(0, vendor="amd")))
    assert describe_node(write(cluster), "n1")[0].gpus[0].vendor == "amd"
    assert kind_of(cluster).gpus[0].family == "unknown"


def test_all_links_down_is_told_of_a_gpu_that_has_them_built_in() -> None:
    assert whys(made(dump("n1.txt", GpuFound(0, "NVIDIA A100-SXM4-80GB", nvlinks_active=0)))) == [
        "GPU 0: 0 NVLinks active: no pair of it has more than 0 GB/s"
    ]
    assert not whys(made(dump("n1.txt", GpuFound(0, "NVIDIA H100 NVL", nvlinks_active=0))))


def test_an_unknown_name_keeps_what_is_said_of_it() -> None:
    cluster = made(dump("n1.txt", GpuFound(0, "NVIDIA Z9000 Ultra", memory_mib=100_000.0)))
    gpu = kind_of(cluster).gpus[0]
    assert (gpu.name, gpu.model, gpu.family, gpu.memory_gb) == ("NVIDIA Z9000 Ultra", "", "z9000", 98.0)


def test_mig_instances_that_cannot_be_together_are_a_problem() -> None:
    mig = tuple(MigFound("3g.40gb") for _ in range(3))
    cluster = made(dump("n1.txt", GpuFound(0, H100, A, mig_enabled=True, mig=mig)))
    assert [gpu.mig for gpu in kind_of(cluster).gpus] == [()]
    [why] = whys(cluster)
    assert why.startswith("GPU 0: MIG: found 3 x 3g.40gb; allowed: ") and why.endswith(". Its instances are set aside")


def test_mig_instances_are_kept_and_the_gpu_is_not_granted_whole() -> None:
    mig = (MigFound("3g.40gb"), MigFound("1g.10gb+me"), MigFound("strange"))
    cluster = made(dump("n1.txt", GpuFound(0, H100, A, mig_enabled=True, mig=mig), GpuFound(1, H100, B, mig_enabled=False)))
    assert [gpu.mig for gpu in kind_of(cluster).gpus] == [("3g.40gb", "1g.10gb+me"), None]
    assert to_snapshot(cluster).unfit == {GpuId("n1", 0): "MIG mode is on; only whole GPUs are granted"}
    assert whys(cluster) == ["GPU 0: MIG strange: no profile; allowed: such as 1g.10gb. The instance is set aside"]


@pytest.mark.parametrize("uuid", ["GPU-xxxxxxxx", "redacted", A])
def test_uuids_that_are_not_each_gpus_own_are_made_anew(uuid: str) -> None:
    cluster = made(dump("n1.txt", GpuFound(0, H100, A), GpuFound(1, H100, uuid)))
    uuids = cluster.described.entries[0].uuids
    assert len(set(uuids)) == 2
    assert uuids[0] == A


# --- NVLink ---


def test_links_that_are_inactive_lower_every_pair_of_the_gpu() -> None:
    gpus = [GpuFound(i, H100, nvlinks_active=18) for i in range(4)]
    gpus[2] = GpuFound(2, H100, nvlinks_active=16, nvlinks_down=(4, 7))
    pairs = tuple(NvlinkFound(a, b, 18, to_all=True) for a in range(4) for b in range(a + 1, 4))
    cluster = made(dump("n1.txt", *gpus, nvlinks=pairs))
    assert kind_of(cluster).nvlink == (
        (0.0, 900.0, 800.0, 900.0),
        (900.0, 0.0, 800.0, 900.0),
        (800.0, 800.0, 0.0, 800.0),
        (900.0, 900.0, 800.0, 0.0),
    )
    assert whys(cluster) == ["GPU 2: link 4, 7 inactive: no pair of it has more than 800 GB/s"]


def test_links_that_are_down_without_a_count_are_taken_from_the_catalogues() -> None:
    cluster = made(
        dump("n1.txt", GpuFound(0, H100, nvlinks_down=(0,)), GpuFound(1, H100), nvlinks=(NvlinkFound(0, 1, 18),))
    )
    assert kind_of(cluster).nvlink[0][1] == 850.0


def test_counts_without_ends_give_no_bandwidth_and_say_what_to_add() -> None:
    cluster = made(dump("n1.txt", GpuFound(0, H100, nvlinks_active=18), GpuFound(1, H100, nvlinks_active=18)))
    assert kind_of(cluster).nvlink == ((0.0, 0.0), (0.0, 0.0))
    assert "add nvidia-smi topo -m of the node" in whys(cluster)[0]


def test_said_bandwidth_goes_before_counted_and_files_that_differ_are_told() -> None:
    one = dump("a.txt", GpuFound(0, H100), GpuFound(1, H100), nvlinks=(NvlinkFound(0, 1, 18, 450.0),))
    other = dump("b.txt", GpuFound(0), GpuFound(1), nvlinks=(NvlinkFound(0, 1, 18),))
    cluster = made(one, other, node="n1")
    assert kind_of(cluster).nvlink[0][1] == 450.0
    assert whys(cluster) == ["NVLink between GPU 0 and GPU 1: 900 GB/s: a.txt gives 450; that stands"]


FABRIC = {"fabric_state": "Completed", "fabric_status": "Success"}
CLUSTER = {"fabric_cluster_uuid": "6f0e5a1c-2222-4444-8888-0123456789ab", "fabric_clique": "3"}


def test_gpus_in_the_nodes_nvswitch_fabric_reach_one_another() -> None:
    """nvidia-smi -q alone: no pairs, but the driver says who joined."""
    gpus = [GpuFound(i, H100, facts=FABRIC) for i in range(3)]
    gpus[2] = GpuFound(2, H100, facts={"fabric_state": "In Progress"})
    cluster = made(dump("n1.txt", *gpus))
    assert kind_of(cluster).nvlink == ((0.0, 900.0, 0.0), (900.0, 0.0, 0.0), (0.0, 0.0, 0.0))
    pairs = tuple(NvlinkFound(a, b, 17, to_all=True) for a, b in ((0, 1), (0, 2), (1, 2)))
    said = made(dump("n1.txt", *gpus), dump("n1.more.txt", *(GpuFound(i) for i in range(3)), nvlinks=pairs))
    assert kind_of(said).nvlink[0] == (0.0, 850.0, 850.0), "what a file says of a pair goes first"
    # One box has no cluster.
    assert said.described.entries[0].nvlink_domain == ""


def test_nodes_of_one_clique_are_one_nvlink_domain() -> None:
    facts = {**FABRIC, **CLUSTER}
    dumps = [dump(f"n{i}.txt", *(GpuFound(j, "NVIDIA GB200", facts=facts) for j in range(4))) for i in (1, 2)]
    cluster = made(*dumps)
    assert {entry.nvlink_domain for entry in cluster.described.entries} == {"6f0e5a1c-2222-4444-8888-0123456789ab.3"}
    assert kind_of(cluster).domain_nvlink_gbytes_per_s == 1800.0
    assert to_snapshot(cluster).topology.nvlink_gbytes_per_s("n1", 0, "n2", 3) == 1800.0
    hosts = FabricFound("y", "f", hosts=(HostFound("n1", "n1", nvlink_domain="rack5"),))
    assert made(*dumps, hosts).described.entry_of["n1"].nvlink_domain == "rack5"


def test_a_node_in_two_cliques_is_in_none() -> None:
    one, other = ({**FABRIC, **CLUSTER, "fabric_clique": clique} for clique in "12")
    cluster = made(dump("n1.txt", GpuFound(0, "NVIDIA GB200", facts=one), GpuFound(1, "NVIDIA GB200", facts=other)))
    assert cluster.described.entries[0].nvlink_domain == ""
    assert kind_of(cluster).nvlink[0][1] == 0.0
    assert "the node's GPUs lie in several" in whys(cluster)[0]


# --- adapters ---


def test_ports_of_several_dumps_are_joined_and_bad_ones_are_faults() -> None:
    topo = dump(
        "n1.txt",
        GpuFound(0),
        GpuFound(1),
        ports=(PortFound("mlx5_0"), PortFound("mlx5_1")),
        paths={("GPU0", "mlx5_0"): "PIX", ("GPU1", "mlx5_0"): "SYS", ("GPU0", "mlx5_1"): "SYS", ("GPU1", "mlx5_1"): "NODE"},
    )
    ibstat = dump(
        "n1.more.txt",
        ports=(
            PortFound("mlx5_0", 1, "Active", "LinkUp", 400.0, "InfiniBand"),
            PortFound("mlx5_1", 1, "Down", "Polling", 400.0, "InfiniBand"),
            PortFound("mlx5_1", 2, "Initializing", "LinkUp", 100.0, "InfiniBand"),
            PortFound("mlx5_10", 1, "Active", "LinkUp", 25.0, "Ethernet"),
        ),
    )
    cluster = made(topo, ibstat)
    assert [(hca.name, hca.port, hca.rate_gbps, hca.near, hca.link_layer) for hca in kind_of(cluster).hcas] == [
        ("mlx5_0", 1, 400.0, (0,), "InfiniBand"),
        ("mlx5_1", 1, 400.0, (1,), "InfiniBand"),
        ("mlx5_1", 2, 100.0, (1,), "InfiniBand"),
        ("mlx5_10", 1, 25.0, (), "Ethernet"),
    ]
    assert faults_of(cluster) == {"mlx5_1/1": "Down/Polling", "mlx5_1/2": "Initializing/LinkUp"}
    # The shape that placement sees has what can be used of the fabric.
    assert [hca.name for hca in to_snapshot(cluster).topology.node("n1").shape.hcas] == ["mlx5_0"]


def test_ports_that_contradict_are_told() -> None:
    one = dump("a.txt", ports=(PortFound("mlx5_0", 1, "Active", "LinkUp", 400.0, "InfiniBand"),))
    other = dump("b.txt", ports=(PortFound("mlx5_0", 1, "Down", "Polling", 200.0, "Ethernet"),))
    cluster = made(one, other, node="n1")
    assert whys(cluster) == [
        "port 1 of mlx5_0: Down: a.txt says Active; that stands",
        "port 1 of mlx5_0: Ethernet: a.txt says InfiniBand; that stands",
        "port 1 of mlx5_0: 200 Gb/s: a.txt says 400 Gb/s; that stands",
    ]
    assert faults_of(cluster) == {}


def test_an_adapter_without_a_name_is_found_by_its_address_or_gets_one() -> None:
    nccl = dump(
        "a.txt",
        GpuFound(0),
        ports=(PortFound("", near=(0,), pci="0000:0c:00.0"), PortFound("", near=(0,), pci="0000:0d:00.0")),
    )
    named = dump("b.txt", ports=(PortFound("mlx5_0", rate_gbps=400.0, pci="0c:00.0"),))
    cluster = made(nccl, named, node="n1")
    assert [(hca.name, hca.rate_gbps, hca.near) for hca in kind_of(cluster).hcas] == [
        ("mlx5_0", 400.0, (0,)),
        ("nic0", 0.0, (0,)),
    ]


def test_a_port_of_no_possible_number_is_set_aside() -> None:
    cluster = made(dump("n1.txt", ports=(PortFound("mlx5_0", 0), PortFound("mlx5_0", 1))))
    assert [hca.port for hca in kind_of(cluster).hcas] == [1]
    assert len(cluster.problems) == 1


# --- which dump is of which node ---


def test_names_of_nodes() -> None:
    assert set(made(dump("n1.txt"), dump("n2.txt")).described.entry_of) == {"n1", "n2"}
    assert set(made(dump("n1.txt", name="gpu-7.lab"), dump("n2.txt")).described.entry_of) == {"gpu-7.lab", "n2"}
    assert set(made(dump("n1.txt", name="gpu-7"), dump("n2.txt"), node="x").described.entry_of) == {"x"}
    assert set(made(dump("<stdin>")).described.entry_of) == {"node"}


def test_a_dump_without_a_name_belongs_to_the_node_with_its_gpus() -> None:
    cluster = made(dump("n2.txt", GpuFound(0, H100, A), cpus=64), dump("n1.txt", GpuFound(0, H100, A), name="gpu-7"))
    assert set(cluster.described.entry_of) == {"gpu-7"}
    assert kind_of(cluster, "gpu-7").cpus == 64


def test_equal_nodes_share_a_type() -> None:
    cluster = made(dump("n1.txt", GpuFound(0, H100, A)), dump("n2.txt", GpuFound(0, H100, B)))
    assert [kind.name for kind in cluster.described.own_types] == ["1xH100-SXM5-80GB"]
    cluster = made(dump("n1.txt", GpuFound(0, H100, A)), dump("n2.txt", GpuFound(0, H100, B), cpus=8))
    assert [kind.name for kind in cluster.described.own_types] == ["1xH100-SXM5-80GB", "1xH100-SXM5-80GB-2"]


# --- fabrics ---


def leaf_spine(file: str = "f.txt", gbps: float = 400.0, hosts: int = 4) -> FabricFound:
    """Two leaves, a spine with two cables to each; hosts n1 and up, half of them on each leaf."""
    cables = [CableFound("S1", f"L{i}", gbps, 2) for i in (1, 2)]
    cables += [CableFound(f"H{i}", "L1" if i <= hosts // 2 else "L2", gbps, hca="mlx5_0") for i in range(1, hosts + 1)]
    switches = (SwitchFound("L1", "leaf1"), SwitchFound("L2", "leaf2"), SwitchFound("S1", "spine1"))
    named = tuple(HostFound(f"H{i}", f"n{i}", ((("mlx5_0"), f"{i:016x}"),)) for i in range(1, hosts + 1))
    return FabricFound("y", file, switches, named, tuple(cables))


def test_a_fabric_is_few_rows() -> None:
    cluster = made(leaf_spine(hosts=12))
    assert cluster.switches == (("leaf[1-2]", 0), ("spine1", 1))
    assert [(row.a, row.b, row.gbps, row.count, row.hca) for row in cluster.links] == [
        ("n[1-6]", "leaf1", 400.0, 1, "mlx5_0"),
        ("n[7-12]", "leaf2", 400.0, 1, "mlx5_0"),
        ("leaf[1-2]", "spine1", 400.0, 2, ""),
    ]
    (entry,) = cluster.described.entries
    assert (entry.names, entry.type) == ("n[1-12]", "host-1x400")
    assert kind_of(cluster).gpus == ()
    topology = to_snapshot(cluster).topology
    assert (topology.hop_count("n1", "n6"), topology.hop_count("n1", "n7")) == (1, 3)
    assert topology.link_gbps("n1", "n7") == 400.0


def test_the_rows_stand_for_exactly_the_cables() -> None:
    found = leaf_spine(hosts=6)
    down = CableFound("H1", "L2", 100.0, 1, True, "mlx5_1")
    found = FabricFound(
        "y", "f", found.switches, found.hosts, (*found.cables, down, CableFound("L1", "L2", 200.0, 3, True))
    )
    names = {"L1": "leaf1", "L2": "leaf2", "S1": "spine1", **{f"H{i}": f"n{i}" for i in range(1, 7)}}
    wanted = sorted((*sorted((names[c.a], names[c.b])), c.gbps, c.count, c.down, c.hca) for c in found.cables)
    cluster = made(found)
    spelled = sorted(
        (*sorted((link.a, link.b)), link.gbps, link.count, link.down, link.hca) for link in to_fabric(cluster).links
    )
    assert spelled == wanted
    assert faults_of(cluster) == {"n1/mlx5_1": "its cable is down"}


def test_levels_as_said_else_by_distance_from_hosts() -> None:
    switches = tuple(SwitchFound(name) for name in ("leaf", "spine", "core", "lone"))
    cables = (CableFound("h", "leaf"), CableFound("leaf", "spine"), CableFound("spine", "core"))
    host = (HostFound("h", "h"),)
    assert made(FabricFound("y", "f", switches, host, cables)).level_of == {"leaf": 0, "spine": 1, "core": 2, "lone": 0}
    said = (SwitchFound("leaf", level=0), SwitchFound("spine", level=4), SwitchFound("core"), SwitchFound("lone", level=99))
    assert made(FabricFound("y", "f", said, host, cables)).level_of == {"leaf": 0, "spine": 4, "core": 2, "lone": 8}


def test_cables_without_a_rate_join_and_limit_by_what_was_chosen() -> None:
    cluster = made(leaf_spine(gbps=0.0))
    assert kind_of(cluster).hcas == ()
    topology = to_snapshot(cluster).topology
    assert topology.hop_count("n1", "n4") == 3
    assert topology.link_gbps("n1", "n4") == 0.0
    topology = to_snapshot(made(leaf_spine(gbps=0.0), gbps=200.0)).topology
    assert topology.link_gbps("n1", "n4") == 200.0


def test_two_files_of_one_fabric_are_one_and_a_known_rate_goes_first() -> None:
    rows = made(leaf_spine("a.txt", 0.0), leaf_spine("b.txt")).links
    assert rows == made(leaf_spine()).links
    cluster = made(leaf_spine("a.txt"), leaf_spine("b.txt", 200.0))
    assert cluster.links == rows
    assert "leaf1 to spine1: 400 Gb/s: a.txt says 800 Gb/s; that stands" in whys(cluster)


def test_a_host_on_two_fabrics_is_one_node() -> None:
    other = FabricFound(
        "y", "g.txt", (SwitchFound("X"),), (HostFound("n1", "n1"),), (CableFound("n1", "X", 100.0, hca="mlx5_9"),)
    )
    cluster = made(leaf_spine(), other)
    assert [hca.name for hca in kind_of(cluster).hcas] == ["mlx5_0", "mlx5_9"]
    topology = to_snapshot(cluster).topology
    assert topology.leaves[topology.leaf_of[topology.index["n1"]]] == "X,leaf1"


def test_names_are_made_allowed_and_unique() -> None:
    switches = (
        SwitchFound("S-01", "same"),
        SwitchFound("S-02", "same"),
        SwitchFound("S-03", "MF0;core:X/L1"),
        SwitchFound("S-04", "n1"),
    )
    hosts = (HostFound("H1", "n1"), HostFound("H2", "twice"), HostFound("H3", "twice"), HostFound("0xab", "", named=False))
    cluster = made(FabricFound("y", "f", switches, hosts))
    assert set(cluster.level_of) == {"same-S-01", "same-S-02", "MF0-core-X-L1", "n1-switch"}
    assert set(cluster.described.entry_of) == {"n1", "twice-H2", "twice-H3", "0xab"}
    assert [problem.what for problem in cluster.problems] == ["host twice", "switch same", "switch n1"]


def test_cables_that_lead_nowhere_are_set_aside() -> None:
    found = leaf_spine()
    cluster = made(
        FabricFound(
            "y", "f", found.switches, found.hosts, (*found.cables, CableFound("H1", "gone"), CableFound("L1", "L1"))
        )
    )
    assert cluster.links == made(found).links
    assert [problem.what for problem in cluster.problems] == ["cable H1 to gone", "cable L1 to L1"]


def test_nvlink_domains_of_hosts() -> None:
    hosts = tuple(HostFound(f"t{i}", f"t{i}", nvlink_domain=f"rack{i // 3}") for i in range(6))
    cluster = made(FabricFound("y", "f", hosts=hosts))
    assert [(entry.names, entry.nvlink_domain) for entry in cluster.described.entries] == [
        ("t[0-2]", "rack0"),
        ("t[3-5]", "rack1"),
    ]


# --- both together ---


def test_the_given_type_is_that_of_hosts_whose_cables_can_be_its() -> None:
    host = HostFound("H", "storage1")
    found = leaf_spine()
    found = FabricFound(
        "y", "f", found.switches, (*found.hosts, host), (*found.cables, *(CableFound("H", "L1", 400.0) for _ in range(4)))
    )
    cluster = made(found, node_type="dgx-1v")  # four ports: one cable is too few, four are right
    assert cluster.described.entry_of["storage1"].type == "dgx-1v"
    assert cluster.described.entry_of["n1"].type == "host-1x400"
    assert "4 hosts, such as n1, n2, n3, n4" in whys(cluster)[0]
    assert made(leaf_spine(gbps=0.0), node_type="dgx-1v").described.entry_of["n4"].type == "dgx-1v"
    # Where none fits, the option stands.
    cluster = made(leaf_spine(), node_type="dgx-1v")
    assert {entry.type for entry in cluster.described.entries} == {"dgx-1v"}
    assert whys(cluster) == ["4 hosts: none has the cables of dgx-1v, which it is said to be; that stands"]
    with pytest.raises(ValueError, match="found no node type 'dgx-9'"):
        made(leaf_spine(), node_type="dgx-9")


def test_a_dumped_node_keeps_its_type_and_the_others_can_be_given_it() -> None:
    node = dump("n1.txt", GpuFound(0, H100, A), ports=(PortFound("mlx5_0", 1, "Active", "LinkUp", 400.0),))
    cluster = made(node, leaf_spine(), node_type="1xH100-SXM5-80GB")
    assert {entry.type for entry in cluster.described.entries} == {"1xH100-SXM5-80GB"}
    assert cluster.described.entry_of["n1"].uuids == (A,)
    assert len(to_snapshot(cluster).topology.nodes) == 4


def test_guids_tell_which_host_a_dump_is_of() -> None:
    node = dump("n2.txt", GpuFound(0, H100, A), ports=(PortFound("mlx5_3", 1, "Active", node_guid="0x0000000000000003"),))
    cluster = made(node, leaf_spine())
    assert set(cluster.described.entry_of) == {"n1", "n2", "n3", "n4"}
    assert cluster.described.entry_of["n3"].uuids == (A,)
    assert kind_of(cluster, "n3").hcas[0].name == "mlx5_3"
    assert kind_of(cluster, "n3").hcas[0].rate_gbps == 400.0  # from its cable
    assert [link.hca for link in to_fabric(cluster).links if link.a == "n3"] == ["mlx5_3"]
    assert guid_key("0x00:00") == ""


def test_a_host_that_the_fabric_does_not_name_has_the_name_of_the_dump_with_its_guid() -> None:
    node = dump(
        "n2.txt",
        GpuFound(0, H100, A),
        name="gpu-7",
        ports=(PortFound("mlx5_3", 1, "Active", node_guid="0xb8599f0300000001"),),
    )
    host = HostFound("H", "b8599f0300000001", (("", "b8599f0300000001"),), named=False)
    fabric = FabricFound("y", "f", (SwitchFound("L1"),), (host,), (CableFound("H", "L1", 400.0),))
    cluster = made(node, fabric)
    assert set(cluster.described.entry_of) == {"gpu-7"}
    assert [(link.a, link.b) for link in to_fabric(cluster).links] == [("gpu-7", "L1")]
    # A GUID that two nodes claim was redacted or copied: it names nobody.
    cluster = made(node, dump("n1.txt", name="gpu-8", ports=node.ports), fabric)
    assert set(cluster.described.entry_of) == {"gpu-7", "gpu-8", "b8599f0300000001"}


def test_adapters_that_a_fabric_counts_in_its_own_way() -> None:
    cables = tuple(CableFound("H", "L1", 200.0, hca=f"HCA-{i}") for i in (2, 10, 1, 3))
    found = FabricFound("y", "f", (SwitchFound("L1"),), (HostFound("H", "n1"),), cables)
    cluster = made(found, node_type="dgx-1v")
    assert [link.hca for link in to_fabric(cluster).links] == ["mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3"]
    cluster = made(FabricFound("y", "f", found.switches, found.hosts, cables[:3]), node_type="dgx-1v")
    assert {link.hca for link in to_fabric(cluster).links} == {""}


def test_what_readers_set_aside_stays() -> None:
    problem = Problem("f.txt", 7, "cut row", "the file ends there")
    found = leaf_spine()
    cluster = made(FabricFound("y", "f.txt", found.switches, found.hosts, found.cables, False, (problem,)))
    assert cluster.problems == (problem,)


def test_12_500_hosts_are_a_short_file_in_seconds() -> None:
    switches, hosts, cables = [], [], []
    for pod in range(25):
        for rail in range(8):
            switches.append(SwitchFound(f"L{pod}-{rail}", f"leaf-p{pod:02d}-r{rail}"))
            cables += [CableFound(f"S{spine}", f"L{pod}-{rail}", 400.0, 2) for spine in range(8)]
        for number in range(pod * 500, pod * 500 + 500):
            hosts.append(HostFound(f"H{number}", f"n{number:05d}"))
            cables += [CableFound(f"H{number}", f"L{pod}-{rail}", 400.0, hca=f"mlx5_{rail}") for rail in range(8)]
    switches += [SwitchFound(f"S{spine}", f"spine{spine}") for spine in range(8)]
    start_s = time.process_time()
    cluster = to_cluster(
        [FabricFound("y", "f", tuple(switches), tuple(hosts), tuple(cables))], {}, Choices(node_type="hgx-h100")
    )
    assert time.process_time() - start_s < 15
    text = write(cluster)
    assert len(text.splitlines()) < 300
    assert parse(text) == cluster
    assert len(cluster.described.entries) == 1
