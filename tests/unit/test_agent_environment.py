"""A rank's environment, and what NCCL would make of it."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

from fmagent.launch.environment import NodeFacts, launch_of, placement_json
from fmagent.orders import Command, Order, PlacedRank, RankOrder

RANKS = (
    RankOrder(8, 0, "tp", 1, 2, 3, "GPU-c", ("mlx5_1",)),
    RankOrder(9, 1, "tp", 1, 2, 2, "GPU-b", ("mlx5_2:2",)),
)
ORDER = Order(
    job="j", attempt=3, term=1, revision=1, start=False, node_rank=1, node_count=2, world_size=16, ranks=RANKS, command=Command(("x",))
)  # fmt: skip
HCAS = tuple((f"mlx5_{number}", (1, 2) if number == 11 else (1,)) for number in range(12))
FACTS = NodeFacts("n7", "bond0", HCAS)


def test_the_variables_of_a_rank() -> None:
    inherited = {"PATH": "/bin", "HOME": "/root", "AWS_SECRET": "the agent's own"}
    launch = launch_of(ORDER, FACTS, inherited, "n7/j.3@0", "/state/placement.json")
    assert launch.environments[1] == {
        "PATH": "/bin",
        "HOME": "/root",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": "GPU-c,GPU-b",
        "RANK": "9",
        "WORLD_SIZE": "16",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
        "NODE_RANK": "1",
        "NCCL_SOCKET_IFNAME": "=bond0",
        "NCCL_IB_HCA": "=mlx5_1:1,mlx5_2:2",
        "FMSCHED_JOB": "j",
        "FMSCHED_ATTEMPT": "3",
        "FMSCHED_NODE": "n7",
        "FMSCHED_GROUP": "tp",
        "FMSCHED_REPLICA": "1",
        "FMSCHED_CELL": "2",
        "FMSCHED_GPU_UUIDS": "GPU-c,GPU-b",
        "FMSCHED_GPU_INDICES": "3,2",
        "FMSCHED_PLACEMENT": "/state/placement.json",
        "FMSCHED_RUN": "n7/j.3@0",
    }
    assert (launch.overridden, launch.refused) == ((), ())


def test_the_users_own_setting_wins_and_is_told() -> None:
    env = (
        ("NCCL_IB_HCA", "^mlx5_bond_0"),
        ("MASTER_PORT", "1"),
        ("PATH", "/own"),
        ("FMSCHED_RUN", "forged"),
        ("MINE", "1"),
    )
    launch = launch_of(replace(ORDER, command=Command(("x",), env)), FACTS, {"PATH": "/bin"}, "run", "p")
    first = launch.environments[0]
    assert (first["NCCL_IB_HCA"], first["MASTER_PORT"], first["PATH"], first["MINE"]) == ("^mlx5_bond_0", "1", "/own", "1")
    assert first["FMSCHED_RUN"] == "run"
    assert launch.overridden == ("MASTER_PORT", "NCCL_IB_HCA")
    assert launch.refused == ("FMSCHED_RUN",)


def test_without_adapters_and_interface_nothing_is_claimed() -> None:
    bare = replace(ORDER, ranks=tuple(replace(rank, hcas=()) for rank in RANKS))
    env = launch_of(bare, NodeFacts("n7"), {}, "run", "p").environments[0]
    assert not [name for name in env if name.startswith("NCCL_")]


def nccl_selects(value: str, device: str, port: int) -> bool:
    """NCCL's documented rule for NCCL_IB_HCA: "^" excludes, "=" means exact names, else prefixes; ":port" where given."""
    exclude, value = value.startswith("^"), value.removeprefix("^")
    exact, value = value.startswith("="), value.removeprefix("=")
    hit = False
    for entry in value.split(","):
        name, _, wanted = entry.partition(":")
        same = device == name if exact else device.startswith(name)
        hit = hit or (same and (not wanted or int(wanted) == port))
    return hit != exclude


def test_nccl_takes_exactly_the_granted_adapters() -> None:
    names = [name for name, _ in HCAS]
    for chosen in itertools.chain.from_iterable(itertools.combinations(names, size) for size in (1, 2, 3, 11, 12)):
        granted = replace(ORDER, ranks=(replace(RANKS[0], hcas=chosen),))
        value = launch_of(granted, FACTS, {}, "run", "p").environments[0]["NCCL_IB_HCA"]
        taken = {name for name, ports in HCAS for port in ports if nccl_selects(value, name, port)}
        assert taken == set(chosen), value


def test_the_placement_file_has_the_whole_gang() -> None:
    gang = tuple(
        PlacedRank(rank, f"n{rank // 8}", rank % 8, "tp", 0, rank // 8, rank % 8, f"GPU-{rank}", ("mlx5_0",))
        for rank in (9, 0)
    )
    told = json.loads(placement_json(ORDER, gang))
    assert [rank["rank"] for rank in told["ranks"]] == [0, 9]
    assert told["ranks"][1]["gpu"] == {"index": 1, "uuid": "GPU-9"}
    assert (told["job"], told["attempt"], told["world_size"]) == ("j", 3, 16)
