"""Messages to frozen values and back. Generated messages stop here and in service/."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Iterable

from google.protobuf.message import DecodeError

from fmproto.hostlist import expand
from fmproto.v1 import hardware_pb2 as hw
from fmproto.v1 import job_pb2 as pb
from fmsched.model.fabric import Fabric, Link, Switch
from fmsched.model.hardware import GpuSpec, HcaSpec, Node, NodeName, NodeShape
from fmsched.model.job import GroupKind, Reach, Request, ResourceGroup
from fmsched.model.placement import Objective, Placement, RankPlacement, Term, Why
from fmsched.model.record import (
    Decision,
    Event,
    Order,
    Phase,
    RankFailure,
    RankRun,
    Run,
    RunPhase,
    Spec,
    State,
    Status,
)
from fmsched.model.snapshot import HostShare
from fmsched.model.work import ModelSizes, Work

DEGREES = 5
FABRIC_PLAIN_BYTES_MAX = 256 << 10
FABRIC_BYTES_MAX = 256 << 20  # inflated

_KINDS = {
    pb.GROUP_KIND_TENSOR_PARALLEL: GroupKind.TENSOR_PARALLEL,
    pb.GROUP_KIND_DATA_PARALLEL: GroupKind.DATA_PARALLEL,
    pb.GROUP_KIND_PIPELINE_PARALLEL: GroupKind.PIPELINE_PARALLEL,
    pb.GROUP_KIND_EXPERT_PARALLEL: GroupKind.EXPERT_PARALLEL,
    pb.GROUP_KIND_AUXILIARY: GroupKind.AUXILIARY,
}
_KIND_NUMBERS = {kind: number for number, kind in _KINDS.items()}
_STATES: dict[State, pb.JobState] = {state: pb.JobState.Value(f"JOB_STATE_{state.name}") for state in State}  # type: ignore[misc]
_STATE_NAMES = {number: state for state, number in _STATES.items()}
_RUN_PHASES = {pb.RunPhase.Value(f"RUN_PHASE_{phase.name}"): phase for phase in RunPhase}
_PHASES = {pb.PHASE_PREPARE: Phase.PREPARE, pb.PHASE_START: Phase.START}
_PHASE_NUMBERS = {phase: number for number, phase in _PHASES.items()}


def state_number(state: State) -> pb.JobState:
    return _STATES[state]


def node_of(inventory: hw.Inventory, dead_ports: frozenset[str], shapes: dict[NodeShape, NodeShape]) -> Node:
    """`shapes` makes equal nodes share one shape. Ports that are not Active, or whose health failed (they flap), are left out:
    nothing can be placed over them."""
    gpus = sorted(inventory.gpus, key=lambda gpu: gpu.index)
    position = {gpu.index: i for i, gpu in enumerate(gpus)}
    nvlink = [[0.0] * len(gpus) for _ in gpus]
    for pair in inventory.nvlinks:
        if pair.gpu_a in position and pair.gpu_b in position:
            a, b = position[pair.gpu_a], position[pair.gpu_b]
            nvlink[a][b] = nvlink[b][a] = pair.gbytes_per_s
    shape = NodeShape(
        name=f"{len(gpus)}x{gpus[0].model or gpus[0].name}" if gpus else "no GPU",
        gpus=tuple(GpuSpec(gpu.model or gpu.name, gpu.family, gpu.memory_gb or gpu.memory_bytes / 1e9) for gpu in gpus),
        nvlink=tuple(map(tuple, nvlink)),
        hcas=tuple(
            HcaSpec(port.hca, port.port, port.rate_gbps, tuple(position[i] for i in port.near_gpus if i in position))
            for port in inventory.hca_ports
            if port.state == "Active" and f"{port.hca}/{port.port}" not in dead_ports
            # Beside InfiniBand, Ethernet ports are for storage and login, also while every InfiniBand port is down.
            if port.link_layer == "InfiniBand" or not any(each.link_layer == "InfiniBand" for each in inventory.hca_ports)
        ),
        cpus=inventory.host.cpus,
        memory_gb=inventory.host.memory_bytes / 1e9,
        domain_nvlink_gbytes_per_s=inventory.nvlink_domain_gbytes_per_s,
    )
    return Node(
        name=inventory.node,
        shape=shapes.setdefault(shape, shape),
        uuids=tuple(gpu.uuid for gpu in gpus),
        nvlink_domain=inventory.nvlink_domain,
        address=inventory.address,
        socket_interface=inventory.socket_interface,
    )


def fabric_of(message: hw.Fabric) -> Fabric:
    return Fabric(
        tuple(Switch(s.name, s.level) for s in message.switches),
        tuple(Link(x.a, x.b, x.gbps, x.count or 1, x.down, x.hca, x.measured_gbps) for x in message.links),
    )


def fabric_message(fabric: Fabric, source: str) -> hw.Fabric:
    return hw.Fabric(
        switches=[hw.Switch(name=s.name, level=s.level) for s in fabric.switches],
        links=[
            hw.Link(a=x.a, b=x.b, gbps=x.gbps, count=x.count, down=x.down, hca=x.hca, measured_gbps=x.measured_gbps)
            for x in fabric.links
        ],
        source=source,
    )


def packed(message: hw.Fabric) -> hw.Fabric:
    """As it is stored: a large one deflated, since etcd takes at most 1.5 MB in a request (100,000 links are 4 MB plain, 0.3 MB so)."""
    if message.ByteSize() <= FABRIC_PLAIN_BYTES_MAX:
        return message
    return hw.Fabric(source=message.source, packed=zlib.compress(message.SerializeToString(deterministic=True)))


def unpacked(message: hw.Fabric) -> hw.Fabric:
    """The fabric of a stored message. Raises DecodeError where it cannot be read."""
    if not message.packed:
        return message
    inflate = zlib.decompressobj()
    try:
        plain = inflate.decompress(message.packed, FABRIC_BYTES_MAX)
    except zlib.error as error:
        raise DecodeError(f"packed: {error}") from error
    if not inflate.eof:
        raise DecodeError(f"packed: found a fabric of more than {FABRIC_BYTES_MAX:,} bytes, or one that is cut")
    return hw.Fabric.FromString(plain)


def unfit_of(health: hw.Health) -> dict[str, str]:
    """GPUs (by uuid) that may not be given out, with the reason. A degraded GPU still works."""
    sick = (hw.HEALTH_STATE_FAILED, hw.HEALTH_STATE_DRAINING)
    return {gpu.device: gpu.reason or "unhealthy" for gpu in health.gpus if gpu.state in sick}


def failed_of(health: hw.Health) -> dict[str, str]:
    """GPUs (by uuid) on which nothing can go on running, with the reason."""
    return {gpu.device: gpu.reason or "failed" for gpu in health.gpus if gpu.state == hw.HEALTH_STATE_FAILED}


def closed_by(health: hw.Health) -> str:
    """Why nothing new may be placed on the node as a whole, in its agent's judgement: its clock, its memory, a disk that runs need. Empty
    where nothing speaks against it."""
    sick = (hw.HEALTH_STATE_FAILED, hw.HEALTH_STATE_DRAINING)
    faults = [each for each in (*health.host, *health.disks) if each.state in sick]
    return "; ".join(f"{each.device}: {each.reason}" if each.reason else f"{each.device} is unwell" for each in faults)


def dead_ports_of(health: hw.Health) -> frozenset[str]:
    """Adapter ports that may not be used, as "mlx5_0/1"."""
    return frozenset(
        port.device for port in health.hca_ports if port.state in (hw.HEALTH_STATE_FAILED, hw.HEALTH_STATE_DRAINING)
    )


def group_of(message: pb.ResourceGroup) -> ResourceGroup:
    reach = None
    if message.HasField("connectivity"):
        c = message.connectivity
        reach = Reach(c.max_hops if c.HasField("max_hops") else None, c.min_link_gbps, c.reserve_gbps)
    return ResourceGroup(
        name=message.name,
        kind=_KINDS[message.kind],
        gpus=message.gpus_per_group,
        preferred=tuple(message.preferred_types),
        tolerated=tuple(message.tolerated_types),
        min_memory_gb=message.min_memory_gb,
        min_nvlink_gbytes_per_s=message.min_nvlink_gbytes_per_s,
        reach=reach,
        min_nvlink_links=message.min_nvlink_links,
        min_nvlink_aggregate_gbytes_per_s=message.min_nvlink_aggregate_gbytes_per_s,
        apart=message.apart,
    )


def group_message(group: ResourceGroup) -> pb.ResourceGroup:
    message = pb.ResourceGroup(
        name=group.name,
        kind=_KIND_NUMBERS[group.kind],
        gpus_per_group=group.gpus,
        preferred_types=group.preferred,
        tolerated_types=group.tolerated,
        min_memory_gb=group.min_memory_gb,
        min_nvlink_gbytes_per_s=group.min_nvlink_gbytes_per_s,
        min_nvlink_links=group.min_nvlink_links,
        min_nvlink_aggregate_gbytes_per_s=group.min_nvlink_aggregate_gbytes_per_s,
        apart=group.apart,
    )
    if group.reach is not None:
        message.connectivity.CopyFrom(
            pb.Connectivity(
                min_link_gbps=group.reach.min_link_gbps,
                max_hops=group.reach.max_hops,
                reserve_gbps=group.reach.reserve_gbps,
            )
        )
    return message


def nodes_of(ranges: Iterable[str]) -> frozenset[NodeName]:
    return frozenset(name for text in ranges for name in expand(text))


def share_of(message: pb.JobSpec) -> HostShare | None:
    """What each GPU that the job holds takes of its node; None: nothing that was asked."""
    share = HostShare(message.cpus_per_gpu, message.memory_gb_per_gpu)
    return share if share.cpus or share.memory_gb else None


def spec_of(message: pb.JobSpec) -> Spec:
    return Spec(
        id=message.id,
        name=message.name,
        request=Request(
            message.id,
            tuple(group_of(group) for group in message.groups),
            message.replica_count,
            spares=message.spares,
            allowed_nodes=nodes_of(message.allowed_nodes) if message.allowed_nodes else None,
            denied_nodes=nodes_of(message.denied_nodes),
            cpus_per_gpu=message.cpus_per_gpu,
            memory_gb_per_gpu=message.memory_gb_per_gpu,
            policy=message.policy,
            work=work_of(message.work) if message.HasField("work") else None,
        ),
        priority=message.priority,
        submitted_ms=message.submitted_ms,
        allocation=not message.HasField("template"),
        max_runtime_s=message.max_runtime_s,
        hold_s=message.hold_s,
        max_restarts=message.max_restarts,
        queue=message.queue,
        tenant=message.tenant,
    )


# By the same name in the message and in ModelSizes.
_SIZES = tuple(each.name for each in dataclasses.fields(ModelSizes))


def work_of(message: pb.Work) -> Work:
    degrees = None
    if len(message.degrees) == DEGREES:
        tensor, pipeline, data, expert, context = message.degrees
        degrees = tensor, pipeline, data, expert, context
    return Work(message.model, ModelSizes(**{name: getattr(message, name) for name in _SIZES}), degrees)


def work_message(work: Work) -> pb.Work:
    sizes = {name: getattr(work.sizes, name) for name in _SIZES}
    return pb.Work(model=work.model, degrees=work.degrees or (), **sizes)


def why_message(why: Why) -> pb.Why:
    return pb.Why(
        constraint=why.constraint, group=why.group, asked=why.asked, best=why.best, where=why.where, relax=why.relax
    )


def why_of(message: pb.Why) -> Why:
    return Why(message.constraint, message.group, message.asked, message.best, message.where, message.relax)


def status_of(message: pb.JobStatus) -> Status:
    failure = None
    if message.HasField("first_failure"):
        f = message.first_failure
        failure = RankFailure(f.node, f.rank, f.exit_code, f.reason, f.last_lines)
    return Status(
        state=_STATE_NAMES[message.state],
        since_ms=message.since_ms,
        attempt=message.attempt,
        reason=message.reason,
        why=tuple(why_of(why) for why in message.why),
        never=message.never,
        started_ms=message.started_ms,
        finished_ms=message.finished_ms,
        failure=failure,
        events=tuple(Event(e.at_ms, _STATE_NAMES[e.state], e.attempt, e.reason) for e in message.events),
        outcome=_STATE_NAMES.get(message.outcome),
        restarts=message.restarts,
        avoid=tuple(message.avoid_nodes),
        nodes=tuple(message.nodes),
    )


def status_message(job: str, status: Status) -> pb.JobStatus:
    message = pb.JobStatus(
        id=job,
        state=_STATES[status.state],
        attempt=status.attempt,
        reason=status.reason,
        why=[why_message(why) for why in status.why],
        never=status.never,
        since_ms=status.since_ms,
        started_ms=status.started_ms,
        finished_ms=status.finished_ms,
        events=[
            pb.JobEvent(at_ms=e.at_ms, state=_STATES[e.state], attempt=e.attempt, reason=e.reason) for e in status.events
        ],
        restarts=status.restarts,
        avoid_nodes=status.avoid,
        nodes=status.nodes,
    )
    if status.outcome is not None:
        message.outcome = _STATES[status.outcome]
    if status.failure is not None:
        f = status.failure
        message.first_failure.CopyFrom(
            pb.RankFailure(node=f.node, rank=f.rank, exit_code=f.exit_code, reason=f.reason, last_lines=f.last_lines)
        )
    return message


def rank_of(message: pb.RankPlacement) -> RankPlacement:
    return RankPlacement(
        rank=message.rank,
        group=message.group,
        replica=message.replica,
        cell=message.cell,
        local_rank=message.local_rank,
        node=message.node,
        gpu=message.gpu_index,
        uuid=message.gpu_uuid,
        hcas=tuple(message.hcas),
        spare=message.spare,
    )


def rank_message(rank: RankPlacement) -> pb.RankPlacement:
    return pb.RankPlacement(
        rank=rank.rank,
        group=rank.group,
        replica=rank.replica,
        cell=rank.cell,
        local_rank=rank.local_rank,
        node=rank.node,
        gpu_index=rank.gpu,
        gpu_uuid=rank.uuid,
        hcas=rank.hcas,
        spare=rank.spare,
    )


def decision_of(message: pb.Decision) -> Decision:
    """Raises ValueError for one that places nothing."""
    if not message.ranks:
        raise ValueError("a decision without ranks")
    o = message.objective
    objective = Objective(o.value, o.bound, tuple(Term(t.name, t.weight, t.value) for t in o.terms))
    return Decision(
        attempt=message.attempt,
        term=message.term,
        placement=Placement(message.job, tuple(rank_of(rank) for rank in message.ranks), objective),
        decided_ms=message.decided_ms,
        revision=message.revision,
        solve_s=message.solve.seconds,
        start=message.start,
        stop=message.stop,
        master_port=message.master_port,
    )


def decision_message(decision: Decision, addresses: dict[str, str]) -> pb.Decision:
    """`addresses` maps nodes to what ranks elsewhere reach them by."""
    placement = decision.placement
    master = placement.nodes[0]
    return pb.Decision(
        job=placement.job,
        attempt=decision.attempt,
        term=decision.term,
        ranks=[rank_message(rank) for rank in placement.ranks],
        objective=pb.Objective(
            value=placement.objective.value,
            bound=placement.objective.bound,
            gap=placement.objective.gap,
            optimal=placement.objective.optimal,
            terms=[pb.Term(name=t.name, weight=t.weight, value=t.value) for t in placement.objective.terms],
        ),
        solve=pb.SolveStats(seconds=decision.solve_s, nodes=len(placement.nodes), gpus=len(placement.ranks)),
        decided_ms=decision.decided_ms,
        revision=decision.revision,
        start=decision.start,
        stop=decision.stop,
        master_node=master,
        master_address=addresses.get(master, master),
        master_port=decision.master_port,
    )


def run_of(message: pb.RunReport) -> Run:
    return Run(
        attempt=message.attempt,
        phase=_RUN_PHASES[message.phase],
        ranks=tuple(
            RankRun(r.rank, r.state == pb.RANK_STATE_EXITED, r.exit_code, r.reason, r.last_lines) for r in message.ranks
        ),
        held_port=message.held_port,
        reason=message.reason,
        device_fault=message.device_fault,
        gpus=tuple(message.gpu_indices),
        first_failed_ms=message.first_failed_ms,
    )


def order_of(message: pb.Assignment) -> Order:
    return Order(message.attempt, _PHASES[message.phase])


def assignment_messages(
    spec: pb.JobSpec, decision: Decision, phase: Phase, term: int, addresses: dict[str, str], nodes: Iterable[str]
) -> dict[str, pb.Assignment]:
    """The orders of `nodes`, each with its own ranks only: the whole placement is in the decision, which agents read."""
    placement = decision.placement
    node_ranks = {node: i for i, node in enumerate(placement.nodes)}
    ranks: dict[str, list[pb.RankPlacement]] = {node: [] for node in placement.nodes}
    for rank in placement.running:
        ranks[rank.node].append(rank_message(rank))
    master = placement.nodes[0]
    orders = {}
    for node in nodes:
        order = pb.Assignment(
            job=spec.id,
            attempt=decision.attempt,
            term=term,
            phase=_PHASE_NUMBERS[phase],
            node=node,
            node_rank=node_ranks[node],
            node_count=len(placement.nodes),
            world_size=len(placement.running),
            ranks=ranks[node],
            master_address=addresses.get(master, master),
            master_port=decision.master_port,
            holds_port=node == master,
            launcher=spec.launcher,
            grace_period_s=spec.grace_period_s,
            job_name=spec.name,
        )
        if spec.HasField("template"):
            order.template.CopyFrom(spec.template)
        orders[node] = order
    return orders
