"""A small cluster and its jobs, as messages: what the client and fmctl are shown in tests."""

from __future__ import annotations

from fmproto.v1 import hardware_pb2, job_pb2, scheduler_pb2
from fmproto.v1.scheduler_pb2 import Job, ListNodesResponse, LogChunk
from tests.support.scripted_scheduler import job, placed


def cluster() -> ListNodesResponse:
    """n0 and n1 under leaf-0, n2 drained under leaf-1; two GPUs each; n1's second GPU has failed; job "train" holds n0."""
    found = ListNodesResponse()
    for number, (leaf, state) in enumerate((("leaf-0", "ready"), ("leaf-0", "ready"), ("leaf-1", "drained"))):
        name = f"n{number}"
        node = found.nodes.add(name=name, leaf=leaf, state=state, reason="new cables" if state == "drained" else "")
        node.inventory.CopyFrom(hardware_pb2.Inventory(node=name, address=f"10.0.0.{number}", driver_version="570.1"))
        for index in range(2):
            uuid = f"GPU-{number}-{index}"
            node.inventory.gpus.add(index=index, uuid=uuid, model="H100-SXM5-80GB", memory_gb=80)
            failed = (number, index) == (1, 1)
            state_of = hardware_pb2.HEALTH_STATE_FAILED if failed else hardware_pb2.HEALTH_STATE_OK
            node.health.gpus.add(device=uuid, state=state_of, reason="XID 79: fallen off the bus" if failed else "")
            if number == 0:
                node.holders[index] = "train"
    return found


def jobs() -> dict[str, Job]:
    """train runs, big waits first in the queue, old has failed."""
    running, waiting = placed("train"), job("big", reason="waits for room")
    running.decision.objective.CopyFrom(
        job_pb2.Objective(value=3, bound=3, optimal=True, terms=[job_pb2.Term(name="leaves", weight=3, value=1)])
    )
    waiting.queue_position = 1
    waiting.spec.groups.add(name="workers", kind=job_pb2.GROUP_KIND_TENSOR_PARALLEL, gpus_per_group=4)
    waiting.status.why.add(
        constraint="free GPUs", group="workers", asked="4", best="1", where="on n1", relax="the end of job train"
    )
    old = job("old", job_pb2.JOB_STATE_FAILED, reason="rank 1 exited with 3", finished_ms=1_700_000_050_000)
    old.status.first_failure.CopyFrom(
        job_pb2.RankFailure(node="n1", rank=1, exit_code=3, reason="exit", last_lines="out of memory")
    )
    for number, each in enumerate((running, waiting, old)):
        each.status.events.add(at_ms=1_700_000_000_000 + number, state=each.status.state, reason="as a test wants it")
    return {each.spec.id: each for each in (running, waiting, old)}


def chunks() -> list[LogChunk]:
    """Two ranks that tear each other's lines, one without a last newline."""
    parts = ((0, b"rank 0 st"), (1, b"rank 1 whole\n"), (0, b"arts\n"), (1, b"rank 1 open"))
    return [scheduler_pb2.LogChunk(rank=rank, node=f"n{rank}", data=data) for rank, data in parts]
