"""A node as an NCCL topology file: read back, it is the same GPUs, links and near sets; and NCCL's own parser could read it."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import pytest

from fmproto.gpus import by_key
from fmproto.nodetypes import NodeType, builtin_types
from fmsched.model.hardware import GpuSpec, HcaSpec, Node, NodeShape
from fmsched.topology.export_nccl import NVSWITCH_BUSID, write
from fmsched.topology.readers.found import NodeFound
from fmsched.topology.readers.nccl_topo import read


def node_of(kind: NodeType) -> Node:
    shape = NodeShape(
        kind.name,
        tuple(GpuSpec(gpu.model or gpu.name, gpu.family, gpu.memory_gb) for gpu in kind.gpus),
        kind.nvlink,
        tuple(HcaSpec(hca.name, hca.port, hca.rate_gbps, hca.near) for hca in kind.hcas),
        kind.cpus,
        kind.memory_gb,
        kind.domain_nvlink_gbytes_per_s,
    )
    return Node("n1", shape, tuple(f"GPU-{i}" for i in range(len(kind.gpus))))


def custom(
    gpus: int, nvlink: float = 0.0, hcas: tuple[HcaSpec, ...] = (), model: str = "H100-SXM5-80GB", cpus: int = 0
) -> Node:
    row = [tuple(0.0 if i == j else nvlink for j in range(gpus)) for i in range(gpus)]
    shape = NodeShape("t", (GpuSpec(model, "h100", 80.0),) * gpus, tuple(row), hcas, cpus)
    return Node("n1", shape, ("u",) * gpus)


def back(node: Node) -> NodeFound:
    found = read(write(node), "back.xml")
    assert found.problems == ()
    assert found.complete
    return found


def near(found: NodeFound) -> dict[tuple[str, int], tuple[int, ...]]:
    return {(port.hca, port.port): port.near for port in found.ports}


@pytest.mark.parametrize("name", builtin_types())
def test_every_built_in_type_reads_back(name: str) -> None:
    kind = builtin_types()[name]
    node = node_of(kind)
    found = back(node)
    assert found.name == "n1"
    assert [gpu.index for gpu in found.gpus] == list(range(len(kind.gpus)))
    assert {gpu.vendor for gpu in found.gpus} == {"amd" if name.startswith("mi") else "nvidia"}
    assert [gpu.name for gpu in found.gpus] == [gpu.name for gpu in kind.gpus]
    facts = by_key(kind.gpus[0].model)
    assert facts is not None
    expected = {
        (a, b): round(gbytes / (facts.nvlink_gbytes_per_s / facts.nvlink_links))
        for a, row in enumerate(kind.nvlink)
        for b, gbytes in enumerate(row)
        if a < b and gbytes
    }
    assert {(link.a, link.b): link.links for link in found.nvlinks} == expected
    assert {(hca.name, hca.port): (hca.rate_gbps, set(hca.near)) for hca in kind.hcas} == {
        (port.hca, port.port): (port.rate_gbps, set(port.near)) for port in found.ports
    }


@pytest.mark.parametrize(
    ("name", "switched"),
    [
        ("hgx-h100", True), ("dgx-a100", True), ("dgx-2", True), ("gb200-nvl72-tray", True),
        ("dgx-1v", False), ("h100-nvl-4", False), ("mi300x-8", False),
    ],
)  # fmt: skip
def test_links_lead_to_the_nvswitch_where_a_gpu_has_too_few_to_reach_all_others(name: str, switched: bool) -> None:
    root = ET.fromstring(write(node_of(builtin_types()[name])))
    targets = {link.get("target") for tag in ("nvlink", "xgmi") for link in root.iter(tag)}
    assert (targets == {NVSWITCH_BUSID}) == switched
    assert (NVSWITCH_BUSID in targets) == switched
    for gpu in root.iter("gpu"):
        facts = by_key(builtin_types()[name].gpus[0].model)
        assert facts is not None
        assert sum(int(link.get("count", "")) for link in gpu) <= facts.nvlink_links


def test_nested_sets_of_near_gpus() -> None:
    hcas = (
        HcaSpec("mlx5_0", 1, 400.0, (0,)),
        HcaSpec("mlx5_1", 1, 200.0, (0, 1)),
        HcaSpec("mlx5_2", 1, 200.0, (2, 3)),
        HcaSpec("mlx5_3", 1, 100.0, (0, 1, 2, 3)),
        HcaSpec("mlx5_4", 1, 25.5, ()),
        HcaSpec("mlx5_5", 1, 200.0, (1, 0)),
        HcaSpec("mlx5_2", 2, 100.0, (2, 3)),
    )
    node = custom(6, hcas=hcas)
    assert near(back(node)) == {(hca.name, hca.port): tuple(sorted(hca.near)) for hca in hcas}
    assert {port.hca: port.rate_gbps for port in back(node).ports}["mlx5_4"] == 25.5


def test_sets_that_overlap_fit_no_tree_and_a_comment_says_so() -> None:
    node = custom(4, hcas=(HcaSpec("mlx5_0", 1, 400.0, (0, 1)), HcaSpec("mlx5_1", 1, 400.0, (1, 2))))
    assert near(back(node)) == {("mlx5_0", 1): (0, 1), ("mlx5_1", 1): (0, 1, 2, 3)}
    assert re.search(r"<!-- [^>]*mlx5_1 \(1, 2\) fit no tree", write(node))


def test_a_gpu_that_the_catalogue_lacks() -> None:
    node = custom(2, nvlink=200.0, model="NVIDIA Quantum 9000 <1>")
    assert [(link.links, link.to_all) for link in back(node).nvlinks] == [(4, False)]
    assert [gpu.name for gpu in back(node).gpus] == ["", ""]


def test_names_are_quoted() -> None:
    node = custom(1, hcas=(HcaSpec('a"<&>', 1, 1.0, (0,)), HcaSpec("b--> x", 1, 1.0, ())))
    assert {port.hca for port in back(node).ports} == {'a"<&>', "b--> x"}


@pytest.mark.parametrize(("cpus", "listed"), [(0, ""), (1, "0"), (8, "0-7"), (64, "0-63"), (112, "0-111"), (224, "0-223")])
def test_affinity_is_all_cpus(cpus: int, listed: str) -> None:
    assert [gpu.cpus for gpu in back(custom(1, cpus=cpus)).gpus] == [listed]


def test_no_gpus_and_many() -> None:
    assert near(back(custom(0, hcas=(HcaSpec("mlx5_0", 1, 100.0),)))) == {("mlx5_0", 1): ()}
    hcas = tuple(HcaSpec(f"mlx5_{i}", 1, 100.0, (i,)) for i in range(64))
    found = back(custom(64, 900.0, hcas))
    assert len({gpu.pci for gpu in found.gpus} | {port.pci for port in found.ports}) == 128
    assert near(found) == {(f"mlx5_{i}", 1): (i,) for i in range(64)}
    deep = tuple(HcaSpec(f"mlx5_{i}", 1, 100.0, tuple(range(i + 1))) for i in range(64))
    assert near(back(custom(64, hcas=deep))) == {(hca.name, 1): hca.near for hca in deep}


@pytest.mark.parametrize("name", builtin_types())
def test_within_the_limits_of_nccl_s_own_parser(name: str) -> None:
    """xml.h: names and values below 256 characters, at most 16 attributes and 640 elements in one; xml.cc: no text, a blank before
    each attribute; topo.cc: these attributes have no default."""
    text = write(node_of(builtin_types()[name]))
    root = ET.fromstring(text)
    assert root.tag == "system"
    for element in root.iter():
        assert len(element.attrib) <= 16
        assert len(element) <= 640
        assert all(len(value) < 255 for value in element.attrib.values())
        assert not (element.text or "").strip()
    for tag, names in {
        "pci": {"busid", "class", "link_speed", "link_width"},
        "gpu": {"dev", "sm", "rank"},
        "net": {"name", "dev"},
    }.items():
        assert all(names <= set(element.attrib) for element in root.iter(tag))
    assert all({"target", "count", "tclass"} == set(e.attrib) for tag in ("nvlink", "xgmi") for e in root.iter(tag))
    assert len({e.get("busid") for e in root.iter("pci")}) == len(list(root.iter("pci")))
    assert re.search(r"<\w+  |\t", text) is None
