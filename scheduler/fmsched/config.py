"""fm-scheduler's configuration: one TOML file, flags over it, checked wholly at start."""

from __future__ import annotations

import re
import socket
from pathlib import Path
from typing import Any

import msgspec

from fmproto.hostlist import expand
from fmproto.tls import client_fault, server_fault
from fmsched.model.snapshot import PowerBudget

# A host name or address, [in brackets] for IPv6, and a port. No scheme: TLS is said by the [tls] and [etcd] tables.
_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^:\[\]\s/]+):([0-9]{1,5})")
# A server that listens there does not say by what address it is reached.
EVERY_ADDRESS = ("0.0.0.0:", "[::]:")

FAMILY = re.compile(r"[a-z0-9][a-z0-9._-]{0,31}")
PRICE_MAX = 1e6
FABRIC_SECONDS_MAX = 86_400.0


class ConfigError(Exception):
    """One line that names the place, what was found and what is allowed."""


class EtcdConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    endpoints: tuple[str, ...] = ("127.0.0.1:2379",)
    ca: str = ""
    cert: str = ""
    key: str = ""
    user: str = ""
    password_file: str = ""
    request_timeout_s: float = 5.0
    quota_bytes: int = 2 * 1024**3  # etcd's default --quota-backend-bytes: what the 80 % alarm is measured against
    election_ttl_s: float = 10.0


class AgentsTls(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How the agents' log servers are reached. PEM files; TLS where `ca` is set."""

    ca: str = ""
    cert: str = ""
    key: str = ""


class TlsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Of the gRPC service. PEM files; TLS where `cert` and `key` are set; with `client_ca`, clients must have a certificate of it."""

    cert: str = ""
    key: str = ""
    client_ca: str = ""
    agents: AgentsTls = AgentsTls()


class Timeouts(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Seconds. node_lost_after_s must exceed agent_fence_after_s + agent_fence_grace_s (the agents' own settings): then a lost node's
    ranks are gone before its gang is placed again.
    """

    unreachable_after_s: float = 15.0
    node_lost_after_s: float = 120.0
    agent_fence_after_s: float = 60.0
    agent_fence_grace_s: float = 10.0
    mass_lost_after_s: float = 600.0
    prepare_s: float = 120.0
    start_s: float = 60.0


class FabricConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where the leader takes switches and links from: a Cluster file, or a command that prints what `ibnetdiscover` does, each period."""

    file: str = ""
    discover: tuple[str, ...] = ()  # the command and its arguments; empty: off
    period_s: float = 60.0
    timeout_s: float = 30.0  # of one run


class PowerConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the GPUs that jobs hold in some nodes may draw together."""

    name: str
    nodes: str  # a range: "n[001-016]"
    watts: float


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    name: str = ""  # of this replica; the host's name where empty
    listen: str = "127.0.0.1:7070"
    advertise: str = ""  # what clients reach it by; `listen` where empty
    fabric: str | FabricConfig = FabricConfig()  # a string is its `file`
    metrics_listen: str = ""  # host:port for Prometheus; empty: none
    solve_deterministic_s: float = 5.0
    tls: TlsConfig = TlsConfig()
    etcd: EtcdConfig = EtcdConfig()
    timeouts: Timeouts = Timeouts()
    power: tuple[PowerConfig, ...] = ()
    prices: dict[str, float] = {}  # of a GPU-hour, by GPU family ("h100")

    @property
    def power_budgets(self) -> tuple[PowerBudget, ...]:
        return tuple(PowerBudget(each.name, frozenset(expand(each.nodes)), each.watts) for each in self.power)

    @property
    def fabric_source(self) -> FabricConfig:
        return FabricConfig(file=self.fabric) if isinstance(self.fabric, str) else self.fabric

    def named(self) -> str:
        return self.name or socket.gethostname()


def load(path: str | None, overrides: dict[str, Any]) -> Config:
    """`overrides` are flags by field name ("etcd.endpoints" for a nested one), over the file. Raises ConfigError."""
    where = path or "flags"
    raw: dict[str, Any] = {}
    if path:
        try:
            raw = msgspec.toml.decode(Path(path).read_bytes())
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror}") from error
        except msgspec.DecodeError as error:
            raise ConfigError(f"{path}: {error}") from error
    for name, value in overrides.items():
        target = raw
        *parents, leaf = name.split(".")
        if not parents and isinstance(raw.get(leaf), dict):
            parents, leaf = [leaf], "file"  # --fabric FILE over a [fabric] table
        for parent in parents:
            target = target.setdefault(parent, {})
        target[leaf] = value
    try:
        config = msgspec.convert(raw, Config)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where}: {error}") from error
    _check(where, config)
    return config


def _check(where: str, config: Config) -> None:
    for key in ("listen", "advertise", "metrics_listen"):
        value = getattr(config, key)
        if value and not _is_address(value):
            raise ConfigError(f"{where}: {key}: found {value!r}; allowed is host:port")
    if not config.advertise and config.listen.startswith(EVERY_ADDRESS):
        allowed = "the host:port that clients reach this replica by (followers send them there)"
        raise ConfigError(f"{where}: advertise: found '' while listen is {config.listen!r}; allowed: {allowed}")
    if not config.etcd.endpoints:
        raise ConfigError(f"{where}: etcd.endpoints: found none; at least one host:port is needed")
    for endpoint in config.etcd.endpoints:
        if not _is_address(endpoint):
            raise ConfigError(f"{where}: etcd.endpoints: found {endpoint!r}; allowed is host:port")
    _check_files(where, config)
    _check_fabric(where, config.fabric_source)
    _check_power(where, config.power)
    _check_prices(where, config.prices)
    timeouts = config.timeouts
    for key in timeouts.__struct_fields__:
        if getattr(timeouts, key) <= 0:
            raise ConfigError(f"{where}: timeouts.{key}: found {getattr(timeouts, key)}; seconds over 0 are allowed")
    fenced_s = timeouts.agent_fence_after_s + timeouts.agent_fence_grace_s
    if timeouts.node_lost_after_s <= fenced_s:
        raise ConfigError(
            f"{where}: timeouts.node_lost_after_s: found {timeouts.node_lost_after_s:g}; it must exceed agent_fence_after_s + "
            f"agent_fence_grace_s = {fenced_s:g}, or two attempts of a job could run at once"
        )
    if config.etcd.election_ttl_s < 2:
        raise ConfigError(f"{where}: etcd.election_ttl_s: found {config.etcd.election_ttl_s:g}; at least 2 is allowed")


def _check_fabric(where: str, fabric: FabricConfig) -> None:
    if fabric.file and fabric.discover:
        found = f"{fabric.file!r} and {list(fabric.discover)!r}"
        raise ConfigError(f"{where}: fabric.file, fabric.discover: found {found}; allowed: one of the two")
    if fabric.discover and not fabric.discover[0]:
        raise ConfigError(f"{where}: fabric.discover: found '' as the command; allowed: a program and its arguments")
    for key in ("period_s", "timeout_s"):
        if not 0 < getattr(fabric, key) <= FABRIC_SECONDS_MAX:
            found, most = getattr(fabric, key), f"{FABRIC_SECONDS_MAX:g}"
            raise ConfigError(f"{where}: fabric.{key}: found {found}; seconds over 0 and up to {most} are allowed")


def _check_power(where: str, power: tuple[PowerConfig, ...]) -> None:
    for number, each in enumerate(power):
        if not each.name or each.name in {other.name for other in power[:number]}:
            raise ConfigError(f"{where}: power[{number}].name: found {each.name!r}; allowed: a name, and each once")
        try:
            expand(each.nodes)
        except ValueError as error:
            raise ConfigError(f"{where}: power[{number}].nodes: {error}") from error
        if not 0 <= each.watts < float("inf"):
            raise ConfigError(f"{where}: power[{number}].watts: found {each.watts}; allowed: W, not negative")


def _check_prices(where: str, prices: dict[str, float]) -> None:
    for family, price in prices.items():
        if not FAMILY.fullmatch(family):
            raise ConfigError(
                f"{where}: prices: found {family!r}; allowed: GPU families as fmctl get gpus names them, such as h100"
            )
        if not 0 <= price <= PRICE_MAX:
            raise ConfigError(f"{where}: prices.{family}: found {price}; allowed: of a GPU-hour, from 0 to {PRICE_MAX:g}")


def _check_files(where: str, config: Config) -> None:
    tls, etcd = config.tls, config.etcd
    fault = (
        server_fault("tls", tls.cert, tls.key, tls.client_ca)
        or client_fault("tls.agents", tls.agents.ca, tls.agents.cert, tls.agents.key)
        or client_fault("etcd", etcd.ca, etcd.cert, etcd.key)
    )
    if fault:
        raise ConfigError(f"{where}: {fault}")
    if bool(etcd.user) != bool(etcd.password_file):
        found = f"{etcd.user!r} and {etcd.password_file!r}"
        raise ConfigError(f"{where}: etcd.user, etcd.password_file: found {found}; allowed: both or neither")


def _is_address(text: str) -> bool:
    match = _ADDRESS.fullmatch(text)
    return match is not None and int(match[2]) < 65536
