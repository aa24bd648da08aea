"""From the mirror to answer messages."""

from __future__ import annotations

from fmproto.v1 import job_pb2
from fmproto.v1 import scheduler_pb2 as pb
from fmsched.lifecycle.step import NodeState
from fmsched.loop import Scheduler
from fmsched.model.hardware import JobId, NodeName
from fmsched.policy.order import waiting_in_order
from fmsched.service.errors import not_found
from fmsched.service.links import link_messages
from fmsched.store import codec
from fmsched.topology.routes import measured_of


def _without_texts(spec: job_pb2.JobSpec) -> job_pb2.JobSpec:
    short = job_pb2.JobSpec()
    short.CopyFrom(spec)
    short.ClearField("manifest")
    if short.HasField("template"):
        # That there is one is what tells a job from an allocation.
        short.template.Clear()
        short.template.SetInParent()
    return short


class Answers:
    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._mirror = scheduler.mirror

    def find(self, name: str) -> JobId:
        """A job by id, or the newest by name. Raises ServiceError NOT_FOUND."""
        if name in self._mirror.specs and name in self._mirror.statuses:
            return name
        raise not_found("job", name, self._mirror.specs.keys() & self._mirror.statuses.keys())

    def newest(self, name: str) -> JobId:
        """The job of that id, else the newest of that name. Raises ServiceError NOT_FOUND."""
        specs, statuses = self._mirror.specs, self._mirror.statuses
        if name in specs:
            return self.find(name)
        named = [(spec.submitted_ms, len(id_), id_) for id_, spec in specs.items() if spec.name == name and id_ in statuses]
        return max(named)[2] if named else self.find(name)

    def links(self) -> list[pb.LinkUse]:
        picture = self._scheduler.picture
        held, measured = picture.links_held(), measured_of(picture.topology().fabric)
        return link_messages(picture.topology(), held, measured) if held or measured else []

    def queue(self) -> dict[JobId, int]:
        """Position of each waiting job, the next one 1."""
        jobs = (self._mirror.job(id_) for id_ in self._mirror.wanted)
        ordered = waiting_in_order(job for job in jobs if job is not None)
        return {job.id: position for position, job in enumerate(ordered, start=1)}

    def job(self, id_: JobId, queue: dict[JobId, int] | None = None, *, whole: bool = True) -> pb.Job:
        """Without `whole`, the manifest and the template are left out: thousands of them do not fit into one answer."""
        mirror = self._mirror
        if id_ not in mirror.specs or id_ not in mirror.statuses:
            raise not_found("job", id_, mirror.specs)
        positions = self.queue() if queue is None else queue
        spec = mirror.specs[id_]
        if not whole and (spec.manifest or spec.HasField("template")):
            spec = _without_texts(spec)
        answer = pb.Job(
            spec=spec,
            status=codec.status_message(id_, mirror.statuses[id_]),
            queue_position=positions.get(id_, 0),
            runs=[run for _, run in sorted(mirror.run_messages.get(id_, {}).items())],
        )
        if id_ in mirror.decision_messages:
            answer.decision.CopyFrom(mirror.decision_messages[id_])
        return answer

    def jobs(self, *, live_only: bool = False) -> list[pb.Job]:
        """Oldest first."""
        queue = self.queue()
        ids = [id_ for id_, status in self._mirror.statuses.items() if not (live_only and status.state.ended)]
        ids = [id_ for id_ in ids if id_ in self._mirror.specs]
        ids.sort(key=lambda id_: (self._mirror.specs[id_].submitted_ms, id_))
        return [self.job(id_, queue, whole=False) for id_ in ids]

    def node(self, name: NodeName, now_s: float) -> pb.Node:
        if name not in self._mirror.inventories:
            raise not_found("node", name, self._mirror.inventories)
        return next(node for node in self.nodes(now_s) if node.name == name)

    def nodes(self, now_s: float) -> list[pb.Node]:
        mirror, picture = self._mirror, self._scheduler.picture
        snapshot = picture.snapshot(now_s)
        states = picture.liveness(now_s).states
        failed = picture.failed_gpus()
        topology = snapshot.topology
        holders: dict[NodeName, dict[int, JobId]] = {}
        for gpu, job in snapshot.held.items():
            holders.setdefault(gpu.node, {})[gpu.index] = job
        answer = []
        for name, inventory in sorted(mirror.inventories.items()):
            held = holders.get(name, {})
            state, reason = str(states[name]), ""
            intent = mirror.intents.get(name)
            if states[name] is NodeState.READY:
                if intent is not None and intent.drained:
                    state, reason = ("draining" if held else "drained"), intent.reason
                elif inventory.gpus and sum(gpu.node == name for gpu in failed) == len(inventory.gpus):
                    state, reason = "failed", "every GPU failed"
                elif name in snapshot.closed:
                    state, reason = "closed", snapshot.closed[name]
            else:
                reason = snapshot.closed.get(name, "")
            node = pb.Node(name=name, inventory=inventory, state=state, reason=reason, holders=held)
            if name in topology.index:
                node.leaf = topology.leaves[int(topology.leaf_of[topology.index[name]])]
            if name in mirror.healths:
                node.health.CopyFrom(mirror.healths[name])
            answer.append(node)
        return answer
