"""The agent's configuration: one TOML file, flags over it, checked wholly before anything starts."""

from __future__ import annotations

import argparse
import contextlib
import difflib
import ipaddress
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import msgspec

from fmproto.tls import client_fault, server_fault

Seconds = Annotated[float, msgspec.Meta(gt=0)]
Port = Annotated[int, msgspec.Meta(ge=1024, le=65535)]
Address = Annotated[str, msgspec.Meta(pattern=r"^(\[[0-9A-Fa-f:.]+\]|[^:\[\]\s]+):[0-9]{1,5}$")]


class ConfigError(Exception):
    """What is wrong with the configuration: where, what was found, what is allowed."""


class EtcdConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`ca`, `cert` and `key` are files; TLS is used where `ca` is set. `password_file` holds the password and nothing else."""

    endpoints: Annotated[tuple[Address, ...], msgspec.Meta(min_length=1)] = ("127.0.0.1:2379",)
    ca: str = ""
    cert: str = ""
    key: str = ""
    user: str = ""
    password_file: str = ""


class TlsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of the agent's own server. PEM files; TLS where `cert` and `key` are set; with `client_ca`, whoever asks must have a certificate
    of it."""

    cert: str = ""
    key: str = ""
    client_ca: str = ""


class AgentConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """deploy/agent.toml explains each key. Times in seconds."""

    node: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,252}$")]
    etcd: EtcdConfig = EtcdConfig()
    tls: TlsConfig = TlsConfig()
    state_dir: Annotated[str, msgspec.Meta(min_length=1)] = "/var/lib/fm-agent"
    listen: Address = "0.0.0.0:7072"
    advertise: str = ""
    address: str = ""
    socket_interface: str = ""
    hardware: str = ""
    labels: dict[str, str] = {}
    period_s: Seconds = 5.0
    fence_after_s: Seconds = 60.0
    fence_grace_s: Seconds = 10.0
    start_limit_s: Seconds = 60.0
    port_first: Port = 20000
    port_last: Port = 29999
    log_retention_s: Seconds = 7 * 86400.0
    log_runs_max: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 200
    disk_free_min_mb: Annotated[int, msgspec.Meta(ge=1)] = 64
    nvml_timeout_s: Seconds = 20.0
    ibstat: Annotated[tuple[Annotated[str, msgspec.Meta(min_length=1)], ...], msgspec.Meta(min_length=1)] = ("ibstat",)
    kernel_log: str = "/dev/kmsg"
    health_rules: str = ""
    log_level: Annotated[str, msgspec.Meta(pattern="^(debug|info|warning|error)$")] = "info"


# Flag → the key that it sets.
_FLAGS = {
    "node": "node",
    "etcd": "etcd.endpoints",
    "state-dir": "state_dir",
    "hardware": "hardware",
    "listen": "listen",
    "advertise": "advertise",
    "address": "address",
    "socket-interface": "socket_interface",
    "period": "period_s",
    "fence-after": "fence_after_s",
    "log-level": "log_level",
}
# Of the keys that have a pattern, what it means.
_ALLOWED = {
    "node": "at most 253 letters, digits and . _ -, the first a letter or a digit",
    "listen": "host:port",
    "etcd.endpoints": "host:port",
    "log_level": "debug, info, warning, error",
}
_NUMBERS = {"period", "fence-after"}


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(prog="fm-agent", description="The node agent of fmsched.")
    result.add_argument("--config", metavar="FILE", help="TOML file; see deploy/agent.toml")
    for flag, key in _FLAGS.items():
        result.add_argument(
            f"--{flag}", metavar="H:P,..." if flag == "etcd" else "VALUE", help=f"instead of {key} in the file"
        )
    result.add_argument(
        "--forgive",
        metavar="GPU",
        help="forget what the Xids of this GPU (its UUID, or all) left, after it was reset; the agent must be stopped",
    )
    result.add_argument("--version", action="store_true", help="print the version and end")
    return result


def load(arguments: argparse.Namespace) -> AgentConfig:
    """Raises ConfigError."""
    source = arguments.config or "the command line"
    content: dict[str, Any] = {}
    if arguments.config:
        try:
            content = tomllib.loads(Path(arguments.config).read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError(f"{arguments.config}: {error.strerror}") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"{arguments.config}: not TOML: {error}") from error
    for flag, key in _FLAGS.items():
        value = getattr(arguments, flag.replace("-", "_"))
        if value is not None:
            _set(content, key, _value(flag, value))
    if "node" not in content:
        import socket

        content["node"] = socket.gethostname()
    try:
        config = msgspec.convert(content, AgentConfig)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{source}: {_explain(str(error), content)}") from error
    _check_together(config, source)
    return config


def _value(flag: str, text: str) -> object:
    if flag == "etcd":
        return text.split(",")
    if flag in _NUMBERS:
        try:
            return float(text)
        except ValueError:
            raise ConfigError(f"--{flag}: found {text!r}; allowed: a number of seconds") from None
    return text


def _set(content: dict[str, Any], key: str, value: object) -> None:
    *tables, last = key.split(".")
    for table in tables:
        content = content.setdefault(table, {})
        if not isinstance(content, dict):
            return  # the file has something else there: the check of the whole says so
    content[last] = value


def _explain(message: str, content: dict[str, Any]) -> str:
    """msgspec's message with the key and what was found put in front."""
    what, _, path = message.partition(" - at `")
    keys = re.findall(r"\.?([A-Za-z_][A-Za-z0-9_]*)|\[(\d+|\.\.\.)\]", path.strip("`").removeprefix("$"))
    found: Any = content
    names = []
    for name, place in keys:
        names.append(name or f"[{place}]")
        if isinstance(found, dict):
            found = found.get(name)
    allowed = _ALLOWED.get(".".join(name for name in names if not name.startswith("[")))
    if allowed and "matching regex" in what:
        return f"{'.'.join(names).replace('.[', '[')}: found {found!r}; allowed: {allowed}"
    unknown = re.search(r"unknown field `(.+)`", what)
    if unknown:
        table = {"etcd": EtcdConfig, "tls": TlsConfig}.get(".".join(names), AgentConfig)
        known = sorted(get_type_hints(table))
        near = difflib.get_close_matches(unknown[1], known, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        return f"{'.'.join([*names, unknown[1]])}: unknown key{hint} Allowed: {', '.join(known)}"
    return f"{'.'.join(names) or 'the whole file'}: found {found!r}; {what[0].lower()}{what[1:]}"


def _check_together(config: AgentConfig, source: str) -> None:
    if config.port_first > config.port_last:
        raise ConfigError(f"{source}: port_first {config.port_first} is above port_last {config.port_last}")
    low, high = ephemeral_ports()
    if config.port_first <= high and config.port_last >= low:
        found = f"{config.port_first}-{config.port_last}"
        allowed = f"a range outside the kernel's ephemeral ports {low}-{high} (ip_local_port_range)"
        raise ConfigError(f"{source}: port_first, port_last: found {found}; allowed: {allowed}")
    if config.fence_after_s < 2 * config.period_s:
        found = f"{config.fence_after_s:g}, period_s {config.period_s:g}"
        raise ConfigError(f"{source}: fence_after_s: found {found}; allowed: at least two periods")
    etcd, tls = config.etcd, config.tls
    fault = server_fault("tls", tls.cert, tls.key, tls.client_ca) or client_fault("etcd", etcd.ca, etcd.cert, etcd.key)
    if fault:
        raise ConfigError(f"{source}: {fault}")
    if bool(config.etcd.user) != bool(config.etcd.password_file):
        raise ConfigError(f"{source}: etcd.user, etcd.password_file: one of the two is missing")


def advertised(listen: str, route: str, port: int) -> str:
    """What the scheduler reaches the agent by: the address that it listens on, or `route` where it listens on every one."""
    host = listen.rpartition(":")[0].strip("[]")
    with contextlib.suppress(ValueError):  # a name
        if ipaddress.ip_address(host).is_unspecified:
            host = route
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def ephemeral_ports() -> tuple[int, int]:
    """The range that the kernel takes ports of outgoing connections from; (0, 0) where it does not say."""
    try:
        low, high = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return (0, 0)
    return (int(low), int(high))


def arguments_of(argv: Sequence[str]) -> argparse.Namespace:
    return parser().parse_args(argv)
