"""An inventory that settles: what changes again and again costs a handful of writes, and what changes once passes at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise

import pytest

from fmagent.devices.damped import CHANGES_MAX, QUIET_S, WINDOW_S, Damper
from fmproto.v1 import hardware_pb2 as pb

PERIOD_S = 5.0
Change = Callable[[pb.Inventory], object]


def node() -> pb.Inventory:
    return pb.Inventory(
        node="n1",
        address="10.0.0.1",
        socket_interface="eth0",
        driver_version="550.1",
        host=pb.Host(
            hostname="h",
            interfaces=[pb.NetInterface(name="eth0", addresses=["10.0.0.1"], up=True)],
            disks=[pb.Disk(mount="/", bytes_total=10**12)],
        ),
        gpus=[
            pb.Gpu(
                uuid=f"GPU-{index}",
                index=index,
                minor=index + 1,
                power_limit_w=700,
                nvlink_ports=[pb.NvLinkPort(link=link, active=True) for link in range(2)],
            )
            for index in range(3)
        ],
        nvlinks=[pb.NvLinkPair(gpu_a=a, gpu_b=b, gbytes_per_s=900) for a, b in ((0, 1), (0, 2), (1, 2))],
        gpu_paths=[pb.GpuPath(gpu_a=a, gpu_b=b, path="SYS") for a, b in ((0, 1), (0, 2), (1, 2))],
        hca_ports=[pb.HcaPort(hca=f"mlx5_{n}", port=1, state="Active", rate_gbps=400, numa_node=-1) for n in (2, 10)],
    )


def damped(looks: Iterable[Change | None], damper: Damper | None = None, start_s: float = 0.0) -> list[pb.Inventory]:
    damper = damper or Damper()
    found = []
    for number, change in enumerate(looks):
        inventory = node()
        if change is not None:
            change(inventory)
        damper.damp(inventory, start_s + PERIOD_S * number)
        found.append(inventory)
    return found


def writes(found: list[pb.Inventory]) -> int:
    told = [each.SerializeToString(deterministic=True) for each in found]
    return sum(a != b for a, b in pairwise(told))


def link_down(inventory: pb.Inventory) -> None:
    inventory.gpus[1].nvlink_ports[1].active = False
    inventory.nvlinks[0].gbytes_per_s = inventory.nvlinks[2].gbytes_per_s = 850


def gpu_dark(inventory: pb.Inventory) -> None:
    """What GPU 1 has to do with."""
    for pairs in (inventory.nvlinks, inventory.gpu_paths):
        del pairs[2]
        del pairs[0]


CHANGES: dict[str, Change] = {
    "link": link_down,
    "gpu": gpu_dark,
    "rate": lambda inventory: setattr(inventory.hca_ports[0], "rate_gbps", 200),
    "port": lambda inventory: inventory.hca_ports.pop(0),
    "power": lambda inventory: setattr(inventory.gpus[2], "power_limit_w", 500),
    "driver": lambda inventory: inventory.ClearField("driver_version"),
    "interface": lambda inventory: inventory.host.interfaces.add(name="veth1", addresses=["10.9.9.9"]),
    "disk": lambda inventory: inventory.host.disks.add(mount="/mnt"),
    "address": lambda inventory: setattr(inventory, "address", "10.0.0.2"),
}


def test_what_is_still_is_published_as_it_is() -> None:
    assert damped([None, None]) == [node(), node()]


@pytest.mark.parametrize("name", CHANGES)
def test_one_change_passes_at_once_and_so_does_its_end(name: str) -> None:
    changed = node()
    CHANGES[name](changed)
    assert damped([None, CHANGES[name], CHANGES[name], None]) == [node(), changed, changed, node()]


@pytest.mark.parametrize("name", CHANGES)
def test_what_comes_and_goes_costs_a_handful_of_writes(name: str) -> None:
    an_hour = damped(CHANGES[name] if look % 2 else None for look in range(720))
    assert 0 < writes(an_hour) <= CHANGES_MAX
    assert writes(an_hour[2 * CHANGES_MAX :]) == 0


@pytest.mark.parametrize("name", ["link", "gpu", "rate", "port"])
def test_of_what_is_restless_the_worst_is_published(name: str) -> None:
    worst = node()
    CHANGES[name](worst)
    last = damped(CHANGES[name] if look % 2 else None for look in range(30))[-1]
    assert (last.nvlinks, last.hca_ports) == (worst.nvlinks, worst.hca_ports)


def test_once_quiet_it_is_published_as_it_is_again() -> None:
    damper = Damper()
    damped((link_down if look % 2 else None for look in range(20)), damper)
    quiet = damped([None] * 70, damper, start_s=100.0)
    assert [pair.gbytes_per_s for pair in quiet[int(QUIET_S / PERIOD_S) - 2].nvlinks] == [850, 900, 850]
    assert quiet[-1] == node()
    assert writes(quiet) == 1


def test_a_figure_that_always_moves_is_told_no_more_and_hides_no_other() -> None:
    def moves(watts: int) -> Change:
        def change(inventory: pb.Inventory) -> None:
            inventory.gpus[0].power_limit_w = watts
            if watts >= 800:
                inventory.gpus[0].mig_enabled = True

        return change

    found = damped(moves(600 + look) for look in range(300))
    assert writes(found) <= CHANGES_MAX + 1
    assert not found[199].gpus[0].mig_enabled
    assert found[200].gpus[0].mig_enabled


def test_pairs_follow_their_gpus_to_new_indices() -> None:
    damper = Damper()
    damped((gpu_dark if look % 2 else None for look in range(20)), damper)
    found = node()
    found.gpus.insert(0, pb.Gpu(uuid="GPU-new", index=0))
    for gpu in found.gpus[1:]:
        gpu.index += 1
    for pair in found.nvlinks:
        pair.gpu_a, pair.gpu_b = pair.gpu_a + 1, pair.gpu_b + 1
    damper.damp(found, 100.0)
    assert [(pair.gpu_a, pair.gpu_b) for pair in found.nvlinks] == [(1, 3)]
    assert [(gpu.uuid, gpu.index, gpu.minor) for gpu in found.gpus][1:] == [
        ("GPU-0", 1, 1),
        ("GPU-1", 2, 2),
        ("GPU-2", 3, 3),
    ]


def test_what_is_gone_for_good_is_forgotten() -> None:
    damper = Damper()
    damped([None], damper)
    damped([CHANGES["port"]], damper, 10.0)
    damped([CHANGES["port"]], damper, 10.0 + WINDOW_S)
    assert not [key for key in damper._parts if key[:2] == ("port", "mlx5_2")]
