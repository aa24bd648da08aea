"""A TCP relay between a client and a server, which can be cut: as a network that drops packets, or as one that resets."""

from __future__ import annotations

import asyncio
from contextlib import suppress

CHUNK_BYTES = 65_536


class Relay:
    """Listens on `endpoint` and passes bytes to and from `target` ("host:port")."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._questions = asyncio.Event()
        self._answers = asyncio.Event()
        self.heal()
        self._server: asyncio.Server | None = None
        self._pumps: set[asyncio.Task[None]] = set()
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
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)

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
        self.reset()
        for pump in self._pumps:
            pump.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)

    async def _serve(self, client_in: asyncio.StreamReader, client_out: asyncio.StreamWriter) -> None:
        self.accepted += 1
        host, _, port = self._target.rpartition(":")
        try:
            server_in, server_out = await asyncio.open_connection(host, int(port))
        except OSError:
            client_out.transport.abort()
            return
        self._writers |= {client_out, server_out}
        for source, sink, may_pass in ((client_in, server_out, self._questions), (server_in, client_out, self._answers)):
            pump = asyncio.create_task(self._pump(source, sink, may_pass))
            self._pumps.add(pump)
            pump.add_done_callback(self._pumps.discard)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, may_pass: asyncio.Event) -> None:
        with suppress(OSError):
            while chunk := await source.read(CHUNK_BYTES):
                await may_pass.wait()
                sink.write(chunk)
                await sink.drain()
        sink.transport.abort()
        self._writers.discard(sink)
