"""What the ledger writes, over the memory store: guards that hold, transactions that fit."""

from __future__ import annotations

from dataclasses import replace

from fmproto import keys
from fmproto.kv import OPERATIONS_MAX, Conflict, Delete, Op, Put
from fmproto.v1 import job_pb2 as pb
from fmsched.lifecycle.table import move, submitted
from fmsched.model.record import State
from fmsched.store.election import Election
from fmsched.store.ledger import TRANSACTION_BYTES, Ledger, transactions
from fmsched.store.memory import MemoryStore
from fmsched.store.mirror import Mirror
from tests.support.jobs import decision


def test_transactions_keep_the_order_and_fit() -> None:
    ops: list[Op] = [Put(f"k{i}", b"x" * 300_000) for i in range(10)] + [Delete(f"d{i}") for i in range(300)]
    pieces = list(transactions(ops))
    assert [op for piece in pieces for op in piece] == ops
    assert all(len(piece) <= OPERATIONS_MAX for piece in pieces)
    assert all(sum(len(op.value) for op in piece if isinstance(op, Put)) <= TRANSACTION_BYTES for piece in pieces)
    assert list(transactions([])) == []


async def led(kv: MemoryStore) -> tuple[Ledger, Mirror, Election]:
    election = Election(kv, "one", "127.0.0.1:1", 30)
    leadership = await election.campaign()
    mirror = Mirror()
    return Ledger(kv, mirror, leadership), mirror, election


async def catch_up(kv: MemoryStore, mirror: Mirror) -> None:
    stream = kv.follow(keys.ROOT)
    async for item in stream:
        await mirror.apply(item, 0.0)
        break
    await stream.aclose()


def spec(id_: str) -> pb.JobSpec:
    group = pb.ResourceGroup(name="workers", kind=pb.GROUP_KIND_DATA_PARALLEL, gpus_per_group=1)
    return pb.JobSpec(id=id_, name=id_, replica_count=2, groups=[group])


async def test_a_second_decision_on_one_picture_is_refused() -> None:
    kv = MemoryStore()
    ledger, mirror, election = await led(kv)
    for number, id_ in enumerate(("a", "b")):
        assert mirror.sequence == number
        assert isinstance(await ledger.submit(spec(id_), submitted(0)), int)
        await catch_up(kv, mirror)
    bases = {id_: ledger.basis(id_) for id_ in ("a", "b")}
    outcomes = {}
    for id_ in ("a", "b"):
        status = move(mirror.statuses[id_], State.COMMITTED, 1, "placed", attempt=1)
        outcomes[id_] = await ledger.commit(id_, decision(id_), status, bases[id_])
        await catch_up(kv, mirror)  # guards must be those of the basis, not of the newer picture
    assert isinstance(outcomes["a"], int)
    assert isinstance(outcomes["b"], Conflict)
    await election.resign()


async def test_a_number_is_given_once() -> None:
    kv = MemoryStore()
    ledger, mirror, election = await led(kv)
    assert isinstance(await ledger.submit(spec("a.1"), submitted(0)), int)
    assert isinstance(await ledger.submit(spec("b.1"), submitted(0)), Conflict), "the mirror has not seen the first yet"
    await catch_up(kv, mirror)
    assert isinstance(await ledger.submit(spec("b.2"), submitted(0)), int)
    await election.resign()


async def test_a_cancelled_job_cannot_be_committed() -> None:
    kv = MemoryStore()
    ledger, mirror, election = await led(kv)
    await ledger.submit(spec("a"), submitted(0))
    await catch_up(kv, mirror)
    basis = ledger.basis("a")
    await ledger.unwant("a")
    await catch_up(kv, mirror)
    status = move(mirror.statuses["a"], State.COMMITTED, 1, "placed", attempt=1)
    assert isinstance(await ledger.commit("a", decision("a"), status, basis), Conflict)
    await election.resign()


async def test_nothing_is_written_once_another_leads() -> None:
    kv = MemoryStore()
    ledger, mirror, election = await led(kv)
    await ledger.submit(spec("a"), submitted(0))
    await catch_up(kv, mirror)
    await election.resign()
    status = replace(mirror.statuses["a"], reason="written by a ghost")
    before = (await kv.get(keys.job_status("a"))).value  # type: ignore[union-attr]
    for write in (
        ledger.put_status("a", status, ledger.basis("a")),
        ledger.submit(spec("b"), submitted(0)),
        ledger.unwant("a"),
        ledger.echo(1),
    ):
        assert isinstance(await write, Conflict)
    assert (await kv.get(keys.job_status("a"))).value == before  # type: ignore[union-attr]
