"""Writing a Cluster file, as YAML or JSON: what clusterfile.parse reads back as the same value."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping
from typing import Any

from fmproto.described import API_VERSION, KIND, NodeEntry
from fmproto.dumptext import Problem
from fmproto.nodetypes import ACTIVE, INFINIBAND, GpuType, HcaType, NodeType
from fmproto.yamltext import Scalar
from fmsched.topology.clusterfile import ClusterFile, LinkRow

# Needs no quotes inside {...} or [...] either.
_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_./-]*")
# What is on a line of its own: the rest is {...} and [...] on the line of its name.
_BLOCKS = ("nodeTypes", "fabric", "busy", "closed")

Data = dict[str, Any]


def write(cluster: ClusterFile) -> str:
    """The file's text, YAML."""
    lines: list[str] = []
    for name, value in document(cluster).items():
        lines += _block(name, value, "", deep=name in _BLOCKS)
    return "\n".join(lines) + "\n"


def write_json(cluster: ClusterFile) -> str:
    """The same as one JSON object, with `problems` also where there are none: programs look there."""
    return json.dumps({**document(cluster), "problems": list(map(_problem_data, cluster.problems))}, indent=2) + "\n"


def document(cluster: ClusterFile) -> Data:
    """The file as plain data, in the order in which it is written."""
    described = cluster.described
    data: Data = {"apiVersion": API_VERSION, "kind": KIND}
    if cluster.name:
        data["metadata"] = {"name": cluster.name}
    if described.own_types:
        data["nodeTypes"] = {kind.name: _type_data(kind) for kind in described.own_types}
    data["nodes"] = [_entry_data(entry) for entry in described.entries]
    fabric: Data = {}
    if cluster.switches:
        fabric["switches"] = dict(cluster.switches)
    if cluster.links:
        fabric["links"] = [_link_data(row) for row in cluster.links]
    if fabric:
        data["fabric"] = fabric
    if cluster.busy:
        data["busy"] = {job: list(texts) for job, texts in cluster.busy}
    if cluster.closed:
        data["closed"] = dict(cluster.closed)
    if cluster.power:
        data["power"] = [{"name": n, "nodes": names, "watts": _figure(watts)} for n, names, watts in cluster.power]
    if cluster.reserved:
        data["reserved"] = [{"job": job, "between": [a, b], "gbps": _figure(gbps)} for job, a, b, gbps in cluster.reserved]
    if cluster.prices:
        data["prices"] = {family: _figure(price) for family, price in cluster.prices}
    if cluster.problems:
        data["problems"] = [_problem_data(problem) for problem in cluster.problems]
    return data


def _type_data(kind: NodeType) -> Data:
    data: Data = {"gpus": [_gpu_data(gpu, len(list(members))) for gpu, members in itertools.groupby(kind.gpus)]}
    rates = {kind.nvlink[i][j] for i in range(len(kind.gpus)) for j in range(len(kind.gpus)) if i != j} or {0.0}
    if len(rates) == 1:
        data["nvlink"] = _figure(rates.pop())
    else:
        data["nvlink"] = {"matrix": [[_figure(rate) for rate in row] for row in kind.nvlink]}
    if kind.domain_nvlink_gbytes_per_s:
        data["domainNvlink"] = _figure(kind.domain_nvlink_gbytes_per_s)
    data["hcas"] = [_hca_data(hca) for hca in kind.hcas]
    return {**data, "cpus": kind.cpus, "memoryGB": _figure(kind.memory_gb)}


def _gpu_data(gpu: GpuType, count: int) -> Data:
    data: Data = {"model": gpu.name, "memoryGB": _figure(gpu.memory_gb)}
    if gpu.family:
        data["family"] = gpu.family
    data["count"] = count
    return data if gpu.mig is None else {**data, "mig": list(gpu.mig)}


def _hca_data(hca: HcaType) -> Data:
    data: Data = {"name": hca.name, "rateGbps": _figure(hca.rate_gbps)}
    if hca.port != 1:
        data["port"] = hca.port
    if hca.near:
        data["near"] = list(hca.near)
    if hca.link_layer != INFINIBAND:
        data["linkLayer"] = hca.link_layer
    if hca.state != ACTIVE:
        data["state"] = hca.state
    return data


def _entry_data(entry: NodeEntry) -> Data:
    data: Data = {"name": entry.names, "type": entry.type}
    if entry.leaf:
        data["leaf"] = entry.leaf[0] if len(entry.leaf) == 1 else list(entry.leaf)
    if entry.nodes_per_leaf:
        data["nodesPerLeaf"] = entry.nodes_per_leaf
    for name, text in (
        ("nvlinkDomain", entry.nvlink_domain),
        ("address", entry.address),
        ("socketInterface", entry.socket_interface),
    ):
        if text:
            data[name] = text
    if entry.uuids:
        data["uuids"] = list(entry.uuids)
    for name, pairs in (("labels", entry.labels), ("faults", entry.faults)):
        if pairs:
            data[name] = dict(pairs)
    return data


def _link_data(row: LinkRow) -> Data:
    data: Data = {"between": [row.a, row.b], "gbps": _figure(row.gbps)}
    if row.count != 1:
        data["count"] = row.count
    if row.down:
        data["down"] = True
    if row.hca:
        data["hca"] = row.hca
    if row.measured_gbps:
        data["measuredGbps"] = _figure(row.measured_gbps)
    return data


def _problem_data(problem: Problem) -> Data:
    place: Data = {"line": problem.line} if problem.line else {}
    return {"file": problem.file, **place, "what": problem.what, "why": problem.why}


def _figure(value: float) -> int | float:
    return int(value) if value == int(value) else value


def _block(name: str, value: Any, indent: str, *, deep: bool) -> list[str]:
    """`name: value`, a mapping or list of it with a line for each member; without `deep`, mappings are {...}."""
    key = f"{indent}{_quoted(name)}:"
    if isinstance(value, Mapping) and value and deep:
        return [key, *(line for each, inner in value.items() for line in _block(each, inner, indent + "  ", deep=deep))]
    if isinstance(value, list) and value and not isinstance(value[0], str):
        return [key, *(f"{indent}  - {_flow(item)}" for item in value)]
    return [f"{key} {_flow(value)}"]


def _flow(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_quoted(name)}: {_flow(inner)}" for name, inner in value.items()) + "}"
    if isinstance(value, list):
        return f"[{', '.join(map(_flow, value))}]"
    if isinstance(value, bool):
        return "true" if value else "false"
    return _quoted(value) if isinstance(value, str) else str(value)


def _quoted(text: str) -> str:
    if _PLAIN.fullmatch(text) and isinstance(Scalar(0, text).value, str):
        return text
    return json.dumps(text).replace("\x7f", "\\u007f")
