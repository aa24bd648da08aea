"""Story agent-03: an application's Xid takes no GPU out of service, a fallen GPU's does, also over a kill -9 of the agent, and a reset
brings it back without anybody's help. The table, code by code, is tests/unit/test_agent_health_xid.py's."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from tests.support.live import ready, state, until
from tests.support.machines import GPUS, Machines


def test_xids_by_their_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Machines(tmp_path, monkeypatch) as machines:
        gang = machines.runs("gang", GPUS)
        (node,) = {name for name, _ in gang}
        events = ["xid 1 2 31", "xid 2 2 94", "xid 3 2 43", "xid 4 2 45"]
        machines.has(node, *events)
        time.sleep(3)
        assert machines.fault(node) == ""
        assert (state(machines.client, "gang"), machines.placed("gang")) == ("running", gang)

        events.append("xid 5 1 79")
        machines.has(node, *events)
        until("GPU 1 has failed", lambda: "GPU 1 failed: Xid 79" in machines.fault(node))
        agent = machines.local.part(f"agent-{node}")
        agent.signal(signal.SIGKILL)
        # The library tells a new process no old events: what stands, stands by the agent's own record.
        machines.has(node)
        agent.stop()
        machines.start(node)
        until("the node is back", lambda: ready(machines.client) == 2)
        until("the gang is placed elsewhere", lambda: node not in {name for name, _ in machines.placed("gang")})
        assert "Xid 79" in str(machines.client.get("gang")), "the job's record names it"
        assert "GPU 1 failed: Xid 79" in machines.fault(node)

        # A reset: the GPU goes, and comes back.
        machines.has(node, "error 1 15")
        until("it is lost", lambda: "GPU_IS_LOST" in machines.fault(node))
        machines.has(node)
        until("it is well again", lambda: machines.fault(node) == "", timeout_s=60)
