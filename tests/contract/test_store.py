"""What every store promises of reads and guarded writes (fmproto.kv.KV)."""

from __future__ import annotations

import asyncio

import pytest

from fmproto.etcd_rules import REQUEST_BYTES_MAX
from fmproto.kv import KV, OPERATIONS_MAX, Conflict, Delete, Guard, Op, Put, StoreUnavailable
from tests.contract.conftest import IMPATIENT_S, Store


async def put(kv: KV, key: str, value: bytes = b"v", lease: int = 0) -> int:
    revision = await kv.write([], [Put(key, value, lease)])
    assert isinstance(revision, int)
    return revision


async def test_a_written_entry_is_read_with_its_revisions(kv: KV, prefix: str) -> None:
    key = prefix + "a"
    created = await put(kv, key, b"one")
    changed = await put(kv, key, b"two")

    entry = await kv.get(key)

    assert entry is not None
    assert (entry.key, entry.value, entry.lease) == (key, b"two", 0)
    assert (entry.create_revision, entry.mod_revision) == (created, changed)
    assert changed == created + 1


async def test_an_absent_key_is_none_and_an_empty_prefix_has_no_entries(kv: KV, prefix: str) -> None:
    revision = await put(kv, prefix + "here")

    assert await kv.get(prefix + "absent") is None
    page = await kv.read(prefix + "nothing/")
    assert page.entries == ()
    assert page.revision >= revision


async def test_binary_and_empty_values_survive(kv: KV, prefix: str) -> None:
    values = {prefix + "bytes": bytes(range(256)), prefix + "empty": b""}
    await kv.write([], [Put(key, value) for key, value in values.items()])

    assert {entry.key: entry.value for entry in (await kv.read(prefix)).entries} == values


async def test_read_is_in_key_order_and_holds_the_prefix_only(kv: KV, prefix: str) -> None:
    inside = [prefix + "d/" + name for name in ("", "a", "a/b", "a0", "b", "é", "\U0001f600")]
    outside = [prefix + "d", prefix + "d0", prefix + "c/z"]
    await kv.write([], [Put(key, b"v") for key in reversed(inside + outside)])

    page = await kv.read(prefix + "d/")

    assert [entry.key for entry in page.entries] == inside


async def test_an_empty_prefix_reads_the_whole_store(kv: KV, prefix: str) -> None:
    await put(kv, prefix + "a")

    keys = [entry.key for entry in (await kv.read("")).entries]

    assert prefix + "a" in keys
    assert keys == sorted(keys)


@pytest.mark.parametrize("by", ["mod_revision", "create_revision"])
async def test_a_guard_for_absence_lets_the_first_writer_through_only(kv: KV, prefix: str, by: str) -> None:
    key = prefix + "a"
    guard = Guard(key, **{by: 0})

    assert isinstance(await kv.write([guard], [Put(key, b"first")]), int)
    assert isinstance(await kv.write([guard], [Put(key, b"second")]), Conflict)
    await kv.write([], [Delete(key)])
    assert isinstance(await kv.write([guard], [Put(key, b"third")]), int)


async def test_a_mod_guard_holds_until_the_next_change(kv: KV, prefix: str) -> None:
    key = prefix + "a"
    first = await put(kv, key, b"1")

    second = await kv.write([Guard(key, mod_revision=first)], [Put(key, b"2")])

    assert isinstance(second, int)
    assert isinstance(await kv.write([Guard(key, mod_revision=first)], [Put(key, b"3")]), Conflict)
    assert isinstance(await kv.write([Guard(key, mod_revision=second)], [Put(key, b"3")]), int)


async def test_a_create_guard_outlives_changes_but_not_deletion(kv: KV, prefix: str) -> None:
    key = prefix + "a"
    guard = Guard(key, create_revision=await put(kv, key, b"1"))
    await put(kv, key, b"2")

    assert isinstance(await kv.write([guard], [Put(prefix + "b", b"1")]), int)
    await kv.write([], [Delete(key)])
    await put(kv, key, b"again")
    assert isinstance(await kv.write([guard], [Put(prefix + "b", b"2")]), Conflict)


async def test_a_guard_with_both_revisions_needs_both(kv: KV, prefix: str) -> None:
    key = prefix + "a"
    created = await put(kv, key, b"1")
    changed = await put(kv, key, b"2")

    assert isinstance(await kv.write([Guard(key, changed, changed)], [Put(key, b"3")]), Conflict)
    assert isinstance(await kv.write([Guard(key, created, created)], [Put(key, b"3")]), Conflict)
    assert isinstance(await kv.write([Guard(key, changed, created)], [Put(key, b"3")]), int)


async def test_a_conflict_changes_nothing(kv: KV, prefix: str) -> None:
    await put(kv, prefix + "kept", b"old")
    before = await kv.read(prefix)
    guards = [Guard(prefix + "kept", mod_revision=before.revision), Guard(prefix + "absent", mod_revision=1)]

    answer = await kv.write(guards, [Put(prefix + "kept", b"new"), Put(prefix + "new", b"new"), Delete(prefix + "kept2")])

    assert isinstance(answer, Conflict)
    after = await kv.read(prefix)
    assert after.entries == before.entries
    assert answer.revision >= before.revision


async def test_one_write_is_one_revision(kv: KV, prefix: str) -> None:
    await put(kv, prefix + "gone")

    revision = await kv.write([], [Put(prefix + "a", b"1"), Delete(prefix + "gone"), Put(prefix + "b", b"2")])

    page = await kv.read(prefix)
    assert {(entry.key, entry.mod_revision) for entry in page.entries} == {
        (prefix + "a", revision),
        (prefix + "b", revision),
    }


async def test_deleting_nothing_makes_no_revision(kv: KV, prefix: str) -> None:
    before = await put(kv, prefix + "a")

    assert await kv.write([], [Delete(prefix + "absent")]) == before


async def test_a_race_has_one_winner(store: Store, prefix: str) -> None:
    key = prefix + "a"
    writers = [store.kv, store.beside] * 8

    answers = await asyncio.gather(
        *(kv.write([Guard(key, mod_revision=0)], [Put(key, b"%d" % number)]) for number, kv in enumerate(writers))
    )

    winners = [number for number, answer in enumerate(answers) if not isinstance(answer, Conflict)]
    assert len(winners) == 1
    entry = await store.kv.get(key)
    assert entry is not None
    assert entry.value == b"%d" % winners[0]


async def test_the_most_operations_and_guards_are_taken(kv: KV, prefix: str) -> None:
    keys = [f"{prefix}{number:03}" for number in range(OPERATIONS_MAX)]

    revision = await kv.write([Guard(key, mod_revision=0) for key in keys], [Put(key, b"v") for key in keys])

    assert isinstance(revision, int)
    assert [entry.key for entry in (await kv.read(prefix)).entries] == keys


async def test_one_more_is_refused_and_nothing_applied(kv: KV, prefix: str) -> None:
    keys = [f"{prefix}{number:03}" for number in range(OPERATIONS_MAX + 1)]

    with pytest.raises(ValueError, match="129 operations; at most 128"):
        await kv.write([], [Put(key, b"v") for key in keys])
    with pytest.raises(ValueError, match="129 guards; at most 128"):
        await kv.write([Guard(key, mod_revision=0) for key in keys], [Put(keys[0], b"v")])
    assert (await kv.read(prefix)).entries == ()


@pytest.mark.parametrize(
    ("guards", "ops", "message"),
    [
        ([], [Put("/x/a", b"1"), Put("/x/a", b"2")], "'/x/a' is named by two operations"),
        ([], [Put("/x/a", b"1"), Delete("/x/a")], "'/x/a' is named by two operations"),
        ([], [Put("", b"1")], "empty key"),
        ([Guard("", mod_revision=0)], [Put("/x/a", b"1")], "empty key"),
        ([Guard("/x/g")], [Put("/x/a", b"1")], "'/x/g' demands nothing"),
    ],
)
async def test_a_write_without_sense_is_refused(kv: KV, guards: list[Guard], ops: list[Op], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        await kv.write(guards, ops)
    assert await kv.get("/x/a") is None


async def test_the_largest_value_is_taken_and_a_larger_one_named(kv: KV, prefix: str) -> None:
    largest = REQUEST_BYTES_MAX - 200
    await put(kv, prefix + "large", bytes(largest))

    with pytest.raises(ValueError, match=rf"{prefix}huge.*{REQUEST_BYTES_MAX + 1} bytes.*at most {REQUEST_BYTES_MAX}"):
        await put(kv, prefix + "huge", bytes(REQUEST_BYTES_MAX + 1))
    with pytest.raises(ValueError, match=f"2 operations take .* bytes; at most {REQUEST_BYTES_MAX}"):
        await kv.write([], [Put(prefix + half, bytes(REQUEST_BYTES_MAX // 2)) for half in "ab"])

    assert [len(entry.value) for entry in (await kv.read(prefix)).entries] == [largest]
    await kv.write([], [Delete(prefix + "large")])


async def test_more_than_ten_thousand_keys_are_one_page(kv: KV, prefix: str) -> None:
    keys = [f"{prefix}{number:05}" for number in range(10_112)]
    for start in range(0, len(keys), OPERATIONS_MAX):
        await kv.write([], [Put(key, key.encode()) for key in keys[start : start + OPERATIONS_MAX]])

    page = await kv.read(prefix)

    assert [entry.key for entry in page.entries] == keys
    assert all(entry.value == entry.key.encode() for entry in page.entries)


async def test_a_page_is_as_of_one_revision(store: Store, prefix: str) -> None:
    """Two keys are always written together, at both ends of a list of many pages: no reader sees them differ."""
    ends = [prefix + "0", prefix + "z"]
    await store.kv.write([], [Put(f"{prefix}m{number:03}", bytes(1_000)) for number in range(120)])
    await store.kv.write([], [Put(key, b"0") for key in ends])

    async def change() -> None:
        for number in range(1, 60):
            await store.beside.write([], [Put(key, b"%d" % number) for key in ends])

    changing = asyncio.create_task(change())
    pages = []
    while not changing.done():
        pages.append(await store.kv.read(prefix))
        await asyncio.sleep(0)
    await changing

    assert all(page.entries[0].value == page.entries[-1].value for page in pages)
    assert all(max(entry.mod_revision for entry in page.entries) <= page.revision for page in pages)


async def test_compaction_keeps_what_is_there(kv: KV, prefix: str) -> None:
    await put(kv, prefix + "a", b"1")
    revision = await put(kv, prefix + "a", b"2")

    await kv.compact(revision)
    await kv.compact(revision)

    entry = await kv.get(prefix + "a")
    assert entry is not None
    assert entry.value == b"2"
    with pytest.raises(ValueError, match="future revision"):
        await kv.compact(revision + 1_000_000)


async def test_status_tells_size_and_identity(store: Store, prefix: str) -> None:
    await put(store.kv, prefix + "a")

    status = await store.kv.status()

    assert status.version.startswith(store.server.version if store.server is not None else "memory")
    assert status.db_bytes > 0
    assert not status.full
    assert status.cluster_id != 0
    assert status.cluster_id == (await store.beside.status()).cluster_id


async def test_an_unreachable_store_says_so_in_time_and_works_again(store: Store, prefix: str) -> None:
    kv = store.impatient()
    await put(kv, prefix + "a", b"before")
    loop = asyncio.get_running_loop()
    store.cut()
    started = loop.time()
    requests = [
        kv.get(prefix + "a"),
        kv.read(prefix),
        kv.write([], [Put(prefix + "a", b"during")]),
        kv.grant(5.0),
        kv.renew(1),
    ]
    answers = await asyncio.gather(*requests, return_exceptions=True)
    took_s = loop.time() - started
    store.heal()

    assert [type(answer) for answer in answers] == [StoreUnavailable] * len(requests)
    assert took_s < IMPATIENT_S + 0.5
    entry = await store.kv.get(prefix + "a")
    assert entry is not None
    # The write's result was unknown: a cut network may hand it on when it heals.
    assert entry.value in (b"before", b"during")


async def test_a_closed_store_says_so(store: Store, prefix: str) -> None:
    await store.kv.close()

    with pytest.raises(StoreUnavailable):
        await store.kv.get(prefix + "a")
    await store.kv.close()
