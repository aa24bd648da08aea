"""The runner for bare processes with real supervisors and real ranks: ends, stops, ports, fences, crashes. No store."""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fmagent.launch.environment import NodeFacts
from fmagent.orders import Order, Stage
from fmagent.runner import files, procfs
from fmagent.runner.port import CannotPrepare
from fmagent.runner.process import ProcessLimits
from tests.support.agent import Bench, bench, gang, kill_all, lives, order, processes_naming, until

# A worker that leaves its rank's process group, session and parent, and tells its pid.
ESCAPE = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        with open(sys.argv[1] + ".new", "w") as file:
            file.write(str(os.getpid()))
        os.rename(sys.argv[1] + ".new", sys.argv[1])
        time.sleep(600)
    os._exit(0)
os.wait()
time.sleep(float(sys.argv[2]))
"""


async def pid_in(path: Path) -> int:
    async def probe() -> int | None:
        return int(path.read_text()) if path.exists() else None

    return await until(probe, f"{path} is written")


async def test_exit_codes_and_last_lines_are_kept(tmp_path: Path) -> None:
    async with bench(tmp_path) as at:
        script = "echo to stdout; case $RANK in 1) echo why >&2; exit 3;; 2) kill -9 $$;; esac"
        wanted = order("j", ["/bin/sh", "-c", script], gpus=(0, 1, 2))
        await at.start(wanted)
        run = await at.gone("j")
        assert run.stage is Stage.EXITED
        assert [rank.exit_code for rank in run.ranks] == [0, 3, 137]
        assert run.ranks[1].last_lines == "why"
        assert "SIGKILL" in run.ranks[2].reason
        assert run.first_failed_ms > 0
        assert at.output(wanted, 0) == b"to stdout\n"


async def test_one_failed_rank_is_seen_while_others_run(tmp_path: Path) -> None:
    async with bench(tmp_path) as at:
        wanted = order("j", ["/bin/sh", "-c", "[ $RANK = 1 ] && exit 9; sleep 600"], gpus=(0, 1))
        await at.start(wanted)
        run = await at.state("j", lambda run: any(rank.exit_code for rank in run.ranks))
        assert run.stage is Stage.RUNNING
        assert [rank.exit_code for rank in run.ranks] == [None, 9]
        await at.stop(wanted, 0.0)


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["no-such-command-here"], "no such command"),
        (["/etc/passwd"], "not executable"),
        (["./nothing"], "no such command"),
    ],
)
async def test_a_command_that_cannot_be_is_refused_while_preparing(tmp_path: Path, argv: list[str], said: str) -> None:
    async with bench(tmp_path) as at:
        run = await at.prepare(order("j", argv))
        assert run.stage is Stage.REFUSED
        assert said in run.reason
        assert not run.device_fault
        assert (await at.gone("j")).stage is Stage.REFUSED


async def test_a_start_that_fails_leaves_no_rank(tmp_path: Path) -> None:
    async with bench(tmp_path) as at:
        script = tmp_path / "script"
        script.write_text("#!/no/such/interpreter\n")
        script.chmod(0o755)
        run = await at.start(order("j", [str(script)], gpus=(0, 1)))
        assert run.stage is Stage.REFUSED
        assert "cannot execute" in run.reason
        assert not run.device_fault
        assert (await at.gone("j")).gone


def make_hang(state_dir: Path, wanted: Order, rank: int) -> None:
    """The rank's output becomes a FIFO that nobody reads: opening it hangs, as a file system does that is gone."""
    path = state_dir / f"runs/{wanted.job}.{wanted.attempt}/rank-{rank}.out"
    path.unlink(missing_ok=True)
    os.mkfifo(path)


async def start_hanging(at: Bench, state_dir: Path) -> Order:
    """Rank 1 hangs between fork and exec; rank 0 would leave a file."""
    wanted = order("j", ["/bin/sh", "-c", f"touch {state_dir}/ran; sleep 600"], gpus=(0, 1), grace_period_s=600.0)
    prepared = await at.prepare(wanted)
    make_hang(state_dir, wanted, 1)
    await at.runner.start("j", 1, "127.0.0.1", prepared.held_port)

    async def forked() -> bool:
        return len(procfs.living_descendants(at.supervisor(wanted))) == 2

    await until(forked, "the ranks are forked")
    return wanted


async def test_a_rank_that_hangs_before_it_executes_keeps_all_from_executing(tmp_path: Path) -> None:
    async with bench(tmp_path, ProcessLimits(start_limit_s=1.0)) as at:
        await start_hanging(at, tmp_path)
        run = await at.gone("j")
        assert run.stage is Stage.REFUSED
        assert run.device_fault
        assert "making rank 1 ready" in run.reason
        assert "longer than 1 s" in run.reason
        assert [rank.pid for rank in run.ranks] == [0, 0]
        assert not (tmp_path / "ran").exists()


async def test_a_stop_is_obeyed_while_a_rank_hangs_before_it_executes(tmp_path: Path) -> None:
    async with bench(tmp_path) as at:
        wanted = await start_hanging(at, tmp_path)
        began_s = procfs.boot_time_s()
        run = await at.stop(wanted, 600.0)
        assert procfs.boot_time_s() - began_s < 5.0
        assert run.stage is Stage.EXITED
        assert run.reason.startswith("the test stops it")
        assert not (tmp_path / "ran").exists()


async def test_the_fence_runs_while_a_rank_hangs_before_it_executes(tmp_path: Path) -> None:
    async with bench(tmp_path, ProcessLimits(fence_after_s=1.5, fence_grace_s=0.3)) as at:
        await start_hanging(at, tmp_path)
        at.contacts = False
        run = await at.gone("j")
        assert "fenced" in run.reason
        assert run.device_fault
        assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("end", ["limit", "stop", "fence"])
async def test_a_hang_while_preparing_is_ended(tmp_path: Path, end: str) -> None:
    limits = ProcessLimits(
        start_limit_s=1.0 if end == "limit" else 600.0, fence_after_s=1.5 if end == "fence" else 600.0, fence_grace_s=0.3
    )
    async with bench(tmp_path, limits) as at:
        wanted = order("j", ["/bin/sleep", "600"], gpus=(0, 1))
        await at.contact()
        await at.runner.prepare(wanted, NodeFacts("n1"), gang(wanted))
        make_hang(tmp_path, wanted, 0)  # long before the supervisor has started
        at.contacts = end != "fence"
        if end == "stop":
            await at.state("j", lambda run: (tmp_path / "runs/j.1" / files.STATE_FILE).exists())
            run = await at.stop(wanted, 600.0)
        else:
            run = await at.gone("j")
        said = {"limit": "longer than 1 s", "stop": "the test stops it", "fence": "fenced"}[end]
        assert said in run.reason
        assert run.device_fault == (end != "stop")
        assert run.stage is (Stage.REFUSED if end == "limit" else Stage.EXITED)


async def test_a_rank_that_dies_before_it_executes_keeps_all_from_executing(tmp_path: Path) -> None:
    async with bench(tmp_path) as at:
        wanted = await start_hanging(at, tmp_path)
        for proc in procfs.living_descendants(at.supervisor(wanted)):
            os.kill(proc.pid, signal.SIGKILL)
        run = await at.gone("j")
        assert run.stage is Stage.REFUSED
        assert run.device_fault
        assert "was killed before the ranks executed" in run.reason
        assert not (tmp_path / "ran").exists()


async def test_a_hanging_child_does_not_pass_for_a_living_supervisor(tmp_path: Path) -> None:
    """The kernel kills it with the supervisor; one in state D would not die then, and must not hold the lock."""
    async with bench(tmp_path) as at:
        wanted = await start_hanging(at, tmp_path)
        lock = (tmp_path / "runs/j.1/lock").stat().st_ino
        for proc in procfs.living_descendants(at.supervisor(wanted)):

            async def released(pid: int = proc.pid) -> bool:
                return all(descriptor.stat().st_ino != lock for descriptor in Path(f"/proc/{pid}/fd").iterdir())

            await until(released, "the child lets go of the lock")


async def test_stop_reaches_every_process_behind_a_shell(tmp_path: Path) -> None:
    trainer = (
        "import signal, sys, time\n"
        "def stop(*_):\n    print('saved', flush=True)\n    sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, stop)\nprint('up', flush=True)\ntime.sleep(600)\n"
    )
    async with bench(tmp_path) as at:
        wanted = order("j", ["/bin/sh", "-c", f'"{sys.executable}" -c "$TRAINER"; echo done'], env=(("TRAINER", trainer),))
        await at.start(wanted)

        async def up() -> bool:
            return b"up" in at.output(wanted)

        await until(up, "the trainer is up")
        run = await at.stop(wanted, 10.0)
        assert b"saved" in at.output(wanted)
        assert "ended by itself within its grace" in run.reason


async def test_what_ignores_sigterm_is_killed_after_the_grace(tmp_path: Path) -> None:
    async with bench(tmp_path) as at:
        wanted = order("j", ["/bin/sh", "-c", "trap '' TERM; echo up; while :; do sleep 0.05; done"], grace_period_s=0.5)
        await at.start(wanted)

        async def up() -> bool:
            return b"up" in at.output(wanted)

        await until(up, "the rank ignores SIGTERM")
        began_s = procfs.boot_time_s()
        run = await at.stop(wanted, 0.5)
        assert 0.4 < procfs.boot_time_s() - began_s < 5.0
        assert run.ranks[0].exit_code == 137
        assert "killed after 0.5 s of grace" in run.reason


async def test_escaped_workers_end_with_a_stop(tmp_path: Path) -> None:
    async with bench(tmp_path) as at:
        wanted = order("j", [sys.executable, "-c", ESCAPE, str(tmp_path / "pid"), "600"])
        await at.start(wanted)
        worker = await pid_in(tmp_path / "pid")
        assert lives(worker)
        await at.stop(wanted, 2.0)
        assert not lives(worker)


async def test_escaped_workers_end_when_their_ranks_have_ended(tmp_path: Path) -> None:
    async with bench(tmp_path) as at:
        wanted = order("j", [sys.executable, "-c", ESCAPE, str(tmp_path / "pid"), "0"])
        await at.start(wanted)
        worker = await pid_in(tmp_path / "pid")
        run = await at.gone("j")
        assert run.stage is Stage.EXITED
        assert run.ranks[0].exit_code == 0
        assert not lives(worker)


async def test_the_port_is_held_until_rank_0_has_it(tmp_path: Path) -> None:
    binder = (
        "import os, socket\ns = socket.socket()\n"
        "s.bind(('127.0.0.1', int(os.environ['MASTER_PORT'])))\ns.listen()\nprint('mine')\n"
    )
    async with bench(tmp_path) as at:
        wanted = order("j", [sys.executable, "-c", binder])
        run = await at.prepare(wanted)
        assert 20000 <= run.held_port <= 29999
        for address in ("127.0.0.1", "0.0.0.0"):
            with socket.socket() as other, pytest.raises(OSError, match="Address already in use"):
                other.bind((address, run.held_port))
        await at.runner.start("j", 1, "127.0.0.1", run.held_port)
        ended = await at.gone("j")
        assert ended.ranks[0].exit_code == 0, at.output(wanted, name="err")
        assert at.output(wanted) == b"mine\n"


async def test_no_two_runs_get_one_port_and_strangers_are_avoided(tmp_path: Path) -> None:
    first = 19_000 + os.getpid() % 500 * 2
    limits = ProcessLimits(port_first=first, port_last=first + 3)
    async with bench(tmp_path, limits) as at:
        with socket.socket() as stranger:
            # On one address only: a look at the loopback address would not see it.
            stranger.bind(("127.0.0.2", first + 1))
            stranger.listen()
            runs = [await at.prepare(order(f"j{number}", ["/bin/sleep", "600"], gpus=(number,))) for number in range(4)]
        assert {run.held_port for run in runs[:3]} == {first, first + 2, first + 3}
        assert runs[3].stage is Stage.REFUSED
        assert runs[3].device_fault
        # Started: the port is free to bind, and still nobody else's.
        await at.runner.start("j0", 1, "127.0.0.1", runs[0].held_port)
        await at.state("j0", lambda run: run.stage is Stage.RUNNING)
        again = await at.prepare(order("j4", ["/bin/sleep", "600"], gpus=(4,)))
        assert again.held_port == first + 1


async def test_a_stop_before_the_start_wins(tmp_path: Path) -> None:
    async with bench(tmp_path) as at:
        wanted = order("j", ["/bin/sh", "-c", f"echo ran > {tmp_path}/ran"])
        prepared = await at.prepare(wanted)
        os.kill(at.supervisor(wanted), signal.SIGSTOP)
        await at.runner.start("j", 1, "127.0.0.1", prepared.held_port)
        await at.runner.stop("j", 1, 1.0, "cancelled", device_fault=False)
        os.kill(at.supervisor(wanted), signal.SIGCONT)
        run = await at.gone("j")
        assert run.stage is Stage.EXITED
        assert not (tmp_path / "ran").exists()


async def test_an_allocation_has_no_processes_and_is_released(tmp_path: Path) -> None:
    async with bench(tmp_path) as at:
        wanted = order("j", None, gpus=(0, 1))
        run = await at.start(wanted)
        assert run.stage is Stage.RUNNING
        assert [rank.pid for rank in run.ranks] == [0, 0]
        with socket.socket() as launcher:
            launcher.bind(("0.0.0.0", run.held_port))
        await at.stop(wanted, 1.0)


async def test_the_next_runner_adopts_and_loses_no_exit_code(tmp_path: Path) -> None:
    wanted = order(
        "j", ["/bin/sh", "-c", f"echo $$ >> {tmp_path}/starts; while [ ! -e {tmp_path}/go ]; do sleep 0.02; done; exit 42"]
    )
    async with bench(tmp_path) as at:
        started = await at.start(wanted)
        await at.runner.close()
        (tmp_path / "go").touch()

        async def ended() -> bool:
            return not lives(started.ranks[0].pid)

        await until(ended, "the rank ends while nobody looks")
        async with bench(tmp_path) as later:
            run = await later.gone("j")
            assert run.ranks[0].exit_code == 42
            assert len((tmp_path / "starts").read_text().split()) == 1


async def test_a_killed_supervisor_takes_its_ranks_and_escaped_workers_along(tmp_path: Path) -> None:
    async with bench(tmp_path) as at:
        wanted = order("j", [sys.executable, "-c", ESCAPE, str(tmp_path / "pid"), "600"])
        started = await at.start(wanted)
        worker = await pid_in(tmp_path / "pid")
        os.kill(at.supervisor(wanted), signal.SIGKILL)
        run = await at.gone("j")
        assert run.stage is Stage.EXITED
        assert run.device_fault
        assert run.ranks[0].exit_code == 137
        assert "supervisor was killed" in run.ranks[0].reason
        assert not lives(worker)
        assert not lives(started.ranks[0].pid)


async def test_a_supervisor_killed_while_prepared_is_a_refusal_of_the_node(tmp_path: Path) -> None:
    async with bench(tmp_path) as at:
        wanted = order("j", ["/bin/sleep", "600"])
        await at.prepare(wanted)
        os.kill(at.supervisor(wanted), signal.SIGKILL)
        run = await at.gone("j")
        assert run.stage is Stage.REFUSED
        assert run.device_fault


async def test_without_contact_the_supervisor_fences_by_itself(tmp_path: Path) -> None:
    limits = ProcessLimits(fence_after_s=1.0, fence_grace_s=0.3)
    async with bench(tmp_path, limits) as at:
        wanted = order("j", ["/bin/sh", "-c", "trap '' TERM; while :; do sleep 0.05; done"], grace_period_s=600.0)
        await at.start(wanted)
        at.contacts = False
        run = await at.gone("j")
        assert "fenced" in run.reason
        assert run.device_fault
        assert run.ranks[0].exit_code == 137


async def test_contact_keeps_the_ranks(tmp_path: Path) -> None:
    limits = ProcessLimits(fence_after_s=1.0, fence_grace_s=0.3)
    async with bench(tmp_path, limits) as at:
        wanted = order("j", ["/bin/sleep", "600"])
        await at.start(wanted)
        began_s = procfs.boot_time_s()
        await at.state("j", lambda run: procfs.boot_time_s() - began_s > 2.5)
        assert [run.stage for run in await at.runner.observe()] == [Stage.RUNNING]


async def test_processes_without_a_record_are_swept_at_the_start(tmp_path: Path) -> None:
    state_dir = tmp_path / "state"
    async with bench(state_dir) as at:
        wanted = order("j", [sys.executable, "-c", ESCAPE, str(tmp_path / "pid"), "600"])
        await at.start(wanted)
        worker = await pid_in(tmp_path / "pid")
        os.kill(at.supervisor(wanted), signal.SIGKILL)
        await at.runner.close()
        (state_dir / "runs").rename(tmp_path / "lost")
        other = await asyncio.create_subprocess_exec("/bin/sleep", "600", env={"FMSCHED_RUN": "n1/j.1@00000000"})
        try:
            async with bench(state_dir):
                assert not lives(worker)
                assert other.returncode is None
                assert lives(other.pid)
        finally:
            other.kill()
            await other.wait()


async def test_short_lived_ranks_keep_every_byte(tmp_path: Path) -> None:
    writer = (
        "import os, sys\nrank = int(os.environ['RANK'])\n"
        "out = [b'x' * 200_000, b'no newline', b'a\\rb\\r', bytes(range(256)) * 8, b'y' * 1_000_000 + b'\\n'][rank % 5]\n"
        "os.write(1, out) if len(out) < 60_000 else sys.stdout.buffer.write(out)\n"
    )
    contents = [b"x" * 200_000, b"no newline", b"a\rb\r", bytes(range(256)) * 8, b"y" * 1_000_000 + b"\n"]
    # FMSCHED_SHORT_RANKS=500 for the whole story.
    rounds = int(os.environ.get("FMSCHED_SHORT_RANKS", "30")) // 10
    async with bench(tmp_path) as at:
        for number in range(rounds):
            wanted = order(f"j{number}", [sys.executable, "-S", "-c", writer], gpus=range(10))
            await at.start(wanted)
            run = await at.gone(wanted.job)
            assert [rank.exit_code for rank in run.ranks] == [0] * 10
            for rank in range(10):
                told = hashlib.sha256(at.output(wanted, rank)).hexdigest()
                assert told == hashlib.sha256(contents[rank % 5]).hexdigest(), f"rank {rank}"


async def test_what_the_user_replaces_is_told_while_it_runs(tmp_path: Path) -> None:
    async with bench(tmp_path) as at:
        wanted = order(
            "j", ["/bin/sh", "-c", "echo $MASTER_PORT $FMSCHED_JOB"], env=(("MASTER_PORT", "1"), ("FMSCHED_JOB", "x"))
        )
        run = await at.prepare(wanted)
        assert run.reason == "template.env replaces MASTER_PORT; template.env may not set FMSCHED_JOB"
        await at.runner.start("j", 1, "127.0.0.1", run.held_port)
        ended = await at.gone("j")
        assert ended.reason == ""
        assert at.output(wanted) == b"1 j\n"


async def test_a_run_that_never_had_a_supervisor_is_prepared_anew(tmp_path: Path) -> None:
    async with bench(tmp_path) as at:
        wanted = order("j", ["/bin/true"])
        await at.prepare(wanted)
        folder = tmp_path / "runs/j.1"
        os.kill(at.supervisor(wanted), signal.SIGKILL)

        async def dead() -> bool:
            return not processes_naming(str(tmp_path))

        await until(dead, "the supervisor is dead")
        (folder / files.STATE_FILE).unlink()
        await at.runner.close()
        async with bench(tmp_path) as later:
            assert await later.runner.observe() == ()
            await later.start(wanted)
            assert (await later.gone("j")).ranks[0].exit_code == 0


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)], capture_output=True, text=True)
    if made.returncode:
        pytest.skip(f"no file system can be mounted here: {made.stderr.strip()}")
    yield folder
    kill_all(str(folder))
    subprocess.run(["umount", "-l", str(folder)], check=True)


async def test_a_full_disk_hides_no_stop_and_no_exit_code(small_disk: Path) -> None:
    filler = "trap 'exit 5' TERM; head -c 8000000 /dev/zero; echo full >&3; while :; do sleep 0.02; done"
    async with bench(small_disk) as at:
        wanted = order("j", ["/bin/bash", "-c", f"exec 3> {small_disk}/../told; {filler}"])
        await at.start(wanted)

        async def full() -> bool:
            return (small_disk / "../told").read_bytes() != b""

        await until(full, "the disk is full")
        left = os.statvfs(small_disk)
        # Either nothing, or what the supervisor had set aside for its own records and has given back by now.
        assert left.f_bavail * left.f_frsize in (0, files.SPARE_BYTES)
        run = await at.stop(wanted, 10.0)
        assert [rank.exit_code for rank in run.ranks] == [5]
        assert "ended by itself within its grace" in run.reason
        with pytest.raises(CannotPrepare) as caught:
            await at.prepare(order("k", ["/bin/true"]))
        assert caught.value.device_fault
        assert [state.job for state in await at.runner.observe()] == ["j"]


async def test_released_runs_are_kept_in_number(tmp_path: Path) -> None:
    async with bench(tmp_path, ProcessLimits(log_runs_max=2)) as at:
        for number in range(4):
            await at.start(order(f"j{number}", ["/bin/true"]))
            await at.gone(f"j{number}")
            await at.runner.release(f"j{number}", 1)
        assert await at.runner.observe() == ()
        kept = sorted(folder.name for folder in (tmp_path / "runs").iterdir())
        assert kept == ["j2.1", "j3.1"]
        assert at.runner.log_folder("j3", 0) is not None
        assert at.runner.log_folder("j0", 0) is None


async def test_logs_of_an_older_run_of_the_same_attempt_are_kept(tmp_path: Path) -> None:
    async with bench(tmp_path) as at:
        for text in ("first", "second", "third"):
            wanted = order("j", ["/bin/echo", text])
            await at.start(wanted)
            await at.gone("j")
            assert at.output(wanted) == f"{text}\n".encode()
            await at.runner.release("j", 1)
        older = [tmp_path / f"runs/j.1.old-{number}/rank-0.out" for number in (1, 2)]
        assert [path.read_text() for path in older] == ["first\n", "second\n"]
        assert at.runner.log_folder("j", 0) == tmp_path / "runs/j.1"
        await at.runner.close()
        async with bench(tmp_path, ProcessLimits(log_runs_max=1)) as later:
            assert await later.runner.observe() == ()
            await later.start(order("k", ["/bin/true"]))
            await later.gone("k")
            await later.runner.release("k", 1)
            assert [folder.name for folder in (tmp_path / "runs").iterdir()] == ["k.1"]


async def test_a_folder_with_a_living_supervisor_is_not_touched(tmp_path: Path) -> None:
    async with bench(tmp_path) as at:
        wanted = order("j", ["/bin/sleep", "600"])
        await at.start(wanted)
        with pytest.raises(CannotPrepare, match="living supervisor") as caught:
            await at.runner.prepare(wanted, NodeFacts("n1"), gang(wanted))
        assert caught.value.device_fault
        assert [run.stage for run in await at.runner.observe()] == [Stage.RUNNING]


async def test_a_run_whose_files_were_lost_with_the_power_keeps_its_output(tmp_path: Path) -> None:
    async with bench(tmp_path) as at:
        wanted = order("j", ["/bin/echo", "precious"])
        await at.start(wanted)
        await at.gone("j")

        async def dead() -> bool:
            return not processes_naming(str(tmp_path))

        await until(dead, "the supervisor has ended")
        (tmp_path / "runs/j.1" / files.STATE_FILE).write_bytes(b"")
        await at.runner.close()
        async with bench(tmp_path) as later:
            assert await later.runner.observe() == ()
            assert (tmp_path / "runs/j.1.old-1/rank-0.out").read_text() == "precious\n"


async def test_what_the_agent_remembers_is_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    sync = os.fsync

    def noted(descriptor: int) -> None:
        synced.append(os.fstat(descriptor).st_ino)
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    async with bench(tmp_path) as at:
        await at.runner.remember({"term": 3})
        assert synced == [(tmp_path / "memory.json").stat().st_ino, tmp_path.stat().st_ino]
        assert await at.runner.load() == {"term": 3}


async def test_nothing_is_left_after_many_random_stops(tmp_path: Path) -> None:
    async with bench(tmp_path) as at:
        for number in range(12):
            wanted = order(f"j{number}", ["/bin/sh", "-c", "sleep 600 & wait"], gpus=(0, 1))
            if number % 3 == 0:
                await at.prepare(wanted)
            else:
                await at.start(wanted)
            await at.stop(wanted, 0.2 * (number % 2))
            await at.runner.release(wanted.job, 1)

        async def none_left() -> bool:
            return not processes_naming(str(tmp_path))

        await until(none_left, "the last supervisor has ended")


RUN_FOLDER = 'cd "$(dirname $FMSCHED_PLACEMENT)"'


async def test_a_rank_that_ends_by_a_realtime_signal_is_told_as_others(tmp_path: Path) -> None:
    async with bench(tmp_path) as at:
        await at.start(order("j", ["/bin/sh", "-c", "kill -40 $$"]))
        run = await at.gone("j")
        assert [(rank.exit_code, rank.reason) for rank in run.ranks] == [(168, "ended by signal 40")]


async def test_output_that_became_a_fifo_hangs_nothing(tmp_path: Path) -> None:
    async with bench(tmp_path) as at:
        script = f"{RUN_FOLDER}; rm -f rank-0.*; mkfifo rank-0.err; ln -s /etc/passwd rank-0.out; exit 3"
        await at.start(order("j", ["/bin/sh", "-c", script]))
        run = await at.gone("j")
        assert [(rank.exit_code, rank.last_lines) for rank in run.ranks] == [(3, "")]


HOSTILE = {
    "fifo": "rm -f state.json; mkfifo state.json",
    "folder": "rm -f state.json; mkdir -p state.json/x",
    "link": "ln -sf /dev/zero state.json",
    "phase": 'echo \'{"phase": "flying", "ranks": []}\' > state.json',
    "removed": "rm -f state.json",
    "all removed": 'cd ..; rm -rf "$OLDPWD"',
    "text": "echo text > state.json",
    "empty": "echo '{}' > state.json",
    "number": 'echo \'{"phase": "running", "ranks": [], "port": 1e30}\' > state.json',
    "command fifo": "rm -f command.json; mkfifo command.json; touch state.json",
    "command": "echo '{\"stop\": 7}' > command.json; touch state.json",
}


@pytest.mark.parametrize(
    ("how", "restarted"),
    [(how, restarted) for how in HOSTILE for restarted in (False, True) if how != "all removed" or not restarted],
)
async def test_a_run_that_destroys_its_folder_ends_alone(tmp_path: Path, how: str, restarted: bool) -> None:
    async with bench(tmp_path) as at:
        bystander = order("other", ["/bin/sleep", "600"], gpus=(1,))
        await at.start(bystander)
        # Only once it is seen running, and again and again: the supervisor repairs its file when it has news.
        script = f"{RUN_FOLDER}; while [ ! -e {tmp_path}/go ]; do sleep 0.02; done; {HOSTILE[how]}; touch {tmp_path}/done; sleep 600"
        started = await at.start(order("j", ["/bin/sh", "-c", script]))
        assert started.stage is Stage.RUNNING
        if restarted:
            await at.runner.close()
        (tmp_path / "go").touch()

        async def done() -> bool:
            return (tmp_path / "done").exists()

        await until(done, "the folder is destroyed")
        if not restarted:
            run = await at.gone("j")
            assert run.stage is Stage.EXITED
            assert not run.device_fault
            assert "cannot be used" in run.reason
            assert not lives(started.ranks[0].pid)
            assert (await at.state("other", lambda run: True)).stage is Stage.RUNNING
            await at.runner.close()
        if how == "all removed":
            return  # the next agent finds nothing of it
        async with bench(tmp_path) as later:
            run = await later.gone("j")
            assert "cannot be used" in run.reason
            assert not lives(started.ranks[0].pid)
            assert (await later.state("other", lambda run: True)).stage is Stage.RUNNING


@pytest.mark.parametrize("content", ["", "[]", '{"run": 7}', '{"job": "k", "attempt": 1}'])
async def test_a_run_whose_record_is_gone_does_not_end_the_next_agent(tmp_path: Path, content: str) -> None:
    async with bench(tmp_path) as at:
        wanted = order("j", ["/bin/sleep", "600"])
        started = await at.start(wanted)
        await at.runner.close()
        (tmp_path / "runs/j.1/run.json").write_text(content)
        (tmp_path / "runs/k.1").write_text("no folder")
        os.mkfifo(tmp_path / "runs/l.1")
        async with bench(tmp_path) as later:
            assert await later.runner.observe() == ()
            assert not lives(started.ranks[0].pid)


async def test_what_ranks_remove_where_they_start_is_their_own(tmp_path: Path) -> None:
    async with bench(tmp_path, ProcessLimits(log_runs_max=1)) as at:
        wanted = order("j", ["/bin/sh", "-c", "rm -rf ./* ./.[!.]*; echo kept; touch file"])
        await at.start(wanted)
        run = await at.gone("j")
        assert (run.stage, run.device_fault, run.reason) == (Stage.EXITED, False, "")
        assert [rank.exit_code for rank in run.ranks] == [0]
        assert at.output(wanted) == b"kept\n"
        assert [path.name for path in (tmp_path / "runs/j.1/work").iterdir()] == ["file"]
        await at.runner.release("j", 1)
        await at.start(order("k", ["/bin/true"]))
        await at.gone("k")
        await at.runner.release("k", 1)
        assert [folder.name for folder in (tmp_path / "runs").iterdir()] == ["k.1"]


STOPS_ITS_SUPERVISOR = {
    "once": "kill -STOP $PPID; sleep 600",
    "always": "trap '' TERM; while :; do kill -STOP $PPID; sleep 0.01; done",
}


@pytest.mark.parametrize("how", STOPS_ITS_SUPERVISOR)
async def test_a_stopped_supervisor_does_not_keep_its_ranks(
    tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fmagent.runner.process.OVERDUE_S", 0.5)
    async with bench(tmp_path) as at:
        wanted = order("j", ["/bin/sh", "-c", STOPS_ITS_SUPERVISOR[how]])
        await at.prepare(wanted)
        await at.runner.start("j", 1, "127.0.0.1", at_port(at))
        supervisor = at.supervisor(wanted)

        async def stopped() -> bool:
            proc = procfs.read_proc(supervisor)
            return proc is not None and proc.state == "T"

        await until(stopped, "the supervisor is stopped")
        run = await at.stop(wanted, 0.2)
        assert "the test stops it" in run.reason
        assert not run.device_fault
        await nothing_left(tmp_path)


async def nothing_left(state_dir: Path) -> None:
    """Of the ranks at once, of the supervisor soon: it says that the run is over, and ends."""

    async def ended() -> bool:
        return not processes_naming(f"{state_dir}/runs/j.1")

    await until(ended, "supervisor and ranks are gone")


def at_port(at: Bench) -> int:
    state = files.read_json(str(at.state_dir / "runs/j.1" / files.STATE_FILE))
    assert state is not None
    return int(state["port"])


async def test_the_fence_ends_ranks_that_stop_their_supervisor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fmagent.runner.process.OVERDUE_S", 0.5)
    async with bench(tmp_path, ProcessLimits(fence_after_s=1.0, fence_grace_s=0.3)) as at:
        wanted = order("j", ["/bin/sh", "-c", STOPS_ITS_SUPERVISOR["always"]], grace_period_s=600.0)
        await at.prepare(wanted)
        await at.runner.start("j", 1, "127.0.0.1", at_port(at))
        at.contacts = False
        run = await at.gone("j")
        assert run.device_fault
        await nothing_left(tmp_path)


async def test_a_worker_without_its_environment_ends_with_a_killed_supervisor(tmp_path: Path) -> None:
    async with bench(tmp_path) as at:
        script = f"setsid env -i /bin/sh -c 'echo $$ > {tmp_path}/pid.new; mv {tmp_path}/pid.new {tmp_path}/pid; exec sleep 600' & wait"
        script = script.replace("mv ", "/bin/mv ").replace("exec sleep", "exec /bin/sleep")
        wanted = order("j", ["/bin/sh", "-c", script])
        await at.start(wanted)
        worker = await pid_in(tmp_path / "pid")

        async def recorded() -> bool:
            state = files.read_json(str(tmp_path / "runs/j.1" / files.STATE_FILE)) or {}
            return worker in [pid for pid, _ in state.get("descendants", [])]

        try:
            await until(recorded, "the worker is recorded")
            os.kill(at.supervisor(wanted), signal.SIGKILL)
            assert (await at.gone("j")).stage is Stage.EXITED
            assert not lives(worker)
        finally:
            if lives(worker):
                os.kill(worker, signal.SIGKILL)
