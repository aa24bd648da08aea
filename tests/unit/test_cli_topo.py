"""fmctl topo import, export, draw and show over Cluster files, as processes: exit codes, streams, and what other commands make of it."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from fmagent.devices.described import DescribedDevices
from fmclient.cli import topo_export, topo_import
from fmproto.described import describe_node
from fmsched.offline import exporting
from fmsched.offline.topo import view
from fmsched.topology.clusterfile import ClusterFile, parse
from fmsched.topology.readers.kinds import KINDS
from tests.support.client_cluster import jobs
from tests.support.scripted_scheduler import serving

FMCTL = Path(sys.executable).with_name("fmctl")

SLURM = "SwitchName=leaf1 Nodes=n[1-4]\nSwitchName=leaf2 Nodes=n[5-8]\nSwitchName=spine Switches=leaf[1-2]\n"
LIST = "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-5d4a2c10-77aa-4b21-9c55-1b2c3d4e5f60)\n"
JOB = """\
apiVersion: ai.example.com/v1alpha1
kind: FoundationModelTrainingJob
metadata: {name: small}
spec:
  replicaCount: 2
  resourceGroups:
    - {name: cell, type: TensorParallel, gpusPerGroup: 8}
"""


def fmctl(*args: str, code: int = 0, stdin: bytes = b"") -> tuple[bytes, str]:
    done = subprocess.run([str(FMCTL), *args], input=stdin, capture_output=True, timeout=60, check=False)
    assert done.returncode == code, (done.returncode, done.stderr.decode())
    return done.stdout, done.stderr.decode()


@pytest.fixture
def conf(tmp_path: Path) -> str:
    path = tmp_path / "topology.conf"
    path.write_text(SLURM)
    return str(path)


@pytest.fixture
def cluster(tmp_path: Path, conf: str) -> str:
    path = tmp_path / "cluster.yaml"
    path.write_bytes(fmctl("topo", "import", "--kind", "slurm-topology", "--type", "hgx-h100", conf)[0])
    return str(path)


def test_the_kinds_of_the_command_are_those_of_the_readers() -> None:
    assert tuple(topo_import.Kind) == KINDS
    assert tuple(topo_export.Notation) == exporting.KINDS


def test_import_prints_a_cluster_file_as_yaml_or_json(conf: str) -> None:
    text, err = fmctl("topo", "import", "--kind", "slurm-topology", "--name", "lab", conf)
    assert isinstance(parse(text), ClusterFile)
    assert err == ""
    data, _ = fmctl("topo", "import", "--kind", "slurm-topology", "--name", "lab", conf, "-o", "json")
    assert json.loads(data) == YAML(typ="safe", pure=True).load(text)
    assert parse(data) == parse(text)


def test_problems_are_in_the_file_and_a_line_each_on_stderr(conf: str, tmp_path: Path) -> None:
    bad = tmp_path / "bad.txt"
    bad.write_text("nothing of use\n")
    out, err = fmctl("topo", "import", f"ibstat={bad}", f"slurm-topology={conf}")
    problems = YAML(typ="safe", pure=True).load(out)["problems"]
    assert [problem["file"] for problem in problems] == [str(bad)]
    assert err.startswith(f"{bad}: ")
    assert err.count("\n") == 1
    out, err = fmctl("topo", "import", "-o", "json", f"ibstat={bad}", f"slurm-topology={conf}")
    assert json.loads(out)["problems"] == problems
    assert err == ""


def test_where_all_is_refused_the_exit_code_is_2_and_nothing_is_printed(conf: str) -> None:
    out, err = fmctl("topo", "import", "--kind", "ibstat", conf, "-", code=2)
    assert out == b""
    assert [line.partition(":")[0] for line in err.splitlines()] == [conf, "<stdin>"]


@pytest.mark.parametrize(
    ("args", "part"),
    [
        (["no-such-file", "--kind", "ibstat"], "fmctl: cannot read no-such-file: No such file or directory\n"),
        (["-"], "fmctl: what is -? --kind KIND says it of all files, KIND=FILE of one\n"),
        (["ibstat=-", "nvlink-status=-"], "fmctl: - can be given once: standard input is one file\n"),
        (["--kind", "slurm", "-"], "Invalid value for '--kind'"),
        (["--kind", "slurm-topology", "-", "--type", "nope"], "--type: found no node type 'nope'"),
    ],
)
def test_wrong_usage_is_exit_2(args: list[str], part: str) -> None:
    assert part in fmctl("topo", "import", *args, code=2, stdin=SLURM.encode())[1]


def test_standard_input_and_the_name_of_its_node() -> None:
    out, _ = fmctl("topo", "import", "--kind", "nvidia-smi-list", "-", "--node", "gpu-7", stdin=LIST.encode())
    assert "name: gpu-7" in out.decode()
    inventory, _ = describe_node(out, "gpu-7")
    assert [(gpu.uuid, gpu.model) for gpu in inventory.gpus] == [
        ("GPU-5d4a2c10-77aa-4b21-9c55-1b2c3d4e5f60", "H100-SXM5-80GB")
    ]


def test_what_was_imported_can_be_planned_on(cluster: str) -> None:
    out, _ = fmctl("plan", "-f", "-", "--cluster", cluster, "-o", "json", stdin=JOB.encode())
    plan = json.loads(out)
    assert (plan["verdict"], len(plan["ranks"])) == ("placed", 16)
    nodes = {rank["node"] for rank in plan["ranks"]}
    assert nodes <= {"n1", "n2", "n3", "n4"} or nodes <= {"n5", "n6", "n7", "n8"}, "two nodes of one leaf"


async def test_an_agent_takes_what_was_imported(cluster: str) -> None:
    """What `fm-agent --hardware FILE` reads instead of NVML."""
    inventory, health = await DescribedDevices(Path(cluster), "n3").observe()
    assert (len(inventory.gpus), len(inventory.hca_ports), len(health.gpus)) == (8, 8, 8)
    assert inventory.host.cpus > 0


def test_export_and_import_again(cluster: str, tmp_path: Path) -> None:
    text, _ = fmctl("topo", "export", "--kind", "slurm-topology", "--cluster", cluster)
    again, _ = fmctl("topo", "import", "--kind", "slurm-topology", "-", "--type", "hgx-h100", stdin=text)
    one, other = parse(again), parse(Path(cluster).read_text())
    assert isinstance(one, ClusterFile)
    assert isinstance(other, ClusterFile)
    assert one.described.entry_of.keys() == other.described.entry_of.keys()
    xml, _ = fmctl("topo", "export", "--kind", "nccl-topo", "--cluster", cluster, "--node", "n1")
    assert len(list(ET.fromstring(xml).iter("gpu"))) == 8
    graph, _ = fmctl("topo", "export", "--kind", "graphml", "--cluster", cluster)
    assert ET.fromstring(graph).tag.endswith("graphml")
    assert "--node: found 8 nodes" in fmctl("topo", "export", "--kind", "nccl-topo", "--cluster", cluster, code=2)[1]


def test_show_and_draw_a_cluster_file(cluster: str, tmp_path: Path) -> None:
    out, _ = fmctl("topo", "show", "--cluster", cluster)
    assert out.decode().splitlines()[0] == "cluster: 8 nodes, 64 GPUs: 64 free, 0 in use"
    out, _ = fmctl("topo", "show", "--cluster", cluster, "--leaf", "leaf2")
    assert "n5" in out.decode()
    assert "n1" not in out.decode()
    svg, _ = fmctl("topo", "draw", "--cluster", cluster)
    assert ET.fromstring(svg).tag == "{http://www.w3.org/2000/svg}svg"
    target = tmp_path / "cluster.png"
    assert fmctl("topo", "draw", "-o", "png", "--cluster", cluster, str(target))[0] == b""
    assert target.read_bytes().startswith(b"\x89PNG")
    piped, _ = fmctl("topo", "draw", "-o", "png", "--cluster", cluster, "-")
    assert piped == target.read_bytes()


def test_show_tells_which_links_are_taken(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(
        """
apiVersion: fmsched/v1
kind: Cluster
nodes:
  - {name: n1, type: l40s-8, leaf: leaf1}
  - {name: n2, type: l40s-8, leaf: leaf2}
fabric:
  switches: {"leaf[1-2]": 0, spine1: 1}
  links: [{between: ["leaf[1-2]", spine1], gbps: 200, count: 2, measuredGbps: 25}]
reserved: [{job: x, between: [leaf2, spine1], gbps: 300}]
"""
    )
    out, _ = fmctl("topo", "show", "--cluster", str(path))
    assert out.decode().splitlines()[-3:] == [
        "links in use:",
        "leaf2–spine1: 75 of 400 Gb/s left (x reserves 300, 25 measured)",
        "leaf1–spine1: 375 of 400 Gb/s left (25 measured)",
    ]


def test_draw_that_cannot_be(cluster: str, tmp_path: Path) -> None:
    assert (
        "no leaf group named 'x'; there are: leaf1, leaf2"
        in fmctl("topo", "draw", "--cluster", cluster, "--leaf", "x", code=3)[1]
    )
    assert "cannot write" in fmctl("topo", "draw", "--cluster", cluster, str(tmp_path), code=1)[1]
    broken = tmp_path / "broken.yaml"
    broken.write_text("kind: Custer\n")
    for command in (("draw",), ("show",), ("export", "--kind", "graphml")):
        assert fmctl("topo", *command, "--cluster", str(broken), code=2)[1].startswith(f"{broken}:1: ")


def test_a_png_is_not_thrown_at_a_terminal(cluster: str) -> None:
    leader, follower = pty.openpty()
    try:
        done = subprocess.run(
            [str(FMCTL), "topo", "draw", "-o", "png", "--cluster", cluster],
            stdout=follower, stderr=subprocess.PIPE, timeout=60, check=False,
        )  # fmt: skip
    finally:
        os.close(follower)
        os.close(leader)
    assert done.returncode == 2
    assert done.stderr == b"fmctl: a PNG is no text for a terminal: name a file, or send it on with > FILE\n"


def test_without_pillow_the_extra_is_named(cluster: str, tmp_path: Path) -> None:
    (tmp_path / "PIL").mkdir()
    (tmp_path / "PIL" / "__init__.py").write_text("raise ImportError('no Pillow here')\n")
    done = subprocess.run(
        [str(FMCTL), "topo", "draw", "-o", "png", "--cluster", cluster, "-"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr == b"fmctl: topo draw -o png needs: pip install 'fmsched[draw]' (no Pillow here)\n"


def test_the_live_cluster_is_drawn_and_exported_alike(cluster: str) -> None:
    """The service answers what a Cluster file says; so the picture and the exports are the same, but for the names of jobs."""
    answer = view(Path(cluster).read_bytes(), cluster)
    answer.nodes[0].holders[3] = "train"
    with serving(jobs=jobs(), nodes=answer, log_chunks=[]) as served:
        at = ("--server", served.address)
        svg = fmctl("topo", "draw", *at)[0].decode()
        assert len([rect for rect in ET.fromstring(svg).iter() if (rect.get("class") or "").startswith("gpu ")]) == 64
        assert "n1 GPU 3: in use, train" in svg
        assert fmctl("topo", "export", "--kind", "slurm-topology", *at) == fmctl(
            "topo", "export", "--kind", "slurm-topology", "--cluster", cluster
        )
        assert b"<system" in fmctl("topo", "export", "--kind", "nccl-topo", "--node", "n2", *at)[0]
        assert "no node named 'n99'" in fmctl("topo", "export", "--kind", "nccl-topo", "--node", "n99", *at, code=3)[1]
    assert fmctl("topo", "draw", "--server", "127.0.0.1:1", code=5)[0] == b""
