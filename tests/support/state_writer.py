"""A program for tests: campaigns, and while it leads writes who owns which GPU, each write guarded by its leadership. It
prints "leading TERM LEASE" when it begins and "deposed TERM" when it stops. With --unguarded it has the bug that the
guard is there for.

    python state_writer.py ENDPOINT NAME TTL_S [--unguarded]
"""

from __future__ import annotations

import asyncio
import random
import sys

from fmproto.etcd import Etcd
from fmproto.kv import Conflict, Put, StoreUnavailable
from fmsched.store.election import Election, Leadership

GPUS = "/gpus/"
THINKING_S_MAX = 0.01


async def lead(kv: Etcd, leadership: Leadership, name: str, guarded: bool) -> None:
    guards = [leadership.guard()] if guarded else []
    number = 0
    while not leadership.lost.is_set():
        try:
            page = await kv.read(GPUS)
            # Between deciding and writing: where a pause hurts most.
            await asyncio.sleep(random.uniform(0, THINKING_S_MAX))
            number += 1
            owner = f"{leadership.term} {name} {number} after {page.revision}"
            if isinstance(await kv.write(guards, [Put(f"{GPUS}{number % 4}", owner.encode())]), Conflict):
                return
        except StoreUnavailable:
            continue


async def main(endpoint: str, name: str, ttl_s: float, guarded: bool) -> None:
    kv = Etcd([endpoint], request_timeout_s=1.0, watch_period_s=0.3)
    election = Election(kv, name, name, ttl_s)
    while True:
        leadership = await election.campaign()
        print("leading", leadership.term, leadership.lease, flush=True)
        await lead(kv, leadership, name, guarded)
        print("deposed", leadership.term, flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], float(sys.argv[3]), "--unguarded" not in sys.argv))
