"""The cluster as a tree: leaves, nodes, and a mark for each GPU. Pure: messages in, rich text out."""

from __future__ import annotations

import string
from collections.abc import Iterable, Mapping, Sequence

from rich.text import Text
from rich.tree import Tree

from fmclient.cli.drawing.sets import nvlink_sets
from fmclient.cli.human import count
from fmclient.cli.nodes import CLOSED, DEGRADED, FREE, IN_USE, READY, GpuView, faults, gpu_views, is_free, reason_of, types
from fmclient.cli.output import state_style
from fmproto.v1.scheduler_pb2 import LinkUse, Node

# More lines than this are no picture any more: leaves are then summed up, unless asked for.
NODES_DRAWN_MAX = 128
LINKS_DRAWN_MAX = 32  # the fullest
JOBS_TOLD_MAX = 4  # of one link
NO_LEAF = "no leaf known"
MARK_FREE, MARK_SICK, MARK_CLOSED, MARK_DEGRADED = "·", "!", "-", "~"
_MARKS = {FREE: (MARK_FREE, ""), DEGRADED: (MARK_DEGRADED, "yellow"), CLOSED: (MARK_CLOSED, "dim")}
_LETTERS = string.ascii_uppercase + string.ascii_lowercase + string.digits
_COLOURS = ("cyan", "green", "magenta", "blue", "yellow", "bright_cyan", "bright_green", "bright_magenta", "bright_blue")


def leaf_of(node: Node) -> str:
    """The leaf group's name; NO_LEAF also for a node that is alone, whose group has its own name."""
    return NO_LEAF if node.leaf in ("", node.name) else node.leaf


def leaves_of(nodes: Iterable[Node]) -> set[str]:
    return {leaf_of(node) for node in nodes}


def drawing(nodes: Sequence[Node], names: Mapping[str, str], leaves: set[str], every: bool) -> list[Tree | Text]:
    """The tree and its legend. `names`: job id → name; `leaves`: only these, all where empty."""
    shown = sorted((node for node in nodes if not leaves or leaf_of(node) in leaves), key=lambda node: node.name)
    part = (
        f"{', '.join(sorted(leaves))} of the cluster's {count(len(leaves_of(nodes)), 'leaf group')}"
        if leaves
        else "cluster"
    )
    views = {node.name: gpu_views(node) for node in shown}
    marks = _marks(views.values())
    collapsed = len(shown) > NODES_DRAWN_MAX and not every and not leaves
    tree = Tree(_total(part, shown, views), guide_style="dim")
    for leaf in sorted(leaves_of(shown), key=lambda name: (name == NO_LEAF, name)):
        members = [node for node in shown if leaf_of(node) == leaf]
        branch = tree.add(_leaf_line(leaf, members, views))
        if not collapsed:
            _add_nodes(branch, members, views, marks)
    parts: list[Tree | Text] = [tree, _legend(marks, views, names)]
    if collapsed:
        parts.append(Text(f"{count(len(shown), 'node')}: drawn by leaf; --leaf NAME or --all draws nodes", style="dim"))
    return parts


def links_text(links: Sequence[LinkUse], names: Mapping[str, str]) -> Text | None:
    """A line for each link between switches of which jobs reserve something, or on which traffic is measured: the fullest first."""
    lines = []
    for link in sorted(links, key=lambda each: (_left_gbps(each), each.a, each.b)):
        reserved = sorted(link.reserved_gbps.items(), key=lambda entry: (-entry[1], entry[0]))
        parts = [f"{names.get(job, job)} reserves {gbps:g}" for job, gbps in reserved[:JOBS_TOLD_MAX]]
        parts += [f"{len(reserved) - JOBS_TOLD_MAX} more jobs"] if len(reserved) > JOBS_TOLD_MAX else []
        parts += [f"{link.measured_gbps:g} measured"] if link.measured_gbps else []
        lines.append(f"{link.a}–{link.b}: {max(0.0, _left_gbps(link)):g} of {link.gbps:g} Gb/s left ({', '.join(parts)})")
    more = [f"and {len(lines) - LINKS_DRAWN_MAX} more links"] if len(lines) > LINKS_DRAWN_MAX else []
    return Text("\n".join(["links in use:", *lines[:LINKS_DRAWN_MAX], *more])) if lines else None


def _left_gbps(link: LinkUse) -> float:
    return link.gbps - link.measured_gbps - sum(link.reserved_gbps.values())


def _marks(views: Iterable[Sequence[GpuView]]) -> dict[str, str]:
    """A letter for each job in the order of the drawing; beyond 62 jobs they share one."""
    jobs = dict.fromkeys(view.job for node in views for view in node if view.job)
    return {job: _LETTERS[place] if place < len(_LETTERS) else "#" for place, job in enumerate(jobs)}


def _colour(job: str, marks: Mapping[str, str]) -> str:
    return _COLOURS[list(marks).index(job) % len(_COLOURS)]


def _total(part: str, nodes: Sequence[Node], views: Mapping[str, Sequence[GpuView]]) -> Text:
    return Text(f"{part}: {count(len(nodes), 'node')}, {_counts(nodes, views)}", style="bold")


def _counts(nodes: Sequence[Node], views: Mapping[str, Sequence[GpuView]]) -> str:
    """A degraded GPU works: it is free, or in use."""
    seen = [(node, view) for node in nodes for view in views[node.name]]
    free = sum(is_free(node, view) for node, view in seen)
    held = sum(view.state == IN_USE or (view.state == DEGRADED and bool(view.job)) for _, view in seen)
    other = len(seen) - free - held
    return f"{count(len(seen), 'GPU')}: {free:,} free, {held:,} in use" + (f", {other:,} not usable" if other else "")


def _leaf_line(leaf: str, nodes: Sequence[Node], views: Mapping[str, Sequence[GpuView]]) -> Text:
    line = Text(leaf, style="bold")
    return line.append(f"  {count(len(nodes), 'node')}, {_counts(nodes, views)}", style="not bold")


def _add_nodes(
    branch: Tree, nodes: Sequence[Node], views: Mapping[str, Sequence[GpuView]], marks: Mapping[str, str]
) -> None:
    width = max(len(node.name) for node in nodes)
    strip_width = max(max(0, 2 * len(views[node.name]) - 1) for node in nodes)
    for node in nodes:
        line = Text(f"{node.name:<{width}}  ")
        strip = _strip(views[node.name], marks, _ends_of_sets(node))
        line.append_text(strip).append(" " * (strip_width - len(strip) + 2) + types(node))
        if node.state != READY:
            reason = reason_of(node)
            line.append(f"  {node.state}" + (f": {reason}" if reason else ""), style=state_style(node.state) or "yellow")
        if node.inventory.nvlink_domain:
            line.append(f"  NVLink domain {node.inventory.nvlink_domain}")
        twig = branch.add(line)
        for fault in faults(node):
            twig.add(Text(fault, style="red"))


def _ends_of_sets(node: Node) -> frozenset[int]:
    """Indices of GPUs behind which another NVLink set begins; none where one set has all GPUs, or no set more than one, or where the
    order of indices tears sets apart."""
    sets = [each.gpus for each in nvlink_sets(node.inventory)]
    if len(sets) < 2 or all(len(gpus) == 1 for gpus in sets):
        return frozenset()
    ordered = [index for gpus in sets for index in gpus]
    if ordered != sorted(ordered):
        return frozenset()
    return frozenset(gpus[-1] for gpus in sets[:-1])


def _strip(views: Sequence[GpuView], marks: Mapping[str, str], ends: frozenset[int]) -> Text:
    """A mark for each GPU: its job's letter, free, sick, or closed with its node; "|" between NVLink sets."""
    strip = Text()
    for place, view in enumerate(views):
        if place:
            strip.append("|" if views[place - 1].gpu.index in ends else " ")
        if view.job and view.state in (IN_USE, DEGRADED):
            style = _colour(view.job, marks)
            strip.append(marks[view.job], style=style if view.state == IN_USE else f"{style} underline")
        elif view.state in _MARKS:
            mark, style = _MARKS[view.state]
            strip.append(mark, style=style)
        else:
            strip.append(MARK_SICK, style="red")
    return strip


def _legend(marks: Mapping[str, str], views: Mapping[str, Sequence[GpuView]], names: Mapping[str, str]) -> Text:
    held: dict[str, int] = {}
    for view in (view for node in views.values() for view in node if view.job):
        held[view.job] = held.get(view.job, 0) + 1
    legend = Text(f"{MARK_FREE} free   {MARK_SICK} failed   {MARK_CLOSED} closed")
    if any(view.state == DEGRADED for node in views.values() for view in node):
        legend.append(f"   {MARK_DEGRADED} degraded, free")
    for job, mark in marks.items():
        name = f" ({names[job]})" if names.get(job) and names[job] != job else ""
        legend.append("\n").append(mark, style=_colour(job, marks)).append(f" {job}{name}: {count(held[job], 'GPU')}")
    return legend
