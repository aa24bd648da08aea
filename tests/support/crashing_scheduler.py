"""fm-scheduler that kills itself with SIGKILL right after its first write of a chosen kind: `FMSCHED_TEST_CRASH=KIND:MARK`, where the
file MARK is made first and keeps it from crashing again.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path

import fmsched.__main__ as program
from fmproto import keys
from fmproto.etcd import Etcd
from fmproto.kv import Conflict, Delete, Guard, Op, Put
from fmproto.v1 import job_pb2 as pb

KIND, _, MARK = os.environ["FMSCHED_TEST_CRASH"].partition(":")


def is_the_write(ops: Sequence[Op]) -> bool:
    """Whether the transaction is the one to die after."""
    for op in ops:
        if isinstance(op, Put) and op.key.startswith(keys.DECISIONS):
            decision = pb.Decision.FromString(op.value)
            if ("stop" if decision.stop else "start" if decision.start else "commit") == KIND:
                return True
        if isinstance(op, Put) and op.key.startswith(keys.ASSIGNMENTS) and KIND == "prepare":
            return pb.Assignment.FromString(op.value).phase == pb.PHASE_PREPARE
        if isinstance(op, Put) and op.key.endswith("/spec") and KIND == "submit":
            return True
        if isinstance(op, Delete) and op.key.startswith(keys.DECISIONS) and KIND == "release":
            return True
    return False


class CrashingEtcd(Etcd):
    async def write(self, guards: Sequence[Guard], ops: Sequence[Op]) -> int | Conflict:
        outcome = await super().write(guards, ops)
        if not isinstance(outcome, Conflict) and is_the_write(ops) and not Path(MARK).exists():
            Path(MARK).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return outcome


program.Etcd = CrashingEtcd  # type: ignore[misc]

if __name__ == "__main__":
    program.app()
