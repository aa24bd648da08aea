"""fmproto.etcd alone: lists and backlogs over the message limit, and keys that nobody here would write."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from fmproto.channel import MESSAGE_BYTES_MAX
from fmproto.etcd import Etcd
from fmproto.kv import OPERATIONS_MAX, Changes, Put
from tests.support.etcd import EtcdServer, Version, start_etcd
from tests.support.following import Following
from tests.support.relay import Relay


@pytest.fixture(scope="module", params=["3.4", "3.5"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    version: Version = request.param
    with start_etcd(tmp_path_factory.mktemp("large"), version, fsync=False) as running:
        yield running


async def test_a_list_longer_than_a_message_is_read(server: EtcdServer) -> None:
    etcd = Etcd(server.endpoints, request_timeout_s=20.0)
    value = bytes(1_400_000)
    count = MESSAGE_BYTES_MAX // len(value) + 5
    # Small ones first, so that the pages have grown when the large ones come.
    await etcd.write([], [Put(f"/big/a{number:03}", b"v") for number in range(OPERATIONS_MAX)])
    for number in range(count):
        await etcd.write([], [Put(f"/big/b{number:03}", value)])

    page = await etcd.read("/big/")

    assert len(page.entries) == OPERATIONS_MAX + count
    assert sum(len(entry.value) for entry in page.entries) > MESSAGE_BYTES_MAX
    server.ctl("del", "--prefix", "/big/")
    await etcd.close()


async def test_a_hundred_thousand_keys_are_read(server: EtcdServer) -> None:
    etcd = Etcd(server.endpoints, request_timeout_s=20.0)
    keys = [f"/many/{number:06}" for number in range(100_000)]

    async def write(start: int) -> None:
        await etcd.write([], [Put(key, b"v") for key in keys[start : start + OPERATIONS_MAX]])

    starts = range(0, len(keys), OPERATIONS_MAX)
    for batch in range(0, len(starts), 16):
        await asyncio.gather(*(write(start) for start in starts[batch : batch + 16]))

    page = await etcd.read("/many/")

    assert [entry.key for entry in page.entries] == keys
    server.ctl("del", "--prefix", "/many/")
    await etcd.close()


async def test_a_backlog_longer_than_a_message_is_told_in_pieces(server: EtcdServer) -> None:
    """Without fragments etcd sends up to 1,000 revisions in one message, and a follower that lags by more never catches
    up."""
    relay = Relay(server.endpoints[0])
    await relay.start()
    etcd, beside = Etcd([relay.endpoint], watch_period_s=0.3), Etcd(server.endpoints, request_timeout_s=20.0)
    # Five values fill one of etcd's fragments of 2 MiB, so that fragments end between the two keys of a revision.
    value = bytes(400_000)
    count = MESSAGE_BYTES_MAX // (2 * len(value)) + 10
    async with Following(etcd, "/backlog/") as seen:
        await seen.until(lambda me: len(me.items) >= 2)
        relay.cut()
        for number in range(count):
            await beside.write([], [Put(f"/backlog/{number}{end}", value) for end in "ab"])
        relay.reset()
        relay.heal()
        await seen.until(lambda me: len(me.changes) >= 2 * count, within_s=60)

    assert [change.key for change in seen.changes] == [f"/backlog/{number}{end}" for number in range(count) for end in "ab"]
    assert all(len(item.changes) % 2 == 0 for item in seen.items if isinstance(item, Changes)), "pairs stay together"
    assert len(seen.resyncs) == 1
    server.ctl("del", "--prefix", "/backlog/")
    await etcd.close()
    await beside.close()
    await relay.stop()


async def test_a_foreign_key_that_is_not_text_stops_nobody(server: EtcdServer) -> None:
    etcd = Etcd(server.endpoints)
    async with Following(etcd, "/foreign/") as seen:
        await seen.synced()
        server.ctl("put", b"/foreign/\xff\xfe".decode(errors="surrogateescape"), "v")
        await seen.until(lambda me: len(me.changes) == 1)
    (entry,) = (await etcd.read("/foreign/")).entries

    assert entry.key.encode(errors="surrogateescape") == b"/foreign/\xff\xfe"
    assert await etcd.get(entry.key) == entry
    await etcd.close()
