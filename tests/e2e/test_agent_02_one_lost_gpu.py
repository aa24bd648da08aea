"""Story agent-02: one GPU of a node falls off the bus, and after a reload NVML enumerates the others under shifted indices while
/dev/nvidiaN keeps its hole. The others go on being used, each under its own name."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from fmproto.v1 import hardware_pb2 as hw
from tests.support.live import manifest, ready, until
from tests.support.machines import GPUS, Machines


def test_one_lost_gpu_costs_one_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Machines(tmp_path, monkeypatch) as machines:
        for node in ("n1", "n2"):
            machines.has(node, "error 2 15")
            until(
                f"GPU 2 of {node} is lost",
                lambda node=node: "GPU 2 failed: NVML_ERROR_GPU_IS_LOST" in machines.fault(node),  # type: ignore[misc]
            )
            states = [gpu.state for gpu in machines.node(node).health.gpus]
            assert states.count(hw.HEALTH_STATE_OK) == GPUS - 1
        first = machines.runs("pair", 2)
        assert 2 not in {gpu for _, gpu in first}
        (name,) = {node for node, _ in first}

        # The driver is loaded anew and lists three; the agent starts again.
        machines.local.part(f"agent-{name}").stop()
        machines.has(name, slots=(0, 1, 3))
        machines.start(name)
        until("the node is back", lambda: ready(machines.client) == 2)
        time.sleep(2)
        assert "GPU 2 failed: NVML_ERROR_GPU_IS_LOST" in machines.fault(name), (
            "the words are those of the moment when it failed"
        )
        node = machines.node(name)
        assert [(gpu.uuid, gpu.index, gpu.minor) for gpu in node.inventory.gpus] == [
            (f"GPU-{slot:04d}", slot, slot) for slot in range(GPUS)
        ]
        assert {gpu.device for gpu in node.health.gpus if gpu.state == hw.HEALTH_STATE_OK} == {
            f"GPU-{slot:04d}" for slot in (0, 1, 3)
        }
        assert machines.client.get("pair").decision.attempt == 1, "the job beside it goes on"

        # What is free is given by its own name.
        seen = tmp_path / "seen"
        machines.client.submit(manifest("last", f"echo $CUDA_VISIBLE_DEVICES >> {seen}; sleep 600", gpus=1))
        machines.client.submit(manifest("other", f"echo $CUDA_VISIBLE_DEVICES >> {seen}; sleep 600", gpus=1))
        for job in ("last", "other"):
            machines.client.wait(job, until="running", timeout_s=30)
        until("both ranks wrote", lambda: seen.exists() and len(seen.read_text().split()) == 2)
        names = {rank.gpu_uuid for job in ("last", "other") for rank in machines.client.get(job).decision.ranks}
        assert set(seen.read_text().split()) == names
        assert "GPU-0002" not in names
