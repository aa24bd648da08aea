"""What a GPU has of NVLink to the others of its instance: links and GB/s, and what groups may ask of them.

A GPU uses all its links at once. Over direct links (bridges, cube mesh) it has what its pairs add up to; through NVSwitch every
pair has the GPU's whole bandwidth, and the GPU still has no more than that. So a GPU's own bandwidth to the others is the sum
over its pairs, at most its total; its links are that divided by the rate of one. Totals and rates are the catalogue's; for a
model that it lacks there is no total, and a link has 50 GB/s, as NVLink 2 to 4 have. An instance of one GPU has no others:
nothing is asked of it. An instance of which something is asked lies on one node, or in one multi-node NVLink domain; over several
nodes of a domain each GPU has what the domain's slowest node gives.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import floor, inf

from fmsched.catalogue import lookup
from fmsched.model.fabric import Topology
from fmsched.model.hardware import GpuSpec, NodeShape
from fmsched.model.job import ResourceGroup

LINK_GBYTES_PER_S = 50.0
ROUNDING = 1e-6
TOPOLOGIES_KEPT = 8


@dataclass(frozen=True, slots=True)
class Own:
    """Of one GPU, to the others of its instance: whole links, and GB/s in both directions together."""

    links: int
    gbytes_per_s: float


def own(spec: GpuSpec, pairs: Iterable[float]) -> Own:
    """`pairs` are GB/s to each of the others."""
    facts = lookup(spec.model)
    known = facts is not None and facts.nvlink_links > 0 and facts.nvlink_gbytes_per_s > 0
    total = facts.nvlink_gbytes_per_s if known and facts else inf
    rate = facts.nvlink_gbytes_per_s / facts.nvlink_links if known and facts else LINK_GBYTES_PER_S
    gbytes_per_s = min(total, sum(pairs))
    return Own(floor(gbytes_per_s / rate + ROUNDING), gbytes_per_s)


def asks(group: ResourceGroup) -> bool:
    """Whether anything of this kind is asked of the group's instances."""
    return group.gpus > 1 and (group.min_nvlink_links > 0 or group.min_nvlink_aggregate_gbytes_per_s > 0)


def enough(group: ResourceGroup, each: Collection[Own]) -> bool:
    """Whether an instance whose GPUs have so much is what the group asks for. What two GPUs exchange is counted once."""
    together = sum(one.gbytes_per_s for one in each) / 2
    linked = all(one.links >= group.min_nvlink_links for one in each)
    return linked and together + ROUNDING >= group.min_nvlink_aggregate_gbytes_per_s


def set_enough(shape: NodeShape, gpus: Sequence[int], group: ResourceGroup) -> bool:
    """The same for GPUs of one node."""
    if not asks(group):
        return True
    return enough(
        group, [own(shape.gpus[i], [min(shape.nvlink[i][j], shape.nvlink[j][i]) for j in gpus if j != i]) for i in gpus]
    )


def domain_enough(topology: Topology, shape: NodeShape, domain: str, group: ResourceGroup) -> bool:
    """Whether an instance may take GPUs of such a node together with other nodes of its multi-node NVLink domain.

    A domain's switches give each GPU its whole bandwidth to any other: so a GPU has the rate of the domain's slowest node.
    """
    rate = domain_rates(topology).get(domain, 0.0)
    return all(enough(group, [own(spec, [rate])] * group.gpus) for spec in dict.fromkeys(shape.gpus))


@lru_cache(maxsize=TOPOLOGIES_KEPT)
def domain_rates(topology: Topology) -> dict[str, float]:
    """By multi-node NVLink domain: GB/s between GPUs of its slowest node and others."""
    found: dict[str, float] = {}
    for node in topology.nodes:
        if node.nvlink_domain:
            rate = node.shape.domain_nvlink_gbytes_per_s
            found[node.nvlink_domain] = min(rate, found.get(node.nvlink_domain, rate))
    return found
