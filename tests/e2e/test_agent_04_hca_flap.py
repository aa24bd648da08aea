"""Story agent-04: a port that flaps ten times in two minutes is bad until it has been quiet, at the cost of a few writes to the store; one
flap changes nothing for a job that runs. Time is scaled: a look is half a second, the quiet time four seconds."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from fmproto import keys
from fmproto.etcd import Etcd
from tests.support.live import state, until
from tests.support.machines import GPUS, Machines

RULES = "[ports]\nchanges_max = 3\nchanges_window_s = 12\nquiet_s = 4\n"
LOOK_S = 0.7  # longer than a look's period, so that each state is seen
WRITES_MAX = 6


def revisions(endpoint: str, node: str) -> tuple[int, int]:
    """Of the last writes of inventory and health."""

    async def read() -> tuple[int, int]:
        kv = Etcd([endpoint])
        try:
            found = [await kv.get(key) for key in (keys.inventory(node), keys.health(node))]
        finally:
            await kv.close()
        assert found[0] is not None
        assert found[1] is not None
        return found[0].mod_revision, found[1].mod_revision

    return asyncio.run(read())


def test_a_flapping_port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Machines(tmp_path, monkeypatch, rules=RULES) as machines:
        for node in ("n1", "n2"):
            machines.port(node)
        until("both have a port", lambda: all(machines.node(node).inventory.hca_ports for node in ("n1", "n2")))
        gang = machines.runs("gang", GPUS)
        (node,) = {name for name, _ in gang}
        endpoint = machines.local.etcd_endpoint

        machines.port(node, "Down", "Polling")
        until("it is down", lambda: "mlx5_0/1 failed: port is Down/Polling" in machines.fault(node))
        machines.port(node)
        until("it is up again", lambda: machines.fault(node) == "")
        assert (state(machines.client, "gang"), machines.placed("gang")) == ("running", gang)
        time.sleep(13)  # out of the window

        seen = {revisions(endpoint, node)}
        for _ in range(10):
            for flap in (("Down", "Polling"), ("Active", "LinkUp")):
                machines.port(node, *flap)
                time.sleep(LOOK_S)
                seen.add(revisions(endpoint, node))
        fault = machines.fault(node)
        assert "mlx5_0/1 failed: unstable: more than 3 changes of state in 12 s" in fault
        assert "evidence: 4 changes within 12 s" in fault
        for key in (0, 1):
            assert len({each[key] for each in seen}) - 1 <= WRITES_MAX
        assert (state(machines.client, "gang"), machines.placed("gang")) == ("running", gang)

        quiet_s = time.monotonic()
        until("it is trusted again", lambda: machines.fault(node) == "")
        assert time.monotonic() - quiet_s > 2.0
