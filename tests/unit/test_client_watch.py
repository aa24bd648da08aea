"""Following jobs with both clients: watch resumes, wait ends, and neither repeats itself."""

from __future__ import annotations

import time
from typing import Any

import grpc
import pytest

from fmclient import errors
from fmproto.v1 import job_pb2
from tests.support.both_clients import KINDS, Either
from tests.support.scripted_scheduler import Refusal, Scheduler, Served, eventually, job, serving

pytestmark = pytest.mark.parametrize("kind", KINDS)
RUNNING, SUCCEEDED, FAILED = job_pb2.JOB_STATE_RUNNING, job_pb2.JOB_STATE_SUCCEEDED, job_pb2.JOB_STATE_FAILED
CUTS = [
    Refusal(grpc.StatusCode.UNAVAILABLE, "going down"),
    Refusal(grpc.StatusCode.CANCELLED, "stopped"),
    Refusal(grpc.StatusCode.INTERNAL, "Received RST_STREAM with error code 2"),
]


def seen(change: Any) -> tuple[str, int]:
    return change.job.spec.id, -1 if change.deleted else change.job.status.state


@pytest.mark.parametrize("cut", CUTS, ids=lambda cut: cut.code.name)
def test_a_cut_watch_goes_on_with_what_changed_meanwhile_and_repeats_nothing(kind: str, cut: Refusal) -> None:
    with serving(jobs={"a": job("a"), "b": job("b"), "c": job("c")}) as served, Either(kind, served.address) as client:
        changes = client.each("watch")
        assert {seen(next(changes))[0] for _ in range(3)} == {"a", "b", "c"}
        served.scheduler.jobs["a"] = job("a", RUNNING)
        del served.scheduler.jobs["b"]
        served.run(served.scheduler.cut_streams(cut))
        assert {seen(next(changes)) for _ in range(2)} == {("a", RUNNING), ("b", -1)}
        served.run(served.scheduler.put(job("c", FAILED)))
        assert seen(next(changes)) == ("c", FAILED)


def test_a_watch_outlives_a_restart_of_the_service(kind: str) -> None:
    scheduler = Scheduler(jobs={"a": job("a")})
    with Served(scheduler) as first:
        client = Either(kind, first.address)
        changes = client.each("watch")
        assert seen(next(changes)) == ("a", job_pb2.JOB_STATE_QUEUED)
    scheduler.jobs["a"] = job("a", RUNNING)
    with Served(scheduler, first.port), client:
        assert seen(next(changes)) == ("a", RUNNING)
        changes.close()


def test_a_watch_loses_patience_where_nobody_comes_back(kind: str) -> None:
    with serving(jobs={"a": job("a")}) as served:
        client = Either(kind, served.address, patience_s=0.3)
        changes = client.each("watch")
        next(changes)
    with client, pytest.raises(errors.Unreachable):
        next(changes)


def test_a_watch_that_never_worked_gives_up_as_a_call_does(kind: str) -> None:
    with serving(refusals={"WatchJobs": [Refusal(grpc.StatusCode.UNAVAILABLE)] * 1_000}) as served:
        began_s = time.monotonic()
        with Either(kind, served.address, retry_s=0.3) as client, pytest.raises(errors.Unreachable):
            next(client.each("watch"))
        assert time.monotonic() - began_s < 5


def test_a_watch_follows_the_leader(kind: str) -> None:
    with serving(jobs={"a": job("a")}) as leader, serving() as follower:
        follower.scheduler.refusals = {"WatchJobs": [Refusal(grpc.StatusCode.UNAVAILABLE, leader=leader.address)]}
        with Either(kind, follower.address) as client:
            changes = client.each("watch")
            assert seen(next(changes))[0] == "a"
            changes.close()


def test_a_watch_of_one_job_ends_with_it(kind: str) -> None:
    with serving(jobs={"a": job("a"), "b": job("b")}) as served, Either(kind, served.address) as client:
        found = []
        for change in client.each("watch", "a"):
            found.append(seen(change))
            served.run(served.scheduler.put(job("a", RUNNING if len(found) == 1 else SUCCEEDED)))
        assert found == [("a", job_pb2.JOB_STATE_QUEUED), ("a", RUNNING), ("a", SUCCEEDED)]


def test_a_watch_of_one_job_ends_when_it_went_during_a_cut(kind: str) -> None:
    with serving(jobs={"a": job("a")}) as served, Either(kind, served.address) as client:
        changes = client.each("watch", "a")
        next(changes)
        served.run(served.scheduler.forget("a", tell=False))
        served.run(served.scheduler.cut_streams(CUTS[0]))
        assert [seen(change) for change in changes] == [("a", -1)]


def test_a_watch_of_an_unknown_job_is_an_error(kind: str) -> None:
    with serving() as served, Either(kind, served.address) as client, pytest.raises(errors.NotFound):
        next(client.each("watch", "nope"))


@pytest.mark.parametrize("state", [RUNNING, SUCCEEDED])
def test_wait_for_running_sees_the_start_over_a_cut(kind: str, state: int) -> None:
    with serving(jobs={"a": job("a")}) as served, Either(kind, served.address) as client:
        served.scheduler.refusals = {"WatchJobs": [CUTS[0], CUTS[0]]}
        served.scheduler.jobs["a"] = job("a", state)
        assert client.call("wait", "a", "running", 10.0).status.state == state


def test_wait_for_the_end_returns_whatever_it_is(kind: str) -> None:
    with serving(jobs={"a": job("a", FAILED)}) as served, Either(kind, served.address) as client:
        assert client.call("wait", "a").status.state == FAILED


def test_a_job_that_fails_before_it_runs_is_an_error_to_who_waits_for_it_to_run(kind: str) -> None:
    with (
        serving(jobs={"a": job("a", FAILED, reason="no such image")}) as served,
        Either(kind, served.address) as client,
        pytest.raises(errors.JobEnded, match="job a failed: no such image") as caught,
    ):
        client.call("wait", "a", "running")
    assert caught.value.job.spec.id == "a"


def test_wait_says_what_the_job_was_doing_when_the_time_ran_out(kind: str) -> None:
    with serving(jobs={"a": job("a")}) as served, Either(kind, served.address) as client:
        with pytest.raises(errors.StillWaiting, match=r"job a is waiting after 0\.3 s; waited for running") as caught:
            client.call("wait", "a", "running", 0.3)
        assert caught.value.job is not None
        eventually("the stream has ended", lambda: served.run(served.scheduler.streams()) == 0)


def test_a_watch_that_falls_silent_is_opened_again(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The scripted service gives no signs of life: to the client it hangs with its connection up."""
    monkeypatch.setattr("fmclient.resume.SILENCE_S", 0.3)
    with serving(jobs={"a": job("a")}) as served, Either(kind, served.address) as client:
        changes = client.each("watch")
        assert seen(next(changes)) == ("a", job_pb2.JOB_STATE_QUEUED)
        served.scheduler.jobs["a"] = job("a", RUNNING)  # changed without a word on the stream
        assert seen(next(changes)) == ("a", RUNNING)
        assert served.scheduler.names().count("WatchJobs") >= 2
        changes.close()
