"""Story state-05, at the level of the store: a client whose keepalive is more eager than etcd allows."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from fmproto.channel import CLIENT_PING_MS, Options, client_options
from fmproto.etcd import Etcd
from fmproto.kv import Put
from tests.support.etcd import any_etcd, start_etcd
from tests.support.following import Following, poll
from tests.support.relay import Relay

ETCD_PING_MIN_MS = 5_000
RECOVERED_S_MAX = 60.0
IDLE_CLIENTS = 200


def pinging(every_ms: int) -> Options:
    """The client's own options, but for how often it pings, also when nothing is asked."""
    changed = {"grpc.keepalive_time_ms": every_ms, "grpc.keepalive_permit_without_calls": 1}
    return [*{**dict(client_options()), **changed}.items()]


def test_the_clients_interval_is_over_etcds_minimum() -> None:
    assert CLIENT_PING_MS >= 2 * ETCD_PING_MIN_MS


@pytest.mark.parametrize(
    ("server_min_ms", "client_ms", "stable_s"),
    [
        pytest.param(1_500, 500, 5.0, id="scaled"),
        pytest.param(ETCD_PING_MIN_MS, 1_000, 20.0, id="real", marks=[pytest.mark.slow, pytest.mark.timeout(180)]),
    ],
)
async def test_a_client_that_pings_too_often_becomes_stable_and_loses_nothing(
    tmp_path: Path, server_min_ms: int, client_ms: int, stable_s: float
) -> None:
    """etcd cuts it off with GOAWAY too_many_pings; grpc-core then doubles the interval of that channel, so it must be
    kept. The watch period is long here, since any answer of the server resets its count of pings."""
    with start_etcd(tmp_path / "one", any_etcd(), extra=[f"--grpc-keepalive-min-time={server_min_ms}ms"]) as server:
        relay = Relay(server.endpoints[0])
        await relay.start()
        eager = Etcd([relay.endpoint], watch_period_s=60.0, options=pinging(client_ms))
        beside = Etcd(server.endpoints)
        loop = asyncio.get_running_loop()
        started, connected, written = loop.time(), 0, 0
        async with Following(eager, "/") as seen:
            await seen.until(lambda me: len(me.items) >= 2)
            while loop.time() < started + RECOVERED_S_MAX and connected != relay.accepted:
                connected = relay.accepted
                await beside.write([], [Put("/n", b"%d" % written)])
                written += 1
                try:
                    await poll(lambda: relay.accepted > connected, stable_s)  # noqa: B023  awaited at once
                except TimeoutError:
                    recovered_s = loop.time() - stable_s - started
            await beside.write([], [Put("/n", b"%d" % written)])
            await seen.until(lambda me: me.picture.get("/n") == b"%d" % written)
        await eager.close()
        await beside.close()
        await relay.stop()

    assert connected > 2, "it was cut off at all"
    assert recovered_s < RECOVERED_S_MAX
    assert [int(change.entry.value) for change in seen.changes if change.entry is not None] == list(range(written + 1))
    assert len(seen.resyncs) == 1


@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_many_idle_clients_keep_their_connections(tmp_path: Path) -> None:
    """Two clients' ping intervals, and every channel is still its first one."""
    with start_etcd(tmp_path / "one", any_etcd()) as server:
        relay = Relay(server.endpoints[0])
        await relay.start()
        clients = [Etcd([relay.endpoint], watch_period_s=120.0) for _ in range(IDLE_CLIENTS)]
        followings = [Following(client, "/") for client in clients]
        for following in followings:
            await following.__aenter__()
        for following in followings:
            await following.until(lambda me: len(me.items) >= 2, within_s=60)
        await asyncio.sleep(2.5 * CLIENT_PING_MS / 1_000)
        accepted, open_now = relay.accepted, relay.connections
        for following in followings:
            await following.__aexit__(None, None, None)
        for client in clients:
            await client.close()
        await relay.stop()

    assert (accepted, open_now) == (IDLE_CLIENTS, IDLE_CLIENTS)
