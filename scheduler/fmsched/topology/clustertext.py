"""Writing a Cluster file: what clusterfile.parse reads back as the same value."""

from __future__ import annotations

import itertools
import json
import re

from fmproto.described import API_VERSION, KIND, NodeEntry
from fmproto.nodetypes import GpuType, HcaType, NodeType
from fmproto.yamltext import Scalar
from fmsched.topology.clusterfile import ClusterFile, LinkRow

# Needs no quotes inside {...} or [...] either.
_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*")


def write(cluster: ClusterFile) -> str:
    """The file's text, YAML."""
    lines = [f"apiVersion: {API_VERSION}", f"kind: {KIND}"]
    if cluster.name:
        lines.append(f"metadata: {{name: {_quoted(cluster.name)}}}")
    if cluster.described.own_types:
        lines.append("nodeTypes:")
        for kind in cluster.described.own_types:
            lines += _type_lines(kind)
    lines.append("nodes:" if cluster.described.entries else "nodes: []")
    for entry in cluster.described.entries:
        lines += _entry_lines(entry)
    lines += _fabric_lines(cluster)
    if cluster.busy:
        lines.append("busy:")
        lines += [f"  {_quoted(job)}: {_list(texts)}" for job, texts in cluster.busy]
    if cluster.closed:
        lines.append("closed:")
        lines += [f"  {_quoted(names)}: {_quoted(reason)}" for names, reason in cluster.closed]
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    if _PLAIN.fullmatch(text) and isinstance(Scalar(0, text).value, str):
        return text
    return json.dumps(text).replace("\x7f", "\\u007f")


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)


def _list(texts: tuple[str, ...]) -> str:
    return f"[{', '.join(_quoted(text) for text in texts)}]"


def _flow(fields: list[tuple[str, str]]) -> str:
    return "{" + ", ".join(f"{name}: {value}" for name, value in fields) + "}"


def _type_lines(kind: NodeType) -> list[str]:
    lines = [f"  {_quoted(kind.name)}:", "    gpus:"]
    for gpu, members in itertools.groupby(kind.gpus):
        lines.append(f"      - {_flow(_gpu_fields(gpu, len(list(members))))}")
    rates = {kind.nvlink[i][j] for i in range(len(kind.gpus)) for j in range(len(kind.gpus)) if i != j} or {0.0}
    if len(rates) == 1:
        lines.append(f"    nvlink: {_number(rates.pop())}")
    else:
        lines.append("    nvlink:")
        lines.append("      matrix:")
        lines += [f"        - [{', '.join(_number(rate) for rate in row)}]" for row in kind.nvlink]
    if kind.domain_nvlink_gbytes_per_s:
        lines.append(f"    domainNvlink: {_number(kind.domain_nvlink_gbytes_per_s)}")
    lines.append("    hcas:" if kind.hcas else "    hcas: []")
    lines += [f"      - {_flow(_hca_fields(hca))}" for hca in kind.hcas]
    lines += [f"    cpus: {kind.cpus}", f"    memoryGB: {_number(kind.memory_gb)}"]
    return lines


def _gpu_fields(gpu: GpuType, count: int) -> list[tuple[str, str]]:
    return [
        ("model", _quoted(gpu.name)),
        ("memoryGB", _number(gpu.memory_gb)),
        ("family", _quoted(gpu.family)),
        ("count", str(count)),
    ]


def _hca_fields(hca: HcaType) -> list[tuple[str, str]]:
    fields = [("name", _quoted(hca.name)), ("rateGbps", _number(hca.rate_gbps))]
    if hca.port != 1:
        fields.append(("port", str(hca.port)))
    if hca.near:
        fields.append(("near", f"[{', '.join(map(str, hca.near))}]"))
    return fields


def _entry_lines(entry: NodeEntry) -> list[str]:
    fields = [("name", _quoted(entry.names)), ("type", _quoted(entry.type))]
    if entry.leaf:
        fields.append(("leaf", _quoted(entry.leaf[0]) if len(entry.leaf) == 1 else _list(entry.leaf)))
    if entry.nodes_per_leaf:
        fields.append(("nodesPerLeaf", str(entry.nodes_per_leaf)))
    for name, text in (
        ("nvlinkDomain", entry.nvlink_domain),
        ("address", entry.address),
        ("socketInterface", entry.socket_interface),
    ):
        if text:
            fields.append((name, _quoted(text)))
    if entry.uuids:
        fields.append(("uuids", _list(entry.uuids)))
    for name, pairs in (("labels", entry.labels), ("faults", entry.faults)):
        if pairs:
            fields.append((name, _flow([(_quoted(key), _quoted(value)) for key, value in pairs])))
    return [f"  - {_flow(fields)}"]


def _fabric_lines(cluster: ClusterFile) -> list[str]:
    if not cluster.switches and not cluster.links:
        return []
    lines = ["fabric:"]
    if cluster.switches:
        lines.append("  switches:")
        lines += [f"    {_quoted(names)}: {level}" for names, level in cluster.switches]
    if cluster.links:
        lines.append("  links:")
        lines += [f"    - {_flow(_link_fields(row))}" for row in cluster.links]
    return lines


def _link_fields(row: LinkRow) -> list[tuple[str, str]]:
    fields = [("between", _list((row.a, row.b))), ("gbps", _number(row.gbps))]
    if row.count != 1:
        fields.append(("count", str(row.count)))
    if row.down:
        fields.append(("down", "true"))
    if row.hca:
        fields.append(("hca", _quoted(row.hca)))
    return fields
