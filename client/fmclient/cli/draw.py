"""The cluster as a tree: leaves, nodes, and a mark for each GPU. Pure: messages in, rich text out."""

from __future__ import annotations

import string
from collections.abc import Iterable, Mapping, Sequence

from rich.text import Text
from rich.tree import Tree

from fmclient.cli.human import count
from fmclient.cli.nodes import CLOSED, FREE, IN_USE, READY, GpuView, faults, gpu_views, reason_of, types
from fmclient.cli.output import state_style
from fmproto.v1.scheduler_pb2 import Node

# More lines than this are no picture any more: leaves are then summed up, unless asked for.
NODES_DRAWN_MAX = 128
NO_LEAF = "no leaf known"
MARK_FREE, MARK_SICK, MARK_CLOSED = "·", "!", "-"
_LETTERS = string.ascii_uppercase + string.ascii_lowercase + string.digits
_COLOURS = ("cyan", "green", "magenta", "blue", "yellow", "bright_cyan", "bright_green", "bright_magenta", "bright_blue")


def leaves_of(nodes: Iterable[Node]) -> set[str]:
    return {node.leaf or NO_LEAF for node in nodes}


def drawing(nodes: Sequence[Node], names: Mapping[str, str], leaves: set[str], every: bool) -> list[Tree | Text]:
    """The tree and its legend. `names`: job id → name; `leaves`: only these, all where empty."""
    shown = sorted((node for node in nodes if not leaves or (node.leaf or NO_LEAF) in leaves), key=lambda node: node.name)
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
        members = [node for node in shown if (node.leaf or NO_LEAF) == leaf]
        branch = tree.add(_leaf_line(leaf, members, views))
        if not collapsed:
            _add_nodes(branch, members, views, marks)
    parts: list[Tree | Text] = [tree, _legend(marks, views, names)]
    if collapsed:
        parts.append(Text(f"{count(len(shown), 'node')}: drawn by leaf; --leaf NAME or --all draws nodes", style="dim"))
    return parts


def _marks(views: Iterable[Sequence[GpuView]]) -> dict[str, str]:
    """A letter for each job in the order of the drawing; beyond 62 jobs they share one."""
    jobs = dict.fromkeys(view.job for node in views for view in node if view.job)
    return {job: _LETTERS[place] if place < len(_LETTERS) else "#" for place, job in enumerate(jobs)}


def _colour(job: str, marks: Mapping[str, str]) -> str:
    return _COLOURS[list(marks).index(job) % len(_COLOURS)]


def _total(part: str, nodes: Sequence[Node], views: Mapping[str, Sequence[GpuView]]) -> Text:
    gpus = [view for node in nodes for view in views[node.name]]
    return Text(f"{part}: {count(len(nodes), 'node')}, {_counts(gpus)}", style="bold")


def _counts(views: Sequence[GpuView]) -> str:
    free, held = (sum(view.state == state for view in views) for state in (FREE, IN_USE))
    other = len(views) - free - held
    return f"{count(len(views), 'GPU')}: {free:,} free, {held:,} in use" + (f", {other:,} not usable" if other else "")


def _leaf_line(leaf: str, nodes: Sequence[Node], views: Mapping[str, Sequence[GpuView]]) -> Text:
    line = Text(leaf, style="bold")
    return line.append(
        f"  {count(len(nodes), 'node')}, {_counts([v for node in nodes for v in views[node.name]])}", style="not bold"
    )


def _add_nodes(
    branch: Tree, nodes: Sequence[Node], views: Mapping[str, Sequence[GpuView]], marks: Mapping[str, str]
) -> None:
    width = max(len(node.name) for node in nodes)
    strip_width = max(max(0, 2 * len(views[node.name]) - 1) for node in nodes)
    for node in nodes:
        line = Text(f"{node.name:<{width}}  ")
        strip = _strip(views[node.name], marks)
        line.append_text(strip).append(" " * (strip_width - len(strip) + 2) + types(node))
        if node.state != READY:
            reason = reason_of(node)
            line.append(f"  {node.state}" + (f": {reason}" if reason else ""), style=state_style(node.state) or "yellow")
        twig = branch.add(line)
        for fault in faults(node):
            twig.add(Text(fault, style="red"))


def _strip(views: Sequence[GpuView], marks: Mapping[str, str]) -> Text:
    """A mark for each GPU: its job's letter, free, sick, or closed with its node."""
    strip = Text()
    for place, view in enumerate(views):
        if place:
            strip.append(" ")
        if view.state == IN_USE:
            strip.append(marks[view.job], style=_colour(view.job, marks))
        elif view.state == FREE:
            strip.append(MARK_FREE)
        else:
            strip.append(MARK_CLOSED if view.state == CLOSED else MARK_SICK, style="dim" if view.state == CLOSED else "red")
    return strip


def _legend(marks: Mapping[str, str], views: Mapping[str, Sequence[GpuView]], names: Mapping[str, str]) -> Text:
    held: dict[str, int] = {}
    for view in (view for node in views.values() for view in node if view.job):
        held[view.job] = held.get(view.job, 0) + 1
    legend = Text(f"{MARK_FREE} free   {MARK_SICK} failed   {MARK_CLOSED} closed")
    for job, mark in marks.items():
        name = f" ({names[job]})" if names.get(job) and names[job] != job else ""
        legend.append("\n").append(mark, style=_colour(job, marks)).append(f" {job}{name}: {count(held[job], 'GPU')}")
    return legend
