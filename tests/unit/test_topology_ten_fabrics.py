"""Hop counts, domains and path bandwidths of ten whole fabrics, six made up and four real, against brute force: no difference."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import pytest

from fmsched.model.fabric import Fabric, Link, Switch, Topology
from fmsched.model.hardware import Node
from fmsched.topology.clusterfile import to_snapshot
from fmsched.topology.graph import build_topology
from fmsched.topology.imported import Choices, to_cluster
from fmsched.topology.readers.ibnetdiscover import read
from tests.support.fabric_brute import differences
from tests.support.fabric_text import FatTree, ibnetdiscover_text
from tests.support.fabrics import node
from tests.support.shared_data import shared

Cables = list[tuple[str, str]]


def imported(text: str, file: str) -> Topology:
    return to_snapshot(to_cluster([read(text, file)], {}, Choices())).topology


def built(nodes: list[Node], switches: list[Switch], cables: Cables, gbps: float = 400.0) -> Topology:
    # Rates differ from cable to cable, so that the weakest link has something to be.
    links = tuple(Link(a, b, gbps / (1 + number % 3)) for number, (a, b) in enumerate(cables))
    return build_topology(nodes, Fabric(tuple(switches), links))


def two_levels() -> Topology:
    return imported(ibnetdiscover_text(FatTree(pods=1, leaves=8, hosts=8, spines=4, cores=0)), "two-levels")


def three_levels() -> Topology:
    return imported(ibnetdiscover_text(FatTree(pods=3, leaves=4, hosts=6, spines=2, cores=2)), "three-levels")


def rails() -> Topology:
    """Two units of six nodes, eight rails with two spines each; rails do not meet."""
    switches = [Switch(f"s{r}-{s}", 1) for r in range(8) for s in range(2)] + [
        Switch(f"u{u}r{r}") for u in range(2) for r in range(8)
    ]
    cables: Cables = [(f"u{u}r{r}", f"s{r}-{s}") for u in range(2) for r in range(8) for s in range(2)]
    nodes = [node(f"n{u}-{n}") for u in range(2) for n in range(6)]
    cables += [(f"n{u}-{n}", f"u{u}r{r}") for u in range(2) for n in range(6) for r in range(8)]
    return built(nodes, switches, cables)


def two_fabrics() -> Topology:
    """Two unconnected trees, some nodes on both, one node on none."""
    switches = [Switch(f"{f}{kind}{i}", level) for f in "ab" for kind, level in (("l", 0), ("s", 1)) for i in range(3)]
    cables: Cables = [(f"{f}l{i}", f"{f}s{j}") for f in "ab" for i in range(3) for j in range(3)]
    cables += [(f"n{i}", f"al{i % 3}") for i in range(9)] + [(f"n{i}", f"bl{i % 3}") for i in range(6, 15)]
    return built([node(f"n{i}") for i in range(16)], switches, cables)


def ring_with_chords() -> Topology:
    cables: Cables = [(f"s{i}", f"s{(i + 1) % 12}") for i in range(12)] + [("s0", "s6"), ("s3", "s9")]
    cables += [(f"n{i}", f"s{i % 12}") for i in range(24)]
    return built([node(f"n{i}") for i in range(24)], [Switch(f"s{i}") for i in range(12)], cables)


def torus() -> Topology:
    """4 × 4 × 3: no tree at all; the hop matrix alone is the truth."""
    places = [(x, y, z) for x in range(4) for y in range(4) for z in range(3)]
    sizes = (4, 4, 3)
    cables: Cables = []
    for place in places:
        for axis in range(3):
            there = tuple((value + (i == axis)) % sizes[i] for i, value in enumerate(place))
            cables.append(("s" + "".join(map(str, place)), "s" + "".join(map(str, there))))
    cables += [(f"n{x}{y}{z}", f"s{x}{y}{z}") for x, y, z in places]
    switches = [Switch("s" + "".join(map(str, place))) for place in places]
    return built([node("n" + "".join(map(str, place))) for place in places], switches, cables)


def real(name: str) -> Callable[[], Topology]:
    def load() -> Topology:
        path: Path = shared("ibnetdiscover") / name
        content = path.read_bytes()
        return imported((gzip.decompress(content) if name.endswith(".gz") else content).decode("utf-8", "replace"), name)

    return load


FABRICS: dict[str, Callable[[], Topology]] = {
    "two levels": two_levels,
    "three levels": three_levels,
    "eight rails": rails,
    "two unconnected fabrics": two_fabrics,
    "ring with chords": ring_with_chords,
    "torus": torus,
    "real: EDR fat tree, one link at DDR": real("edr-6sw-96host-ddr-link-in-trunk.txt"),
    "real: NDR rails": real("ndr-40sw-582hca-rail-2level.txt.gz"),
    "real: HDR directors": real("hdr-192sw-1182hca-ibdiagnet-lst.txt.gz"),
    "real: QDR": real("qdr-7sw-96hca-qib-subnet0.txt.gz"),
}


@pytest.mark.parametrize("name", FABRICS)
def test_a_whole_fabric_is_read_as_brute_force_reads_it(name: str) -> None:
    topology = FABRICS[name]()
    pairs, domains, wrong = differences(topology)
    assert pairs == len(topology.nodes) * (len(topology.nodes) - 1) // 2 > 0
    print(
        f"{name}: {len(topology.nodes)} nodes, {len(topology.fabric.switches)} switches, {pairs} pairs, {domains} domains"
    )
    assert not wrong, f"{len(wrong)} differences; the first: {wrong[0]}"
