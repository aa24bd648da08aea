"""One face over Client and AsyncClient, so that each behaviour is tested once for both."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Generator
from types import TracebackType
from typing import Any, Self

from fmclient import AsyncClient, Client
from tests.support.scripted_scheduler import eventually

KINDS = ("sync", "async")


class Either:
    """Calls methods by name on the kind of client that a test asks for; iterates and enters blocks the same way."""

    def __init__(self, kind: str, server: str, **options: Any) -> None:
        self._loop = asyncio.new_event_loop() if kind == "async" else None
        self._iterators: list[Generator[Any, None, None]] = []
        self._client: Any = AsyncClient(server, **options) if kind == "async" else Client(server, **options)

    def call(self, method: str, *args: Any, **named: Any) -> Any:
        return self._finish(getattr(self._client, method)(*args, **named))

    def each(self, method: str, *args: Any, **named: Any) -> Generator[Any, None, None]:
        """Ends with the client at the latest."""
        found = self._iterate(getattr(self._client, method)(*args, **named))
        self._iterators.append(found)
        return found

    def _iterate(self, found: Any) -> Generator[Any, None, None]:
        if self._loop is None:
            yield from found
            return
        try:
            while True:
                try:
                    yield self._finish(anext(found))
                except StopAsyncIteration:
                    return
        finally:
            self._finish(found.aclose())

    def block(self, *args: Any, **named: Any) -> Block:
        return Block(self, self._client.allocate(*args, **named))

    def _finish(self, result: Any) -> Any:
        if self._loop is not None and inspect.isawaitable(result):
            return self._loop.run_until_complete(_awaited(result))
        return result

    def enter(self, manager: Any) -> Any:
        return self._finish(manager.__aenter__()) if self._loop else manager.__enter__()

    def leave(self, manager: Any, *error: Any) -> None:
        self._finish(manager.__aexit__(*error)) if self._loop else manager.__exit__(*error)

    def eventually(self, what: str, probe: Callable[[], Any]) -> None:
        """eventually(), with turns for an asyncio client's background tasks; the other kind has threads."""

        def turn() -> Any:
            if self._loop is not None:
                self._finish(asyncio.sleep(0.01))
            return probe()

        eventually(what, turn)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for iterator in self._iterators:
            iterator.close()
        self._finish(self._client.close())
        if self._loop is not None:
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()


class Block:
    """`with` over an allocation of either kind."""

    def __init__(self, client: Either, manager: Any) -> None:
        self._client, self._manager = client, manager

    def __enter__(self) -> Any:
        return self._client.enter(self._manager)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._client.leave(self._manager, kind, error, trace)


async def _awaited(result: Any) -> Any:
    return await result
