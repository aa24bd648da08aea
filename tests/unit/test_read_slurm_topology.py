"""Slurm's topology files: every oddity in a small file. test_read_slurm_collection.py walks the collection of real ones."""

from __future__ import annotations

import pytest

from fmproto.dumptext import ReaderError
from fmsched.topology.readers.found import FabricFound
from fmsched.topology.readers.slurm_topology import read


def below(found: FabricFound) -> dict[str, set[str]]:
    """Switch → what the file cables below it: hosts, and switches of a lower level (or listed first, where levels say nothing)."""
    lists: dict[str, set[str]] = {switch.id: set() for switch in found.switches}
    for cable in found.cables:
        lists[cable.b].add(cable.a)
    return lists


def levels(found: FabricFound) -> dict[str, int | None]:
    return {switch.id: switch.level for switch in found.switches}


def whys(found: FabricFound) -> list[str]:
    return [f"{problem.line}: {problem.what}: {problem.why}" for problem in found.problems]


def refusal(text: str) -> str:
    with pytest.raises(ReaderError) as caught:
        read(text, "f")
    return str(caught.value)


# --- topology.conf, tree


def test_a_tree_with_lists_of_every_form() -> None:
    found = read("SwitchName=top Switches=L[1,3],mid\nSwitchName=L1 Nodes=a[1-2]x[3-4]\nSwitchName=L3 Nodes=b1,b2,c[01-02]\n"
                 "SwitchName=mid Switches=L4\nSwitchName=L4 Nodes=d", "f")  # fmt: skip
    assert below(found) == {
        "top": {"L1", "L3", "mid"},
        "L1": {"a1x3", "a1x4", "a2x3", "a2x4"},
        "L3": {"b1", "b2", "c01", "c02"},
        "mid": {"L4"},
        "L4": {"d"},
    }
    assert levels(found) == {"top": 2, "L1": 0, "L3": 0, "mid": 1, "L4": 0}
    assert (found.kind, found.complete, found.problems) == ("slurm-topology", True, ())


def test_keys_of_any_case_comments_blanks_and_continued_lines() -> None:
    found = read(
        "\ufeff# SwitchName=no Nodes=x\r\n  SWITCHNAME = s1  nodes=n1,\\\r\nn2 # Switches=s9\r\n\r\nswitchname=s2 \\\r\n SWITCHES=s1\r\n",
        "f",
    )
    assert below(found) == {"s1": {"n1", "n2"}, "s2": {"s1"}}
    assert not found.problems


def test_quoted_values_and_several_switches_in_one_line() -> None:
    found = read('SwitchName="a b" Nodes="n1,n2" SwitchName=t Switches=s\nSwitchName=s Nodes=n3,,n4,\n', "f")
    assert below(found) == {"a b": {"n1", "n2"}, "t": {"s"}, "s": {"n3", "n4"}}


@pytest.mark.parametrize(
    ("speed", "gbps"),
    [
        ("100Gb/s", 100.0),
        ("40Gbps", 40.0),
        ("400G", 400.0),
        ("10000Mb/s", 10.0),
        ("1.6Tb/s", 1600.0),
        ("1", 0.0),
        ("100000", 0.0),
    ],
)
def test_a_link_speed_counts_only_with_a_unit(speed: str, gbps: float) -> None:
    found = read(f"SwitchName=s Nodes=n LinkSpeed={speed}\nSwitchName=t Switches=s LinkSpeed={speed}", "f")
    assert [cable.gbps for cable in found.cables] == [gbps, gbps]
    assert not found.problems


def test_a_strange_link_speed_is_set_aside() -> None:
    found = read("SwitchName=s Nodes=n LinkSpeed=fast", "f")
    assert whys(found) == ["1: LinkSpeed=fast: not a rate; it is left out"]


def test_unconnected_roots_stay_apart_and_a_node_on_two_leaves_is_on_both() -> None:
    found = read(
        "SwitchName=a Nodes=n[1-2]\nSwitchName=b Nodes=n[2-3]\nSwitchName=r Switches=a\nSwitchName=q Switches=b", "f"
    )
    assert below(found) == {"a": {"n1", "n2"}, "b": {"n2", "n3"}, "r": {"a"}, "q": {"b"}}


def test_switches_that_list_one_another_are_a_graph() -> None:
    """As sharp_cmd prints a fabric: nodes are GUIDs, upper switches list lower and upper ones alike."""
    found = read(
        "SwitchName=l1 Nodes=0xA00000000001,0xa00000000002\nSwitchName=l2 Nodes=0x00a00000000003\n"
        "SwitchName=s1 Switches=l1,l2,c\nSwitchName=c Switches=s1,c",
        "f",
    )
    assert {(cable.a, cable.b) for cable in found.cables} == {
        ("0000a00000000001", "l1"),
        ("0000a00000000002", "l1"),
        ("0000a00000000003", "l2"),
        ("l1", "s1"),
        ("l2", "s1"),
        ("c", "s1"),
    }
    assert levels(found) == {"l1": 0, "l2": 0, "s1": None, "c": None}
    assert [(host.name, host.guids, host.named) for host in found.hosts[:1]] == [
        ("0000a00000000001", (("", "0000a00000000001"),), False)
    ]
    assert whys(found) == ["4: c: a switch lists itself; the entry is passed over"]


def test_switches_may_be_guids_and_names_may_look_like_them() -> None:
    found = read(
        "SwitchName=0x00A0B0C0D0E0F001 Nodes=0123456789abcdef,0xA0B0C0D0E0F002\nSwitchName=t Switches=0x00A0B0C0D0E0F001",
        "f",
    )
    assert below(found) == {"0x00A0B0C0D0E0F001": {"0123456789abcdef", "00a0b0c0d0e0f002"}, "t": {"0x00A0B0C0D0E0F001"}}
    assert [(host.guids, host.named) for host in found.hosts] == [((), True), ((("", "00a0b0c0d0e0f002"),), False)]


def test_a_switch_that_nobody_defines_a_switch_defined_twice_and_a_name_used_twice() -> None:
    found = read("SwitchName=t Switches=s,gone\nSwitchName=s Nodes=n1\nSwitchName=s Nodes=t", "f")
    assert below(found) == {"t": {"s", "gone"}, "s": {"n1", "node t"}, "gone": set()}
    assert whys(found) == [
        "3: s: switch defined twice, first in line 2; what both list is joined",
        "1: gone: listed as a switch, but the file has no line for it; it is kept without nodes",
        "0: t: a node and a switch have this name; the node is kept as 'node t'",
    ]


def test_broken_lines_hide_no_healthy_ones() -> None:
    found = read(
        "SwitchName=good Nodes=n1\nSwitchName= Nodes=n2\nSwitchName=s[1-2] Nodes=n3\nSwitchName=bad Nodes=n[4-2]\nhello\n"
        "SwitchName=huge Nodes=n[1-99999999]\nSwitchName=odd Nodes=n5 Weight=3\nNodes=n6\nSwitchName=open Nodes=n[7-",
        "f",
    )
    assert below(found) == {"good": {"n1"}, "bad": set(), "huge": set(), "odd": {"n5"}, "open": set()}
    assert {problem.line for problem in found.problems} == {2, 3, 4, 5, 6, 7, 8, 9}
    assert not found.complete


def test_a_broken_item_hides_no_other_of_its_list() -> None:
    found = read("SwitchName=s Nodes=n1,n[4-2],m[1-2],a=b,n[1-99999999],(null),ALL,n[5-6,8],open[7", "f")
    assert below(found) == {"s": {"n1", "m1", "m2", "n5", "n6", "n8"}}
    assert [problem.what for problem in found.problems] == [
        "Nodes=n[4-2]",
        "Nodes=a=b",
        "Nodes=n[1-99999999]",
        "Nodes=open[7",
    ]


def test_a_switch_with_nodes_and_switches() -> None:
    found = read("SwitchName=r Nodes=n[1-3] Switches=l\nSwitchName=l Nodes=n1", "f")
    assert below(found) == {"r": {"n2", "n3", "l"}, "l": {"n1"}}
    assert whys(found) == ["1: r: lists nodes and switches; Slurm allows one of them; both are read"]


def test_the_names_of_a_file_are_bounded_as_a_whole() -> None:
    text = "".join(f"SwitchName=s{i} Nodes=n[1-150000]\n" for i in range(9))
    found = read(text, "f")
    assert sum(1 for why in whys(found) if "more than 1,000,000 names" in why) == 3
    assert len(found.hosts) == 150_000


def test_a_list_longer_than_lines_of_dumps_is_read_whole() -> None:
    names = [f"node-{i:06d}.cluster" for i in range(20_000)]
    found = read(f"SwitchName=s Nodes={','.join(names)}", "f")
    assert [host.name for host in found.hosts] == names


def test_comments_of_topograph_name_the_switches() -> None:
    found = read(
        "# sw.2.1=spine a\nSwitchName=sw.2.1 Switches=sw.1.[1-2]\n# sw.1.1=leaf=1\nSwitchName=sw.1.1 Nodes=n1\nSwitchName=sw.1.2",
        "f",
    )
    assert {switch.id: switch.name for switch in found.switches} == {
        "sw.2.1": "spine a",
        "sw.1.1": "leaf=1",
        "sw.1.2": "sw.1.2",
    }


# --- scontrol show topology


def test_of_scontrols_upper_switches_only_what_is_right_below_is_cabled() -> None:
    found = read(
        "SwitchName=l1 Level=0 LinkSpeed=1 Nodes=n[1-2]\nSwitchName=l2 Level=0 LinkSpeed=1 Nodes=n3\n"
        "SwitchName=m Level=1 LinkSpeed=1 Nodes=n[1-3] Switches=l[1-2]\nSwitchName=r Level=2 LinkSpeed=1 Nodes=n[1-4] Switches=m\n",
        "f",
    )
    assert below(found) == {"l1": {"n1", "n2"}, "l2": {"n3"}, "m": {"l1", "l2"}, "r": {"m", "n4"}}
    assert levels(found) == {"l1": 0, "l2": 0, "m": 1, "r": 2}
    assert not found.problems


def test_nodes_without_a_known_place_get_no_cable() -> None:
    found = read(
        "SwitchName=r Level=1 Nodes=n[1-3] Switches=l,unknown\nSwitchName=l Level=0 Nodes=n1\nSwitchName=unknown Level=0 Nodes=n[2-3]",
        "f",
    )
    assert below(found) == {"r": {"l", "unknown"}, "l": {"n1"}, "unknown": set()}
    assert [host.name for host in found.hosts] == ["n1", "n2", "n3"]
    assert whys(found) == ["3: unknown: no real switch: 2 nodes whose place is not known; they get no cable"]


def test_a_part_of_scontrols_output_invents_no_cable() -> None:
    found = read("SwitchName=r Level=1 Nodes=n[1-9] Switches=l[1-2]\nSwitchName=l1 Level=0 Nodes=n[1-4]", "f")
    assert below(found) == {"r": {"l1", "l2"}, "l1": {"n1", "n2", "n3", "n4"}, "l2": set()}
    assert len(found.hosts) == 9
    assert "5 nodes below it are below no switch that the file has a line for" in whys(found)[-1]


def test_levels_that_are_no_levels() -> None:
    found = read("SwitchName=s Level=x Nodes=n", "f")
    assert levels(found) == {"s": 0}
    assert whys(found) == ["1: Level=x: not a level of 0 to 999; it is left out"]


# --- topology/block


def test_blocks_are_nvlink_domains_by_their_real_names() -> None:
    found = read("# b1=rack-7\nBlockName=b1 Nodes=t[1-2]\nBlockName=b2 Nodes=t[3-4]\nBlockSizes=2,4\n", "f")
    assert {host.name: host.nvlink_domain for host in found.hosts} == {
        "t1": "rack-7",
        "t2": "rack-7",
        "t3": "b2",
        "t4": "b2",
    }
    assert not found.switches
    assert not found.cables
    assert not found.problems


def test_blocks_as_scontrol_prints_them() -> None:
    found = read(
        "BlockName=b0 BlockIndex=0 Nodes=10.0.0.1,10.0.0.2 BlockSize=2\nAggregatedBlock=b[0-1] BlockIndex=2 Nodes=10.0.0.[1-4] BlockSize=4",
        "f",
    )
    assert [(host.name, host.nvlink_domain) for host in found.hosts] == [("10.0.0.1", "b0"), ("10.0.0.2", "b0")]
    assert not found.problems


def test_odd_blocks_are_read_with_what_is_odd() -> None:
    found = read(
        "BlockName=b1 Nodes=n[1-2]\nBlockName=b1 Nodes=n3\nBlockName=b2 Nodes=n3\nBlockName=b3\nBlockSizes=4\n", "f"
    )
    assert {host.name: host.nvlink_domain for host in found.hosts} == {"n1": "b1", "n2": "b1", "n3": "b1"}
    assert whys(found) == [
        "2: b1: block defined twice, first in line 1; its nodes are joined",
        "3: b2: n3: 1 nodes that are in another block already; they stay there",
        "4: b3: a block without nodes",
        "1: b1: 3 nodes, fewer than BlockSizes=4; the block is read all the same",
        "3: b2: 1 nodes, fewer than BlockSizes=4; the block is read all the same",
        "4: b3: 0 nodes, fewer than BlockSizes=4; the block is read all the same",
    ]


@pytest.mark.parametrize("sizes", ["4,12", "x", "0", "", "2,", "4,-8", "4,٨"])
def test_strange_block_sizes_are_set_aside(sizes: str) -> None:
    found = read(f"BlockName=b Nodes=n[1-4]\nBlockSizes={sizes}", "f")
    assert len(found.hosts) == 4
    assert "block size" in whys(found)[0]


def test_a_file_without_a_block_that_counts() -> None:
    assert "2 SwitchName= or BlockName= lines are commented out" in refusal(
        "#BlockName=b1 Nodes=n1\n# BlockName=b2 Nodes=n2\nBlockSizes=20"
    )
    assert "BlockSizes= alone" in refusal("BlockSizes=20")
    assert "1 SwitchName= or BlockName= lines are commented out" in refusal("#SwitchName=s1 Nodes=n1\n")


# --- topology.yaml


def test_trees_and_blocks_of_one_yaml_are_one_cluster() -> None:
    found = read(
        "---\n- topology: a\n  tree:\n    switches:\n      - switch: r\n        children: s[1-2]\n      - {switch: s1, nodes: 'n[1-2]'}\n"
        "      - switch: s2\n        nodes: [n3, 1104]\n- topology: b\n  block:\n    block_sizes: [2, 4]\n    blocks:\n"
        "      - block: k1\n        nodes: n[1-2]\n- topology: c\n  flat: true\n- topology: d\n  ring: {rings: []}\n",
        "f",
    )
    assert below(found) == {"r": {"s1", "s2"}, "s1": {"n1", "n2"}, "s2": {"n3", "1104"}}
    assert {host.name: host.nvlink_domain for host in found.hosts} == {"n1": "k1", "n2": "k1", "n3": "", "1104": ""}
    assert [problem.what for problem in found.problems] == ["d: ring"]


def test_json_is_yaml_too() -> None:
    found = read(
        '[\n\t{\n\t\t"topology": "t",\n\t\t"tree": {"switches": [{"switch": "s", "nodes": "n[1-2]"}]}\n\t}\n]\n', "f"
    )
    assert below(found) == {"s": {"n1", "n2"}}


def test_of_two_trees_for_the_same_nodes_the_default_is_read() -> None:
    tree = "- topology: {}\n  cluster_default: {}\n  tree: {{switches: [{{switch: {}, nodes: 'n[1-2]'}}]}}\n"
    found = read(tree.format("one", "false", "s1") + tree.format("two", "true", "s2"), "f")
    assert below(found) == {"s2": {"n1", "n2"}}
    assert "in another topology's tree" in whys(found)[0]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("---\ntopology/tree\n", "found 'topology/tree' as the root; allowed: a list of topologies"),
        ("- topology: t\n  block:\n    - block_sizes: [4]\n", "block of t: found a list; allowed: a mapping"),
        (
            "- topology: t\n  block: {block_sizes: [4, 12], blocks: []}\n",
            "block size 12 is not a power of two of the base block size 4",
        ),
        ("- topology: t\n  block: {blocks: []}\n  tree: {switches: []}\n", "block and tree exclude one another"),
        ("- topology: t\n  tree: {switches: [{nodes: n1}]}\n", "a switch without a name"),
        ("- topology: t\n  tree: {}\n", "no field switches"),
        ("- topology: t\n  tree: {switches: s1}\n", "found 's1'; allowed: a list"),
        ("- topology: t\n", "no kind of topology"),
        ("- topology: t\n  flat: true\n", "no topology in it has switches or blocks"),
        ("- topology: t\n  tree: {switches: [{switch: s, nodes: [[n]]}]}\n", "a list of lists"),
        ("- topology: t\n tree: x\n", "not readable as YAML"),
        ("---\n# nothing\n", "empty"),
    ],
)
def test_a_yaml_that_slurm_would_not_take_is_refused(text: str, why: str) -> None:
    assert why in refusal(text)


# --- files of other kinds


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "empty"),
        (" \n\x1b[0m\n\x00", "empty"),
        ("apiVersion: kueue.x-k8s.io/v1beta2\nkind: Topology\n---\nkind: Topology\n", "Kueue"),
        ("apiVersion: topology.volcano.sh/v1alpha1\nkind: HyperNode\n", "Volcano"),
        ("apiVersion: kai.scheduler/v1alpha1\nkind: Topology\n", "KAI"),
        ("apiVersion: grove.io/v1alpha1\nkind: ClusterTopologyBinding\n", "Grove"),
        ("apiVersion: v1\nkind: ConfigMap\n", "Kubernetes manifest"),
        ("host-1: 0x0002c90300a1b2c3\n", "map of hosts to GUIDs"),
        ("host-1: 01234567-89ab-cdef-0123-456789abcdef\n", "map of hosts to NVLink cluster UUIDs"),
        ("switches:\n  s1: {}\n", "simulation model of Topograph"),
        ("ClusterName=c\nNodeName=n1\n", "slurm.conf"),
        ("CA 'mlx5_0'\n\tCA type: MT4129\n", "ibstat"),
        ("No topology information available\n", "scontrol had no topology to print"),
        ("hello\n", "found no SwitchName= or BlockName= line"),
    ],
)
def test_other_texts_are_refused_by_name(text: str, why: str) -> None:
    assert why in refusal(text)
