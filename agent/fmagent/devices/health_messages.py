"""Findings as the message that is published."""

from __future__ import annotations

from collections.abc import Iterable

from fmagent.health.findings import Finding, Kind, State, worst_first
from fmproto.v1 import hardware_pb2 as pb

# Of one device: more say nothing more to an operator, and the value has to fit the store.
FINDINGS_MAX = 16

_STATES = {
    State.OK: pb.HEALTH_STATE_OK,
    State.DEGRADED: pb.HEALTH_STATE_DEGRADED,
    State.DRAINING: pb.HEALTH_STATE_DRAINING,
    State.FAILED: pb.HEALTH_STATE_FAILED,
}


def health_of(node: str, gpus: Iterable[str], ports: Iterable[str], findings: Iterable[Finding]) -> pb.Health:
    """Every GPU and port that is known, well or not, and of disks and host what is wrong. A device that only a finding knows (a GPU that
    the driver never listed) comes after the known ones."""
    found: dict[tuple[Kind, str], list[Finding]] = {}
    for finding in findings:
        found.setdefault((finding.kind, finding.device), []).append(finding)

    def of(kind: Kind, known: Iterable[str] = ()) -> list[pb.DeviceHealth]:
        others = sorted(device for each, device in found if each is kind)
        return [_device(name, found.get((kind, name), [])) for name in dict.fromkeys((*known, *others))]

    return pb.Health(
        node=node, gpus=of(Kind.GPU, gpus), hca_ports=of(Kind.PORT, ports), disks=of(Kind.DISK), host=of(Kind.HOST)
    )


def _device(name: str, found: list[Finding]) -> pb.DeviceHealth:
    ordered = worst_first(tuple(found))[:FINDINGS_MAX]
    return pb.DeviceHealth(
        device=name,
        state=_STATES[ordered[0].state] if ordered else pb.HEALTH_STATE_OK,
        reason=ordered[0].reason if ordered else "",
        findings=[
            pb.Finding(
                concern=each.concern,
                state=_STATES[each.state],
                reason=each.reason,
                evidence=each.evidence,
                action=each.action,
            )
            for each in ordered
        ],
    )
