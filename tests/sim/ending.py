"""What must be true once the faults have ceased and time has passed: every job has ended, or waits for a reason that is true; nothing is
left of those that have ended.
"""

from __future__ import annotations

from collections.abc import Sequence

from fmproto import keys
from fmproto.kv import Resync
from fmsched.model.job import Request
from fmsched.model.placement import Placement
from fmsched.model.record import Status
from fmsched.picture import Picture
from fmsched.store.memory import MemoryStore
from fmsched.store.mirror import Mirror
from tests.sim.network import done_at_once
from tests.sim.nodes import Node
from tests.sim.programs import LOOP_CONFIG, answer
from tests.sim.safety import Safety
from tests.sim.scenario import Scenario


class Ending:
    """Asked once a second after the last fault."""

    def __init__(self, store: MemoryStore, safety: Safety, nodes: Sequence[Node], plan: Scenario) -> None:
        self._store = store
        self._safety = safety
        self._nodes = nodes
        self._plan = plan

    def unsettled(self, now_s: float) -> list[str]:
        """What is still missing, one sentence each."""
        seen = self._safety.seen
        left = [f"{job.spec.id} was not accepted" for job in self._plan.jobs if job.spec.id not in seen.statuses]
        for job, status in sorted(seen.statuses.items()):
            if not status.state.ended and not (status.state.waits and status.why):
                left.append(f"{job} is {status.state} ({status.reason})")
        busy = sorted({*seen.granted, *(job for _, job in seen.orders), *(job for _, job in seen.reports)})
        left += [f"{job} still has a decision, orders or reports" for job in busy]
        for node in self._nodes:
            left += [f"{node.name} still has a run of {run.key}" for run in node.disk.runs.values() if not run.released]
            left += [f"{node.name}: a rank of {run.key} lives" for run, _ in node.living()]
        return left or self._false_reasons(now_s)

    def _false_reasons(self, now_s: float) -> list[str]:
        """Jobs that wait although they could be placed now, and jobs that have ended but are still wanted."""
        mirror = Mirror()
        page = done_at_once(self._store.read(keys.ROOT))
        done_at_once(mirror.apply(Resync(page.entries, page.revision), now_s))
        snapshot = Picture(mirror, LOOP_CONFIG.liveness).snapshot(now_s)
        left = []
        for id_, status in sorted(mirror.statuses.items()):
            if status.state.ended and id_ in mirror.wanted:
                left.append(f"{id_} is {status.state} and still wanted")
            if not status.state.ended:
                verdict = answer(snapshot, self._request(mirror, id_, status), LOOP_CONFIG.budget)
                if isinstance(verdict, Placement):
                    left.append(f"{id_} waits ({status.reason}), and could be placed on {verdict.nodes}")
        return left

    def _request(self, mirror: Mirror, job: str, status: Status) -> Request:
        request = mirror.spec_values[job].request
        return Request(request.job, request.groups, request.replicas, frozenset(status.avoid))
