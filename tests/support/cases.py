"""Case files: a cluster drawn and described, a request, and what is expected of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from fmsched.model.fabric import Topology
from fmsched.model.job import Request
from fmsched.model.placement import RankPlacement
from fmsched.model.snapshot import HostShare, PowerBudget, Snapshot
from fmsched.place.ranks import adapters
from fmsched.topology.routes import edge
from tests.support import clusters

CASES = Path(__file__).parent.parent / "cases"


@dataclass(frozen=True, slots=True)
class Case:
    file: str
    snapshot: Snapshot
    request: Request
    expect: dict[str, Any]

    def __str__(self) -> str:
        return self.file


def load_cases(folder: str) -> list[Case]:
    files = sorted((CASES / folder).glob("*.yaml"))
    assert files, f"no cases in {CASES / folder}"
    return [_case(file) for file in files]


def _case(file: Path) -> Case:
    data = YAML(typ="safe").load(file.read_text(encoding="utf-8"))
    leaves = {name: _nodes(rows if isinstance(rows, list) else [rows]) for name, rows in data["cluster"]["leaves"].items()}
    topology = clusters.tree(leaves, data["cluster"].get("spines"), data["cluster"].get("uplink", 400))
    sizes = {node.name: len(node.shape.gpus) for node in topology.nodes}
    held = {job: [gpu for name in names for gpu in _gpus(name, sizes)] for job, names in data.get("held", {}).items()}
    asked = data["request"]
    groups = [clusters.group(**group) for group in asked["groups"]]
    request = clusters.request(
        *groups, replicas=asked.get("replicas", 1), job=asked.get("job", "job"), avoid=asked.get("avoid", ())
    )
    lists = {which: frozenset(asked[which]) for which in ("allow", "deny") if which in asked}
    request = replace(
        request,
        allowed_nodes=lists.get("allow"),
        denied_nodes=lists.get("deny", frozenset()),
        spares=asked.get("spares", 0),
        cpus_per_gpu=asked.get("cpus", 0.0),
        memory_gb_per_gpu=asked.get("host_memory", 0.0),
    )
    if "kept" in asked:
        request = replace(request, kept=_kept(request, topology, asked["kept"], sizes))
    snapshot = clusters.snapshot(topology, held, data.get("unfit"), data.get("closed"))
    power = [PowerBudget(name, frozenset(row["nodes"]), row["watts"]) for name, row in data.get("power", {}).items()]
    reserved = {job: _links(rows) for job, rows in data.get("reserved", {}).items()}
    snapshot = replace(snapshot, power=tuple(power), links_held=reserved, links_measured=_links(data.get("measured", {})))
    shares = {job: HostShare(*row) for job, row in data.get("per_gpu", {}).items()}  # CPUs, GB of host memory
    snapshot = replace(snapshot, per_gpu=shares)
    return Case(file.stem, snapshot, request, data["expect"])


def _kept(
    request: Request, topology: Topology, rows: dict[str, dict[int, list[str]]], sizes: dict[str, int]
) -> tuple[RankPlacement, ...]:
    """By group and replica, the GPUs of the instances that stay; their local ranks are their indices."""
    found = []
    before = 0
    for g, group in enumerate(request.groups):
        for replica in range(request.replicas):
            names = rows.get(group.name, {}).get(replica, [])
            for i, gpu in enumerate(clusters.gpu_ids([each for name in names for each in _gpus(name, sizes)])):
                owner = topology.node(gpu.node)
                hcas = adapters(owner.shape, gpu.index)
                cell = g * request.replicas + replica
                found.append(
                    RankPlacement(
                        before + i, group.name, replica, cell, gpu.index, gpu.node, gpu.index, owner.uuids[gpu.index], hcas
                    )
                )
            before += group.gpus
    return tuple(found)


def _links(rows: dict[str, float]) -> dict[tuple[str, str], float]:
    """ "leaf0-spine0": Gb/s."""
    return {edge(*name.split("-")): gbps for name, gbps in rows.items()}


def _nodes(rows: list[dict[str, Any]]) -> list[Any]:
    return [
        clusters.node(name, clusters.SHAPES[row["shape"]], row.get("nvlink_domain", ""))
        for row in rows
        for name in row["nodes"]
    ]


def _gpus(name: str, sizes: dict[str, int]) -> list[str]:
    """ "n1": all of the node's; "n1g2"; "n1g2-5"."""
    if name in sizes:
        return [f"{name}g{i}" for i in range(sizes[name])]
    owner, _, numbers = name.rpartition("g")
    first, _, last = numbers.partition("-")
    return [f"{owner}g{i}" for i in range(int(first), int(last or first) + 1)]
