"""A rank program that proves a gang has met: every rank sends a vector to rank 0 at MASTER_ADDR:MASTER_PORT, rank 0 sums them
and sends the sum back, and every rank checks it. Standard library only; needs RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT.

    python3 vector_sum.py [--hold SECONDS] [--deadline SECONDS]

--hold, else $VECTOR_SUM_HOLD_S: stay so long after the sum, and so keep the GPUs. Exit 0: the sum is right; 1: it is not, or the
ranks did not meet in time.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import sys
import threading
import time
from dataclasses import dataclass
from typing import Any

LENGTH = 1024
# Ranks of a big gang start seconds apart; on a busy machine more.
DEADLINE_S = 60.0
RETRY_S = 0.05
# A connection that says nothing must not keep the others waiting.
HELLO_S = 5.0
LINE_BYTES_MAX = 1024 * 1024


@dataclass(frozen=True)
class Gang:
    rank: int
    size: int
    master: tuple[str, int]
    token: str  # keeps out strangers, and ranks of an earlier attempt

    @classmethod
    def from_environment(cls) -> Gang:
        env = os.environ
        token = f"{env.get('FMSCHED_JOB', '')}/{env.get('FMSCHED_ATTEMPT', '')}"
        return cls(int(env["RANK"]), int(env["WORLD_SIZE"]), (env["MASTER_ADDR"], int(env["MASTER_PORT"])), token)


def vector(rank: int) -> list[int]:
    return [rank * 1_000 + place for place in range(LENGTH)]


def expected(size: int) -> list[int]:
    return [sum(range(size)) * 1_000 + size * place for place in range(LENGTH)]


def listen(address: tuple[str, int], backlog: int, deadline_s: float) -> socket.socket:
    """Tries until the deadline: the agent that held the port for this gang may be closing it just now."""
    while True:
        try:
            return socket.create_server(address, backlog=backlog)
        except OSError:
            if time.monotonic() >= deadline_s:
                raise
            time.sleep(RETRY_S)


def serve(listener: socket.socket, gang: Gang, deadline_s: float) -> None:
    """Takes one vector from each rank, then sends all of them the sum. Whoever does not know the token is hung up on."""
    ranks: dict[int, socket.socket] = {}
    total = [0] * LENGTH
    with listener, contextlib.suppress(OSError):  # rank 0 notices a failure as the others do: no sum comes
        while len(ranks) < gang.size:
            listener.settimeout(max(0.001, deadline_s - time.monotonic()))
            connection, _ = listener.accept()
            hello = receive(connection, min(deadline_s, time.monotonic() + HELLO_S))
            if hello.get("token") != gang.token or hello["rank"] in ranks:
                connection.close()
                continue
            ranks[hello["rank"]] = connection
            total = [a + b for a, b in zip(total, hello["vector"], strict=True)]
        for connection in ranks.values():
            connection.sendall(json.dumps({"sum": total}).encode() + b"\n")
            connection.close()


def receive(connection: socket.socket, deadline_s: float) -> dict[str, Any]:
    """One line of JSON; an empty object for anything else, silence included."""
    connection.settimeout(max(0.001, deadline_s - time.monotonic()))
    with connection.makefile("rb") as lines:
        try:
            found = json.loads(lines.readline(LINE_BYTES_MAX))
        except (OSError, ValueError):
            return {}
    return found if isinstance(found, dict) else {}


def connect(address: tuple[str, int], deadline_s: float) -> socket.socket:
    """Tries until the deadline: rank 0 may start last."""
    while True:
        try:
            connection = socket.create_connection(address, timeout=max(0.001, deadline_s - time.monotonic()))
        except OSError:
            if time.monotonic() >= deadline_s:
                raise
        else:
            if connection.getsockname() != connection.getpeername():
                return connection
            connection.close()  # TCP joined us to ourselves: nobody listens, and our own port was drawn
        time.sleep(RETRY_S)


def add_up(gang: Gang, deadline_s: float) -> bool:
    """This rank's part; True where the sum that came back is right."""
    server = None
    if gang.rank == 0:
        listener = listen(gang.master, gang.size, deadline_s)
        server = threading.Thread(target=serve, args=(listener, gang, deadline_s), daemon=True)
        server.start()
    with connect(gang.master, deadline_s) as connection:
        hello = {"token": gang.token, "rank": gang.rank, "vector": vector(gang.rank)}
        connection.sendall(json.dumps(hello).encode() + b"\n")
        answer = receive(connection, deadline_s)
    if server is not None:
        server.join(max(0.001, deadline_s - time.monotonic()))
    if not answer:
        raise TimeoutError("no sum came back: some rank did not come")
    return answer.get("sum") == expected(gang.size)


def main() -> int:
    parser = argparse.ArgumentParser(description="Sum a vector over all ranks of a gang.")
    parser.add_argument("--hold", type=float, default=float(os.environ.get("VECTOR_SUM_HOLD_S", "0")), metavar="SECONDS")
    parser.add_argument("--deadline", type=float, default=DEADLINE_S, metavar="SECONDS")
    options = parser.parse_args()
    gang = Gang.from_environment()
    began_s = time.monotonic()
    name = f"rank {gang.rank} of {gang.size}"
    try:
        right = add_up(gang, began_s + options.deadline)
    except OSError as error:
        print(f"{name}: did not meet at {gang.master[0]}:{gang.master[1]}: {error}", file=sys.stderr)
        return 1
    place = os.environ.get("FMSCHED_NODE") or socket.gethostname()
    words = "sum ok" if right else "sum WRONG"
    print(
        f"{name}: {words} on {place}, device {os.environ.get('LOCAL_RANK', '?')}, {time.monotonic() - began_s:.2f} s",
        flush=True,
    )
    time.sleep(options.hold)
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
