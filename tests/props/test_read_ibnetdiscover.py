"""Hostile topology files: the reader answers with a value or its own error, soon, and what it answers holds together."""

from __future__ import annotations

import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fmproto.dumptext import LINE_MAX, PROBLEMS_MAX, ReaderError
from fmsched.topology.readers.found import FabricFound
from fmsched.topology.readers.ib_names import HostGuids, Owner, apply_host_guids, name_hosts, read_host_guids
from fmsched.topology.readers.ibnetdiscover import read

SOON_S = 5.0  # for a megabyte, on a busy machine

IDS = st.sampled_from(
    [
        "S-0a1b2c0300000100",
        "S-0a1b2c0300000200",
        "H-0c0ffee000000011",
        "H-0c0ffee000000012",
        "R-1",
        "Switch1",
        "S-<x>",
        "0x7",
    ]
)
TEXTS = st.one_of(
    st.sampled_from(
        ["n1 mlx5_0", "n1 mlx5_1", "n2 HCA-1", "MF0;leaf:MQM8700/U1", "MF0;core:CS8500/L01/U1", "Mellanox Technologies", ""]
    ),
    st.sampled_from(["Mellanox Technologies Aggregation Node", "localhost mlx5_0", 'a "b" # [1]', "0a1b2c0300000100"]),
    st.text(max_size=12),
)
PORTS = st.integers(0, 4)
RATES = st.sampled_from(["4xHDR", "1xSDR", "4x ???", "12xXDR", "4xEDR s=4 w=2 v=4 e=4", ""])
KINDS = st.sampled_from(["SW", "CA", "RT"])

SW_END = "{ SW Ports:24 NodeGUID:a1 {s} LID:1 PN:02 }"


@st.composite
def lines(draw: st.DrawFn) -> str:
    one, other, near, far = draw(IDS), draw(IDS), draw(PORTS), draw(PORTS)
    text, rate = draw(TEXTS), draw(RATES)
    kind = draw(st.sampled_from(["Switch", "Ca", "Hca", "Rt"]))
    hexes = draw(st.sampled_from(["0x0a1b2c0300000100", "0x0c0ffee000000011", "0x7"]))
    return draw(
        st.sampled_from(
            [
                f'{kind}\t36 "{one}"\t\t# "{text}" enhanced port 0 lid 1 lmc 0',
                f'[{near}]\t"{other}"[{far}]\t\t# "{text}" lid 7 {rate}',
                f'[{near}](c0ffee) \t"{other}"[{far}](ab)\t\t# lid 7 lmc 0 "{text}" lid 8 {rate}',
                f"sysimgguid={hexes}\t\t# Chassis 1 ({text})",
                "Chassis 1 (guid 0x7)", "Non-Chassis Nodes", "# Topology file: again", "ibwarn: [1] x: y", "umad bad status 110",
                f"{draw(KINDS)} 12 {near} {hexes} {rate or '4x ???'} - {draw(KINDS)} 3 {far} 0x0a1b2c0300000200 ( '{text}' - 'l' )",
                f"{draw(KINDS)} 12 {near} {hexes} 4x ???     '{text}'",
                f"{{ CA Ports:01 NodeGUID:{hexes[2:]} {{{text}}} LID:1 PN:0{near} }} {SW_END} PHY=4x LOG=ACT SPD=10",
                text,
            ]
        )
    )  # fmt: skip


def holds(found: FabricFound) -> None:
    ids = [switch.id for switch in found.switches] + [host.id for host in found.hosts]
    assert len(ids) == len(set(ids))
    hosts, names = {host.id for host in found.hosts}, set(ids)
    for cable in found.cables:
        assert {cable.a, cable.b} <= names
        assert cable.a != cable.b
        assert cable.gbps >= 0
        assert cable.hca_port == 0 or cable.b in hosts
    assert len(found.problems) <= PROBLEMS_MAX + 1
    assert all(host.guids for host in found.hosts)


@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(lines(), max_size=24))
def test_any_mixture_of_lines_holds_together(parts: list[str]) -> None:
    try:
        found = read("\n".join(parts), "f")
    except ReaderError:
        return
    holds(found)
    assert read("\n".join(parts) + "\n\n", "f") == found
    guids = {guid: f"host{i % 2}" for i, (_, guid) in enumerate(pair for host in found.hosts for pair in host.guids)}
    holds(apply_host_guids(found, HostGuids("m", guids)))
    holds(name_hosts(found, {guid: Owner(found.switches[0].id if found.switches else "x") for guid in guids}))


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=400))
def test_any_text_is_read_or_refused(text: str) -> None:
    for reader in (read, read_host_guids):
        try:
            reader(text, "f")
        except ReaderError as error:
            assert error.problem.why  # noqa: PT017 - either outcome is allowed


MEGABYTE = 1 << 20
HOSTILE = {
    "blanks before a quote": "Switch" + " " * MEGABYTE,
    "blanks in a link": "[1]" + " " * MEGABYTE + "x",
    "a quote that never closes": 'Switch 8 "S-1" # "' + "a" * MEGABYTE,
    "quotes": 'Switch 8 "S-1" # ' + '"' * MEGABYTE,
    "brackets": "[" * MEGABYTE,
    "deep": "{" * MEGABYTE,
    "half of an lst line": ("{ CA Ports:01 " + "a" * 200) * 5000,
    "lst line without an end": "{ CA Ports:01 " + "a" * MEGABYTE,
    "many short ports": "SW 1 1 0x1 4x EDR - CA 1 1 0x2 ( 'a' - 'b' )\n" * 20_000,
    "separators": "SW 1 1 0x1 4x EDR - CA 1 1 0x2 (" + " - " * 300_000,
    "NULs": "\x00" * MEGABYTE,
    "escapes": "\x1b[" * (MEGABYTE // 2),
    "host words": "host " * 200_000 + "\u00a0",
    "guid labels": "node guid " * 100_000,
    "blanks after host": "host" + " " * MEGABYTE + "\u00a0",
    "hex": "0123456789abcdef" * (MEGABYTE // 16),
    "commas": "0,1," * (MEGABYTE // 4),
    "prompt": "[" + "a" * MEGABYTE + " ibnetdiscover",
    "slots": 'Switch 8 "S-1" # "MF0;' + "/L1" * 300_000,
    "same id": "".join(f'Ca 1 "H-<x>" # "n{i} HCA-1"\n[1] "S-<y>"[{i}] # lid 1 lmc 0 "s{i}" lid 1 4xEDR\n' for i in range(15_000)),
    "ones": 'Switch 8 "S-1" # "x"\n' + '[1] "S-2"[1]\n' * 60_000,
}  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE.values(), ids=list(HOSTILE))
def test_a_megabyte_of_malice_ends_soon(text: str) -> None:
    shapes = [text]
    if "\n" not in text:  # as many lines that are just short enough to be read whole
        shapes.append("\n".join([text[: LINE_MAX - 1]] * 16))
    for shape in shapes:
        for reader in (read, read_host_guids):
            started_s = time.process_time()
            try:
                reader(shape, "f")
            except ReaderError as error:
                assert error.problem.why  # noqa: PT017 - either outcome is allowed
            assert time.process_time() - started_s < SOON_S
