"""Topologies written for Slurm: what is written, and that the reader of Slurm's files finds the same leaf groups and distances in it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings

from fmsched.model.fabric import UNREACHABLE_HOPS, Fabric, Link, Switch, Topology
from fmsched.model.hardware import Node
from fmsched.topology.export_slurm import host_list, write, write_blocks
from fmsched.topology.graph import build_topology
from fmsched.topology.readers.found import FabricFound
from fmsched.topology.readers.slurm_topology import read
from tests.support.fabrics import fabrics, fat_trees, node, rail_fabrics
from tests.support.shared_data import files


def read_back(found: FabricFound) -> Topology:
    nodes = [node(host.name) for host in found.hosts]
    switches = tuple(Switch(switch.id, switch.level or 0) for switch in found.switches)
    links = tuple(Link(cable.a, cable.b, gbps=1.0, count=cable.count) for cable in found.cables)
    return build_topology(nodes, Fabric(switches, links))


def leaf_groups(topology: Topology) -> set[frozenset[str]]:
    groups: dict[int, set[str]] = {}
    for one, group in zip(topology.nodes, topology.leaf_of, strict=True):
        groups.setdefault(int(group), set()).add(one.name)
    return {frozenset(names) for names in groups.values()}


def of(nodes: list[Node], switches: list[tuple[str, int]], pairs: list[tuple[str, str]]) -> Topology:
    links = tuple(Link(a, b, gbps=400.0) for a, b in pairs)
    return build_topology(nodes, Fabric(tuple(Switch(name, level) for name, level in switches), links))


def test_a_tree_keeps_its_switches_names() -> None:
    nodes = [node(f"n{i}") for i in range(1, 13)]
    pairs = [(f"n{i}", "leafA" if i < 7 else "leafB") for i in range(1, 13)] + [("leafA", "top"), ("leafB", "top")]
    text = write(of(nodes, [("leafA", 0), ("leafB", 0), ("top", 1)], pairs))
    assert text.splitlines()[1:] == [
        "SwitchName=leafA Nodes=n[1-6]",
        "SwitchName=leafB Nodes=n[7-12]",
        "SwitchName=top Switches=leafA,leafB",
    ]


def test_several_roots_are_one_switch_and_named_above_it() -> None:
    nodes = [node("a1"), node("b1")]
    pairs = [("a1", "l1"), ("b1", "l2"), *((leaf, f"s{i}") for leaf in ("l1", "l2") for i in range(1, 5))]
    text = write(of(nodes, [("l1", 0), ("l2", 0), *((f"s{i}", 1) for i in range(1, 5))], pairs))
    assert text.splitlines()[-2:] == ["# pod1=s[1-4]", "SwitchName=pod1 Switches=l[1-2]"]
    assert next(switch.name for switch in read(text, "f").switches if switch.id == "pod1") == "s[1-4]"


def test_a_rail_optimised_unit_is_one_leaf() -> None:
    nodes = [node(f"u{unit}n{i}") for unit in range(2) for i in range(3)]
    pairs = [(f"u{unit}n{i}", f"u{unit}r{rail}") for unit in range(2) for i in range(3) for rail in range(8)]
    pairs += [(f"u{unit}r{rail}", f"s{rail}") for unit in range(2) for rail in range(8)]
    switches = [(f"u{unit}r{rail}", 0) for unit in range(2) for rail in range(8)] + [(f"s{rail}", 1) for rail in range(8)]
    text = write(of(nodes, switches, pairs))
    assert "# leaf1=u0r[0-7]\nSwitchName=leaf1 Nodes=u0n[0-2]\n" in text
    assert "# pod1=s[0-7]\nSwitchName=pod1 Switches=leaf[1-2]\n" in text


def test_unconnected_fabrics_are_trees_of_their_own_and_a_loose_node_is_alone() -> None:
    nodes = [node("a1"), node("a2"), node("b1"), node("loose")]
    pairs = [("a1", "x1"), ("a2", "x2"), ("x1", "xs"), ("x2", "xs"), ("b1", "y1")]
    text = write(of(nodes, [("x1", 0), ("x2", 0), ("xs", 1), ("y1", 0)], pairs))
    assert "SwitchName=alone1 Nodes=loose\n" in text
    back = read_back(read(text, "f"))
    assert back.hop_count("a1", "a2") == 3
    assert back.hop_count("a1", "b1") == back.hop_count("a1", "loose") == UNREACHABLE_HOPS


def test_no_name_is_used_twice() -> None:
    # A node is called as the folded leaf would be, and a switch as the next.
    nodes = [node("leaf1"), node("n1")]
    text = write(of(nodes, [("leaf2", 0), ("b", 0)], [("leaf1", "leaf2"), ("leaf1", "b"), ("n1", "leaf2")]))
    names = [line.split()[0] for line in text.splitlines() if line.startswith("SwitchName=")]
    assert len(set(names)) == 2
    assert "SwitchName=leaf1" not in names
    assert leaf_groups(read_back(read(text, "f"))) == {frozenset({"leaf1"}), frozenset({"n1"})}


def test_host_lists_have_ranges_only_where_slurm_takes_them() -> None:
    assert host_list(["n10", "n9", "n8"]) == "n[8-10]"
    assert host_list(["n1-ib", "n2-ib", "m1"]) == "m1,n1-ib,n2-ib"
    assert host_list(["r1n01", "r1n02", "r2n01"]) == "r1n[01-02],r2n01"


@pytest.mark.parametrize("name", ["a b", "a,b", "n[1]", "n#1", "a=b", ""])
def test_a_name_that_slurm_cannot_write_is_refused(name: str) -> None:
    topology = of([node(name)], [("s", 0)], [(name, "s")])
    with pytest.raises(ValueError, match="node name"):
        write(topology)


def test_blocks_are_nvlink_domains() -> None:
    nodes = [replace(node(f"t{i}"), nvlink_domain=f"rack {1 + i // 4}") for i in range(10)] + [node("cpu1")]
    text = write_blocks(of(nodes, [("s", 0)], [(one.name, "s") for one in nodes]))
    assert text.splitlines()[1:] == [
        "# In no NVLink domain: cpu1",
        "# block1=rack 1",
        "BlockName=block1 Nodes=t[0-3]",
        "# block2=rack 2",
        "BlockName=block2 Nodes=t[4-7]",
        "# block3=rack 3",
        "BlockName=block3 Nodes=t[8-9]",
        "BlockSizes=2,4",
    ]
    found = read(text, "f")
    assert {host.name: host.nvlink_domain for host in found.hosts} == {
        one.name: one.nvlink_domain for one in nodes if one.nvlink_domain
    }
    assert not found.problems


def test_without_a_switch_the_nvlink_domains_are_written() -> None:
    nodes = [replace(node(f"t{i}"), nvlink_domain="r1") for i in range(4)]
    topology = of(nodes, [], [])
    assert write(topology) == write_blocks(topology)
    for nothing in (of([node("n1")], [], []), of([], [("s", 0)], [])):
        with pytest.raises(ValueError, match="topology/flat"):
            write(nothing)


def test_no_domain_no_blocks() -> None:
    with pytest.raises(ValueError, match="NVLink domain"):
        write_blocks(of([node("n1")], [("s", 0)], [("n1", "s")]))


@pytest.mark.parametrize(
    "path", files("slurm_topology", "tree-*") + files("slurm_topology", "azure-sharp*.conf"), ids=lambda path: path.name
)
def test_every_tree_of_the_collection_comes_back(path: Path) -> None:
    topology = read_back(read(path.read_text(), path.name))
    back = read_back(read(write(topology), "f"))
    assert leaf_groups(back) == leaf_groups(topology)
    near = topology.nodes[:: max(1, len(topology.nodes) // 40)]
    for a in near:
        for b in near:
            hops, again = topology.hop_count(a.name, b.name), back.hop_count(a.name, b.name)
            # An even count, between leaves at different depths, becomes the next odd one: Slurm's levels count from the deepest leaf.
            assert again == (hops | 1 if 0 < hops < UNREACHABLE_HOPS else hops), (a.name, b.name)


@settings(max_examples=150, deadline=None)
@given(fabrics())
def test_every_fabric_comes_back_with_its_leaf_groups(cluster: tuple[list[Node], Fabric]) -> None:
    topology = build_topology(*cluster)
    if not topology.nodes:
        return
    found = read(write(topology), "f")
    assert not found.problems
    assert leaf_groups(read_back(found)) == leaf_groups(topology)


@settings(max_examples=150, deadline=None)
@given(fat_trees() | rail_fabrics())
def test_distances_never_come_back_shorter_and_fabrics_stay_apart(cluster: tuple[list[Node], Fabric]) -> None:
    topology = build_topology(*cluster)
    if not topology.nodes:
        return
    back = read_back(read(write(topology), "f"))
    for a in topology.nodes:
        for b in topology.nodes:
            hops, again = topology.hop_count(a.name, b.name), back.hop_count(a.name, b.name)
            assert (hops == UNREACHABLE_HOPS) <= (again == UNREACHABLE_HOPS), (a.name, b.name)
            same_fabric = len(topology.domains) and (
                topology.domains[-1][topology.leaf_of[topology.index[a.name]]]
                == topology.domains[-1][topology.leaf_of[topology.index[b.name]]]
            )
            assert (again < UNREACHABLE_HOPS) == bool(same_fabric)


def test_a_whole_fat_tree_comes_back_with_its_distances() -> None:
    nodes, switches, pairs = [], [(f"core{c}", 2) for c in range(2)], []
    for pod in range(3):
        switches += [(f"p{pod}s{s}", 1) for s in range(2)]
        pairs += [(f"p{pod}s{s}", f"core{c}") for s in range(2) for c in range(2)]
        for leaf in range(1 + pod):  # a pod with one leaf keeps its level
            switches.append((f"p{pod}l{leaf}", 0))
            pairs += [(f"p{pod}l{leaf}", f"p{pod}s{s}") for s in range(2)]
            nodes += [node(f"n{pod}{leaf}{i}") for i in range(2)]
            pairs += [(f"n{pod}{leaf}{i}", f"p{pod}l{leaf}") for i in range(2)]
    topology = of(nodes, switches, pairs)
    back = read_back(read(write(topology), "f"))
    wrong = [
        (a.name, b.name)
        for a in nodes
        for b in nodes
        if topology.hop_count(a.name, b.name) != back.hop_count(a.name, b.name)
    ]
    assert not wrong
