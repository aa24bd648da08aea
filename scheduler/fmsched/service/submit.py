"""Submit, validate, plan: from a manifest to a job, or to every fault in it."""

from __future__ import annotations

import asyncio
import json
import re

import grpc

from fmproto.kv import Conflict
from fmproto.v1 import job_pb2
from fmproto.v1 import scheduler_pb2 as pb
from fmsched.lifecycle.table import submitted
from fmsched.loop import Scheduler
from fmsched.manifest import Manifest, parse, request, summary
from fmsched.model.hardware import JobId
from fmsched.model.job import Request
from fmsched.model.placement import Unplaceable
from fmsched.place.report import plan_json
from fmsched.service.answers import Answers
from fmsched.service.errors import ServiceError, invalid, not_leader
from fmsched.store import codec

# A submit whose name is taken in the same moment looks for the next free number so often.
NAME_ATTEMPTS_MAX = 8
REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{0,128}")


def checked(text: str) -> Manifest:
    """Raises ServiceError INVALID_ARGUMENT with every fault."""
    parsed = parse(text)
    if isinstance(parsed, Manifest):
        return parsed
    raise invalid(pb.FieldViolation(line=fault.line, path=fault.path, message=fault.message) for fault in parsed)


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
    )
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


class Submit:
    def __init__(self, scheduler: Scheduler, answers: Answers) -> None:
        self._scheduler = scheduler
        self._answers = answers

    async def submit(self, call: pb.SubmitRequest, leader: str | None) -> pb.SubmitResponse:
        """Raises ServiceError as the proto file lists."""
        manifest = checked(call.manifest)
        if not REQUEST_ID.fullmatch(call.request_id):
            fault = "at most 128 letters, digits and . _ : - are allowed"
            raise invalid([pb.FieldViolation(path="request_id", message=f"found {call.request_id[:40]!r}; {fault}")])
        earlier = self._of_request(call.request_id)
        if earlier is not None:
            return pb.SubmitResponse(job=self._answers.job(earlier), existed=True)
        await self._refuse_the_impossible(request(manifest, manifest.name))
        for _ in range(NAME_ATTEMPTS_MAX):
            ledger = self._scheduler.ledger
            if ledger is None:
                raise not_leader(leader)
            id_ = self._free_id(manifest.name)
            now_ms = self._scheduler.wall_ms()
            spec = spec_message(manifest, id_, call.manifest, now_ms, call)
            outcome = await ledger.submit(spec, submitted(now_ms))
            if not isinstance(outcome, Conflict):
                await self._scheduler.mirror.reached(outcome)
                return pb.SubmitResponse(job=self._answers.job(id_))
            await self._scheduler.mirror.reached(outcome.revision)
            if id_ not in self._scheduler.mirror.specs:
                raise not_leader(leader)  # nobody took the name, so it was the other guard
        raise ServiceError(
            grpc.StatusCode.ABORTED, f"{manifest.name}: its name was taken {NAME_ATTEMPTS_MAX} times in a row; try again"
        )

    def _of_request(self, request_id: str) -> JobId | None:
        if not request_id:
            return None
        return next((id_ for id_, spec in self._scheduler.mirror.specs.items() if spec.request_id == request_id), None)

    def _free_id(self, name: str) -> JobId:
        """The name itself, then name.2, name.3…: a manifest may be submitted again, and both jobs keep their history."""
        taken = self._scheduler.mirror.specs
        if name not in taken:
            return name
        number = 2
        while f"{name}.{number}" in taken:
            number += 1
        return f"{name}.{number}"

    async def _refuse_the_impossible(self, asked: Request) -> None:
        scheduler = self._scheduler
        snapshot = scheduler.picture.snapshot(asyncio.get_running_loop().time())
        if not snapshot.topology.nodes:
            return  # no node has registered yet: nothing can be said
        verdict, _ = await scheduler.solver(snapshot.emptied(), asked, scheduler.config.budget)
        if isinstance(verdict, Unplaceable) and verdict.never:
            raise ServiceError(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"job {asked.job} can never run on this cluster: {verdict}",
                details=[codec.why_message(why) for why in verdict.why],
            )

    async def plan(self, text: str) -> str:
        """The live cluster's answer as JSON; nothing is committed."""
        manifest = checked(text)
        asked = request(manifest, manifest.name)
        scheduler = self._scheduler
        snapshot = scheduler.picture.snapshot(asyncio.get_running_loop().time())
        verdict, seconds = await scheduler.solver(snapshot, asked, scheduler.config.budget)
        nodes = len(snapshot.topology.nodes)
        gpus = sum(len(node.shape.gpus) for node in snapshot.topology.nodes)
        return json.dumps(plan_json(asked, verdict, seconds, nodes, gpus))
