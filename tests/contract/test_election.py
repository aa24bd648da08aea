"""Leader election over memory and over etcd, one member and three."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from fmproto import keys
from fmproto.kv import Conflict, Delete, Put
from fmsched.store.election import Election, Leadership
from tests.contract.conftest import Store, kind_name
from tests.support.following import Following

pytestmark = pytest.mark.parametrize("server", [None, ("3.4", 1, False), ("3.5", 3, True)], indirect=True, ids=kind_name)

TTL_S = 1.0


@asynccontextmanager
async def standing(store: Store) -> AsyncIterator[Following]:
    """Who stands, as another process sees it: name by key."""
    async with Following(store.beside, keys.ELECTION) as seen:
        yield await seen.synced()


@pytest.fixture
async def stand(store: Store) -> AsyncIterator[Callable[[str], Election]]:
    """Makes candidates over the cut-off-able connection ("cut-...") or the other; all withdraw at the end."""
    made: list[Election] = []

    def make(name: str) -> Election:
        kv = store.kv if name.startswith("cut") else store.beside
        made.append(Election(kv, name, f"{name}:7000", TTL_S))
        return made[-1]

    yield make
    store.heal()
    for election in made:
        await election.resign()


async def test_one_leads_and_the_next_follows_when_it_resigns(stand: Callable[[str], Election]) -> None:
    first, second = stand("a"), stand("b")
    assert await first.leader() is None
    lead = await first.campaign()
    waiting = asyncio.create_task(second.campaign())
    assert await second.leader() == "a:7000"
    assert not lead.lost.is_set()

    await first.resign()
    then = await asyncio.wait_for(waiting, 10)

    assert lead.lost.is_set()
    assert then.term > lead.term
    assert await first.leader() == "b:7000"


async def test_the_guard_holds_while_leading_and_never_after(
    store: Store, stand: Callable[[str], Election], prefix: str
) -> None:
    election = stand("a")
    lead = await election.campaign()
    assert isinstance(await store.kv.write([lead.guard()], [Put(prefix + "a", b"1")]), int)

    await store.kv.revoke(lead.lease)

    assert isinstance(await store.kv.write([lead.guard()], [Put(prefix + "a", b"2")]), Conflict)
    await asyncio.wait_for(lead.lost.wait(), 10)
    again = await asyncio.wait_for(election.campaign(), 10)
    assert again.term > lead.term
    assert isinstance(await store.kv.write([lead.guard()], [Put(prefix + "a", b"3")]), Conflict)
    assert isinstance(await store.kv.write([again.guard()], [Put(prefix + "a", b"4")]), int)


async def test_a_leader_that_is_cut_off_is_replaced_and_learns_of_it(
    store: Store, stand: Callable[[str], Election]
) -> None:
    old, new = stand("cut-a"), stand("b")
    lead = await old.campaign()
    waiting = asyncio.create_task(new.campaign())
    store.cut()

    then = await asyncio.wait_for(waiting, 20)
    known_during_the_cut = lead.lost.is_set()
    store.heal()
    await asyncio.wait_for(lead.lost.wait(), 20)

    # Its own clock tells it nothing, and it need not know: the guard keeps its writes out.
    assert not known_during_the_cut
    assert isinstance(await store.kv.write([lead.guard()], [Put("/x/late", b"1")]), Conflict)
    assert then.term > lead.term


async def test_candidates_lead_in_the_order_in_which_they_stood(store: Store, stand: Callable[[str], Election]) -> None:
    elections = [stand(f"c{number}") for number in range(4)]
    waiting: list[asyncio.Task[Leadership]] = []
    async with standing(store) as seen:
        for number, election in enumerate(elections, 1):
            waiting.append(asyncio.create_task(election.campaign()))
            await seen.until(lambda me: len(me.picture) == number)  # noqa: B023  awaited at once
    terms = []
    for election, task in zip(elections, waiting, strict=True):
        terms.append((await asyncio.wait_for(task, 10)).term)
        await election.resign()

    assert terms == sorted(terms)


async def test_a_cancelled_candidate_withdraws(store: Store, stand: Callable[[str], Election]) -> None:
    leader, candidate = stand("a"), stand("b")
    await leader.campaign()
    async with standing(store) as seen:
        waiting = asyncio.create_task(candidate.campaign())
        await seen.until(lambda me: len(me.picture) == 2)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await seen.until(lambda me: len(me.picture) == 1)

    assert await candidate.leader() == "a:7000"


async def test_a_candidate_whose_lease_ends_while_it_waits_stands_again(
    store: Store, stand: Callable[[str], Election]
) -> None:
    leader, candidate = stand("a"), stand("b")
    lead = await leader.campaign()
    async with standing(store) as seen:
        waiting = asyncio.create_task(candidate.campaign())
        await seen.until(lambda me: len(me.picture) == 2)
        first = next(entry for entry in (await store.beside.read(keys.ELECTION)).entries if entry.key != lead.key)
        await store.beside.revoke(first.lease)
        await seen.until(lambda me: len(me.picture) == 2 and first.key not in me.picture)
    await leader.resign()

    assert (await asyncio.wait_for(waiting, 10)).term > first.create_revision


@pytest.mark.parametrize("value", [b"", b"\xff", b"[1]", b'{"address": 7}'])
async def test_a_value_that_no_candidate_wrote_is_nobody(
    store: Store, stand: Callable[[str], Election], value: bytes
) -> None:
    await store.kv.write([], [Put(keys.ELECTION + "0", value)])
    leader = await stand("a").leader()
    await store.kv.write([], [Delete(keys.ELECTION + "0")])

    assert leader is None
