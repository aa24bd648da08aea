"""Beside a live Slurm: `python -m bench.slurm [--nodes 1250] [--busy 0.7] [--gangs 8,64,256,512] [--cells 8] [--ragged 0]
[--rounds 25] [--seed 1] [--picture [FILE.png]] [--json]`.

Slurm 22.05 as Debian has it, with described nodes and no slurmd (bench.slurm_cluster), and a real fm-scheduler over a real etcd with the
same nodes (bench.described_service).

Slurm fills the cluster with whole-node jobs of mixed sizes, the share `--ragged` of the nodes with jobs of 1 to 7 GPUs, and random ones
end, until the share is reached; what it has given to whom is read back from it, and our nodes report that they run just that. Then both
are asked the same: so many cells. Cells of 8 are whole nodes (`-N n --gpus-per-node=8 --exclusive`, Slurm's fastest form), smaller ones
are tasks (`--ntasks=n --gpus-per-task=CELL`). Each round meets another pattern, and the one who is asked first alternates.

Times are a client's, from the question to the answer in hand. Slurm's client is `sbatch --test-only`, a process that is started for the
one question; ours is fmclient's Plan call over an open channel. So two ratios are given: to the whole of sbatch, and to sbatch less what
`sbatch --version` takes, which is what its call alone costs. `fmctl plan`, a process as well, stands beside them. CPU is what client and
server spent on a processor for the answer: on a busy machine it says more than the clock.

Answers are compared by (spines, leaves), in that order, over the requests that both would start now. Nothing is installed: where Debian
packages are missing they are named, and the exit status is 2.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from bench.arguments import add_output, kinds_of, parsed, share, whole, wholes
from bench.described_service import DescribedService
from bench.pictures import pyplot
from bench.slurm_cluster import Held, Layout, Slurm, missing

GPUS_PER_NODE = 8
TURNOVER = 0.05  # of the nodes, from one round to the next
STARTS = 20  # of each client program, to know what starting it costs
MANIFEST = """apiVersion: ai.example.com/v1alpha1
kind: FoundationModelTrainingJob
metadata: {{name: bench}}
spec:
  replicaCount: {cells}
  resourceGroups:
    - {{name: cell, type: TensorParallel, gpusPerGroup: {cell}}}
"""

OUTCOMES = {
    "fewer": "C2",
    "equal": "C7",
    "worse": "C3",
    "only ours now": "C0",
    "only Slurm now": "C1",
}  # with a colour each

Spans = tuple[int, int]  # spines, leaves
Plan = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Sample:
    """One request to both. Spans are None where the answer is not "now"."""

    gpus: int
    cell: int
    slurm_s: float  # of the whole client call
    slurm_server_s: float
    slurm_cpu_s: float  # on a processor: client and server
    ours_s: float  # of the whole client call
    solve_s: float
    ours_cpu_s: float
    slurm: Spans | None
    ours: Spans | None
    proven: bool
    gap: float

    @property
    def outcome(self) -> str:
        if self.ours is None:
            return "none now" if self.slurm is None else "only Slurm now"
        if self.slurm is None:
            return "only ours now"
        return "equal" if self.ours == self.slurm else "fewer" if self.ours < self.slurm else "worse"


@dataclass(frozen=True, slots=True)
class Around:
    """What is measured once."""

    slurm_version: str
    slurm_start_s: float  # median of `sbatch --version`
    fmctl_s: float  # median of `fmctl plan` of the smallest gang
    scheduler_rss_mb: float
    slurmctld_rss_mb: float
    load: tuple[float, float]  # of the machine over a minute: before and after


def cpu_s(pid: int) -> float:
    """Seconds that a process has been on a processor, threads that have ended included: not swayed by who else wants one. The clock's
    number is what clock_getcpuclockid(3) of glibc gives for another process: MAKE_PROCESS_CPUCLOCK(pid, CPUCLOCK_SCHED)."""
    return time.clock_gettime(~pid << 3 | 2)


def rss_mb(pid: int) -> float:
    (line,) = (line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) / 1024


def children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def free_after(layout: Layout, held: Held) -> dict[str, int]:
    """GPUs that no job holds, by node."""
    free = dict.fromkeys(layout.names, layout.gpus_per_node)
    for nodes in held.values():
        for node, gpus in nodes.items():
            free[node] -= gpus
    return free


def ask_slurm(
    slurm: Slurm, layout: Layout, gpus: int, cell: int, free: Mapping[str, int]
) -> tuple[Spans | None, float, float, float]:
    """(spans if it would start now, seconds at its client, in its server, on a processor)."""
    before = slurm.decisions()
    cpu_before_s = cpu_s(slurm.pid) + children_s()
    answer, seconds = slurm.will_run(gpus, cell)
    used_s = cpu_s(slurm.pid) + children_s() - cpu_before_s
    after = slurm.decisions()
    server_s = (after[1] - before[1]) / max(1, after[0] - before[0])
    # It does not say what of a node it would give: its nodes count as an answer for now where so many cells are free on them.
    now = sum(free[node] // cell for node in set(answer.nodes)) * cell >= gpus
    return (layout.spans(answer.nodes) if now else None), seconds, server_s, used_s


def ask_ours(
    service: DescribedService, layout: Layout, gpus: int, cell: int, free: Mapping[str, int]
) -> tuple[Spans | None, float, Plan, float]:
    """(spans if it would start now, seconds at its client, the plan, seconds on a processor)."""
    cpu_before_s = cpu_s(service.pid) + time.process_time()
    began_s = time.perf_counter()
    plan = service.client.plan(MANIFEST.format(cells=gpus // cell, cell=cell))
    seconds = time.perf_counter() - began_s
    used_s = cpu_s(service.pid) + time.process_time() - cpu_before_s
    if plan["verdict"] != "placed":
        return None, seconds, plan, used_s
    given = {(rank["node"], rank["gpu"]["index"]) for rank in plan["ranks"]}
    on = Counter(node for node, _ in given)
    assert len(given) == gpus, "so many GPUs were asked for"
    assert all(count % cell == 0 for count in on.values()), "whole cells were asked for"
    assert all(count <= free[node] for node, count in on.items()), "GPUs that another job holds were given"
    return layout.spans(on), seconds, plan, used_s


def one(
    slurm: Slurm, service: DescribedService, layout: Layout, asked: tuple[int, int], free: Mapping[str, int], first: bool
) -> Sample:
    """Slurm is asked before us where `first`."""
    if first:
        theirs = ask_slurm(slurm, layout, *asked, free)
        ours = ask_ours(service, layout, *asked, free)
    else:
        ours = ask_ours(service, layout, *asked, free)
        theirs = ask_slurm(slurm, layout, *asked, free)
    plan = ours[2]
    objective = plan["objective"] or {"optimal": True, "gap": 0.0}
    return Sample(
        *asked, theirs[1], theirs[2], theirs[3], ours[1], plan["solve"]["seconds"], ours[3], theirs[0], ours[0],
        objective["optimal"], objective["gap"],
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Asked:
    """What a run is made of. `kinds`: (GPUs of the gang, of a cell), each asked once a round; `ragged`: share of the nodes that jobs
    of less than a node fill."""

    nodes: int
    busy: float
    kinds: Sequence[tuple[int, int]]
    rounds: int
    seed: int
    ragged: float = 0.0


def measure(args: Asked, console: Console) -> tuple[list[Sample], Around]:
    layout = Layout(args.nodes)
    chance = random.Random(args.seed)
    before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="fmsched-bench-") as folder:
        root = Path(folder)
        service = DescribedService(root / "ours", layout.cluster_file(), layout.names, GPUS_PER_NODE)
        with Slurm(root / "slurm", layout) as slurm, service:
            with console.status("Slurm fills the cluster"):
                slurm.fill(args.busy, chance, args.ragged)
            samples: list[Sample] = []
            for number in track(range(args.rounds), "asking both", console=console, transient=True):
                if number:
                    slurm.change(args.busy, TURNOVER, chance)
                held = slurm.held()
                service.hold(held)
                free = free_after(layout, held)
                if not number:  # the first questions pay for imports, and for what a topology costs once
                    slurm.will_run(GPUS_PER_NODE, GPUS_PER_NODE)
                    service.client.plan(MANIFEST.format(cells=1, cell=GPUS_PER_NODE))
                samples += [one(slurm, service, layout, kind, free, bool(number % 2)) for kind in args.kinds]
            around = Around(
                slurm.version(), statistics.median(slurm.client_start_s(STARTS)), fmctl_s(root, service.server),
                rss_mb(service.pid), rss_mb(slurm.pid), (before, os.getloadavg()[0]),
            )  # fmt: skip
    return samples, around


def fmctl_s(root: Path, server: str) -> float:
    """Median seconds of the program `fmctl plan` of one GPU, from its start to its end."""
    job = root / "job.yaml"
    job.write_text(MANIFEST.format(cells=1, cell=1))
    command = [sys.executable, "-m", "fmclient.cli.main", "--server", server, "plan", "-f", str(job), "-o", "json"]
    times = []
    for _ in range(5):
        began_s = time.perf_counter()
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        times.append(time.perf_counter() - began_s)
        if done.returncode or '"placed"' not in done.stdout:
            raise SystemExit(f"fmctl plan: {done.returncode}: {(done.stderr or done.stdout)[-300:]}")
    return statistics.median(times)


def summary(samples: Sequence[Sample], around: Around) -> dict[str, Any]:
    ours = [sample.ours_s for sample in samples]
    slurm = [sample.slurm_s for sample in samples]
    count = {name: sum(sample.outcome == name for sample in samples) for name in OUTCOMES}
    # A request that Slurm would start now and we would not is worse, whatever it spans.
    worse = count["worse"] + count["only Slurm now"]
    compared = max(1, worse + count["equal"] + count["fewer"])
    p50_s, slurm_p50_s = statistics.median(ours), statistics.median(slurm)
    return {
        "p50_s": p50_s,
        "p99_s": quantile(ours, 0.99),
        "max_s": max(ours),
        "proven_share": sum(sample.proven for sample in samples) / len(samples),
        "gap_max": max(sample.gap for sample in samples),
        "requests": len(samples),
        "solve_p50_s": statistics.median(sample.solve_s for sample in samples),
        "solve_p99_s": quantile([sample.solve_s for sample in samples], 0.99),
        "slurm_p50_s": slurm_p50_s,
        "slurm_p99_s": quantile(slurm, 0.99),
        "slurm_server_mean_s": statistics.fmean(sample.slurm_server_s for sample in samples),
        "slurm_start_s": around.slurm_start_s,
        "latency_ratio_p50": p50_s / slurm_p50_s,
        "cpu_p50_s": statistics.median(sample.ours_cpu_s for sample in samples),
        "slurm_cpu_p50_s": statistics.median(sample.slurm_cpu_s for sample in samples),
        "latency_ratio_call_p50": p50_s / max(1e-9, slurm_p50_s - around.slurm_start_s),
        "compared": compared,
        "worse": worse / compared,
        "equal": count["equal"] / compared,
        "fewer": count["fewer"] / compared,
        "only_ours_now": count["only ours now"],
        "only_slurm_now": count["only Slurm now"],
    }


def report(samples: Sequence[Sample], around: Around, kinds: Sequence[tuple[int, int]], console: Console) -> None:
    load = f"load of the machine {around.load[0]:.1f} before, {around.load[1]:.1f} after"
    table = Table(
        "GPUs", "cell", "asked", "ours p50", "p99", "solve", "CPU", "Slurm p50", "p99", "server", "CPU", "ratio p50", "to its call",
        *OUTCOMES, title=f"{around.slurm_version}, {len(samples)} requests; {load}",
    )  # fmt: skip
    for gpus, cell in [*kinds, (0, 0)]:
        mine = [sample for sample in samples if (sample.gpus, sample.cell) == (gpus, cell) or not gpus]
        row = summary(mine, around)
        count = [sum(sample.outcome == name for sample in mine) for name in OUTCOMES]
        times = ("p50_s", "p99_s", "solve_p50_s", "cpu_p50_s")
        table.add_row(
            str(gpus or "all"), str(cell or "all"), str(len(mine)), *(_ms(row[key]) for key in times),
            *(_ms(row[f"slurm_{key}"]) for key in ("p50_s", "p99_s", "server_mean_s", "cpu_p50_s")),
            f"{row['latency_ratio_p50']:.2f}", f"{row['latency_ratio_call_p50']:.2f}", *map(str, count),
        )  # fmt: skip
    console.print(table)
    console.print(
        f"sbatch --version: {_ms(around.slurm_start_s)}; fmctl plan, a whole process: {_ms(around.fmctl_s)}; "
        f"memory: fm-scheduler {around.scheduler_rss_mb:.0f} MB, slurmctld {around.slurmctld_rss_mb:.0f} MB"
    )
    differing = [sample for sample in samples if sample.outcome in ("fewer", "worse")]
    seen = Counter((sample.gpus, sample.cell, sample.slurm, sample.ours) for sample in differing)
    for (gpus, cell, theirs, ours), times in sorted(seen.items(), key=str)[:12]:
        console.print(f"  {gpus} GPUs in cells of {cell}, {times}×: Slurm (spines, leaves) {theirs}, ours {ours}")


def quantile(values: Sequence[float], part: float) -> float:
    return sorted(values)[min(len(values) - 1, math.ceil(part * len(values)) - 1)]


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms"


def draw(samples: Sequence[Sample], around: Around, gangs: Sequence[int], path: Path) -> None:
    """Left: how the client's times are distributed. Right: by gang, how the answers compare."""
    plt = pyplot()

    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 5))
    shares = [(i + 1) / len(samples) for i in range(len(samples))]
    lines = {
        "Plan call of fmclient": [sample.ours_s for sample in samples],
        "of which solve": [sample.solve_s for sample in samples],
        "sbatch --test-only": [sample.slurm_s for sample in samples],
        "of which in slurmctld": [sample.slurm_server_s for sample in samples],
    }
    for (label, values), style in zip(lines.items(), ("C0-", "C0:", "C1-", "C1:"), strict=True):
        left.step(sorted(value * 1e3 for value in values), shares, style, where="post", label=label)
    left.axvline(around.slurm_start_s * 1e3, color="grey", linewidth=0.8, label="sbatch --version")
    left.set(xscale="log", xlabel="ms", ylabel="share of requests", title="From question to answer")
    left.grid(alpha=0.3)
    below = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.12), "ncols": 3, "fontsize": "small"}
    left.legend(**below)
    bottom = [0] * len(gangs)
    for name, colour in OUTCOMES.items():
        counts = [sum(sample.outcome == name for sample in samples if sample.gpus == gpus) for gpus in gangs]
        right.bar([str(gpus) for gpus in gangs], counts, bottom=bottom, color=colour, label=name)
        bottom = [low + count for low, count in zip(bottom, counts, strict=True)]
    right.set(xlabel="GPUs asked", ylabel="requests", title="Spines, then leaves: ours against Slurm's")
    right.legend(**below)
    figure.savefig(path, dpi=120, bbox_inches="tight")


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.slurm", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--nodes", type=whole(), default=1250)
    parser.add_argument("--busy", type=share, default=0.7)
    parser.add_argument("--gangs", type=wholes(), default="8,64,256,512", help="GPUs")
    parser.add_argument("--cells", type=wholes(), default="8", help="GPUs of one node that belong together, at most 8")
    parser.add_argument("--ragged", type=share, default="0", help="share of the nodes that jobs of less than a node fill")
    parser.add_argument("--rounds", type=whole(), default=25)
    parser.add_argument("--seed", type=int, default=1)
    add_output(parser)
    args = parsed(parser)
    kinds = kinds_of(parser, args.gangs, [cell for cell in args.cells if cell <= GPUS_PER_NODE])
    packages = missing()
    if packages:
        print(f"Debian packages are missing: {install(packages)}", file=sys.stderr)
        raise SystemExit(2)
    asked = Asked(args.nodes, args.busy, kinds, args.rounds, args.seed, args.ragged)
    samples, around = measure(asked, Console(stderr=True))
    report(samples, around, kinds, Console(stderr=args.json, width=160))
    if args.picture:
        draw(samples, around, args.gangs, args.picture)
    if args.json:
        print(json.dumps(result(samples, around, args.nodes)))


def install(packages: Sequence[str]) -> str:
    return f"apt-get install --no-install-recommends {' '.join(packages)}"


def result(samples: Sequence[Sample], around: Around, nodes: int) -> dict[str, Any]:
    """The object that --json prints."""
    return summary(samples, around) | {
        "gpus": nodes * GPUS_PER_NODE, "rss_mb": around.scheduler_rss_mb, "slurm_rss_mb": around.slurmctld_rss_mb,
        "fmctl_s": around.fmctl_s, "load": around.load,
    }  # fmt: skip


if __name__ == "__main__":
    main()
