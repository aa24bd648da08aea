"""Rails: in a rail-optimised fabric, each adapter of a node hangs on leaf switches of its own, so that a message between equal
adapters of two nodes of a unit crosses one switch. (NVIDIA DGX SuperPOD reference architecture: "rail-optimized".)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fmsched.model.fabric import Topology

MIXED = ""


@dataclass(frozen=True, slots=True)
class Rails:
    """`rail_of[switch]`: the adapter ("mlx5_0") by which every node under the switch hangs on it; MIXED where they use several.
    Switches without nodes, and those whose links name no adapter, are not in it.
    """

    rail_of: Mapping[str, str]

    @property
    def names(self) -> tuple[str, ...]:
        """The rails in use, in order."""
        return tuple(sorted(set(self.rail_of.values()) - {MIXED}))

    @property
    def optimised(self) -> bool:
        """Several rails, and no leaf switch that serves two of them."""
        return len(self.names) > 1 and MIXED not in self.rail_of.values()


def rails_of(topology: Topology) -> Rails:
    """By the links as they are described, down ones too: a cut cable moves nobody to another rail. Adapters are told apart by
    name, since their numbers shift when one fails."""
    switches = {switch.name for switch in topology.fabric.switches}
    found: dict[str, str] = {}
    for link in topology.fabric.links:
        node, switch = (link.a, link.b) if link.b in switches else (link.b, link.a)
        if switch in switches and node in topology.index and link.hca:
            found[switch] = link.hca if found.get(switch, link.hca) == link.hca else MIXED
    return Rails(found)
