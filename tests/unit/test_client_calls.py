"""Calls of both clients: retries, the leader, deadlines, errors."""

from __future__ import annotations

import socket
import time
from typing import Any

import grpc
import pytest

from fmclient import errors
from fmproto.v1 import job_pb2
from tests.support.both_clients import KINDS, Either
from tests.support.scripted_scheduler import Refusal, Scheduler, Served, bad_request, eventually, job, serving, unused_port

UNAVAILABLE = grpc.StatusCode.UNAVAILABLE
pytestmark = pytest.mark.parametrize("kind", KINDS)


def test_each_call_brings_its_answer(kind: str) -> None:
    with serving(jobs={"a": job("a")}, plan_json='{"verdict": "placed"}') as served, Either(kind, served.address) as client:
        assert client.call("submit", "text", submitter="me", hold_s=3.0).spec.id == "job-1"
        sent = served.scheduler.requests("Submit")[0]
        assert (sent.manifest, sent.submitter, sent.hold_s, len(sent.request_id)) == ("text", "me", 3.0, 32)
        assert client.call("validate", {"kind": "x"}).gpus == 8
        assert served.scheduler.requests("Validate")[0].manifest == '{\n  "kind": "x"\n}'
        assert client.call("plan", b"text") == {"verdict": "placed"}
        assert client.call("get", "a").spec.id == "a"
        assert [each.spec.id for each in client.call("list", live_only=True)] == ["a", "job-1"]
        assert served.scheduler.requests("ListJobs")[0].live_only
        assert client.call("explain", "a").id == "a"
        assert client.call("drain", "n0", "why", by="me").state == "drained"
        assert served.scheduler.requests("Drain")[0].by == "me"
        assert client.call("undrain", "n0").state == "ready"
        assert client.call("version").version == "0.1.0"
        assert len(client.call("nodes").nodes) == 0
        assert client.call("cancel", "a").status.state == job_pb2.JOB_STATE_CANCELLED


def test_a_lost_submit_is_repeated_with_its_request_id_and_makes_one_job(kind: str) -> None:
    lost = Refusal(UNAVAILABLE, after_work=True)
    with serving(refusals={"Submit": [lost, lost]}) as served, Either(kind, served.address) as client:
        assert client.call("submit", "text").spec.id == "job-1"
        sent = served.scheduler.requests("Submit")
        assert len(sent) == 3
        assert len({request.request_id for request in sent}) == 1
        assert len(served.scheduler.jobs) == 1


def test_a_drain_whose_answer_was_lost_is_not_repeated(kind: str) -> None:
    with serving(refusals={"Drain": [Refusal(UNAVAILABLE)]}) as served, Either(kind, served.address) as client:
        with pytest.raises(errors.Unreachable):
            client.call("drain", "n0")
        assert served.scheduler.names() == ["Drain"]


@pytest.mark.parametrize("method", ["drain", "undrain"])
def test_a_drain_that_never_left_goes_to_the_next_server(kind: str, method: str) -> None:
    with serving() as served, Either(kind, f"127.0.0.1:{unused_port()},{served.address}") as client:
        assert client.call(method, "n0").name == "n0"


def test_an_answer_that_cannot_change_is_not_asked_for_again(kind: str) -> None:
    with (
        serving(refusals={"ListJobs": [Refusal(grpc.StatusCode.INTERNAL, "broken")]}) as served,
        Either(kind, served.address) as client,
    ):
        with pytest.raises(errors.ServiceFailed, match=r"ListJobs at .*: INTERNAL: broken"):
            client.call("list")
        assert served.scheduler.names() == ["ListJobs"]


def test_a_follower_names_the_leader_and_the_leader_is_called_at_once_and_from_then_on(kind: str) -> None:
    with serving(jobs={"a": job("a")}) as leader, serving() as follower:
        follower.scheduler.refusals = {"ListJobs": [Refusal(UNAVAILABLE, "not the leader", leader=leader.address)]}
        with Either(kind, follower.address) as client:
            assert len(client.call("list")) == 1
            assert len(client.call("list")) == 1
        assert follower.scheduler.names() == ["ListJobs"]


def test_when_the_named_leader_dies_the_configured_servers_are_tried_again(kind: str) -> None:
    gone = f"127.0.0.1:{unused_port()}"
    with (
        serving(refusals={"ListJobs": [Refusal(UNAVAILABLE, leader=gone)]}) as served,
        Either(kind, served.address) as client,
    ):
        assert client.call("list") == ()
        assert len(served.scheduler.names()) == 2


def test_two_followers_that_name_each_other_do_not_trap_a_client(kind: str) -> None:
    with serving() as one, serving() as two:
        one.scheduler.refusals = {"ListJobs": [Refusal(UNAVAILABLE, leader=two.address)] * 1_000}
        two.scheduler.refusals = {"ListJobs": [Refusal(UNAVAILABLE, leader=one.address)] * 1_000}
        with Either(kind, f"{one.address},{two.address}", retry_s=0.5) as client, pytest.raises(errors.Unreachable):
            client.call("list")
        assert len(one.scheduler.calls) + len(two.scheduler.calls) < 50


@pytest.mark.parametrize("hint", ["nonsense", "host:0", "host:99999", "a b:1", ""])
def test_a_leader_that_is_no_address_is_ignored(kind: str, hint: str) -> None:
    with (
        serving(refusals={"ListJobs": [Refusal(UNAVAILABLE, leader=hint)]}) as served,
        Either(kind, served.address) as client,
    ):
        assert client.call("list") == ()


def test_a_client_outlives_a_server_that_comes_back_on_its_port(kind: str) -> None:
    scheduler = Scheduler(jobs={"a": job("a")})
    with Served(scheduler) as first:
        client = Either(kind, first.address)
        assert client.call("get", "a").spec.id == "a"
    with Served(scheduler, first.port), client:
        assert client.call("get", "a").spec.id == "a"


def test_nobody_there_is_unreachable_within_the_retry_time(kind: str) -> None:
    server, began_s = f"127.0.0.1:{unused_port()}", time.monotonic()
    with Either(kind, server, retry_s=0.3) as client, pytest.raises(errors.Unreachable, match=f"answers at {server}"):
        client.call("version")
    assert time.monotonic() - began_s < 5


def test_a_server_that_accepts_and_says_nothing_is_left_behind(kind: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, serving() as served:
        addresses = f"127.0.0.1:{silent.getsockname()[1]},{served.address}"
        with Either(kind, addresses, timeout_s=20.0) as client:
            assert client.call("list") == ()


def test_a_slow_answer_ends_at_the_deadline(kind: str) -> None:
    with serving(delay_s=30.0) as served, Either(kind, served.address, timeout_s=0.3) as client:
        with pytest.raises(errors.DeadlineExceeded, match="did not answer ListJobs in time"):
            client.call("list")
        assert served.scheduler.names() == ["ListJobs"]


CASES: list[tuple[grpc.StatusCode, type[errors.FmschedError]]] = [
    (grpc.StatusCode.INVALID_ARGUMENT, errors.InvalidArgument),
    (grpc.StatusCode.NOT_FOUND, errors.NotFound),
    (grpc.StatusCode.ALREADY_EXISTS, errors.AlreadyExists),
    (grpc.StatusCode.FAILED_PRECONDITION, errors.CannotBePlaced),
    (grpc.StatusCode.RESOURCE_EXHAUSTED, errors.StoreFull),
    (grpc.StatusCode.PERMISSION_DENIED, errors.Denied),
    (grpc.StatusCode.UNAUTHENTICATED, errors.Denied),
    (grpc.StatusCode.UNIMPLEMENTED, errors.Unsupported),
    (grpc.StatusCode.UNKNOWN, errors.ServiceFailed),
    (grpc.StatusCode.DATA_LOSS, errors.ServiceFailed),
]


@pytest.mark.parametrize(("code", "expected"), CASES, ids=lambda value: getattr(value, "name", ""))
def test_each_code_has_its_error(kind: str, code: grpc.StatusCode, expected: type[errors.FmschedError]) -> None:
    with serving(refusals={"Submit": [Refusal(code, "as scripted")]}) as served, Either(kind, served.address) as client:
        with pytest.raises(expected, match="as scripted") as caught:
            client.call("submit", "text")
        assert type(caught.value) is expected
        assert isinstance(caught.value.__cause__, grpc.RpcError)


def test_faults_of_a_manifest_come_with_line_and_path(kind: str) -> None:
    faults = bad_request(
        ("line 12: spec.x[0].y", "found -1; at least 1"), ("spec", "unknown field"), ("line 3", "not YAML"), ("", "empty")
    )
    refusal = Refusal(grpc.StatusCode.INVALID_ARGUMENT, "4 faults", details=(faults,))
    with (
        serving(refusals={"Submit": [refusal]}) as served,
        Either(kind, served.address) as client,
        pytest.raises(errors.InvalidManifest) as caught,
    ):
        client.call("submit", "text")
    found = [(each.line, each.path, each.message) for each in caught.value.violations]
    assert found == [
        (12, "spec.x[0].y", "found -1; at least 1"),
        (0, "spec", "unknown field"),
        (3, "", "not YAML"),
        (0, "", "empty"),
    ]
    faults_in_words = "line 12: spec.x[0].y: found -1; at least 1; spec: unknown field; line 3: not YAML (and 1 more)"
    assert str(caught.value) == f"the manifest is not valid: {faults_in_words}"


def test_a_fault_without_a_place_has_no_empty_one(kind: str) -> None:
    refusal = Refusal(grpc.StatusCode.INVALID_ARGUMENT, "1 fault", details=(bad_request(("line 1: ", "found 5")),))
    with (
        serving(refusals={"Submit": [refusal]}) as served,
        Either(kind, served.address) as client,
        pytest.raises(errors.InvalidManifest, match=r"^the manifest is not valid: line 1: found 5$"),
    ):
        client.call("submit", "5")


def test_a_scheduler_that_cannot_serve_yet_is_named_with_its_own_words(kind: str) -> None:
    words = "this scheduler has not read the state store yet; try again"
    refusals = {
        name: [Refusal(grpc.StatusCode.UNAVAILABLE, words) for _ in range(50)] for name in ("ListJobs", "WatchJobs")
    }
    with serving(refusals=refusals) as served, Either(kind, served.address, retry_s=0.3) as client:
        expected = f"^the scheduler at {served.address}: {words}$"
        with pytest.raises(errors.NotServing, match=expected):
            client.call("list")
        with pytest.raises(errors.NotServing, match=expected):
            next(client.each("watch"))


def test_a_job_that_can_never_run_comes_with_its_reasons(kind: str) -> None:
    why = job_pb2.Why(constraint="GPU type", group="workers", asked="H200", best="H100")
    refusal = Refusal(grpc.StatusCode.FAILED_PRECONDITION, "never on this cluster", details=(why,))
    with (
        serving(refusals={"Submit": [refusal]}) as served,
        Either(kind, served.address) as client,
        pytest.raises(errors.CannotBePlaced) as caught,
    ):
        client.call("submit", "text")
    assert caught.value.why == (why,)


def test_details_that_cannot_be_read_do_not_hide_the_error(kind: str) -> None:
    class Broken(Refusal):
        def trailing(self) -> tuple[tuple[str, str | bytes], ...]:
            return (("grpc-status-details-bin", b"\xff\xff"),)

    with (
        serving(refusals={"Submit": [Broken(grpc.StatusCode.INVALID_ARGUMENT, "bad")]}) as served,
        Either(kind, served.address) as client,
        pytest.raises(errors.InvalidArgument, match="bad"),
    ):
        client.call("submit", "text")


@pytest.mark.parametrize("answer", ["no json", "[1]"])
def test_a_plan_that_cannot_be_read_is_the_services_fault(kind: str, answer: str) -> None:
    with (
        serving(plan_json=answer) as served,
        Either(kind, served.address) as client,
        pytest.raises(errors.ServiceFailed, match="Plan at"),
    ):
        client.call("plan", "text")


def test_logs_come_in_order_and_a_cut_is_not_papered_over(kind: str) -> None:
    from tests.support.client_cluster import chunks

    def text(found: list[Any]) -> bytes:
        return b"".join(chunk.data for chunk in found if chunk.rank == 0)

    with (
        serving(log_chunks=chunks(), refusals={"Logs": [Refusal(UNAVAILABLE)]}) as served,
        Either(kind, served.address) as client,
    ):
        assert text(list(client.each("logs", "a", ranks=[0], tail=5))) == b"rank 0 starts\n"
        assert (served.scheduler.requests("Logs")[1].tail_lines, list(served.scheduler.requests("Logs")[1].ranks)) == (
            5,
            [0],
        )
        served.scheduler.refusals["Logs/end"] = [Refusal(UNAVAILABLE)]
        found: list[Any] = []
        with pytest.raises(errors.Unreachable):
            found.extend(client.each("logs", "a", follow=True))
        assert len(served.scheduler.requests("Logs")) == 3


def test_a_stream_that_nobody_reads_any_more_is_ended(kind: str) -> None:
    with serving(jobs={"a": job("a")}) as served, Either(kind, served.address) as client:
        changes = client.each("watch")
        assert next(changes).job.spec.id == "a"
        assert served.run(served.scheduler.streams()) == 1
        changes.close()
        eventually("the stream has ended", lambda: served.run(served.scheduler.streams()) == 0)


def test_a_server_that_hangs_is_left_for_another(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its connection is up and it never answers: a paused leader, say."""
    monkeypatch.setattr("fmclient.retry.HANGS_S", 0.2)
    with serving(delay_s=30.0, jobs={"a": job("a")}) as hung, serving(jobs={"a": job("a")}) as well:
        began_s = time.monotonic()
        with Either(kind, f"{hung.address},{well.address}", timeout_s=10) as client:
            assert client.call("get", "a").spec.id == "a"
        assert time.monotonic() - began_s < 5
