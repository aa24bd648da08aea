"""What an operation asks of its transport, as values: operations are written once, as generators that yield these, and the
plain and the asyncio client differ only in how they carry them out.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from fmclient.calls import Call


class Stream(Protocol):
    """An open stream of messages. cancel() never blocks and may be called twice, and from another thread."""

    def cancel(self) -> Any: ...


@dataclass(frozen=True, slots=True)
class Invoke:
    """One attempt of a call; resumes with the response, or with grpc.RpcError thrown in."""

    call: Call
    request: Any
    server: str
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Open:
    """Resumes with a Stream. Faults of the connection come at the first Read."""

    call: Call
    request: Any
    server: str
    timeout_s: float | None


@dataclass(frozen=True, slots=True)
class Read:
    """Resumes with the next message, or None at the end; or with grpc.RpcError thrown in: faults.Silent where nothing came for
    `silence_s`."""

    stream: Stream
    silence_s: float | None = None


@dataclass(frozen=True, slots=True)
class Pause:
    seconds: float


@dataclass(frozen=True, slots=True)
class Emit:
    """Hands a message to whoever iterates."""

    message: Any


Effect = Invoke | Open | Read | Pause | Emit
T = TypeVar("T")
Op = Generator[Effect, Any, T]
