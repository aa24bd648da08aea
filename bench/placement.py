"""How long a placement takes, and how much of it is proven: `python -m bench.placement [--gpus 10000] [--busy 0.7] [--gangs 8,64,256,512]
[--cells 1,2,4,8] [--requests 200] [--seed 1] [--picture [FILE.png]] [--slurm | --no-slurm] [--json]`.

A made-up cluster of 8-GPU nodes (`fmctl topo generate`: pods of leaves of 32 nodes), a share of its GPUs held by ragged jobs. Each request
is a gang of one size with cells of one size; it is solved on the cluster as it then is, checked, and held; the oldest gangs that the
benchmark itself placed end as soon as the share of busy GPUs is above the one asked for. So every request meets another pattern of free
GPUs. Times are those of `solve` alone, from snapshot to placement with its bound; the check is not in them.

Then the same gangs and cells are asked of a live Slurm and of a real fm-scheduler beside it, on one cluster and one busy pattern that both
see (bench.slurm, with a fifth of the nodes filled by jobs of less than a node): `--slurm`. Without a flag this is done where Slurm is
installed and the cluster has at most 20,000 GPUs.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import resource
import statistics
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from bench.arguments import add_output, kinds_of, parsed, share, whole, wholes
from bench.pictures import pyplot
from bench.slurm import Asked, install, measure, quantile, report, result
from bench.slurm_cluster import missing
from fmsched.model.hardware import GpuId, JobId
from fmsched.model.job import GroupKind, Request, ResourceGroup
from fmsched.model.placement import Budget, Placement
from fmsched.model.snapshot import Snapshot
from fmsched.place.check import check
from fmsched.place.solve import solve
from fmsched.topology.clusterfile import ClusterFile, parse, to_snapshot
from fmsched.topology.generate import Plan, generate

GPUS_OF_NODE = 8
NODES_OF_LEAF = 32
LEAVES_OF_POD = 8
RAGGED = 0.2  # of the nodes of the cluster beside Slurm: filled by jobs of less than a node
SLURM_GPUS_MAX = 20_000
CHECKED_GPUS_MAX = 64  # larger placements are checked for one request in ten: the checker is naive on purpose


@dataclass(frozen=True, slots=True)
class Sample:
    gang: int
    cell: int
    seconds: float
    placed: bool
    proven: bool
    gap: float


def cluster(gpus: int, busy: float, seed: int) -> Snapshot:
    """The snapshot of the smallest such cluster with at least so many GPUs; nodes beyond are closed."""
    nodes = math.ceil(gpus / GPUS_OF_NODE)
    leaves = math.ceil(nodes / NODES_OF_LEAF)
    pods = math.ceil(leaves / LEAVES_OF_POD)
    text = generate(Plan(pods, math.ceil(leaves / pods), NODES_OF_LEAF, "hgx-h100", busy), random.Random(seed))
    found = parse(text)
    assert isinstance(found, ClusterFile), found
    snapshot = to_snapshot(found)
    surplus = [node.name for node in snapshot.topology.nodes[nodes:]]
    return replace(snapshot, closed=dict.fromkeys(surplus, "not part of the benchmark"))


def request(number: int, gang: int, cell: int) -> Request:
    group = ResourceGroup(
        "cell",
        GroupKind.TENSOR_PARALLEL,
        cell,
        preferred=("h100",),
        min_nvlink_gbytes_per_s=900.0 if cell > 1 else 0.0,
    )
    return Request(f"bench-{number}", (group,), gang // cell)


def run(snapshot: Snapshot, asked: Sequence[tuple[int, int]], busy: float, console: Console) -> list[Sample]:
    open_gpus = sum(len(node.shape.gpus) for node in snapshot.topology.nodes if node.name not in snapshot.closed)
    held: dict[GpuId, JobId] = {gpu: job for gpu, job in snapshot.held.items() if gpu.node not in snapshot.closed}
    placed: deque[tuple[JobId, tuple[GpuId, ...]]] = deque()
    samples = []
    for number, (gang, cell) in enumerate(track(asked, "placing", console=console, transient=True)):
        now = replace(snapshot, held=dict(held))
        began_s = time.perf_counter()
        verdict = solve(now, request(number, gang, cell), Budget())
        seconds = time.perf_counter() - began_s
        if not isinstance(verdict, Placement):
            samples.append(Sample(gang, cell, seconds, placed=False, proven=True, gap=0.0))
            continue
        if gang <= CHECKED_GPUS_MAX or number % 10 == 0:
            assert not check(now, request(number, gang, cell), verdict), verdict.job
        samples.append(Sample(gang, cell, seconds, True, verdict.objective.optimal, verdict.objective.gap))
        gpus = tuple(rank.gpu_id for rank in verdict.ranks)
        placed.append((verdict.job, gpus))
        held.update(dict.fromkeys(gpus, verdict.job))
        while placed and len(held) > busy * open_gpus:
            for gpu in placed.popleft()[1]:
                del held[gpu]
    return samples


def summary(samples: Sequence[Sample]) -> dict[str, Any]:
    times = [sample.seconds for sample in samples]
    return {
        "requests": len(samples),
        "placed": sum(sample.placed for sample in samples),
        "p50_s": statistics.median(times),
        "p99_s": quantile(times, 0.99),
        "max_s": max(times),
        "proven_share": sum(sample.proven for sample in samples) / len(samples),
        "gap_max": max(sample.gap for sample in samples),
    }


def draw(samples: Sequence[Sample], path: Path) -> None:
    """Cumulative distribution of the time, a line for each gang size."""
    plt = pyplot()
    figure, axes = plt.subplots(figsize=(8, 5))
    for gang in sorted({sample.gang for sample in samples}):
        times = sorted(sample.seconds * 1e3 for sample in samples if sample.gang == gang)
        axes.step(times, [(i + 1) / len(times) for i in range(len(times))], where="post", label=f"{gang} GPUs")
    axes.set(
        xscale="log", xlabel="time of one placement, ms", ylabel="share of requests", title="Time to a proven placement"
    )
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=120, bbox_inches="tight")


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.placement", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--gpus", type=whole(8), default=10_000)
    parser.add_argument("--busy", type=share, default=0.7)
    parser.add_argument("--gangs", type=wholes(), default="8,64,256,512")
    parser.add_argument("--cells", type=wholes(), default="1,2,4,8")
    parser.add_argument("--requests", type=whole(), default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--slurm", action=argparse.BooleanOptionalAction, help="ask a live Slurm too")
    add_output(parser)
    args = parsed(parser)
    kinds = kinds_of(parser, args.gangs, args.cells)
    console = Console(stderr=True)
    beside = wants_slurm(args, kinds, console)
    with console.status("making the cluster"):
        snapshot = cluster(args.gpus, args.busy, args.seed)
    chance = random.Random(args.seed)
    asked = [kinds[number % len(kinds)] for number in range(args.requests)]
    chance.shuffle(asked)
    solve(replace(snapshot, revision=1), request(-1, 8, 8), Budget())  # what a topology costs once is not a request's time
    samples = run(snapshot, asked, args.busy, console)
    table = Table("gang", "cell", "requests", "placed", "p50", "p99", "max", "proven", "largest gap")
    for gang, cell in [*kinds, (0, 0)]:
        mine = [sample for sample in samples if (sample.gang, sample.cell) == (gang, cell) or not gang]
        if mine:
            row = summary(mine)
            table.add_row(
                str(gang or "all"), str(cell or "all"), str(row["requests"]), str(row["placed"]), f"{row['p50_s'] * 1e3:.1f} ms",
                f"{row['p99_s'] * 1e3:.1f} ms", f"{row['max_s'] * 1e3:.1f} ms", f"{row['proven_share']:.1%}", f"{row['gap_max']:.2%}",
            )  # fmt: skip
    Console(stderr=args.json, width=110).print(table)
    if args.picture:
        draw(samples, args.picture)
    found = summary(samples) | {"gpus": args.gpus}
    if beside:
        found |= beside_slurm(args, [kind for kind in kinds if kind[1] <= GPUS_OF_NODE], console)
    rss_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    Console(stderr=args.json).print(f"memory of this process at its most: {rss_mb:.0f} MB")
    if args.json:
        print(json.dumps(found | {"rss_mb": rss_mb}))


def wants_slurm(args: argparse.Namespace, kinds: Sequence[tuple[int, int]], console: Console) -> bool:
    """Whether Slurm is asked too. Ends the process with code 2 where it must be and cannot."""
    if args.slurm is False:
        return False
    why = ""
    if packages := missing():
        why = install(packages)
    elif not any(cell <= GPUS_OF_NODE for _, cell in kinds):
        why = f"it is asked for cells of at most {GPUS_OF_NODE} GPUs"
    elif args.slurm is None and args.gpus > SLURM_GPUS_MAX:
        why = f"more than {SLURM_GPUS_MAX:,} GPUs; --slurm asks all the same"
    if why and args.slurm:
        raise SystemExit(f"--slurm: {why}" if not packages else f"--slurm: Debian packages are missing: {why}")
    if why:
        console.print(f"without Slurm beside it: {why}")
    return not why


def beside_slurm(args: argparse.Namespace, kinds: Sequence[tuple[int, int]], console: Console) -> dict[str, Any]:
    """Prints the comparison; answers what --json adds: the keys of bench.slurm that are ratios, and all of it as `slurm`."""
    nodes = math.ceil(args.gpus / GPUS_OF_NODE)
    asked = Asked(nodes, args.busy, kinds, math.ceil(args.requests / len(kinds)), args.seed, RAGGED)
    samples, around = measure(asked, console)
    report(samples, around, kinds, Console(stderr=args.json, width=160))
    found = result(samples, around, nodes)
    return {key: found[key] for key in ("latency_ratio_p50", "worse", "equal", "fewer")} | {"slurm": found}


if __name__ == "__main__":
    main()
