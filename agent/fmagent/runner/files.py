"""What supervisor and agent tell each other by: small JSON files, written whole or not at all, and a datagram that says to look. Only
the standard library: supervisors use it.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import stat
from typing import Any

# pathlib would lengthen a supervisor's start by a third:
# ruff: noqa: PTH104, PTH108, PTH118, PTH119, PTH120, PTH123

RUN_FILE = "run.json"  # from the agent: what to run
COMMAND_FILE = "command.json"  # from the agent: start, stop
STATE_FILE = "state.json"  # from the supervisor
SPARE_FILE = "spare"
# An order to stop and the states up to the end of a run of a hundred ranks, some times over.
SPARE_BYTES = 256 * 1024
# Of a JSON file that is read: a hundred ranks need a hundredth of it.
JSON_BYTES_MAX = 64 * 1024 * 1024

Record = dict[str, Any]


def open_regular(path: str, *, follow: bool = False) -> int:
    """A descriptor to read from. A FIFO, a device or a folder in the file's place, which jobs can put there, raises OSError and never
    hangs; so does a symbolic link unless `follow`."""
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    descriptor = os.open(path, flags)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", path)
    return descriptor


def read_regular(path: str, bytes_max: int = JSON_BYTES_MAX, *, follow: bool = False) -> bytes:
    """Raises OSError, also as open_regular does, and where the file is larger."""
    with open(open_regular(path, follow=follow), "rb") as file:
        content = file.read(bytes_max + 1)
    if len(content) > bytes_max:
        raise OSError(errno.EFBIG, f"larger than {bytes_max} bytes", path)
    return content


def read_json(path: str) -> Record | None:
    """None where there is none, or where it is no JSON object. Raises OSError where the file cannot be read."""
    try:
        content = json.loads(read_regular(path))
    except (FileNotFoundError, ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


def write_json(path: str, content: Record, *, durable: bool = False) -> None:
    """Whole or not at all. `durable`: there for good once this returns, also through a power cut. On a full disk the folder's spare room
    is used up."""
    try:
        _write(path, content, durable=durable)
    except OSError as error:
        if error.errno not in {errno.ENOSPC, errno.EDQUOT}:
            raise
        os.unlink(os.path.join(os.path.dirname(path), SPARE_FILE))
        _write(path, content, durable=durable)


def _write(path: str, content: Record, *, durable: bool) -> None:
    replace_file(path, json.dumps(content).encode(), durable=durable)  # json.dump would go through the slow encoder


def replace_file(path: str, content: bytes, *, durable: bool) -> None:
    """Whole or not at all. `durable`: file and folder are on the disk once this returns."""
    temporary = f"{path}.new"
    # Always a new one: something else may have been put in its place, a FIFO that would hang the writer.
    with contextlib.suppress(FileNotFoundError):
        os.unlink(temporary)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(descriptor, "wb") as file:
        file.write(content)
        if durable:
            file.flush()
            os.fsync(file.fileno())
    os.rename(temporary, path)
    if durable:
        folder = os.open(os.path.dirname(path) or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def reserve(folder: str) -> None:
    """Room for the last words of a run on a disk that its ranks have filled. Raises OSError where there is none now."""
    descriptor = os.open(os.path.join(folder, SPARE_FILE), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, SPARE_BYTES)
    finally:
        os.close(descriptor)


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
