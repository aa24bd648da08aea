"""Fabric files that are cut, or hold what is no part of a fabric: nothing is made up, and what was set aside is told."""

from __future__ import annotations

import pytest

from fmproto.dumptext import ReaderError
from fmsched.topology.readers import ibnetdiscover, slurm_topology
from fmsched.topology.readers.found import FabricFound

FABRIC = """#
# Topology file: generated on Mon Mar  3 10:00:00 2025
#
vendid=0x2c9
devid=0xd2f0
sysimgguid=0xa0
switchguid=0xa0(a0)
Switch\t41 "S-00000000000000a0"\t\t# "MF0;leaf-7:MQM8700/U1" enhanced port 0 lid 9 lmc 0
[1]\t"H-00000000000000b1"[1](b1) \t\t# "worker-31 mlx5_0" lid 11 4xHDR
[2]\t"H-00000000000000b2"[1](b2) \t\t# "worker-32 mlx5_0" lid 12 4xHDR
[41]\t"H-00000000000000c1"[1](c1) \t\t# "Mellanox Technologies Aggregation Node" lid 13 4xHDR

vendid=0x2c9
devid=0x101b
sysimgguid=0xb1
caguid=0xb1
Ca\t1 "H-00000000000000b1"\t\t# "worker-31 mlx5_0"
[1](b1) \t"S-00000000000000a0"[1]\t\t# lid 11 lmc 0 "MF0;leaf-7:MQM8700/U1" lid 9 4xHDR

vendid=0x2c9
devid=0x101b
sysimgguid=0xb2
caguid=0xb2
Ca\t1 "H-00000000000000b2"\t\t# "worker-32 mlx5_0"
[1](b2) \t"S-00000000000000a0"[2]\t\t# lid 12 lmc 0 "MF0;leaf-7:MQM8700/U1" lid 9 4xHDR
"""
CONF = "SwitchName=l1 Nodes=w[1-2]\nSwitchName=l2 Nodes=w[3-4]\nSwitchName=top Switches=l[1-2]\n"


def hosts(found: FabricFound) -> set[str]:
    return {host.name for host in found.hosts}


@pytest.mark.parametrize("at", range(FABRIC.index("Switch\t41"), len(FABRIC)))
def test_a_cut_anywhere_makes_up_no_name(at: int) -> None:
    found = ibnetdiscover.read(FABRIC[:at], "f") if '"S-00000000000000a0"' in FABRIC[:at] else None
    if found is None:
        with pytest.raises(ReaderError):
            ibnetdiscover.read(FABRIC[:at], "f")
        return
    assert [switch.id for switch in found.switches] == ["00000000000000a0"]
    named = {host.name for host in found.hosts if host.named}
    assert named <= {"worker-31", "worker-32"}
    assert {guid for host in found.hosts for _, guid in host.guids} <= {"00000000000000b1", "00000000000000b2"}
    assert len(found.cables) <= 2


def test_a_record_that_is_cut_takes_its_name_from_links_and_the_file_is_not_whole() -> None:
    found = ibnetdiscover.read(FABRIC[: FABRIC.rindex("worker-32") + 6], "f")
    assert hosts(found) == {"worker-31", "worker-32"}
    assert not found.complete
    assert any("ends inside this line" in problem.why for problem in found.problems)


def test_a_lost_quote_loses_no_name() -> None:
    found = ibnetdiscover.read(FABRIC.replace('leaf-7:MQM8700/U1" enhanced', "leaf-7:MQM8700/U1 enhanced"), "f")
    assert [switch.name for switch in found.switches] == ["leaf-7"]
    assert hosts(found) == {"worker-31", "worker-32"}


@pytest.mark.parametrize("prompt", ["adm@mgt-1:~#", "[adm@mgt-1 ~]$", "$ sudo ibnetdiscover > now; cat now"])
def test_prompts_are_no_problem(prompt: str) -> None:
    assert ibnetdiscover.read(f"{prompt}\n{FABRIC}{prompt}\n", "f") == ibnetdiscover.read(FABRIC, "f")
    assert slurm_topology.read(f"adm@mgt-1:~# scontrol show topology\n{CONF}[adm@mgt-1 ~]$\n", "f") == slurm_topology.read(
        CONF, "f"
    )


def test_differences_of_two_fabrics_are_no_fabric() -> None:
    changes = (
        '\n< vendid=0x2c9\n< switchguid=0xa0(a0)\n< Switch\t41 "S-a0"\t\t# "x" base port 0 lid 9 lmc 0\n< [1]\t"H-b1"[1]\n'
    )
    with pytest.raises(ReaderError, match="differences of two fabrics"):
        ibnetdiscover.read(changes, "f")
    head = FABRIC.partition("[1]\t")[0]
    found = ibnetdiscover.read(f'{head}> [1]\t"H-00000000000000b1"[1](b1) \t\t# "worker-31 mlx5_0" lid 11 4xHDR\n', "f")
    assert not found.hosts and not found.complete
    assert any("--diff" in problem.why for problem in found.problems)


def test_the_qib_driver_puts_the_host_last() -> None:
    found = ibnetdiscover.read(FABRIC.replace("worker-31 mlx5_0", "Intel Infiniband HCA worker-31"), "f")
    assert hosts(found) == {"worker-31", "worker-32"}
    assert all(host.named for host in found.hosts)


@pytest.mark.parametrize("item", ["...", "{{", "<nodes>", "$NODES", "…"])
def test_what_stands_for_a_name_is_no_node(item: str) -> None:
    found = slurm_topology.read(f"{CONF}SwitchName=l3 Nodes=w5,{item}\n", "f")
    assert hosts(found) == {"w1", "w2", "w3", "w4", "w5"}
    assert any("not a name or a host list" in problem.why for problem in found.problems)


@pytest.mark.parametrize(
    ("text", "plugin"),
    [("RingName=r0 Nodes=w[1-8] RingSize=8\n", "ring"), ("TorusName=pod Dims=2x2x2 Nodes=w[1-8]\n", "torus3d")],
)
def test_rings_and_tori_are_told_by_their_name(text: str, plugin: str) -> None:
    with pytest.raises(ReaderError, match=f"topology/{plugin} has no switches"):
        slurm_topology.read(text, "f")
    found = slurm_topology.read(f"{CONF}{text}", "f")
    assert hosts(found) == {"w1", "w2", "w3", "w4"}
    assert [problem.why for problem in found.problems] == [
        f"topology/{plugin} has no switches and no NVLink domains; it is not read"
    ]


def test_nodes_without_a_place_in_each_of_several_fabrics() -> None:
    text = "SwitchName=ib-a Switches=l1,ib-a.unknown\nSwitchName=l1 Nodes=w[1-2]\nSwitchName=ib-a.unknown Nodes=w[3-4]\n"
    found = slurm_topology.read(text, "f")
    assert {cable.a for cable in found.cables if cable.a.startswith("w")} == {"w1", "w2"}
    assert hosts(found) == {"w1", "w2", "w3", "w4"}


def test_a_refusal_says_what_the_file_seems_to_be() -> None:
    with pytest.raises(ReaderError, match=r"no record of a switch.*looks like: Slurm topology\.conf"):
        ibnetdiscover.read(CONF, "f")
