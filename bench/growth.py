"""How a placement grows with the cluster: `python -m bench.growth [--nodes 300,…,12500] [--requests 24] [--picture FILE.png] [--json]`.

The same gangs on clusters of more and more nodes, all 70 % busy. The exponent of a power law through the medians is printed: 1 is linear.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import resource
import statistics
import time
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table

from bench.arguments import add_output, parsed, whole, wholes
from bench.pictures import pyplot
from bench.placement import cluster, request
from bench.slurm import quantile
from fmsched.model.placement import Budget, Placement
from fmsched.place.solve import solve

BUSY = 0.7
KINDS = [(8, 8), (64, 8), (64, 1), (256, 4), (512, 8), (512, 2)]  # GPUs of the gang, of a cell


def measure(nodes: int, requests: int, seed: int) -> list[float]:
    snapshot = cluster(nodes * 8, BUSY, seed)
    solve(replace(snapshot, revision=1), request(-1, 8, 8), Budget())
    chance = random.Random(seed)
    times = []
    for number in range(requests):
        gang, cell = KINDS[number % len(KINDS)]
        # Another pattern each time: a few jobs end.
        ended = {job for job in set(snapshot.held.values()) if chance.random() < 0.02}
        now = replace(snapshot, held={gpu: job for gpu, job in snapshot.held.items() if job not in ended})
        began_s = time.perf_counter()
        verdict = solve(now, request(number, gang, cell), Budget())
        times.append(time.perf_counter() - began_s)
        assert isinstance(verdict, Placement), verdict
        assert verdict.objective.optimal
    return times


def exponent(sizes: list[int], medians: list[float]) -> float:
    """Least squares in logarithms."""
    x, y = [math.log(size) for size in sizes], [math.log(median) for median in medians]
    return statistics.linear_regression(x, y).slope


def draw(sizes: list[int], medians: list[float], slowest: list[float], path: Path) -> None:
    plt = pyplot()
    figure, axes = plt.subplots(figsize=(7, 5))
    axes.loglog(sizes, [each * 1e3 for each in medians], "o-", label="p50")
    axes.loglog(sizes, [each * 1e3 for each in slowest], "s--", label="p99")
    linear = [medians[0] * size / sizes[0] * 1e3 for size in sizes]
    axes.loglog(sizes, linear, ":", color="grey", label="linear")
    axes.set(xlabel="nodes of 8 GPUs", ylabel="time of one placement, ms", title="Growth with the cluster")
    axes.grid(alpha=0.3, which="both")
    axes.legend()
    figure.savefig(path, dpi=120, bbox_inches="tight")


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.growth", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--nodes", type=wholes(8), default="300,1250,3000,6000,12500")
    parser.add_argument("--requests", type=whole(), default=24)
    parser.add_argument("--seed", type=int, default=1)
    add_output(parser)
    args = parsed(parser)
    sizes = args.nodes
    console = Console(stderr=True)
    times = {
        size: measure(size, args.requests, args.seed) for size in track(sizes, "placing", console=console, transient=True)
    }
    medians = [statistics.median(times[size]) for size in sizes]
    slowest = [quantile(times[size], 0.99) for size in sizes]
    slope = exponent(sizes, medians)
    table = Table("nodes", "GPUs", "p50", "p99", "p50 per 1,000 nodes", title=f"time ~ nodes^{slope:.2f}")
    for size, median, worst in zip(sizes, medians, slowest, strict=True):
        table.add_row(
            f"{size:,}", f"{size * 8:,}", f"{median * 1e3:.1f} ms", f"{worst * 1e3:.1f} ms", f"{median / size * 1e6:.2f} ms"
        )
    Console(stderr=args.json, width=100).print(table)
    if args.picture:
        draw(sizes, medians, slowest, args.picture)
    if args.json:
        every = [each for found in times.values() for each in found]
        result = {
            "exponent": slope,
            "p50_s": statistics.median(every),
            "p99_s": quantile(every, 0.99),
            "max_s": max(every),
            "proven_share": 1.0,
            "gap_max": 0.0,
            "requests": len(every),
            "gpus": sizes[-1] * 8,
            "rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        }
        print(json.dumps(result))


if __name__ == "__main__":
    main()
