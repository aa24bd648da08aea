"""`fmctl topo import` and `topo export` without a process: texts in, a Cluster file out; and every real file that there is."""

from __future__ import annotations

import gzip
import json
import zlib
from collections import Counter
from pathlib import Path

import pytest

from fmproto.described import describe_node
from fmproto.dumptext import Problems, decode
from fmproto.hostlist import expand
from fmsched.offline import exporting, importing
from fmsched.offline.errors import OfflineError
from fmsched.offline.topo import view
from fmsched.topology.clusterfile import ClusterFile, parse, to_snapshot
from fmsched.topology.readers import kinds
from fmsched.topology.readers.found import Found, NodeFound
from tests.support.shared_data import files, shared

SLURM = """\
SwitchName=leaf1 Nodes=n[1-4]
SwitchName=leaf2 Nodes=n[5-8]
SwitchName=spine Switches=leaf[1-2]
"""
LIST = """\
GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-5d4a2c10-77aa-4b21-9c55-1b2c3d4e5f60)
GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-5d4a2c10-77aa-4b21-9c55-1b2c3d4e5f61)
"""
TOPO = "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tNV18\t0-31\t0\nGPU1\tNV18\t X \t0-31\t0\n"


def imported(*dumps: tuple[str, str, bytes | str], **options: object) -> tuple[ClusterFile, tuple[str, ...]]:
    raw = [(kind, file, content.encode() if isinstance(content, str) else content) for kind, file, content in dumps]
    text, problems = importing.run(raw, "yaml", **options)  # type: ignore[arg-type]
    cluster = parse(text)
    assert isinstance(cluster, ClusterFile), [str(fault) for fault in cluster]
    assert tuple(map(str, cluster.problems)) == problems
    data, _ = importing.run(raw, "json", **options)  # type: ignore[arg-type]
    assert parse(data) == cluster
    assert json.loads(data)["kind"] == "Cluster"
    return cluster, problems


def refused(*dumps: tuple[str, str, bytes], **options: object) -> tuple[str, ...]:
    with pytest.raises(OfflineError) as caught:
        importing.run(dumps, "yaml", **options)  # type: ignore[arg-type]
    return caught.value.lines


def test_kinds_are_mixed_in_one_import() -> None:
    cluster, problems = imported(
        ("slurm-topology", "t.conf", SLURM), ("nvidia-smi-list", "n3.txt", LIST), ("nvidia-smi-topo", "n3.topo.txt", TOPO)
    )
    assert set(cluster.described.entry_of) == {f"n{i}" for i in range(1, 9)}
    kind = cluster.described.types[cluster.described.entry_of["n3"].type]
    assert (len(kind.gpus), kind.nvlink[0][1]) == (2, 900.0)
    assert to_snapshot(cluster).topology.hop_count("n1", "n8") == 3
    assert not problems


def test_files_may_be_compressed() -> None:
    whole = gzip.compress(SLURM.encode())
    assert (
        imported(("slurm-topology", "t.conf.gz", whole))[0].described
        == imported(("slurm-topology", "t", SLURM))[0].described
    )
    joined = gzip.compress(SLURM[:30].encode()) + gzip.compress(SLURM[30:].encode())
    assert importing.plain(joined, "x") == SLURM.encode()
    assert importing.plain(whole[:-12], "x").startswith(b"SwitchName")
    (line,) = refused(("slurm-topology", "t.gz", b"\x1f\x8b\x08\x00" + bytes(20)))
    assert line.startswith("t.gz: the whole file: begins as a gzip archive, but cannot be unpacked")


def test_an_archive_that_grows_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importing, "BYTES_MAX", 1 << 20)
    packer = zlib.compressobj(9, wbits=31)
    bomb = packer.compress(bytes(64 << 20)) + packer.flush()
    assert len(bomb) < 1 << 17
    assert "unpacks to more than 1,048,576 bytes" in refused(("slurm-topology", "t.gz", bomb))[0]


def test_a_refused_file_is_told_and_hides_no_other() -> None:
    cluster, problems = imported(("slurm-topology", "t.conf", SLURM), ("ibstat", "bad.txt", "nothing here\n"))
    assert len(cluster.described.entry_of) == 8
    assert problems[0].startswith("bad.txt: ")


def test_all_refused_says_why_of_each() -> None:
    lines = refused(("ibstat", "a.txt", b"nothing\n"), ("slurm-topology", "b.txt", b""))
    assert [line.partition(":")[0] for line in lines] == ["a.txt", "b.txt"]


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"type": "hgx-h1000"}, "--type: found no node type 'hgx-h1000'; known here: "),
        ({"cluster_name": "No Name"}, "--name: found 'No Name'; allowed: "),
        ({"gbps": -1.0}, "--gbps: found -1"),
        ({"gbps": float("nan")}, "--gbps: found nan"),
        ({"guids": ("g.txt", b"no map\n")}, "g.txt: "),
    ],
)
def test_options_that_cannot_be_meant(options: dict[str, object], part: str) -> None:
    assert refused(("slurm-topology", "t", SLURM.encode()), **options)[0].startswith(part)


def test_an_unknown_kind() -> None:
    assert refused(("ibstats", "t", b"x"))[0].startswith("--kind: found 'ibstats'; allowed: ibstat, ")


def test_hosts_get_their_names_from_a_map_of_guids() -> None:
    net = (
        'Switch\t4 "S-b8599f0300aa0001"\t# "leaf" enhanced port 0 lid 1 lmc 0\n'
        '[1]\t"H-b8599f0300bb0001"[1](b8599f0300bb0001)\t# "MT4123 ConnectX6 Mellanox Technologies" lid 2 4xHDR\n\n'
        'Ca\t1 "H-b8599f0300bb0001"\t# "MT4123 ConnectX6 Mellanox Technologies"\n'
        '[1](b8599f0300bb0001)\t"S-b8599f0300aa0001"[1]\t# lid 2 lmc 0 "leaf" lid 1 4xHDR\n'
    )
    plain, _ = imported(("ibnetdiscover", "net.txt", net))
    assert "b8599f0300bb0001" in next(iter(plain.described.entry_of))
    named, _ = imported(("ibnetdiscover", "net.txt", net), guids=("guids.txt", b"gpu-17: 0xb8599f0300bb0001\n"))
    assert set(named.described.entry_of) == {"gpu-17"}


def test_stems() -> None:
    assert importing.stem_of("dumps/n1.ibstat.txt.gz") == "n1"
    assert importing.stem_of("<stdin>") == ""


def test_each_kind_has_a_reader() -> None:
    for kind in kinds.KINDS:
        assert callable(kinds.reader(kind))


# --- export, and what is drawn ---


def test_exports_of_a_cluster_file() -> None:
    text = importing.run([("slurm-topology", "t", SLURM.encode())], "yaml", type="hgx-h100")[0].encode()
    slurm = exporting.run("slurm-topology", (text, "c.yaml"))
    assert imported(("slurm-topology", "again", slurm))[0].described.entry_of.keys() == {f"n{i}" for i in range(1, 9)}
    assert "<graphml" in exporting.run("graphml", (text, "c.yaml"))
    nccl = exporting.run("nccl-topo", (text, "c.yaml"), node="n3")
    cluster, _ = imported(("nccl-topo", "n3.xml", nccl))
    assert len(cluster.described.types[cluster.described.entry_of["n3"].type].gpus) == 8
    # The service's answer is exported alike.
    assert exporting.run("slurm-topology", view(text, "c.yaml")) == slurm
    assert exporting.run("nccl-topo", view(text, "c.yaml"), node="n3") == nccl


@pytest.mark.parametrize(
    ("kind", "node", "part"),
    [
        ("nccl-topo", "", "--node: found 8 nodes, and a topology file is of one; known here: n1, n2"),
        ("nccl-topo", "n9", "--node: found no node 'n9'; known here: n1, n2"),
        ("dot", "", "--kind: found 'dot'; allowed: slurm-topology, nccl-topo, graphml"),
    ],
)
def test_exports_that_cannot_be(kind: str, node: str, part: str) -> None:
    text = importing.run([("slurm-topology", "t", SLURM.encode())], "yaml")[0].encode()
    with pytest.raises(OfflineError) as caught:
        exporting.run(kind, (text, "c.yaml"), node)
    assert caught.value.lines[0].startswith(part)


def test_faults_of_a_cluster_file_name_it() -> None:
    with pytest.raises(OfflineError) as caught:
        view(b"kind: Custer\n", "c.yaml")
    assert caught.value.lines[0].startswith("c.yaml:1: ")


def test_a_cluster_file_as_the_service_would_list_it() -> None:
    text = b"""
apiVersion: fmsched/v1
kind: Cluster
nodes:
  - {name: "n[1-2]", type: hgx-h100, leaf: leaf1, faults: {n2/gpu3: "Xid 79", n2/mlx5_1: Down/Polling}}
busy: {job.1: "n1/gpu[0-1]"}
closed: {n2: cables}
"""
    n1, n2 = view(text, "c").nodes
    assert (n1.state, n1.leaf, dict(n1.holders)) == ("ready", "leaf1", {0: "job.1", 1: "job.1"})
    assert (n2.state, n2.reason, n2.leaf) == ("drained", "cables", "leaf1")
    assert (n2.inventory, n2.health) == describe_node(text, "n2")
    assert n2.health.gpus[3].reason == "Xid 79"


# --- real files ---

REAL = (
    ("topo_m", "*", "nvidia-smi-topo"),
    ("ibstat", "*", "ibstat"),
    ("nvsmi", "q*", "nvidia-smi-q"),
    ("nvsmi", "L-*", "nvidia-smi-list"),
    ("nvsmi", "nvlink-s-*", "nvlink-status"),
    ("nccl_xml", "*", "nccl-topo"),
    ("ibnetdiscover", "*", "ibnetdiscover"),
    ("slurm_topology", "*.conf", "slurm-topology"),
    ("slurm_topology", "yaml-*", "slurm-topology"),
    ("slurm_topology", "topograph-*", "topograph"),
)


def assert_nothing_is_lost(found: Found, cluster: ClusterFile) -> None:
    """What the reader found is in the Cluster file: GPUs, ports and who is out of order, or switches, hosts, cables and rates."""
    if isinstance(found, NodeFound):
        (entry,) = cluster.described.entries
        kind = cluster.described.types[entry.type]
        assert len(kind.gpus) == max((gpu.index + 1 for gpu in found.gpus), default=0)
        assert sorted(hca.rate_gbps for hca in kind.hcas) == sorted(port.rate_gbps for port in found.ports)
        bad = sum(bool(gpu.fault) for gpu in found.gpus) + sum(port.state not in ("", "Active") for port in found.ports)
        assert len(entry.faults) == bad + len(kind.gpus) - len(found.gpus)
        return
    assert len(cluster.level_of) == len(found.switches)
    assert len(cluster.described.entry_of) == len(found.hosts)
    cables = Counter({(cable.gbps, cable.down): 0 for cable in found.cables})
    for cable in found.cables:
        cables[cable.gbps, cable.down] += cable.count
    links: Counter[tuple[float, bool]] = Counter()
    for row in cluster.links:
        links[row.gbps, row.down] += len(expand(row.a)) * len(expand(row.b)) * row.count
    assert links == cables


@pytest.mark.parametrize(("folder", "pattern", "kind"), REAL, ids=str)
def test_every_real_file_is_a_cluster_file_or_is_refused_with_a_reason(folder: str, pattern: str, kind: str) -> None:
    shared(folder)
    read = 0
    told = []
    for path in files(folder, pattern):
        try:
            cluster, _ = imported((kind, path.name, path.read_bytes()))
        except OfflineError as error:
            told.append((path.name, error.lines))
            continue
        read += 1
        found = kinds.reader(kind)(decode(importing.plain(path.read_bytes(), path.name), Problems(path.name)), path.name)
        assert_nothing_is_lost(found, cluster)
        snapshot = to_snapshot(cluster)
        assert len(snapshot.topology.nodes) == len(cluster.described.entry_of)
        assert cluster.described.entry_of or cluster.level_of
        for name in list(cluster.described.entry_of)[:3]:
            inventory, _ = describe_node(importing.run([(kind, path.name, path.read_bytes())], "yaml")[0], name)
            assert inventory.node == name
    assert read
    assert all(len(lines) == 1 and lines[0].startswith(name) for name, lines in told)


@pytest.mark.parametrize("kind", kinds.KINDS)
def test_a_file_of_another_kind_is_refused(kind: str, tmp_path: Path) -> None:
    lines = refused((kind, "cluster.yaml", b"apiVersion: fmsched/v1\nkind: Cluster\nnodes: []\n"))
    assert lines[0].startswith("cluster.yaml")
