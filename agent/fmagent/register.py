"""This node's keys in the store: the newest value of each is buffered, written when it changes, and written again whenever the store
has lost it. Also the lease and the beat. Only ports: the store, the event loop's clock.

Every write is guarded by the revision that the key was last seen at, so that a write whose answer was lost, and which is applied
late, cannot undo a newer one; after an uncertain write the keys are read again. It is guarded by the alive key too: where another
agent has taken this node's name (the rival), nothing of the node is written until the rival's lease has ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from google.protobuf.message import DecodeError

from fmproto import keys
from fmproto.etcd_faults import StoreReplaced
from fmproto.kv import (
    KV,
    OPERATIONS_MAX,
    Conflict,
    Delete,
    Entry,
    Guard,
    LeaseGone,
    Op,
    Put,
    StoreFull,
    StoreUnavailable,
)
from fmproto.v1 import hardware_pb2 as hw

# Between tries of a write that failed, seconds; the pause doubles. No limit in number: the agent has nothing better to do, and
# keeps only the newest value of each key meanwhile.
RETRY_MIN_S, RETRY_MAX_S = 0.2, 5.0
LEASE_TTL_PERIODS = 3
# A create that was sent long ago may be applied after its key was created and deleted again: its guard, "absent", holds once more.
# Nobody would notice, so what the store holds is read again this often.
READ_EVERY_BEATS = 10
# Between two lines about the same rival, seconds.
RIVAL_LOG_S = 60.0

T = TypeVar("T")


class Log(Protocol):
    """structlog's bound logger, or anything with its two methods."""

    def info(self, event: str, **values: object) -> object: ...

    def warning(self, event: str, **values: object) -> object: ...


@dataclass(slots=True)
class _Key:
    wanted: bytes | None = None
    stored: bytes | None = None
    revision: int = 0  # mod_revision; 0: absent


class Register:
    """`session` is "IDENTITY/TOKEN": the identity is that of host and state directory, the token new at every start. A session without
    "/" names no identity, and is nobody's rival.

    `on_contact(sent_s)` is called for every beat that the store has taken, with the loop's time at which it was sent, and where
    the store is there but takes none because it is full. Nothing else is contact: the scheduler counts this node's silence from its
    beats, so the fence must count from them too, or ranks would outlive their gang's loss. So a store that answers and is not the
    one that was known (restored, replaced) is none, and neither is one in which a rival beats: in both, the gang may be placed again.
    `on_stored()` is called after every change of what the store is known to hold. `fence_s`: within so long without contact, every
    rank is gone; it is published."""

    def __init__(
        self,
        kv: KV,
        node: str,
        session: str,
        period_s: float,
        fence_s: float,
        log: Log,
        on_contact: Callable[[float], None],
        on_stored: Callable[[], None],
    ) -> None:
        self._kv = kv
        self._node = node
        self._session = session
        self._period_s = period_s
        self._fence_s = fence_s
        self._log = log
        self._on_contact = on_contact
        self._on_stored = on_stored
        self._prefix = f"{keys.NODES}{node}/"
        self._alive = keys.alive(node)
        self._keys: dict[str, _Key] = {}
        self._dirty = asyncio.Event()
        self._turn = asyncio.Lock()  # one write of this node at a time: revisions are known between them
        self._read = False
        self._rival = ""  # the session of the agent that has this node's name
        self._rival_told_s = float("-inf")
        self._lease = 0
        self._beat = 0
        self._problem = ""

    def put(self, key: str, value: bytes) -> None:
        self._want(key, value)

    def delete(self, key: str) -> None:
        self._want(key, None)

    def newest(self, prefix: str) -> dict[str, tuple[bytes, bool]]:
        """Key → the value that stands or will stand, and whether the store is known to hold it. Complete once `read`."""
        found = {}
        for key, state in self._keys.items():
            if key.startswith(prefix) and state.wanted is not None:
                found[key] = (state.wanted, state.wanted == state.stored)
        return found

    @property
    def was_read(self) -> bool:
        """Whether what the store holds of this node is known, and this agent is the one to say so: False while there is a rival."""
        return self._read

    def _want(self, key: str, value: bytes | None) -> None:
        state = self._keys.setdefault(key, _Key())
        state.wanted = value
        if state.wanted != state.stored:
            self._dirty.set()

    # --- the two tasks -------------------------------------------------------------------------------------------------

    async def run_flush(self) -> None:
        """Writes what differs, for ever."""
        pause_s = RETRY_MIN_S
        while True:
            await self._dirty.wait()
            self._dirty.clear()
            if await self._attempt(self._flush, "write"):
                pause_s = RETRY_MIN_S
                continue
            self._dirty.set()
            await asyncio.sleep(pause_s)
            pause_s = min(RETRY_MAX_S, pause_s * 2)

    async def run_beat(self) -> None:
        """The lease and the alive key, for ever."""
        loop = asyncio.get_running_loop()
        pause_s = RETRY_MIN_S
        while True:
            began_s = loop.time()
            if await self._attempt(self._pulse, "beat"):
                pause_s = RETRY_MIN_S
                await asyncio.sleep(max(0.0, self._period_s - (loop.time() - began_s)))
            else:
                await asyncio.sleep(min(pause_s, self._period_s))
                pause_s = min(RETRY_MAX_S, pause_s * 2)

    async def _attempt(self, work: Callable[[], Awaitable[None]], what: str) -> bool:
        try:
            async with self._turn:
                await work()
        except StoreFull as error:
            self._tell("the store is full; running on, and trying again", what, error)
        except StoreReplaced as error:
            self._read = False
            self._tell(
                "this is not the store that was known: no contact, and the fence runs; restart the agent to accept it",
                what,
                error,
            )
        except StoreUnavailable as error:
            self._read = False  # what was sent may or may not have been applied
            self._tell("the store is unreachable; running on, and trying again", what, error)
        else:
            if self._problem:
                self._problem = ""
                self._log.info("the store answers again", node=self._node)
            return True
        return False

    def _tell(self, event: str, what: str, error: Exception) -> None:
        if event != self._problem:
            self._problem = event
            self._log.warning(event, node=self._node, at=what, error=str(error))

    # --- one round -----------------------------------------------------------------------------------------------------

    async def _read_back(self) -> None:
        """What the store holds of this node; a key that nobody here has an opinion on stays as it is. Of a rival's keys nothing is
        taken: they change until it is gone."""
        if self._read:
            return
        page = await self._kv.read(self._prefix)
        found = {entry.key: entry for entry in page.entries}
        if self._is_rivals(found.get(self._alive)):
            return
        for key in {*found, *self._keys}:
            known = key in self._keys
            state = self._keys.setdefault(key, _Key())
            entry = found.get(key)
            state.stored = entry.value if entry is not None else None
            state.revision = entry.mod_revision if entry is not None else 0
            if not known and key != self._alive:
                state.wanted = state.stored
        self._read = True
        self._dirty.set()
        self._on_stored()

    async def _flush(self) -> None:
        await self._read_back()
        if self._rival:
            return  # the beat finds out when it is gone
        # Deletes by themselves: a full store takes them, and refuses a transaction that puts as well.
        for deletes in (True, False):
            if not await self._flush_some(deletes=deletes):
                return

    async def _flush_some(self, *, deletes: bool) -> bool:
        while True:  # ends: every round writes some of a node's few keys, and a conflict leaves
            changed = [
                (key, state.wanted, 0)
                for key, state in self._keys.items()
                if key != self._alive and state.wanted != state.stored and (state.wanted is None) == deletes
            ][: OPERATIONS_MAX - 1]  # one guard more than operations
            if not changed:
                return True
            if not await self._write(changed):
                return False

    async def _write(self, values: list[tuple[str, bytes | None, int]]) -> bool:
        """False where somebody else changed a key: then everything is read again."""
        guarded = dict.fromkeys([self._alive, *(key for key, _, _ in values)])
        guards = [Guard(key, mod_revision=self._keys[key].revision if key in self._keys else 0) for key in guarded]
        ops: list[Op] = [Delete(key) if value is None else Put(key, value, lease) for key, value, lease in values]
        answer = await self._kv.write(guards, ops)
        if isinstance(answer, Conflict):
            self._read = False
            self._dirty.set()
            return False
        for key, value, _ in values:
            state = self._keys[key]
            state.stored = value
            state.revision = answer if value is not None else 0
            if state.wanted != value and key != self._alive:
                self._dirty.set()  # wished for while this write was under way, when it seemed to be stored already
            if value is None and state.wanted is None:
                del self._keys[key]
        self._on_stored()
        return True

    async def _pulse(self) -> None:
        try:
            await self._pulse_once()
        except LeaseGone:
            # Its key is gone, and perhaps more was lost with the store: look, and register again, all of it.
            self._log.warning("the lease was lost; registering again", node=self._node, lease=self._lease)
            self._lease = 0
            self._read = False
            self._dirty.set()
            try:
                await self._pulse_once()
            except LeaseGone as error:
                raise StoreUnavailable(f"the lease of {self._alive} ends as soon as it is granted") from error

    async def _pulse_once(self) -> None:
        self._beat += 1
        if self._beat % READ_EVERY_BEATS == 0:
            self._read = False
        await self._read_back()
        if self._rival:
            return
        if not self._lease:
            await self._unless_full(self._grant())
        await self._kv.renew(self._lease)
        self._keys.setdefault(self._alive, _Key())
        alive = hw.Alive(
            node=self._node, session=self._session, beat=self._beat, period_s=self._period_s, fence_s=self._fence_s
        )
        value = (self._alive, alive.SerializeToString(deterministic=True), self._lease)
        sent_s = asyncio.get_running_loop().time()
        if not await self._unless_full(self._write([value])):
            # An earlier lease ended, or somebody else wrote the key.
            await self._read_back()
            if self._rival:
                return
            sent_s = asyncio.get_running_loop().time()
            if not await self._unless_full(self._write([value])):
                return
        self._on_contact(sent_s)

    async def _unless_full(self, work: Awaitable[T]) -> T:
        """A full store answers and takes no beat: this node is not cut off from it, and its runs must not be fenced. Its scheduler's
        own beats are refused as well, and meanwhile it counts nobody's silence."""
        sent_s = asyncio.get_running_loop().time()
        try:
            return await work
        except StoreFull:
            self._on_contact(sent_s)
            raise

    async def _grant(self) -> None:
        self._lease = await self._kv.grant(LEASE_TTL_PERIODS * self._period_s)

    def _is_rivals(self, entry: Entry | None) -> bool:
        """Whether an agent of another identity holds the alive key under a lease: etcd deletes the key when the lease ends."""
        session = _session_of(entry.value) if entry is not None and entry.lease else ""
        identity, own = session.rpartition("/")[0], self._session.rpartition("/")[0]
        if identity and own and identity != own:
            now_s = asyncio.get_running_loop().time()
            if session != self._rival or now_s - self._rival_told_s >= RIVAL_LOG_S:
                self._rival_told_s = now_s
                self._log.warning(
                    "another agent has this node's name: this one follows no orders; give each host its own `node`",
                    node=self._node,
                    session=self._session,
                    rival=session,
                )
            self._rival = session
            return True
        if self._rival:
            self._log.info("the other agent's lease has ended; this one takes over", node=self._node, rival=self._rival)
            self._rival = ""
        return False


def _session_of(value: bytes) -> str:
    try:
        return hw.Alive.FromString(value).session
    except DecodeError:
        return ""  # nobody's: it is written over
