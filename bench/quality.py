"""How good a placement is beside simpler methods: `python -m bench.quality [--gpus 10000] [--busy 0.7] [--gangs 8,64,256,512]
[--cells 1,2,4,8] [--requests 64] [--sequences 3] [--length 120] [--seed 1] [--picture [FILE.png]] [--json]`.

The cluster, busy pattern and requests of bench.placement; the methods are those of bench.baselines. Two questions:

one request      Every method is asked the same request on the same snapshot, another pattern for each (a few jobs have ended). What is
                 compared: pods, leaf groups and nodes spanned, and cells of 8 and of 4 GPUs lost to it: how many fewer could be
                 placed afterwards. What the job itself must take is in it for everybody.
a sequence       Each method alone fills the cluster with the same long sequence of requests, of which each ends after a while; small gangs
                 come more often. What is compared: requests placed before the first refusal, and of all.

All placements, ours and theirs, pass fmsched.place.check, and ours must not be above any of theirs in the objective that it proves.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from bench.arguments import add_output, kinds_of, parsed, share, whole, wholes
from bench.baselines import METHODS, Method, terms_of
from bench.pictures import pyplot
from bench.placement import CHECKED_GPUS_MAX, cluster, request
from bench.slurm import quantile
from fmsched.model.job import Request
from fmsched.model.placement import Budget, Placement
from fmsched.model.snapshot import Snapshot
from fmsched.place.check import check
from fmsched.place.hosts import free_masks
from fmsched.place.solve import solve

OURS = "fmsched"
ENDED_SHARE = 0.02  # of the jobs, for each request another few
CELLS = (8, 4)
COMPARED = ("pods", "leaves", "nodes", *(f"cells_of_{size}_lost" for size in CELLS), "placed_share", "first_refused")
STAYS = 40  # requests later, on average, a job of a sequence ends


def ours(snapshot: Snapshot, asked: Request) -> Placement | None:
    verdict = solve(snapshot, asked, Budget())
    return verdict if isinstance(verdict, Placement) else None


ALL: dict[str, Method] = {OURS: ours, **METHODS}


@dataclass(frozen=True, slots=True)
class Answer:
    """One method's placement of one request. `objective`: the values of all terms, in order of importance."""

    seconds: float
    proven: bool
    gap: float
    pods: int
    leaves: int
    nodes: int
    left: tuple[int, ...]  # whole cells that could be placed afterwards, by CELLS
    lost: tuple[int, ...]  # how many fewer than before
    objective: tuple[int, ...]
    names: tuple[str, ...]  # of these terms


@dataclass(frozen=True, slots=True)
class Run:
    """One method on one sequence. `first_refused` is the length of the sequence where none was."""

    placed: int
    first_refused: int
    length: int


def whole_cells(snapshot: Snapshot) -> tuple[int, ...]:
    """By CELLS: how many could be placed, each on one node."""
    free = [mask.bit_count() for mask in free_masks(snapshot)]
    return tuple(sum(count // size for count in free) for size in CELLS)


def answer(method: Method, snapshot: Snapshot, asked: Request) -> Answer | None:
    began_s = time.perf_counter()
    placement = method(snapshot, asked)
    seconds = time.perf_counter() - began_s
    if placement is None:
        return None
    if asked.gpus <= CHECKED_GPUS_MAX:
        assert not check(snapshot, asked, placement), check(snapshot, asked, placement)[0]
    topology = snapshot.topology
    leaves = {int(topology.leaf_of[topology.index[node]]) for node in placement.nodes}
    pod = topology.domains[1] if len(topology.domains) > 1 else topology.domains[0]
    after = replace(snapshot, held={**snapshot.held, **{rank.gpu_id: asked.job for rank in placement.ranks}})
    left = whole_cells(after)
    lost = tuple(a - b for a, b in zip(whole_cells(snapshot), left, strict=True))
    terms = terms_of(snapshot, asked, placement)
    proven = placement.objective.optimal and method is ours
    gap = placement.objective.gap if method is ours else 0.0
    return Answer(
        seconds,
        proven,
        gap,
        len({int(pod[leaf]) for leaf in leaves}),
        len(leaves),
        len(placement.nodes),
        left,
        lost,
        tuple(terms.values()),
        tuple(terms),
    )


def side_by_side(
    snapshot: Snapshot, asked: Sequence[tuple[int, int]], seed: int, console: Console
) -> list[dict[str, Answer]]:
    """By request, the answers; requests that ours or another cannot place are left out."""
    chance = random.Random(seed)
    found = []
    for number, (gang, cell) in enumerate(track(asked, "one request", console=console, transient=True)):
        ended = {job for job in dict.fromkeys(snapshot.held.values()) if chance.random() < ENDED_SHARE}
        now = replace(snapshot, held={gpu: job for gpu, job in snapshot.held.items() if job not in ended})
        answers = {name: answer(method, now, request(number, gang, cell)) for name, method in ALL.items()}
        complete = {name: each for name, each in answers.items() if each is not None}
        if len(complete) == len(answers):
            best = min(each.objective for each in complete.values())
            assert complete[OURS].objective == best or not complete[OURS].proven, (
                f"a proven optimum was beaten: {gang}, {cell}"
            )
            found.append(complete)
    return found


def sequence(method: Method, snapshot: Snapshot, asked: Sequence[tuple[int, int, int]]) -> Run:
    """`asked`: GPUs of the gang, of a cell, and how many requests later it ends."""
    held = dict(snapshot.held)
    ends: dict[int, list[Placement]] = {}
    placed, first = 0, len(asked)
    for number, (gang, cell, stays) in enumerate(asked):
        for over in ends.pop(number, ()):
            for rank in over.ranks:
                del held[rank.gpu_id]
        found = method(replace(snapshot, held=held), request(number, gang, cell))
        if found is None:
            first = min(first, number)
            continue
        placed += 1
        held |= dict.fromkeys((rank.gpu_id for rank in found.ranks), found.job)
        ends.setdefault(number + stays, []).append(found)
    return Run(placed, first, len(asked))


def sequences(
    snapshot: Snapshot, kinds: Sequence[tuple[int, int]], args: argparse.Namespace, console: Console
) -> dict[str, list[Run]]:
    """By method, a run for each sequence. A gang comes the more often the smaller it is."""
    found: dict[str, list[Run]] = {name: [] for name in ALL}
    for number in track(range(args.sequences), "a sequence", console=console, transient=True):
        chance = random.Random(f"{args.seed}/{number}")
        drawn = chance.choices(kinds, [gang**-0.5 for gang, _ in kinds], k=args.length)
        asked = [(gang, cell, 1 + int(chance.expovariate(1 / STAYS))) for gang, cell in drawn]
        for name, method in ALL.items():
            found[name].append(sequence(method, snapshot, asked))
    return found


def row(name: str, answers: Sequence[dict[str, Answer]], runs: Sequence[Run]) -> dict[str, float]:
    mine = [each[name] for each in answers]
    return {
        "pods": statistics.fmean(each.pods for each in mine),
        "leaves": statistics.fmean(each.leaves for each in mine),
        "nodes": statistics.fmean(each.nodes for each in mine),
        **{f"cells_of_{size}_lost": statistics.fmean(each.lost[i] for each in mine) for i, size in enumerate(CELLS)},
        "placed_share": sum(run.placed for run in runs) / max(1, sum(run.length for run in runs)),
        "first_refused": statistics.fmean(run.first_refused for run in runs) if runs else 0.0,
        "p50_s": statistics.median(each.seconds for each in mine),
        **{f"cells_of_{size}_left": statistics.fmean(each.left[i] for each in mine) for i, size in enumerate(CELLS)},
    }


def summary(answers: Sequence[dict[str, Answer]], runs: dict[str, list[Run]]) -> dict[str, Any]:
    mine = [each[OURS] for each in answers]
    times = [each.seconds for each in mine]
    rows = {name: row(name, answers, runs[name]) for name in ALL}
    return {
        "requests": len(answers),
        "p50_s": statistics.median(times),
        "p99_s": quantile(times, 0.99),
        "max_s": max(times),
        "proven_share": sum(each.proven for each in mine) / len(mine),
        "gap_max": max(each.gap for each in mine),
        "methods": rows,
        "ratios": {name: ratios(rows[name], rows[OURS]) for name in METHODS},
        "terms": {
            term: {name: statistics.fmean(each[name].objective[at] for each in answers) for name in ALL}
            for at, term in enumerate(answers[0][OURS].names)
        },
        # Share of the requests on which the method's placement is as good as ours in every term of the objective.
        "as_good_share": {
            name: sum(each[name].objective == each[OURS].objective for each in answers) / len(answers) for name in METHODS
        },
    }


def ratios(theirs: dict[str, float], mine: dict[str, float]) -> dict[str, float]:
    """Theirs over ours. Above 1 is worse than ours, but for what is placed, where it is better."""
    return {name: theirs[name] / mine[name] if mine[name] else float(theirs[name] == 0) for name in COMPARED}


def report(result: dict[str, Any], busy: float, console: Console) -> None:
    heads = ("pods", "leaves", "nodes", *(f"{size}-GPU cells lost" for size in CELLS), "placed", "first refusal after")
    table = Table(
        "method",
        *heads,
        *(f"{size}-GPU cells left" for size in CELLS),
        "as good as ours",
        "p50",
        title=f"{result['requests']} requests at {busy:.0%} busy: means",
    )
    for name, values in result["methods"].items():
        as_good = f"{result['as_good_share'][name]:.0%}" if name in METHODS else "-"
        cells = [f"{values[key]:.2f}" for key in COMPARED[:-2]]
        left = [f"{values[f'cells_of_{size}_left']:.1f}" for size in CELLS]
        table.add_row(
            name,
            *cells,
            f"{values['placed_share']:.1%}",
            f"{values['first_refused']:.1f}",
            *left,
            as_good,
            f"{values['p50_s'] * 1e3:.1f} ms",
        )
    console.print(table)
    table = Table("term, most important first", *result["methods"], title="Means of the terms that differ; lower is better")
    for term, values in result["terms"].items():
        if len(set(values.values())) > 1:
            table.add_row(term, *(f"{value:.2f}" for value in values.values()))
    console.print(table)
    table = Table("over ours", *heads, title="Ratios: spans and losses above 1 are worse than ours, what is placed below 1")
    for name, values in result["ratios"].items():
        table.add_row(name, *(f"{value:.2f}" for value in values.values()))
    console.print(table)


def draw(result: dict[str, Any], path: Path) -> None:
    """Left: the ratios of one request. Right: the share of a sequence that is placed."""
    plt = pyplot()

    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 5), width_ratios=(3, 2))
    keys = ["pods", "leaves", "nodes", *(f"cells_of_{size}_lost" for size in CELLS)]
    width = 0.8 / len(METHODS)
    for number, (name, values) in enumerate(result["ratios"].items()):
        left.bar([at + number * width for at in range(len(keys))], [values[key] for key in keys], width, label=name)
    left.axhline(1.0, color="black", linewidth=0.8)
    left.set_xticks([at + 0.4 - width / 2 for at in range(len(keys))], [key.replace("_", " ") for key in keys])
    left.set(ylabel="over ours", title="One request: below the line is better than ours")
    left.legend()
    names = list(result["methods"])
    right.bar(names, [result["methods"][name]["placed_share"] for name in names], color=["C7", "C0", "C1", "C2", "C3"])
    right.set(ylabel="share of requests placed", title="A long sequence")
    right.tick_params(axis="x", rotation=25)
    figure.savefig(path, dpi=120, bbox_inches="tight")


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.quality", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--gpus", type=whole(8), default=10_000)
    parser.add_argument("--busy", type=share, default=0.7)
    parser.add_argument("--gangs", type=wholes(), default="8,64,256,512")
    parser.add_argument("--cells", type=wholes(), default="1,2,4,8")
    parser.add_argument("--requests", type=whole(), default=64)
    parser.add_argument("--sequences", type=whole(0), default=3)
    parser.add_argument("--length", type=whole(), default=120, help="requests of a sequence")
    parser.add_argument("--seed", type=int, default=1)
    add_output(parser)
    args = parsed(parser)
    console = Console(stderr=True)
    snapshot = cluster(args.gpus, args.busy, args.seed)
    kinds = kinds_of(parser, args.gangs, args.cells)
    asked = [kinds[number % len(kinds)] for number in range(args.requests)]
    solve(snapshot, request(-1, 8, 8), Budget())  # what a topology costs once is not a request's time
    answers = side_by_side(snapshot, asked, args.seed, console)
    if not answers:
        raise SystemExit("no request could be placed by every method: nothing to compare; ask for less, or --busy less")
    result = summary(answers, sequences(snapshot, kinds, args, console))
    report(result, args.busy, Console(stderr=args.json, width=150))
    if args.picture:
        draw(result, args.picture)
    if args.json:
        rss_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps(result | {"gpus": args.gpus, "rss_mb": rss_mb}))


if __name__ == "__main__":
    main()
