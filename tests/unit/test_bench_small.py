"""Every benchmark that needs no other program runs at a tiny size, ends with one object, and what it says of itself can be true."""

from __future__ import annotations

import importlib
import json
import random
import sys
from typing import Any

import pytest
from bench import slurm_cluster
from bench.described_service import DescribedService
from bench.slurm import free_after

KEYS = {"p50_s", "p99_s", "max_s", "proven_share", "gap_max", "rss_mb", "requests", "gpus"}
SMALL = {
    "placement": ["--no-slurm", "--gpus", "512", "--gangs", "8,16", "--cells", "2,8", "--requests", "6"],
    "quality": [
        "--gpus",
        "512",
        "--gangs",
        "8,16",
        "--cells",
        "2,8",
        "--requests",
        "4",
        "--sequences",
        "1",
        "--length",
        "8",
    ],
    "growth": ["--nodes", "64,96", "--requests", "3"],
    "infeasible": ["--gpus", "512", "--requests", "9"],
}


def run(name: str, arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    if name == "growth":
        monkeypatch.setattr("bench.growth.KINDS", [(8, 8), (16, 2)])
    if name == "infeasible":
        monkeypatch.setattr("bench.infeasible.kai", lambda _busy, _seed: [])
    importlib.import_module(f"bench.{name}").main()
    return json.loads(capsys.readouterr().out.splitlines()[-1])


@pytest.mark.parametrize("name", SMALL)
def test_it_ends_with_one_object(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    found = run(name, [*SMALL[name], "--json"], monkeypatch, capsys)
    assert found.keys() >= KEYS
    assert found["p50_s"] <= found["p99_s"] <= found["max_s"]
    assert found["proven_share"] == 1.0
    assert found["gap_max"] == 0.0
    assert found["requests"] > 0
    if name == "infeasible":
        assert found["minimal_share"] == 1.0
    if name == "quality":
        assert found["ratios"].keys() == {"first fit", "best fit by leaf", "greedy packing", "buddy cells"}


@pytest.mark.parametrize(
    ("flag", "value", "allowed"),
    [
        ("--gpus", "many", "whole numbers from 8"),
        ("--busy", "1.5", "from 0 to below 1"),
        ("--gangs", "8,,64", "whole numbers from 1"),
        ("--requests", "0", "whole numbers from 1"),
    ],
)
def test_a_wrong_value_is_one_line(
    flag: str, value: str, allowed: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["placement", flag, value])
    with pytest.raises(SystemExit) as stop:
        importlib.import_module("bench.placement").main()
    assert stop.value.code == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert flag in last
    assert f"allowed: {allowed}" in last


def test_what_slurm_holds_in_parts_is_held_on_other_gpus_of_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    layout = slurm_cluster.Layout(3)
    held = {"1": {"node0001": 8, "node0002": 8}, "2_1": {"node0003": 3}, "2_2": {"node0003": 4}}
    assert free_after(layout, held) == {"node0001": 0, "node0002": 0, "node0003": 1}
    service = object.__new__(DescribedService)
    service._held, service._gpus = {}, 8
    monkeypatch.setattr(service, "_write", lambda ops: None)
    chance = random.Random(1)
    for _ in range(5):
        service.hold(held)
        assert {place: len(gpus) for place, gpus in service._held.items()} == {
            (node, f"other-{job}"): gpus for job, nodes in held.items() for node, gpus in nodes.items()
        }
        on_third = [gpu for (node, _), gpus in service._held.items() if node == "node0003" for gpu in gpus]
        assert len(on_third) == len(set(on_third))
        held = {**held, f"3_{chance.randrange(9)}": {"node0003": 1}} if len(on_third) < 8 else {"2_2": {"node0003": 4}}
