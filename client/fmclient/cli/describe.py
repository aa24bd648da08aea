"""fmctl describe: everything that is known of one job or node."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import typer

from fmclient.cli.exits import NOT_FOUND, fail
from fmclient.cli.options import FormOption, JobArgument, NodeArgument, ServerOption, TimeoutOption, connect
from fmclient.cli.output import Form, print_data, say, to_data

if TYPE_CHECKING:
    from fmproto.v1.scheduler_pb2 import Job, Node

# Less than any NVLink has: the service asks so much where it only asks that there is one.
ANY_NVLINK_GBYTES_PER_S = 1.0

app = typer.Typer(no_args_is_help=True, help="Show all that is known of a job or a node.")


@app.command("job")
def job_command(
    ctx: typer.Context,
    job: JobArgument,
    output: FormOption = Form.TEXT,
    server: ServerOption = None,
    timeout_s: TimeoutOption = None,
) -> None:
    """A job: what it asks for, where it is, why it waits, what happened to it."""
    with connect(ctx, server, timeout_s) as client:
        found = client.get(job)
    if output is not Form.TEXT:
        print_data(to_data(found), output)
        return
    for line in job_lines(found, int(time.time() * 1000)):
        say(line)


@app.command("node")
def node_command(
    ctx: typer.Context,
    node: NodeArgument,
    output: FormOption = Form.TEXT,
    server: ServerOption = None,
    timeout_s: TimeoutOption = None,
) -> None:
    """A node: its state, GPUs with holders, adapters, faults."""
    from fmclient.cli.human import missing

    with connect(ctx, server, timeout_s) as client:
        by_name = {each.name: each for each in client.nodes().nodes}
    if node not in by_name:
        raise fail(f"fmctl: {missing('node', node, by_name)}", NOT_FOUND)
    found = by_name[node]
    if output is not Form.TEXT:
        print_data(to_data(found), output)
        return
    for line in node_lines(found):
        say(line)


def job_lines(job: Job, now_ms: int) -> list[str]:
    from fmclient.cli.human import age, count
    from fmclient.cli.jobs import gpus_asked
    from fmclient.states import words

    spec, status = job.spec, job.status
    # With constraints listed below, the sentence would only say them twice.
    state = words(status.state) + (f": {status.reason}" if status.reason and not status.why else "")
    times = f"submitted {age(spec.submitted_ms, now_ms)} ago" + (f" by {spec.submitter}" if spec.submitter else "")
    for verb, at_ms in (("started", status.started_ms), ("ended", status.finished_ms)):
        times += f", {verb} {age(at_ms, now_ms)} ago" if at_ms else ""
    facts = [
        ("job", f"{spec.id} ({spec.name})"),
        ("state", f"{state} (for {age(status.since_ms, now_ms)})"),
        ("queue", f"place {job.queue_position}" if job.queue_position else ""),
        ("times", times),
        ("priority", f"{spec.priority_class} ({spec.priority})" if spec.priority_class else str(spec.priority)),
        ("tenant", spec.tenant),
        ("model", spec.model),
        (
            "attempt",
            f"{status.attempt}, {count(status.restarts, 'restart')} of at most {spec.max_restarts}"
            if status.attempt
            else "",
        ),
        ("kind", _kind(job)),
        ("GPUs", f"{gpus_asked(job):,} in {count(spec.replica_count, 'replica')}"),
    ]
    lines = [f"{name + ':':<10}{value}" for name, value in facts if value]
    return lines + _group_lines(job) + _why_part(job) + _placement_lines(job) + _run_lines(job) + _event_lines(job, now_ms)


def _kind(job: Job) -> str:
    if not job.spec.HasField("template"):
        held = f"; freed {job.spec.hold_s:g} s after nobody holds it" if job.spec.hold_s else "; held until cancelled"
        return "allocation" + held
    template = job.spec.template
    return " ".join([template.image or "process:", *template.command, *template.args])


def _group_lines(job: Job) -> list[str]:
    from fmclient.cli.human import count
    from fmproto.v1.job_pb2 import GroupKind

    lines = ["groups:"]
    for group in job.spec.groups:
        kind = GroupKind.Name(group.kind).removeprefix("GROUP_KIND_").replace("_", " ").lower()
        asks = [count(group.gpus_per_group, "GPU")]
        families = [*group.preferred_types, *group.tolerated_types]
        asks += [" or ".join(dict.fromkeys(families))] if families else []
        asks += [f"{group.min_memory_gb:g} GB"] if group.min_memory_gb else []
        asks += [_nvlink(group.min_nvlink_gbytes_per_s)] if group.min_nvlink_gbytes_per_s else []
        asks += [f"links of {group.connectivity.min_link_gbps:g} Gb/s"] if group.connectivity.min_link_gbps else []
        reserved = group.connectivity.reserve_gbps
        asks += [f"{reserved:g} Gb/s reserved on every link crossed"] if reserved else []
        asks += [f"at most {count(group.connectivity.max_hops, 'hop')}"] if group.connectivity.max_hops else []
        lines.append(f"  {group.name} ({kind}): {', '.join(asks)}")
    return lines if job.spec.groups else []


def _nvlink(gbytes_per_s: float) -> str:
    return f"NVLink {gbytes_per_s:g} GB/s a pair" if gbytes_per_s > ANY_NVLINK_GBYTES_PER_S else "any NVLink"


def _why_part(job: Job) -> list[str]:
    from fmclient.cli.why import why_lines

    title = "can never run on this cluster:" if job.status.never else "why:"
    lines = [f"  {line}" for line in why_lines(job.status.why)]
    return [title, *lines] if lines else []


def _placement_lines(job: Job) -> list[str]:
    from fmclient.cli.plan import objective_lines, rank_lines

    decision = job.decision
    if not decision.ranks:
        return []
    ranks = [
        {"node": r.node, "group": r.group, "rank": r.rank, "gpu": {"index": r.gpu_index}, "spare": r.spare}
        for r in decision.ranks
    ]
    lines = ["placement:", *rank_lines(ranks)]
    if decision.HasField("objective"):
        lines += objective_lines(to_data(decision.objective))
    if decision.master_address:
        port = f":{decision.master_port}" if decision.master_port else ""
        lines.append(f"  rank 0 at {decision.master_address}{port} ({decision.master_node})")
    return lines


def _run_lines(job: Job) -> list[str]:
    from fmproto.v1.job_pb2 import RankState, RunPhase

    lines = []
    for run in sorted(job.runs, key=lambda each: each.node):
        phase = RunPhase.Name(run.phase).removeprefix("RUN_PHASE_").lower()
        counts: dict[str, int] = {}
        for rank in run.ranks:
            words = RankState.Name(rank.state).removeprefix("RANK_STATE_").lower()
            words += f" with {rank.exit_code}" if words == "exited" else ""
            counts[words] = counts.get(words, 0) + 1
        ranks = ", ".join(f"{number} {words}" for words, number in counts.items())
        lines.append(
            f"  {run.node}: {phase}" + (f"; ranks: {ranks}" if ranks else "") + (f"; {run.reason}" if run.reason else "")
        )
    failure = job.status.first_failure
    if job.status.HasField("first_failure"):
        said = f": {failure.reason}" if failure.reason else ""
        lines.append(f"  first failure: rank {failure.rank} on {failure.node}: exit {failure.exit_code}{said}")
        lines += [f"    | {line}" for line in failure.last_lines.splitlines()]
    return ["runs:", *lines] if lines else []


def _event_lines(job: Job, now_ms: int) -> list[str]:
    from fmclient.cli.human import age
    from fmclient.states import words

    lines = [
        f"  {age(each.at_ms, now_ms):>7} ago  {': '.join(filter(None, (words(each.state), each.reason)))}"
        for each in job.status.events
    ]
    return ["events:", *lines] if lines else []


def node_lines(node: Node) -> list[str]:
    from fmclient.cli.human import ranges
    from fmclient.cli.nodes import fault_lines, gpu_row, gpu_views, reason_of, types

    inventory, host = node.inventory, node.inventory.host
    facts = [
        ("node", node.name),
        ("state", ": ".join(part for part in (node.state, reason_of(node)) if part)),
        ("leaf", node.leaf),
        ("address", inventory.address),
        ("agent", f"{inventory.agent_address} {inventory.agent_version}".strip()),
        ("hardware", f"{types(node)}; {host.cpus} CPUs, {host.memory_bytes / 1e9:.0f} GB of memory"),
        ("source", ", driver ".join(part for part in (inventory.source, inventory.driver_version) if part)),
        ("domain", inventory.nvlink_domain),
    ]
    lines = [f"{name + ':':<10}{value}" for name, value in facts if value]
    faults = fault_lines(node)
    lines += ["faults:", *(f"  {fault}" for fault in faults)] if faults else []
    views = gpu_views(node)
    lines += ["GPUs:"] if views else []
    for view in views:
        _, index, kind, memory, state, job, uuid, *_ = gpu_row(node, view)
        lines.append(f"  {index:>3}  {kind}  {memory}  {uuid}  {state}" + (f" by {job}" if view.job else ""))
    ports = inventory.hca_ports
    lines += ["adapters:"] if ports else []
    for port in ports:
        near = f"GPU{'s' if len(port.near_gpus) > 1 else ''} {ranges(port.near_gpus)}" if port.near_gpus else "no GPU"
        lines.append(f"  {port.hca}:{port.port}  {port.link_layer}  {port.rate_gbps:g} Gb/s  {port.state}  near {near}")
    return lines
