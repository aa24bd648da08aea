"""Allocations of both clients: taken, held, lost, and given back however the block is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import grpc
import pytest

from fmclient import Client, errors
from fmproto.v1 import job_pb2
from fmproto.v1.scheduler_pb2 import Job
from tests.support.both_clients import KINDS, Either
from tests.support.scripted_scheduler import Refusal, Scheduler, Served, eventually, job, placed, serving

CANCELLED = job_pb2.JOB_STATE_CANCELLED
both = pytest.mark.parametrize("kind", KINDS)


def given_back(served: Served) -> bool:
    state = served.scheduler.jobs["gang"].status.state
    return bool(state == CANCELLED and served.run(served.scheduler.streams()) == 0)


def started(_: Any) -> Job:
    return placed("gang", 4)


@both
def test_a_block_has_the_placement_and_gives_it_back(kind: str) -> None:
    with serving(on_submit=started) as served, Either(kind, served.address) as client:
        with client.block("text", hold_s=7.0, submitter="me") as allocation:
            assert served.scheduler.requests("Submit")[0].hold_s == 7.0
            assert allocation.alive
            placement = allocation.placement
            assert [(node.name, node.node_rank, len(node.ranks)) for node in placement.nodes] == [
                ("n0", 0, 2),
                ("n1", 1, 2),
            ]
            assert (placement.master_addr, placement.master_port, placement.world_size) == ("127.0.0.1", 4000, 4)
            env = placement.env(3)
            names = (
                "RANK",
                "WORLD_SIZE",
                "LOCAL_RANK",
                "LOCAL_WORLD_SIZE",
                "NODE_RANK",
                "CUDA_VISIBLE_DEVICES",
                "NCCL_IB_HCA",
            )
            assert [env[name] for name in names] == ["3", "4", "1", "2", "1", "GPU-2,GPU-3", "=mlx5_0,mlx5_1"]
            with pytest.raises(KeyError, match="ranks 0 to 3"):
                placement.env(4)
            client.eventually("it is held", lambda: "Hold" in served.scheduler.names())
        eventually("it is given back", lambda: given_back(served))


@both
def test_it_waits_for_its_start_and_holds_meanwhile(kind: str) -> None:
    with serving(on_submit=lambda _: job("gang")) as served, Either(kind, served.address) as client:

        def start() -> None:
            eventually("it is held while it waits", lambda: "Hold" in served.scheduler.names())
            served.run(served.scheduler.put(placed("gang")))

        starter = threading.Thread(target=start)
        starter.start()
        with client.block("text", timeout_s=10.0) as allocation:
            assert allocation.placement.world_size == 2
        starter.join()
        eventually("it is given back", lambda: given_back(served))


@both
def test_an_error_inside_gives_it_back_and_is_not_swallowed(kind: str) -> None:
    with serving(on_submit=started) as served, Either(kind, served.address) as client:
        with pytest.raises(ZeroDivisionError), client.block("text"):
            raise ZeroDivisionError
        eventually("it is given back", lambda: given_back(served))


@both
def test_a_wait_that_runs_out_gives_it_back(kind: str) -> None:
    with serving(on_submit=lambda _: job("gang")) as served, Either(kind, served.address) as client:
        with pytest.raises(errors.StillWaiting), client.block("text", timeout_s=0.3):
            pytest.fail("it never ran")
        eventually("it is given back", lambda: given_back(served))


@both
def test_it_tells_when_the_gpus_are_taken_away(kind: str) -> None:
    with serving(on_submit=started) as served, Either(kind, served.address) as client, client.block("text") as allocation:
        client.eventually("it is held", lambda: served.run(served.scheduler.streams()) == 1)
        served.run(served.scheduler.put(placed("gang", 4, attempt=2)))
        client.eventually("another attempt is another placement", lambda: not allocation.alive)
        served.run(served.scheduler.put(job("gang", CANCELLED, reason="by an operator")))
        client.eventually("the reason is there", lambda: allocation.job.status.reason == "by an operator")


@both
def test_the_hold_is_taken_up_again_after_a_cut(kind: str) -> None:
    with serving(on_submit=started) as served, Either(kind, served.address) as client, client.block("text") as allocation:
        client.eventually("it is held", lambda: served.run(served.scheduler.streams()) == 1)
        served.run(served.scheduler.cut_streams(Refusal(grpc.StatusCode.UNAVAILABLE)))
        client.eventually("it is held again", lambda: served.scheduler.names().count("Hold") == 2)
        assert allocation.alive


@both
def test_a_holder_that_is_cut_off_stops_counting_on_the_gpus_before_they_are_freed(kind: str) -> None:
    scheduler = Scheduler(on_submit=started)
    with Served(scheduler) as first:
        client = Either(kind, first.address)
        manager = client.block("text", hold_s=4.0)
        allocation = manager.__enter__()
        client.eventually("it is held", lambda: first.run(scheduler.streams()) == 1)
    began_s = time.monotonic()
    client.eventually("it is no longer counted on", lambda: not allocation.alive)
    assert 1.5 < time.monotonic() - began_s < 4.0
    assert "no scheduler was reached for 2 s; it frees the GPUs after 4 s" in allocation.loss
    with Served(scheduler, first.port), client:
        client.eventually("the scheduler is back and had not freed them", lambda: allocation.alive)
        manager.__exit__(None, None, None)


@both
def test_a_manifest_with_faults_leaves_nothing_behind(kind: str) -> None:
    refusal = Refusal(grpc.StatusCode.INVALID_ARGUMENT, "bad")
    with serving(refusals={"Submit": [refusal]}) as served, Either(kind, served.address) as client:
        with pytest.raises(errors.InvalidArgument), client.block("text"):
            pytest.fail("it was refused")
        assert served.scheduler.names() == ["Submit"]


@both
@pytest.mark.parametrize("hold_s", [0.0, -1.0])
def test_an_allocation_that_nothing_would_free_is_refused(kind: str, hold_s: float) -> None:
    with Either(kind, "127.0.0.1:1") as client, pytest.raises(ValueError, match="must be above 0"):
        client.block("text", hold_s=hold_s)


def test_outside_its_block_it_is_empty() -> None:
    with Client("127.0.0.1:1") as client:
        allocation = client.allocate("text")
        assert not allocation.alive
        with pytest.raises(RuntimeError, match="outside its `with` block"):
            _ = allocation.placement


FORKING = """
import os, sys
from fmclient import Client
client = Client(sys.argv[1])
with client.allocate("text") as allocation:
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        print("alive" if client.get("gang").status.state == 5 else "lost", flush=True)
"""


def test_a_forked_child_that_leaves_the_block_does_not_give_back_what_its_parent_holds() -> None:
    with serving(on_submit=started) as served:
        done = subprocess.run([sys.executable, "-c", FORKING, served.address], capture_output=True, text=True, timeout=30)
        assert done.stdout == "alive\n", done.stderr
        eventually("the parent gives it back", lambda: given_back(served))


HOLDING = """
import sys, time
from fmclient import Client
with Client(sys.argv[1]) as client, client.allocate("text") as allocation:
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_holder_that_dies_stops_holding(number: signal.Signals) -> None:
    with serving(on_submit=started) as served:
        holder = subprocess.Popen(
            [sys.executable, "-c", HOLDING, served.address], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "held\n"
            eventually("it is held", lambda: served.run(served.scheduler.streams()) == 1)
            os.kill(holder.pid, number)
            holder.wait(10)
            eventually("nobody holds it", lambda: served.run(served.scheduler.streams()) == 0)
            # What is left to the scheduler is the holder that could do nothing any more.
            assert ("Cancel" in served.scheduler.names()) == (number is signal.SIGINT)
        finally:
            holder.kill()
            holder.wait()
            if holder.stdout is not None:
                holder.stdout.close()
