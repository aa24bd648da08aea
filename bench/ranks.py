"""Arnold's measure: `python -m bench.ranks [--pods 5] [--leaves 15] [--nodes-per-leaf 16] [--busy 0.5] [--jobs 8x4,4x8,…]
[--patterns 2] [--limit 5] [--seed 1] [--picture FILE.png] [--json]`.

Arnold (He et al., "Efficient Pre-Training of LLMs via Topology-Aware Communication Alignment on More Than 9600 GPUs", NeurIPS 2025,
arXiv:2509.15940) takes as the spread of a communication group the number of network domains ("minipods") that its ranks lie in, and reports
that the maximum spread over the data-parallel (DP) and pipeline-parallel (PP) groups of a job was up to 1.67 times lower than that of
other schedulers, in simulation. Only the abstract and summaries of it could be read here: their clusters and jobs are not these.

Here: 1,200 nodes of 8 GPUs under leaf switches, pods of leaves, and a core; TP 8 is a node, so a job of DP x PP takes DP·PP nodes. Beside
one another, on the same snapshots:

    greedy packing             as few domains as a greedy choice gives (bench.baselines), ranks in the order in which nodes are taken:
                               Megatron-LM's own order, TP fastest, then DP, then PP (arXiv:2104.04473). All ratios are over this line
    best fit by leaf, first fit   likewise
    ours, stages               `parallelism: {tensor, pipeline, data}` as it stands: a PipelineParallel group a stage, no connectivity.
                               What fmsched does unasked: "ours" in every sum below
    ours, stages in a leaf     the same with maxHopCount 1: the stages of a replica share a leaf. Refused where leaves have not the room
    ours, stages in a pod      the same with maxHopCount 3
    ours, one group            the job as DP·PP cells of one TensorParallel group: without stages there is no map, as a check of its worth
    greedy packing, ranks in strips   greedy's nodes, numbered again leaf by leaf in strips of h stages (h: the divisor of PP with the
                               lowest maximum spread)
    bound                      what no placement and no rank map can go below

The bound is proven: a domain with k nodes of the job touches r replicas and s stages with r·s ≥ k. Summed over domains, DP·s + PP·r is DP
times the stages' spreads and PP times the replicas', together at most 2·DP·PP times the maximum. What it is at least, over all ways to
share the job's nodes out to domains with so many free ones, is counted exactly. "Reached" is greedy less ours, over greedy less the bound.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from bench.arguments import add_output, parsed, share, whole
from bench.baselines import METHODS
from bench.pictures import pyplot
from bench.slurm import quantile
from fmsched.manifest.job import Parallelism
from fmsched.manifest.parallel import Wants, expand
from fmsched.model.fabric import Topology
from fmsched.model.job import GroupKind, Reach, Request, ResourceGroup
from fmsched.model.placement import Budget, Placement
from fmsched.model.snapshot import Snapshot
from fmsched.place.solve import solve
from fmsched.topology.clusterfile import ClusterFile, parse, to_snapshot
from fmsched.topology.generate import Plan, generate

TP = 8
NEVER = 1 << 40
ARNOLD_RATIO = 1.67  # what the paper reports: greedy over its own, "up to"
ENDED_SHARE = 0.1  # of the jobs, for each pattern others
GREEDY = "greedy packing"
NAIVE = (GREEDY, "best fit by leaf", "first fit")  # of bench.baselines; the reference of all ratios first
FORMS = ("ours, stages", "ours, stages in a leaf", "ours, stages in a pod", "ours, one group")
OURS, ONE_GROUP = FORMS[0], FORMS[3]
BOUND = "bound"
LEVELS = ("leaf", "pod")

Grid = list[list[str]]  # [stage][replica] → node
Remap = Callable[[Sequence[str]], Grid]


@dataclass(frozen=True, slots=True)
class Spread:
    """Of one job, at one level: the most domains that a DP group, and a PP group, lies in."""

    dp: int
    pp: int

    @property
    def most(self) -> int:
        return max(self.dp, self.pp)


@dataclass(frozen=True, slots=True)
class Sample:
    method: str
    job: tuple[int, int]  # DP, PP
    spread: dict[str, Spread]  # by level
    bound: dict[str, int]  # by level: no placement of the job has a lower maximum
    seconds: float = 0.0
    proven: bool = True
    gap: float = 0.0


def snapshot_of(args: argparse.Namespace) -> Snapshot:
    plan = Plan(args.pods, args.leaves, args.nodes_per_leaf, "hgx-h100", args.busy)
    found = parse(generate(plan, random.Random(args.seed)))
    assert isinstance(found, ClusterFile), found
    return to_snapshot(found)


def domain_of(topology: Topology, level: str, node: str) -> int:
    leaf = int(topology.leaf_of[topology.index[node]])
    return int(topology.domains[LEVELS.index(level)][leaf])


def spread_of(topology: Topology, level: str, grid: Grid) -> Spread:
    """TP ranks of a cell share its node, so DP and PP groups of all TP ranks lie alike: one look a cell is enough."""
    domains = [[domain_of(topology, level, node) for node in stage] for stage in grid]
    return Spread(
        max(len(set(stage)) for stage in domains), max(len(set(replica)) for replica in zip(*domains, strict=True))
    )


def bounds_of(snapshot: Snapshot, dp: int, pp: int) -> dict[str, int]:
    """By level, a lower bound on the maximum spread of every placement: see the top of this file."""
    topology = snapshot.topology
    whole = [node.name for node in topology.nodes if len(snapshot.free_indices(node.name)) == TP]
    least = np.full(dp * pp + 1, dp * pp * 2, dtype=np.int64)  # of one domain, by its nodes
    for r in range(1, dp + 1):
        for s in range(1, pp + 1):
            least[: r * s + 1] = np.minimum(least[: r * s + 1], dp * s + pp * r)
    least[0] = 0
    found = {}
    for level in LEVELS:
        best = np.full(dp * pp + 1, NEVER, dtype=np.int64)  # of the domains so far, by their nodes together
        best[0] = 0
        for nodes in Counter(domain_of(topology, level, node) for node in whole).values():
            before = best.copy()
            for taken in range(1, min(nodes, dp * pp) + 1):
                best[taken:] = np.minimum(best[taken:], before[:-taken] + least[taken])
        found[level] = -(-int(best[-1]) // (2 * dp * pp))
    return found


def grid_of(placement: Placement, dp: int, pp: int) -> Grid:
    """By rank order: [stage][replica]. With a group a stage, and with one group, ranks go stage by stage, then replica."""
    nodes = [placement.ranks[cell * TP].node for cell in range(dp * pp)]
    for cell, node in enumerate(nodes):
        assert all(rank.node == node for rank in placement.ranks[cell * TP : (cell + 1) * TP]), "a cell is a node"
    return [nodes[stage * dp : (stage + 1) * dp] for stage in range(pp)]


def in_strips(topology: Topology, grid: Grid) -> Grid:
    """The same nodes, leaf by leaf, in strips of h stages; the h with the lowest maximum spread over leaves, then over pods."""
    pp, dp = len(grid), len(grid[0])
    nodes = sorted(
        (node for stage in grid for node in stage),
        key=lambda node: (domain_of(topology, "pod", node), domain_of(topology, "leaf", node), topology.index[node]),
    )
    found = []
    for height in (h for h in range(1, pp + 1) if pp % h == 0):
        made: Grid = [[""] * dp for _ in range(pp)]
        for at, node in enumerate(nodes):
            strip, inside = divmod(at, height * dp)
            made[strip * height + inside % height][inside // height] = node
        found.append(made)
    return min(found, key=lambda made: tuple(spread_of(topology, level, made).most for level in LEVELS))


def form(name: str, dp: int, pp: int) -> Request:
    """The job as our manifest can ask for it."""
    wants = Wants(preferred=("h100",), min_nvlink_gbytes_per_s=900.0)
    if name == "ours, one group":
        return one_group(dp, pp)
    reach = {"ours, stages in a leaf": Reach(1), "ours, stages in a pod": Reach(3)}.get(name)
    replicas, groups = expand(Parallelism(tensor=TP, pipeline=pp, data=dp), replace(wants, reach=reach))
    return Request("bench", groups, replicas)


def one_group(dp: int, pp: int) -> Request:
    group = ResourceGroup("cell", GroupKind.TENSOR_PARALLEL, TP, ("h100",), min_nvlink_gbytes_per_s=900.0)
    return Request("bench", (group,), dp * pp)


def sample(
    method: str, topology: Topology, grid: Grid, seconds: float, placement: Placement | None, bound: dict[str, int]
) -> Sample:
    dp, pp = len(grid[0]), len(grid)
    return Sample(
        method,
        (dp, pp),
        {level: spread_of(topology, level, grid) for level in LEVELS},
        bound,
        seconds,
        placement is None or placement.objective.optimal,
        0.0 if placement is None else placement.objective.gap,
    )


def measure(snapshot: Snapshot, dp: int, pp: int, limit_s: float) -> list[Sample]:
    """All lines of one job on one snapshot; empty where the job does not fit at all."""
    topology, bound = snapshot.topology, bounds_of(snapshot, dp, pp)
    found: list[Sample] = []
    for name in NAIVE:
        began_s = time.perf_counter()
        packed = METHODS[name](snapshot, one_group(dp, pp))
        seconds = time.perf_counter() - began_s
        if packed is None:
            return []
        grid = grid_of(packed, dp, pp)
        found.append(sample(name, topology, grid, seconds, None, bound))
        if name == GREEDY:
            found.append(sample(f"{GREEDY}, ranks in strips", topology, in_strips(topology, grid), 0.0, None, bound))
    for name in FORMS:
        began_s = time.perf_counter()
        verdict = solve(snapshot, form(name, dp, pp), Budget(limit_s, explain_solves_max=0))
        seconds = time.perf_counter() - began_s
        if isinstance(verdict, Placement):
            grid = grid_of(verdict, dp, pp)
            found.append(sample(name, topology, grid, seconds, verdict, bound))
    return found


def run(snapshot: Snapshot, jobs: Sequence[tuple[int, int]], args: argparse.Namespace, console: Console) -> list[Sample]:
    found: list[Sample] = []
    patterns = []
    for number in range(args.patterns):
        chance = random.Random(f"{args.seed}/{number}")
        ended = {job for job in dict.fromkeys(snapshot.held.values()) if chance.random() < ENDED_SHARE}
        patterns.append(replace(snapshot, held={gpu: job for gpu, job in snapshot.held.items() if job not in ended}))
    asked = [(now, dp, pp) for now in patterns for dp, pp in jobs]
    for now, dp, pp in track(asked, "placing", console=console, transient=True):
        found += measure(now, dp, pp, args.limit)
    return found


def means(samples: Sequence[Sample], method: str) -> dict[str, float]:
    mine = [each for each in samples if each.method == method]
    if not mine:
        return {}
    found: dict[str, float] = {
        "jobs": len(mine),
        "p50_s": statistics.median(each.seconds for each in mine),
        "max_s": max(each.seconds for each in mine),
        "proven_share": sum(each.proven for each in mine) / len(mine),
    }
    for level in LEVELS:
        found[f"{level}_dp"] = statistics.fmean(each.spread[level].dp for each in mine)
        found[f"{level}_pp"] = statistics.fmean(each.spread[level].pp for each in mine)
        found[f"{level}_max"] = statistics.fmean(each.spread[level].most for each in mine)
        found[f"{level}_bound"] = statistics.fmean(each.bound[level] for each in mine)
    return found


def ratio(samples: Sequence[Sample], method: str, level: str) -> tuple[float, float]:
    """(greedy's maximum group spread over this method's: over all jobs it placed, by sums; the greatest of any one job)."""
    # Samples of one job on one pattern stand together, greedy first.
    pairs: list[tuple[int, int]] = []
    greedy = 0
    for each in samples:
        if each.method == GREEDY:
            greedy = each.spread[level].most
        if each.method == method:
            pairs.append((greedy, each.spread[level].most))
    if not pairs:
        return 0.0, 0.0
    return sum(a for a, _ in pairs) / sum(b for _, b in pairs), max(a / b for a, b in pairs)


def methods() -> list[str]:
    return [*NAIVE, f"{GREEDY}, ranks in strips", *FORMS]


def reached_share(samples: Sequence[Sample], level: str) -> float:
    """Of what greedy could do better, over all jobs: the share that ours does better. 1 where nothing could be better."""
    of = {method: [each for each in samples if each.method == method] for method in (GREEDY, OURS)}
    greedy, ours = (sum(each.spread[level].most for each in of[method]) for method in (GREEDY, OURS))
    possible = greedy - sum(each.bound[level] for each in of[GREEDY])
    return (greedy - ours) / possible if possible else 1.0


def summary(samples: Sequence[Sample]) -> dict[str, Any]:
    times = [each.seconds for each in samples if each.method in FORMS]
    ours = [each for each in samples if each.method in FORMS]
    rows = {}
    for method in methods():
        if found := means(samples, method):
            for level in LEVELS:
                found[f"{level}_ratio"], found[f"{level}_ratio_max"] = ratio(samples, method, level)
            rows[method] = found
    best = rows[OURS]
    jobs = [each for each in samples if each.method == GREEDY]
    return {
        "requests": len(ours),
        "p50_s": statistics.median(times),
        "p99_s": quantile(times, 0.99),
        "max_s": max(times),
        "proven_share": sum(each.proven for each in ours) / len(ours),
        "gap_max": max(each.gap for each in ours),
        "spread_ratio_leaf": best["leaf_ratio"],
        "spread_ratio_pod": best["pod_ratio"],
        "spread_ratio_leaf_max": best["leaf_ratio_max"],
        "spread_ratio_pod_max": best["pod_ratio_max"],
        "arnold_ratio": ARNOLD_RATIO,
        "bound_ratio_leaf": sum(each.spread["leaf"].most for each in jobs) / sum(each.bound["leaf"] for each in jobs),
        "bound_ratio_leaf_max": max(each.spread["leaf"].most / each.bound["leaf"] for each in jobs),
        "share_of_possible_leaf": reached_share(samples, "leaf"),
        "reached": best["leaf_ratio"] >= ARNOLD_RATIO,
        "methods": rows,
    }


def report(samples: Sequence[Sample], result: dict[str, Any], jobs: Sequence[tuple[int, int]], console: Console) -> None:
    shown = {"leaf": ("dp", "pp", "max", "bound", "ratio", "ratio_max"), "pod": ("max", "ratio")}
    keys = [f"{level}_{what}" for level, what_of in shown.items() for what in what_of]
    heads = [key.replace("ratio_max", "up to").replace("_", " ") for key in keys]
    table = Table(
        "means over jobs",
        "jobs",
        *heads,
        "p50",
        "max",
        "proven",
        title="Domains that the widest group of a job lies in; ratio: greedy's maximum over it",
    )
    for method, found in result["methods"].items():
        table.add_row(method, f"{found['jobs']:.0f}", *(f"{found[key]:.2f}" for key in keys), *_cost(method, found))
    console.print(table)
    table = Table("DP x PP", "nodes", *methods(), BOUND, title="Maximum spread over leaf groups, means over the patterns")
    for dp, pp in jobs:
        cells = []
        for method in methods():
            mine = [each.spread["leaf"].most for each in samples if each.method == method and each.job == (dp, pp)]
            cells.append(f"{statistics.fmean(mine):.1f}" if mine else "refused")
        bounds = [each.bound["leaf"] for each in samples if each.method == GREEDY and each.job == (dp, pp)]
        table.add_row(f"{dp} x {pp}", str(dp * pp), *cells, f"{statistics.fmean(bounds):.1f}" if bounds else "")
    console.print(table)
    reached = "reached" if result["reached"] else "not reached"
    console.print(
        f"Arnold's {ARNOLD_RATIO} in the mean: {reached}. Ours: {result['spread_ratio_leaf']:.2f} over leaves (one job: up to "
        f"{result['spread_ratio_leaf_max']:.2f}), {result['spread_ratio_pod']:.2f} over pods (up to {result['spread_ratio_pod_max']:.2f}). "
        f"No placement has more than {result['bound_ratio_leaf']:.2f} over leaves (up to {result['bound_ratio_leaf_max']:.2f}): "
        f"{result['share_of_possible_leaf']:.0%} of what is possible."
    )


def _cost(method: str, found: dict[str, float]) -> tuple[str, str, str]:
    if "strips" in method:
        return "", "", ""
    proven = f"{found['proven_share']:.0%}" if method in FORMS else ""
    return f"{found['p50_s']:.2f} s", f"{found['max_s']:.2f} s", proven


def draw(samples: Sequence[Sample], jobs: Sequence[tuple[int, int]], path: Path) -> None:
    """Maximum spread over leaf groups, by job."""
    plt = pyplot()

    figure, axes = plt.subplots(figsize=(11, 5))
    shown = [GREEDY, "best fit by leaf", ONE_GROUP, OURS]
    width = 0.8 / len(shown)
    for number, method in enumerate(shown):
        by_job = [
            [each.spread["leaf"].most for each in samples if each.method == method and each.job == job] for job in jobs
        ]
        heights = [statistics.fmean(mine) if mine else 0.0 for mine in by_job]
        axes.bar([at + number * width for at in range(len(jobs))], heights, width, label=method)
    for at, job in enumerate(jobs):
        bounds = [each.bound["leaf"] for each in samples if each.method == GREEDY and each.job == job]
        if bounds:
            axes.hlines(statistics.fmean(bounds), at - width / 2, at + 0.8 - width / 2, colors="black", linestyles="dashed")
    axes.set_xticks([at + 0.4 - width / 2 for at in range(len(jobs))], [f"{dp}x{pp}" for dp, pp in jobs])
    axes.set(xlabel="DP x PP, TP 8", ylabel="leaf groups that the widest group lies in", title="Maximum group spread")
    axes.grid(alpha=0.3, axis="y")
    axes.legend()
    figure.savefig(path, dpi=120, bbox_inches="tight")


def degrees(text: str) -> list[tuple[int, int]]:
    """Pairs such as 8x4, separated by commas."""
    pairs = [part.split("x") for part in text.split(",")]
    if any(len(pair) != 2 for pair in pairs):
        raise argparse.ArgumentTypeError(f"found {text!r}; allowed: DPxPP, such as 8x4, separated by commas")
    return [(whole()(dp), whole()(pp)) for dp, pp in pairs]


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.ranks", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pods", type=whole(), default=5)
    parser.add_argument("--leaves", type=whole(), default=15, help="of a pod")
    parser.add_argument("--nodes-per-leaf", type=whole(), default=16)
    parser.add_argument("--busy", type=share, default=0.5)
    parser.add_argument("--jobs", type=degrees, default="8x4,4x8,16x4,8x8,32x4,16x8", help="DPxPP, of TP 8")
    parser.add_argument("--patterns", type=whole(), default=2, help="of busy GPUs")
    parser.add_argument("--limit", type=float, default=Budget().deterministic_s, help="deterministic seconds of one solve")
    parser.add_argument("--seed", type=int, default=1)
    add_output(parser)
    args = parsed(parser)
    jobs: list[tuple[int, int]] = args.jobs
    snapshot = snapshot_of(args)
    solve(snapshot, one_group(1, 1), Budget())  # what a topology costs once is not a request's time
    samples = run(snapshot, jobs, args, Console(stderr=True))
    if not samples:
        raise SystemExit("no job fits: ask for less, or --busy less")
    result = summary(samples)
    report(samples, result, jobs, Console(stderr=args.json, width=180))
    if args.picture:
        draw(samples, jobs, args.picture)
    if args.json:
        rss_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        gpus = sum(len(node.shape.gpus) for node in snapshot.topology.nodes)
        print(json.dumps(result | {"gpus": gpus, "rss_mb": rss_mb}))


if __name__ == "__main__":
    main()
