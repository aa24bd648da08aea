"""An inventory that settles. Each change of it is a write to the store and a new topology for the scheduler; so a part of it that changes
again and again (a link that flaps faster than health counts it, a limit that somebody steers, a pool whose size moves) is published as it
was until it has stood still. The first few changes of a part pass at once, and it may always get worse. Pure: time is an argument.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

from fmagent.devices import sysfs
from fmproto.v1 import hardware_pb2 as pb

# A part that has changed more often than this, within so long, seconds, is restless,
CHANGES_MAX = 5
WINDOW_S = 600.0
# and what it shows counts once it has stood for so long.
QUIET_S = 300.0

# ("gpu", UUID), ("port", "mlx5_0", "1"), ("link", UUID, UUID), ("disks",)...
Key: TypeAlias = tuple[str, ...]


@dataclass(slots=True)
class _Part:
    """Serialised messages; None: there is no such thing. `changes`: when what was seen changed, the newest."""

    published: bytes | None = None
    seen: bytes | None = None
    changes: tuple[float, ...] = ()

    def take(self, seen: bytes | None, now_s: float, *, worse: bool) -> None:
        if seen != self.seen:
            self.seen = seen
            self.changes = (*self.changes, now_s)[-CHANGES_MAX - 1 :]
        if worse or not self.restless(now_s) or now_s - self.changes[-1] >= QUIET_S:
            self.published = seen

    def restless(self, now_s: float) -> bool:
        return sum(now_s - at_s < WINDOW_S for at_s in self.changes) > CHANGES_MAX

    def forgettable(self, now_s: float) -> bool:
        return self.published is None and self.seen is None and now_s - self.changes[-1] >= WINDOW_S


class Damper:
    """What was published of each part, over the looks of one agent."""

    def __init__(self) -> None:
        self._parts: dict[Key, _Part] = {}

    def damp(self, inventory: pb.Inventory, now_s: float) -> None:
        """Changes `inventory` into what is to be published. Its GPUs stay those that they are (devices.presence): only what is said of
        them is damped."""
        seen = _parts_of(inventory)
        for key in {**self._parts, **seen}:
            part = self._parts.setdefault(key, _Part())
            value = seen.get(key)
            part.take(value, now_s, worse=_is_worse(key[0], value, part.published))
            if part.forgettable(now_s):
                del self._parts[key]
        _put_together(inventory, {key: part.published for key, part in self._parts.items() if part.published is not None})


def _parts_of(inventory: pb.Inventory) -> dict[Key, bytes]:
    uuids = {gpu.index: gpu.uuid for gpu in inventory.gpus}
    parts: dict[Key, pb.Inventory] = {}
    for gpu in inventory.gpus:
        # Limits are steered from outside, by a rack's power manager.
        parts["power", gpu.uuid] = pb.Inventory(gpus=[pb.Gpu(power_limit_w=gpu.power_limit_w)])
        parts["gpu", gpu.uuid] = part = pb.Inventory(gpus=[gpu])
        part.gpus[0].ClearField("index")
        part.gpus[0].ClearField("power_limit_w")
    for port in inventory.hca_ports:
        parts["port", port.hca, str(port.port)] = pb.Inventory(hca_ports=[port])
    for link in inventory.nvlinks:
        only = pb.NvLinkPair(gbytes_per_s=link.gbytes_per_s)
        parts["link", uuids[link.gpu_a], uuids[link.gpu_b]] = pb.Inventory(nvlinks=[only])
    for path in inventory.gpu_paths:
        parts["path", uuids[path.gpu_a], uuids[path.gpu_b]] = pb.Inventory(
            gpu_paths=[pb.GpuPath(path=path.path, p2p=path.p2p)]
        )
    # Whole lists: each container may bring an interface with a name of its own.
    parts["interfaces",] = pb.Inventory(host=pb.Host(interfaces=inventory.host.interfaces))
    parts["disks",] = pb.Inventory(host=pb.Host(disks=inventory.host.disks))
    parts["network",] = pb.Inventory(address=inventory.address, socket_interface=inventory.socket_interface)
    parts["rest",] = _rest_of(inventory)
    return {key: part.SerializeToString(deterministic=True) for key, part in parts.items()}


def _rest_of(inventory: pb.Inventory) -> pb.Inventory:
    rest = pb.Inventory()
    rest.CopyFrom(inventory)
    for name in ("gpus", "hca_ports", "nvlinks", "gpu_paths", "address", "socket_interface"):
        rest.ClearField(name)
    rest.host.ClearField("interfaces")
    rest.host.ClearField("disks")
    return rest


def _put_together(inventory: pb.Inventory, parts: dict[Key, bytes]) -> None:
    indices = {gpu.uuid: gpu.index for gpu in inventory.gpus}
    inventory.Clear()
    for key, part in parts.items():
        if key[0] in ("link", "path"):
            _merge_pair(inventory, part, [indices.get(uuid) for uuid in key[1:]])
        elif key[0] not in ("gpu", "power"):
            inventory.MergeFromString(part)
    for uuid, index in indices.items():
        gpu = inventory.gpus.add()
        for kind in ("gpu", "power"):
            gpu.MergeFrom(pb.Inventory.FromString(parts[kind, uuid]).gpus[0])
        gpu.index = index
    inventory.hca_ports.sort(key=lambda port: (sysfs.natural(port.hca), port.port))
    inventory.nvlinks.sort(key=lambda pair: (pair.gpu_a, pair.gpu_b))
    inventory.gpu_paths.sort(key=lambda path: (path.gpu_a, path.gpu_b))


def _merge_pair(inventory: pb.Inventory, part: bytes, ends: list[int | None]) -> None:
    a, b = ends
    if a is None or b is None:
        return
    one = pb.Inventory.FromString(part)
    for link in one.nvlinks:
        link.gpu_a, link.gpu_b = a, b
    for path in one.gpu_paths:
        path.gpu_a, path.gpu_b = a, b
    inventory.MergeFrom(one)


def _links_up(inventory: pb.Inventory) -> float:
    return sum(port.active for gpu in inventory.gpus for port in gpu.nvlink_ports)


def _rate(pairs: Iterable[pb.NvLinkPair]) -> float:
    return sum(pair.gbytes_per_s for pair in pairs)


def _port_gbps(inventory: pb.Inventory) -> float:
    return sum(port.rate_gbps for port in inventory.hca_ports if port.state == "Active")


# How much a part is worth to a job. Of what is restless the worst is published: it is what can be relied on.
_WORTH: dict[str, Callable[[pb.Inventory], float]] = {
    "gpu": _links_up,
    "link": lambda part: _rate(part.nvlinks),
    "port": _port_gbps,
}


def _is_worse(kind: str, seen: bytes | None, published: bytes | None) -> bool:
    worth = _WORTH.get(kind)
    if worth is None or published is None or seen == published:
        return False
    return seen is None or worth(pb.Inventory.FromString(seen)) < worth(pb.Inventory.FromString(published))
