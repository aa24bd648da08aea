"""Every file of the collection of real outputs that Slurm's reader is given, against a naive reading of the file's own text."""

from __future__ import annotations

import gzip
import itertools
import re
from pathlib import Path

import pytest

from fmproto.dumptext import ReaderError
from fmsched.topology.readers.found import FabricFound
from fmsched.topology.readers.ib_names import apply_host_guids, read_host_guids
from fmsched.topology.readers.slurm_topology import read
from tests.support.shared_data import files, shared

CONF = re.compile(r"^\s*(SwitchName|BlockName)\s*=\s*(\S+)(.*)$", re.IGNORECASE)
REFUSED = {
    "azure-nodes-clusteruuid-4x18.txt": "cluster UUIDs",
    "azure-sharp-cmd.nodes-guids.txt": "GUIDs",
    "block-azure-illegal-all-commented.conf": "4 SwitchName= or BlockName= lines are commented out",
    "grove-clustertopology-doc.yaml": "Grove",
    "kai-topology-doc.yaml": "KAI",
    "kueue-multikueue-tas-worker.yaml": "Kueue",
    "kueue-tas-gpu-queues.yaml": "Kueue",
    "kueue-tas-queues.yaml": "Kueue",
    "netq-computeNodes.json": "NetQ",
    "topograph-expected-07-tree.conf": "Go",
    "topograph-expected-09-tree.conf": "Go",
    "topograph-expected-11-tree.conf": "Go",
    "topograph-expected-13-tree.conf": "Go",
    "topograph-model-dual-xclr-regular.yaml": "model of Topograph",
    "topograph-model-medium.yaml": "model of Topograph",
    "topograph-model-nvl72.yaml": "model of Topograph",
    "topograph-model-small-tree.yaml": "model of Topograph",
    "volcano-hypernodes-doc.yaml": "Volcano",
    "yaml-invalid-block_bad_options.yaml": "block size 12 is not a power of two",
    "yaml-invalid-block_not_dict.yaml": "found a list; allowed: a mapping",
    "yaml-invalid-root_not_list.yaml": "as the root",
    "yaml-invalid-tree_mutually_exclusive.yaml": "exclude one another",
}


def naive_expand(text: str) -> list[str]:
    """Host lists by search and replace, one bracket at a time."""
    names = re.findall(r"(?:\[[^]]*\]|[^,\[])+", text)
    while any("[" in name for name in names):
        spelled = []
        for name in names:
            match = re.search(r"\[([^]]*)\]", name)
            if not match:
                spelled.append(name)
                continue
            for span in match[1].split(","):
                low, _, high = span.partition("-")
                numbers = (str(number).zfill(len(low)) for number in range(int(low), int(high or low) + 1))
                spelled += [name[: match.start()] + number + name[match.end() :] for number in numbers]
        names = spelled
    return [name[2:].zfill(16) if name.startswith("0x") else name for name in names]


def naive_conf(text: str) -> list[tuple[str, str, list[str], list[str], int | None]]:
    """(SwitchName or BlockName, name, nodes, switches, level) of each line."""
    rows = []
    for line in text.splitlines():
        if match := CONF.match(line):
            fields = dict(re.findall(r"(\w+)=(\S+)", match[3]))
            level = int(fields["Level"]) if "Level" in fields else None
            rows.append(
                (
                    match[1].lower(),
                    match[2],
                    naive_expand(fields.get("Nodes", "")),
                    naive_expand(fields.get("Switches", "")),
                    level,
                )
            )
    return rows


def below(found: FabricFound) -> dict[str, set[str]]:
    """Switch → what the file cables below it: hosts, and switches of a lower level (or listed first, where levels say nothing)."""
    lists: dict[str, set[str]] = {switch.id: set() for switch in found.switches}
    for cable in found.cables:
        lists[cable.b].add(cable.a)
    return lists


@pytest.mark.parametrize("path", files("slurm_topology"), ids=lambda path: path.name)
def test_every_file_is_read_right_or_refused_for_the_right_reason(path: Path) -> None:
    text = path.read_text()
    if path.name in REFUSED:
        with pytest.raises(ReaderError, match=re.escape(REFUSED[path.name])):
            read(text, path.name)
        return
    found = read(text, path.name)
    assert found.complete
    if path.suffix != ".yaml":
        _agrees_with_conf(found, text)
    else:
        assert path.name in YAML_SAYS
        assert (len(found.switches), len(found.cables), sorted(host.name for host in found.hosts)) == YAML_SAYS[path.name]


# What a reader of these four texts counts: switches, cables, nodes.
YAML_SAYS = {
    "topograph-expected-15-yaml.yaml": (5, 4, []),
    "topograph-expected-17-yaml.yaml": (0, 0, ["1101", "1301"]),
    "topograph-expected-19-yaml.yaml": (5, 6, ["1101", "1302"]),
    "yaml-man-all-types.yaml": (3, 6, [f"node{i:02d}" for i in range(1, 17)]),
}


def _agrees_with_conf(found: FabricFound, text: str) -> None:
    rows = naive_conf(text)
    assert rows
    switches = {name: (nodes, children, level) for kind, name, nodes, children, level in rows if kind == "switchname"}
    placeless = {name for name in switches if name == "unknown"}
    assert {switch.id for switch in found.switches} == switches.keys()
    assert {host.id for host in found.hosts} == {node for _, _, nodes, _, _ in rows for node in nodes}
    pairs = {frozenset((name, child)) for name, (_, children, _) in switches.items() for child in children}
    pairs |= {
        frozenset((name, node))
        for name, (nodes, children, _) in switches.items()
        for node in nodes
        if not children and name not in placeless
    }
    assert len(found.cables) == len(pairs)
    assert {frozenset((cable.a, cable.b)) for cable in found.cables} == pairs
    assert len(found.problems) == len(placeless)
    for switch in found.switches:
        assert switch.level == naive_level(switch.id, switches, ())
    real = dict(re.findall(r"^# (\S+)=(\S+)$", text, re.MULTILINE))
    domains = {node: real.get(name, name) for kind, name, nodes, _, _ in rows if kind == "blockname" for node in nodes}
    assert {host.name: host.nvlink_domain for host in found.hosts if host.nvlink_domain} == domains
    assert all(switch.name == real.get(switch.id, switch.id) for switch in found.switches)


def naive_level(
    name: str, switches: dict[str, tuple[list[str], list[str], int | None]], path: tuple[str, ...]
) -> int | None:
    _, children, level = switches[name]
    if level is not None or not children:
        return level or 0
    if name in path:
        return None
    under = [naive_level(child, switches, (*path, name)) for child in children]
    known = [one for one in under if one is not None]
    return 1 + max(known) if len(known) == len(under) else None


def test_azures_tree_is_what_its_fabric_says_of_rail_0() -> None:
    folder = shared("slurm_topology")
    fabric = read((folder / "azure-sharp-cmd-49sw-guid-leaves-cyclic.conf").read_text(), "sharp")
    guids = (folder / "azure-sharp-cmd.nodes-guids.txt").read_text()
    named = apply_host_guids(fabric, read_host_guids(guids, "guids"))
    assert len(named.hosts) == 16
    assert all(host.named and len(host.guids) == 8 for host in named.hosts)
    rail_0: dict[str, str] = {}
    for line in guids.splitlines():
        host, _, guid = line.partition(": ")
        rail_0.setdefault(host, guid.strip()[2:].zfill(16))
    leaf = {cable.a: cable.b for cable in fabric.cables}
    groups: dict[str, set[str]] = {}
    for host, guid in rail_0.items():
        groups.setdefault(leaf[guid], set()).add(host)
    expected = read((folder / "azure-sharp-cmd.expected-tree.conf").read_text(), "tree")
    leaves = {switch.id for switch in expected.switches if switch.level == 0}
    assert {frozenset(hosts) for switch, hosts in below(expected).items() if switch in leaves} == {
        frozenset(hosts) for hosts in groups.values()
    }
    on = {host.id: {cable.b for cable in named.cables if cable.a == host.id} for host in named.hosts}
    assert all(len(switches) == 8 for switches in on.values())
    for a, b in itertools.combinations(rail_0, 2):  # who shares rail 0's leaf shares all eight
        assert (leaf[rail_0[a]] == leaf[rail_0[b]]) == (on[a] == on[b])


OTHERS = [path for folder in ("topo_m", "nvsmi", "ibstat", "ibnetdiscover", "nccl_xml") for path in files(folder)]


@pytest.mark.parametrize("path", OTHERS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_files_of_other_kinds_are_refused(path: Path) -> None:
    content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    with pytest.raises(ReaderError, match="found no SwitchName= or BlockName= line"):
        read(content.decode("utf-8", errors="replace"), path.name)
