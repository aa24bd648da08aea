"""How operations are carried out: over plain gRPC channels by the calling thread, or over grpc.aio on the running loop."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import grpc
import grpc.aio

from fmclient.effects import Effect, Emit, Invoke, Op, Open, Pause, Read, Stream, T
from fmclient.faults import Silent
from fmclient.servers import Tls, channel_options

_EOF: Any = grpc.aio.EOF  # type: ignore[attr-defined]  # missing in the stubs


class Stop:
    """Ends an iteration from another thread: interrupts its pause and its stream."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._stream: Stream | None = None

    @property
    def asked(self) -> bool:
        return self._event.is_set()

    def ask(self) -> None:
        self._event.set()
        if self._stream is not None:
            self._stream.cancel()

    def pause(self, seconds: float) -> None:
        self._event.wait(seconds)

    def opened(self, stream: Stream) -> None:
        self._stream = stream
        if self.asked:  # between the caller's look and this opening
            stream.cancel()


@dataclass(frozen=True, slots=True)
class _Failed:
    """Marks an error that was raised: gRPC's open streams are RpcError objects too, before anything has gone wrong."""

    error: grpc.RpcError


def _resume(operation: Op[Any], outcome: Any) -> Effect:
    """Hands an operation what became of its effect. Plain, since a coroutine may not let StopIteration through."""
    if isinstance(outcome, _Failed):
        return operation.throw(outcome.error)
    return operation.send(outcome)


def _next(stream: Stream, silence_s: float | None) -> Any:
    """The next message; a watchdog cancels a stream that is silent for too long."""
    if silence_s is None:
        return next(cast("Iterator[Any]", stream), None)
    barked = threading.Event()

    def bark() -> None:
        barked.set()
        stream.cancel()

    watchdog = threading.Timer(silence_s, bark)
    watchdog.daemon = True
    watchdog.start()
    try:
        return next(cast("Iterator[Any]", stream), None)
    except grpc.RpcError:
        if barked.is_set():
            raise Silent(silence_s) from None
        raise
    finally:
        watchdog.cancel()


@contextmanager
def _signals_wait() -> Iterator[None]:
    """Handlers of SIGINT and SIGTERM run after the block: gRPC begins a call and then starts the thread that serves it; where a
    handler raises in between, closing the channel waits for ever.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # Python runs handlers in the main thread only
        return
    came: list[int] = []
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    ours = {number: handler for number, handler in handlers.items() if callable(handler)}
    try:
        for number in ours:
            signal.signal(number, lambda caught, _: came.append(caught))
        yield
    finally:
        for number, handler in ours.items():
            signal.signal(number, handler)
        for caught in came:
            signal.raise_signal(caught)


class SyncTransport:
    """Blocks the calling thread; Ctrl-C interrupts each effect. Channels belong to the process that made them."""

    def __init__(self, tls: Tls | None) -> None:
        self._tls = tls
        self._credentials = tls.credentials() if tls else None
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._channels: dict[str, grpc.Channel] = {}

    def run(self, operation: Op[T]) -> T:
        try:
            effect = next(operation)
            while True:
                assert not isinstance(effect, Emit), "an operation that emits is iterated, not run"
                effect = _resume(operation, self._attempt(effect, None))
        except StopIteration as done:
            return cast("T", done.value)
        finally:
            operation.close()

    def iterate(self, operation: Op[None], stop: Stop | None = None) -> Iterator[Any]:
        try:
            effect = next(operation)
            while stop is None or not stop.asked:
                if isinstance(effect, Emit):
                    yield effect.message
                    effect = next(operation)
                else:
                    effect = _resume(operation, self._attempt(effect, stop))
        except StopIteration:
            return
        finally:
            operation.close()

    def close(self) -> None:
        with self._lock:
            channels, self._channels = self._channels, {}
        if os.getpid() == self._pid:
            for channel in channels.values():
                channel.close()

    def _attempt(self, effect: Effect, stop: Stop | None) -> Any:
        try:
            return self._perform(effect, stop)
        except grpc.RpcError as error:
            return _Failed(error)

    def _perform(self, effect: Effect, stop: Stop | None) -> Any:
        match effect:
            case Invoke(call, request, server, timeout_s):
                invoke = self._channel(server).unary_unary(call.path, call.serialize, call.parse)
                return invoke(request, timeout=timeout_s)
            case Open(call, request, server, timeout_s):
                start = self._channel(server).unary_stream(call.path, call.serialize, call.parse)
                with _signals_wait():
                    stream: Stream = start(request, timeout=timeout_s)
                if stop is not None:
                    stop.opened(stream)
                return stream
            case Read(stream, silence_s):
                return _next(stream, silence_s)
            case Pause(seconds):
                return time.sleep(seconds) if stop is None else stop.pause(seconds)
            case Emit():
                raise AssertionError("emitted by the driver, never performed")

    def _channel(self, server: str) -> grpc.Channel:
        with self._lock:
            if os.getpid() != self._pid:
                # gRPC's threads do not survive fork(): what the parent opened would hang here.
                self._channels, self._pid = {}, os.getpid()
            if server not in self._channels:
                options = channel_options(self._tls)
                self._channels[server] = (
                    grpc.secure_channel(server, self._credentials, options)
                    if self._credentials
                    else grpc.insecure_channel(server, options)
                )
            return self._channels[server]


class AsyncTransport:
    """Runs on the event loop of its first call, and only there."""

    def __init__(self, tls: Tls | None) -> None:
        self._tls = tls
        self._credentials = tls.credentials() if tls else None
        self._channels: dict[str, grpc.aio.Channel] = {}

    async def run(self, operation: Op[T]) -> T:
        try:
            effect = next(operation)
            while True:
                assert not isinstance(effect, Emit), "an operation that emits is iterated, not run"
                effect = _resume(operation, await self._attempt(effect))
        except StopIteration as done:
            return cast("T", done.value)
        finally:
            operation.close()

    async def iterate(self, operation: Op[None]) -> AsyncGenerator[Any, None]:
        try:
            effect = next(operation)
            while True:
                if isinstance(effect, Emit):
                    yield effect.message
                    effect = next(operation)
                else:
                    effect = _resume(operation, await self._attempt(effect))
        except StopIteration:
            return
        finally:
            operation.close()

    async def close(self) -> None:
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            await channel.close(None)

    async def _attempt(self, effect: Effect) -> Any:
        try:
            return await self._perform(effect)
        except grpc.RpcError as error:
            return _Failed(error)

    async def _perform(self, effect: Effect) -> Any:
        match effect:
            case Invoke(call, request, server, timeout_s):
                invoke = self._channel(server).unary_unary(call.path, call.serialize, call.parse)
                return await invoke(request, timeout=timeout_s)
            case Open(call, request, server, timeout_s):
                return self._channel(server).unary_stream(call.path, call.serialize, call.parse)(request, timeout=timeout_s)
            case Read(stream, silence_s):
                try:
                    async with asyncio.timeout(silence_s):
                        message = await cast("Any", stream).read()
                except TimeoutError:
                    stream.cancel()
                    raise Silent(silence_s or 0.0) from None
                return None if message is _EOF else message
            case Pause(seconds):
                await asyncio.sleep(seconds)
                return None
            case Emit():
                raise AssertionError("emitted by the driver, never performed")

    def _channel(self, server: str) -> grpc.aio.Channel:
        if server not in self._channels:
            options = channel_options(self._tls)
            self._channels[server] = (
                grpc.aio.secure_channel(server, self._credentials, options)
                if self._credentials
                else grpc.aio.insecure_channel(server, options)
            )
        return self._channels[server]
