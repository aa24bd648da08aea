"""What a collective costs over a group of GPUs: α-β models, seconds from bytes.

A message of S bytes over one link takes α + S/β. A group lies on islands: sets of GPUs joined inside by NVLink or PCIe (a node,
or a multi-node NVLink domain) and to one another by the fabric.

Sources: Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication Operations in MPICH", IJHPCA 19(1) 2005 (ring,
recursive and pairwise algorithms, Bruck's all-to-all); nccl-tests doc/PERFORMANCE.md (bus bandwidth: all-reduce moves
2(n-1)/n · S through each GPU, the others (n-1)/n · S); NCCL's own model (src/graph/tuning.cc: a ring of n GPUs on m nodes takes
n-m steps inside and m-1 steps between nodes, a tree log2 of them; latencies of its Simple protocol).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

START_S = 8.4e-6  # launch of a collective: NCCL tuning.cc, baseLat, ring, Simple


@dataclass(frozen=True, slots=True)
class Span:
    """How a group of `ranks` GPUs lies.

    islands      that it touches; `fewest` members are on the least filled one
    inner_*      one step inside an island; nan-free also where every member is alone on its island
    outer_*      one step between islands: per GPU, one direction, bytes/s
    """

    ranks: int
    islands: int
    fewest: int
    inner_alpha_s: float
    inner_bytes_per_s: float
    outer_alpha_s: float
    outer_bytes_per_s: float

    @property
    def bus_bytes_per_s(self) -> float:
        """What a ring carries: the members of an island share its way out, each adding its adapters."""
        if self.islands == 1:
            return self.inner_bytes_per_s
        out = self.fewest * self.outer_bytes_per_s
        return out if self.ranks == self.islands else min(out, self.inner_bytes_per_s)


def all_reduce(span: Span, size: float) -> float:
    """Seconds to sum `size` bytes over the group: the better of ring and double binary tree."""
    n, m = span.ranks, span.islands
    if n < 2:
        return 0.0
    beta = span.bus_bytes_per_s
    ring = 2 * _ring_alpha(span) + 2 * (n - 1) / n * size / beta
    up = math.log2(n) * span.inner_alpha_s + math.log2(m) * (span.outer_alpha_s - span.inner_alpha_s)
    tree = 2 * up + 2 * size / beta
    return START_S + min(ring, tree)


def all_gather(span: Span, size: float) -> float:
    """Seconds until each GPU has all `size` bytes, of which it held an n-th: ring. A reduce-scatter costs as much."""
    n = span.ranks
    return START_S + _ring_alpha(span) + (n - 1) / n * size / span.bus_bytes_per_s if n > 1 else 0.0


reduce_scatter = all_gather


def all_to_all(span: Span, size: float) -> float:
    """Seconds for each GPU to send an n-th of its `size` bytes to each other one.

    The better of pairwise exchange, (n-1)α + S/β, and Bruck's, log2(n)·α + log2(n)/2 · S/β; for the GPU with the fewest
    others on its island, and with what stays inside and what leaves it sent one after the other.
    """
    n, k = span.ranks, span.fewest
    if n < 2:
        return 0.0
    bytes_s = size / n * ((k - 1) / span.inner_bytes_per_s + (n - k) / span.outer_bytes_per_s)
    pairwise = (k - 1) * span.inner_alpha_s + (n - k) * span.outer_alpha_s + bytes_s
    inside, outside = math.log2(k), math.log2(n) - math.log2(k)
    bruck = inside * span.inner_alpha_s + outside * span.outer_alpha_s + max(1.0, math.log2(n) / 2) * bytes_s
    return START_S + min(pairwise, bruck)


def send(span: Span, size: float) -> float:
    """Seconds for `size` bytes from one GPU to the other of a group of two."""
    if span.islands == 1:
        return span.inner_alpha_s + size / span.inner_bytes_per_s
    return span.outer_alpha_s + size / span.outer_bytes_per_s


def _ring_alpha(span: Span) -> float:
    return (span.ranks - span.islands) * span.inner_alpha_s + (span.islands - 1) * span.outer_alpha_s
