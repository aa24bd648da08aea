"""What supervisor and agent tell each other by: small JSON files, written whole or not at all, and a datagram that says to look. Only
the standard library: supervisors use it.
"""

from __future__ import annotations

import json
import os
import socket
from typing import Any

# pathlib would lengthen a supervisor's start by a third:
# ruff: noqa: PTH104, PTH119, PTH120, PTH123

RUN_FILE = "run.json"  # from the agent: what to run
COMMAND_FILE = "command.json"  # from the agent: start, stop
STATE_FILE = "state.json"  # from the supervisor

Record = dict[str, Any]


def read_json(path: str) -> Record | None:
    try:
        with open(path, "rb") as file:
            content = json.loads(file.read())
    except (FileNotFoundError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def write_json(path: str, content: Record, *, durable: bool = False) -> None:
    """Whole or not at all. `durable`: also through a power cut."""
    temporary = f"{path}.new"
    with open(temporary, "w", encoding="utf-8") as file:
        os.fchmod(file.fileno(), 0o600)
        file.write(json.dumps(content))  # json.dump would go through the slow encoder
        if durable:
            file.flush()
            os.fsync(file.fileno())
    os.rename(temporary, path)


def send_news(address: str, content: bytes) -> None:
    """Best effort: the agent may be down, and looks again by itself."""
    try:
        # A socket's path holds at most 107 bytes; one through a directory's descriptor is always short.
        folder = os.open(os.path.dirname(address), os.O_PATH | os.O_CLOEXEC)
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sender:
                sender.sendto(content, f"/proc/self/fd/{folder}/{os.path.basename(address)}")
        finally:
            os.close(folder)
    except OSError:
        return
