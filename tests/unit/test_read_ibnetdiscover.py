"""Topology files of InfiniBand fabrics: every shape that the tools print, made up in small; and the collection of real ones, counted by
other means."""

from __future__ import annotations

import gzip
import re
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from fmproto.dumptext import PROBLEMS_MAX, ReaderError
from fmsched.topology.readers import ib_lines
from fmsched.topology.readers.found import CableFound, FabricFound, HostFound, SwitchFound
from fmsched.topology.readers.ib_names import (
    Owner,
    apply_host_guids,
    chassis_of,
    host_of,
    name_hosts,
    read_host_guids,
    switch_name,
)
from fmsched.topology.readers.ibnetdiscover import read
from tests.support.shared_data import files, shared

LEAF, SPINE = "0a1b2c0300000100", "0a1b2c0300000200"
PLAIN = f"""#
# Topology file: generated on Mon Jan  5 10:00:00 2026
#
# Initiated from node 0c0ffee000000011 port 0c0ffee000000011

vendid=0x2c9
devid=0xd2f0
sysimgguid=0xa1b2c0300000100
switchguid=0xa1b2c0300000100(a1b2c0300000100)
Switch\t41 "S-{LEAF}"\t\t# "MF0;leaf-7:MQM8700/U1" enhanced port 0 lid 3 lmc 0
[1]\t"H-0c0ffee000000011"[1](c0ffee000000011) \t\t# "alpha mlx5_0" lid 11 4xHDR
[2]\t"H-0c0ffee000000012"[1](c0ffee000000012) \t\t# "alpha mlx5_1" lid 12 4xHDR
[3]\t"H-0c0ffee000000021"[1](c0ffee000000021) \t\t# "MT4123 ConnectX6   Mellanox Technologies" lid 13 2xHDR
[20]\t"S-{SPINE}"[1]\t\t# "MF0;spine-1:MQM8700/U1" lid 4 4xHDR
[21]\t"S-{SPINE}"[2]\t\t# "MF0;spine-1:MQM8700/U1" lid 4 4xEDR
[41]\t"H-0a1b2c0300000108"[1](a1b2c0300000108) \t\t# "Mellanox Technologies Aggregation Node" lid 9 4xHDR

vendid=0x2c9
devid=0xd2f0
sysimgguid=0xa1b2c0300000200
switchguid=0xa1b2c0300000200(a1b2c0300000200)
Switch\t41 "S-{SPINE}"\t\t# "MF0;spine-1:MQM8700/U1" enhanced port 0 lid 4 lmc 0
[1]\t"S-{LEAF}"[20]\t\t# "MF0;leaf-7:MQM8700/U1" lid 3 4xHDR
[2]\t"S-{LEAF}"[21]\t\t# "MF0;leaf-7:MQM8700/U1" lid 3 4xEDR

vendid=0x2c9
devid=0x101b
sysimgguid=0xc0ffee000000011
caguid=0xc0ffee000000011
Ca\t1 "H-0c0ffee000000011"\t\t# "alpha mlx5_0"
[1](c0ffee000000011) \t"S-{LEAF}"[1]\t\t# lid 11 lmc 0 "MF0;leaf-7:MQM8700/U1" lid 3 4xHDR

caguid=0xc0ffee000000012
Ca\t1 "H-0c0ffee000000012"\t\t# "alpha mlx5_1"
[1](c0ffee000000012) \t"S-{LEAF}"[2]\t\t# lid 12 lmc 0 "MF0;leaf-7:MQM8700/U1" lid 3 4xHDR

caguid=0xc0ffee000000021
Ca\t1 "H-0c0ffee000000021"\t\t# "MT4123 ConnectX6   Mellanox Technologies"
[1](c0ffee000000021) \t"S-{LEAF}"[3]\t\t# lid 13 lmc 0 "MF0;leaf-7:MQM8700/U1" lid 3 2xHDR
"""
NAMELESS = "0c0ffee000000021"
PLAIN_FOUND = FabricFound(
    kind="ibnetdiscover",
    file="f",
    switches=(SwitchFound(LEAF, "leaf-7", ports=41), SwitchFound(SPINE, "spine-1", ports=41)),
    hosts=(
        HostFound("alpha", "alpha", (("mlx5_0", "0c0ffee000000011"), ("mlx5_1", "0c0ffee000000012"))),
        HostFound(NAMELESS, NAMELESS, (("", NAMELESS),), named=False),
    ),
    cables=(
        CableFound(LEAF, "alpha", 200.0, hca="mlx5_0", hca_port=1),
        CableFound(LEAF, "alpha", 200.0, hca="mlx5_1", hca_port=1),
        CableFound(LEAF, NAMELESS, 100.0, hca_port=1),
        CableFound(SPINE, LEAF, 200.0),
        CableFound(SPINE, LEAF, 100.0),
    ),
)


def unordered(found: FabricFound) -> FabricFound:
    """With the ends of switch links in one order."""
    cables = (
        cable if cable.hca_port else replace(cable, a=max(cable.a, cable.b), b=min(cable.a, cable.b))
        for cable in found.cables
    )
    return replace(found, cables=tuple(cables))


def whys(found: FabricFound) -> str:
    return "\n".join(map(str, found.problems))


def test_the_plain_format() -> None:
    found = read(PLAIN, "f")
    assert unordered(replace(found, problems=())) == PLAIN_FOUND
    why = "1 adapters describe themselves by no host's name; each is taken as a host of its own"
    assert whys(found) == f"f: adapter {NAMELESS}: {why}"


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("\n", "\r\n"),
        lambda text: "\ufeff$ sudo ibnetdiscover\n" + text.replace("\t", "    "),
        lambda text: re.sub(r"(\dx[A-Z]DR)", r"\1 s=4 w=2 v=4 e=4", text),  # --full
        lambda text: re.sub(r"(?m)^\[(\d+)\](?=[\t(])", r"[\1](\1)", text).replace("[1](1)(", "[1]("),  # ibdiagnet
        lambda text: re.sub(r"lid \d+ ", "lid  ", text),
        lambda text: re.sub(r"lid \d+ ", "lid -65335 ", text),
        lambda text: re.sub(r"\n\n+", "\n", text),
        lambda text: text.replace("\n[", "\nDR path slid 0; dlid 0; 0,1,6 -> new Switch {0008f105001084fa} portnum 0 lid 0-0 \"\"\n["),
        lambda text: text + "\n" + text.replace("Jan  5", "Jan  6"),
        lambda text: re.sub(r'"S-0+', '"S-', text),
        lambda text: re.sub(r"[0-9a-f]{12,}", lambda match: match[0].upper(), text),
    ],
    ids=["crlf", "prompt", "full", "ibdiagnet", "no lids", "odd lids", "no blank lines", "progress", "twice", "zeros", "upper case"],
)  # fmt: skip
def test_variants_say_the_same(change: object) -> None:
    assert callable(change)
    text = change(PLAIN)
    assert text != PLAIN
    found = read(text, "f")
    assert [len(found.switches), len(found.hosts), len(found.cables)] == [2, 2, 5], whys(found)
    assert sorted(cable.gbps for cable in found.cables) == [100.0, 100.0, 200.0, 200.0, 200.0]
    assert found.complete, whys(found)
    assert {guid for host in found.hosts for _, guid in host.guids} == {"0c0ffee000000011", "0c0ffee000000012", NAMELESS}


@pytest.mark.parametrize(
    ("word", "gbps"),
    [
        ("1xSDR", 2.5), ("4xSDR", 10), ("8xSDR", 20), ("12xSDR", 30), ("4xDDR", 20), ("4xQDR", 40), ("4xFDR10", 40), ("4xFDR", 56),
        ("4xEDR", 100), ("1xHDR", 50), ("2xHDR", 100), ("4xHDR", 200), ("2xNDR", 200), ("4xNDR", 400), ("1xXDR", 200), ("4xXDR", 800),
        ("4x ???", 0), ("4x???", 0), ("???", 0), ("3xEDR", 0), ("4xZDR", 0), ("", 0), ("4x EDR", 100), ("4xedr", 100),
    ],
)  # fmt: skip
def test_rates(word: str, gbps: float) -> None:
    text = f'Switch 8 "S-{LEAF}" # "l" base port 0 lid 1 lmc 0\n[1] "S-{SPINE}"[1] # "4xXDR s" lid 2 {word}\n'
    text += f'Switch 8 "S-{SPINE}" # "s" base port 0 lid 1 lmc 0\n[1] "S-{LEAF}"[1] # "4xXDR l" lid 2 {word}\n'
    found = read(text, "f")
    assert [cable.gbps for cable in found.cables] == [gbps]


def test_ends_that_disagree_count_as_the_slower() -> None:
    text = PLAIN.replace('"MF0;leaf-7:MQM8700/U1" lid 3 4xEDR', '"MF0;leaf-7:MQM8700/U1" lid 3 1xSDR')
    found = read(text, "f")
    assert sorted(cable.gbps for cable in found.cables)[0] == 2.5
    assert "the lower one counts" in whys(found)


PORTS = """CA    12  1 0x0c0ffee000000011 4x EDR - SW     3  1 0x0a1b2c0300000100 ( 'alpha HCA-1' - 'leaf - 7 ' )
SW     3  1 0x0a1b2c0300000100 4x EDR - CA    12  1 0x0c0ffee000000011 ( 'leaf - 7 ' - 'alpha HCA-1' )
SW     3  2 0x0a1b2c0300000100 4x FDR10 - SW     4  1 0x0a1b2c0300000200 ( 'leaf - 7 ' - ' spine-1' )
SW     3  3 0x0a1b2c0300000100 4x ???                                    'leaf - 7 '
SW     3 36 0x0a1b2c0300000100 1x SDR                                    'leaf - 7 '
SW     4  1 0x0a1b2c0300000200 4x FDR10 - SW     3  2 0x0a1b2c0300000100 ( ' spine-1' - 'leaf - 7 ' )
SW     5 22 0x0a1b2c0300000300 4x QDR                                   spare leaf
"""


def test_the_ports_format() -> None:
    found = read(PORTS, "f")
    assert found.complete
    assert [(switch.name, switch.ports) for switch in found.switches] == [
        ("leaf - 7", 36),
        ("spine-1", 1),
        ("spare leaf", 22),
    ]
    assert found.hosts == (HostFound("alpha", "alpha", (("HCA-1", "0c0ffee000000011"),)),)
    assert sorted((cable.gbps, cable.hca) for cable in found.cables) == [(40.0, ""), (100.0, "HCA-1")]


def test_the_lst_format_of_ibdiagnet() -> None:
    end = "{ %s Ports:%s SystemGUID:0a1b NodeGUID:%s PortGUID:%s VenID:000002C9 DevID:D2F0 Rev:000000A0 %s LID:0002 PN:%s }"
    leaf = end % ("SW", "28", LEAF, LEAF, "{leaf-7}", "0A")
    host = end % ("CA", "01", "0c0ffee000000011", "0c0ffee000000012", "{alpha HCA-1}", "01")
    spine = end % ("SW", "28", SPINE, SPINE, "", "01")
    text = f"{leaf} {host} PHY=4x LOG=ACT SPD=25\n{spine} {leaf.replace('PN:0A', 'PN:0B')} PHY=12x LOG=ACT SPD=2.5\n"
    found = read(text, "f")
    assert {cable.gbps for cable in found.cables} == {100.0, 30.0}
    assert found.hosts == (HostFound("alpha", "alpha", (("HCA-1", "0c0ffee000000011"),)),)
    assert [switch.name for switch in found.switches] == ["leaf-7", ""]


GROUPED = f"""
Chassis 1 (guid 0x8f1000000000a0)

# Spine Nodes
vendid=0x8f1
devid=0x5a30
sysimgguid=0x8f1000000000a0\t\t# Chassis 1
switchguid=0x8f10000000000b1(8f10000000000b1)\t# ISR9288 Spine 1 Chip 1
Switch\t24 "S-08f10000000000b1"\t\t# "ISR9288 Voltaire" base port 0 lid 3 lmc 0
[1][ext 5]\t"S-08f10000000000c1"[13]\t\t# "ISR9288/ISR9096 Voltaire sLB-24" lid 4 4xDDR

# Line Nodes
vendid=0x8f1
switchguid=0x8f10000000000c1(8f10000000000c1)\t# ISR9288 Line 3
Switch\t24 "S-08f10000000000c1"\t\t# "ISR9288/ISR9096 Voltaire sLB-24" base port 0 lid 4 lmc 0
[13]\t"S-08f10000000000b1"[1][ext 5]\t\t# "ISR9288 Voltaire" lid 3 4xDDR
[2][ext 7]\t"S-{LEAF}"[24]\t\t# "edge" lid 5 4xDDR

# Chassis Switches
vendid=0x8f1
switchguid=0x8f10000000000c1(8f10000000000c1)\t# ISR9288 Line 3
Switch\t24 "S-08f10000000000c1"\t\t# "ISR9288/ISR9096 Voltaire sLB-24" base port 0 lid 4 lmc 0
[13]\t"S-08f10000000000b1"[1][ext 5]\t\t# "ISR9288 Voltaire" lid 3 4xDDR
[2][ext 7]\t"S-{LEAF}"[24]\t\t# "edge" lid 5 4xDDR

# Chassis CAs
Non-Chassis Nodes

switchguid=0xa1b2c0300000100(a1b2c0300000100)\t#
Switch\t24 "S-{LEAF}"\t\t# "edge" base port 0 lid 5 lmc 0
[24]\t"S-08f10000000000c1"[2][ext 7]\t\t# "ISR9288/ISR9096 Voltaire sLB-24" lid 4 4xDDR
"""


def test_grouped_by_chassis() -> None:
    found = read(GROUPED, "f")
    assert found.complete, whys(found)
    assert [(switch.id[-2:], switch.chassis) for switch in found.switches] == [
        ("b1", "chassis 1"),
        ("c1", "chassis 1"),
        ("00", ""),
    ]
    assert len(found.cables) == 2


def test_boards_of_a_director_share_its_chassis() -> None:
    text = PLAIN.replace("leaf-7:MQM8700/U1", "core:CS8500/L07/U1").replace("spine-1:MQM8700/U1", "core:CS8500/S01/U1")
    assert [(switch.name, switch.chassis) for switch in read(text, "f").switches] == [
        ("core/L07/U1", "core"),
        ("core/S01/U1", "core"),
    ]
    text = PLAIN.replace("sysimgguid=0xa1b2c0300000200", "sysimgguid=0xa1b2c0300000100")
    assert [switch.chassis for switch in read(text, "f").switches] == ["leaf-7", "leaf-7"]


NET = """# a net file
Switch\t8 "Switch1"
[1]\t"Hca1"[1]
[3]\t"Switch2"[3]\tw=12
[4]\t"Switch2"[4]

Switch 8 "Switch2"
[3]\t"Switch1"[3]
[4]\t"Switch1"[4]

Hca \t2 "Hca1"
[1]\t"Switch1"[1]
"""


def test_net_files_of_ibsim() -> None:
    found = read(NET, "f")
    assert found.complete, whys(found)
    assert found.hosts == (HostFound("Hca1", "Hca1", (("", "Hca1"),)),)
    assert [switch.id for switch in found.switches] == ["Switch1", "Switch2"]
    assert len(found.cables) == 3


def test_routers_forward() -> None:
    text = PLAIN + '\nrtguid=0xa1b2c0300000300\nRt\t2 "R-0a1b2c0300000300"\t\t# "MF0;gate:Q3400_RA/U1/RT"\n'
    text += f'[2](a1b2c0300000301)\t"S-{LEAF}"[30]\t\t# lid 9 lmc 0 "MF0;leaf-7:MQM8700/U1" lid 3 1xXDR\n'
    found = read(text, "f")
    assert len(found.switches) == 3
    assert {(cable.a, cable.b) for cable in found.cables} >= {(LEAF, "0a1b2c0300000300")} or any(
        {cable.a, cable.b} == {LEAF, "0a1b2c0300000300"} for cable in found.cables
    )
    assert "in the record of one end only" in whys(found)


@pytest.mark.parametrize(
    "text",
    [
        'odd "quoted" # [7] name', "name lid 7 4xSDR", "näme ✓", "a" * 64, "(){}[]|\\", "Voltaire 4036 # 4036-84FA", "' - '",
    ],
)  # fmt: skip
def test_descriptions_hold_any_characters(text: str) -> None:
    found = read(PLAIN.replace("MF0;leaf-7:MQM8700/U1", text), "f")
    assert sorted(cable.gbps for cable in found.cables) == [100.0, 100.0, 200.0, 200.0, 200.0]
    assert found.complete, whys(found)
    assert len(found.hosts) == 2


def test_redacted_guids_are_told_apart_by_descriptions() -> None:
    text = re.sub(r'"(S|H)-[0-9a-f]{16}"', r'"\1-0a1b<redacted>"', PLAIN)
    found = read(text, "f")
    assert [len(found.switches), len(found.hosts), len(found.cables)] == [2, 2, 5], whys(found)
    assert "told apart by their descriptions" in whys(found)


def test_colliding_guids_of_records_are_told_apart_by_descriptions() -> None:
    text = PLAIN.replace("0c0ffee000000012", "0c0ffee000000011").replace("alpha mlx5_1", "beta mlx5_0")
    found = read(text, "f")
    assert {host.name for host in found.hosts} == {"alpha", "beta", NAMELESS}
    assert len(found.cables) == 5


def test_a_node_name_map_renames_links_only() -> None:
    text = re.sub(r'lid 11 lmc 0 "[^"]*"', 'lid 11 lmc 0 "the leaf"', PLAIN).replace(
        '# "alpha mlx5_0" lid 11', '# "renamed" lid 11'
    )
    assert unordered(replace(read(text, "f"), problems=())) == PLAIN_FOUND


def test_a_tool_that_fails_on_the_way() -> None:
    lines = PLAIN.splitlines()
    at = lines.index("caguid=0xc0ffee000000021")
    text = "\n".join(
        [
            *lines[:at],
            "src/query_smp.c:228; umad (DR path slid 0; dlid 0; 0,1,23 Attr 0x11.1:0) bad status 110; Connection timed out",
        ]
    )
    found = read(text + "\n", "f")
    assert not found.complete
    assert [len(found.switches), len(found.hosts), len(found.cables)] == [2, 2, 5]
    assert "the tool complains" in whys(found)
    assert f"the first of them {NAMELESS}" in whys(found)


def test_output_that_is_cut() -> None:
    for end in range(PLAIN.index("Switch"), len(PLAIN) - 2, 7):
        try:
            found = read(PLAIN[:end], "f")
        except ReaderError:
            continue
        assert not found.complete or len(found.cables) == 5, PLAIN[:end][-60:]


def test_one_broken_line_hides_nothing() -> None:
    lines = PLAIN.splitlines()
    records = [i for i, line in enumerate(lines) if line.startswith(("[", "Switch", "Ca"))]
    for i in records:
        broken = [*lines[:i], "[7]\x00~~~" + lines[i][:9], *lines[i + 1 :]]
        found = read("\n".join(broken), "f")
        assert len(found.cables) >= 3, lines[i]
        assert found.problems


@pytest.mark.parametrize("head", ['Swi?ch 8 "Switch2"', 'Switch 8 "Switch2', '???\t1 "?-0c0ffee000000031"', 'Switch 8 ""'])
def test_links_of_a_damaged_record_go_to_no_other(head: str) -> None:
    found = read(NET.replace('Switch 8 "Switch2"', head), "f")
    assert "a link before any record" in whys(found)
    assert not found.complete
    assert [(cable.a, cable.b) for cable in found.cables] == [("Switch1", "Hca1")]


def test_one_port_has_one_cable() -> None:
    text = PLAIN.replace(f'[2]\t"S-{LEAF}"[21]', f'[2]\t"S-{LEAF}"[20]')
    found = read(text, "f")
    assert "one of the ports has another cable already" in whys(found)
    assert len(found.cables) == 5


def test_ends_without_records_are_taken_from_links() -> None:
    text = PLAIN[: PLAIN.index("vendid=0x2c9\ndevid=0x101b")]
    found = read(text, "f")
    assert not found.complete
    assert "3 ends of links have no record" in whys(found)
    assert unordered(replace(found, problems=(), complete=True)) == PLAIN_FOUND


def test_a_lone_adapter_is_no_whole_fabric() -> None:
    found = read('vendid=0x2c9\ncaguid=0xc0ffee000000011\nCa\t1 "H-0c0ffee000000011"\t\t# "alpha HCA-1"\n', "f")
    assert (len(found.hosts), len(found.cables), found.complete) == (1, 0, False)
    assert "have no link" in whys(found)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "printed nothing"),
        ("#\n# Topology file: generated on Mon\n#\n", "printed nothing"),
        ("bash: ibnetdiscover: command not found\n", "the tool failed"),
        ("ibwarn: [41] can't open UMAD port ((null):0)\nibnetdiscover: iberror: failed: discover failed\n", "discover failed"),
        ('Ca\t: 0x0c0ffee000000011 ports 1 "alpha HCA-1"\n', "a list of nodes"),
        ("CA: alpha mlx5_0:\n  0x0c 1 1[ ] ==( 4X 25.78125 Gbps Active/ LinkUp)==> 3 1[ ] \"leaf\" ( )\n", "iblinkinfo"),
        ("SwitchName=s1 Nodes=n[1-4]\n", "no record of a switch"),
        ('[1] "S-0a1b2c0300000100"[1] # lid 1 lmc 0 "leaf" lid 2 4xHDR\n', "no record of a switch"),
        ("<system version=\"1\">\n", "no record of a switch"),
    ],
)  # fmt: skip
def test_what_is_no_fabric_is_refused(text: str, why: str) -> None:
    with pytest.raises(ReaderError, match=re.escape(why)):
        read(text, "f")


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("alpha mlx5_0", ("alpha", "mlx5_0")), ("alpha HCA-1", ("alpha", "HCA-1")), ("alpha ibp1s0", ("alpha", "ibp1s0")),
        ("a.b.c ibp11s0f0v3", ("a.b.c", "ibp11s0f0v3")), ("alpha qib0", ("alpha", "qib0")), ("alpha hfi1_0", ("alpha", "hfi1_0")),
        ("nvidia-01 mlx5_bond_0", ("nvidia-01", "mlx5_bond_0")), ("alpha rocep1s0f1", ("alpha", "rocep1s0f1")),
        ("  alpha   mlx4_0 ", ("alpha", "mlx4_0")), ("alpha", ("alpha", "")), ("alpha HCA-1 (spare)", ("alpha", "HCA-1")),
        ("MT4129 ConnectX7   Mellanox Technologies", None), ("MT25408 ConnectX Mellanox Technologies", None), ("", None),
        ("localhost mlx5_0", None), ("(none) HCA-1", None), ("Mellanox HCA-1", None), ("MT4129", None), ("mlx5_0", None), ("HCA-1", None),
        ("Pseudo InfiniBand HCA driver", None), ("QLogic 7340 HCA", None), ("localhost.localdomain HCA-2", None),
    ],
)  # fmt: skip
def test_hosts_by_description(text: str, host: tuple[str, str] | None) -> None:
    assert host_of(text) == host


def test_switches_by_description() -> None:
    assert switch_name("MF0;leaf-7:MQM8700/U1") == "leaf-7"
    assert switch_name("MF0;core:CS8500/L01/U2") == "core/L01/U2"
    assert switch_name("Quantum Mellanox Technologies") == ""
    assert switch_name("Voltaire 4036 # 4036-84FA") == "Voltaire 4036 # 4036-84FA"
    assert (chassis_of("MF0;core:CS8500/L01/U2"), chassis_of("MF0;leaf-7:MQM8700/U1"), chassis_of("leaf")) == (
        "core",
        "",
        "",
    )


GUID_MAPS = {
    "azure": "VM_hostname vm-a\n0c0ffee000000011\n0x0c0ffee000000012\nVM_hostname vm-b\nc0ffee000000021\n",
    "lines": "vm-a: 0xc0ffee000000011\nvm-a: 0xc0ffee000000012\nvm-b: 0xc0ffee000000021\n",
    "lists": "# GUIDs\r\nvm-a: 0x0c0ffee000000011, 0x0c0ffee000000012\r\n\r\nvm-b 0c0f:fee0:0000:0021\r\n",
    "name map": '0x0c0ffee000000011 "vm-a HCA-1"\n0x0c0ffee000000012 "vm-a HCA-2"\n0x0c0ffee000000021 "vm-b"\n',
    "csv": "vm-a,0c0ffee000000011\nvm-a,0c0ffee000000012\nvm-b,0c0ffee000000021\n",
    "ibstat": "hostname: vm-a\nNode GUID: 0x0c0ffee000000011\nPort GUID: 0x0c0ffee000000012\nhost: vm-b\n Port GUID: 0x0c0ffee000000021\n",
}


@pytest.mark.parametrize("text", GUID_MAPS.values(), ids=list(GUID_MAPS))
def test_maps_of_hosts_to_guids(text: str) -> None:
    guids = read_host_guids(text, "m")
    assert guids.host_of == {"0c0ffee000000011": "vm-a", "0c0ffee000000012": "vm-a", NAMELESS: "vm-b"}
    assert not guids.problems
    named = apply_host_guids(read(PLAIN, "f"), guids)
    assert [(host.id, host.name, host.named) for host in named.hosts] == [("vm-a", "vm-a", True), ("vm-b", "vm-b", True)]
    assert Counter(cable.b for cable in named.cables if cable.hca_port) == {"vm-a": 2, "vm-b": 1}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("vm-a\nvm-b\n", "no GUID"), ("", "no line"), (PLAIN, "a topology file"), ("0c0ffee000000011\n", "no line"),
        ("GPU 0: NVIDIA H100 (UUID: GPU-1)\n<a>\n", "no line"),
    ],
)  # fmt: skip
def test_what_is_no_map_is_refused(text: str, why: str) -> None:
    with pytest.raises(ReaderError, match=why):
        read_host_guids(text, "m")


def test_a_map_that_contradicts_itself() -> None:
    guids = read_host_guids("vm-a: 0x0c0ffee000000011\nvm-b: 0x0c0ffee000000011, 0x0c0ffee000000012\n", "m")
    assert guids.host_of == {"0c0ffee000000011": "vm-a", "0c0ffee000000012": "vm-b"}
    assert "the GUID is vm-a's already" in str(guids.problems[0])
    named = apply_host_guids(read(PLAIN, "f"), guids)
    assert "its adapters belong to vm-a, vm-b" in whys(named)
    assert [host.name for host in named.hosts] == ["vm-a", NAMELESS]


def test_owners_merge_hosts_and_name_their_adapters() -> None:
    owners = {"0c0ffee000000012": Owner("one", "mlx5_3"), NAMELESS: Owner("one", "mlx5_4")}
    named = name_hosts(read(PLAIN, "f"), owners)
    assert [host.name for host in named.hosts] == ["one"]
    assert sorted(cable.hca for cable in named.cables if cable.hca_port) == ["mlx5_0", "mlx5_3", "mlx5_4"]


def test_a_host_with_a_switchs_id_keeps_its_own() -> None:
    named = name_hosts(read(PLAIN, "f"), {NAMELESS: Owner(LEAF)})
    assert [(host.id, host.name) for host in named.hosts] == [("alpha", "alpha"), (f"{LEAF} (host)", LEAF)]


def test_12500_hosts_take_seconds() -> None:
    leaves, per_leaf = 391, 32
    out = []
    for leaf in range(leaves):
        out.append(f'Switch\t65 "S-2c5eab03{leaf:08x}"\t\t# "MF0;leaf-{leaf}:MQM9701/U1" enhanced port 0 lid 73 lmc 0')
        for host in range(per_leaf):
            guid = f"e09d7303{leaf * per_leaf + host:08x}"
            out.append(f'[{host + 1}]\t"H-{guid}"[1]({guid}) \t\t# "n{leaf * per_leaf + host:05} mlx5_0" lid 647 4xNDR')
    for leaf in range(leaves):
        for host in range(per_leaf):
            guid = f"e09d7303{leaf * per_leaf + host:08x}"
            out.append(f"\nvendid=0x2c9\ndevid=0x1021\nsysimgguid=0x{guid}\ncaguid=0x{guid}")
            out.append(f'Ca\t1 "H-{guid}"\t\t# "n{leaf * per_leaf + host:05} mlx5_0"')
            out.append(
                f'[1]({guid}) \t"S-2c5eab03{leaf:08x}"[{host + 1}]\t\t# lid 84 lmc 0 "MF0;leaf-{leaf}:MQM9701/U1" lid 119 4xNDR'
            )
    started_s = time.process_time()
    found = read("\n".join(out), "f")
    took_s = time.process_time() - started_s
    assert [len(found.switches), len(found.hosts), len(found.cables)] == [leaves, leaves * per_leaf, leaves * per_leaf]
    assert found.complete
    assert took_s < 6  # 1 s on an idle machine


# --- the collection


def content(path: Path) -> str:
    data = path.read_bytes()
    return (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8", errors="replace")


FABRICS = [path for path in files("ibnetdiscover") if not path.name.endswith((".host-guids.txt", ".hostfile"))]
OTHERS = [path for kind in ("topo_m", "nvsmi", "ibstat", "nccl_xml", "slurm_topology") for path in files(kind)]


class Counted:
    """Switches, adapters and cables of a text, by other means than the reader's: every end that any line names, aggregation nodes left
    out. An id is what stands in quotes, or a GUID of --ports; a cable is a pair of (id, port)."""

    def __init__(self, text: str) -> None:
        self.switches: set[str] = set()
        self.adapters: set[str] = set()
        self.cables: dict[frozenset[tuple[str, str]], set[str]] = {}  # with the rates that its ends print
        self.dropped: set[str] = set()
        here = ""
        for line in text.splitlines():
            words = line.split()
            if len(words) > 5 and words[0] in ("SW", "CA") and words[3].startswith("0x"):
                self.port(line, words)
            elif words and words[0] in ("Switch", "Ca", "Hca") and '"' in line:
                here = line.split('"')[1]
                self.end(here, line, switch=words[0] == "Switch")
            elif line.startswith("[") and '"' in line:
                port, far, rest = line[1:].split("]")[0], line.split('"')[1], line.split('"')[2]
                self.cable((here, port), (far, rest.split("]")[0].lstrip(" [")), line)
                if far[:2] in ("S-", "H-"):
                    self.end(far, line, switch=far[0] == "S")
        self.adapters -= self.dropped
        self.cables = {
            cable: rates for cable, rates in self.cables.items() if not any(end in self.dropped for end, _ in cable)
        }

    def end(self, name: str, line: str, *, switch: bool) -> None:
        (self.switches if switch else self.adapters).add(name)
        if not switch and "Aggregation Node" in line:
            self.dropped.add(name)

    def port(self, line: str, words: list[str]) -> None:
        texts = line.split("'")[1::2]
        self.end(words[3], texts[0], switch=words[0] == "SW")
        if words[6:7] == ["-"]:
            self.end(words[10], texts[1], switch=words[7] == "SW")
            self.cable((words[3], words[2]), (words[10], words[9]), words[4] + words[5])

    def cable(self, one: tuple[str, str], other: tuple[str, str], line: str) -> None:
        rates = [word for word in line.rsplit('"', 1)[-1].split() if "DR" in word and word[0].isdigit()]
        self.cables.setdefault(frozenset({one, other}), set()).update(rates)

    def rates(self) -> Counter[float]:
        lanes = {"SDR": 2.5, "DDR": 5, "QDR": 10, "FDR10": 10, "FDR": 14, "EDR": 25, "HDR": 50, "NDR": 100, "XDR": 200}
        words = ([word.split("x") for word in rates] for rates in self.cables.values())
        return Counter(min((int(width) * lanes[speed] for width, speed in ends), default=0.0) for ends in words)


@pytest.mark.parametrize("path", FABRICS, ids=lambda path: path.name)
def test_real_fabrics_are_read_as_they_are(path: Path) -> None:
    text = content(path)
    counted = Counted(text)
    found = read(text, path.name)
    assert len(found.switches) == len(counted.switches)
    assert sum(len(host.guids) for host in found.hosts) == len(counted.adapters)
    assert len(found.cables) == len(counted.cables)
    assert len({switch.id for switch in found.switches} | {host.id for host in found.hosts}) == len(found.switches) + len(
        found.hosts
    )
    ends = {end for cable in found.cables for end in (cable.a, cable.b)}
    assert ends <= {switch.id for switch in found.switches} | {host.id for host in found.hosts}
    assert not any("Aggregation" in host.name for host in found.hosts)
    assert Counter(cable.gbps for cable in found.cables) == counted.rates()
    assert len(found.problems) <= PROBLEMS_MAX


def test_the_real_map_names_the_hosts_of_its_fabric() -> None:
    folder = shared("ibnetdiscover")
    guids = read_host_guids(content(folder / "hdr-3level-faked-superbench.host-guids.txt"), "map")
    named = apply_host_guids(read(content(folder / "hdr-3level-faked-superbench.txt"), "f"), guids)
    listed = content(folder / "hdr-3level-faked-superbench.hostfile").split()
    assert sorted(host.name for host in named.hosts) == sorted(listed)


@pytest.mark.parametrize("path", FABRICS, ids=lambda path: path.name)
def test_the_short_way_through_a_link_says_what_the_long_one_says(path: Path) -> None:
    for line in (*content(path).splitlines(), *PLAIN.splitlines()):
        assert ib_lines.parse_link(line.rstrip()) == ib_lines._parse_any_link(line.rstrip())


@pytest.mark.parametrize("path", OTHERS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_real_outputs_of_other_tools_are_refused(path: Path) -> None:
    text = content(path)
    with pytest.raises(ReaderError) as caught:
        read(text, path.name)
    why = caught.value.problem.why
    assert ("the tool failed" in why) is bool(re.search(r"iberror|ibpanic|can't read ABI", text)), str(caught.value)
