"""A follower run by a test: what it was told, and waiting for it with a deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Self

from fmproto.kv import KV, Change, Changes, Resync


class Following:
    """Follows `prefix` in a task of its own from `async with` to its end. `items` is everything told, oldest first."""

    def __init__(self, kv: KV, prefix: str) -> None:
        self.items: list[Resync | Changes] = []
        self.told_at_s: list[float] = []
        self._kv = kv
        self._prefix = prefix
        self._told = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        async for item in self._kv.follow(self._prefix):
            self.items.append(item)
            self.told_at_s.append(asyncio.get_running_loop().time())
            self._told.set()

    async def until(self, reached: Callable[[Self], bool], within_s: float = 15.0) -> None:
        """Raises TimeoutError, or what ended the follower."""
        assert self._task is not None
        try:
            async with asyncio.timeout(within_s):
                while not reached(self):
                    self._told.clear()
                    told = asyncio.create_task(self._told.wait())
                    await asyncio.wait({told, self._task}, return_when=asyncio.FIRST_COMPLETED)
                    told.cancel()
                    if self._task.done():
                        await self._task
        except TimeoutError:
            raise TimeoutError(f"{self._prefix}: not reached in {within_s} s; last told: {self.items[-3:]}") from None

    async def synced(self, within_s: float = 15.0) -> Self:
        """Listed, and watching."""
        await self.until(lambda me: len(me.items) > 0, within_s)
        return self

    async def ended(self, within_s: float = 15.0) -> BaseException | None:
        """What the follower was ended by."""
        assert self._task is not None
        async with asyncio.timeout(within_s):
            await asyncio.wait({self._task})
        return self._task.exception()

    @property
    def resyncs(self) -> list[Resync]:
        return [item for item in self.items if isinstance(item, Resync)]

    @property
    def changes(self) -> list[Change]:
        return [change for item in self.items if isinstance(item, Changes) for change in item.changes]

    @property
    def picture(self) -> dict[str, bytes]:
        """The keys and values as this follower now believes them to be."""
        known: dict[str, bytes] = {}
        for item in self.items:
            if isinstance(item, Resync):
                known = {entry.key: entry.value for entry in item.entries}
                continue
            for change in item.changes:
                if change.entry is None:
                    known.pop(change.key, None)
                else:
                    known[change.key] = change.entry.value
        return known


async def poll(reached: Callable[[], bool], within_s: float = 15.0) -> None:
    """Until a condition holds that nobody signals. Raises TimeoutError."""
    async with asyncio.timeout(within_s):
        while not reached():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
