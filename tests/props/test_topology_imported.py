"""Whatever readers find, in whatever combination, becomes a Cluster file that reads back the same and makes a snapshot."""

from __future__ import annotations

import string

from hypothesis import given, settings
from hypothesis import strategies as st

from fmproto.dumptext import Problem
from fmproto.hostlist import expand
from fmsched.topology.clusterfile import ClusterFile, parse, to_snapshot
from fmsched.topology.clustertext import write, write_json
from fmsched.topology.imported import Choices, to_cluster
from fmsched.topology.imported_names import ranges, unique_names
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

odd = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
names = st.sampled_from(["n1", "n2", "n10", "node-007.lab", "leaf 1", "MF0;core:X/L01", "Ω", "", "a[1-3]", "x,y"]) | odd
files = st.sampled_from(["a.txt", "b.txt", "dumps/n1.topo.txt.gz"])
rates = st.sampled_from([0.0, 25.0, 100.0, 400.0, 1e9, 0.125])
uuids = st.sampled_from(["", "GPU-redacted", "not one"]) | st.integers(0, 5).map(
    lambda i: f"GPU-0123456{i}-89ab-cdef-0123-456789abcdef"
)
guids = st.sampled_from(["", "0x0", "zz"]) | st.integers(1, 6).map(lambda i: f"b8599f03000{i:05x}")
problems = st.lists(st.builds(Problem, files, st.integers(0, 9), odd, odd), max_size=2).map(tuple)

gpus = st.builds(
    GpuFound,
    index=st.integers(-1, 9) | st.sampled_from([63, 64, 500]),
    name=st.sampled_from(["", "NVIDIA H100 80GB HBM3", "Tesla V100-SXM2-32GB", "Odd Card 9", "???"]) | odd,
    uuid=uuids,
    pci=st.sampled_from(["", "00000000:1B:00.0", "0000:1b:00.0", "1b:00.0", "none"]),
    memory_mib=st.sampled_from([0.0, 81559.0, 32510.0, 1e12]),
    mig_enabled=st.none() | st.booleans(),
    mig=st.lists(st.builds(MigFound, st.sampled_from(["1g.10gb", "1c.3g.71gb", "1g.10gb+me", "odd"])), max_size=3).map(
        tuple
    ),
    fault=st.sampled_from(["", "GPU is lost"]) | odd,
    nvlinks_active=st.none() | st.integers(0, 18),
    nvlinks_down=st.lists(st.integers(0, 17), max_size=3).map(tuple),
    nvlink_gbytes_per_s=st.sampled_from([0.0, 900.0, 53.125]),
)
nvlinks = st.builds(
    NvlinkFound, st.integers(0, 9), st.integers(0, 9), st.integers(0, 18), st.sampled_from([0.0, 600.0, 1e9]), st.booleans()
)
ports = st.builds(
    PortFound,
    hca=st.sampled_from(["mlx5_0", "mlx5_1", "", "0bad", "bond 0"]) | odd,
    port=st.integers(0, 9),
    state=st.sampled_from(["", "Active", "Down", "Initializing"]) | odd,
    physical_state=st.sampled_from(["", "LinkUp", "Polling"]) | odd,
    rate_gbps=rates,
    link_layer=st.sampled_from(["", "InfiniBand", "Ethernet"]) | odd,
    node_guid=guids,
    port_guid=guids,
    near=st.lists(st.integers(0, 12), max_size=3).map(tuple),
    pci=st.sampled_from(["", "0000:0c:00.0"]),
)
paths = st.dictionaries(
    st.tuples(st.sampled_from(["GPU0", "GPU1", "0"]), st.sampled_from(["GPU1", "mlx5_0", "mlx5_1"])),
    st.sampled_from(["PIX", "PXB", "NODE", "SYS", "NV18"]),
    max_size=4,
)
nodes = st.builds(
    NodeFound,
    kind=st.just("x"),
    file=files,
    name=st.just("") | names,
    gpus=st.lists(gpus, max_size=5).map(tuple),
    nvlinks=st.lists(nvlinks, max_size=5).map(tuple),
    ports=st.lists(ports, max_size=4).map(tuple),
    paths=paths,
    cpus=st.integers(-1, 300),
    memory_gb=st.sampled_from([0.0, 2048.0, 1e9]),
    problems=problems,
)


@st.composite
def fabrics(draw: st.DrawFn) -> FabricFound:
    switches = draw(st.lists(st.builds(SwitchFound, names, names, st.none() | st.integers(-1, 12)), max_size=5))
    adapters = st.lists(st.tuples(st.sampled_from(["", "mlx5_0", "HCA-1"]), guids.filter(bool)), max_size=3).map(tuple)
    hosts = draw(
        st.lists(
            st.builds(
                HostFound,
                names.map(lambda n: f"h{n}"),
                names,
                adapters,
                st.sampled_from(["", "rack1"]) | odd,
                st.booleans(),
            ),
            max_size=5,
        )
    )
    ends = st.sampled_from([each.id for each in (*switches, *hosts)] or ["nobody"]) | names
    cables = st.builds(
        CableFound,
        ends,
        ends,
        rates,
        st.sampled_from([1, 2, 0, -1, 5000]),
        st.booleans(),
        st.sampled_from(["", "mlx5_0", "HCA-1", "0bad"]),
        st.integers(0, 9),
    )
    unique = {switch.id: switch for switch in switches}
    unique_hosts = {host.id: host for host in hosts if host.id not in unique}
    found = FabricFound("y", draw(files), tuple(unique.values()), tuple(unique_hosts.values()))
    return FabricFound(
        found.kind,
        found.file,
        found.switches,
        found.hosts,
        tuple(draw(st.lists(cables, max_size=12))),
        True,
        draw(problems),
    )


@settings(max_examples=100, deadline=None)
@given(
    st.lists(nodes | fabrics(), min_size=1, max_size=4),
    st.sampled_from(["", "given"]),
    st.sampled_from(["", "hgx-h100", "dgx-1v"]),
    st.sampled_from([0.0, 200.0]),
)
def test_what_readers_find_makes_a_cluster_file(found: list[Found], node: str, node_type: str, gbps: float) -> None:
    cluster = to_cluster(
        found, {"a.txt": "a", "b.txt": "b", "dumps/n1.topo.txt.gz": "n1"}, Choices("lab", node, node_type, gbps)
    )
    again = parse(write(cluster))
    assert isinstance(again, ClusterFile), [str(fault) for fault in again]
    assert again == cluster
    assert parse(write_json(cluster)) == cluster
    snapshot = to_snapshot(cluster)
    assert {node.name for node in snapshot.topology.nodes} == set(cluster.described.entry_of)
    assert {problem for one in found for problem in one.problems} <= set(cluster.problems)


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(odd, names, max_size=8), st.lists(names, max_size=3))
def test_every_thing_gets_an_allowed_name_of_its_own(wanted: dict[str, str], taken: list[str]) -> None:
    told: list[str] = []
    found = unique_names(wanted, taken, "switch", lambda name, _: told.append(name))
    assert found.keys() == wanted.keys()
    assert len(set(found.values())) == len(found)
    assert set(found.values()).isdisjoint(taken)
    allowed = set(string.ascii_letters + string.digits + "._-")
    assert all(name and set(name) <= allowed and name[0] not in "._-" and name[-1] not in "._-" for name in found.values())


@settings(max_examples=100, deadline=None)
@given(st.sets(st.from_regex(r"[a-c]{0,2}[0-9]{1,4}(-l[0-9]{1,2})?", fullmatch=True), max_size=60))
def test_ranges_stand_for_the_same_names(wanted: set[str]) -> None:
    texts = list(ranges(wanted))
    assert sorted(name for text in texts for name in expand(text)) == sorted(wanted)
    assert all(len(text) < 400 for text in texts)
