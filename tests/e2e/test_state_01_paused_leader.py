"""Story state-01: a leader that is paused past its lease goes on writing when it wakes."""

from __future__ import annotations

import asyncio
import random
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from fmproto.etcd import Etcd
from tests.support import state_writer
from tests.support.etcd import EtcdServer, any_etcd, history, start_etcd
from tests.support.following import Following
from tests.support.state_writer import GPUS

TTL_S = 1.0
PAUSES = 100
PAUSE_S_MAX = 0.05
SEED = 1
# One pause in this many waits for the lease to end by itself; the others have it revoked, which is the same to the store
# and saves a second each.
NATURAL_END_EVERY = 10


class Writer:
    """One writer process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.term = 0
        self.lease = 0

    async def leads(self) -> None:
        """Until it leads a new term."""
        word, term, lease = await self._line()
        assert word == "leading"
        self.term, self.lease = int(term), int(lease)

    async def deposed(self) -> None:
        assert await self._line() == ["deposed", str(self.term)]

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    async def _line(self) -> list[str]:
        assert self._process.stdout is not None
        line = await asyncio.wait_for(self._process.stdout.readline(), 30)
        return line.decode().split()


@asynccontextmanager
async def writer(server: EtcdServer, name: str, *flags: str) -> AsyncIterator[Writer]:
    command = [sys.executable, state_writer.__file__, server.endpoints[0], name, str(TTL_S), *flags]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        yield Writer(process)
    finally:
        process.kill()
        await process.wait()


async def _pause_leaders(server: EtcdServer, pauses: int, seed: int, *flags: str) -> list[int]:
    """Pauses whoever leads, `pauses` times, at random points; the terms of all writes, in the order of etcd's history."""
    rng = random.Random(seed)
    kv = Etcd(server.endpoints)
    async with writer(server, "a", *flags) as first, Following(kv, GPUS) as seen:
        await first.leads()
        await seen.until(lambda me: _term(me) == first.term)
        async with writer(server, "b", *flags) as second:
            leader, other = first, second
            for number in range(pauses):
                await asyncio.sleep(rng.uniform(0, PAUSE_S_MAX))
                leader.signal(signal.SIGSTOP)
                if number % NATURAL_END_EVERY:
                    await kv.revoke(leader.lease)
                await other.leads()
                await seen.until(lambda me: _term(me) == other.term)  # noqa: B023  awaited at once
                leader.signal(signal.SIGCONT)
                await leader.deposed()
                leader, other = other, leader
    last = (await kv.read(GPUS)).entries
    await kv.close()
    changes = history(server, GPUS, max(entry.mod_revision for entry in last))
    return [int(value.split()[0]) for _, _, value in changes if value is not None]


def _term(seen: Following) -> int:
    last = seen.changes[-1].entry if seen.changes else None
    return int(last.value.split()[0]) if last is not None else 0


async def test_no_write_of_an_old_term_lands_after_one_of_a_newer(tmp_path: Path) -> None:
    with start_etcd(tmp_path / "one", any_etcd()) as server:
        terms = await _pause_leaders(server, PAUSES, SEED)

    assert terms == sorted(terms)
    assert len(set(terms)) == PAUSES + 1, "each new leader wrote"


async def test_without_the_guard_an_old_write_does_land(tmp_path: Path) -> None:
    """That the test above can fail."""
    with start_etcd(tmp_path / "one", any_etcd()) as server:
        terms = await _pause_leaders(server, 4, SEED, "--unguarded")

    assert terms != sorted(terms)
