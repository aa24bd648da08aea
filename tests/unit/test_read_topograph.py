"""Topograph's models of three generations, and what it writes."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import pytest

from fmproto.dumptext import ReaderError
from fmsched.topology.readers import slurm_topology
from fmsched.topology.readers.found import FabricFound
from fmsched.topology.readers.topograph import read
from tests.support.shared_data import files, shared

BLOCKS = """
# core
switches:
  core:
    labels: {topology.kubernetes.io/region: r}
    switches:
    - spine-1
    - "leaf-[3-4]"
  spine-1:
    switches: [leaf-1, leaf-2]
  leaf-2: {}
blocks:
- switch: leaf-1
  nodes: ["[1101-1102]", x9]
  annotations:
    accelerator.topology.test/domain: nvl1
    accelerator.topology.test/sub-domain: rack1
- switch: leaf-2
  nodes:
  - "I[07-08]"
  labels: {network.topology.nvidia.com/accelerator: nvl2}
- switch: leaf-2
  nodes: I09
- nodes: ["cpu-[1-2]"]
"""
LISTS = """
topology: "topology/tree"
switches:
- name: core
  switches: [tor1,tor2]
- name: tor1
  metadata: {group: g1}
  capacity_blocks: [cb1]
- name: tor2
  capacity_blocks: ["cb[2-3]"]
capacity_blocks:
- name: cb0
  nvlink: nv1
  nodes: [n01,n02]
- name: cb1
  type: H100
  nvlink: nv1
  nodes: ["n[11-12]"]
- name: cb2
  nodes: [21]
- name: cb3
  nodes: [31]
"""
NODES = """
switches:
  core:
    switches: [tor1]
  tor1:
    nodes: ["n[1-3]"]
nodes:
  n1:
    capacity_block_id: cb1
    attributes: {nvlink: nvl1}
  n2: {attributes: {nvlink: nvl1}}
  n4:
capacity_blocks:
- cb1
"""


def below(found: FabricFound) -> dict[str, set[str]]:
    lists: dict[str, set[str]] = {switch.id: set() for switch in found.switches}
    for cable in found.cables:
        lists[cable.b].add(cable.a)
    return lists


def domains(found: FabricFound) -> dict[str, str]:
    return {host.name: host.nvlink_domain for host in found.hosts}


def test_blocks_with_annotations() -> None:
    found = read(BLOCKS, "f")
    assert below(found) == {
        "core": {"spine-1", "leaf-3", "leaf-4"},
        "spine-1": {"leaf-1", "leaf-2"},
        "leaf-1": {"1101", "1102", "x9"},
        "leaf-2": {"I07", "I08", "I09"},
        "leaf-3": set(),
        "leaf-4": set(),
    }
    assert domains(found) == {
        "1101": "nvl1", "1102": "nvl1", "x9": "nvl1", "I07": "nvl2", "I08": "nvl2", "I09": "", "cpu-1": "", "cpu-2": "",
    }  # fmt: skip
    assert {switch.id: switch.level for switch in found.switches} == {
        "core": 2, "spine-1": 1, "leaf-1": 0, "leaf-2": 0, "leaf-3": 0, "leaf-4": 0,
    }  # fmt: skip
    assert (found.kind, found.problems) == ("topograph", ())


def test_capacity_blocks_in_lists() -> None:
    found = read(LISTS, "f")
    assert below(found) == {"core": {"tor1", "tor2"}, "tor1": {"n11", "n12"}, "tor2": {"21", "31"}}
    assert domains(found) == {"n01": "nv1", "n02": "nv1", "n11": "nv1", "n12": "nv1", "21": "", "31": ""}
    assert not found.problems


def test_nodes_in_a_mapping() -> None:
    found = read(NODES, "f")
    assert below(found) == {"core": {"tor1"}, "tor1": {"n1", "n2", "n3"}}
    assert domains(found) == {"n1": "nvl1", "n2": "nvl1", "n3": "", "n4": ""}
    assert not found.problems


def test_capacity_blocks_in_a_mapping() -> None:
    found = read(
        "switches:\n  leaf: {nodes: [n1, n2]}\ncapacity_blocks:\n  cb1:\n    nodes: [n1, n2]\n    attributes: {nvlink: v}\n",
        "f",
    )
    assert domains(found) == {"n1": "v", "n2": "v"}


def test_broken_parts_hide_no_healthy_ones() -> None:
    switches = "switches:\n  good: {nodes: [n1]}\n  bad: 7\n  worse: {nodes: {a: b}}\n"
    found = read(switches + "blocks:\n- [x]\n- {switch: good, nodes: 'n[3-2],n2'}\nnodes: 3\n", "f")
    assert below(found) == {"good": {"n1", "n2"}}
    assert [(problem.line, problem.why.split(";")[0]) for problem in found.problems] == [
        (3, "found 7"),
        (4, "found a mapping"),
        (6, "found a list"),
        (7, "not a name or a host list: '3-2' in 'n[3-2]' runs backwards"),
        (8, "found 3"),
    ]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "empty"),
        ("switches:\n", "a model without nodes and links"),
        ("switches:\n- {switches: [a]}\n", "a switch without a name"),
        ("switches: [\n", "not readable as YAML"),
        ("switches:\n  a: {nodes: ['n[1-99999999]']}\n", "a model without nodes and links"),
        ("apiVersion: v1\nkind: Pod\nblocks:\n", "Kubernetes manifest"),
        ('[{"DomainUUID": "x"}]', "NetQ"),
        ("host: 0x0002c90300a1b2c3\n", "map of hosts to GUIDs"),
        ("hello\n", "no model and no output of Topograph"),
        ("-\nblocks:\n", "not readable as YAML"),
    ],
)
def test_other_texts_are_refused(text: str, why: str) -> None:
    with pytest.raises(ReaderError) as caught:
        read(text, "f")
    assert why in str(caught.value)


def test_what_topograph_writes_is_read_as_slurms_files_with_real_names() -> None:
    found = read("# sw1=core switch\nSwitchName=sw1 Switches=sw2\n# sw2=leaf\nSwitchName=sw2 Nodes=n[1-2]\n", "f")
    assert {switch.id: switch.name for switch in found.switches} == {"sw1": "core switch", "sw2": "leaf"}
    assert found.kind == "topograph"
    assert (
        read("- topology: t\n  block: {block_sizes: [1], blocks: [{block: b1, nodes: '7'}]}\n", "f").hosts[0].nvlink_domain
        == "b1"
    )


# --- the collection


def naive_model(text: str) -> tuple[dict[str, set[str]], dict[str, str]]:
    """(what is below each switch, NVLink domain of each node), line by line; enough for models with blocks."""
    lists: dict[str, set[str]] = {}
    domain: dict[str, str] = {}
    part = switch = ""
    nodes: list[str] = []
    for raw in text.splitlines():
        line = raw.split("#")[0].rstrip()
        if re.fullmatch(r"\w+:", line):
            part = line[:-1]
        elif part == "switches" and (match := re.fullmatch(r"  ([\w-]+):", line)):
            switch = match[1]
            lists.setdefault(switch, set())
        elif part == "switches" and (match := re.fullmatch(r"    - ([\w-]+)", line)):
            lists[switch].add(match[1])
            lists.setdefault(match[1], set())
        elif part == "blocks" and (match := re.fullmatch(r"- switch: ([\w-]+)", line)):
            switch, nodes = match[1], []
            lists.setdefault(switch, set())
        elif part == "blocks" and (match := re.match(r"  (?:- |nodes: \[)(.*?)\]?$", line)) and "[" in line:
            for word in re.findall(r"[\w-]*\[[\d-]+\]|[A-Za-z]\w+", line.replace("nodes:", "")):
                prefix, low, high = re.fullmatch(r"([\w-]*?)(?:\[(\d+)-(\d+)\])?", word).groups()  # type: ignore[union-attr]
                new = [f"{prefix}{n:0{len(low)}d}" for n in range(int(low), int(high) + 1)] if low else [word]
                nodes += new
                lists[switch].update(new)
        elif part == "blocks" and (match := re.search(r"/domain: (\S+)", line)):
            domain |= dict.fromkeys(nodes, match[1])
    return lists, domain


@pytest.mark.parametrize("path", files("slurm_topology", "topograph-model-*"), ids=lambda path: path.name)
def test_every_model_of_the_collection(path: Path) -> None:
    text = path.read_text()
    lists, domain = naive_model(text)
    found = read(text, path.name)
    assert below(found) == lists
    assert domains(found) == domain
    assert len(domain) > 5
    assert not found.problems


def model(name: str) -> FabricFound:
    return read((shared("slurm_topology") / f"topograph-model-{name}.yaml").read_text(), name)


def output(name: str) -> FabricFound:
    return read((shared("slurm_topology") / name).read_text(), name)


@pytest.mark.parametrize("name", ["topograph-expected-15-yaml.yaml", "topograph-expected-19-yaml.yaml"])
def test_what_topograph_wrote_of_the_medium_model_is_a_part_of_it(name: str) -> None:
    whole, part = model("medium"), output(name)
    assert {(cable.a, cable.b) for cable in part.cables} < {(cable.a, cable.b) for cable in whole.cables}
    levels = {switch.id: switch.level for switch in whole.switches}
    assert {switch.id: switch.level for switch in part.switches}.items() <= levels.items()
    assert len(part.switches) == 5


@pytest.mark.parametrize("name", ["topograph-expected-17-yaml.yaml", "topograph-expected-19-yaml.yaml"])
def test_the_blocks_that_topograph_wrote_are_the_models_domains(name: str) -> None:
    whole, part = domains(model("medium")), domains(output(name))
    assert len(part) == 2
    assert all((whole[a] == whole[b]) == (part[a] == part[b]) for a in part for b in part)


def test_the_racks_that_topograph_wrote_are_the_models_leaves() -> None:
    racks: dict[str, set[str]] = {}
    for node, rack in domains(output("block-topograph-dra-12racks.conf")).items():
        racks.setdefault(rack, set()).add(node)
    leaves = {switch: nodes for switch, nodes in below(model("dual-xclr-regular")).items() if switch.startswith("leaf")}
    assert {rack.replace("nvl", "leaf"): nodes for rack, nodes in racks.items()} == leaves


@pytest.mark.parametrize("path", files("slurm_topology"), ids=lambda path: path.name)
def test_the_other_files_of_the_folder_are_slurms_or_refused(path: Path) -> None:
    text = path.read_text()
    if path.name.startswith("topograph-model-"):
        return
    try:
        expected: FabricFound | None = slurm_topology.read(text, path.name)
    except ReaderError:
        expected = None
    if expected is None:
        with pytest.raises(ReaderError):
            read(text, path.name)
    else:
        found = read(text, path.name)
        assert (found.switches, found.hosts, found.cables) == (expected.switches, expected.hosts, expected.cables)


OTHERS = [path for folder in ("topo_m", "nvsmi", "ibstat", "ibnetdiscover", "nccl_xml") for path in files(folder)]


@pytest.mark.parametrize("path", OTHERS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_files_of_other_kinds_are_refused(path: Path) -> None:
    content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    with pytest.raises(ReaderError, match="no model and no output of Topograph"):
        read(content.decode("utf-8", errors="replace"), path.name)
