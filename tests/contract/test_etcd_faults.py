"""fmproto.etcd alone: members that die, freeze or lose their leader, answers that are lost, stores that are replaced."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from fmproto.etcd import Etcd, StoreReplaced
from fmproto.kv import Put, StoreUnavailable
from tests.support.etcd import EtcdServer, Version, any_etcd, free_port, start_etcd
from tests.support.following import Following
from tests.support.relay import Relay

PERIOD_S = 0.2
TIMEOUT_S = 4.0
# After the silence is noticed: connecting elsewhere, and etcd's own election (1 s) where the leader is gone.
MARGIN_S = 8.0


@asynccontextmanager
async def connected(endpoints: list[str], **settings: float) -> AsyncIterator[Etcd]:
    etcd = Etcd(endpoints, **{"request_timeout_s": TIMEOUT_S, "watch_period_s": PERIOD_S, **settings})  # type: ignore[arg-type]
    try:
        yield etcd
    finally:
        await etcd.close()


@pytest.fixture
def three(tmp_path: Path) -> Iterator[EtcdServer]:
    with start_etcd(tmp_path / "three", any_etcd(), members=3) as server:
        yield server


@pytest.fixture
def one(tmp_path: Path) -> Iterator[EtcdServer]:
    with start_etcd(tmp_path / "one", any_etcd()) as server:
        yield server


async def test_reads_and_writes_pass_over_members_that_are_down(three: EtcdServer) -> None:
    async with connected(three.endpoints) as etcd:
        await etcd.write([], [Put("/a", b"1")])
        three.members[0].kill()
        await _eventually_writes(etcd, "/a", b"2")
        entry = await etcd.get("/a")
    async with connected([f"127.0.0.1:{free_port()}", *three.endpoints]) as fresh:
        # Two dead endpoints before a live one: nothing was sent to them, so even a write goes on.
        assert isinstance(await fresh.write([], [Put("/a", b"3")]), int)

    assert entry is not None
    assert entry.value == b"2"


async def _eventually_writes(etcd: Etcd, key: str, value: bytes) -> None:
    """Writes again until one succeeds: the first after a fault may end with an unknown result, or meet an election."""
    async with asyncio.timeout(MARGIN_S):
        while True:
            try:
                await etcd.write([], [Put(key, value)])
            except StoreUnavailable:
                await asyncio.sleep(0.1)
            else:
                return


@pytest.mark.parametrize("fault", ["killed", "frozen"])
async def test_a_follower_moves_to_another_member_and_loses_nothing(three: EtcdServer, fault: str) -> None:
    async with connected(three.endpoints) as etcd, connected(three.endpoints[1:]) as other:
        async with Following(etcd, "/") as seen:
            await seen.until(lambda me: len(me.items) >= 2)
            await etcd.write([], [Put("/n", b"0")])
            if fault == "killed":
                three.members[0].kill()
            else:
                three.members[0].freeze()
            for number in range(1, 20):
                await _eventually_writes(other, "/n", b"%d" % number)
            await seen.until(lambda me: me.picture.get("/n") == b"19", within_s=3 * PERIOD_S + MARGIN_S)
            values = [int(change.entry.value) for change in seen.changes if change.entry is not None]
            revisions = [change.revision for change in seen.changes]
        # Reads too, though the frozen member took the connection.
        assert (await other.get("/n")) == (await etcd.get("/n"))

    assert len(seen.resyncs) == 1
    assert revisions == sorted(set(revisions))
    assert sorted(set(values)) == list(range(20))


async def test_a_member_without_a_leader_gives_no_sign_of_life(three: EtcdServer) -> None:
    """It answers, from old state. Its followers must fall silent, and go on when there is a leader again."""
    async with connected(three.endpoints[:1]) as etcd, Following(etcd, "/") as seen:
        await seen.until(lambda me: len(me.items) >= 2)
        for member in three.members[1:]:
            member.freeze()
        await _falls_silent(seen)
        for member in three.members[1:]:
            member.thaw()
        async with connected(three.endpoints) as other:
            await _eventually_writes(other, "/a", b"after")
        await seen.until(lambda me: me.picture.get("/a") == b"after", within_s=MARGIN_S + TIMEOUT_S)

    assert len(seen.resyncs) == 1


async def _falls_silent(seen: Following) -> None:
    async with asyncio.timeout(20):
        while True:
            told = len(seen.items)
            await asyncio.sleep(8 * PERIOD_S)
            if len(seen.items) == told:
                return


@pytest.mark.parametrize("fault", ["silence", "reset"])
async def test_a_write_whose_answer_is_lost_is_not_repeated(one: EtcdServer, fault: str) -> None:
    relays = [Relay(one.endpoints[0]), Relay(one.endpoints[0])]
    for relay in relays:
        await relay.start()
    async with (
        connected([relay.endpoint for relay in relays], request_timeout_s=1.5) as etcd,
        connected(one.endpoints) as beside,
        Following(beside, "/a") as witness,
    ):
        before = await etcd.write([], [Put("/a", b"1")])
        relays[0].cut(answers=True, questions=False)
        writing = asyncio.create_task(etcd.write([], [Put("/a", b"2")]))
        await witness.until(lambda me: me.picture.get("/a") == b"2")
        if fault == "reset":
            # At once, so that there would be time for another attempt.
            relays[0].reset()
        with pytest.raises(StoreUnavailable):
            await writing
        # The next request goes over the other endpoint, and finds the write applied once.
        entry = await etcd.get("/a")
    for relay in relays:
        await relay.stop()

    assert entry is not None
    assert isinstance(before, int)
    assert (entry.value, entry.mod_revision) == (b"2", before + 1)


async def test_a_read_whose_answer_is_lost_is_repeated_elsewhere(one: EtcdServer) -> None:
    relays = [Relay(one.endpoints[0]), Relay(one.endpoints[0])]
    for relay in relays:
        await relay.start()
    async with connected([relay.endpoint for relay in relays], request_timeout_s=2.0) as etcd:
        await etcd.write([], [Put("/a", b"1")])
        lease = await etcd.grant(60)
        relays[0].cut(answers=True, questions=False)
        entry = await etcd.get("/a")
        relays[0].heal()
        relays[1].cut()
        await etcd.renew(lease)
    for relay in relays:
        await relay.stop()

    assert entry is not None
    assert entry.value == b"1"


@pytest.mark.parametrize("identity", ["another cluster", "the same cluster, emptied"])
async def test_a_replaced_store_is_not_taken_for_an_empty_world(one: EtcdServer, identity: str) -> None:
    member = one.members[0]
    async with connected(one.endpoints) as etcd, Following(etcd, "/") as seen:
        for number in range(5):
            await etcd.write([], [Put(f"/{number}", b"1")])
        await seen.until(lambda me: len(me.picture) == 5)
        member.kill()
        shutil.rmtree(member.data)
        if identity == "another cluster":
            member.command = [
                "--initial-cluster-token=other" if word.startswith("--initial-cluster-token=") else word
                for word in member.command
            ]
        member.start()
        one.wait_ready()
        ended = await seen.ended()
        with pytest.raises(StoreReplaced):
            await etcd.read("/")
        with pytest.raises(StoreReplaced):
            await etcd.get("/0")

    assert isinstance(ended, StoreReplaced)
    assert len(seen.picture) == 5, "nothing of the new store was told"


@pytest.mark.parametrize("version", ["3.4", "3.5"])
async def test_a_killed_server_that_comes_back_is_the_same_store(tmp_path: Path, version: Version) -> None:
    with start_etcd(tmp_path / "one", version) as server:
        async with connected(server.endpoints) as etcd, Following(etcd, "/") as seen:
            await seen.synced()
            for number in range(3):
                await _eventually_writes(etcd, "/a", b"%d" % number)
                server.members[0].kill()
                server.members[0].start()
                server.wait_ready()
            await _eventually_writes(etcd, "/a", b"last")
            await seen.until(lambda me: me.picture.get("/a") == b"last")

    assert len(seen.resyncs) == 1
    assert [change.entry.value for change in seen.changes if change.entry is not None] == [b"0", b"1", b"2", b"last"]


async def test_nothing_listens(tmp_path: Path) -> None:
    async with connected([f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"]) as etcd:
        with pytest.raises(StoreUnavailable, match="cannot connect"):
            await etcd.get("/a")
