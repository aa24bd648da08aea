"""fmctl plan."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from fmclient.cli.exits import CANNOT_BE_PLACED, DONE, USAGE, fail
from fmclient.cli.files import STDIN, naming, read
from fmclient.cli.offline import offline
from fmclient.cli.options import FormOption, ManifestOption, ServerOption, TimeoutOption, connect
from fmclient.cli.output import Form, print_data, say

VERDICTS = {"placed": "can be placed now", "waits": "has to wait", "never": "can never run on this cluster"}


def plan(
    ctx: typer.Context,
    file: ManifestOption,
    cluster: Annotated[
        str | None,
        typer.Option("--cluster", metavar="FILE", help="Against this Cluster file, with no service; else the live one."),
    ] = None,
    output: FormOption = Form.TEXT,
    server: ServerOption = None,
    timeout_s: TimeoutOption = None,
) -> None:
    """Say where a job would go, and commit nothing. Exit 4 where it would wait, or can never run."""
    if cluster == STDIN == file:
        raise fail("fmctl: -f and --cluster cannot both be -: standard input is one file", USAGE)
    source = read(file)
    if cluster is not None:
        target = read(cluster)
        found = offline("plan", source.raw, source.where, target.raw, target.where)
    else:
        with connect(ctx, server, timeout_s) as client, naming(source.where):
            found = client.plan(source.raw)
    if output is Form.TEXT:
        for line in plan_lines(found):
            say(line)
    else:
        print_data(found, output)
    raise typer.Exit(DONE if found.get("verdict") == "placed" else CANNOT_BE_PLACED)


def plan_lines(found: dict[str, Any]) -> list[str]:
    """The object of `-o json`, for people."""
    from fmclient.cli.why import why_lines, why_of

    verdict = str(found.get("verdict"))
    lines = [f"{found.get('job')}: {VERDICTS.get(verdict, verdict)}"]
    lines += [f"  {line}" for line in why_lines(why_of(each) for each in found.get("why") or ())]
    ranks = found.get("ranks") or []
    lines += rank_lines(ranks)
    if ranks and found.get("objective"):
        lines += objective_lines(found["objective"])
    return (
        lines
        + _fact_lines("solve", found.get("solve"))
        + predicted_lines(found.get("predicted") or {})
        + (choice_lines(found.get("choices") or []))
    )


def rank_lines(ranks: list[dict[str, Any]]) -> list[str]:
    """A line for each node and group: which GPUs, which ranks."""
    from fmclient.cli.human import count, ranges

    shares: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for rank in ranks:
        group = f"{rank['group']} (spare)" if rank.get("spare") else str(rank["group"])
        shares.setdefault((str(rank["node"]), group), []).append(rank)
    if not shares:
        return []
    node_width, group_width = (max(len(key[place]) for key in shares) for place in (0, 1))
    lines = [f"  {count(len(ranks), 'GPU')} on {count(len({node for node, _ in shares}), 'node')}:"]
    for (node, group), share in shares.items():
        gpus = ranges(int(rank["gpu"]["index"]) for rank in share)
        numbers = ranges(int(rank["rank"]) for rank in share)
        lines.append(f"    {node:<{node_width}}  {group:<{group_width}}  GPU {gpus}  rank {numbers}")
    return lines


def objective_lines(objective: dict[str, Any]) -> list[str]:
    """What was minimised, the most important term first: the weights only order them, and are left to `-o json`."""
    from fmclient.cli.human import amount, one

    gap = float(objective.get("gap") or 0.0)
    proof = (
        "proven: no placement is better" if objective.get("optimal") else f"within {max(gap, 1e-6):.2%} of the proven bound"
    )
    terms = [(str(term["name"]), float(term.get("value") or 0.0)) for term in objective.get("terms") or ()]
    shown = [(amount(value), one(name) if value == 1 else name) for name, value in terms if value]
    width = max((len(value) for value, _ in shown), default=0)
    lines = [f"  {proof}; minimised, in this order:"]
    lines += [f"    {value:>{width}} {name}" for value, name in shown]
    if zeros := [name for name, value in terms if not value]:
        lines.append(f"    0 of: {'; '.join(zeros)}")
    return lines


_PARTS = {
    "compute_s": "compute",
    "tp_s": "tensor",
    "cp_s": "context",
    "ep_s": "expert",
    "pp_s": "pipeline",
    "dp_s": "data",
    "bubble_s": "bubble",
}


def predicted_lines(predicted: dict[str, Any]) -> list[str]:
    """The step time, what it is made of, the weakest link of each group, and what had to be assumed; or why none is predicted."""
    if "step_s" not in predicted:
        return [f"  predicted: nothing; {predicted['unknown']}"] if "unknown" in predicted else []
    step = f"{predicted['step_s']:.3g} s a step, {predicted['tokens_per_s']:,.0f} tokens/s, MFU {predicted['mfu']:.0%}"
    parts = ", ".join(f"{name} {predicted[key]:.3g} s" for key, name in _PARTS.items() if predicted.get(key))
    lines = [f"  predicted: {step}", f"    of which {parts} (what overlaps counts twice)"]
    for link in predicted.get("links") or ():
        ends = " and ".join(dict.fromkeys(link["between"]))
        lines.append(
            f"    {link['group']} groups of {link['ranks']}: {link['kind']}, {link['gbps']:g} Gb/s, weakest at {ends}"
        )
    if assumed := predicted.get("assumed"):
        lines.append(f"    assumed: {'; '.join(assumed)}")
    return lines


def choice_lines(choices: list[dict[str, Any]]) -> list[str]:
    """What else the job could run on: now, or how long a wait for it would pay."""
    if not choices:
        return []
    rows = [("choice", "step", "tokens/s", "an hour", "")]
    for choice in choices:
        cost = choice.get("cost_per_hour")
        rows.append(
            (
                str(choice["name"]),
                f"{choice['step_s']:.3g} s",
                f"{choice['tokens_per_s']:,.0f}",
                "" if cost is None else f"{cost:g}",
                _when(choice),
            )
        )
    if not any(row[3] for row in rows[1:]):
        rows = [(*row[:3], "", row[4]) for row in rows]
    first, *figures = (max(len(row[at]) for row in rows) for at in range(4))
    lines = []
    for row in rows:
        cells = [f"{text:>{width}}" for text, width in zip(row[1:4], figures, strict=True) if width]
        lines.append("  ".join([f"  {row[0]:<{first}}", *cells, row[4]]).rstrip())
    return lines


def _when(choice: dict[str, Any]) -> str:
    if choice.get("now"):
        return "now"
    wait_s = float(choice.get("pays_if_shorter_than_s") or 0.0)
    if not wait_s:
        return "not now"
    return f"not now; with a day of work ahead, a wait of less than {wait_s / 3600:.3g} h pays"


def _fact_lines(title: str, facts: Any) -> list[str]:
    if not isinstance(facts, dict) or not facts:
        return []
    shown = ", ".join(
        f"{name} {value:.3g}" if isinstance(value, float) else f"{name} {value}" for name, value in facts.items()
    )
    return [f"  {title}: {shown}"]
