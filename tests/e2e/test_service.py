"""The gRPC service as any client sees it: status codes, details, health, reflection, followers; and fmctl's exit codes against it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from grpc_status import rpc_status

from fmclient import Client
from fmproto.v1 import scheduler_pb2 as pb
from fmproto.v1 import scheduler_pb2_grpc
from fmsched.offline.local import LocalCluster
from tests.support.live import live, manifest, state, until

Live = tuple[LocalCluster, Client]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with live(tmp_path_factory.mktemp("cluster"), nodes=("n1", "n2")) as (local, client):
        yield local, client


@pytest.fixture(scope="module")
def stub(cluster: Live) -> Iterator[scheduler_pb2_grpc.SchedulerStub]:
    with grpc.insecure_channel(cluster[0].server) as channel:
        yield scheduler_pb2_grpc.SchedulerStub(channel)


def refused(call: object, request: object) -> grpc.RpcError:
    with pytest.raises(grpc.RpcError) as caught:
        call(request, timeout=10)  # type: ignore[operator]
    return caught.value


def test_every_fault_of_a_manifest_is_a_field_violation(stub: scheduler_pb2_grpc.SchedulerStub) -> None:
    broken = manifest("Bad_Name", "true", gpus=2).replace("gpusPerGroup: 2", "gpusPerGroup: -1, gpuPerGroup: 2")
    error = refused(stub.Submit, pb.SubmitRequest(manifest=broken))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    status = rpc_status.from_call(error)
    details = error_details_pb2.BadRequest()
    assert status.details[0].Unpack(details)
    violations = {v.field: v.description for v in details.field_violations}
    assert any("metadata.name" in field for field in violations)
    assert any("gpusPerGroup" in field and "-1" in text for field, text in violations.items())
    assert any("gpuPerGroup" in field and "gpusPerGroup" in text for field, text in violations.items()), violations
    assert all(field.startswith("line ") for field in violations)


def test_unknown_things_are_not_found(stub: scheduler_pb2_grpc.SchedulerStub) -> None:
    for call, request in (
        (stub.GetJob, pb.GetJobRequest(id="nothing")),
        (stub.Explain, pb.ExplainRequest(id="nothing")),
        (stub.Cancel, pb.CancelRequest(id="nothing")),
        (stub.Drain, pb.DrainRequest(node="nowhere")),
        (stub.Undrain, pb.UndrainRequest(node="nowhere")),
    ):
        error = refused(call, request)
        assert error.code() is grpc.StatusCode.NOT_FOUND, error
        assert "nothing" in error.details() or "nowhere" in error.details()


def test_what_can_never_run_is_a_failed_precondition(stub: scheduler_pb2_grpc.SchedulerStub) -> None:
    error = refused(stub.Submit, pb.SubmitRequest(manifest=manifest("never", "true", gpus=8, replicas=3)))
    assert error.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert "never" in error.details()


def test_a_manifest_over_the_limit_is_refused_and_the_service_goes_on(stub: scheduler_pb2_grpc.SchedulerStub) -> None:
    error = refused(stub.Submit, pb.SubmitRequest(manifest="a" * 10_000_000))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert stub.GetVersion(pb.GetVersionRequest(), timeout=10).leader


def test_validate_stores_nothing_and_lists_the_sum(stub: scheduler_pb2_grpc.SchedulerStub) -> None:
    answer = stub.Validate(pb.ValidateRequest(manifest=manifest("sum", "true", gpus=3, replicas=5)), timeout=10)
    assert (answer.gpus, [line.gpus for line in answer.lines]) == (15, [15])
    assert "sum" not in [job.spec.name for job in stub.ListJobs(pb.ListJobsRequest(), timeout=10).jobs]


def test_plan_commits_nothing(cluster: Live, stub: scheduler_pb2_grpc.SchedulerStub) -> None:
    answer = json.loads(stub.Plan(pb.PlanRequest(manifest=manifest("planned", "true", gpus=8)), timeout=10).json)
    assert answer["verdict"] == "placed"
    assert len(answer["ranks"]) == 8
    assert answer["objective"]["optimal"]
    assert not any(node.holders for node in cluster[1].nodes().nodes)


def test_health_and_reflection(cluster: Live) -> None:
    with grpc.insecure_channel(cluster[0].server) as channel:
        health = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=10)
        assert health.status == health_pb2.HealthCheckResponse.SERVING
        ask = iter([reflection_pb2.ServerReflectionRequest(list_services="")])
        answer = next(reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(ask, timeout=10))
        names = {service.name for service in answer.list_services_response.service}
        assert {"fmsched.v1.Scheduler", "grpc.health.v1.Health"} <= names


def test_a_follower_answers_reads_and_names_the_leader(cluster: Live) -> None:
    local, client = cluster
    first = local.server
    local.start_scheduler("follower")
    follower = local.part("follower").command[-1].removeprefix("--listen=")
    with grpc.insecure_channel(follower) as channel:
        one = scheduler_pb2_grpc.SchedulerStub(channel)
        until("it has read the store", lambda: reads(one))
        error = refused(one.Submit, pb.SubmitRequest(manifest=manifest("x", "true")))
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        assert dict(error.trailing_metadata())["fmsched-leader"] == first
    with Client(follower, timeout_s=20) as through:
        job = through.submit(manifest("through-a-follower", "true")).spec.id
    assert client.wait(job, until="ended", timeout_s=30)
    local.part("follower").stop()
    del local.parts["follower"]


def reads(stub: scheduler_pb2_grpc.SchedulerStub) -> bool:
    try:
        return stub.ListNodes(pb.ListNodesRequest(), timeout=5).revision > 0
    except grpc.RpcError:
        return False


def test_a_watch_shows_a_job_from_beginning_to_end(cluster: Live) -> None:
    _, client = cluster
    job = client.submit(manifest("watched", "sleep 0.3")).spec.id
    states = [change.job.status.state for change in client.watch(job)]
    assert states == sorted(states)
    assert states[-1] == client.get(job).status.state


def fmctl(cluster: LocalCluster, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "FMSCHED_SERVER": cluster.server}
    command = [sys.executable, "-m", "fmclient.cli.main", *words]
    return subprocess.run(command, env=env, input=stdin, capture_output=True, text=True, timeout=60)


def test_fmctl_from_submit_to_logs(cluster: Live) -> None:
    local, client = cluster
    done = fmctl(local, "submit", "-f", "-", "-o", "name", stdin=manifest("cli", "echo hello from $RANK"))
    assert done.returncode == 0, done.stderr
    job = done.stdout.strip().rpartition("/")[2]
    client.wait(job, until="ended", timeout_s=30)
    listed = json.loads(fmctl(local, "get", "jobs", "-o", "json").stdout)
    assert job in [item["spec"]["id"] for item in listed["items"]]
    logs = fmctl(local, "logs", job).stdout
    assert "hello from 0" in logs
    assert "hello from 1" in logs
    assert "succeeded" in fmctl(local, "describe", "job", job).stdout
    assert fmctl(local, "topo", "show").returncode == 0
    assert json.loads(fmctl(local, "get", "nodes", "-o", "json").stdout)["items"]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("get", "jobs"), 0),
        (("get", "jobs", "-o", "xml"), 2),
        (("describe", "job", "nothing"), 3),
        (("cancel", "nothing"), 3),
        (("drain", "nowhere"), 3),
        (("submit", "-f", "/no/such/file"), 2),
        (("--server", "127.0.0.1:1", "--timeout", "2", "get", "jobs"), 5),
    ],
)
def test_fmctl_exit_codes(cluster: Live, words: tuple[str, ...], code: int) -> None:
    done = fmctl(cluster[0], *words)
    assert done.returncode == code, (done.stdout, done.stderr)
    assert "Traceback" not in done.stderr


def test_fmctl_plan_and_submit_of_what_cannot_be_placed(cluster: Live) -> None:
    local, client = cluster
    never = manifest("never", "true", gpus=8, replicas=3)
    assert fmctl(local, "plan", "-f", "-", stdin=never).returncode == 4
    assert fmctl(local, "submit", "-f", "-", stdin=never).returncode == 4
    job = client.submit(manifest("fills", "sleep 600", gpus=8, replicas=2)).spec.id
    client.wait(job, until="running", timeout_s=30)
    planned = fmctl(local, "plan", "-f", "-", "-o", "json", stdin=manifest("next", "true", gpus=8))
    assert planned.returncode == 4
    assert json.loads(planned.stdout)["verdict"] == "waits"
    assert json.loads(planned.stdout)["why"]
    client.cancel(job)
    client.wait(job, until="ended", timeout_s=30)
    assert state(client, job) == "cancelled"


def test_a_broken_manifest_on_the_command_line(cluster: Live, tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(manifest("ok", "true").replace("replicaCount: 1", "replicaCount: many"))
    done = fmctl(cluster[0], "submit", "-f", str(path))
    assert done.returncode == 2
    assert f"{path}:6: spec.replicaCount" in done.stderr
    assert "many" in done.stderr
