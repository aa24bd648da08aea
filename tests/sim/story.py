"""Values of the store in one line each, for the report of a failing seed."""

from __future__ import annotations

from fmproto.v1 import hardware_pb2 as hw
from fmproto.v1 import job_pb2 as pb


def shown(key: str, value: bytes | None) -> str:
    if value is None:
        return "deleted"
    match key.split("/")[3:]:
        case ["decisions", _]:
            d = pb.Decision.FromString(value)
            where = " ".join(f"{rank.node}/{rank.gpu_index}" for rank in d.ranks)
            return f"attempt {d.attempt} term {d.term} [{where}] start={d.start} stop={d.stop}"
        case ["assignments", _, _]:
            a = pb.Assignment.FromString(value)
            return f"attempt {a.attempt} term {a.term} {pb.Phase.Name(a.phase)}"
        case ["jobs", _, "status"]:
            s = pb.JobStatus.FromString(value)
            return f"{pb.JobState.Name(s.state)} attempt {s.attempt}: {s.reason}"
        case ["nodes", _, "runs", _]:
            r = pb.RunReport.FromString(value)
            ranks = " ".join(f"{rank.rank}:{pb.RankState.Name(rank.state)[11:]}" for rank in r.ranks)
            return f"attempt {r.attempt} {pb.RunPhase.Name(r.phase)} [{ranks}] {r.reason}"
        case ["nodes", _, "health"]:
            health = hw.Health.FromString(value)
            return " ".join(f"{gpu.device}: {gpu.reason}" for gpu in health.gpus if gpu.reason) or "well"
        case _:
            return f"{len(value)} bytes"
