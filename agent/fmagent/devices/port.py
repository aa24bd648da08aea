"""The devices port: what a node has and how it fares, from NVML or from a description."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from fmproto.v1 import hardware_pb2 as pb


class HoldersUnknown(Exception):
    """Which processes use a GPU cannot be read; the message says of which, and why."""


class Devices(Protocol):
    async def observe(self) -> tuple[pb.Inventory, pb.Health]:
        """All that can be read now. A device that fails is FAILED in the health, and hides no other; never raises."""
        ...

    async def holders(self, uuids: Sequence[str]) -> dict[str, tuple[int, ...]]:
        """The pids that use each GPU now; one that nobody uses may be left out. Raises HoldersUnknown where a GPU cannot say: silence
        is no proof that it is free."""
        ...

    async def close(self) -> None: ...
