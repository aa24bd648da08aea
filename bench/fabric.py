"""How dear a fabric is: `python -m bench.fabric [--json]`. Reads made-up `ibnetdiscover` output of 1,024 and of 12,500 hosts, builds the
topology, and asks it for hop counts and path bandwidths.

Each size runs in a process of its own, so that its memory is its own. `text_s` is the reader, `topology_s` names, merging and the graph.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import resource
import time
from dataclasses import asdict, dataclass

from rich.console import Console
from rich.table import Table
from tests.support.fabric_text import FatTree, ibnetdiscover_text

SIZES = {
    "1,024 hosts": FatTree(pods=4, leaves=16, hosts=16, spines=16, cores=8),
    "12,500 nodes": FatTree(pods=25, leaves=20, hosts=25, spines=16, cores=16),
}
QUERIES = 200_000


@dataclass(frozen=True, slots=True)
class Measured:
    hosts: int
    switches: int
    cables: int
    text_mb: float
    text_s: float
    topology_s: float
    query_us: float  # one hop count and one path bandwidth
    rss_mb: float

    @property
    def total_s(self) -> float:
        return self.text_s + self.topology_s


def measure(tree: FatTree) -> Measured:
    from fmsched.topology.clusterfile import to_snapshot
    from fmsched.topology.imported import Choices, to_cluster
    from fmsched.topology.readers.ibnetdiscover import read

    text = ibnetdiscover_text(tree)
    began_s = time.perf_counter()
    found = read(text, "made-up")
    read_s = time.perf_counter()
    topology = to_snapshot(to_cluster([found], {}, Choices())).topology
    built_s = time.perf_counter()
    assert len(topology.nodes) == tree.host_count, (len(topology.nodes), tree.host_count)
    chance = random.Random(0)
    names = [node.name for node in topology.nodes]
    pairs = [(chance.choice(names), chance.choice(names)) for _ in range(QUERIES)]
    asked_s = time.perf_counter()
    for a, b in pairs:
        topology.hop_count(a, b)
        topology.link_gbps(a, b)
    query_s = (time.perf_counter() - asked_s) / QUERIES
    return Measured(
        hosts=len(names),
        switches=len(topology.fabric.switches),
        cables=sum(link.count for link in topology.fabric.links),
        text_mb=len(text) / 1e6,
        text_s=read_s - began_s,
        topology_s=built_s - read_s,
        query_us=query_s * 1e6,
        rss_mb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.fabric", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one object at the end")
    asked = parser.parse_args()
    table = Table("fabric", "switches", "cables", "text", "read", "topology", "together", "a query", "memory")
    results: dict[str, dict[str, float]] = {}
    for name, tree in SIZES.items():
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            found = pool.apply(measure, (tree,))
        results[name] = asdict(found) | {"total_s": found.total_s}
        table.add_row(
            name, f"{found.switches:,}", f"{found.cables:,}", f"{found.text_mb:.1f} MB", f"{found.text_s:.2f} s",
            f"{found.topology_s:.2f} s", f"{found.total_s:.2f} s", f"{found.query_us:.1f} µs", f"{found.rss_mb:.0f} MB",
        )  # fmt: skip
    Console(stderr=asked.json, width=120).print(table)
    if asked.json:
        print(json.dumps(results))


if __name__ == "__main__":
    main()
