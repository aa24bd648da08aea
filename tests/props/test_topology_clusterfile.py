"""Cluster files: whatever is written reads back the same; parse() never raises, whatever it is given."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from fmproto.mig import set_fault
from fmproto.nodetypes import gpu_type
from fmproto.yamltext import Fault
from fmsched.topology.clusterfile import ClusterFile, parse, to_snapshot
from fmsched.topology.clustertext import write, write_json
from tests.unit.test_topology_clusterfile import FULL

words = st.text(min_size=1, max_size=12).filter(lambda text: not any("\ud800" <= char <= "\udfff" for char in text))
figures = st.floats(0.5, 1000).map(lambda value: round(value, 3)) | st.integers(1, 1000)


@st.composite
def node_types(draw: st.DrawFn) -> dict[str, object]:
    count = draw(st.integers(0, 4))
    model = draw(st.sampled_from(["NVIDIA H100 80GB HBM3", "L40S", "Odd One 7", "???"]))
    memory_gb = draw(figures | st.just(0))
    card: dict[str, object] = {"model": model, "memoryGB": memory_gb}
    if draw(st.booleans()):
        names = draw(st.lists(st.sampled_from(["1g.10gb", "1g.10gb+me", "1c.3g.71gb"]), max_size=3))
        key = gpu_type(model, memory_gb).model
        card["mig"] = [] if set_fault(key, names) else names
    gpus = {**card, "count": count} if count else []
    kind: dict[str, object] = {"gpus": gpus, "cpus": draw(st.integers(0, 512)), "memoryGB": draw(figures)}
    pairs = [f"{i}-{j}" for i in range(count) for j in range(i + 1, count)]
    chosen = draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
    kind["nvlink"] = {"pairs": {pair: draw(figures) for pair in chosen}} if draw(st.booleans()) else draw(figures)
    near = st.lists(st.integers(0, count - 1), unique=True, max_size=count) if count else st.just([])
    layers, states = st.sampled_from(["InfiniBand", "Ethernet"]), st.sampled_from(["Active", "Down", "Down/Disabled"])
    kind["hcas"] = [
        {
            "name": f"mlx5_{i}",
            "rateGbps": draw(figures),
            "near": draw(near),
            "linkLayer": draw(layers),
            "state": draw(states),
        }
        for i in range(draw(st.integers(1, 3)))
    ]
    return kind


@st.composite
def clusters(draw: st.DrawFn) -> dict[str, object]:
    types = {f"type{i}": draw(node_types()) for i in range(draw(st.integers(1, 2)))}
    nodes: list[dict[str, object]] = []
    for i in range(draw(st.integers(1, 3))):
        name = draw(st.sampled_from([f"n{i}", f"n{i}-[1-3]", f"n{i}x[08-11]"]))
        entry: dict[str, object] = {"name": name, "type": draw(st.sampled_from([*types, "dgx-1v"])), "leaf": "leaf1"}
        entry["labels"] = draw(st.dictionaries(words, words, max_size=2))
        entry["faults"] = {"mlx5_0": draw(words)} if draw(st.booleans()) and entry["type"] != "dgx-1v" else {}
        nodes.append(entry)
    fabric = {
        "switches": {"leaf[1-2]": 0, "spine1": 1},
        "links": [{"between": ["leaf[1-2]", "spine1"], "gbps": draw(figures), "count": draw(st.integers(1, 9))}],
    }
    busy = {draw(words): f"{nodes[0]['name']}"} if draw(st.booleans()) else {}
    closed = {nodes[-1]["name"]: draw(words)} if draw(st.booleans()) else {}
    problem = st.fixed_dictionaries({"file": words, "line": st.integers(0, 99), "what": words, "why": words})
    problems = draw(st.lists(problem, max_size=2))
    document = {"nodeTypes": types, "nodes": nodes, "fabric": fabric, "busy": busy, "closed": closed, "problems": problems}
    return {"apiVersion": "fmsched/v1", "kind": "Cluster", **document}


@settings(max_examples=150, deadline=None)
@given(clusters(), st.sampled_from([None, 2, "\t"]))
def test_what_is_written_reads_back_the_same(document: dict[str, object], indent: int | str | None) -> None:
    cluster = parse(json.dumps(document, indent=indent))
    assert isinstance(cluster, ClusterFile), [str(fault) for fault in cluster]
    again = parse(write(cluster))
    assert again == cluster
    assert parse(write_json(cluster)) == cluster
    assert isinstance(again, ClusterFile)
    one, other = to_snapshot(cluster), to_snapshot(again)
    assert (one.held, one.unfit, one.closed) == (other.held, other.unfit, other.closed)
    assert one.topology.nodes == other.topology.nodes
    assert one.topology.fabric == other.topology.fabric


@settings(max_examples=200, deadline=None)
@given(st.integers(0, len(FULL)), st.integers(0, 60), st.text(max_size=20))
def test_parse_never_raises(at: int, cut: int, put: str) -> None:
    parsed = parse(FULL[:at] + put + FULL[at + cut :])
    if isinstance(parsed, ClusterFile):
        to_snapshot(parsed)
    else:
        assert parsed
        assert all(isinstance(fault, Fault) for fault in parsed)
