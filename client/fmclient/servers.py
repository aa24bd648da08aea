"""Where the schedulers are, who leads, and by what credentials they are reached."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

import grpc

from fmproto.channel import Options, client_options

SERVER_ENV = "FMSCHED_SERVER"
SERVER_DEFAULT = "127.0.0.1:7070"
# A host that drops packets would otherwise hold the first attempt for gRPC's 20 s, and the next server waits behind it.
CONNECT_MS_MAX = 3_000
_ADDRESS = re.compile(r"^(\[[0-9A-Fa-f:.%]+\]|[^\s:,/\[\]]+):(\d{1,5})$")
PORT_MAX = 65_535


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM files. `ca_file` None: the system's roots. `cert_file` and `key_file` together: the client proves who it is.

    server_name   the name to expect in the server's certificate, where it is not the host in the address
    """

    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None
    server_name: str = ""

    def credentials(self) -> grpc.ChannelCredentials:
        """Reads the files. OSError for one that cannot be read; ValueError where one of certificate and key is missing."""
        if (self.cert_file is None) != (self.key_file is None):
            raise ValueError("tls: cert_file and key_file go together; only one was given")
        return grpc.ssl_channel_credentials(
            root_certificates=self.ca_file.read_bytes() if self.ca_file else None,
            private_key=self.key_file.read_bytes() if self.key_file else None,
            certificate_chain=self.cert_file.read_bytes() if self.cert_file else None,
        )


def parse_servers(text: str | None) -> tuple[str, ...]:
    """Addresses of "host:port[,host:port]"; None: $FMSCHED_SERVER, else 127.0.0.1:7070. ValueError names the wrong part."""
    text = text if text is not None else os.environ.get(SERVER_ENV) or SERVER_DEFAULT
    parts = tuple(part.strip() for part in text.split(",") if part.strip())
    for part in parts:
        if not is_address(part):
            raise ValueError(f"server {part!r}: expected host:port, such as {SERVER_DEFAULT} or [::1]:7070")
    if not parts:
        raise ValueError(f"server {text!r}: names no host:port")
    return tuple(dict.fromkeys(parts))


def is_address(text: str) -> bool:
    match = _ADDRESS.match(text)
    return match is not None and 0 < int(match[2]) <= PORT_MAX


def channel_options(tls: Tls | None) -> Options | list[tuple[str, int | str]]:
    options: list[tuple[str, int | str]] = [*client_options(), ("grpc.min_reconnect_backoff_ms", CONNECT_MS_MAX)]
    if tls is not None and tls.server_name:
        options.append(("grpc.ssl_target_name_override", tls.server_name))
    return options


class Servers:
    """The configured addresses and the one to call now. Plain assignments only, so threads may share it."""

    def __init__(self, addresses: tuple[str, ...]) -> None:
        self.addresses = addresses
        self.current = addresses[0]

    def follow(self, leader: str) -> bool:
        """Turns to the leader that a follower named; False where it named none, or itself."""
        if not is_address(leader) or leader == self.current:
            return False
        self.current = leader
        return True

    def advance(self, failed: str) -> None:
        """Turns to the configured address after `failed`; back to the first where `failed` is a leader not among them."""
        if self.current != failed:
            return  # another thread has turned already
        position = self.addresses.index(failed) if failed in self.addresses else -1
        self.current = self.addresses[(position + 1) % len(self.addresses)]

    def __str__(self) -> str:
        return ",".join(self.addresses)
