"""The rules of health: a TOML file, checked wholly at the start. deploy/health.toml explains each key and holds the defaults. Pure: the
caller reads the file.
"""

from __future__ import annotations

import difflib
import math
import re
import tomllib
from typing import Annotated, Any, get_type_hints

import msgspec

from fmagent.health.xids import XidClass
from fmproto.dumptext import shown

# A year: more is a mistake in the unit.
Seconds = Annotated[float, msgspec.Meta(ge=0, le=366 * 86400.0)]
Count = Annotated[int, msgspec.Meta(ge=1, le=1_000_000_000_000)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Celsius = Annotated[float, msgspec.Meta(ge=0, le=200)]
Code = Annotated[int, msgspec.Meta(ge=1, le=100_000)]


class RulesError(ValueError):
    """What is wrong with the rules: where, what was found, what is allowed."""


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    enabled: bool = True


class LostRules(_Table, frozen=True, forbid_unknown_fields=True, kw_only=True):
    failed_after_s: Seconds = 60.0
    clear_s: Seconds = 30.0


class XidRules(_Table, frozen=True, forbid_unknown_fields=True, kw_only=True):
    ignore: tuple[Code, ...] = ()
    classes: dict[Code, XidClass] = {}
    clear_s: Seconds = 3600.0
    repeats: Annotated[int, msgspec.Meta(ge=1, le=60)] = 5
    repeats_window_s: Seconds = 3600.0


class EccRules(_Table, frozen=True, forbid_unknown_fields=True, kw_only=True):
    uncorrected_draining: Count = 1
    corrected_degraded: Count = 100
    corrected_draining: Count = 1000
    corrected_window_s: Seconds = 3600.0
    clear_s: Seconds = 3600.0


class RemapRules(_Table, frozen=True, forbid_unknown_fields=True, kw_only=True):
    rows_degraded: Count = 256
    rows_draining: Count = 448
    rows_grown_draining: Count = 16
    rows_window_s: Seconds = 86400.0
    pages_degraded: Count = 30
    pages_draining: Count = 60


class NvlinkRules(_Table, frozen=True, forbid_unknown_fields=True, kw_only=True):
    down_for_s: Seconds = 5.0
    left_share_draining: Share = 0.5
    errors_degraded: Count = 100
    errors_draining: Count = 10_000
    errors_window_s: Seconds = 300.0
    clear_s: Seconds = 300.0


class ThermalRules(_Table, frozen=True, forbid_unknown_fields=True, kw_only=True):
    degraded_margin_c: Celsius = 3.0
    memory_degraded_c: Celsius = 95.0
    for_s: Seconds = 60.0
    throttle_for_s: Seconds = 60.0
    throttle_draining_s: Seconds = 900.0
    trend_margin_c: Celsius = 10.0
    trend_c_per_minute: Annotated[float, msgspec.Meta(gt=0, le=200)] = 0.5
    trend_window_s: Seconds = 600.0
    trend_for_s: Seconds = 120.0
    clear_s: Seconds = 300.0


class PowerRules(_Table, frozen=True, forbid_unknown_fields=True, kw_only=True):
    for_s: Seconds = 60.0
    draining_s: Seconds = 900.0
    clear_s: Seconds = 300.0


class PortRules(_Table, frozen=True, forbid_unknown_fields=True, kw_only=True):
    changes_max: Annotated[int, msgspec.Meta(ge=1, le=50)] = 3
    changes_window_s: Seconds = 120.0
    quiet_s: Seconds = 300.0
    errors_degraded: Count = 100
    errors_window_s: Seconds = 600.0
    rate_for_s: Seconds = 30.0
    clear_s: Seconds = 300.0


class ClockRules(_Table, frozen=True, forbid_unknown_fields=True, kw_only=True):
    offset_degraded_s: Seconds = 0.1
    offset_draining_s: Seconds = 30.0
    for_s: Seconds = 60.0
    unsynchronised_for_s: Seconds = 900.0
    clear_s: Seconds = 300.0


class DiskRules(_Table, frozen=True, forbid_unknown_fields=True, kw_only=True):
    ignore: tuple[str, ...] = ()
    free_degraded: Share = 0.10
    free_draining: Share = 0.02
    for_s: Seconds = 30.0
    clear_s: Seconds = 60.0


class MemoryRules(_Table, frozen=True, forbid_unknown_fields=True, kw_only=True):
    available_degraded: Share = 0.03
    stall_degraded: Share = 0.10
    stall_draining: Share = 0.50
    for_s: Seconds = 60.0
    draining_s: Seconds = 300.0
    clear_s: Seconds = 300.0


class Rules(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A table a concern."""

    lost: LostRules = LostRules()
    xid: XidRules = XidRules()
    ecc: EccRules = EccRules()
    remap: RemapRules = RemapRules()
    nvlink: NvlinkRules = NvlinkRules()
    thermal: ThermalRules = ThermalRules()
    power: PowerRules = PowerRules()
    ports: PortRules = PortRules()
    clock: ClockRules = ClockRules()
    disk: DiskRules = DiskRules()
    memory: MemoryRules = MemoryRules()


# The first must not be above the second.
_ASCENDING = (
    ("ecc", "corrected_degraded", "corrected_draining"),
    ("remap", "rows_degraded", "rows_draining"),
    ("remap", "pages_degraded", "pages_draining"),
    ("nvlink", "errors_degraded", "errors_draining"),
    ("thermal", "degraded_margin_c", "trend_margin_c"),
    ("thermal", "throttle_for_s", "throttle_draining_s"),
    ("power", "for_s", "draining_s"),
    ("clock", "offset_degraded_s", "offset_draining_s"),
    ("disk", "free_draining", "free_degraded"),
    ("memory", "stall_degraded", "stall_draining"),
    ("memory", "for_s", "draining_s"),
)


def parse(text: str, source: str) -> Rules:
    """`source` is the file's name, for messages. Raises RulesError."""
    try:
        content = tomllib.loads(text.removeprefix("\ufeff"))
    except tomllib.TOMLDecodeError as error:
        raise RulesError(f"{source}: not TOML: {error}") from error
    except RecursionError as error:
        raise RulesError(f"{source}: not rules of health: nested too deeply") from error
    except ValueError as error:  # an integer of thousands of digits
        raise RulesError(f"{source}: not TOML: an integer has too many digits") from error
    wrong = _no_number(content)
    if wrong:
        raise RulesError(f"{source}: {wrong}")
    try:
        rules = msgspec.convert(content, Rules, str_keys=True)
    except msgspec.ValidationError as error:
        raise RulesError(f"{source}: {_explain(str(error), content)}") from error
    for table, low, high in _ASCENDING:
        found = getattr(rules, table)
        if getattr(found, low) > getattr(found, high):
            raise RulesError(
                f"{source}: {table}.{low}: found {getattr(found, low):g}; allowed: at most {table}.{high}, {getattr(found, high):g}"
            )
    return rules


def _no_number(content: dict[str, Any]) -> str:
    """TOML has nan and inf, and no limit compares with them."""
    for table, rows in content.items():
        for key, value in rows.items() if isinstance(rows, dict) else ():
            if isinstance(value, float) and not math.isfinite(value):
                return f"{table}.{key}: found {value}; allowed: a number"
    return ""


def _explain(message: str, content: dict[str, Any]) -> str:
    """msgspec's message with the key and what was found put in front."""
    what, _, path = message.partition(" - at `")
    # "$.xid.ignore[...]`", or of a key of a table "key` in `$.xid.classes`"
    names = re.findall(r"[A-Za-z_][A-Za-z0-9_]*", path.strip("`").rpartition("$")[2])
    unknown = re.search(r"unknown field `(.*)`", what, re.DOTALL)
    if unknown:
        hints = get_type_hints(Rules)
        known = sorted(get_type_hints(hints[names[0]]) if names and names[0] in hints else hints)
        near = difflib.get_close_matches(unknown[1], known, n=1)
        hint = f"; did you mean {near[0]}?" if near else "."
        return f"{'.'.join([*names, shown(unknown[1]) or repr('')])}: unknown key{hint} Allowed: {', '.join(known)}"
    found: Any = content
    for name in names:
        found = found.get(name) if isinstance(found, dict) else found
    return f"{'.'.join(names) or 'the whole file'}: found {shown(repr(found))}; {shown(what[0].lower() + what[1:])}"
