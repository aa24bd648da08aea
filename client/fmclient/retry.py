"""How long, how often and where a call is tried again. Only lost connections and followers' refusals are: nothing else
changes by asking twice.
"""

from __future__ import annotations

import math
import random
import time
from dataclasses import dataclass

import grpc

from fmclient.calls import Call
from fmclient.effects import Invoke, Op, Pause
from fmclient.faults import code_of, leader_of, typed, words_of
from fmclient.servers import Servers

TIMEOUT_S = 30.0
RETRY_S = 10.0
PATIENCE_S = 300.0
BACKOFF_FIRST_S = 0.05
BACKOFF_MAX_S = 2.0
# Two followers that each believe in the other must not keep a client busy: after so many hops it backs off.
REDIRECTS_MAX = 3
# What a server that goes away leaves behind: UNAVAILABLE mostly, CANCELLED where it ended the call in an orderly stop.
LOST = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED})
# gRPC's own words where no connection came up, so that the request never left this machine.
_NEVER_SENT = "failed to connect"


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds.

    timeout_s   one call, its retries included
    retry_s     how long a call, or the first opening of a stream, is tried again while no scheduler answers
    patience_s  how long a stream that had worked looks for a scheduler before it gives up
    """

    timeout_s: float = TIMEOUT_S
    retry_s: float = RETRY_S
    patience_s: float = PATIENCE_S


# Where another server may answer, one that hangs with its connection up gets so long, then twice as long.
HANGS_S = 5.0


class Backoff:
    """Doubles up to BACKOFF_MAX_S; each pause is drawn between half and the whole, so clients do not return in step."""

    def __init__(self) -> None:
        self._ceiling_s = BACKOFF_FIRST_S

    def reset(self) -> None:
        self._ceiling_s = BACKOFF_FIRST_S

    def next_s(self) -> float:
        ceiling_s, self._ceiling_s = self._ceiling_s, min(self._ceiling_s * 2, BACKOFF_MAX_S)
        return ceiling_s * random.uniform(0.5, 1.0)  # noqa: S311 - spreads load; no secret depends on it


class Route:
    """The servers tried by one operation: follows a named leader at once, else the next address, and says when to pause."""

    def __init__(self, servers: Servers) -> None:
        self._servers = servers
        self._redirects_left = REDIRECTS_MAX
        self._untried = len(servers.addresses) - 1
        self._backoff = Backoff()

    def reset(self) -> None:
        self._redirects_left = REDIRECTS_MAX
        self._untried = len(self._servers.addresses) - 1
        self._backoff.reset()

    def after(self, error: grpc.RpcError, failed: str) -> float:
        """Seconds to pause before the next attempt; 0 where another server is worth trying at once."""
        if self._redirects_left > 0 and self._servers.follow(leader_of(error)):
            self._redirects_left -= 1
            return 0.0
        self._servers.advance(failed)
        if self._untried > 0:
            self._untried -= 1
            return 0.0
        self._untried = len(self._servers.addresses) - 1
        self._redirects_left = REDIRECTS_MAX
        return self._backoff.next_s()


def repeatable(call: Call, error: grpc.RpcError) -> bool:
    """Whether the call may be sent again: the connection was lost, and a repeat is harmless or nothing was done yet."""
    if code_of(error) not in LOST:
        return False
    return call.repeat or bool(leader_of(error)) or _NEVER_SENT in words_of(error)


def unary(servers: Servers, limits: Limits, call: Call, request: object, timeout_s: float | None = None) -> Op[object]:
    """The response. Tries again within limits.retry_s, and never beyond the deadline; raises FmschedError."""
    began_s = time.monotonic()
    deadline_s = began_s + (limits.timeout_s if timeout_s is None else timeout_s)
    retry_until_s = min(deadline_s, began_s + limits.retry_s)
    route = Route(servers)
    patience_s = HANGS_S if call.repeat and len(servers.addresses) > 1 else math.inf
    while True:  # ends at retry_until_s, or at deadline_s where servers hang
        server = servers.current
        left_s = max(0.001, deadline_s - time.monotonic())
        try:
            response: object = yield Invoke(call, request, server, min(left_s, patience_s))
        except grpc.RpcError as error:
            if code_of(error) is grpc.StatusCode.DEADLINE_EXCEEDED and patience_s < left_s:
                # That one hangs, or needs longer: the next is asked, and each is given more time than the one before.
                servers.advance(server)
                patience_s *= 2
                continue
            if not repeatable(call, error):
                raise typed(error, call.name, server, call.submits) from error
            pause_s = route.after(error, server)
            if time.monotonic() + pause_s >= retry_until_s:
                raise typed(error, call.name, server, call.submits, tried=str(servers)) from error
        else:
            return response
        if pause_s > 0:
            yield Pause(pause_s)
