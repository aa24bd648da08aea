"""A real fm-agent on described hardware with a real etcd: one node's part of a gang's life, and the agent's own deaths."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from fmproto import keys
from fmproto.channel import client_options
from fmproto.kv import Delete, Put
from fmproto.v1 import agent_pb2, agent_pb2_grpc, scheduler_pb2
from fmproto.v1 import hardware_pb2 as hw
from fmproto.v1 import job_pb2 as pb
from tests.support.agent import CLUSTER, Agent, agent, lives, until
from tests.support.etcd import EtcdServer, any_etcd, start_etcd


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    with start_etcd(tmp_path_factory.mktemp("etcd"), any_etcd(), fsync=False) as server:
        yield server


@pytest.fixture
async def node(etcd: EtcdServer, tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Agent]:
    """An agent of a node that nobody else has: tests share the store."""
    name = f"n{abs(hash(request.node.name)) % 10**8}"
    (tmp_path / "cluster.yaml").write_text(CLUSTER.replace("name: n1", f"name: {name}"))
    async with agent(etcd.endpoints[0], tmp_path, node=name) as made:
        yield made


COUNTER = "echo $$ >> {0}/starts; while [ ! -e {0}/go ]; do sleep 0.02; done; exit 42"


async def test_one_node_runs_its_part(node: Agent, tmp_path: Path) -> None:
    assignment = node.assignment("job-1", ["/bin/sh", "-c", "env; cat $FMSCHED_PLACEMENT; exit $LOCAL_RANK"], (2, 5))
    await node.run(assignment)
    report = await node.reports("job-1", pb.RUN_PHASE_EXITED)
    assert [rank.exit_code for rank in report.ranks] == [0, 1]
    assert list(report.gpu_indices) == [2, 5]
    printed = (node.state_dir / "runs/job-1.1/rank-1.out").read_text()
    uuids = [rank.gpu_uuid for rank in assignment.ranks]
    env = dict(line.split("=", 1) for line in printed.splitlines() if "=" in line)
    assert env["CUDA_VISIBLE_DEVICES"] == ",".join(uuids)
    assert env["NCCL_IB_HCA"] == "=mlx5_2:1,mlx5_5:1"
    assert (env["RANK"], env["WORLD_SIZE"], env["MASTER_ADDR"]) == ("1", "2", "127.0.0.1")
    assert int(env["MASTER_PORT"]) == report.held_port
    assert f'"uuid": "{uuids[0]}"' in printed
    await node.take_back("job-1")
    await node.withdrawn("job-1")


async def test_withdrawal_stops_and_only_then_withdraws_the_report(node: Agent) -> None:
    report = await node.run(node.assignment("job-1", ["/bin/sh", "-c", "sleep 600 & wait"], (0, 1)))
    pids = [rank.pid for rank in report.ranks]
    assert all(lives(pid) for pid in pids)
    await node.take_back("job-1")
    await node.withdrawn("job-1")
    assert not any(lives(pid) for pid in pids)


async def test_gpus_of_a_run_that_still_stops_are_waited_for(node: Agent) -> None:
    stubborn = ["/bin/sh", "-c", "trap '' TERM; while :; do sleep 0.05; done"]
    first = node.assignment("job-1", stubborn, (0, 1))
    first.grace_period_s = 2.0
    await node.run(first)
    await node.take_back("job-1")
    await node.give(node.assignment("job-2", ["/bin/sleep", "600"], (1,)))

    async def waits() -> pb.RunReport | None:
        report = await node.report("job-2")
        return report if report is not None and "still held by job job-1" in report.reason else None

    assert (await until(waits, "job-2 says what it waits for")).phase == pb.RUN_PHASE_PREPARING
    assert await node.report("job-1") is not None
    await node.reports("job-2", pb.RUN_PHASE_PREPARED)
    assert await node.report("job-1") is None


async def test_a_newer_attempt_replaces_the_older_one(node: Agent, tmp_path: Path) -> None:
    report = await node.run(node.assignment("job-1", ["/bin/sleep", "600"], (0,)))
    await node.give(node.assignment("job-1", ["/bin/sleep", "600"], (3,), attempt=2))
    newer = await node.reports("job-1", pb.RUN_PHASE_PREPARED)
    assert newer.attempt == 2
    assert list(newer.gpu_indices) == [3]
    assert not lives(report.ranks[0].pid)
    await node.give(node.assignment("job-1", ["/bin/sleep", "600"], (0,), attempt=1))

    async def refused() -> bool:
        return "its attempt 1 is older than 2" in node.log()

    await until(refused, "the older order is refused")
    assert (await node.reports("job-1", pb.RUN_PHASE_PREPARED)).attempt == 2


async def test_a_sick_gpu_and_a_command_that_is_not_there_are_told_apart(node: Agent) -> None:
    await node.give(node.assignment("job-1", ["no-such-command"], (0,)))
    report = await node.reports("job-1", pb.RUN_PHASE_REFUSED)
    assert not report.device_fault
    broken = node.hardware.read_text().replace("leaf: leaf1}", "leaf: leaf1, faults: {gpu4: GPU is lost}}")
    node.hardware.write_text(broken)

    async def failed() -> bool:
        entry = await node.kv.get(keys.health(node.node))
        health = hw.Health.FromString(entry.value) if entry is not None else hw.Health()
        return sum(gpu.state == hw.HEALTH_STATE_FAILED for gpu in health.gpus) == 1

    await until(failed, "the fault is published")
    await node.give(node.assignment("job-2", ["/bin/sleep", "600"], (3, 4)))
    report = await node.reports("job-2", pb.RUN_PHASE_REFUSED)
    assert report.device_fault
    assert "GPU is lost" in report.reason
    await node.give(node.assignment("job-3", ["/bin/sleep", "600"], (3, 5)))
    await node.reports("job-3", pb.RUN_PHASE_PREPARED)


@pytest.mark.parametrize("how", ["kill", "end"])
async def test_ranks_outlive_the_agent(node: Agent, tmp_path: Path, how: str) -> None:
    """Story agent-01: killed or restarted, the agent leaves its ranks running, adopts them, and still learns their exit codes. That the
    unit does the same is tests/unit/test_deploy.py's."""
    report = await node.run(node.assignment("job-1", ["/bin/sh", "-c", COUNTER.format(tmp_path)], (0, 1)))
    getattr(node, how)()
    assert all(lives(rank.pid) for rank in report.ranks)
    node.start()
    await node.ready()
    again = await node.report("job-1")
    assert again is not None
    assert [rank.pid for rank in again.ranks] == [rank.pid for rank in report.ranks]
    node.kill()
    (tmp_path / "go").touch()

    async def ended() -> bool:
        return not any(lives(rank.pid) for rank in report.ranks)

    await until(ended, "the ranks end while the agent is down")
    node.start()
    report = await node.reports("job-1", pb.RUN_PHASE_EXITED)
    assert [rank.exit_code for rank in report.ranks] == [42, 42]
    assert len((tmp_path / "starts").read_text().split()) == 2


async def test_an_order_to_stop_given_while_the_agent_is_down(node: Agent) -> None:
    report = await node.run(node.assignment("job-1", ["/bin/sleep", "600"], (0,)))
    node.kill()
    await node.take_back("job-1")
    node.start()
    await node.withdrawn("job-1")
    assert not lives(report.ranks[0].pid)


async def test_a_lost_state_directory_is_told_as_it_is(node: Agent, tmp_path: Path) -> None:
    report = await node.run(node.assignment("job-1", ["/bin/sleep", "600"], (0,)))
    node.kill()
    supervisor = int(Path(f"/proc/{report.ranks[0].pid}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(supervisor, signal.SIGKILL)
    node.state_dir.rename(tmp_path / "lost")
    node.start()
    report = await node.reports("job-1", pb.RUN_PHASE_EXITED)
    assert report.device_fault
    assert [rank.exit_code for rank in report.ranks] == [137]
    await node.take_back("job-1")
    await node.withdrawn("job-1")


async def test_a_lost_lease_and_lost_keys_are_written_again(node: Agent, etcd: EtcdServer) -> None:
    await node.run(node.assignment("job-1", ["/bin/sleep", "600"], (0,)))
    entry = await node.kv.get(keys.alive(node.node))
    assert entry is not None
    own = [keys.inventory(node.node), keys.health(node.node), keys.run(node.node, "job-1")]
    await node.kv.write([], [Delete(key) for key in own])
    await node.kv.revoke(entry.lease)

    async def back() -> bool:
        found = [await node.kv.get(key) for key in [*own, keys.alive(node.node)]]
        return all(found)

    await until(back, "the node has registered again")
    assert (await node.reports("job-1", pb.RUN_PHASE_RUNNING)).ranks[0].pid


async def test_reports_of_nobody_are_withdrawn(node: Agent) -> None:
    node.kill()
    stale = pb.RunReport(job="old", attempt=3, node=node.node, phase=pb.RUN_PHASE_RUNNING, gpu_indices=[0])
    await node.kv.write([], [Put(keys.run(node.node, "old"), stale.SerializeToString())])
    node.start()
    await node.withdrawn("old")


async def test_an_unreadable_order_changes_nothing(node: Agent) -> None:
    report = await node.run(node.assignment("job-1", ["/bin/sleep", "600"], (0,)))
    await node.kv.write([], [Put(keys.assignment(node.node, "job-1"), b"\xff not a message")])

    async def told() -> bool:
        return "an order cannot be read" in node.log()

    await until(told, "the agent says so")
    assert lives(report.ranks[0].pid)
    assert (await node.reports("job-1", pb.RUN_PHASE_RUNNING)).ranks[0].pid == report.ranks[0].pid


async def test_an_unreachable_store_leaves_ranks_until_the_fence(tmp_path: Path) -> None:
    with start_etcd(tmp_path / "etcd", any_etcd(), fsync=False) as server:
        async with agent(server.endpoints[0], tmp_path / "agent", fence_after_s=3.0) as made:
            report = await made.run(made.assignment("job-1", ["/bin/sleep", "600"], (0, 1)))
            server.members[0].freeze()
            made.kill()

            async def fenced() -> bool:
                return not any(lives(rank.pid) for rank in report.ranks)

            # The agent is dead, too: the supervisor alone does it.
            await until(fenced, "the ranks are fenced")
            server.members[0].thaw()
            made.start()
            report = await made.reports("job-1", pb.RUN_PHASE_EXITED)
            assert "fenced" in report.reason
            assert report.device_fault


async def test_a_restarted_store_and_a_full_store_end_no_rank(tmp_path: Path) -> None:
    with start_etcd(tmp_path / "etcd", any_etcd(), quota_bytes=16 * 1024 * 1024) as server:
        async with agent(server.endpoints[0], tmp_path / "agent") as made:
            first = await made.run(made.assignment("job-1", ["/bin/sleep", "600"], (0,)))
            second = await made.run(made.assignment("job-2", ["/bin/sleep", "600"], (1,)))
            server.members[0].kill()
            server.members[0].start()
            server.wait_ready()
            await until(lambda: fill(made), "the store is full", 30.0)
            os.kill(first.ranks[0].pid, signal.SIGKILL)
            made.kill()
            made.start()  # it cannot get a lease

            async def waits() -> bool:
                return "the store is full" in made.log()

            await until(waits, "the agent waits for space")
            # An order to stop works: it is a delete.
            await made.take_back("job-2")

            async def stopped() -> bool:
                return not lives(second.ranks[0].pid)

            await until(stopped, "the withdrawn job stops")
            await made.withdrawn("job-2")
            await made.kv.write([], [Delete(f"/filler/{number}") for number in range(40)])
            status = await made.kv.status()
            assert status.full
            page = await made.kv.read("/fmsched/")
            await made.kv.compact(page.revision)
            server.ctl("defrag")
            server.ctl("alarm", "disarm")
            await made.ready()
            report = await made.reports("job-1", pb.RUN_PHASE_EXITED)
            assert report.ranks[0].exit_code == 137


async def fill(made: Agent) -> bool:
    from fmproto.kv import StoreFull

    try:
        for number in range(40):
            await made.kv.write([], [Put(f"/filler/{number}", os.urandom(1_000_000))])
    except StoreFull:
        return True
    return False


async def logs(node: Agent, **wanted: Any) -> list[scheduler_pb2.LogChunk]:
    async with grpc.aio.insecure_channel(node.listen, options=client_options()) as channel:
        stub = agent_pb2_grpc.AgentStub(channel)
        return [chunk async for chunk in stub.Logs(agent_pb2.AgentLogsRequest(**wanted), timeout=20)]


async def test_logs_of_live_and_ended_runs(node: Agent, tmp_path: Path) -> None:
    script = f"printf 'one\\ntwo\\nthree'; while [ ! -e {tmp_path}/go ]; do sleep 0.02; done; printf ' end'; echo error >&2"
    await node.run(node.assignment("job-1", ["/bin/sh", "-c", script], (0, 1)))
    (tmp_path / "go").touch()
    chunks = await logs(node, job="job-1", follow=True, ranks=[1])
    assert b"".join(chunk.data for chunk in chunks if not chunk.stderr) == b"one\ntwo\nthree end"
    assert b"".join(chunk.data for chunk in chunks if chunk.stderr) == b"error\n"
    assert {chunk.rank for chunk in chunks} == {1}
    await node.take_back("job-1")
    await node.withdrawn("job-1")
    tail = await logs(node, job="job-1", attempt=1, tail_lines=2)
    assert b"".join(chunk.data for chunk in tail if not chunk.stderr and chunk.rank == 0) == b"two\nthree end"
    unknown: list[tuple[dict[str, Any], str]] = [
        ({"job": "none"}, "has no run of job none"),
        ({"job": "job-1", "ranks": [7]}, "has no rank 7"),
    ]
    for wanted, said in unknown:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await logs(node, **wanted)
        assert caught.value.code() == grpc.StatusCode.NOT_FOUND
        assert said in (caught.value.details() or "")


async def test_output_that_is_no_file_is_refused_and_hangs_nothing(node: Agent) -> None:
    script = 'cd "$(dirname $FMSCHED_PLACEMENT)"; rm -f rank-0.out; mkfifo rank-0.out; exec sleep 600'
    await node.run(node.assignment("job-1", ["/bin/sh", "-c", script], (0,)))
    path = node.state_dir / "runs/job-1.1/rank-0.out"

    async def replaced() -> bool:
        return path.is_fifo()

    await until(replaced, "the output is a FIFO")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await logs(node, job="job-1")
    assert caught.value.code() == grpc.StatusCode.FAILED_PRECONDITION
    assert "not a regular file" in (caught.value.details() or "")


async def test_following_loses_nothing_over_the_end(node: Agent) -> None:
    writer = "import sys\nfor n in range(200): sys.stdout.write('%06d' % n * 500 + chr(13))\nsys.stdout.write('last, no newline')"
    await node.run(node.assignment("job-1", [sys.executable, "-S", "-c", writer], range(4)))
    chunks = await logs(node, job="job-1", follow=True)
    expected = b"".join(b"%06d" % number * 500 + b"\r" for number in range(200)) + b"last, no newline"
    for rank in range(4):
        assert b"".join(chunk.data for chunk in chunks if chunk.rank == rank and not chunk.stderr) == expected


async def test_ping_and_health(node: Agent) -> None:
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    async with grpc.aio.insecure_channel(node.listen, options=client_options()) as channel:
        pong = await agent_pb2_grpc.AgentStub(channel).Ping(agent_pb2.PingRequest(), timeout=5)
        assert pong.node == node.node
        assert pong.session == await node.session()
        health = health_pb2_grpc.HealthStub(channel)

        async def serving() -> bool:
            answer = await health.Check(health_pb2.HealthCheckRequest(service="fmsched.v1.Agent"), timeout=5)
            return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)

        await until(serving, "the agent says that it serves")


async def test_two_hosts_of_one_name_do_not_both_carry_out_its_orders(node: Agent, tmp_path: Path) -> None:
    report = await node.run(node.assignment("job-1", ["/bin/sleep", "600"], (0,)))
    session = await node.session()
    other = Agent(node.kv, node.endpoint, tmp_path / "other", node=node.node)
    other.root.mkdir()
    other.hardware.write_text(node.hardware.read_text())
    other.start()
    try:

        async def stands_back() -> bool:
            return "another agent has this node's name" in other.log()

        await until(stands_back, "the second agent sees the first")
        await node.run(node.assignment("job-2", ["/bin/sleep", "600"], (1,)))
        assert await node.session() == session
        assert not (other.state_dir / "runs/job-2.1").exists()
        node.kill()
        node.start()  # of the same identity: at once, although the lease of its last session lives
        await node.ready()
        assert (await node.session()).split("/")[0] == session.split("/")[0]
        again = await node.reports("job-1", pb.RUN_PHASE_RUNNING)
        assert again.ranks[0].pid == report.ranks[0].pid
        assert other.log().count("another agent has this node's name") <= 2  # once for each session of the first
        node.kill()
        await other.ready()  # the lease has ended
        assert (await node.session()).split("/")[0] != session.split("/")[0]
        lost = await node.reports("job-1", pb.RUN_PHASE_EXITED)
        assert lost.device_fault
    finally:
        other.kill()


async def test_volumes_are_refused_as_an_image_is(node: Agent) -> None:
    wanted = node.assignment("job-1", ["/bin/true"], (0,))
    wanted.template.volumes.append("/data:/data")
    await node.give(wanted)
    report = await node.reports("job-1", pb.RUN_PHASE_REFUSED)
    assert not report.device_fault
    assert report.reason.startswith("template.volumes is '/data:/data'")


async def test_a_second_agent_on_one_state_directory_is_refused(node: Agent) -> None:
    first, node.process = node.process, None
    node.start()
    assert node.process is not None
    assert node.process.wait(timeout=10) == 2
    assert "another agent runs with this state directory" in node.log()
    node.process = first
