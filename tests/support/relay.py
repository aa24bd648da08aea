"""A TCP relay between a client and a server, which can be cut: as a network that drops packets, or as one that resets."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

CHUNK_BYTES = 65_536


class Relay:
    """Listens on `endpoint` and passes bytes to and from `target` ("host:port")."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._questions = asyncio.Event()
        self._answers = asyncio.Event()
        self.heal()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self.accepted = 0

    @property
    def endpoint(self) -> str:
        assert self._server is not None
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    @property
    def connections(self) -> int:
        """Sockets that are open now, counted once per client."""
        return len(self._writers) // 2

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)

    def cut(self, *, questions: bool = True, answers: bool = True) -> None:
        """Nothing passes any more, and nobody is told. New connections are taken and stay silent. What is sent meanwhile
        passes when healed, as packets sent again would."""
        if questions:
            self._questions.clear()
        if answers:
            self._answers.clear()

    def heal(self) -> None:
        self._questions.set()
        self._answers.set()

    def reset(self) -> None:
        """Every connection breaks at once."""
        for writer in self._writers:
            writer.transport.abort()

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        writers = tuple(self._writers)
        self.reset()
        await asyncio.gather(*(writer.wait_closed() for writer in writers), return_exceptions=True)
        await self._server.wait_closed()

    def _accept(self, client_in: asyncio.StreamReader, client_out: asyncio.StreamWriter) -> None:
        self.accepted += 1
        self._writers.add(client_out)
        self._run(self._serve(client_in, client_out))

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, client_in: asyncio.StreamReader, client_out: asyncio.StreamWriter) -> None:
        host, _, port = self._target.rpartition(":")
        try:
            server_in, server_out = await asyncio.open_connection(host, int(port))
        except OSError:
            client_out.transport.abort()
            self._writers.discard(client_out)
            return
        self._writers.add(server_out)
        self._run(self._pump(client_in, server_out, self._questions))
        self._run(self._pump(server_in, client_out, self._answers))

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, may_pass: asyncio.Event) -> None:
        with suppress(OSError):
            while chunk := await source.read(CHUNK_BYTES):
                await may_pass.wait()
                sink.write(chunk)
                await sink.drain()
        sink.transport.abort()
        self._writers.discard(sink)
