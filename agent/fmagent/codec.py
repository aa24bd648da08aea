"""Between wire messages and the agent's values. The only module, besides devices/, that knows the messages' fields."""

from __future__ import annotations

import math
import signal
from collections.abc import Mapping

from google.protobuf.message import DecodeError

from fmagent.orders import JOB_ID, Command, Order, PlacedRank, RankOrder, RankStatus, RunState, Stage
from fmagent.reconcile import Published
from fmproto.v1 import job_pb2 as pb

_PHASE: Mapping[Stage, pb.RunPhase] = {
    Stage.PREPARING: pb.RUN_PHASE_PREPARING,
    Stage.PREPARED: pb.RUN_PHASE_PREPARED,
    Stage.RUNNING: pb.RUN_PHASE_RUNNING,
    Stage.STOPPING: pb.RUN_PHASE_STOPPING,
    Stage.EXITED: pb.RUN_PHASE_EXITED,
    Stage.REFUSED: pb.RUN_PHASE_REFUSED,
}
_STAGE = {phase: stage for stage, phase in _PHASE.items()}


class BadOrder(ValueError):
    """An assignment that cannot be one: the message says which field and what was found."""


def order_of(value: bytes, revision: int, key: str) -> Order:
    """Raises BadOrder."""
    message = pb.Assignment()
    try:
        message.ParseFromString(value)
    except DecodeError as error:
        raise BadOrder(f"{key}: not an Assignment: {error}") from error
    if not JOB_ID.fullmatch(message.job):
        raise BadOrder(f"{key}: job is {message.job!r}; allowed: letters, digits, '.', '_' and '-', at most 201")
    if key.rpartition("/")[2] != message.job:
        raise BadOrder(f"{key}: job is {message.job!r}; it must be the key's last part")
    if message.phase not in {pb.PHASE_PREPARE, pb.PHASE_START}:
        raise BadOrder(f"{key}: phase is {message.phase}; allowed: PHASE_PREPARE, PHASE_START")
    if message.term > revision:
        # A term is the create revision of an election key, which is older than all that its leader writes.
        raise BadOrder(f"{key}: its term {message.term} is newer than its own revision {revision}")
    if not (math.isfinite(message.grace_period_s) and message.grace_period_s >= 0):
        raise BadOrder(f"{key}: grace_period_s is {message.grace_period_s}; allowed: a number of seconds, 0 or more")
    return Order(
        job=message.job,
        attempt=message.attempt,
        term=message.term,
        revision=revision,
        start=message.phase == pb.PHASE_START,
        node_rank=message.node_rank,
        node_count=message.node_count,
        world_size=message.world_size,
        ranks=tuple(_rank_order(rank) for rank in message.ranks),
        master_address=message.master_address,
        master_port=message.master_port,
        holds_port=message.holds_port,
        command=_command(message.template) if message.HasField("template") else None,
        launcher=message.launcher,
        grace_period_s=message.grace_period_s,
        job_name=message.job_name,
    )


def _rank_order(rank: pb.RankPlacement) -> RankOrder:
    return RankOrder(
        rank=rank.rank,
        local_rank=rank.local_rank,
        group=rank.group,
        replica=rank.replica,
        cell=rank.cell,
        gpu_index=rank.gpu_index,
        gpu_uuid=rank.gpu_uuid,
        hcas=tuple(rank.hcas),
    )


def _command(template: pb.Template) -> Command:
    return Command(
        argv=(*template.command, *template.args),
        env=tuple((pair.name, pair.value) for pair in template.env),
        working_dir=template.working_dir,
        image=template.image,
        volumes=tuple(template.volumes),
    )


def gang_of(value: bytes, attempt: int) -> tuple[PlacedRank, ...] | None:
    """The whole placement from a Decision; None where it cannot be read, or is of another attempt than `attempt`."""
    try:
        decision = pb.Decision.FromString(value)
    except DecodeError:
        return None
    if decision.attempt != attempt:
        return None
    return tuple(
        PlacedRank(
            rank=rank.rank,
            node=rank.node,
            local_rank=rank.local_rank,
            group=rank.group,
            replica=rank.replica,
            cell=rank.cell,
            gpu_index=rank.gpu_index,
            gpu_uuid=rank.gpu_uuid,
            hcas=tuple(rank.hcas),
        )
        for rank in decision.ranks
        if not rank.spare
    )


def report_of(run: RunState, node: str) -> bytes:
    """A RunReport, serialised."""
    return pb.RunReport(
        job=run.job,
        attempt=run.attempt,
        node=node,
        phase=_PHASE[run.stage],
        ranks=[_rank_report(rank, run.stage) for rank in run.ranks],
        held_port=run.held_port,
        reason=run.reason,
        gpu_indices=run.gpu_indices,
        device_fault=run.device_fault,
        first_failed_ms=run.first_failed_ms,
    ).SerializeToString(deterministic=True)


def _rank_report(rank: RankStatus, stage: Stage) -> pb.RankReport:
    state = pb.RANK_STATE_PREPARED
    if rank.exit_code is not None:
        state = pb.RANK_STATE_EXITED
    elif rank.pid or stage is Stage.RUNNING:  # an allocation's ranks run elsewhere: they have no pid here
        state = pb.RANK_STATE_RUNNING
    return pb.RankReport(
        rank=rank.rank,
        state=state,
        pid=rank.pid,
        exit_code=rank.exit_code or 0,
        reason=rank.reason,
        last_lines=rank.last_lines,
    )


def unstarted(order: Order, stage: Stage, reason: str, *, device_fault: bool = False) -> RunState:
    """The state to report for an order of which no process exists here."""
    lost = 128 + signal.SIGKILL if stage is Stage.EXITED else None
    return RunState(
        job=order.job,
        attempt=order.attempt,
        stage=stage,
        ranks=tuple(RankStatus(rank.rank, exit_code=lost) for rank in order.ranks) if stage is not Stage.REFUSED else (),
        gpus=order.gpus,
        gpu_indices=tuple(rank.gpu_index for rank in order.ranks),
        reason=reason,
        device_fault=device_fault,
        gone=True,
    )


def published_of(value: bytes, *, confirmed: bool) -> Published:
    """What a report says that a decision needs. One that cannot be read is older than every attempt: it is written over, or withdrawn."""
    try:
        report = pb.RunReport.FromString(value)
    except DecodeError:
        return Published(0, Stage.PREPARING, confirmed=confirmed)
    return Published(report.attempt, _STAGE.get(report.phase, Stage.PREPARING), confirmed=confirmed)
