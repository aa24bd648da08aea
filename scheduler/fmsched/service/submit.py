"""Submit, validate, plan: from a manifest to a job, or to every fault in it."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Protocol

import grpc

from fmproto.kv import Conflict
from fmproto.v1 import job_pb2
from fmproto.v1 import scheduler_pb2 as pb
from fmsched.lifecycle.table import submitted
from fmsched.loop import Scheduler, Solver
from fmsched.manifest import Manifest, parse, request, summary, work
from fmsched.model.hardware import JobId
from fmsched.model.job import Request
from fmsched.model.placement import Budget, Unplaceable, Verdict
from fmsched.model.snapshot import Snapshot
from fmsched.place.choices import Option
from fmsched.place.forecast import forecast
from fmsched.place.report import plan_json
from fmsched.service.answers import Answers
from fmsched.service.errors import ServiceError, invalid, not_leader
from fmsched.store import codec
from fmsched.store.ledger import GANG_RANKS_MAX, VALUE_BYTES_MAX

# A lost race is run again on a newer picture so often.
RACES_MAX = 5
PARSES_MAX = 2
SUBMITTER_MAX = 256
HOLD_S_MAX = 30 * 86400.0
REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{0,128}")


def checked(text: str) -> Manifest:
    """Raises ServiceError INVALID_ARGUMENT with every fault."""
    parsed = parse(text)
    if isinstance(parsed, Manifest):
        return parsed
    raise invalid(pb.FieldViolation(line=fault.line, path=fault.path, message=fault.message) for fault in parsed)


def _check_call(call: pb.SubmitRequest) -> None:
    faults = []
    if not REQUEST_ID.fullmatch(call.request_id):
        allowed = "at most 128 letters, digits and . _ : - are allowed"
        faults.append(pb.FieldViolation(path="request_id", message=f"found {call.request_id[:40]!r}; {allowed}"))
    if not 0 <= call.hold_s <= HOLD_S_MAX:  # NaN is neither
        faults.append(
            pb.FieldViolation(path="hold_s", message=f"found {call.hold_s}; 0 to {HOLD_S_MAX:g} seconds are allowed")
        )
    if len(call.submitter) > SUBMITTER_MAX:
        faults.append(
            pb.FieldViolation(path="submitter", message=f"found {len(call.submitter)} characters; at most {SUBMITTER_MAX}")
        )
    if faults:
        raise invalid(faults)


def validate(text: str) -> pb.ValidateResponse:
    parsed = parse(text)
    if not isinstance(parsed, Manifest):
        return pb.ValidateResponse(
            violations=[pb.FieldViolation(line=fault.line, path=fault.path, message=fault.message) for fault in parsed]
        )
    lines = [
        pb.SumLine(group=line.group, gpus_per_group=line.gpus_per_group, replicas=line.replicas, gpus=line.gpus)
        for line in summary(parsed)
    ]
    return pb.ValidateResponse(name=parsed.name, lines=lines, gpus=sum(line.gpus for line in lines))


def spec_message(manifest: Manifest, id_: JobId, text: str, submitted_ms: int, call: pb.SubmitRequest) -> job_pb2.JobSpec:
    spec = job_pb2.JobSpec(
        id=id_,
        name=manifest.name,
        request_id=call.request_id,
        manifest=text,
        submitted_ms=submitted_ms,
        submitter=call.submitter,
        replica_count=manifest.replicas,
        groups=[codec.group_message(group) for group in manifest.groups],
        launcher=manifest.launcher,
        priority_class=manifest.priority_class,
        priority=manifest.priority,
        tenant=manifest.tenant,
        queue=manifest.queue,
        grace_period_s=manifest.grace_period_s,
        max_runtime_s=manifest.max_runtime_s,
        hold_s=call.hold_s,
        model=manifest.model,
        max_restarts=manifest.max_restarts,
        policy=manifest.policy,
        spares=manifest.spares,
        allowed_nodes=manifest.allowed_nodes,
        denied_nodes=manifest.denied_nodes,
        cpus_per_gpu=manifest.template.cpus if manifest.template is not None else 0.0,
        memory_gb_per_gpu=manifest.template.memory_gb if manifest.template is not None else 0.0,
    )
    if (trained := work(manifest)) is not None:
        spec.work.CopyFrom(codec.work_message(trained))
    template = manifest.template
    if template is not None:
        spec.template.CopyFrom(
            job_pb2.Template(
                image=template.image,
                command=template.command,
                args=template.args,
                env=[job_pb2.EnvVar(name=name, value=value) for name, value in template.env],
                working_dir=template.working_dir,
                volumes=template.volumes,
            )
        )
    return spec


class PlanSolver(Solver, Protocol):
    """What plans are made with."""

    async def options(self, snapshot: Snapshot, request: Request, budget: Budget, verdict: Verdict) -> tuple[Option, ...]:
        """place.choices.options, off the event loop."""
        ...


class Submit:
    """`solver` is the service's own: what users ask must not hold up what the leader decides."""

    def __init__(self, scheduler: Scheduler, answers: Answers, solver: PlanSolver) -> None:
        self._scheduler = scheduler
        self._answers = answers
        self._solver = solver
        self._turn = asyncio.Lock()
        self._parsing = asyncio.Semaphore(PARSES_MAX)

    async def submit(self, call: pb.SubmitRequest, leader: str | None) -> pb.SubmitResponse:
        """Raises ServiceError as the proto file lists."""
        manifest = await self._parsed(call.manifest)
        _check_call(call)
        if call.hold_s and manifest.template is not None:
            found = (
                "found a template, but the caller means to hold an allocation and to start its ranks itself; leave it out"
            )
            raise invalid([pb.FieldViolation(path="spec.template", message=found)])
        earlier = self._of_request(call.request_id)
        if earlier is not None:
            return pb.SubmitResponse(job=self._answers.job(earlier), existed=True)
        await self._refuse_the_impossible(request(manifest, manifest.name))
        # One at a time: the mirror shows the one before, so that a request id or a number is never used twice.
        async with self._turn:
            return await self._store(manifest, call, leader)

    async def validate(self, text: str) -> pb.ValidateResponse:
        async with self._parsing:
            return await asyncio.to_thread(validate, text)

    async def _parsed(self, text: str) -> Manifest:
        """A hostile megabyte takes a second: in a thread, so that the leader's beats go on, and few at a time."""
        async with self._parsing:
            return await asyncio.to_thread(checked, text)

    async def _store(self, manifest: Manifest, call: pb.SubmitRequest, leader: str | None) -> pb.SubmitResponse:
        mirror = self._scheduler.mirror
        for _ in range(RACES_MAX):
            earlier = self._of_request(call.request_id)
            if earlier is not None:
                return pb.SubmitResponse(job=self._answers.job(earlier), existed=True)
            ledger = self._scheduler.ledger
            if ledger is None:
                raise not_leader(leader)
            # Names have no dot, so an id is never another job's name; numbers are never given twice.
            id_ = f"{manifest.name}.{mirror.sequence + 1}"
            now_ms = self._scheduler.wall_ms()
            spec = spec_message(manifest, id_, call.manifest, now_ms, call)
            if spec.ByteSize() > VALUE_BYTES_MAX:
                found = f"found {spec.ByteSize():,} bytes once stored; at most {VALUE_BYTES_MAX:,} are allowed"
                raise invalid([pb.FieldViolation(message=found)])
            before = mirror.sequence
            outcome = await ledger.submit(spec, submitted(now_ms))
            if not isinstance(outcome, Conflict):
                await mirror.reached(outcome)
                return pb.SubmitResponse(job=self._answers.job(id_))
            await mirror.reached(outcome.revision)
            if mirror.sequence == before:
                break  # nobody took the number, so it was the other guard
        raise not_leader(leader)

    def _of_request(self, request_id: str) -> JobId | None:
        if not request_id:
            return None
        return next((id_ for id_, spec in self._scheduler.mirror.specs.items() if spec.request_id == request_id), None)

    async def _refuse_the_impossible(self, asked: Request) -> None:
        if asked.gpus > GANG_RANKS_MAX:
            found = f"found {asked.gpus:,} GPUs in all; at most {GANG_RANKS_MAX:,} are allowed in one job"
            raise invalid([pb.FieldViolation(path="spec.replicaCount", message=found)])
        scheduler = self._scheduler
        snapshot = scheduler.picture.snapshot(asyncio.get_running_loop().time())
        if not snapshot.topology.nodes:
            return  # no node has registered yet: nothing can be said
        verdict, _ = await self._solver(snapshot.emptied(), asked, scheduler.config.budget)
        if isinstance(verdict, Unplaceable) and verdict.never:
            raise ServiceError(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"job {asked.job} can never run on this cluster: {verdict}",
                details=[codec.why_message(why) for why in verdict.why],
            )

    async def plan(self, text: str) -> str:
        """The live cluster's answer as JSON; nothing is committed."""
        manifest = await self._parsed(text)
        asked = request(manifest, manifest.name)
        scheduler = self._scheduler
        snapshot = scheduler.picture.snapshot(asyncio.get_running_loop().time())
        verdict, seconds = await self._solver(snapshot, asked, scheduler.config.budget)
        nodes = len(snapshot.topology.nodes)
        gpus = sum(len(node.shape.gpus) for node in snapshot.topology.nodes)
        predicted = forecast(asked, snapshot.topology, verdict)
        choices = await self._solver.options(snapshot, asked, scheduler.config.budget, verdict)
        return json.dumps(plan_json(asked, verdict, seconds, nodes, gpus, predicted, choices))
