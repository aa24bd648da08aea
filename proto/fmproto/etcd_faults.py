"""What went wrong, read from etcd's gRPC statuses. The only file that knows etcd's error texts (etcd:
api/v3rpc/rpctypes/error.go; the texts are the same in 3.4, 3.5 and 3.6)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fmproto.kv import LeaseGone, StoreFull, StoreUnavailable

if TYPE_CHECKING:
    import grpc


class StoreReplaced(StoreUnavailable):
    """What answers is not the store that this process knew: another cluster id, or an older revision (restored from a
    backup). An empty store would read as an order to stop everything, so nothing of it is passed on. If it is meant,
    restart the process."""


class CompactedError(Exception):
    """The revision asked for is compacted away: list again."""


class TokenRefusedError(Exception):
    """The auth token is missing, expired or older than the users. The request was refused before it was looked at."""


_TOKEN_TEXTS = ("invalid auth token", "revision of auth store is old", "user name is empty")
_UNUSABLE_TEXTS = ("duplicate key", "request is too large", "too many operations", "key is not provided", "future revision")


def fault(error: grpc.aio.AioRpcError, where: str) -> Exception:
    """The exception that says what happened, for an RPC that failed at `where` (an endpoint)."""
    code, text = error.code(), error.details() or ""
    if code.name == "UNAUTHENTICATED" or any(known in text for known in _TOKEN_TEXTS):
        return TokenRefusedError(text)
    if "database space exceeded" in text:
        return StoreFull(f"etcd at {where}: {text}; compact, defragment, then disarm the alarm")
    if "requested lease not found" in text:
        return LeaseGone(text)
    if "has been compacted" in text:
        return CompactedError(text)
    if any(known in text for known in _UNUSABLE_TEXTS):
        return ValueError(f"etcd at {where}: {text}")
    return StoreUnavailable(f"etcd at {where}: {code.name}: {text}")


def is_oversized(error: Exception) -> bool:
    """Whether an answer was over the client's message limit (grpc-core's text; etcd does not limit what it sends)."""
    return "received message larger than max" in str(error).lower()
