"""Bandwidth between GPUs, and readings made of whatever the reader process says: pure functions."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fmagent.devices.nvml_links import gpu_paths, nvlink_domain, nvlink_pairs, switched
from fmagent.devices.nvml_reading import fabric_health, one_gpu, reading_of
from fmproto.v1 import hardware_pb2 as pb
from tests.support import fake_hardware as hardware

LINK_GBYTES_PER_S = 50.0  # of an H100: 900 over 18


def gpu(index: int, ports: list[tuple[str, str, bool]], **fields: Any) -> pb.Gpu:
    return pb.Gpu(
        index=index,
        uuid=f"GPU-{index}",
        name=hardware.H100.name,
        memory_bytes=hardware.H100.memory_mib << 20,
        pci_address=hardware.address(index + 1),
        nvlink_ports=[
            pb.NvLinkPort(link=link, remote=remote, remote_pci=pci, active=active)
            for link, (remote, pci, active) in enumerate(ports)
        ],
        **fields,
    )


@st.composite
def nodes(draw: st.DrawFn) -> list[pb.Gpu]:
    count = draw(st.integers(1, 6))
    ends = [("gpu", hardware.address(peer + 1)) for peer in range(count)]
    ends += [("switch", hardware.address(0xF0 + switch)) for switch in range(3)]
    port = st.tuples(st.sampled_from(ends), st.booleans())
    gpus = []
    for index in range(count):
        ports = draw(st.lists(port, max_size=8))
        own = hardware.address(index + 1)
        gpus.append(gpu(index, [(*end, active) for end, active in ports if end[1] != own], mig_enabled=draw(st.booleans())))
    return gpus


def slowly(gpus: list[pb.Gpu]) -> dict[tuple[int, int], float]:
    """Pair by pair, by following links from switch to switch."""
    found = {}
    for a in gpus:
        for b in gpus:
            if a.index >= b.index or a.mig_enabled or b.mig_enabled:
                continue
            there = sum(port.active and port.remote_pci == b.pci_address for port in a.nvlink_ports)
            back = sum(port.active and port.remote_pci == a.pci_address for port in b.nvlink_ports)
            links = min(there, back)
            if reaches(a, b, gpus):
                links += min(sum(port.active and port.remote == "switch" for port in end.nvlink_ports) for end in (a, b))
            if links:
                found[a.index, b.index] = links * LINK_GBYTES_PER_S
    return found


def reaches(a: pb.Gpu, b: pb.Gpu, gpus: list[pb.Gpu]) -> bool:
    into = {
        one.index: {port.remote_pci for port in one.nvlink_ports if port.active and port.remote == "switch"}
        for one in gpus
        if not one.mig_enabled
    }
    reached = set(into[a.index])
    for _ in gpus:
        for ends in into.values():
            if ends & reached:
                reached |= ends
    return bool(reached & into[b.index])


@settings(max_examples=150, deadline=None)
@given(nodes())
def test_bandwidth_is_that_of_a_slow_count(gpus: list[pb.Gpu]) -> None:
    assert {(pair.gpu_a, pair.gpu_b): pair.gbytes_per_s for pair in nvlink_pairs(gpus)} == slowly(gpus)


def test_a_switch_that_joins_two_groups_joins_all() -> None:
    assert switched({0: {"a"}, 1: {"b"}, 2: {"a", "b"}, 3: {"c"}, 7: {"c"}}) == {0: 0, 1: 0, 2: 0, 3: 3, 7: 3}


def test_widths_of_the_pci_domain_do_not_matter() -> None:
    a = gpu(0, [("gpu", "0000:02:00.0", True)])
    b = gpu(1, [("gpu", "00000000:01:00.0", True)])
    assert [pair.gbytes_per_s for pair in nvlink_pairs([a, b])] == [50.0]


def test_a_link_to_a_gpu_that_is_not_there_is_no_link_to_a_switch() -> None:
    gone = hardware.address(0x77)
    assert nvlink_pairs([gpu(0, [("gpu", gone, True)]), gpu(1, [("gpu", gone, True)])]) == ()


def test_a_node_whose_gpus_do_not_all_join_is_in_the_domain_of_those_that_do() -> None:
    part = pb.FabricPart(cluster_uuid="c", clique=1, state="completed")
    refused = pb.FabricPart(cluster_uuid="c", clique=3, state="completed", status="NVML_ERROR_UNKNOWN")
    assert nvlink_domain([gpu(0, [], fabric=part), gpu(1, [], fabric=refused), gpu(2, [])]) == ("c.1", 900.0, "")


def test_paths_of_which_nothing_is_known_are_left_out() -> None:
    pairs = [
        {"a": 1, "b": 2, "level": None, "p2p": None},
        {"a": 0, "b": 2, "level": 35, "p2p": None},
        {"a": 0, "b": 1, "level": 20, "p2p": None},
    ]
    assert gpu_paths(pairs) == (pb.GpuPath(gpu_a=0, gpu_b=1, path="PXB"),)


@pytest.mark.parametrize(("value", "says"), [
    (0, ""), (1, ""), (2, "wrong system GUID"), (3, "wrong chassis serial number"), (4, "no partition"), (5, "too few NVLinks"),
    (6, "incompatible GPU firmware"), (7, "wrong location"), (8, "wrong GPU state"), (15, ""),
])  # fmt: skip
def test_what_is_wrong_with_the_configuration_of_a_fabric(value: int, says: str) -> None:
    assert fabric_health(value << 8, 0) == says


_FIELDS = (
    "uuid", "pci", "name", "memory_bytes", "minor", "capability", "cores", "power_limit_mw", "power_default_mw", "power_max_mw",
    "pcie_gen", "pcie_width", "ecc", "numa", "links", "fabric", "mig", "state", "error",
)  # fmt: skip
_ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from([*_FIELDS, "link", "on", "instances", "profiles", "remapped"]), inner, max_size=5)
    ),
    max_leaves=12,
)


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.sampled_from(_FIELDS), _ANY, max_size=8))
def test_no_answer_of_one_gpu_stops_the_reading(fields: dict[str, Any]) -> None:
    answer = json.loads(json.dumps({"index": 1, **fields}))
    healthy = {"index": 0, "uuid": "GPU-0", "name": hardware.H100.name, "pci": hardware.address(1)}
    reading = reading_of("570.1", [answer, healthy])
    assert [one.gpu.index for one in reading.gpus] == [0, 1]
    assert (reading.gpus[0].error, reading.gpus[0].gpu.family) == ("", "h100")
    one, health = one_gpu(answer)
    assert one.error == health.error
