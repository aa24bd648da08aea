"""What is remembered, as JSON: an agent that starts again goes on from there. Monotonic time goes on over a restart of the agent, and
begins anew with the machine, so a record is only good for the boot that it was written in: a reboot resets the GPUs as well. Pure."""

from __future__ import annotations

import msgspec

from fmagent.health.judge import CONCERNS, Past


class RecordError(ValueError):
    """The record cannot be used; the message says why."""


class _Record(msgspec.Struct, frozen=True):
    boot: str
    past: Past


def written(past: Past, boot: str) -> bytes:
    return msgspec.json.encode(_Record(boot, past))


def read(content: bytes, boot: str) -> Past:
    """An empty past where the record is of another boot. Raises RecordError."""
    try:
        record = msgspec.json.decode(content, type=_Record)
    except (msgspec.DecodeError, RecursionError) as error:
        raise RecordError(f"not a record of health: {error}") from error
    if not boot or record.boot != boot:
        return Past()
    return Past({name: each for name, each in record.past.memories.items() if name in CONCERNS})
