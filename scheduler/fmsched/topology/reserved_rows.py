"""What a Cluster file says of bandwidth that jobs hold on links between switches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fmproto.fields import Fields, name_hint
from fmproto.nodetypes import GBPS_MAX
from fmproto.yamltext import shown
from fmsched.model.hardware import JobId
from fmsched.topology.routes import Edge, edge

ReservedRow = tuple[JobId, str, str, float]  # (job, switch, switch, Gb/s)
RESERVED_GBPS_MAX = 1024 * GBPS_MAX  # as many cables as a link may have

_BETWEEN = "two switches: [leaf1, spine1]"


def read_reserved(top: Fields, level_of: Mapping[str, int]) -> tuple[ReservedRow, ...]:
    rows = []
    for path, tree in top.items("reserved", "a list of {job, between, gbps}"):
        row = Fields(tree, path, top.faults)
        job = row.text("job", "a job's name", required=True)
        row.raw("between", _BETWEEN, required=True)
        ends = row.strings("between", _BETWEEN)
        line, at = row.line_of("between"), row.at("between")
        if unknown := next((name for name in ends if name not in level_of), None):
            row.faults.add(line, at, f"found no switch {shown(unknown)}; {name_hint(unknown, list(level_of))}")
        elif ends and (len(ends) != 2 or ends[0] == ends[1]):
            row.faults.add(line, at, f"found {', '.join(ends)}; allowed: {_BETWEEN}")
        gbps = row.number("gbps", "Gb/s", RESERVED_GBPS_MAX, required=True)
        if len(ends) == 2:
            rows.append((job, ends[0], ends[1], gbps))
        row.finish()
    return tuple(rows)


def links_held(rows: Iterable[ReservedRow]) -> dict[JobId, dict[Edge, float]]:
    """Rows of one job and link add up."""
    held: dict[JobId, dict[Edge, float]] = {}
    for job, a, b, gbps in rows:
        of_job = held.setdefault(job, {})
        of_job[edge(a, b)] = of_job.get(edge(a, b), 0.0) + gbps
    return held
