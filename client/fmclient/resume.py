"""A stream that is opened again when its connection is lost."""

from __future__ import annotations

import time
from typing import Any

import grpc

from fmclient.calls import Call
from fmclient.effects import Op, Open, Pause, Read, Stream
from fmclient.errors import DeadlineExceeded
from fmclient.faults import code_of, typed, unreachable, words_of
from fmclient.retry import LOST, Limits, Route
from fmclient.servers import Servers
from fmproto.v1.scheduler_pb2 import JobChange

# Every stream has a deadline, so that a server that hangs with its connection up cannot silence a client for ever; opening
# again costs one picture of the jobs.
STREAM_S_MAX = 900.0
# The service says something every 5 s, if only that nothing has changed: three times that is silence.
SILENCE_S = 15.0
# A stream that has been up so long was working, even if it had nothing to say.
WORKED_S = 5.0
# A server that ends each stream as soon as it is opened must not be called in a tight loop.
REOPEN_S = 0.5
# A server that dies while it answers shows as INTERNAL with these words.
_RESET = "RST_STREAM"


class Resumable:
    """`openings` counts how often the stream was opened: it grows by one with every loss that was overcome.

    `lost_s`: on time.monotonic(), since when nothing was heard after a loss; None while connected, as far as is known.
    """

    def __init__(
        self,
        servers: Servers,
        limits: Limits,
        call: Call,
        request: Any,
        deadline_s: float | None = None,
        once: bool = False,
    ) -> None:
        """`deadline_s`: on time.monotonic(); read() raises DeadlineExceeded after it.

        `once`: what was received cannot be asked for again, so only the opening is tried again. It has no deadline;
        keep-alive pings find a dead peer.
        """
        self.openings = 0
        self._servers, self._limits = servers, limits
        self._call, self._request, self._deadline_s = call, request, deadline_s
        self._route = Route(servers)
        self._stream: Stream | None = None
        self._server = ""
        self._opened_s = 0.0
        self._once = once
        self._received = False
        self._worked = False  # since this object was made
        self.lost_s: float | None = None

    def read(self) -> Op[Any]:
        """The next message, or None where the server ended the stream in order. Raises FmschedError when patience ends."""
        while True:  # ends by _recover, which raises when its limit is reached
            try:
                stream = self._stream or (yield from self._open())
                message = yield Read(stream, None if self._once else SILENCE_S)
            except grpc.RpcError as error:
                self.cancel()
                yield from self._recover(error)
                continue
            self._note_working()
            self._received = True
            if isinstance(message, JobChange) and not message.HasField("job"):
                continue
            if message is None:
                self.cancel()
            return message

    def pause(self) -> Op[None]:
        """Before the stream is opened again after an orderly end."""
        yield Pause(REOPEN_S)

    def cancel(self) -> None:
        if self._stream is not None:
            self._stream.cancel()
            self._stream = None

    def _open(self) -> Op[Stream]:
        self._server, self._opened_s = self._servers.current, time.monotonic()
        stream: Stream = yield Open(self._call, self._request, self._server, self._stream_timeout_s())
        self._stream = stream
        self.openings += 1
        return stream

    def _stream_timeout_s(self) -> float | None:
        if self._once:
            return None
        left_s = STREAM_S_MAX if self._deadline_s is None else self._deadline_s - self._opened_s
        return min(STREAM_S_MAX, max(0.001, left_s))

    def _note_working(self) -> None:
        self._worked = True
        self.lost_s = None
        self._route.reset()

    def _recover(self, error: grpc.RpcError) -> Op[None]:
        now_s = time.monotonic()
        if now_s - self._opened_s >= WORKED_S:
            self._note_working()
        if self._deadline_s is not None and now_s >= self._deadline_s:
            raise DeadlineExceeded(f"{self._call.name} at {self._server}: the time given is over") from error
        if code_of(error) is grpc.StatusCode.DEADLINE_EXCEEDED and not self._once:
            return  # STREAM_S_MAX is over, or the deadline is within a clock tick
        code = code_of(error)
        lost = code in LOST or (code is grpc.StatusCode.INTERNAL and _RESET in words_of(error))
        if not lost or (self._once and self._received):
            raise typed(error, self._call.name, self._server) from error
        if self.lost_s is None:
            self.lost_s = now_s
        pause_s = self._route.after(error, self._server)
        limit_s = self._limits.patience_s if self._worked else min(self._limits.retry_s, self._limits.timeout_s)
        if now_s + pause_s - self.lost_s >= limit_s:
            raise unreachable(words_of(error), self._server, str(self._servers)) from error
        if self._deadline_s is not None:
            pause_s = min(pause_s, max(0.0, self._deadline_s - now_s))
        if pause_s > 0:
            yield Pause(pause_s)
