"""Commands that need no service: found by entry points, since fmclient itself never imports the scheduler's packages."""

from __future__ import annotations

from typing import Any

from fmclient.cli.exits import USAGE, fail

GROUP = "fmctl.offline"
# By name: the class lives in a package that may not be installed.
BAD_INPUT = "OfflineError"
EXTRA = "fmsched[scheduler]"
# As typed, where that is not the entry point's own name.
_TYPED = {
    "plan": "plan --cluster",
    "topo-generate": "topo generate",
    "topo-import": "topo import",
    "topo-export": "topo export",
    "topo-view": "topo --cluster",
}


def offline(name: str, *arguments: Any, **named: Any) -> Any:
    """Calls the offline function `name`. Exit 2 with its own lines for bad input, or with one that names the missing extra."""
    from importlib.metadata import entry_points

    found = next(iter(entry_points(group=GROUP, name=name)), None)
    if found is None:
        raise _missing(name, f"no entry point {name} in {GROUP}")
    try:
        return found.load()(*arguments, **named)
    except ImportError as error:
        raise _missing(name, str(error)) from error
    except Exception as error:
        if BAD_INPUT not in {kind.__name__ for kind in type(error).__mro__}:
            raise
        raise fail(str(error), USAGE) from error


def _missing(name: str, found: str) -> BaseException:
    return fail(f"fmctl: {_TYPED.get(name, name)} needs: pip install '{EXTRA}' ({found})", USAGE)
