"""Readers of `nvidia-smi -q` and of NCCL topologies raise nothing but their own error, and end soon, whatever they are given."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fmproto.dumptext import PROBLEMS_MAX, Problems, ReaderError, decode
from fmsched.model.hardware import GpuSpec, HcaSpec, Node, NodeShape
from fmsched.topology.export_nccl import write
from fmsched.topology.readers import nccl_topo, smi_query
from fmsched.topology.readers.found import NodeFound

Reader = Callable[[str, str], NodeFound]
READERS = [smi_query.read, nccl_topo.read]
SECONDS_MAX = 10.0  # of one hostile file of about 1 MB, on a slow machine
SETTINGS = settings(max_examples=150, deadline=5000, suppress_health_check=[HealthCheck.too_slow])

SMI_TEXT = """
==============NVSMI LOG==============

Driver Version                            : 555.42.06
Attached GPUs                             : 2
GPU 00000000:3A:00.0
    Product Name                          : NVIDIA H100 80GB HBM3
    MIG Mode
        Current                           : Enabled
    MIG Device
        Index                             : 0
        Device Attributes
            Shared
                Multiprocessor count      : 60
        Shared FB Memory Usage
            Total                         : 40448 MiB
    GPU UUID                              : GPU-1
    FB Memory Usage
        Total                             : 81559 MiB
    ECC Errors
        Volatile
            DRAM Uncorrectable            : 4
    Fabric
        State                             : Completed
        Status                            : Success
    Processes                             : None

GPU 00000000:4B:00.0
    Product Name                          : ERR!
    Processes                             : None
"""
SMI_XML = """<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v13.dtd">
<nvidia_smi_log>
  <driver_version>580.1</driver_version>
  <attached_gpus>1</attached_gpus>
  <gpu id="00000000:8F:00.0">
    <product_name>NVIDIA B200</product_name>
    <mig_mode><current_mig>Disabled</current_mig></mig_mode>
    <mig_devices><mig_device><index>0</index></mig_device></mig_devices>
    <fb_memory_usage><total>183359 MiB</total></fb_memory_usage>
    <ecc_errors><volatile><dram_uncorrectable>5</dram_uncorrectable></volatile></ecc_errors>
  </gpu>
</nvidia_smi_log>
"""
TOPOLOGY = """<!-- by hand -->
<system version="1">
  <cpu numaid="0" affinity="000000ff" arch="x86_64">
    <pci busid="0000:01:00.0" class="0x060400" link_speed="" link_width="0">
      <pci busid="0000:02:00.0" class="0x030200" vendor="0x10de" device="0x2330">
        <gpu dev="0" sm="90" rank="0" gdr="1"><nvlink target="0000:03:00.0" count="4" tclass="0x030200"/></gpu>
      </pci>
      <pci busid="0000:03:00.0" class="0x030200"><gpu dev="1"><nvlink target="0000:02:00.0" count="4" tclass="0x030200"/></gpu></pci>
      <pci busid="0000:04:00.0" class="0x020700"><nic><net name="mlx5_0" port="1" speed="400000" guid="0x1"/></nic></pci>
    </pci>
  </cpu>
</system>
"""
DUMPS = [SMI_TEXT, SMI_XML, TOPOLOGY]
PIECES = [
    "\x00", "\x1b[31m", "\x1b]", "\ufeff", "\r", "\n", "\t", "<", ">", "</", "<!--", "-->", "<![CDATA[", "<!DOCTYPE x [", "]>", "&a;",
    "&#0;", "&#x110000;", '"', "'", " : ", "GPU 00000000:01:00.0\n", "GPU 0:0:0", "    MIG Device\n", "ERR!", "GPU is lost", "N/A",
    "9" * 50, "-1",
    "<gpu>", "</gpu>", '<pci busid="0000:02:00.0">', "<gpu dev=\"99999999999\">", "<system>", "<cpu numaid='-5' affinity='x,y'>",
    "\ud7ff", "\uff11",
]  # fmt: skip


def survives(read: Reader, text: str) -> None:
    try:
        found = read(text, "f")
    except ReaderError:
        return
    assert found.gpus or found.ports
    assert [gpu.index for gpu in found.gpus] == sorted({gpu.index for gpu in found.gpus})
    indices = {gpu.index for gpu in found.gpus}
    assert all({link.a, link.b} <= indices and link.a < link.b and link.links > 0 for link in found.nvlinks)
    assert all(set(port.near) <= indices and port.rate_gbps >= 0 for port in found.ports)
    assert all(gpu.memory_mib >= 0 for gpu in found.gpus)
    assert len(found.problems) <= PROBLEMS_MAX + 1


@pytest.mark.parametrize("read", READERS)
@given(raw=st.binary(max_size=400))
@SETTINGS
def test_bytes(read: Reader, raw: bytes) -> None:
    survives(read, decode(raw, Problems("f")))


@pytest.mark.parametrize("read", READERS)
@given(text=st.lists(st.sampled_from(PIECES) | st.text(max_size=5), max_size=60).map("".join))
@SETTINGS
def test_pieces(read: Reader, text: str) -> None:
    survives(read, text)


@st.composite
def mutated(draw: st.DrawFn) -> str:
    """A dump with pieces cut out, doubled, moved and put in."""
    text = draw(st.sampled_from(DUMPS))
    for _ in range(draw(st.integers(1, 8))):
        a, b = sorted((draw(st.integers(0, len(text))), draw(st.integers(0, len(text)))))
        how = draw(st.sampled_from(["cut", "keep", "double", "put", "swap", "number"]))
        piece = draw(st.sampled_from(PIECES))
        if how == "cut":
            text = text[:a] + text[min(b, a + 40) :]
        elif how == "keep":
            text = text[: max(b, 50)]
        elif how == "double":
            text = text[:b] + text[a:b] + text[b:]
        elif how == "swap":
            text = text[b:] + text[:b]
        elif how == "number":
            text = text.replace(
                draw(st.sampled_from("0123456789")), draw(st.sampled_from(["", "-", "x", "99999999", "1.5"])), 3
            )
        else:
            text = text[:a] + piece + text[a:]
    return text


@pytest.mark.parametrize("read", READERS)
@given(text=mutated())
@SETTINGS
def test_mutated_dumps(read: Reader, text: str) -> None:
    survives(read, text)


@given(at=st.integers(0, len(SMI_XML)))
@SETTINGS
def test_a_cut_never_loses_a_whole_gpu(at: int) -> None:
    text = SMI_XML.replace(
        "</gpu>\n", "</gpu>\n" + SMI_XML[SMI_XML.index("  <gpu") : SMI_XML.index("</gpu>")].replace("8F", "90")
    )[: at + 600]
    whole = text.count("</gpu>")
    if whole:
        assert [gpu.memory_mib for gpu in smi_query.read(text, "f").gpus][:whole] == [183359] * whole


MEGABYTE = 1 << 20
NEST = "<a>" * (MEGABYTE // 3)
HOSTILE = {
    "one line": "x" * MEGABYTE,
    "one line of a field": SMI_TEXT + "    Product Brand : " + "x" * MEGABYTE,
    "one line of blanks": SMI_TEXT + " " * MEGABYTE,
    "blanks in a tag": "<system" + " " * MEGABYTE,
    "blanks after an attribute": '<system version="1"' + " " * MEGABYTE + "x",
    "newlines": "\n" * MEGABYTE,
    "tabs and newlines": "\t\n" * (MEGABYTE // 2),
    "fields": SMI_TEXT + "".join(f"    F{i} : {i}\n" for i in range(60_000)),
    "columns": "|   " * (MEGABYTE // 4),
    "empty gpus": "GPU 0:0:0\n" * (MEGABYTE // 10),
    "strays": TOPOLOGY + "</a>" * (MEGABYTE // 4),
    "empty comments": "<!---->" * (MEGABYTE // 7),
    "NULs": "\x00" * MEGABYTE,
    "escapes": "\x1b[" * (MEGABYTE // 2),
    "titles without brackets": "\x1b]" * (MEGABYTE // 2),
    "open tags": TOPOLOGY.replace("</system>", NEST),
    "open gpus": "<nvidia_smi_log>" + "<gpu id='a'>" * (MEGABYTE // 12),
    "many gpus": "".join(
        f"GPU 00000000:{i % 256:02X}:{i // 256 % 32:02X}.{i % 8}\n    Product Name : x\n" for i in range(20_000)
    ),
    "many pci": "<system><cpu>"
    + "".join(f"<pci busid='{i:04x}:00:00.0' class='0x03'/>" for i in range(20_000))
    + "</cpu></system>",
    "many nets": "<system><cpu><nic>" + "".join(f"<net name='n{i}'/>" for i in range(30_000)) + "</nic></cpu></system>",
    "many links": TOPOLOGY.replace("</gpu>", "<nvlink target='0000:02:00.0' count='1'/>" * 20_000 + "</gpu>", 1),
    "less-than signs": "<system>" + "<" * MEGABYTE,
    "ends of tags": "<system>" + "</" * (MEGABYTE // 2),
    "open quotes": "<system>" + '<a b="' * (MEGABYTE // 6),
    "open comments": "<system>" + "<!--" * (MEGABYTE // 4),
    "open instructions": "<system>" + "<?" * (MEGABYTE // 2),
    "open sections": "<system>" + "<![CDATA[" * (MEGABYTE // 9),
    "declarations": "<!DOCTYPE a [" * (MEGABYTE // 13),
    "quotes in declarations": '<!DOCTYPE a "' * (MEGABYTE // 13),
    "references": "<system>" + "&lol;" * (MEGABYTE // 5),
    "ampersands": "<system>" + "&" * MEGABYTE,
    "deep indentation": SMI_TEXT + "".join(" " * (i % 2000) + f"T{i}\n" for i in range(1000)),
    "affinity": f"<system><cpu affinity='{'f,' * 2000}f'>" + TOPOLOGY,
    "device handles": "Unable to determine the device handle for GPU " * (MEGABYTE // 46),
    "device handles by line": SMI_TEXT
    + "Unable to determine the device handle for GPU 0000:01:00.0: x\n" * (MEGABYTE // 62),
    "entities": "<!DOCTYPE a ["
    + "".join(f'<!ENTITY l{i} "{f"&l{i - 1};" * 10}">' for i in range(1, 30))
    + "]><system><cpu><pci class='&l29;'>"
    + "&l29;" * 1000,
    "colons": SMI_TEXT + " : " * (MEGABYTE // 3),
}


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("name", HOSTILE)
def test_a_megabyte_of_anything_ends_soon(read: Reader, name: str) -> None:
    started = time.process_time()
    survives(read, HOSTILE[name])
    assert time.process_time() - started < SECONDS_MAX


@st.composite
def shapes(draw: st.DrawFn) -> Node:
    """Nodes whose sets of near GPUs nest: slices of halves."""
    size = draw(st.integers(1, 16))
    sets = (
        [tuple(range(size))] + [tuple(range(i, min(size, i + n))) for n in (8, 4, 2, 1) for i in range(0, size, n)] + [()]
    )
    hcas = tuple(
        HcaSpec(f"mlx5_{i}", 1, draw(st.integers(0, 800)), near)
        for i, near in enumerate(draw(st.lists(st.sampled_from(sets))))
    )
    cells = {(i, j): float(draw(st.sampled_from([0, 0, 50, 100, 900]))) for i in range(size) for j in range(i)}
    matrix = tuple(tuple(cells.get((max(i, j), min(i, j)), 0.0) for j in range(size)) for i in range(size))
    shape = NodeShape("t", (GpuSpec("H100-SXM5-80GB", "h100", 80.0),) * size, matrix, hcas, draw(st.integers(0, 300)))
    return Node("n", shape, ("u",) * size)


@given(node=shapes())
@SETTINGS
def test_what_is_written_reads_back(node: Node) -> None:
    found = nccl_topo.read(write(node), "f")
    assert [p for p in found.problems if "the fewer count" not in p.why] == []  # one GPU may have fewer links to the switch
    assert len(found.gpus) == len(node.shape.gpus)
    assert {port.hca: (port.near, port.rate_gbps) for port in found.ports} == {
        h.name: (h.near, h.rate_gbps) for h in node.shape.hcas
    }
    links = {
        (i, j): round(cell / 50) for i, row in enumerate(node.shape.nvlink) for j, cell in enumerate(row) if i < j and cell
    }
    assert {(link.a, link.b): link.links for link in found.nvlinks} == links
