"""What every store promises of leases (fmproto.kv.KV)."""

from __future__ import annotations

import asyncio

import pytest

from fmproto.kv import KV, Conflict, Guard, LeaseGone, Put
from tests.contract.conftest import Store
from tests.support.following import Following


async def test_a_lease_that_is_not_renewed_ends_with_its_keys_and_followers_see_it(store: Store, prefix: str) -> None:
    kept, lost = await store.kv.grant(1.0), await store.kv.grant(1.0)
    await store.kv.write(
        [], [Put(prefix + "kept", b"v", kept), Put(prefix + "a", b"v", lost), Put(prefix + "b", b"v", lost)]
    )

    async def renew() -> None:
        while True:
            await store.kv.renew(kept)
            await asyncio.sleep(0.2)

    renewing = asyncio.create_task(renew())
    async with Following(store.beside, prefix) as seen:
        await seen.until(lambda me: set(me.picture) == {prefix + "kept"}, within_s=10)
        entry = await store.kv.get(prefix + "kept")
        renewing.cancel()
        gone = [change for change in seen.changes if change.entry is None]

    assert entry is not None
    assert entry.lease == kept
    assert sorted(change.key for change in gone) == [prefix + "a", prefix + "b"]
    assert len({change.revision for change in gone}) == 1, "the keys of one lease go together"
    with pytest.raises(LeaseGone):
        await store.kv.renew(lost)
    await store.kv.revoke(kept)


async def test_revoking_ends_a_lease_and_its_keys_at_once(kv: KV, prefix: str) -> None:
    lease = await kv.grant(60.0)
    await kv.write([], [Put(prefix + "a", b"v", lease), Put(prefix + "free", b"v")])

    await kv.revoke(lease)
    await kv.revoke(lease)

    assert [entry.key for entry in (await kv.read(prefix)).entries] == [prefix + "free"]


async def test_a_lease_that_never_was_is_gone(kv: KV, prefix: str) -> None:
    with pytest.raises(LeaseGone):
        await kv.renew(123_456_789)
    await kv.revoke(123_456_789)


async def test_a_put_under_an_ended_lease_is_refused_whole(kv: KV, prefix: str) -> None:
    lease = await kv.grant(60.0)
    await kv.revoke(lease)
    before = await kv.read(prefix)

    with pytest.raises(LeaseGone):
        await kv.write([], [Put(prefix + "free", b"v"), Put(prefix + "a", b"v", lease)])
    guard = Guard(prefix + "absent", mod_revision=1)
    assert isinstance(await kv.write([guard], [Put(prefix + "a", b"v", lease)]), Conflict)

    assert (await kv.read(prefix)).entries == before.entries


@pytest.mark.parametrize("onto", ["no lease", "another lease"])
async def test_a_put_moves_a_key_to_its_new_lease(kv: KV, prefix: str, onto: str) -> None:
    first = await kv.grant(60.0)
    second = await kv.grant(60.0) if onto == "another lease" else 0
    await kv.write([], [Put(prefix + "a", b"1", first)])
    await kv.write([], [Put(prefix + "a", b"2", second)])

    await kv.revoke(first)
    assert await kv.get(prefix + "a") is not None

    await kv.revoke(second)
    assert (await kv.get(prefix + "a") is None) == (onto == "another lease")


async def test_leases_are_told_apart(kv: KV) -> None:
    leases = [await kv.grant(60.0) for _ in range(20)]

    assert len(set(leases)) == 20
    assert 0 not in leases
    for lease in leases:
        await kv.revoke(lease)


@pytest.mark.parametrize("ttl_s", [0.0, -1.0, 1e9, float("nan")])
async def test_a_lease_needs_a_time_to_live_that_makes_sense(kv: KV, ttl_s: float) -> None:
    with pytest.raises(ValueError, match="ttl_s"):
        await kv.grant(ttl_s)
