"""A training launcher on an allocation: takes GPUs through fmclient, starts one process for each rank, adds up the results, and
gives the GPUs back, however it ends.

    python3 launcher.py [--server HOST:PORT] [--manifest FILE] [--hold SECONDS] [--timeout SECONDS] [-- PROGRAM ARGUMENT...]

PROGRAM is vector_sum.py unless named. Here all ranks are started on this machine; on a cluster `start` is the function to
replace, by ssh or by what the site uses.

- Normal end, error, Ctrl-C, SIGTERM: the ranks are stopped and the allocation is cancelled.
- SIGKILL of the launcher: the kernel ends the ranks with it (setpriv --pdeathsig), its hold on the allocation breaks, and the
  scheduler frees the GPUs after --hold seconds.
- The scheduler takes the GPUs away (cancelled, preempted, a node lost), or cannot be reached for so long that it may: the ranks
  are stopped; exit 1.

Exit: 0 all ranks ended with 0; 2 the manifest has faults (a template is one: an allocation's ranks are started here); else the code
of the first rank that did not end with 0, or 1.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from fmclient import Allocation, Client, FmschedError, Placement, errors

MANIFEST = """
apiVersion: ai.example.com/v1alpha1
kind: FoundationModelTrainingJob
metadata:
  name: launcher-example
spec:
  replicaCount: 1
  resourceGroups:
    - name: workers
      type: DataParallel
      gpusPerGroup: 4
"""
POLL_S = 0.05
# From SIGTERM to SIGKILL: time for a rank to write a checkpoint.
GRACE_S = 10.0


class Ranks:
    """One process for each rank, its output in a file of its own."""

    def __init__(self) -> None:
        self.processes: list[tuple[int, subprocess.Popen[bytes], IO[bytes]]] = []

    def start(self, placement: Placement, program: Sequence[str]) -> None:
        rendezvous = local_rendezvous(placement)
        for rank in range(placement.world_size):
            output = tempfile.TemporaryFile()  # noqa: SIM115 - closed by stop()
            env = os.environ | placement.env(rank) | rendezvous
            process = subprocess.Popen([*tied_to_launcher(), *program], env=env, stdout=output, stderr=subprocess.STDOUT)
            self.processes.append((rank, process, output))

    def failed(self) -> tuple[int, int] | None:
        """(rank, exit code) of the first by rank that ended badly; 128 + signal where a signal ended it."""
        for rank, process, _ in self.processes:
            code = process.poll()
            if code:
                return rank, code if code > 0 else 128 - code
        return None

    def ended(self) -> bool:
        return all(process.poll() is not None for _, process, _ in self.processes)

    def stop(self) -> None:
        """Leaves no process behind, and prints what each had written."""
        for _, process, _ in self.processes:
            if process.poll() is None:
                process.terminate()
        deadline_s = time.monotonic() + GRACE_S
        for _, process, output in self.processes:
            try:
                process.wait(max(0.0, deadline_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            output.seek(0)
            sys.stdout.write(output.read().decode("utf-8", "replace"))
            output.close()
        sys.stdout.flush()
        self.processes.clear()


def tied_to_launcher() -> list[str]:
    """What makes the kernel kill a rank when its launcher dies: ranks that outlive it would compute on GPUs that others get."""
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "KILL", "--"] if setpriv else []


def local_rendezvous(placement: Placement) -> dict[str, str]:
    """Where the ranks meet. The placement's own address and port, unless they are another machine's."""
    if placement.master_port:
        try:
            socket.create_server((placement.master_addr, placement.master_port)).close()
        except OSError:
            pass
        else:
            return {}
    with socket.create_server(("127.0.0.1", 0)) as free:
        return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}


def run(allocation: Allocation, program: Sequence[str]) -> int:
    placement = allocation.placement
    nodes = ", ".join(
        f"{node.name} (GPU {','.join(str(rank.gpu_index) for rank in node.ranks)})" for node in placement.nodes
    )
    print(f"launcher: job {allocation.id}: {count(placement.world_size, 'GPU')} on {nodes}", flush=True)
    ranks = Ranks()
    try:
        ranks.start(placement, program)
        while not ranks.ended():
            if failure := ranks.failed():
                print(f"launcher: rank {failure[0]} ended with {failure[1]}; the others are stopped", file=sys.stderr)
                return failure[1]
            if loss := allocation.loss:
                print(f"launcher: the GPUs are lost: {loss}", file=sys.stderr)
                return 1
            time.sleep(POLL_S)
        failure = ranks.failed()
    finally:
        ranks.stop()
    if failure:
        print(f"launcher: rank {failure[0]} ended with {failure[1]}", file=sys.stderr)
        return failure[1]
    print(f"launcher: {count(placement.world_size, 'rank')} ended well", flush=True)
    return 0


def count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


def refused(source: str, error: errors.InvalidManifest) -> None:
    """One line for each fault: FILE:LINE: path: message."""
    for fault in error.violations:
        place = f"{source}:{fault.line}" if fault.line else source
        print("launcher: " + ": ".join(part for part in (place, fault.path, fault.message) if part), file=sys.stderr)
    if any(fault.path == "spec.template" for fault in error.violations):
        print(
            "launcher: the command after -- is what each rank runs; `fmctl submit -f` runs a manifest's own template",
            file=sys.stderr,
        )


def terminated(number: int, frame: object) -> None:
    """SIGTERM leaves the `with` blocks as an exception does, so that they give back what they hold."""
    raise SystemExit(128 + number)


def main() -> int:
    parser = argparse.ArgumentParser(description="Run a program on an allocation, one process for each GPU.")
    parser.add_argument("--server", metavar="HOST:PORT")
    parser.add_argument("--manifest", type=Path, metavar="FILE", help="a job without a template; 4 GPUs unless given")
    parser.add_argument(
        "--hold", type=float, default=10.0, metavar="SECONDS", help="GPUs are freed so long after a SIGKILL"
    )
    parser.add_argument("--timeout", type=float, metavar="SECONDS", help="how long to wait for the GPUs")
    parser.add_argument("program", nargs="*", default=[sys.executable, str(Path(__file__).with_name("vector_sum.py"))])
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, terminated)
    try:
        with (
            Client(options.server) as client,
            client.allocate(options.manifest or MANIFEST, hold_s=options.hold, timeout_s=options.timeout) as allocation,
        ):
            return run(allocation, options.program)
    except errors.InvalidManifest as error:
        refused(str(options.manifest or "the built-in manifest"), error)
        return 2
    except (FmschedError, OSError) as error:
        print(f"launcher: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
