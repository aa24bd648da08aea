"""The Python client of fmsched: `with Client() as client: client.submit(Path("job.yaml"))`. See docs/client.md.

The names below are loaded when they are first used: fmctl lives in this package too, and its --help must not wait for gRPC.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fmclient import errors
    from fmclient.allocation import Allocation, AsyncAllocation
    from fmclient.client import AsyncClient, Client
    from fmclient.errors import FmschedError
    from fmclient.placement import NodeShare, Placement, placement_of
    from fmclient.servers import Tls

__all__ = [
    "Allocation",
    "AsyncAllocation",
    "AsyncClient",
    "Client",
    "FmschedError",
    "NodeShare",
    "Placement",
    "Tls",
    "errors",
    "placement_of",
]

_HOME = {
    "Allocation": "fmclient.allocation",
    "AsyncAllocation": "fmclient.allocation",
    "AsyncClient": "fmclient.client",
    "Client": "fmclient.client",
    "FmschedError": "fmclient.errors",
    "NodeShare": "fmclient.placement",
    "Placement": "fmclient.placement",
    "Tls": "fmclient.servers",
    "placement_of": "fmclient.placement",
}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name == "errors":
        return import_module("fmclient.errors")
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
