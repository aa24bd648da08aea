"""What every store refuses before it is asked: limits and shapes that hold for etcd and for memory alike, so that a write
that passes on one passes on the other. Pure functions; no grpc here."""

from __future__ import annotations

from collections.abc import Sequence

from fmproto.kv import OPERATIONS_MAX, Guard, Op, Put

# etcd's default --max-request-bytes is 1.5 MiB for the whole encoded request; what lies between is the encoding's own
# share.
REQUEST_BYTES_MAX = 1_500_000
# Tags, lengths and the lease of one operation or guard in the encoded request, rounded up.
OPERATION_OVERHEAD_BYTES = 64
# Longer than any outage that a process should survive without noticing; etcd itself allows 9,000,000,000.
LEASE_TTL_S_MAX = 86_400


def check_write(guards: Sequence[Guard], ops: Sequence[Op]) -> None:
    """Raises ValueError where no store may take this write: too many guards or operations, too many bytes, a key named
    twice, an empty key, or a guard that demands nothing."""
    for what, count in (("guards", len(guards)), ("operations", len(ops))):
        if count > OPERATIONS_MAX:
            raise ValueError(f"write: {count} {what}; at most {OPERATIONS_MAX} are allowed")
    total_bytes = sum(check_guard(guard) for guard in guards)
    seen: set[str] = set()
    for op in ops:
        if not op.key:
            raise ValueError("write: an operation has an empty key")
        if op.key in seen:
            raise ValueError(f"write: key {op.key!r} is named by two operations; one is allowed")
        seen.add(op.key)
        total_bytes += _op_bytes(op)
    if total_bytes > REQUEST_BYTES_MAX:
        raise ValueError(f"write: {len(ops)} operations take {total_bytes} bytes; at most {REQUEST_BYTES_MAX} are allowed")


def check_guard(guard: Guard) -> int:
    """The bytes that a guard takes in the request. Raises ValueError for a guard that demands nothing."""
    if not guard.key:
        raise ValueError("write: a guard has an empty key")
    if guard.mod_revision is None and guard.create_revision is None:
        raise ValueError(f"write: the guard on {guard.key!r} demands nothing; give mod_revision or create_revision")
    return len(guard.key.encode(errors="surrogateescape")) + OPERATION_OVERHEAD_BYTES


def _op_bytes(op: Op) -> int:
    value_bytes = len(op.value) if isinstance(op, Put) else 0
    if value_bytes > REQUEST_BYTES_MAX:
        raise ValueError(f"write: the value of {op.key!r} has {value_bytes} bytes; at most {REQUEST_BYTES_MAX} are allowed")
    return len(op.key.encode(errors="surrogateescape")) + value_bytes + OPERATION_OVERHEAD_BYTES


def check_ttl(ttl_s: float) -> int:
    """A lease's time to live in whole seconds, as etcd counts them, rounded up. Raises ValueError for none or more than a
    day."""
    if not 0 < ttl_s <= LEASE_TTL_S_MAX:
        raise ValueError(f"grant: ttl_s is {ttl_s}; more than 0 and at most {LEASE_TTL_S_MAX} is allowed")
    return -int(-ttl_s // 1)
