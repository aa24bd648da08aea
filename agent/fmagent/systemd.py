"""sd_notify: readiness and the watchdog, a datagram each. Nothing happens where systemd did not ask for it."""

from __future__ import annotations

import contextlib
import os
import socket


def notify(state: str) -> None:
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):
        address = "\0" + address[1:]
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sender:
        sender.sendto(state.encode(), address)


def watchdog_s() -> float:
    """How often systemd wants a sign of life, halved as it advises; 0: it does not."""
    if os.environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return 0.0
    return int(os.environ.get("WATCHDOG_USEC", "0")) / 2_000_000
