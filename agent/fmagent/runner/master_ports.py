"""MASTER_PORT: held while a gang prepares. Only the standard library: supervisors use it."""

from __future__ import annotations

import errno
import os
import socket
from typing import NamedTuple

# An abstract socket: one holder per host and port, freed by the kernel when the holder ends.
LEASE = "\0fmsched-port-%d"


class Held(NamedTuple):
    port: int
    sockets: list[socket.socket]  # hold the port itself: closed when rank 0 starts
    lease: socket.socket  # keeps other runs of this host off the port until this run ends


def hold_port(first: int, last: int) -> Held | None:
    """A port of [first, last] that nobody uses on any address of either family, and that no other run on this host has
    been given. None where there is none."""
    span = last - first + 1
    offset = int.from_bytes(os.urandom(4), "big") % span
    for step in range(span):
        port = first + (offset + step) % span
        held = try_port(port)
        if held is not None:
            return held
    return None


def try_port(port: int) -> Held | None:
    lease = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    sockets: list[socket.socket] = []
    try:
        lease.bind(LEASE % port)
        try:
            wide = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
            sockets.append(wide)
            wide.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            wide.bind(("::", port))
        except OSError as error:
            if error.errno not in {errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL}:
                raise
        narrow = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        sockets.append(narrow)
        # Bound, not listening: a rank that comes early is refused and tries again, instead of meeting a stranger.
        narrow.bind(("0.0.0.0", port))  # noqa: S104  that it is free on every address is the point
    except OSError as error:
        for taken in (*sockets, lease):
            taken.close()
        if error.errno in {errno.EADDRINUSE, errno.EACCES}:
            return None
        raise
    return Held(port, sockets, lease)
