"""How etcd is reached over TLS. Light: grpc is imported when credentials are made."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import grpc


@dataclass(frozen=True, slots=True)
class Tls:
    """Paths of PEM files. `cert` and `key` are given together, where the server asks clients for a certificate. The files
    are read again for every new connection, so renewed certificates need no restart."""

    ca: Path
    cert: Path | None = None
    key: Path | None = None

    def __post_init__(self) -> None:
        if (self.cert is None) != (self.key is None):
            raise ValueError(f"tls: cert is {self.cert} and key is {self.key}; give both or neither")

    def credentials(self) -> grpc.ChannelCredentials:
        """Raises OSError where a file cannot be read."""
        import grpc

        cert, key = (path.read_bytes() if path else None for path in (self.cert, self.key))
        return grpc.ssl_channel_credentials(self.ca.read_bytes(), key, cert)
