"""Whatever the text, the readers of Slurm's files, Topograph's and ibstat raise nothing but ReaderError, and end soon."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fmproto.dumptext import Problem, ReaderError
from fmproto.ibstat import parse_ibstat
from fmsched.topology.readers import ibstat, slurm_topology, topograph
from fmsched.topology.readers.found import FabricFound, NodeFound

Reader = Callable[[str, str], FabricFound | NodeFound]

READERS: tuple[Reader, ...] = (slurm_topology.read, topograph.read, ibstat.read)
LONG = 1 << 20
SECONDS_MAX = 20.0  # most end within one; the rest is for a machine that others use too

WORDS = st.sampled_from(
    [
        "SwitchName=", "switchname = ", "BlockName=", "BlockSizes=", "Nodes=", "Switches=", "LinkSpeed=", "Level=", "AggregatedBlock=",
        "s1", "s2", "s[1-3]", "n[1-2]x[3-4]", "n[1-99999999]", "n[3-1]", "n[", "]", ",", "\\", "#", "# s1=real", '"', "=", " ", "\n", "\t",
        "0x0002c90300a1b2c3", "- topology: t\n", "  tree:\n", "    switches:\n", "      - switch: s1\n", "        nodes: n[1-2]\n",
        "        children: s[2-3]\n", "  block:\n", "    blocks:\n", "  flat: true\n", "cluster_default: true\n", "---\n", "switches:\n",
        "  a:\n", "blocks:\n", "- nodes: [x]\n", "  switch: a\n", "capacity_blocks:\n", "nodes:\n", "annotations: {nvlink: 1}\n",
        "&a ", "*a ",
        "CA 'mlx5_0'\n", "CA: 'mlx5_1'\n", "Port 1:\n", "Port 999:\n", "State: Active\n", "Physical state: LinkUp\n", "Rate: 400\n",
        "Rate: x\n", "Base lid: 65535\n", "Port GUID: 0x\n", "Node GUID: 0x12\n", "Link layer: InfiniBand\n", "ibwarn: [1] x\n",
        "Number of ports: 99999999999\n", "Infiniband device 'a' port 1 status:\n", "rate: 200 Gb/sec\n", "default gid: fe80::1\n",
        "\x00", "\x1b[31m", "\ufeff", "\r", "\ud800", "½", "٣", "²",
    ]
)  # fmt: skip
TEXTS = st.lists(WORDS | st.text(max_size=8), max_size=60).map("".join)


@settings(max_examples=1500, deadline=None)
@given(TEXTS)
def test_nothing_but_reader_errors(text: str) -> None:
    for read in READERS:
        found = _read(read, text)
        if isinstance(found, Problem):
            assert found.why
            assert found.file == "hostile"
        else:
            _is_sound(found)
    parse_ibstat(text)


def _read(read: Reader, text: str) -> FabricFound | NodeFound | Problem:
    """What was found, or why the text was refused; any other error is the test's."""
    try:
        return read(text, "hostile")
    except ReaderError as error:
        return error.problem


def _is_sound(found: FabricFound | NodeFound) -> None:
    if isinstance(found, NodeFound):
        assert len({(port.hca, port.port) for port in found.ports}) == len(found.ports) > 0
        return
    ids = [switch.id for switch in found.switches] + [host.id for host in found.hosts]
    known = set(ids)
    assert len(known) == len(ids) > 0
    ends = [frozenset((cable.a, cable.b)) for cable in found.cables]
    assert all(len(pair) == 2 and pair <= known for pair in ends)
    assert len(set(ends)) == len(ends)


HOSTILE: dict[str, Callable[[], str]] = {
    "one character": lambda: "a" * LONG,
    "NULs": lambda: "\0" * LONG,
    "blanks": lambda: "SwitchName=s" + " " * LONG,
    "escapes": lambda: "\x1b[" * (LONG // 2),
    "comma list": lambda: "SwitchName=s Nodes=" + "a," * (LONG // 2),
    "open brackets": lambda: "SwitchName=s Nodes=" + "[" * LONG,
    "product of brackets": lambda: "SwitchName=s Nodes=" + "n[1-2]" * (LONG // 6),
    "hostlist bombs": lambda: "SwitchName=s Nodes=n[1-99999999]\n" * 30_000,
    "bombs below the limit": lambda: "SwitchName=s Nodes=n[1-400][1-400],]\n" * 20_000,
    "equals signs": lambda: "SwitchName=s " + "=" * LONG,
    "open quotes": lambda: "SwitchName=s " + 'k="x ' * (LONG // 5),
    "continued lines": lambda: "SwitchName=a Nodes=b\\\n" * (LONG // 22),
    "all over all": lambda: "".join(f"SwitchName=s{i} Nodes=n[1-60] Switches=s[0-499]\n" for i in range(500)),
    "a chain": lambda: "".join(f"SwitchName=s{i} Nodes=n{i} Switches=s{i + 1}\n" for i in range(20_000)),
    "deep YAML": lambda: "- topology: " + "[" * LONG,
    "wide YAML": lambda: "- topology: [" + "a," * (LONG // 2) + "]",
    "YAML keys": lambda: "---\n" + "? " * (LONG // 2),
    "YAML aliases": lambda: "switches:\n- &a [x]\n" + "- *a\n" * (LONG // 5),
    "YAML tag": lambda: "- topology: " + "!" * LONG,
    "adapters": lambda: "CA 'a'\n" * (LONG // 7),
    "an adapter's name": lambda: "CA '" + "a" * LONG,
    "ports": lambda: "".join(f"CA 'a{i}'\nPort 1:\nState: Active\n" for i in range(30_000)),
    "long fields": lambda: "CA 'a'\nPort 1:\nState: " + "1" * LONG + "\nRate: " + "9" * LONG + "\nPort GUID: " + ":" * LONG,
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("read", READERS, ids=["slurm-topology", "topograph", "ibstat"])
def test_a_megabyte_of_it_ends_soon(read: Reader, name: str) -> None:
    text = HOSTILE[name]()
    started = time.process_time()
    found = _read(read, text)
    assert time.process_time() - started < SECONDS_MAX
    if isinstance(found, Problem):
        assert len(str(found)) < 1_000
    else:
        _is_sound(found)
        assert all(len(str(problem)) < 1_000 for problem in found.problems)
