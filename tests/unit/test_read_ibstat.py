"""ibstat and ibstatus: every oddity in a small text, and every file of the collection against a naive reading of its own text."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import pytest

from fmproto.dumptext import ReaderError
from fmproto.ibstat import PORTS_MAX, Port, parse_ibstat, read_ibstat
from fmsched.topology.readers.ibstat import read
from tests.support.shared_data import files

ONE = """CA 'mlx5_3'
\tCA type: MT4129
\tNumber of ports: 1
\tFirmware version: 28.40.1000
\tHardware version: b0
\tNode GUID: 0xa088c2030012ab34
\tSystem image GUID: 0xa088c2030012ab30
\tPort 1:
\t\tState: Active
\t\tPhysical state: LinkUp
\t\tRate: 400
\t\tBase lid: 612
\t\tLMC: 1
\t\tSM lid: 7
\t\tCapability mask: 0xa751e848
\t\tPort GUID: 0xa088c2030012ab35
\t\tLink layer: InfiniBand
"""
PORT = Port(
    hca="mlx5_3",
    port=1,
    state="Active",
    physical_state="LinkUp",
    rate_gbps=400.0,
    link_layer="InfiniBand",
    port_guid="0xa088c2030012ab35",
    node_guid="0xa088c2030012ab34",
    system_guid="0xa088c2030012ab30",
    hca_type="MT4129",
    firmware="28.40.1000",
    hardware="b0",
    lid=612,
    lmc=1,
    sm_lid=7,
)


def one(text: str) -> Port:
    ports, problems = parse_ibstat(text)
    assert not problems
    (port,) = ports
    return port


def whys(text: str) -> list[str]:
    return [str(problem) for problem in parse_ibstat(text)[1]]


# --- the parser


def test_every_field() -> None:
    assert one(ONE) == PORT


@pytest.mark.parametrize(
    "text",
    [
        re.sub(r"^\s+", "", ONE, flags=re.MULTILINE),
        ONE.replace("\t", "        "),
        ONE.replace("\n", "\r\n"),
        "\ufeff" + ONE,
        "\x1b[32m[root@gpu7 ~]# ibstat\x1b[0m\n" + ONE + "[root@gpu7 ~]# \n",
        ONE.replace("CA 'mlx5_3'", "CA: 'mlx5_3'"),
        ONE.replace("\t\tState", "ibwarn: [77] umad_get_port: umad_get_port\n\t\tState"),
        "ibwarn: [77] umad_init: umad_init\n" + ONE + "ibwarn: [77] umad_done: umad_done\n",
        ONE.replace("\n", "\n\n"),
    ],
    ids=["no indentation", "blanks", "CRLF", "BOM", "prompt", "colon", "debug line", "debug lines", "empty lines"],
)
def test_the_same_port_in_other_clothes(text: str) -> None:
    assert one(text) == PORT


def test_the_form_for_one_port_joins_the_form_without_ports() -> None:
    adapter = "CA 'qib0'\n CA type: InfiniPath\n Number of ports: 1\n Node GUID: 0x11\n"
    port = one(adapter + "===\nCA: 'qib0'\nPort 1:\nState: Armed\nPhysical state: LinkErrorRecovery\nPort GUID: 0x12\n")
    assert (port.hca_type, port.node_guid, port.port_guid) == ("InfiniPath", "0x0000000000000011", "0x0000000000000012")
    assert (port.state, port.physical_state, port.link_layer) == ("Armed", "LinkErrorRecovery", "")


@pytest.mark.parametrize(
    ("rate", "gbps"),
    [("2", 2.0), ("2.5", 2.5), ("56", 56.0), ("400 Gb/sec (4X NDR)", 400.0), ("800", 800.0), ("10 (FDR10)", 10.0)],
)
def test_rates(rate: str, gbps: float) -> None:
    assert one(ONE.replace("Rate: 400", f"Rate: {rate}")).rate_gbps == gbps


def test_states_stay_as_they_are_however_odd() -> None:
    text = ONE.replace("State: Active", "State: Down").replace("lid: 612", "lid: 65535").replace("InfiniBand", "Ethernet")
    port = one(text)
    assert (port.state, port.physical_state, port.lid, port.rate_gbps, port.link_layer) == (
        "Down",
        "LinkUp",
        65535,
        400.0,
        "Ethernet",
    )
    assert one(ONE.replace("Base lid: 612", "Base lid: ")).lid == 0
    assert one(ONE.replace("Base lid: 612", "Base lid: 0x264")).lid == 612


@pytest.mark.parametrize(("said", "layer"), [("IB", "InfiniBand"), ("Ethernet", "Ethernet"), ("Unknown", "Unknown")])
def test_link_layers(said: str, layer: str) -> None:
    assert one(ONE.replace("Link layer: InfiniBand", f"Link layer: {said}")).link_layer == layer
    assert one(ONE[: ONE.index("\t\tLink layer")]).link_layer == ""


@pytest.mark.parametrize(
    ("guid", "read_as"),
    [
        ("0x2c9030012ab34", "0x0002c9030012ab34"),
        ("A088C2030012AB34", "0xa088c2030012ab34"),
        ("a088:c203:0012:ab34", "0xa088c2030012ab34"),
        ("0x0000000000000000", ""),
    ],
)
def test_guids_of_every_spelling(guid: str, read_as: str) -> None:
    assert one(ONE.replace("Node GUID: 0xa088c2030012ab34", f"Node GUID: {guid}")).node_guid == read_as


def test_what_is_no_value_is_set_aside_and_the_port_stays() -> None:
    text = ONE.replace("0xa088c2030012ab35", "<redacted>").replace("Rate: 400", "Rate: fast").replace("LMC: 1", "LMC: one")
    ports, problems = parse_ibstat(text, "dump.txt")
    assert (ports[0].port_guid, ports[0].rate_gbps, ports[0].lmc, ports[0].lid) == ("", 0.0, 0, 612)
    assert [(problem.file, problem.line) for problem in problems] == [("dump.txt", 11), ("dump.txt", 13), ("dump.txt", 16)]


def test_a_cut_text_keeps_what_it_has() -> None:
    cut = ONE[: ONE.index("\t\tBase lid")]
    found = read_ibstat(cut)
    assert [(port.state, port.rate_gbps) for port in found.ports] == [("Active", 400.0)]
    assert not found.complete
    assert whys(cut) == ["ibstat:8: mlx5_3 port 1: the text has no port guid for it; what it has is kept"]
    assert "no state" in whys(ONE[: ONE.index("\t\tState")])[0]
    assert whys(ONE[: ONE.index("\tPort 1")]) == ["ibstat:1: mlx5_3: says that it has 1 ports; the text shows 0"]


def test_a_tool_that_fails_half_way() -> None:
    found = read_ibstat(ONE + "ibpanic: [9] main: stat of IB device 'mlx5_4' failed: Invalid argument\n")
    assert [port.hca for port in found.ports] == ["mlx5_3"]
    assert not found.complete
    assert found.failed.startswith("ibpanic: [9] main: stat")
    assert len(found.problems) == 1


def test_two_nodes_in_one_text_and_impossible_ports() -> None:
    other = ONE.replace("State: Active", "State: Down")
    assert parse_ibstat(ONE + other)[0] == (PORT,)
    assert whys(ONE + other) == [
        "ibstat:25: mlx5_3 port 1: given twice, first in line 8; the first is kept (one file a node)"
    ]
    assert "allowed: 1 to 254" in whys(ONE.replace("Port 1:", "Port 255:"))[0]


def test_switches_and_routers_are_no_adapters_of_the_host() -> None:
    switch = "Switch 'is5_0'\n\tSwitch type: MT48438\n\tNumber of ports: 0\n\tPort 0:\n\t\tState: Active\n"
    ports, problems = parse_ibstat(switch + ONE)
    assert ports == (PORT,)
    assert [problem.what for problem in problems] == ["Switch 'is5_0'"]
    assert one(ONE.replace("CA 'mlx5_3'", "RNIC 'mlx5_3'")) == PORT


def test_ports_are_bounded() -> None:
    text = "".join(f"CA 'x{i}'\nPort 1:\nState: Active\nPort GUID: 0x1\n" for i in range(PORTS_MAX + 5))
    ports, problems = parse_ibstat(text)
    assert len(ports) == PORTS_MAX
    assert len(problems) == 5


def test_ibstatus() -> None:
    text = (
        "Infiniband device 'mlx5_7' port 2 status:\n\tdefault gid:\t fe80:0000:0000:0000:a088:c203:0012:ab35\n\tbase lid:\t 0x2a\n"
        "\tsm lid:\t\t 0x1\n\tstate:\t\t 2: INIT\n\tphys state:\t 5: LinkUp\n\trate:\t\t 200 Gb/sec (4X HDR)\n\tlink_layer:\t InfiniBand\n"
    )
    assert one(text) == Port(
        "mlx5_7", 2, "Initializing", "LinkUp", 200.0, "InfiniBand", port_guid="0xa088c2030012ab35", lid=42, sm_lid=1
    )
    assert not read_ibstat(text[: text.index("\tlink_layer")]).complete


def test_nothing_is_no_adapter_and_no_problem() -> None:
    assert parse_ibstat("") == ((), ())


# --- the reader


def test_a_node_of_its_ports() -> None:
    found = read(ONE, "n7.txt")
    assert (found.kind, found.file, found.name, found.complete, found.problems) == ("ibstat", "n7.txt", "", True, ())
    (port,) = found.ports
    assert (port.hca, port.port, port.state, port.rate_gbps, port.lid, port.hca_type) == (
        "mlx5_3",
        1,
        "Active",
        400.0,
        612,
        "MT4129",
    )
    assert (port.port_guid, port.node_guid, port.firmware) == ("0xa088c2030012ab35", "0xa088c2030012ab34", "28.40.1000")


def test_a_name_before_each_line_is_the_hosts() -> None:
    prefixed = "".join(f"gpu-7.cluster: {line}\n" for line in ONE.splitlines())
    assert read(prefixed, "f").ports == read(ONE, "f").ports
    assert read(prefixed, "f").name == "gpu-7.cluster"
    with pytest.raises(ReaderError, match=r"the output of 2 hosts \(gpu-7.cluster, gpu-8\); allowed: one host a file"):
        read(prefixed + "gpu-8: CA 'mlx5_0'\n", "f")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no adapter: ibstat prints nothing where there is none"),
        ("\n \x00\n", "no adapter: ibstat prints nothing where there is none"),
        ("CA 'a'\n\tCA type: MT1\n\tNumber of ports: 1\n", "1 adapters without their ports (a): ibstat -s prints no ports"),
        ("mlx5_0\nmlx5_1\n", "names of adapters only (ibstat -l)"),
        ("0x0002c90300a1b2c3\n0x0002c90300a1b2c4\n", "GUIDs of ports only (ibstat -p)"),
        ("ibpanic: [5] main: can't init UMAD library: (No such file or directory)\n", "the tool failed (ibpanic: [5] main"),
        ("ibwarn: [5] mad_rpc_open_port: client_register for mgmt 1 failed\n", "the tool failed (ibwarn: [5]"),
        ("bash: ibstat: command not found\n", "the tool failed (bash: ibstat: command not found)"),
        ("Ca\t: 0x0002c90300a1b2c3 ports 1 \"host HCA-1\"\n", "list of ibhosts"),
        ("vendid=0x2c9\nCa\t1 \"H-0002c90300a1b2c3\"\n", "ibnetdiscover"),
        ("NodeRecord dump:\n\tlid: 1\n", "saquery"),
        ("hca_id:\tmlx5_0\n\ttransport: InfiniBand (0)\n", "ibv_devinfo"),
        ("/sys/class/infiniband/mlx5_0/ports/1/state\t4: ACTIVE\n", "listing of /sys/class/infiniband"),
        ("Fatal error:  device '*': sys files not found (/sys/class/infiniband/*/ports)\n", "the tool failed (Fatal error:"),
        ("sminfo: sm lid 1 sm guid 0x2c90300a1b2c3, activity count 7 priority 0 state 3 SMINFO_MASTER\n", "sminfo"),
        ("CA: gpu7 mlx5_0:\n  0x0002c90300a1b2c3  4  1[  ] ==( 4X 53.125 Gbps Active/  LinkUp)==>  2  1[  ] \"leaf\" ( )\n", "iblinkinfo"),
        ("Switch 'a'\n\tPort 0:\n", "ibstat"),
        ("hello\n", "found no adapter"),
    ],
)  # fmt: skip
def test_what_has_no_port_is_refused_by_its_reason(text: str, why: str) -> None:
    with pytest.raises(ReaderError) as caught:
        read(text, "f")
    assert why in str(caught.value)


# --- the collection

REFUSED = {
    "error-no-device-umad-init.txt": "can't init UMAD library",
    "ibhosts-error-mad-port.txt": "can't open MAD port",
    "sminfo-saquery-permission-errors.txt": "sminfo: iberror",
    "sysfs-class-infiniband-h100-9dev.tsv": "listing of /sys/class/infiniband",
}
SAID = {"state", "physical state", "phys state", "rate", "base lid", "port guid", "link layer", "link_layer"}


def naive_ports(text: str) -> list[tuple[str, int, dict[str, str]]]:
    """(adapter, port, its fields in small letters), line by line."""
    found: list[tuple[str, int, dict[str, str]]] = []
    hca = ""
    for raw in text.splitlines():
        line = raw.strip()
        if match := re.match(r"Infiniband device '(.+)' port (\d+)", line):
            found.append((match[1], int(match[2]), {}))
        elif line.startswith("CA") and "'" in line:
            hca = line.split("'")[1]
        elif match := re.match(r"Port (\d+):", line):
            found.append((hca, int(match[1]), {}))
        elif found and ": " in line and line.split(":")[0].lower() in SAID:
            name, _, value = line.partition(":")
            found[-1][2][name.lower()] = value.strip()
    return found


@pytest.mark.parametrize("path", files("ibstat"), ids=lambda path: path.name)
def test_every_file_is_read_right_or_refused_for_the_right_reason(path: Path) -> None:
    text = path.read_text()
    if path.name in REFUSED:
        with pytest.raises(ReaderError, match=re.escape(REFUSED[path.name])):
            read(text, path.name)
        return
    found = read(text, path.name)
    naive = naive_ports(text)
    assert [(port.hca, port.port) for port in found.ports] == [(hca, port) for hca, port, _ in naive]
    for port, (_, _, said) in zip(found.ports, naive, strict=True):
        state = said.get("state", "")
        assert port.state == {"4: ACTIVE": "Active"}.get(state, state)
        assert port.physical_state == (said.get("physical state") or said.get("phys state", "").partition(": ")[2])
        assert port.rate_gbps == float(said.get("rate", "0").split()[0])
        assert port.lid == int(said.get("base lid", "0"), 0)
        assert port.link_layer == (said.get("link layer") or said.get("link_layer", ""))
        guid = said.get("port guid", "")
        assert not guid or port.port_guid == (guid if re.fullmatch("0x[0-9a-f]{16}", guid) and int(guid, 16) else "")
    types = re.findall(r"CA type: (\S+)", text)
    assert {port.hca_type for port in found.ports} - {""} == set(types)
    redacted = text.count("GUID: /*")
    whole = path.name not in ("ibstat-s-and-port-forms-mlx4.txt", "mlx4-2port-umad-debug-lines.txt")
    assert found.complete == whole
    assert len(found.problems) == redacted + (not whole)


OTHERS = [path for folder in ("topo_m", "nvsmi", "slurm_topology", "ibnetdiscover", "nccl_xml") for path in files(folder)]


@pytest.mark.parametrize("path", OTHERS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_files_of_other_kinds_are_refused(path: Path) -> None:
    content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    with pytest.raises(
        ReaderError, match=r"no text of ibstat; this looks like: (?!text of ibstat)|found no adapter|the tool failed"
    ):
        read(content.decode("utf-8", errors="replace"), path.name)


def test_a_mails_quotation_marks_are_no_part_of_a_line() -> None:
    text = (
        "CA 'mlx5_3'\n\tCA type: MT4115\n\tPort 1:\n\t\tState: Active\n\t\tRate: 100\n\t\tPort GUID: 0xec0d9a0300aabbcc\n"
    )
    quoted = "".join(f">>> {line.strip()}\n" for line in text.splitlines())
    assert parse_ibstat(quoted) == parse_ibstat(text)
    assert one(quoted).rate_gbps == 100


@pytest.mark.parametrize("cut", ["State: Ac", "Rate: 20", "Port GUID: 0x1c918e", "Link layer: Infi"])
def test_a_value_that_the_text_ends_in_may_go_on_and_is_left_out(cut: str) -> None:
    ports, problems = parse_ibstat("CA 'mlx5_3'\n\tPort 1:\n\t\t" + cut)
    assert (ports[0].state, ports[0].rate_gbps, ports[0].port_guid, ports[0].link_layer) == ("", 0, "", "")
    assert any("the text ends within this line" in problem.why for problem in problems)


def test_a_value_that_is_whole_stands_though_the_last_line_has_no_end() -> None:
    ports, _ = parse_ibstat("CA 'mlx5_3'\nPort 1:\nState: Down\nPort GUID: 0xec0d9a0300aabbcc\nLink layer: Ethernet")
    assert (ports[0].port_guid, ports[0].link_layer) == ("0xec0d9a0300aabbcc", "Ethernet")
