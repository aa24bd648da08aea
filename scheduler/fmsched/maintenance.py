"""What the leader does for the store: compaction, so that history does not fill it, and an eye on its size."""

from __future__ import annotations

import asyncio

import structlog

from fmproto import keys
from fmproto.kv import KV, StoreFull, StoreUnavailable

log = structlog.get_logger(__name__)

# A follower that was cut off for less than this resumes without a resync.
COMPACT_PERIOD_S = 300.0
# Of the quota: time for the operator to act before the store refuses writes.
ALARM_SHARE = 0.8


def advice(version: str) -> str:
    """What is wrong with running on this etcd; empty where nothing is known to be."""
    numbers = tuple(int(part) for part in version.split("-", maxsplit=1)[0].split(".") if part.isdigit())
    if (3, 5, 0) <= numbers <= (3, 5, 2):
        return "it can lose consistency when killed under load (etcd-io/etcd#13766)"
    if numbers < (3, 4, 20) or (3, 5, 0) <= numbers < (3, 5, 7):
        return "when it is full it refuses the guarded deletes that cancelling needs (etcd-io/etcd#13435)"
    return ""


async def keep_store(kv: KV, quota_bytes: int, period_s: float = COMPACT_PERIOD_S) -> None:
    """Each period, compacts up to where the store stood one period before; for ever."""
    last_revision, told = 0, False
    while True:
        try:
            revision = (await kv.read(keys.LEDGER)).revision
            if last_revision:
                await kv.compact(last_revision)
            last_revision = revision
            status = await kv.status()
            if not told and advice(status.version):
                log.warning("use etcd 3.5.7 or newer, or 3.4.22 or newer", etcd=status.version, why=advice(status.version))
            told = True
            if status.db_bytes > ALARM_SHARE * quota_bytes:
                log.warning("the store is nearly full", db_bytes=status.db_bytes, quota_bytes=quota_bytes)
        except (StoreUnavailable, StoreFull) as error:
            log.warning("store upkeep was put off", error=str(error))
        await asyncio.sleep(period_s)
