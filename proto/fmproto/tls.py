"""TLS of our own gRPC servers, and the checks of every set of PEM files that a configuration names. How a client reaches etcd, or an
agent, is etcd_tls. Light: grpc is imported when credentials are made.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

from fmproto.etcd_tls import Tls

if TYPE_CHECKING:
    import grpc


@dataclass(frozen=True, slots=True)
class ServerTls:
    """Paths of PEM files. With `client_ca`, only clients whose certificate that authority has signed are served. `cert` and `key` are
    looked at again for every new connection, so that a renewed certificate needs no restart; `client_ca` is read with them."""

    cert: Path
    key: Path
    client_ca: Path | None = None

    def credentials(self) -> grpc.ServerCredentials:
        """Raises ValueError that names the file, where one cannot be read or certificate and key do not belong together."""
        import grpc

        renewals = _Renewals(self)
        # Beyond what the stubs know, "newer" may answer None: https://grpc.github.io/grpc/python/grpc.html has it.
        newer = cast("Callable[[], grpc.ServerCertificateConfiguration]", renewals.newer)
        return grpc.dynamic_ssl_server_credentials(renewals.first(), newer, self.client_ca is not None)

    def files(self) -> tuple[Path, ...]:
        return (self.cert, self.key) if self.client_ca is None else (self.cert, self.key, self.client_ca)


class _Renewals:
    """What gRPC asks at each handshake, from threads of its own: whether there is a newer certificate."""

    def __init__(self, tls: ServerTls) -> None:
        self._tls = tls
        self._stamps: tuple[tuple[int, int], ...] = ()

    def first(self) -> grpc.ServerCertificateConfiguration:
        self._stamps = self._look()
        return self._read()

    def newer(self) -> grpc.ServerCertificateConfiguration | None:
        """None: what is in use stays. So it does while a renewal is half written."""
        try:
            stamps = self._look()
            if stamps == self._stamps:
                return None
            renewed = self._read()
        except (OSError, ValueError):
            return None
        self._stamps = stamps
        return renewed

    def _look(self) -> tuple[tuple[int, int], ...]:
        try:
            return tuple((stat.st_ino, stat.st_mtime_ns) for stat in (path.stat() for path in self._tls.files()))
        except OSError as error:
            raise ValueError(f"tls: {error.filename}: {error.strerror}") from error

    def _read(self) -> grpc.ServerCertificateConfiguration:
        import grpc

        tls = self._tls
        fault = files_fault("tls", str(tls.cert), str(tls.key), "client_ca", str(tls.client_ca or ""))
        if fault:
            raise ValueError(fault)
        roots = tls.client_ca.read_bytes() if tls.client_ca else None
        return grpc.ssl_server_certificate_configuration([(tls.key.read_bytes(), tls.cert.read_bytes())], roots)


def server_tls(cert: str, key: str, client_ca: str) -> ServerTls | None:
    """None where no certificate is named: plain text."""
    return ServerTls(Path(cert), Path(key), Path(client_ca) if client_ca else None) if cert else None


def client_tls(ca: str, cert: str, key: str) -> Tls | None:
    """None where no authority is named: plain text."""
    return Tls(Path(ca), Path(cert) if cert else None, Path(key) if key else None) if ca else None


def server_fault(table: str, cert: str, key: str, client_ca: str) -> str:
    """What is wrong with a server's keys in `table` of a configuration, or with the files that they name; empty: nothing."""
    if bool(cert) != bool(key):
        return _pair(table, cert, key)
    if client_ca and not cert:
        allowed = f"only together with {table}.cert and {table}.key"
        return f"{table}.client_ca: found {client_ca!r}, but {table}.cert is empty; allowed: {allowed}"
    return files_fault(table, cert, key, "client_ca", client_ca)


def client_fault(table: str, ca: str, cert: str, key: str) -> str:
    """The same for a client's keys."""
    if bool(cert) != bool(key):
        return _pair(table, cert, key)
    if cert and not ca:
        return (
            f"{table}.ca: found '', but {table}.cert is {cert!r}; allowed: a PEM file (without {table}.ca there is no TLS)"
        )
    return files_fault(table, cert, key, "ca", ca)


def _pair(table: str, cert: str, key: str) -> str:
    return f"{table}.cert, {table}.key: found {cert!r} and {key!r}; allowed: both or neither"


def files_fault(table: str, cert: str, key: str, ca_name: str, ca: str) -> str:
    """What keeps the named files from use; "" where they are good, or not named."""
    for name, path in (("cert", cert), ("key", key), (ca_name, ca)):
        try:
            if path:
                Path(path).read_bytes()
        except OSError as error:
            return f"{table}.{name}: found {path!r}: {error.strerror}; allowed: a PEM file that this user can read"
    try:
        if ca:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(ca)
    except ssl.SSLError as error:
        return f"{table}.{ca_name}: found {ca!r}: {_reason(error)}; allowed: PEM certificates"
    try:
        if cert:
            # The empty password: an encrypted key is refused, instead of asked for at a terminal.
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key, password="")
    except ssl.SSLError as error:
        found = f"found {cert!r} and {key!r}: {_reason(error)}"
        return f"{table}.cert, {table}.key: {found}; allowed: a PEM certificate and its own key, not encrypted"
    return ""


def _reason(error: ssl.SSLError) -> str:
    return (error.reason or str(error)).replace("_", " ").lower()
