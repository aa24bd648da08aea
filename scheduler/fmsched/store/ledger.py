"""Every write of the scheduler. Each is one transaction that holds only while this scheduler leads (its election key's create
revision) and while what it was decided on is unchanged.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fmproto import keys
from fmproto.kv import KV, OPERATIONS_MAX, Conflict, Delete, Guard, Op, Put
from fmproto.v1 import hardware_pb2 as hw
from fmproto.v1 import job_pb2 as pb
from fmsched.model.hardware import JobId
from fmsched.model.record import Decision, Job, Phase, Status
from fmsched.store import codec
from fmsched.store.election import Leadership
from fmsched.store.mirror import Mirror

# Well under etcd's 1.5 MB for a request: keys and framing come on top.
TRANSACTION_BYTES = 1_000_000
# One key of a job may not exceed it, or no transaction could hold it. At 100 bytes a rank, a decision of 12,000 ranks does not.
VALUE_BYTES_MAX = 1_200_000
GANG_RANKS_MAX = 12_000


@dataclass(frozen=True, slots=True)
class Basis:
    """What a decision about one job rests on."""

    ledger: Guard
    status: Guard
    wanted: Guard


class Ledger:
    """The leader's pen. Methods answer the revision, or Conflict (the picture was stale, or another leads); they raise
    StoreUnavailable (unknown result) and StoreFull like the store itself.
    """

    def __init__(self, kv: KV, mirror: Mirror, leadership: Leadership) -> None:
        self._kv = kv
        self._mirror = mirror
        self._leadership = leadership

    @property
    def term(self) -> int:
        return self._leadership.term

    async def _write(self, guards: Sequence[Guard], ops: Sequence[Op]) -> int | Conflict:
        return await self._kv.write([self._leadership.guard(), *guards], ops)

    async def submit(self, spec: pb.JobSpec, status: Status) -> int | Conflict:
        """Takes the next number of the sequence, which the id must have been made of (Mirror.sequence + 1)."""
        number = self._mirror.guard(keys.SEQUENCE)
        ops = [
            Put(keys.SEQUENCE, str(self._mirror.sequence + 1).encode()),
            Put(keys.job_spec(spec.id), spec.SerializeToString()),
            Put(keys.job_status(spec.id), codec.status_message(spec.id, status).SerializeToString()),
            Put(keys.job_wanted(spec.id), pb.Wanted(id=spec.id).SerializeToString()),
        ]
        return await self._write([number, Guard(keys.job_spec(spec.id), mod_revision=0)], ops)

    async def unwant(self, job: JobId) -> int | Conflict:
        """Cancels: a pure delete, which works even in a full store and survives this scheduler."""
        return await self._write([], [Delete(keys.job_wanted(job))])

    def basis(self, job: JobId) -> Basis:
        """To be taken in the same breath as the snapshot and the job that a decision will be made of: guards taken later would
        vouch for a picture that the decision never saw."""
        mirror = self._mirror
        return Basis(mirror.guard(keys.LEDGER), mirror.guard(keys.job_status(job)), mirror.guard(keys.job_wanted(job)))

    async def commit(self, job: JobId, decision: Decision, status: Status, basis: Basis) -> int | Conflict:
        """The commit point: one key holds the whole gang. The ledger key's revision guards it: no other decision was taken since
        the picture that this one was decided on, so no GPU can be granted twice."""
        guards = [basis.ledger, basis.status, basis.wanted, Guard(keys.decision(job), mod_revision=0)]
        message = codec.decision_message(decision, self._mirror.addresses())
        ops = [
            Put(keys.decision(job), message.SerializeToString()),
            Put(keys.LEDGER, f"{job} {decision.attempt}".encode()),
            self._put_status(job, status),
        ]
        return await self._write(guards, ops)

    async def put_status(self, job: JobId, status: Status, basis: Basis) -> int | Conflict:
        return await self._write([basis.status], [self._put_status(job, status)])

    async def settle(
        self, job: Job, status: Status, decision: Decision | None, orders: Phase | None
    ) -> int | Conflict | None:
        """Writes the difference between `job` as it stands and what it should be; None where there is none. The decision and the
        status go first: whoever comes after a crash in between reads there what remains to be done."""
        first: list[Op] = []
        guards = [self._mirror.guard(keys.job_status(job.id)), self._mirror.guard(keys.decision(job.id))]
        if decision != job.decision:
            first.append(self._decision_op(job, decision))
        if status != job.status:
            first.append(self._put_status(job.id, status))
        if status.state.ended and job.wanted:
            first.append(Delete(keys.job_wanted(job.id)))
        ops = first + self._order_ops(job, decision, orders)
        if not ops:
            return None
        # Orders beyond one transaction follow from the decision, so they need no guard but leadership; a later leader finishes them.
        outcome: int | Conflict | None = None
        for transaction in transactions(ops):
            outcome = await self._write(guards if outcome is None else [], transaction)
            if isinstance(outcome, Conflict):
                break
        return outcome

    async def withdraw(self, job: Job) -> int | Conflict | None:
        """Only deletes the orders: what can be done for a cancelled job while the store is full."""
        ops = [Delete(keys.assignment(node, job.id)) for node in job.orders]
        outcome: int | Conflict | None = None
        for transaction in transactions(ops):
            outcome = await self._write([], transaction)
        return outcome

    async def clear(self, job: JobId) -> int | Conflict | None:
        """Ends what is left of a job whose spec or status is gone: orders first, the decision once no node reports it any more."""
        mirror = self._mirror
        ops: list[Op] = [Delete(keys.assignment(node, job)) for node in sorted(mirror.orders.get(job, {}))]
        if not ops and not mirror.runs.get(job):
            ops = [Delete(keys.decision(job))] if job in mirror.decisions else []
            if job in mirror.wanted and job not in mirror.specs:
                ops.append(Delete(keys.job_wanted(job)))
        outcome: int | Conflict | None = None
        for transaction in transactions(ops):
            outcome = await self._write([], transaction)
        return outcome

    async def put_intent(self, intent: hw.NodeIntent) -> int | Conflict:
        return await self._write([], [Put(keys.intent(intent.node), intent.SerializeToString())])

    async def drop_intent(self, node: str) -> int | Conflict:
        return await self._write([], [Delete(keys.intent(node))])

    async def put_fabric(self, fabric: hw.Fabric) -> int | Conflict:
        return await self._write([], [Put(keys.FABRIC, codec.packed(fabric).SerializeToString())])

    async def echo(self, number: int) -> int | Conflict:
        """The leader's own beat, which it waits to see in its mirror."""
        return await self._write([], [Put(keys.ECHO, str(number).encode())])

    async def forget(self, job: JobId) -> int | Conflict:
        """Removes an ended job from the history."""
        ops = [Delete(keys.job_spec(job)), Delete(keys.job_status(job)), Delete(keys.job_wanted(job))]
        return await self._write([self._mirror.guard(keys.job_status(job)), Guard(keys.decision(job), mod_revision=0)], ops)

    def _put_status(self, job: JobId, status: Status) -> Put:
        return Put(keys.job_status(job), codec.status_message(job, status).SerializeToString())

    def _decision_op(self, job: Job, decision: Decision | None) -> Op:
        if decision is None:
            return Delete(keys.decision(job.id))
        message = codec.decision_message(decision, self._mirror.addresses())
        return Put(keys.decision(job.id), message.SerializeToString())

    def _order_ops(self, job: Job, decision: Decision | None, orders: Phase | None) -> list[Op]:
        if decision is None or orders is None:
            return [Delete(keys.assignment(node, job.id)) for node in sorted(job.orders)]
        nodes = decision.placement.nodes
        missing = [
            n for n in nodes if n not in job.orders or _behind(job.orders[n].phase, job.orders[n].attempt, decision, orders)
        ]
        messages = codec.assignment_messages(
            self._mirror.specs[job.id], decision, orders, self.term, self._mirror.addresses(), missing
        )
        ops: list[Op] = [
            Put(keys.assignment(node, job.id), message.SerializeToString()) for node, message in messages.items()
        ]
        ops += [Delete(keys.assignment(node, job.id)) for node in sorted(set(job.orders) - set(nodes))]
        return ops


def transactions(ops: Sequence[Op]) -> Iterator[list[Op]]:
    """`ops` in order, in pieces that the store takes: few enough, and small enough."""
    piece: list[Op] = []
    held_bytes = 0
    for op in ops:
        size = len(op.value) if isinstance(op, Put) else 0
        if piece and (len(piece) == OPERATIONS_MAX or held_bytes + size > TRANSACTION_BYTES):
            yield piece
            piece, held_bytes = [], 0
        piece.append(op)
        held_bytes += size
    if piece:
        yield piece


def _behind(phase: Phase, attempt: int, decision: Decision, orders: Phase) -> bool:
    return phase is not orders or attempt != decision.attempt
