"""Which GPUs of a node reach one another by NVLink. Pure, from messages."""

from __future__ import annotations

from dataclasses import dataclass

from fmproto.v1.hardware_pb2 import Inventory


@dataclass(frozen=True, slots=True)
class NvlinkSet:
    """GPUs (by index, sorted) that NVLink joins, straight or over others; GB/s of a pair, both directions together, least and most."""

    gpus: tuple[int, ...]
    least: float = 0.0
    most: float = 0.0

    @property
    def rate(self) -> str:
        return f"{self.most:g} GB/s" if self.least == self.most else f"{self.least:g} to {self.most:g} GB/s"

    @property
    def label(self) -> str:
        """ "NVLink 900 GB/s"; "NVLink 0 to 100 GB/s" where not all pairs are alike; empty for a GPU alone."""
        return f"NVLink {self.rate}" if len(self.gpus) > 1 else ""


def nvlink_sets(inventory: Inventory) -> tuple[NvlinkSet, ...]:
    """By their first GPU; a GPU without NVLink is a set of its own."""
    rates: dict[tuple[int, int], float] = {}
    first = {gpu.index: gpu.index for gpu in inventory.gpus}
    for pair in inventory.nvlinks:
        if pair.gbytes_per_s > 0 and pair.gpu_a in first and pair.gpu_b in first:
            rates[min(pair.gpu_a, pair.gpu_b), max(pair.gpu_a, pair.gpu_b)] = pair.gbytes_per_s
    for a, b in rates:
        one, other = sorted((first[a], first[b]))
        if one != other:
            first = {gpu: one if leader == other else leader for gpu, leader in first.items()}
    members: dict[int, list[int]] = {}
    for gpu in sorted(first):
        members.setdefault(first[gpu], []).append(gpu)
    return tuple(_set(tuple(gpus), rates) for gpus in members.values())


def _set(gpus: tuple[int, ...], rates: dict[tuple[int, int], float]) -> NvlinkSet:
    pairs = [rates.get((a, b), 0.0) for i, a in enumerate(gpus) for b in gpus[i + 1 :]]
    return NvlinkSet(gpus, min(pairs, default=0.0), max(pairs, default=0.0))
