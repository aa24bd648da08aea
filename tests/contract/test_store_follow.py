"""What every store promises of followers (fmproto.kv.KV.follow)."""

from __future__ import annotations

import asyncio

import pytest

from fmproto.kv import KV, Changes, Delete, Put, Resync, StoreUnavailable
from tests.contract.conftest import WATCH_PERIOD_S, Store
from tests.support.following import Following


async def test_first_the_whole_picture_then_each_change_once_and_in_order(kv: KV, prefix: str) -> None:
    await kv.write([], [Put(prefix + "old", b"1"), Put(prefix + "older", b"1")])
    async with Following(kv, prefix) as seen:
        await seen.synced()
        expected = []
        for number in range(30):
            revision = await kv.write([], [Put(f"{prefix}{number % 7}", b"%d" % number)])
            expected.append((f"{prefix}{number % 7}", b"%d" % number, revision))
        await seen.until(lambda me: len(me.changes) >= 30)
        told = [(change.key, change.entry.value if change.entry else None, change.revision) for change in seen.changes]

    first = seen.items[0]
    assert isinstance(first, Resync)
    assert [entry.key for entry in first.entries] == [prefix + "old", prefix + "older"]
    assert len(seen.resyncs) == 1
    assert told == expected
    revisions = [item.revision for item in seen.items]
    assert revisions == sorted(revisions)


async def test_a_follower_knows_what_a_reader_reads(kv: KV, prefix: str) -> None:
    async with Following(kv, prefix) as seen:
        await seen.synced()
        lease = await kv.grant(60.0)
        await kv.write([], [Put(prefix + "a", b"1"), Put(prefix + "b", b"1", lease)])
        await kv.write([], [Put(prefix + "a", b"2")])
        await seen.until(lambda me: len(me.changes) == 3)
        told = {change.key: change.entry for change in seen.changes}

    page = await kv.read(prefix)
    assert tuple(told[entry.key] for entry in page.entries) == page.entries
    await kv.revoke(lease)


async def test_deletions_are_told_with_their_revision(kv: KV, prefix: str) -> None:
    await kv.write([], [Put(prefix + "a", b"1"), Put(prefix + "b", b"1")])
    async with Following(kv, prefix) as seen:
        await seen.synced()
        deleted = await kv.write([], [Delete(prefix + "a")])
        await kv.write([], [Delete(prefix + "a")])
        again = await kv.write([], [Put(prefix + "a", b"2")])
        await seen.until(lambda me: len(me.changes) >= 2)

    assert [(change.key, change.entry is None, change.revision) for change in seen.changes] == [
        (prefix + "a", True, deleted),
        (prefix + "a", False, again),
    ]


async def test_other_prefixes_are_not_told(kv: KV, prefix: str) -> None:
    async with Following(kv, prefix + "mine/") as seen:
        await seen.synced()
        await kv.write([], [Put(prefix + "mine", b"1"), Put(prefix + "mine0", b"1"), Put(prefix + "other/a", b"1")])
        await kv.write([], [Put(prefix + "mine/a", b"1")])
        await seen.until(lambda me: len(me.changes) >= 1)

    assert [change.key for change in seen.changes] == [prefix + "mine/a"]


async def test_the_changes_of_one_write_come_together(kv: KV, prefix: str) -> None:
    async with Following(kv, prefix) as seen:
        await seen.synced()
        keys = [f"{prefix}{number:03}" for number in range(128)]
        for value in (b"1", b"2"):
            await kv.write([], [Put(key, value) for key in keys])
        await seen.until(lambda me: len(me.changes) >= 256)

    for item in seen.items:
        if isinstance(item, Changes):
            counts = [sum(change.revision == revision for change in item.changes) for revision in _revisions(item)]
            assert all(count == 128 for count in counts)


def _revisions(item: Changes) -> set[int]:
    return {change.revision for change in item.changes}


async def test_followers_that_start_at_any_time_end_with_the_same_picture(store: Store, prefix: str) -> None:
    async def write() -> None:
        for number in range(120):
            key = f"{prefix}{number % 11}"
            await store.beside.write([], [Delete(key) if number % 4 == 3 else Put(key, b"%d" % number)])

    writing = asyncio.create_task(write())
    async with Following(store.kv, prefix) as early, Following(store.beside, prefix) as beside:
        await early.until(lambda me: len(me.changes) > 20)
        async with Following(store.kv, prefix) as later:
            await writing
            await store.beside.write([], [Put(prefix + "last", b"")])
            everyone = (early, beside, later)
            for seen in everyone:
                await seen.until(lambda me: prefix + "last" in me.picture)
    truth = {entry.key: entry.value for entry in (await store.kv.read(prefix)).entries}

    for seen in everyone:
        assert seen.picture == truth
        revisions = [change.revision for change in seen.changes]
        assert revisions == sorted(set(revisions)), "each write here is one change: none is told twice"
        assert all(revision > seen.resyncs[0].revision for revision in revisions)


async def test_a_quiet_follower_is_told_that_the_store_lives(kv: KV, prefix: str) -> None:
    async with Following(kv, prefix) as seen:
        await seen.until(lambda me: len(me.items) >= 5)

    assert seen.changes == []
    pauses = [later - sooner for sooner, later in zip(seen.told_at_s, seen.told_at_s[1:], strict=False)]
    assert max(pauses) < 3 * WATCH_PERIOD_S + 1.0


async def test_a_follower_cut_off_catches_up_without_a_new_picture(store: Store, prefix: str) -> None:
    async with Following(store.kv, prefix) as seen:
        await store.kv.write([], [Put(prefix + "a", b"before")])
        await seen.until(lambda me: len(me.changes) == 1 or prefix + "a" in me.picture)
        store.cut()
        told = len(seen.items)
        async with Following(store.beside, prefix) as witness:
            for number in range(20):
                await store.beside.write([], [Put(f"{prefix}{number}", b"during")])
            await witness.until(lambda me: len(me.picture) == 21)
            # Long enough for the follower to give its stream up.
            await witness.until(lambda me: len(me.items) > 2 and me.told_at_s[-1] - me.told_at_s[0] > 4 * WATCH_PERIOD_S)
        told_during = seen.items[told:]
        store.heal()
        await seen.until(lambda me: len(me.picture) == 21)
        await store.beside.write([], [Put(prefix + "a", b"after")])
        await seen.until(lambda me: me.picture[prefix + "a"] == b"after")

    # At most one sign of life that was on its way already.
    assert [item.changes for item in told_during if isinstance(item, Changes)] in ([], [()])
    assert len(seen.resyncs) == 1
    keys = [change.key for change in seen.changes if change.entry is not None and change.entry.value == b"during"]
    assert keys == [f"{prefix}{number}" for number in range(20)]


async def test_compaction_during_a_cut_gives_a_new_picture(store: Store, prefix: str) -> None:
    await store.kv.write([], [Put(prefix + "deleted", b"1"), Put(prefix + "kept", b"1")])
    async with Following(store.kv, prefix) as seen:
        await seen.synced()
        store.cut()
        async with Following(store.beside, prefix) as witness:
            await store.beside.write([], [Delete(prefix + "deleted")])
            for number in range(5):
                revision = await store.beside.write([], [Put(prefix + "kept", b"%d" % number)])
            assert isinstance(revision, int)
            await store.beside.compact(revision)
            await witness.until(lambda me: len(me.items) > 2 and me.told_at_s[-1] - me.told_at_s[0] > 4 * WATCH_PERIOD_S)
        store.heal()
        await seen.until(lambda me: len(me.resyncs) == 2)
        assert seen.picture == {prefix + "kept": b"4"}
        await store.beside.write([], [Put(prefix + "new", b"1")])
        await seen.until(lambda me: prefix + "new" in me.picture)

    assert [change.key for change in seen.changes] == [prefix + "new"]


async def test_compaction_does_not_disturb_a_follower_that_keeps_up(kv: KV, prefix: str) -> None:
    async with Following(kv, prefix) as seen:
        await seen.synced()
        for number in range(5):
            revision = await kv.write([], [Put(prefix + "a", b"%d" % number)])
            assert isinstance(revision, int)
            await seen.until(lambda me: bool(me.changes) and me.changes[-1].revision == revision)  # noqa: B023
            await kv.compact(revision)

    assert len(seen.resyncs) == 1
    assert [change.entry.value for change in seen.changes if change.entry] == [b"0", b"1", b"2", b"3", b"4"]


async def test_a_follower_started_after_compaction_has_the_picture(kv: KV, prefix: str) -> None:
    revision = await kv.write([], [Put(prefix + "a", b"1")])
    assert isinstance(revision, int)
    await kv.compact(revision)

    async with Following(kv, prefix) as seen:
        await seen.synced()

    assert seen.picture == {prefix + "a": b"1"}


async def test_a_slow_consumer_loses_nothing(kv: KV, prefix: str) -> None:
    """It takes longer over each item than the watch may be silent."""
    seen: list[bytes] = []
    follower = kv.follow(prefix)
    first = await anext(follower)
    assert isinstance(first, Resync)
    for number in range(3):
        await kv.write([], [Put(prefix + "a", b"%d" % number)])
        # The slowness itself, once over: nothing is waited for here.
        await asyncio.sleep(4 * WATCH_PERIOD_S if number == 1 else 0)
        async with asyncio.timeout(10):
            while len(seen) <= number:
                item = await anext(follower)
                assert isinstance(item, Changes)
                seen += [change.entry.value for change in item.changes if change.entry]
    await follower.aclose()  # type: ignore[attr-defined]

    assert seen == [b"0", b"1", b"2"]


@pytest.mark.parametrize("how", ["cancelled", "closed"])
async def test_a_follower_that_is_ended_leaves_no_task(kv: KV, prefix: str, how: str) -> None:
    await kv.write([], [Put(prefix + "a", b"1")])
    before = asyncio.all_tasks()
    follower = kv.follow(prefix)
    assert isinstance(await anext(follower), Resync)
    assert isinstance(await anext(follower), Changes)
    if how == "cancelled":
        waiting = asyncio.ensure_future(anext(follower))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    else:
        await follower.aclose()  # type: ignore[attr-defined]
    async with asyncio.timeout(5):
        while left := asyncio.all_tasks() - before:
            await asyncio.wait(left)
    with pytest.raises(StopAsyncIteration):
        await anext(follower)


async def test_closing_the_store_ends_its_followers(store: Store, prefix: str) -> None:
    async with Following(store.kv, prefix) as seen:
        await seen.synced()
        await store.kv.close()
        assert isinstance(await seen.ended(), StoreUnavailable)


async def test_closing_ends_followers_that_are_cut_off(store: Store, prefix: str) -> None:
    async with Following(store.kv, prefix) as seen, Following(store.beside, prefix) as witness:
        await seen.synced()
        store.cut()
        await witness.until(lambda me: len(me.items) > 2 and me.told_at_s[-1] - me.told_at_s[0] > 6 * WATCH_PERIOD_S)
        await store.kv.close()
        assert isinstance(await seen.ended(), StoreUnavailable)
