"""What is taken of the links between switches, as messages."""

from __future__ import annotations

from collections.abc import Mapping

from fmproto.v1 import scheduler_pb2 as pb
from fmsched.model.fabric import Topology
from fmsched.model.hardware import JobId
from fmsched.place.links import in_use
from fmsched.topology.routes import Edge


def link_messages(
    topology: Topology, held: Mapping[JobId, Mapping[Edge, float]], measured: Mapping[Edge, float]
) -> list[pb.LinkUse]:
    """The links between switches of which something is taken."""
    return [
        pb.LinkUse(
            a=use.link[0], b=use.link[1], gbps=use.gbps, measured_gbps=use.measured, reserved_gbps=dict(use.reserved)
        )
        for use in in_use(topology, held, measured)
    ]
