"""The stores that the contract holds for: memory, and etcd 3.4 and 3.5, one member and three, plain and TLS."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from itertools import product
from typing import Literal
from uuid import uuid4

import pytest

from fmproto.etcd import Etcd
from fmproto.kv import KV
from fmsched.store.memory import MemoryStore
from tests.support.etcd import EtcdServer, Version, start_etcd
from tests.support.relay import Relay

Kind = tuple[Version, Literal[1, 3], bool]
VERSIONS: tuple[Version, ...] = ("3.4", "3.5")
SIZES: tuple[Literal[1, 3], ...] = (1, 3)
KINDS: list[Kind | None] = [None, *product(VERSIONS, SIZES, (False, True))]

# Short, so that cuts are noticed within a second.
WATCH_PERIOD_S = 0.15
REQUEST_TIMEOUT_S = 4.0
IMPATIENT_S = 0.5


def kind_name(kind: Kind | None) -> str:
    if kind is None:
        return "memory"
    version, members, tls = kind
    return f"etcd{version}-{members}-{'tls' if tls else 'plain'}"


@pytest.fixture(scope="session", params=KINDS, ids=kind_name)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer | None]:
    """One server for all tests of its kind; None stands for memory."""
    kind: Kind | None = request.param
    if kind is None:
        yield None
        return
    version, members, tls = kind
    with start_etcd(tmp_path_factory.mktemp("etcd"), version, members=members, tls=tls, fsync=False) as running:
        yield running


class Store:
    """One store under test: `kv` as its users see it, `beside` as another process would, and a network that can be cut
    under `kv` alone."""

    def __init__(self, server: EtcdServer | None, relays: list[Relay]) -> None:
        self.server = server
        self._relays = relays
        self._memory = MemoryStore(follow_period_s=WATCH_PERIOD_S)
        self._opened: list[KV] = []
        self.kv = self.open([relay.endpoint for relay in relays])
        self.beside = self.open(server.endpoints if server is not None else [])

    def impatient(self) -> KV:
        """As `kv`, cut off with it, but waiting for at most IMPATIENT_S."""
        if self.server is None:
            return self._memory
        return self.open([relay.endpoint for relay in self._relays], IMPATIENT_S)

    def open(self, endpoints: list[str], timeout_s: float = REQUEST_TIMEOUT_S) -> KV:
        if self.server is None:
            opened: KV = self._memory if not self._opened else self._memory.beside()
        else:
            opened = Etcd(endpoints, tls=self.server.tls, request_timeout_s=timeout_s, watch_period_s=WATCH_PERIOD_S)
        self._opened.append(opened)
        return opened

    def cut(self) -> None:
        self._memory.reachable = False
        for relay in self._relays:
            relay.cut()

    def heal(self) -> None:
        self._memory.reachable = True
        for relay in self._relays:
            relay.heal()

    async def close(self) -> None:
        for opened in self._opened:
            await opened.close()


@pytest.fixture
async def store(server: EtcdServer | None) -> AsyncIterator[Store]:
    relays = [Relay(endpoint) for endpoint in server.endpoints] if server is not None else []
    for relay in relays:
        await relay.start()
    made = Store(server, relays)
    yield made
    await made.close()
    for relay in relays:
        await relay.stop()


@pytest.fixture
def kv(store: Store) -> KV:
    return store.kv


@pytest.fixture
def prefix() -> str:
    """The server is shared; the keys are not."""
    return f"/{uuid4().hex[:8]}/"
