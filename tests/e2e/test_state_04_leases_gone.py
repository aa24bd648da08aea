"""Story state-04, at the level of the store: every lease ends at once; and leases that outlive a store that restarts
again and again.

What the scheduler makes of it (hold, rather than declare every node lost) is tested with the scheduler."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from fmproto.etcd import Etcd
from fmproto.kv import KV, LeaseGone, Put, StoreUnavailable
from tests.support.etcd import EtcdServer, Version, start_etcd
from tests.support.following import Following

NODES = 100
TTL_S = 6.0
BACK_S_MAX = 30.0


@pytest.fixture(params=["3.4", "3.5"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[EtcdServer]:
    version: Version = request.param
    with start_etcd(tmp_path / "leases", version) as running:
        yield running


async def stay_alive(kv: KV, key: str, leases: dict[str, int]) -> None:
    """A light agent: registers, renews, and registers again when its lease is gone."""
    while True:
        with suppress(LeaseGone, StoreUnavailable):
            leases[key] = await kv.grant(TTL_S)
            await kv.write([], [Put(key, b"alive", leases[key])])
            while True:
                await asyncio.sleep(TTL_S / 6)
                await kv.renew(leases[key])


@pytest.mark.parametrize("gone", [NODES, 1])
async def test_nodes_whose_leases_are_revoked_are_back_by_themselves(server: EtcdServer, gone: int) -> None:
    kv, outside = Etcd(server.endpoints), Etcd(server.endpoints, watch_period_s=0.3)
    leases: dict[str, int] = {}
    agents = [asyncio.create_task(stay_alive(kv, f"/nodes/{number:03}", leases)) for number in range(NODES)]
    async with Following(outside, "/nodes/") as seen:
        await seen.until(lambda me: len(me.picture) == NODES, within_s=BACK_S_MAX)
        before = len(seen.changes)
        victims = sorted(leases)[:gone]
        await asyncio.gather(*(outside.revoke(leases[key]) for key in victims))
        await seen.until(lambda me: len(me.changes) >= before + 2 * gone and len(me.picture) == NODES, within_s=BACK_S_MAX)
        changes = seen.changes[before:]
    for agent in agents:
        agent.cancel()
    await asyncio.gather(*agents, return_exceptions=True)
    await kv.close()
    await outside.close()

    assert sorted(change.key for change in changes if change.entry is None) == victims, "each loss is told once"
    assert sorted(change.key for change in changes if change.entry is not None) == victims, "each return is told once"
    assert len(seen.resyncs) == 1


async def test_each_restart_of_the_store_starts_a_dead_nodes_lease_afresh(server: EtcdServer) -> None:
    """Why the key alone proves no life, and the scheduler counts silence by its own clock too. When the restarts end, so
    does the lease; the living node's key is there throughout, and followers hear of each thing once."""
    ttl_s = 2.0
    kv = Etcd(server.endpoints, request_timeout_s=2.0, watch_period_s=0.3)
    loop = asyncio.get_running_loop()
    dead, living = await kv.grant(ttl_s), await kv.grant(ttl_s)
    await kv.write([], [Put("/nodes/dead", b"alive", dead), Put("/nodes/living", b"alive", living)])

    async def renew() -> None:
        while True:
            with suppress(StoreUnavailable):
                await kv.renew(living)
            await asyncio.sleep(ttl_s / 10)

    renewing = asyncio.create_task(renew())
    started = loop.time()
    async with Following(kv, "/nodes/") as seen:
        await seen.synced()
        while loop.time() < started + 2.5 * ttl_s:
            server.members[0].kill()
            server.members[0].start()
            await asyncio.to_thread(server.wait_ready)
            await asyncio.sleep(ttl_s / 4)
        outlived = await kv.get("/nodes/dead")
        await seen.until(lambda me: set(me.picture) == {"/nodes/living"}, within_s=ttl_s + 5)
    renewing.cancel()
    await asyncio.gather(renewing, return_exceptions=True)
    await kv.close()

    assert outlived is not None, "long past its time to live"
    assert [(change.key, change.entry) for change in seen.changes] == [("/nodes/dead", None)]
    assert len(seen.resyncs) == 1
