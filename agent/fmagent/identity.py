"""Who this agent is: which host and state directory, whatever node name it was given. Two hosts with one name differ in it; a restarted
agent does not."""

from __future__ import annotations

import hashlib
import secrets
import socket
from pathlib import Path

MACHINE_ID = Path("/etc/machine-id")
IDENTITY_HEX_DIGITS = 16
TOKEN_BYTES = 8


def session_of(state_dir: Path) -> str:
    """A new session, "IDENTITY/TOKEN": of one identity, no two are alike."""
    return f"{identity_of(state_dir, machine_id(), socket.gethostname())}/{secrets.token_hex(TOKEN_BYTES)}"


def identity_of(state_dir: Path, machine: str, hostname: str) -> str:
    """The host's name counts as well: images are often copied with the machine-id in them."""
    text = f"{machine}\n{hostname}\n{state_dir.resolve()}"
    return hashlib.sha256(text.encode()).hexdigest()[:IDENTITY_HEX_DIGITS]


def machine_id() -> str:
    """Empty in a container that has none: the host's name tells it apart then."""
    try:
        return MACHINE_ID.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""
