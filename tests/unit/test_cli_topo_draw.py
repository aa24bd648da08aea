"""Pictures of clusters: every GPU once, its colour by state and job, sizes that fit, and text of nodes as marks."""

from __future__ import annotations

import io
import xml.etree.ElementTree as ET
from collections import Counter
from itertools import pairwise

import pytest
from PIL import Image
from rich.console import Console

from fmclient.cli.draw import drawing
from fmclient.cli.drawing import colours, png, svg
from fmclient.cli.drawing.cluster import cluster_picture, natural
from fmclient.cli.drawing.nodes import DETAILED, NAMED, SMALL, TINY, style_for
from fmclient.cli.drawing.sets import nvlink_sets
from fmclient.cli.drawing.shapes import Line, Picture, Rect, Text, fitted, text_width
from fmproto.v1 import hardware_pb2 as hw
from fmproto.v1.scheduler_pb2 import ListNodesResponse
from fmsched.offline.topo import view

CLUSTER = """\
apiVersion: fmsched/v1
kind: Cluster
nodes:
  - {name: "n[1-3]", type: hgx-h100, leaf: leaf1, faults: {n2/gpu3: "Xid 79", n2/mlx5_4: Down/Polling}}
  - {name: b1, type: h100-nvl-4, leaf: leaf2}
  - {name: v1, type: dgx-1v, leaf: leaf2}
  - {name: l1, type: l40s-8, leaf: leaf2}
  - {name: "t[1-2]", type: gb200-nvl72-tray, leaf: leaf10, nvlinkDomain: rack7}
fabric:
  switches: {"leaf[1-2]": 0, leaf10: 0, spine: 1}
  links:
    - {between: ["leaf[1-2]", spine], gbps: 400}
    - {between: [leaf10, spine], gbps: 400, down: true}
busy: {big.1: "n1,n2/gpu[0-1]", small.2: "b1/gpu[2-3]"}
closed: {n3: new cables}
"""


@pytest.fixture
def seen() -> ListNodesResponse:
    return view(CLUSTER.encode(), "c.yaml")


def picture_of(seen: ListNodesResponse, *leaves: str) -> Picture:
    return cluster_picture(seen.nodes, seen.fabric, {"big.1": "big", "small.2": "two"}, set(leaves))


def gpus_of(picture: Picture) -> list[Rect]:
    return [shape for shape in picture.shapes if isinstance(shape, Rect) and shape.kind.startswith("gpu ")]


def words_of(picture: Picture) -> list[str]:
    return [shape.text for shape in picture.shapes if isinstance(shape, Text)]


def many(nodes: int, per_leaf: int) -> ListNodesResponse:
    text = f"""
apiVersion: fmsched/v1
kind: Cluster
nodes:
  - {{name: "n[0001-{nodes:04d}]", type: hgx-h100, leaf: "leaf[01-{-(-nodes // per_leaf):02d}]", nodesPerLeaf: {per_leaf},
     faults: {{n0002/gpu0: ECC, n0003/gpu0: ECC, n0004/gpu0: ECC, n0005/gpu0: ECC, n0005/mlx5_0: cut}}}}
busy: {{a.1: "n[0001-0040]", b.2: "n[0041-0050]/gpu[0-3]"}}
"""
    return view(text.encode(), "many.yaml")


def test_every_gpu_is_there_once_with_its_state(seen: ListNodesResponse) -> None:
    gpus = gpus_of(picture_of(seen))
    named = Counter(" ".join(gpu.title.split()[:3]).rstrip(":") for gpu in gpus)
    wanted = {f"{node.name} GPU {gpu.index}" for node in seen.nodes for gpu in node.inventory.gpus}
    assert set(named) == wanted
    assert set(named.values()) == {1}
    assert Counter(gpu.kind for gpu in gpus) == {"gpu in use": 12, "gpu failed": 1, "gpu closed": 8, "gpu free": 31}


def test_colours_are_by_state_and_job(seen: ListNodesResponse) -> None:
    picture = picture_of(seen)
    fills = {gpu.title.partition(":")[0]: gpu.fill for gpu in gpus_of(picture)}
    assert fills["n1 GPU 0"] == fills["n2 GPU 1"] != fills["b1 GPU 2"]
    assert fills["n2 GPU 3"] == colours.FAILED
    assert fills["n3 GPU 0"] == colours.CLOSED
    assert fills["t1 GPU 0"] == colours.FREE
    legend = [shape.fill for shape in picture.shapes if isinstance(shape, Rect) and shape.kind == "job"]
    assert legend == [fills["n1 GPU 0"], fills["b1 GPU 2"]], "the largest job first"
    assert {"big.1 (big): 10 GPUs", "small.2 (two): 2 GPUs"} <= set(words_of(picture))


def test_a_degraded_gpu_keeps_its_job_and_has_an_edge(seen: ListNodesResponse) -> None:
    for node, index in ((seen.nodes[0], 5), (seen.nodes[-1], 0)):
        node.health.gpus[index].state = hw.HEALTH_STATE_DEGRADED
        node.health.gpus[index].reason = "NVLink 4 down"
    names = [seen.nodes[0].name, seen.nodes[-1].name]
    sick = {gpu.title.split()[0]: gpu for gpu in gpus_of(picture_of(seen)) if gpu.kind == "gpu degraded"}
    assert sorted(sick) == sorted(names)
    assert {gpu.stroke for gpu in sick.values()} == {colours.DEGRADED}
    text = shown_text(seen)
    assert f"{names[0]}  B B B B B B B B" in text or f"{names[0]}  A A A A A A A A" in text
    assert "~ degraded, free" in text
    assert "GPU 5 degraded: NVLink 4 down" in text


def test_faults_are_listed_once_and_equal_ones_together(seen: ListNodesResponse) -> None:
    words = words_of(picture_of(seen))
    assert "4 faults" in words
    assert {
        "n2 GPU 3 failed: Xid 79",
        "n2 mlx5_4/1 failed: Down/Polling",
        "n3 drained: new cables",
        "link leaf10 to spine down",
    } <= set(words)
    words = words_of(cluster_picture(many(1250, 32).nodes, hw.Fabric(), {}, set()))
    assert "5 faults" in words
    assert "4 GPUs failed: ECC: n0002 GPU 0, n0003 GPU 0, n0004 GPU 0, n0005 GPU 0" in words


def test_nvlink_sets_and_domains(seen: ListNodesResponse) -> None:
    sets = {node.name: nvlink_sets(node.inventory) for node in seen.nodes}
    assert [(each.gpus, each.label) for each in sets["b1"]] == [((0, 1), "NVLink 600 GB/s"), ((2, 3), "NVLink 600 GB/s")]
    assert [(each.gpus, each.label) for each in sets["v1"]] == [(tuple(range(8)), "NVLink 0 to 100 GB/s")]
    assert [each.gpus for each in sets["l1"]] == [(i,) for i in range(8)]
    bands = [shape.title for shape in picture_of(seen).shapes if isinstance(shape, Rect) and shape.kind == "nvlink"]
    assert len(bands) == 3 + 2 + 1 + 2
    assert "b1 GPU 0, 1: NVLink 600 GB/s" in bands
    domains = [
        shape.title for shape in picture_of(seen).shapes if isinstance(shape, Rect) and shape.kind == "nvlink domain"
    ]
    assert domains == ["NVLink domain rack7: 2 nodes"]


def test_leaves_are_in_natural_order_and_can_be_chosen(seen: ListNodesResponse) -> None:
    panels = [
        shape.title.partition(":")[0]
        for shape in picture_of(seen).shapes
        if isinstance(shape, Rect) and shape.kind == "leaf"
    ]
    assert panels == ["leaf1", "leaf2", "leaf10"]
    assert {gpu.title.split()[0] for gpu in gpus_of(picture_of(seen, "leaf10"))} == {"t1", "t2"}
    assert natural("n2") < natural("n10")


@pytest.mark.parametrize(("nodes", "style"), [(8, DETAILED), (200, NAMED), (1250, SMALL), (4000, TINY)])
def test_sizes_go_with_the_number_of_nodes(nodes: int, style: object) -> None:
    assert style_for(nodes, nodes * 8) == style


@pytest.mark.parametrize(("nodes", "per_leaf"), [(60, 20), (1250, 32)])
def test_nothing_overlaps_and_nothing_is_outside(nodes: int, per_leaf: int) -> None:
    picture = cluster_picture(many(nodes, per_leaf).nodes, hw.Fabric(), {}, set())
    gpus = gpus_of(picture)
    assert len(gpus) == nodes * 8
    assert 1.1 < picture.width / picture.height < 3
    for shape in picture.shapes:
        if isinstance(shape, Rect):
            assert shape.x >= 0
            assert shape.x + shape.width <= picture.width
            assert shape.y + shape.height <= picture.height
        elif isinstance(shape, Line):
            assert max(shape.x1, shape.x2) <= picture.width
        else:
            assert shape.y <= picture.height
    rows: dict[float, list[Rect]] = {}
    for gpu in gpus:
        rows.setdefault(round(gpu.y + gpu.height / 2, 3), []).append(gpu)
    for row in rows.values():
        ordered = sorted(row, key=lambda gpu: gpu.x)
        assert all(one.x + one.width <= other.x + 0.01 for one, other in pairwise(ordered))


def test_nodes_without_a_leaf_share_a_panel_and_stand_in_line() -> None:
    text = CLUSTER.partition("nodes:")[0] + 'nodes: [{name: "x[8-160]", type: hgx-h100}]\n'
    found = view(text.encode(), "c")
    picture = cluster_picture(found.nodes, found.fabric, {}, set())
    panels = [shape.title for shape in picture.shapes if isinstance(shape, Rect) and shape.kind == "leaf"]
    assert panels == ["no leaf known: 153 nodes, 1,224 GPUs: 0 in use, 1,224 free"]
    columns = {round(gpu.x, 2) for gpu in gpus_of(picture) if " GPU 0:" in gpu.title}
    assert len(columns) < 12, "names of different length move no GPU"


def test_a_node_of_sixteen_gpus_has_two_rows() -> None:
    text = CLUSTER.partition("nodes:")[0] + "nodes: [{name: d1, type: dgx-2}]\n"
    found = view(text.encode(), "c")
    gpus = gpus_of(cluster_picture(found.nodes, found.fabric, {}, set()))
    assert len({gpu.x for gpu in gpus}) == 8
    assert Counter(gpu.y for gpu in gpus).most_common() == [(gpus[0].y, 8), (gpus[8].y, 8)]


def test_small_panels_go_below_others_where_there_is_room() -> None:
    text = """
apiVersion: fmsched/v1
kind: Cluster
nodes:
  - {name: "a[01-60]", type: hgx-h100, leaf: leaf1}
  - {name: "b[01-02]", type: hgx-h100, leaf: leaf2}
  - {name: "c[01-02]", type: hgx-h100, leaf: leaf3}
"""
    found = view(text.encode(), "c")
    picture = cluster_picture(found.nodes, found.fabric, {}, set())
    _, two, three = (shape for shape in picture.shapes if isinstance(shape, Rect) and shape.kind == "leaf")
    assert two.x == three.x
    assert three.y > two.y + two.height


def test_svg_is_xml_that_says_all(seen: ListNodesResponse) -> None:
    seen.nodes[0].reason = "<b>&\x00\x1b\"'"
    seen.nodes[0].state = "lost"
    root = ET.fromstring(svg.write(picture_of(seen)))
    space = "{http://www.w3.org/2000/svg}"
    rects = [rect for rect in root.iter(f"{space}rect") if (rect.get("class") or "").startswith("gpu ")]
    assert len(rects) == 52
    assert all(rect.find(f"{space}title") is not None for rect in rects)
    assert any("<b>&" in (text.text or "") for text in root.iter(f"{space}text"))


def test_png_has_the_pictures_size_and_colours(seen: ListNodesResponse) -> None:
    picture = picture_of(seen)
    image = Image.open(io.BytesIO(png.write(picture)))
    assert image.size == (round(picture.width * png.SCALE), round(picture.height * png.SCALE))
    for gpu in gpus_of(picture):
        # Beside the number that is written in the middle, inside the edge.
        at = (round((gpu.x + gpu.width * 0.5) * png.SCALE), round((gpu.y + gpu.height * 0.9) * png.SCALE))
        red, green, blue = image.getpixel(at)[:3]  # type: ignore[index, misc]
        assert f"#{red:02x}{green:02x}{blue:02x}" in (gpu.fill, gpu.stroke), gpu.title


def test_a_large_png_is_drawn_smaller_instead_of_filling_the_memory() -> None:
    huge = Picture(60_000, 40_000, ())
    assert (huge.width * png.scale_of(huge)) * (huge.height * png.scale_of(huge)) <= png.PIXELS_MAX * 1.001


def test_text_is_cut_where_it_does_not_fit() -> None:
    assert fitted("short", 10, 100) == "short"
    cut = fitted("a very long name of a leaf switch", 10, 60)
    assert cut.endswith("…")
    assert text_width(cut, 10) <= 60
    assert fitted("anything", 10, 5) == ""


def test_colours_of_jobs_differ_and_come_again() -> None:
    found = colours.job_colours({f"j{i:03d}": 1000 - i for i in range(60)})
    first = [found[f"j{i:03d}"] for i in range(colours.COLOURS)]
    assert len(set(first)) == colours.COLOURS
    assert found[f"j{colours.COLOURS:03d}"] == first[0]
    assert not {colours.FAILED, colours.DRAINING, colours.DEGRADED, colours.CLOSED} & set(first)


def test_an_empty_cluster_is_a_picture_too() -> None:
    picture = cluster_picture([], hw.Fabric(), {}, set())
    assert words_of(picture)[0] == "cluster: 0 nodes, 0 GPUs: 0 in use, 0 free"
    ET.fromstring(svg.write(picture))


def shown_text(seen: ListNodesResponse) -> str:
    out = Console(file=io.StringIO(), width=200)
    for part in drawing(seen.nodes, {}, set(), every=True):
        out.print(part)
    text = out.file.getvalue()  # type: ignore[attr-defined]
    assert isinstance(text, str)
    return text


def test_text_divides_nvlink_sets_and_names_domains(seen: ListNodesResponse) -> None:
    text = shown_text(seen)
    assert "b1  · ·|" in text
    assert "v1  · · · · · · · ·" in text
    assert "l1  · · · · · · · ·" in text
    assert "NVLink domain rack7" in text
