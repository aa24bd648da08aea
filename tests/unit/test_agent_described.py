"""A described node: facts from the file, faults as they are written to it, and a file that cannot be read for a while."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from fmagent.devices.described import DescribedDevices
from fmproto.v1 import hardware_pb2 as pb
from tests.support.agent import CLUSTER


async def test_faults_are_seen_when_they_are_written(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(CLUSTER)
    devices = DescribedDevices(path, "n1")
    inventory, health = await devices.observe()
    assert len(inventory.gpus) == 8
    assert inventory.host.cpus > 0
    assert {gpu.state for gpu in health.gpus} == {pb.HEALTH_STATE_OK}
    path.write_text(CLUSTER.replace("leaf: leaf1", "leaf: leaf1, faults: {gpu2: off the bus, mlx5_0: cable}"))
    _, health = await devices.observe()
    assert [gpu.reason for gpu in health.gpus if gpu.state == pb.HEALTH_STATE_FAILED] == ["off the bus"]
    assert [port.device for port in health.hca_ports if port.state == pb.HEALTH_STATE_FAILED] == ["mlx5_0/1"]
    assert await devices.holders(["x"]) == {"x": ()}


@pytest.mark.parametrize("text", ["", "nodes: [", CLUSTER.replace("name: n1", "name: other")])
async def test_a_file_that_is_wrong_later_changes_nothing_else(tmp_path: Path, text: str) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(CLUSTER)
    devices = DescribedDevices(path, "n1")
    before, _ = await devices.observe()
    path.write_text(text)
    inventory, health = await devices.observe()
    assert inventory == before
    assert {gpu.state for gpu in health.gpus} == {pb.HEALTH_STATE_OK}
    assert [disk.state for disk in health.disks] == [pb.HEALTH_STATE_DEGRADED]
    path.write_text(CLUSTER)
    assert not (await devices.observe())[1].disks


def test_a_file_that_is_wrong_at_the_start_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(CLUSTER)
    with pytest.raises(ValueError, match="n9"):
        DescribedDevices(path, "n9")
    with pytest.raises(OSError, match="none"):
        DescribedDevices(tmp_path / "none", "n1")


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
async def test_what_is_no_file_is_a_fault_and_no_hang(tmp_path: Path, make: Callable[[Path], None]) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(CLUSTER)
    devices = DescribedDevices(path, "n1")
    path.unlink()
    make(path)
    _, health = await devices.observe()
    assert [disk.state for disk in health.disks] == [pb.HEALTH_STATE_DEGRADED]
    with pytest.raises(OSError, match=r"cluster\.yaml"):
        DescribedDevices(path, "n1")
