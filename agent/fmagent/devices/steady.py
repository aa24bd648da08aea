"""An inventory that does not flap. What a link carries is a fact of the inventory, and each change of it is a write to the store and a new
topology for the scheduler; so while health holds a device as bad, the inventory keeps the worst that was seen of it, and follows the
device again once that is over. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Set as AbstractSet

from fmagent.health.findings import Finding, Kind, State
from fmproto.v1 import hardware_pb2 as pb

# Concerns by which NVLinks of a GPU come and go.
_LINKS = frozenset(("nvlink", "lost"))


def hold(before: pb.Inventory, now: pb.Inventory, found_before: Iterable[Finding], found: Iterable[Finding]) -> None:
    """Changes `now`. `before` is what was published last, with what was found then. A device of which something else is found now than
    then is published as it is: it got worse, or it is another trouble."""
    then, today = _troubles(found_before), _troubles(found)
    same = {trouble for trouble, findings in today.items() if then.get(trouble) == findings}
    _hold_links(before, now, {device for kind, device in same if kind is Kind.GPU})
    _hold_ports(before, now, {device for kind, device in same if kind is Kind.PORT})


def _troubles(findings: Iterable[Finding]) -> dict[tuple[Kind, str], list[Finding]]:
    troubles: dict[tuple[Kind, str], list[Finding]] = {}
    for each in findings:
        if (each.kind is Kind.GPU and each.concern in _LINKS) or (each.kind is Kind.PORT and each.state is State.FAILED):
            troubles.setdefault((each.kind, each.device), []).append(each)
    return troubles


def _hold_links(before: pb.Inventory, now: pb.Inventory, held: AbstractSet[str]) -> None:
    known = {gpu.uuid: gpu for gpu in before.gpus}
    if not held & known.keys():
        return
    for gpu in now.gpus:
        if gpu.uuid in held and gpu.uuid in known:
            inactive = {port.link for port in known[gpu.uuid].nvlink_ports if not port.active}
            for port in gpu.nvlink_ports:
                port.active = port.active and port.link not in inactive
    rates = _rates(before)
    names = {gpu.index: gpu.uuid for gpu in now.gpus}
    kept = []
    for pair in now.nvlinks:
        ends = (names[pair.gpu_a], names[pair.gpu_b])
        if any(end in held for end in ends) and all(end in known for end in ends):
            pair.gbytes_per_s = min(pair.gbytes_per_s, rates.get(frozenset(ends), 0.0))
        if pair.gbytes_per_s > 0:
            kept.append(pair)
    if len(kept) < len(now.nvlinks):
        copies = [pb.NvLinkPair.FromString(pair.SerializeToString()) for pair in kept]
        del now.nvlinks[:]
        now.nvlinks.extend(copies)


def _rates(inventory: pb.Inventory) -> dict[frozenset[str], float]:
    names = {gpu.index: gpu.uuid for gpu in inventory.gpus}
    return {frozenset((names[pair.gpu_a], names[pair.gpu_b])): pair.gbytes_per_s for pair in inventory.nvlinks}


def _hold_ports(before: pb.Inventory, now: pb.Inventory, held: AbstractSet[str]) -> None:
    known = {f"{port.hca}/{port.port}": port for port in before.hca_ports}
    for port in now.hca_ports:
        name = f"{port.hca}/{port.port}"
        if name in held and name in known:
            port.state, port.physical_state = known[name].state, known[name].physical_state
            port.rate_gbps, port.lid = known[name].rate_gbps, known[name].lid
