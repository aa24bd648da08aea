"""fmctl's commands against a service on a real port: what is printed where, and the exit codes."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from typer.testing import CliRunner

from fmclient.cli import describe, exits, human, offline
from fmclient.cli.main import app
from fmproto.v1 import job_pb2
from fmsched.manifest import parallel
from fmsched.model.placement import Unplaceable, Why
from fmsched.place.objective import Ruler
from fmsched.service.errors import not_leader
from fmsched.service.server import STORE_UNAVAILABLE
from fmsched.store import codec
from tests.support.client_cluster import chunks, cluster, jobs
from tests.support.scripted_scheduler import Refusal, Served, bad_request, job, placed, serving, unused_port


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    with serving(jobs=jobs(), nodes=cluster(), log_chunks=chunks()) as found:
        monkeypatch.setenv("FMSCHED_SERVER", found.address)
        yield found


@pytest.fixture
def manifest(tmp_path: Path) -> str:
    path = tmp_path / "job.yaml"
    path.write_text("kind: FoundationModelTrainingJob\n")
    return str(path)


def fmctl(*args: str, code: int = exits.DONE, stdin: str | bytes | None = None) -> tuple[str, str]:
    """(stdout, stderr) of a command that ends with `code`."""
    result = CliRunner().invoke(app, args, input=stdin)
    assert result.exit_code == code, (result.output, result.exception)
    return result.stdout, result.stderr


def rows(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def test_get_jobs_is_a_table_with_states_in_words(served: Served) -> None:
    out, err = fmctl("get", "jobs")
    table = rows(out)
    assert table[0] == ["ID", "NAME", "STATE", "GPUS", "NODES", "QUEUE", "AGE"]
    assert [row[:6] for row in table[1:]] == [
        ["train", "train", "running", "2", "1", "-"],
        ["big", "big", "waiting", "4", "-", "1"],
        ["old", "old", "failed", "0", "-", "-"],
    ]
    assert err == ""


def test_get_jobs_wide_says_why_a_job_waits(served: Served) -> None:
    out, _ = fmctl("get", "jobs", "-o", "wide")
    (line,) = (line for line in out.splitlines() if line.startswith("big"))
    assert line.rstrip().endswith("workers: free GPUs: asked 4; best is 1 (on n1)")


def test_lists_as_data_are_one_object_in_lower_camel_case(served: Served) -> None:
    found = json.loads(fmctl("get", "jobs", "-o", "json")[0])
    assert [each["spec"]["id"] for each in found["items"]] == ["train", "big", "old"]
    assert found["items"][1]["queuePosition"] == 1
    assert found["items"][1]["status"]["state"] == "JOB_STATE_QUEUED"
    gpus = json.loads(fmctl("get", "gpus", "-o", "json")[0])["items"]
    assert [(each["node"], each["index"], each["state"], each["job"]) for each in gpus[:2]] == [
        ("n0", 0, "in use", "train"), ("n0", 1, "in use", "train"),
    ]  # fmt: skip
    assert json.loads(fmctl("get", "events", "-o", "json")[0])["items"][0]["job"] == "train"


def test_yaml_says_the_same_as_json(served: Served) -> None:
    from ruamel.yaml import YAML

    for kind in ("jobs", "nodes", "gpus", "events"):
        assert YAML(typ="safe").load(fmctl("get", kind, "-o", "yaml")[0]) == json.loads(fmctl("get", kind, "-o", "json")[0])


def test_names_are_one_a_line_for_the_next_command(served: Served) -> None:
    assert fmctl("get", "jobs", "-o", "name")[0] == "train\nbig\nold\n"
    assert fmctl("get", "nodes", "-o", "name")[0] == "n0\nn1\nn2\n"
    assert fmctl("get", "gpus", "n1", "-o", "name")[0] == "n1/0\nn1/1\n"


def test_get_nodes_counts_free_gpus_and_shows_faults(served: Served) -> None:
    table = rows(fmctl("get", "nodes")[0])
    assert [row[:4] for row in table[1:]] == [
        ["n0", "ready", "2", "0"],
        ["n1", "ready", "2", "1"],
        ["n2", "drained", "2", "0"],
    ]
    assert "GPU 1 failed: XID 79: fallen off the bus" in fmctl("get", "node", "n1")[0]


def test_get_only_what_was_named_and_code_3_for_what_is_not_there(served: Served) -> None:
    assert [row[0] for row in rows(fmctl("get", "job", "big")[0])] == ["ID", "big"]
    known = {"job": "big, old, train", "events": "big, old, train", "node": "n0, n1, n2", "gpus": "n0, n1, n2"}
    for kind, names in known.items():
        noun = {"events": "job", "gpus": "node"}.get(kind, kind)
        out, err = fmctl("get", kind, "nope", code=exits.NOT_FOUND)
        assert (out, err) == ("", f"fmctl: no {noun} named 'nope'; there are: {names}\n")


def test_describe_shows_placement_with_its_proof(served: Served) -> None:
    out, _ = fmctl("describe", "job", "train")
    for line in (
        "state:    running",
        "  2 GPUs on 1 node:",
        "    n0  workers  GPU 0-1  rank 0-1",
        "  proven: no placement is better; minimised, in this order:",
    ):
        assert line in out


def test_describe_and_explain_give_every_reason(served: Served) -> None:
    reason = "  workers: free GPUs: asked 4; best is 1 (on n1)\n    would help: the end of job train\n"
    assert f"why:\n{reason}" in fmctl("describe", "job", "big")[0]
    assert fmctl("explain", "big")[0] == f"job big: waiting\n{reason}"
    assert json.loads(fmctl("explain", "big", "-o", "json")[0])["why"][0]["relax"] == "the end of job train"


def test_describe_shows_how_a_job_failed(served: Served) -> None:
    out, _ = fmctl("describe", "job", "old")
    assert "first failure: rank 1 on n1: exit 3: exit\n    | out of memory\n" in out
    served.scheduler.jobs["old"].status.first_failure.reason = ""
    assert "first failure: rank 1 on n1: exit 3\n    | out of memory\n" in fmctl("describe", "job", "old")[0]


def test_describe_node_and_code_3_for_an_unknown_one(served: Served) -> None:
    out, _ = fmctl("describe", "node", "n0")
    assert "  0  H100-SXM5-80GB  80 GB  GPU-0-0  in use by train" in out
    _, err = fmctl("describe", "node", "n9", code=exits.NOT_FOUND)
    assert err == "fmctl: no node named 'n9'; there are: n0, n1, n2\n"


def test_a_state_is_not_said_twice(served: Served) -> None:
    node = served.scheduler.nodes.nodes[1]
    node.state, node.reason = "unreachable", "n1 is unreachable"
    shown = (fmctl("get", "nodes"), fmctl("get", "gpus"), fmctl("describe", "node", "n1"), fmctl("topo", "show"))
    for out, _ in (*shown, fmctl("top", "--once")):
        assert "unreachable" in out
        assert "n1 is unreachable" not in out


def test_adapters_and_nvlink_are_described_in_words(served: Served) -> None:
    ports = served.scheduler.nodes.nodes[0].inventory.hca_ports
    for number, near in enumerate(([0], [0, 1], [])):
        ports.add(hca=f"mlx5_{number}", port=1, near_gpus=near)
    out, _ = fmctl("describe", "node", "n0")
    assert [line.partition("near ")[2] for line in out.splitlines() if "mlx5_" in line] == ["GPU 0", "GPUs 0-1", "no GPU"]
    group = served.scheduler.jobs["big"].spec.groups[0]
    group.min_nvlink_gbytes_per_s = describe.ANY_NVLINK_GBYTES_PER_S
    assert "workers (tensor parallel): 4 GPUs, any NVLink\n" in fmctl("describe", "job", "big")[0]
    group.min_nvlink_gbytes_per_s = 600.0
    assert "4 GPUs, NVLink 600 GB/s a pair\n" in fmctl("describe", "job", "big")[0]
    assert parallel.ANY_NVLINK_GBYTES_PER_S == describe.ANY_NVLINK_GBYTES_PER_S


def test_events_have_their_time_where_asked(served: Served) -> None:
    table = rows(fmctl("get", "events", "-o", "wide")[0])
    assert table[0] == ["AGE", "TIME", "JOB", "ATTEMPT", "STATE", "REASON"]
    assert table[1][1:3] == ["2023-11-14T22:13:20Z", "train"]
    assert "TIME" not in fmctl("get", "events")[0]


def test_logs_are_whole_lines_with_their_ranks(served: Served) -> None:
    assert fmctl("logs", "train")[0] == "[1] rank 1 whole\n[0] rank 0 starts\n[1] rank 1 open\n"
    assert not fmctl("logs", "train", "--rank", "0", "--tail", "7")[0].startswith("[")
    sent = served.scheduler.requests("Logs")[-1]
    assert (list(sent.ranks), sent.tail_lines, sent.follow) == ([0], 7, False)


def test_logs_of_an_unknown_rank_are_code_3(served: Served) -> None:
    served.scheduler.refusals["Logs"] = [Refusal(grpc.StatusCode.NOT_FOUND, "job train has ranks 0 to 1, not 9")]
    assert fmctl("logs", "train", "--rank", "9", code=exits.NOT_FOUND)[1] == "fmctl: job train has ranks 0 to 1, not 9\n"


def test_a_node_that_does_not_give_its_logs_is_told_after_the_others_and_is_no_missing_scheduler(served: Served) -> None:
    words = "node h1: its agent at h1:7072 does not give the logs: failed to connect; RST_STREAM"
    served.scheduler.refusals["Logs/end"] = [Refusal(grpc.StatusCode.FAILED_PRECONDITION, words)]
    out, err = fmctl("logs", "train", code=exits.FAILED)
    assert (out.count("\n"), err) == (3, f"fmctl: {words}\n")
    served.scheduler.refusals["Logs"] = [Refusal(grpc.StatusCode.FAILED_PRECONDITION, words)]
    assert fmctl("logs", "train", code=exits.FAILED) == ("", f"fmctl: {words}\n")


def test_logs_of_a_waiting_job_say_so_in_the_words_of_get(served: Served) -> None:
    words = "big.2 has not run yet: it is queued (free GPUs)"
    served.scheduler.refusals["Logs"] = [Refusal(grpc.StatusCode.FAILED_PRECONDITION, words)]
    _, err = fmctl("logs", "big", code=exits.FAILED)
    assert err == "fmctl: big.2 has not run yet: it is waiting (free GPUs)\n"


def test_cancel_says_what_it_does_and_what_had_ended_before(served: Served) -> None:
    served.scheduler.jobs["done"] = job("done", job_pb2.JOB_STATE_SUCCEEDED)
    assert fmctl("cancel", "big", "old", "done") == (
        "job big: cancelled\n",
        "fmctl: job old had already failed\nfmctl: job done had already succeeded\n",
    )
    assert fmctl("cancel", "big") == ("", "fmctl: job big had already been cancelled\n")
    assert [request.id for request in served.scheduler.requests("Cancel")] == ["big"]
    served.scheduler.state_after_cancel = job_pb2.JOB_STATE_STOPPING
    assert fmctl("cancel", "train") == ("job train: cancelling\n", "")


def test_cancel_tries_each_and_tells_of_the_first_failure(served: Served) -> None:
    out, err = fmctl("cancel", "nope", "big", "--reason", "enough", code=exits.NOT_FOUND)
    assert (out, err) == ("job big: cancelled\n", "fmctl: no job nope\n")
    assert served.scheduler.requests("Cancel")[-1].reason == "enough"


def test_topo_show_draws_leaves_nodes_and_gpus(served: Served) -> None:
    assert fmctl("topo", "show")[0].splitlines() == [
        "cluster: 3 nodes, 6 GPUs: 1 free, 2 in use, 3 not usable",
        "├── leaf-0  2 nodes, 4 GPUs: 1 free, 2 in use, 1 not usable",
        "│   ├── n0  A A  2× H100-SXM5-80GB",
        "│   └── n1  · !  2× H100-SXM5-80GB",
        "│       └── GPU 1 failed: XID 79: fallen off the bus",
        "└── leaf-1  1 node, 2 GPUs: 0 free, 0 in use, 2 not usable",
        "    └── n2  - -  2× H100-SXM5-80GB  drained: new cables",
        "· free   ! failed   - closed",
        "A train: 2 GPUs",
    ]
    part = fmctl("topo", "show", "--leaf", "leaf-1")[0]
    assert part.startswith("leaf-1 of the cluster's 2 leaf groups: 1 node, 2 GPUs: ")
    assert "n0" not in part
    _, err = fmctl("topo", "show", "--leaf", "nope", code=exits.NOT_FOUND)
    assert err == "fmctl: no leaf group named 'nope'; there are: leaf-0, leaf-1\n"


def test_topo_show_sums_up_a_cluster_too_big_to_draw(served: Served) -> None:
    for number in range(3, 200):
        served.scheduler.nodes.nodes.add(name=f"n{number}", leaf="leaf-0", state="ready")
    out, _ = fmctl("topo", "show")
    assert len(out.splitlines()) < 10
    assert "200 nodes: drawn by leaf; --leaf NAME or --all draws nodes" in out
    assert len(fmctl("topo", "show", "--all")[0].splitlines()) > 200


def test_drain_and_undrain(served: Served) -> None:
    assert fmctl("drain", "n0", "--reason", "cables")[0] == "node n0: drained\n"
    assert served.scheduler.requests("Drain")[0].reason == "cables"
    assert fmctl("undrain", "n0")[0] == "node n0: ready\n"


def test_drain_takes_several_nodes_and_tries_each(served: Served) -> None:
    served.scheduler.refusals["Drain"] = [Refusal(grpc.StatusCode.NOT_FOUND, "no node named 'n9'")]
    out, err = fmctl("drain", "n9", "n0", "n1", code=exits.NOT_FOUND)
    assert (out, err) == ("node n0: drained\nnode n1: drained\n", "fmctl: no node named 'n9'\n")
    assert fmctl("undrain", "n0", "n1")[0] == "node n0: ready\nnode n1: ready\n"


def test_version_of_both_ends(served: Served) -> None:
    assert fmctl("--version")[0] == "fmctl 0.1.0\n"
    assert fmctl("version")[0] == "fmctl 0.1.0\nfm-scheduler 0.1.0, leads, state store ok\n"
    assert json.loads(fmctl("version", "-o", "json")[0])["service"]["leaderAddress"] == "here:1"
    assert fmctl("--server", f"127.0.0.1:{unused_port()}", "version", "--client")[0] == "fmctl 0.1.0\n"


def test_submit_prints_the_job_or_its_id(served: Served, manifest: str) -> None:
    assert fmctl("submit", "-f", manifest)[0] == "job job-1 (job-1, 0 GPUs): waiting\n"
    assert fmctl("submit", "-f", manifest, "--request-id", "r1", "-o", "name")[0] == "job-1\n"
    assert served.scheduler.requests("Submit")[-1].request_id == "r1"
    assert json.loads(fmctl("submit", "-f", "-", "-o", "json", stdin="from: stdin")[0])["spec"]["id"] == "job-1"
    assert served.scheduler.requests("Submit")[-1].manifest == "from: stdin"


@pytest.mark.parametrize(
    ("end", "code"),
    [(job_pb2.JOB_STATE_SUCCEEDED, exits.DONE), (job_pb2.JOB_STATE_FAILED, exits.FAILED)],
    ids=["good", "bad"],
)
def test_submit_and_wait_ends_as_the_job_does(served: Served, manifest: str, end: int, code: int) -> None:
    served.scheduler.on_submit = lambda _: job("job-1", end, reason="as it went")
    out, err = fmctl("submit", "-f", manifest, "--wait", "-o", "name", code=code)
    assert out == "job-1\n"
    assert ("as it went" in err) == (code == exits.FAILED)


def test_submit_waits_for_the_start_only_or_gives_up(served: Served, manifest: str) -> None:
    served.scheduler.on_submit = lambda _: placed("gang")
    assert "job gang: running after" in fmctl("submit", "-f", manifest, "--wait", "--until", "running")[1]
    served.scheduler.on_submit = lambda _: job("slow")
    _, err = fmctl("submit", "-f", manifest, "--wait", "--wait-timeout", "0.2", code=exits.FAILED)
    assert "fmctl: job slow is waiting after 0.2 s; waited for running\n" in err


def test_faults_of_a_manifest_are_printed_one_a_line_with_the_file(served: Served, manifest: str) -> None:
    faults = bad_request(("line 12: spec.x[0].y", "found -1; at least 1"), ("spec", "unknown"), ("", "empty"))
    refusal = Refusal(grpc.StatusCode.INVALID_ARGUMENT, "3 faults", details=(faults,))
    for command in ("submit", "plan"):
        served.scheduler.refusals[command.capitalize()] = [refusal]
        out, err = fmctl(command, "-f", manifest, code=exits.USAGE)
        expected = f"{manifest}:12: spec.x[0].y: found -1; at least 1\n{manifest}: spec: unknown\n{manifest}: empty\n"
        assert (out, err) == ("", expected)


@pytest.mark.parametrize("command", ["submit", "plan"])
def test_a_manifest_that_is_too_big_or_no_text_is_code_2_and_is_not_sent(
    served: Served, tmp_path: Path, command: str
) -> None:
    path = tmp_path / "big.yaml"
    path.write_bytes(b"x" * 10_000_000)
    assert fmctl(command, "-f", str(path), code=exits.USAGE)[1].startswith(
        f"{path}: the manifest has 10,000,000 bytes; at most"
    )
    path.write_bytes(b"a: 1\nb: \xff\n")
    assert fmctl(command, "-f", str(path), code=exits.USAGE)[1] == f"{path}:2: byte 0xff at offset 8 is not UTF-8 text\n"
    assert served.scheduler.calls == []


def test_a_job_that_can_never_run_is_code_4_with_reasons(served: Served, manifest: str) -> None:
    whys = (
        Why("GPU type", "workers", "H200", "H100", "on n1", "tolerate h100"),
        Why("GPU count", "", "9 GPUs", "6 H100", "in the whole cluster", "3 fewer replicas"),
    )
    sentence = f"job j can never run on this cluster: {Unplaceable('j', True, whys)}"
    details = tuple(codec.why_message(why) for why in whys)
    served.scheduler.refusals["Submit"] = [Refusal(grpc.StatusCode.FAILED_PRECONDITION, sentence, details=details)]
    _, err = fmctl("submit", "-f", manifest, code=exits.CANNOT_BE_PLACED)
    assert err.splitlines() == [
        "fmctl: job j can never run on this cluster",
        "  workers: GPU type: asked H200; best is H100 (on n1)",
        "    would help: tolerate h100",
        "  GPU count: asked 9 GPUs; best is 6 H100 (in the whole cluster)",
        "    would help: 3 fewer replicas",
    ]


PLAN: dict[str, Any] = {
    "job": "j",
    "verdict": "placed",
    "ranks": [
        {
            "rank": rank,
            "group": "workers",
            "replica": 0,
            "cell": 0,
            "local_rank": rank,
            "node": "n1",
            "gpu": {"index": rank + 2, "uuid": ""},
        }
        for rank in range(3)
    ],
    "objective": {
        "value": 4,
        "bound": 3,
        "gap": 0.25,
        "optimal": False,
        "terms": [
            {"name": "leaf groups spanned by the job", "weight": 4, "value": 1},
            {"name": "nodes", "weight": 2, "value": 2},
            {"name": "NVLink GB/s cut from free GPUs", "weight": 1, "value": 1612800.0},
            {"name": "cost", "weight": 1, "value": 0},
        ],
    },
    "solve": {"seconds": 0.0123, "nodes": 2, "gpus": 4},
    "why": [],
}


def test_plan_against_the_service_draws_the_placement_and_its_bound(served: Served, manifest: str) -> None:
    served.scheduler.plan_json = json.dumps(PLAN)
    assert fmctl("plan", "-f", manifest)[0].splitlines() == [
        "j: can be placed now",
        "  3 GPUs on 1 node:",
        "    n1  workers  GPU 2-4  rank 0-2",
        "  within 25.00% of the proven bound; minimised, in this order:",
        "            1 leaf group spanned by the job",
        "            2 nodes",
        "    1,612,800 NVLink GB/s cut from free GPUs",
        "    0 of: cost",
        "  solve: seconds 0.0123, nodes 2, gpus 4",
    ]
    assert json.loads(fmctl("plan", "-f", manifest, "-o", "json")[0]) == PLAN


@pytest.mark.parametrize("verdict", ["waits", "never"])
def test_a_plan_without_a_place_is_code_4_with_reasons(served: Served, manifest: str, verdict: str) -> None:
    why = {"constraint": "hops", "group": "workers", "asked": 1, "best": 3, "where": "between n0 and n2", "relax": None}
    served.scheduler.plan_json = json.dumps({"job": "j", "verdict": verdict, "ranks": [], "objective": None, "why": [why]})
    out, _ = fmctl("plan", "-f", manifest, code=exits.CANNOT_BE_PLACED)
    assert out.splitlines()[1:] == ["  workers: hops: asked 1; best is 3 (between n0 and n2)"]
    assert json.loads(fmctl("plan", "-f", manifest, "-o", "json", code=exits.CANNOT_BE_PLACED)[0])["verdict"] == verdict


def test_validate_by_the_service_prints_the_sum(served: Served, manifest: str) -> None:
    assert fmctl("validate", "--remote", "-f", manifest)[0] == "v: valid\n  total  8 GPUs\n"


@pytest.mark.parametrize(
    ("refusal", "code"),
    [
        (grpc.StatusCode.NOT_FOUND, exits.NOT_FOUND),
        (grpc.StatusCode.INVALID_ARGUMENT, exits.USAGE),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, exits.FAILED),
        (grpc.StatusCode.INTERNAL, exits.FAILED),
        (grpc.StatusCode.DEADLINE_EXCEEDED, exits.UNREACHABLE),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_each_error_has_its_code_and_a_line_on_stderr(served: Served, refusal: grpc.StatusCode, code: int) -> None:
    served.scheduler.refusals["ListJobs"] = [Refusal(refusal, "as scripted")]
    out, err = fmctl("get", "jobs", code=code)
    assert out == ""
    assert err.startswith("fmctl: ")
    assert err.count("\n") == 1


@pytest.mark.parametrize("place", [0, 2], ids=["before the command", "after it"])
def test_nobody_there_is_code_5_and_says_where_it_looked(place: int) -> None:
    server, command = f"127.0.0.1:{unused_port()}", ["get", "jobs"]
    command[place:place] = ["--server", server]
    began_s = time.monotonic()
    out, err = fmctl(*command, code=exits.UNREACHABLE)
    assert out == ""
    assert f"no scheduler answers at {server}" in err
    assert "FMSCHED_SERVER" in err
    assert time.monotonic() - began_s < 10


@pytest.mark.parametrize("place", [0, 2], ids=["before the command", "after it"])
def test_a_timeout_is_code_5(served: Served, place: int) -> None:
    served.scheduler.delay_s, command = 30.0, ["get", "jobs"]
    command[place:place] = ["--timeout", "0.2"]
    assert fmctl(*command, code=exits.UNREACHABLE)[1].endswith("did not answer ListJobs in time\n")


@pytest.mark.parametrize(
    "words",
    [
        "this scheduler has not read the state store yet; try again",
        STORE_UNAVAILABLE,
        "the scheduler is busy: 9 questions wait; try again",
        not_leader(None).message,
    ],
)
def test_a_service_that_answers_that_it_cannot_serve_is_not_said_to_be_silent(served: Served, words: str) -> None:
    served.scheduler.refusals["Drain"] = [Refusal(grpc.StatusCode.UNAVAILABLE, words)]
    assert fmctl("drain", "n0", code=exits.UNREACHABLE) == ("", f"fmctl: the scheduler at {served.address}: {words}\n")


@pytest.mark.parametrize(
    "command",
    [
        ("frobnicate",),
        ("get", "jobs", "-o", "xml"),
        ("get", "jobs", "--server", "no port"),
        ("get", "jobs", "--timeout", "0"),
        ("submit",),
        ("cancel",),
        ("plan", "-f", "-", "--cluster", "-"),
        ("get", "jobs", "--tls-cert", "x"),
        ("--tls-ca", "/nonexistent/ca.pem", "get", "jobs"),
    ],
    ids=" ".join,
)
def test_wrong_usage_is_code_2(command: tuple[str, ...]) -> None:
    out, err = fmctl(*command, code=exits.USAGE)
    assert out == ""
    assert err != ""


@pytest.mark.parametrize("command", [("submit", "-f"), ("plan", "-f"), ("validate", "-f")], ids=" ".join)
def test_a_file_that_cannot_be_read_is_one_line_and_code_2(tmp_path: Path, command: tuple[str, ...]) -> None:
    missing = str(tmp_path / "none.yaml")
    assert fmctl(*command, missing, code=exits.USAGE)[1] == f"fmctl: cannot read {missing}: No such file or directory\n"
    assert fmctl(*command, str(tmp_path), code=exits.USAGE)[1] == f"fmctl: cannot read {tmp_path}: Is a directory\n"


def test_without_the_extra_one_line_names_it(monkeypatch: pytest.MonkeyPatch, manifest: str) -> None:
    monkeypatch.setattr(offline, "GROUP", "fmctl.nowhere")
    _, err = fmctl("plan", "-f", manifest, "--cluster", manifest, code=exits.USAGE)
    assert err.startswith("fmctl: plan --cluster needs: pip install 'fmsched[scheduler]' (")
    assert err.count("\n") == 1
    shape = ("--pods", "1", "--leaves", "1", "--nodes-per-leaf", "1", "--type", "hgx-h100")
    _, err = fmctl("topo", "generate", *shape, code=exits.USAGE)
    assert err.startswith("fmctl: topo generate needs: pip install 'fmsched[scheduler]' (")


MANIFEST = """apiVersion: ai.example.com/v1alpha1
kind: FoundationModelTrainingJob
metadata: {name: small}
spec:
  replicaCount: 2
  resourceGroups:
    - {name: cell, type: TensorParallel, gpusPerGroup: 4}
"""


def test_validate_offline_prints_the_sum_and_gives_it_as_data() -> None:
    assert fmctl("validate", "-f", "-", stdin=MANIFEST)[0].splitlines() == [
        "small: valid",
        "  cell   4 GPUs × 2 replicas = 8",
        "  total  8 GPUs",
    ]
    found = json.loads(fmctl("validate", "-f", "-", "-o", "json", stdin=MANIFEST)[0])
    assert (found["gpus"], found["violations"], found["lines"][0]["gpusPerGroup"]) == (8, [], 4)


def test_validate_offline_names_file_line_and_path_of_each_fault(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(MANIFEST.replace("gpusPerGroup: 4", "gpusPerGroup: -4").replace("replicaCount", "replicaCuont"))
    out, err = fmctl("validate", "-f", str(path), code=exits.USAGE)
    assert out == ""
    assert f"{path}:5: spec.replicaCuont: " in err
    assert f"{path}:7: spec.resourceGroups[0].gpusPerGroup: found -4" in err
    assert json.loads(fmctl("validate", "-f", str(path), "-o", "json", code=exits.USAGE)[0])["violations"][0]["line"] in (
        5,
        7,
    )


def test_a_generated_cluster_can_be_planned_on_with_no_service(tmp_path: Path) -> None:
    shape = ("--pods", "1", "--leaves", "2", "--nodes-per-leaf", "2", "--type", "hgx-h100", "--busy", "0.25", "--seed", "7")
    text, _ = fmctl("topo", "generate", *shape)
    assert fmctl("topo", "generate", *shape)[0] == text
    path = tmp_path / "cluster.yaml"
    path.write_text(text)
    plan = json.loads(fmctl("plan", "-f", "-", "--cluster", str(path), "-o", "json", stdin=MANIFEST)[0])
    assert (plan["verdict"], len(plan["ranks"])) == ("placed", 8)
    too_big = MANIFEST.replace("replicaCount: 2", "replicaCount: 99")
    out, _ = fmctl("plan", "-f", "-", "--cluster", str(path), stdin=too_big, code=exits.CANNOT_BE_PLACED)
    assert out.startswith("small: can never run on this cluster\n")


def test_faults_of_a_cluster_file_are_code_2_with_its_name(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text("kind: Custer\n")
    assert fmctl("plan", "-f", "-", "--cluster", str(path), stdin=MANIFEST, code=exits.USAGE)[1].startswith(f"{path}:1: ")


def test_every_command_has_help_that_begins_with_a_sentence() -> None:
    for command in ("submit", "get", "get jobs", "describe job", "explain", "logs", "cancel", "plan", "topo show", "topo generate",
                    "topo draw", "topo import", "topo export", "drain", "undrain", "validate", "version"):  # fmt: skip
        out, _ = fmctl(*command.split(), "--help")
        assert f"fmctl {command}" in out
        assert "[[" not in out
        assert "." in out


def test_each_objective_term_is_singular_for_one_and_is_explained() -> None:
    """The page names the level once: "leaf groups (pods, cores) spanned by the job"."""
    names = Ruler((0,), ("leaf groups",), {}, 0).names
    page = (Path(__file__).parents[2] / "docs/fmctl.md").read_text().replace(" (pods, cores)", "")
    assert [name for name in names if f"| {name} |" not in page] == []
    assert [human.one(name) for name in names] == [
        "step down the preference list",
        "instance across leaf groups",
        "instance across nodes",
        "leaf group spanned by the job",
        "leaf group spanned by its groups",
        "node",
        "step up in GPU strength",
        "GPU that leaves whole cells",
        "free GPU left on its nodes",
        "free GPU left in its leaf groups",
        "NVLink GB/s missing inside instances",
        "NVLink GB/s cut from free GPUs",
    ]


def test_numbers_are_grouped_and_keep_their_fractions() -> None:
    assert [human.amount(number) for number in (0.0, 1.0, 2.5, 1_612_800.0)] == ["0", "1", "2.5", "1,612,800"]


def test_plan_tells_the_step_time_or_why_it_cannot(tmp_path: Path) -> None:
    root = Path(__file__).parents[2] / "examples"
    whole = tmp_path / "job.yaml"
    whole.write_text((root / "whole-job.yaml").read_text().replace("data: 16", "data: 1").replace("pipeline: 4", "pipeline: 2")
                     .replace("minReplicas: 12", "minReplicas: 1").replace("spares: 2", "spares: 0"))  # fmt: skip
    out, _ = fmctl("plan", "-f", str(whole), "--cluster", str(root / "demo-cluster.yaml"))
    assert re.search(r"predicted: [\d.]+ s a step, [\d,]+ tokens/s, MFU \d+%", out)
    assert re.search(r"pipeline groups of 2: network, [\d.]+ Gb/s, weakest at h\d and h\d", out)
    out, _ = fmctl("plan", "-f", str(root / "small-job.yaml"), "--cluster", str(root / "demo-cluster.yaml"))
    assert "predicted: nothing; " in out
