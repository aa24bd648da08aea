"""What NCCL and RCCL topology files say of a node: made-up pieces with each oddity, then every file of the collection."""

from __future__ import annotations

import gzip
import re
import xml.etree.ElementTree as ET
from itertools import combinations
from pathlib import Path

import pytest

from fmproto.dumptext import Problems, ReaderError, decode
from fmsched.topology.readers.found import NodeFound
from fmsched.topology.readers.nccl_topo import read
from tests.support.shared_data import files


def gpu(busid: str, inner: str = "", more: str = "", kind: str = "0x030200") -> str:
    return f'<pci busid="{busid}" class="{kind}" vendor="0x10de" device="0x20b2"><gpu {more}>{inner}</gpu></pci>\n'


def net(name: str, busid: str = "0000:a0:00.0", more: str = 'speed="200000" port="1"', kind: str = "0x020700") -> str:
    return f'<pci busid="{busid}" class="{kind}" vendor="0x15b3"><nic><net name="{name}" {more}/></nic></pci>\n'


def switch(busid: str, *inner: str) -> str:
    return f'<pci busid="{busid}" class="0x060400">\n{"".join(inner)}</pci>\n'


def cpu(numa: int, *inner: str, more: str = "") -> str:
    return f'<cpu numaid="{numa}" {more}>\n{"".join(inner)}</cpu>\n'


def system(*cpus: str, version: str = "1") -> str:
    return f'<system version="{version}">\n{"".join(cpus)}</system>\n'


def node_of(*cpus: str) -> NodeFound:
    return read(system(*cpus), "topo.xml")


def whys(node: NodeFound) -> list[str]:
    return [f"{problem.what}: {problem.why}" for problem in node.problems]


def test_gpus_ports_links_near_and_paths() -> None:
    node = node_of(
        cpu(
            0,
            switch(
                "0000:01:00.0",
                gpu(
                    "0000:02:00.0",
                    '<nvlink target="0000:22:00.0" count="4" tclass="0x030200"/>',
                    'dev="0" sm="80" rank="0" gdr="1"',
                ),
                net("mlx5_0", "0000:03:00.0"),
            ),
            switch(
                "0000:10:00.0",
                switch("0000:11:00.0", gpu("0000:12:00.0", more='dev="1"')),
                switch("0000:13:00.0", net("mlx5_1")),
            ),
            more='affinity="000000ff,00000000,0000000f" arch="x86_64"',
        ),
        cpu(
            1, gpu("0000:22:00.0", '<nvlink target="0000:02:00.0" count="4" tclass="0x030200"/>', 'dev="2"'), net("mlx5_2")
        ),
    )
    assert (node.kind, node.complete, node.problems) == ("nccl-topo", True, ())
    assert [(g.index, g.pci, g.numa, g.cpus, g.nvlinks_active, g.vendor) for g in node.gpus] == [
        (0, "0000:02:00.0", 0, "0-3,64-71", 4, "nvidia"),
        (1, "0000:12:00.0", 0, "0-3,64-71", None, "nvidia"),
        (2, "0000:22:00.0", 1, "", 4, "nvidia"),
    ]
    assert node.gpus[0].name == "NVIDIA A100-SXM4-80GB"
    assert (node.gpus[0].facts["sm"], node.gpus[0].facts["device_id"]) == ("80", "0x20b2")
    assert [(link.a, link.b, link.links, link.to_all) for link in node.nvlinks] == [(0, 2, 4, False)]
    assert [(p.hca, p.port, p.rate_gbps, p.near, p.numa, p.link_layer) for p in node.ports] == [
        ("mlx5_0", 1, 200.0, (0,), 0, "InfiniBand"),
        ("mlx5_1", 1, 200.0, (1,), 0, "InfiniBand"),
        ("mlx5_2", 1, 200.0, (2,), 1, "InfiniBand"),
    ]
    assert {ends: path for ends, path in node.paths.items() if ends[1].startswith("GPU") or ends[0] == "GPU1"} == {
        ("GPU0", "GPU1"): "PHB", ("GPU0", "GPU2"): "SYS", ("GPU1", "GPU2"): "SYS",
        ("GPU1", "mlx5_0"): "PHB", ("GPU1", "mlx5_1"): "PXB", ("GPU1", "mlx5_2"): "SYS",
    }  # fmt: skip
    assert node.paths[("GPU0", "mlx5_0")] == "PIX"


def test_an_adapter_with_no_gpu_on_its_cpu_is_near_none() -> None:
    node = node_of(cpu(0, gpu("0000:02:00.0", more='dev="0"')), cpu(1, switch("0000:05:00.0", net("mlx5_0"))))
    assert [port.near for port in node.ports] == [()]


def test_nvswitches() -> None:
    links = '<nvlink target="0000:c{0}:00.0" count="{1}" tclass="0x068000"/>'
    inner = links.format(1, 2) + links.format(2, 4)
    node = node_of(cpu(0, *(gpu(f"0000:0{i}:00.0", inner, f'dev="{i}"') for i in range(1, 4))))
    assert [(link.a, link.b, link.links, link.to_all) for link in node.nvlinks] == [
        (1, 2, 6, True),
        (1, 3, 6, True),
        (2, 3, 6, True),
    ]
    assert [g.nvlinks_active for g in node.gpus] == [6, 6, 6]
    assert node.problems == ()


def test_nvswitches_hidden_in_a_virtual_machine_and_fewer_links_of_one_gpu() -> None:
    inner = '<nvlink target="fffffff:ffff:ff" count="{}" tclass="0x068000"/>'
    node = node_of(cpu(0, *(gpu(f"0000:0{i}:00.0", inner.format(18 - 2 * (i == 1)), f'dev="{i}"') for i in range(3))))
    assert {(link.a, link.b): link.links for link in node.nvlinks} == {(0, 1): 16, (0, 2): 18, (1, 2): 16}
    assert any("GPU 1 has 16 links" in why for why in whys(node))


@pytest.mark.parametrize(
    ("first", "second", "links", "why"),
    [
        ('target="0000:01:00.0" count="12" tclass="0x030200"', None, [], "to itself"),
        ('target="0000:77:00.0" count="12" tclass="0x030200"', None, [], "no GPU of this address"),
        ('target="0000:02:00.0" count="4" tclass="0x030200"', None, [4], "0 back"),
        ('target="0000:02:00.0" count="4" tclass="0x030200"', 'target="0000:01:00.0" count="3"', [3], "3 back"),
        ('target="0000:02:00.0" count="x" tclass="0x030200"', None, [], "whole number"),
        ('target="0000:02:00.0" tclass="0x030200"', None, [], "no count"),
        ('target="0000:02:00.0" count="9999999" tclass="0x030200"', None, [], "whole number"),
        ('target="" count="3" tclass="0x068001"', None, [], ""),
    ],
)
def test_odd_links(first: str, second: str | None, links: list[int], why: str) -> None:
    node = node_of(
        cpu(
            0,
            gpu("0000:01:00.0", f"<nvlink {first}/>", 'dev="0"'),
            gpu("0000:02:00.0", f"<nvlink {second}/>" if second else "", 'dev="1"'),
        )
    )
    assert len(node.gpus) == 2
    assert [link.links for link in node.nvlinks] == links
    assert any(why in text for text in whys(node)) if why else node.problems == ()


def test_rccl() -> None:
    inner = '<xgmi target="0000:{}:00.0" count="2" tclass="0x120000"/>'
    gpus = [
        f'<pci busid="0000:{a}:00.0" class="0x120000" vendor="0x1002" device="0x74a1">'
        f'<gpu dev="{i}" sm="304" gcn="gfx942" arch="38911" rank="{i}" gdr="1">{inner.format(b)}</gpu></pci>'
        for i, (a, b) in enumerate((("0c", "15"), ("15", "0c")))
    ]
    node = read(system(cpu(0, *gpus), version="2"), "rccl.xml")
    assert [(g.vendor, g.name, g.facts["gcn"]) for g in node.gpus] == [("amd", "AMD Instinct MI300X", "gfx942")] * 2
    assert [(link.a, link.b, link.links, link.to_all) for link in node.nvlinks] == [(0, 1, 2, False)]
    assert node.problems == ()


def test_a_file_of_addresses_numbers_gpus_by_address() -> None:
    """As clouds write NCCL_TOPO_FILE: pci elements of a class, and no gpu or nic in them."""
    leaf = '<pci busid="{}" class="{}"/>'
    node = node_of(
        cpu(1, switch("ffff:ff:02.0", leaf.format("000a:00:00.0", "0x030200"), leaf.format("0101:00:00.0", "0x020700"))),
        cpu(0, switch("ffff:ff:01.0", leaf.format("0001:00:00.0", "0x030200"), leaf.format("0102:00:00.0", "0x020700"))),
    )
    assert [(g.index, g.pci, g.numa) for g in node.gpus] == [(0, "0001:00:00.0", 0), (1, "000a:00:00.0", 1)]
    assert [(p.hca, p.pci, p.near, p.rate_gbps) for p in node.ports] == [
        ("", "0101:00:00.0", (1,), 0.0),
        ("", "0102:00:00.0", (0,), 0.0),
    ]
    assert node.complete


def test_numbers_given_twice_or_not_at_all() -> None:
    parts = [gpu("0000:05:00.0", more='dev="1"'), gpu("0000:04:00.0", more='dev="1"'), gpu("0000:03:00.0", more='dev="no"')]
    node = node_of(cpu(0, *parts, gpu("0000:05:00.0", more='dev="7"'), gpu("", more='dev="9"')))
    assert [(g.index, g.pci) for g in node.gpus] == [(0, "0000:03:00.0"), (1, "0000:05:00.0"), (2, "0000:04:00.0"), (9, "")]
    told = "".join(whys(node))
    assert all(word in told for word in ("this number before", "whole number", "this address before", "a PCI address"))


def test_other_pci_devices_are_neither_gpus_nor_adapters() -> None:
    console = '<pci busid="0000:06:00.0" class="0x030000" vendor="0x1a03"/>'
    disk = '<pci busid="0000:07:00.0" class="0x010802"/>'
    unknown = '<pci busid="0000:08:00.0"/>'
    node = node_of(cpu(0, gpu("0000:05:00.0", more='dev="0"'), console, disk, unknown))
    assert (len(node.gpus), node.ports) == (1, ())
    assert len(node.problems) == 3


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        ('name="mlx5_0" speed="-1" port="1"', ("mlx5_0", 1, 0.0)),
        ('name="mlx5_0" speed="400000" port="2"', ("mlx5_0", 2, 400.0)),
        ('name="eth0" speed="100000" port="0"', ("eth0", 1, 100.0)),
        ('name="mlx5_0"', ("mlx5_0", 1, 0.0)),
        ('name="mlx5_0" speed="fast" port="x"', ("mlx5_0", 1, 0.0)),
    ],
)
def test_speeds_and_ports(attributes: str, expected: tuple[str, int, float]) -> None:
    node = node_of(cpu(0, f"<nic><net {attributes}/></nic>"))
    assert [(p.hca, p.port, p.rate_gbps) for p in node.ports] == [expected]
    assert len(node.problems) == (2 if "fast" in attributes else 0)


def test_two_ports_of_one_adapter_and_one_given_twice() -> None:
    nets = '<net name="mlx5_0" port="1"/><net name="mlx5_1" port="2"/><net name="mlx5_0" port="1"/><net port="1"/><gin name="mlx5_0"/>'
    node = node_of(cpu(0, f'<pci busid="0000:03:00.0" class="0x020000"><nic>{nets}</nic></pci>'))
    assert [(p.hca, p.port, p.pci) for p in node.ports] == [("mlx5_0", 1, "0000:03:00.0"), ("mlx5_1", 2, "0000:03:00.0")]
    assert len(node.problems) == 2


def test_adapters_that_nccl_made_one_of() -> None:
    node = node_of(cpu(0, net("mlx5_0+mlx5_1", more='speed="400000" port="1"')))
    assert [(p.hca, p.rate_gbps) for p in node.ports] == [("mlx5_0", 200.0), ("mlx5_1", 200.0)]
    assert len(node.problems) == 1


@pytest.mark.parametrize(
    ("guid", "expected"),
    [
        ("0xc8c9d60003ae6d94", "0x946dae0300d6c9c8"),  # bytes of an EUI-64 in reverse
        ("0x946dae0300d6c9c8", "0x946dae0300d6c9c8"),  # and as it is
        ("0xad9c300039f59b8", "0xb8599f0300c3d90a"),  # a leading zero dropped
        ("0x123456feff9abcde", "0xdebc9afffe563412"),
        ("0x0", ""),
        ("3", ""),
        ("no", ""),
        ("", ""),
    ],
)
def test_guids(guid: str, expected: str) -> None:
    node = node_of(cpu(0, net("mlx5_0", more=f'guid="{guid}"')))
    assert node.ports[0].node_guid == expected


def test_comments_junk_and_missing_attributes() -> None:
    device = "<pci busid='0000:01:00.0' class='0x03'>\n<gpu dev='0'/> <!-- GPU 0 --></pci>"
    text = f"<!-- by <hand> -->\n<system>\n<cpu><!-- a -->{device}</cpu></system>"
    node = read("user@host$ cat topo.xml\n" + text, "topo.xml")
    assert [(g.index, g.numa, g.name) for g in node.gpus] == [(0, -1, "")]
    assert any('version=""' in why for why in whys(node))


def test_elements_nested_too_deep_hide_no_other() -> None:
    deep = "<pci busid='0000:09:00.0' class='0x060400'>" * 300 + gpu("0000:03:00.0", more='dev="2"') + "</pci>" * 300
    node = node_of(cpu(0, gpu("0000:01:00.0", more='dev="0"'), deep, gpu("0000:02:00.0", more='dev="1"')))
    assert [(g.index, g.pci) for g in node.gpus] == [(0, "0000:01:00.0"), (1, "0000:02:00.0")]
    assert any("nested deeper" in why for why in whys(node))
    assert node.complete


def test_a_gpu_of_another_maker() -> None:
    other = '<pci busid="0000:11:00.0" class="0x120000" vendor="0x205d"><gpu dev="0"><silink count="4"/></gpu></pci>'
    node = node_of(cpu(0, other))
    assert [(g.index, g.vendor, g.name) for g in node.gpus] == [(0, "0x205d", "")]
    assert any("<silink>" in why for why in whys(node))


def test_a_cut_file() -> None:
    whole = system(cpu(0, gpu("0000:01:00.0", more='dev="0"'), gpu("0000:02:00.0", more='dev="1"')))
    node = read(whole[: whole.rindex("<gpu") + 6], "topo.xml")
    assert [g.index for g in node.gpus] == [0, 1]  # the second by the pci element that the file ends in
    assert not node.complete
    assert any("the file ends inside it" in why for why in whys(node))


def test_a_piece_without_its_first_line() -> None:
    node = read(cpu(0, gpu("0000:01:00.0", more='dev="0"')), "topo.xml")
    assert (len(node.gpus), node.complete) == (1, False)


def test_several_hosts_in_one_file() -> None:
    """NCCL fuses the files of a multi-node NVLink domain; addresses repeat from host to host."""
    first = cpu(0, gpu("0000:01:00.0", more='dev="0"'), more='host_hash="0xa"')
    second = cpu(0, gpu("0000:01:00.0", more='dev="0"'), more='host_hash="0xb"')
    node = node_of(first, second)
    assert (len(node.gpus), node.complete) == (1, False)
    assert any("several hosts" in why for why in whys(node))


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("", "no XML element"),
        ("GPU0 GPU1", "no XML element"),
        ('<graphs version="1"><graph id="0"/></graphs>', "NCCL graph file"),
        ("<nvidia_smi_log><gpu id='1'/></nvidia_smi_log>", "nvidia-smi-q"),
        ("<html></html>", "<html>"),
        ("<system version='1'/>", "neither a GPU nor an adapter"),
        ("<system version='1'><cpu numaid='0'><pci busid='0000:01:00.0'/></cpu></system>", "none says what it is"),
    ],
)
def test_refused_with_the_reason(content: str, why: str) -> None:
    with pytest.raises(ReaderError) as refused:
        read(content, "x")
    assert why in refused.value.problem.why


# ---- the collection ----------------------------------------------------------------------------------------------------

REFUSED = {"azure-ncv4-graph.xml": "graph file", "aws-g5.48xl-topo.xml": "none says what it is"}
TOPOLOGIES = [path for path in files("nccl_xml", "*.xml") if path.name not in REFUSED]
OTHERS = [path for folder in ("nvsmi", "topo_m", "ibstat", "ibnetdiscover", "slurm_topology") for path in files(folder)]


def content(path: Path) -> str:
    raw = path.read_bytes()
    return decode(gzip.decompress(raw) if path.suffix == ".gz" else raw, Problems(path.name))


def bus(text: str) -> int:
    return int(re.sub(r"[:.]", "", text), 16)


@pytest.mark.parametrize("path", TOPOLOGIES, ids=lambda path: path.name)
def test_every_topology_agrees_with_itself(path: Path) -> None:
    """Against the standard library's parser: counts, links, speeds, and the places of GPUs and adapters by their ancestors."""
    root = ET.fromstring(path.read_bytes())
    node = read(content(path), path.name)
    parent = {child: above for above in root.iter() for child in above}

    def above(element: ET.Element) -> list[ET.Element]:
        chain = [element]
        while chain[-1] in parent:
            chain.append(parent[chain[-1]])
        return chain[1:]

    leaves = [e for e in root.iter("pci") if len(e) == 0 and e.get("class", "").startswith(("0x03", "0x12"))]
    gpus = {int(e.get("dev", "")): parent[e] for e in root.iter("gpu")}
    if not gpus:
        gpus = dict(enumerate(sorted(leaves, key=lambda e: bus(e.get("busid", "")))))
    assert [(g.index, g.pci) for g in node.gpus] == [(i, gpus[i].get("busid")) for i in sorted(gpus)]
    assert [g.numa for g in node.gpus] == [int(above(gpus[i])[-2].get("numaid", "")) for i in sorted(gpus)]
    assert {g.vendor for g in node.gpus} == {"amd" if "rccl" in path.name else "nvidia"}

    number = {gpus[i].get("busid"): i for i in gpus}
    links: dict[tuple[int, int], list[int]] = {}
    switched = dict.fromkeys(gpus, 0)
    for e in [*root.iter("nvlink"), *root.iter("xgmi")]:
        a, b = number[above(e)[1].get("busid")], number.get(e.get("target"))
        if b is None:
            switched[a] += int(e.get("count", ""))
        elif a != b:
            links.setdefault((min(a, b), max(a, b)), []).append(int(e.get("count", "")))
    expected = {pair: (counts[0], False) for pair, counts in links.items()}
    assert all(len(set(counts)) == 1 and len(counts) == 2 for counts in links.values())
    for a, b in combinations(sorted(i for i in switched if switched[i]), 2):
        assert switched[a] == switched[b]
        expected[(a, b)] = (switched[a], True)
    assert {(link.a, link.b): (link.links, link.to_all) for link in node.nvlinks} == expected

    nets = [(e, e.get("name"), int(e.get("port", "")) or 1, int(e.get("speed", "")) / 1000) for e in root.iter("net")]
    bare = [e for e in root.iter("pci") if len(e) == 0 and e.get("class", "").startswith("0x02")]
    assert sorted((p.hca, p.port, p.rate_gbps) for p in node.ports) == sorted(
        [(name, port, rate) for _, name, port, rate in nets] + [("", 1, 0.0)] * len(bare)
    )
    assert sorted(p.pci for p in node.ports if not p.hca) == sorted(e.get("busid") for e in bare)
    for e, key in [(e, ("hca", name)) for e, name, _, _ in nets] + [(e, ("pci", e.get("busid"))) for e in bare]:
        places = [a for a in above(e) if a.tag in ("pci", "cpu")]
        near = next((inside for a in places if (inside := [i for i in gpus if a in above(gpus[i])])), [])
        assert {p.near for p in node.ports if getattr(p, key[0]) == key[1]} == {tuple(sorted(near))}
    assert node.complete
    assert [problem.why for problem in node.problems if "to itself" not in problem.why] == []


@pytest.mark.parametrize("path", TOPOLOGIES, ids=lambda path: path.name)
def test_paths_of_every_topology(path: Path) -> None:
    """PIX, PXB, PHB and SYS counted by the pci elements on the way, from scratch."""
    root = ET.fromstring(path.read_bytes())
    node = read(content(path), path.name)
    chains: dict[str, list[int]] = {}

    def walk(element: ET.Element, chain: list[int]) -> None:
        if element.tag == "pci" and element.get("busid"):
            chains[element.get("busid", "")] = chain
        for child in element:
            walk(child, [*chain, id(element)])

    walk(root, [])
    by_index = {f"GPU{g.index}": g.pci for g in node.gpus}
    by_name = {p.hca: p.pci for p in node.ports}
    for (a, b), found in node.paths.items():
        one, other = chains[by_index[a]], chains.get(by_index.get(b) or by_name[b])
        if other is None:
            continue  # a nic that hangs from the cpu
        common = sum(1 for x, y in zip(one, other, strict=False) if x == y)  # the root, the cpu, then pci elements
        crossed = len(set(one[2:]) ^ set(other[2:])) + (common > 2)
        expected = "SYS" if common == 1 else "PHB" if common == 2 else "PIX" if crossed == 1 else "PXB"
        assert found == expected, (a, b)
    assert len(node.paths) == len(node.gpus) * (len(node.gpus) - 1) // 2 + len(node.gpus) * len(by_name.keys() - {""})


@pytest.mark.parametrize("name", REFUSED)
def test_files_of_the_folder_that_hold_nothing(name: str) -> None:
    for path in files("nccl_xml", name):
        with pytest.raises(ReaderError) as refused:
            read(content(path), name)
        assert REFUSED[name] in refused.value.problem.why


@pytest.mark.parametrize("path", OTHERS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_every_other_file_is_refused(path: Path) -> None:
    with pytest.raises(ReaderError) as refused:
        read(content(path), path.name)
    assert "NCCL topology" in refused.value.problem.why


def _one_net(pci: str, net: str) -> NodeFound:
    return read(
        f'<system version="1"><cpu numaid="0"><pci busid="0000:05:00.0" {pci}><nic>{net}</nic></pci></cpu></system>', "t"
    )


@pytest.mark.parametrize("pci", ['class="0x020000"', 'class="0x028000" vendor="0x14c3"'])
def test_an_interface_that_is_used_by_sockets_is_no_infiniband(pci: str) -> None:
    assert _one_net(pci, '<net name="eno7" speed="10000" port="0" guid="0x0"/>').ports[0].link_layer == "Ethernet"
    over_ib = _one_net('class="0x020700"', '<net name="ib3" speed="10000" port="0" guid="0x0"/>')
    assert over_ib.ports[0].link_layer == "InfiniBand"


def test_a_speed_in_another_unit_is_left_out_and_told() -> None:
    found = _one_net('class="0x020000"', '<net name="cxi5" speed="200000000" port="1" guid="0x0"/>')
    assert found.ports[0].rate_gbps == 0
    assert any("another unit" in problem.why for problem in found.problems)
