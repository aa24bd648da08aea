"""How long "cannot" takes, with its minimal reason: `python -m bench.infeasible [--gpus N] [--busy F] [--requests R] [--seed S]
[--picture [FILE.png]] [--json]`.

Each request is one that the cluster of bench.placement cannot serve: too many GPUs, too many under one leaf or in one NVLink domain, a
type, memory or NVLink that is not there, instances larger than any leaf, two groups together. Every answer is then checked by solving
again: minimal means that the named constraints alone cannot be met, and that without any one of them they can.

The last rows are cases that KAI's documentation times, beside its figures: a gang of 80 that cannot fit, 41 jobs, a gang of 512 with
topology. Here they are asked on described nodes, there on a simulated cluster of its own; so no ratio is printed.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from bench.arguments import add_output, parsed, share, whole
from bench.pictures import pyplot
from bench.placement import cluster
from bench.slurm import quantile
from fmsched.model.job import GroupKind, Reach, Request, ResourceGroup
from fmsched.model.placement import Budget, Placement, Undecided, Unplaceable
from fmsched.model.snapshot import Snapshot
from fmsched.place.atoms import atoms_of, lift
from fmsched.place.solve import solve
from fmsched.place.words import title

# Seconds that KAI's docs give for its own (docs/scale-tests, 3 July 2026), on machines and through an API server that are not ours: a
# mark to stand beside, not a ratio of one run. Its 41 jobs were consolidated, by moving others; here they are told that they cannot fit.
KAI_S = {
    "KAI: a gang of 80 that no leaf can hold": 249.5,
    "KAI: 41 gangs that no leaf can hold, together": 456.0,
    "KAI: a gang of 512 over the topology": 48.7,
}
CHECK = Budget(explain_solves_max=0)


@dataclass(frozen=True, slots=True)
class Sample:
    kind: str
    seconds: float
    verdict: str
    minimal: bool


def kinds(free: int) -> dict[str, tuple[ResourceGroup, ...]]:
    """What each kind of request asks of one replica."""
    tp, dp = GroupKind.TENSOR_PARALLEL, GroupKind.DATA_PARALLEL
    cell = ResourceGroup("cell", tp, 8, ("h100",), min_nvlink_gbytes_per_s=900.0)
    return {
        "more GPUs than are free": (cell,),
        "more than one leaf has": (ResourceGroup("ring", dp, 1, ("h100",), reach=Reach(1, 400.0)),),
        "a GPU type that is not there": (replace(cell, preferred=("b200",)),),
        "memory that no GPU has": (replace(cell, min_memory_gb=141.0),),
        "NVLink that no pair has": (replace(cell, min_nvlink_gbytes_per_s=1800.0),),
        "a cell larger than any NVLink domain": (replace(cell, gpus=16),),
        "instances over nodes, too many": (ResourceGroup("wide", tp, 16, ("h100",), reach=Reach(3, 400.0)),),
        "a link that no port has": (ResourceGroup("fast", tp, 16, ("h100",), reach=Reach(3, 800.0)),),
        "two groups, too many": (cell, ResourceGroup("data", dp, 1, ("h100",), reach=Reach(5, 400.0))),
    }


def request(kind: str, groups: tuple[ResourceGroup, ...], free: int, chance: random.Random) -> Request:
    more = 1.05 + chance.random()
    size = sum(group.gpus for group in groups)
    counts = {"more than one leaf has": 257 + chance.randrange(200)}
    wanted = counts.get(kind, round(more * free / size) if "many" in kind or "free" in kind else 1 + chance.randrange(32))
    return Request("bench", groups, max(1, wanted))


def is_minimal(snapshot: Snapshot, asked: Request, answer: Unplaceable) -> bool:
    """The constraints that the answer names conflict, and without any one of them there is a placement."""
    if answer.never:
        snapshot = snapshot.emptied()
    named = {(why.constraint, why.group) for why in answer.why}
    atoms = atoms_of(snapshot, asked)
    groups = {index: group.name for index, group in enumerate(asked.groups)}
    kept = [atom for atom in atoms if (title(asked, atom), groups.get(atom.group, "")) in named]
    lifted = [atom for atom in atoms if atom not in kept]
    if not isinstance(solve(*lift(snapshot, asked, lifted), CHECK), Unplaceable):
        return False
    return all(isinstance(solve(*lift(snapshot, asked, [*lifted, atom]), CHECK), Placement) for atom in kept)


def measure(kind: str, snapshot: Snapshot, asked: Request, *, checked: bool = True) -> Sample:
    """`checked`: whether the reason is proven minimal, by solving again; where it is not, it counts as minimal."""
    began_s = time.perf_counter()
    verdict = solve(snapshot, asked, Budget())
    seconds = time.perf_counter() - began_s
    if isinstance(verdict, Unplaceable):
        return Sample(
            kind, seconds, "never" if verdict.never else "not now", not checked or is_minimal(snapshot, asked, verdict)
        )
    return Sample(kind, seconds, "undecided" if isinstance(verdict, Undecided) else "placed", minimal=False)


def kai(busy: float, seed: int) -> list[Sample]:
    """512 nodes: a gang of 80 GPUs that cannot fit, 41 such gangs one after the other, and one of 512 with topology that can."""
    snapshot = cluster(512 * 8, busy, seed)
    near = ResourceGroup("pods", GroupKind.DATA_PARALLEL, 1, ("h100",), reach=Reach(1, 400.0))
    empty = replace(snapshot, held={})
    full = replace(snapshot, held={gpu: "other" for node in snapshot.topology.nodes for gpu in _gpus(node.name, 8)[:7]})
    fits = ResourceGroup("pods", GroupKind.DATA_PARALLEL, 1, ("h100",), reach=Reach(5, 400.0))
    one, many, placed = KAI_S
    asked = [Request(f"bench-{number}", (near,), 80 + number) for number in range(41)]
    each = [measure(many, full, request, checked=not number) for number, request in enumerate(asked)]
    return [
        measure(one, full, Request("bench", (near,), 80)),
        Sample(many, sum(sample.seconds for sample in each), each[0].verdict, all(sample.minimal for sample in each)),
        measure(placed, empty, Request("bench", (fits,), 512)),
    ]


def _gpus(node: str, count: int) -> list[Any]:
    from fmsched.model.hardware import GpuId

    return [GpuId(node, i) for i in range(count)]


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.infeasible", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--gpus", type=whole(8), default=10_000)
    parser.add_argument("--busy", type=share, default=0.7)
    parser.add_argument("--requests", type=whole(), default=100)
    parser.add_argument("--seed", type=int, default=1)
    add_output(parser)
    args = parsed(parser)
    snapshot = cluster(args.gpus, args.busy, args.seed)
    chance = random.Random(args.seed)
    free = sum(len(snapshot.free_indices(node.name)) for node in snapshot.topology.nodes)
    solve(snapshot, Request("first", (ResourceGroup("one", GroupKind.AUXILIARY, 1),), 1), Budget())
    table = list(kinds(free).items())
    samples = []
    for number in track(range(args.requests), "refusing", console=Console(stderr=True), transient=True):
        kind, groups = table[number % len(table)]
        samples.append(measure(kind, snapshot, request(kind, groups, free, chance)))
    report(samples, kai(args.busy, args.seed), args)


def draw(samples: Sequence[Sample], path: Path) -> None:
    """By kind of request, how long its refusals took."""
    plt = pyplot()
    names = list(dict.fromkeys(sample.kind for sample in samples))
    figure, axes = plt.subplots(figsize=(9, 5))
    axes.boxplot([[sample.seconds * 1e3 for sample in samples if sample.kind == name] for name in names], vert=False)
    axes.set_yticks(range(1, len(names) + 1), names)
    axes.set(xscale="log", xlabel="ms", title="Time to a refusal with its minimal reason")
    axes.grid(alpha=0.3, axis="x")
    figure.savefig(path, dpi=120, bbox_inches="tight")


def report(samples: Sequence[Sample], beside: Sequence[Sample], args: argparse.Namespace) -> None:
    table = Table("asked", "requests", "answer", "p50", "p99", "max", "minimal", "KAI says")
    for kind in [*dict.fromkeys(sample.kind for sample in samples), "all", *(sample.kind for sample in beside)]:
        mine = [sample for sample in [*samples, *beside] if sample.kind == kind] or list(samples)
        times = [sample.seconds for sample in mine]
        table.add_row(
            kind, str(len(mine)), ", ".join(sorted({sample.verdict for sample in mine})), f"{quantile(times, 0.5) * 1e3:.0f} ms",
            f"{quantile(times, 0.99) * 1e3:.0f} ms", f"{max(times) * 1e3:.0f} ms",
            f"{sum(sample.minimal for sample in mine) / len(mine):.0%}" if mine[0].verdict != "placed" else "-",
            f"{KAI_S[kind]} s" if kind in KAI_S else "",
        )  # fmt: skip
    Console(stderr=args.json, width=140).print(table)
    if args.picture:
        draw(samples, args.picture)
    if args.json:
        times = [sample.seconds for sample in samples]
        result = {
            "p50_s": quantile(times, 0.5),
            "p99_s": quantile(times, 0.99),
            "max_s": max(times),
            "minimal_share": sum(sample.minimal for sample in samples) / len(samples),
            "proven_share": sum(sample.verdict != "undecided" for sample in samples) / len(samples),
            "gap_max": 0.0,  # a refusal has none
            "kai": {sample.kind: {"seconds": sample.seconds, "kai_s": KAI_S[sample.kind]} for sample in beside},
            "requests": len(samples),
            "gpus": args.gpus,
            "rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        }
        print(json.dumps(result))


if __name__ == "__main__":
    main()
