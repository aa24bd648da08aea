"""Between fmproto.kv's values and etcd's messages. Pure functions over the wire types of cslab-etcd3."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from etcd3 import etcdrpc, utils
from etcd3.transactions import Create, Mod
from google.protobuf.unknown_fields import UnknownFieldSet

from fmproto.kv import Change, Entry, Guard, Op, Put

# The wire types are generated at run time and untyped.
Message = Any

# Fields that the wire types of cslab-etcd3 (etcd 3.3's) do not know yet; numbers from etcd's api/etcdserverpb/rpc.proto.
_CREATE_FRAGMENT_SET = b"\x40\x01"  # WatchCreateRequest.fragment = 8: true
_WATCH_FRAGMENT = 7  # WatchResponse.fragment
_STATUS_ERRORS = 8  # StatusResponse.errors


def to_bytes(key: str) -> bytes:
    return key.encode(errors="surrogateescape")


def to_text(key: bytes) -> str:
    # A foreign key that is not UTF-8 must not stop a follower; escaped, it goes back as it came.
    return key.decode(errors="surrogateescape")


def prefix_range(prefix: str) -> tuple[bytes, bytes]:
    """The half-open range of all keys with this prefix; an empty prefix is the whole store."""
    if not prefix:
        return b"\0", b"\0"
    return to_bytes(prefix), utils.prefix_range_end(to_bytes(prefix))


def entry(pair: Message) -> Entry:
    return Entry(to_text(pair.key), pair.value, pair.create_revision, pair.mod_revision, pair.lease)


def change(event: Message) -> Change:
    pair = event.kv
    # Event type 1 is DELETE (mvccpb.Event.EventType); its pair carries the key and the revision of the deletion only.
    return Change(to_text(pair.key), None if event.type == 1 else entry(pair), pair.mod_revision)


def changes(events: Iterable[Message]) -> tuple[Change, ...]:
    return tuple(change(event) for event in events)


def transaction(guards: Sequence[Guard], ops: Sequence[Op]) -> Message:
    return etcdrpc.TxnRequest(
        compare=[compare for guard in guards for compare in _compares(guard)],
        success=[_operation(op) for op in ops],
    )


def _compares(guard: Guard) -> list[Message]:
    key = to_bytes(guard.key)
    made = []
    # `==` on these builders sets the operator (etcd3.transactions), it does not compare.
    if guard.mod_revision is not None:
        made.append((Mod(key) == guard.mod_revision).build_message())
    if guard.create_revision is not None:
        made.append((Create(key) == guard.create_revision).build_message())
    return made


def _operation(op: Op) -> Message:
    if isinstance(op, Put):
        put = etcdrpc.PutRequest(key=to_bytes(op.key), value=op.value, lease=op.lease)
        return etcdrpc.RequestOp(request_put=put)
    return etcdrpc.RequestOp(request_delete_range=etcdrpc.DeleteRangeRequest(key=to_bytes(op.key)))


def watch_create(prefix: str, start_revision: int) -> Message:
    """Asks for fragments: etcd sends up to 1,000 revisions of 1.5 MB in one message to a watch that lags, more than any
    sensible message limit; fragments stay under 2 MB."""
    key, range_end = prefix_range(prefix)
    create = etcdrpc.WatchCreateRequest(key=key, range_end=range_end, start_revision=start_revision)
    create.MergeFromString(_CREATE_FRAGMENT_SET)
    return etcdrpc.WatchRequest(create_request=create)


def watch_progress() -> Message:
    return etcdrpc.WatchRequest(progress_request=etcdrpc.WatchProgressRequest())


def is_fragment(response: Message) -> bool:
    """Whether more of the same watch response follows."""
    return any(bool(data) for data in _unknown(response, _WATCH_FRAGMENT))


def status_errors(response: Message) -> tuple[str, ...]:
    return tuple(data.decode() for data in _unknown(response, _STATUS_ERRORS))


def _unknown(message: Message, number: int) -> list[Any]:
    fields: Any = UnknownFieldSet(message)  # its type stubs know no iteration
    return [field.data for field in fields if field.field_number == number]
