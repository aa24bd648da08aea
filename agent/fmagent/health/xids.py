"""NVIDIA's Xid catalogue: the table xids.toml and its lookup (source: NVIDIA Xid catalog, docs.nvidia.com/deploy/xid-errors)."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib import resources


class XidClass(StrEnum):
    """What an Xid asks for; the tables of xids.toml, and two that only the text of a 154 leads to."""

    IGNORE = "ignore"
    APPLICATION = "application"
    RESET = "reset"
    RESET_LATER = "reset_later"
    REBOOT = "reboot"
    LINK = "link"
    MECHANICS = "mechanics"
    SOFTWARE = "software"
    RECOVERY = "recovery"
    CONTACT = "contact"
    UNKNOWN = "unknown"
    RECOVERED = "recovered"  # the GPU asks for nothing any more


@dataclass(frozen=True, slots=True)
class Xid:
    code: int
    mnemonic: str
    kind: XidClass


@cache
def catalogue() -> Mapping[int, Xid]:
    text = resources.files("fmagent.health").joinpath("xids.toml").read_text(encoding="utf-8")
    return {
        int(code): Xid(int(code), mnemonic, XidClass(kind))
        for kind, rows in tomllib.loads(text).items()
        for code, mnemonic in rows.items()
    }


# As in: GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)
_RECOVERY = re.compile(r"\bto 0x[0-9a-fA-F]{1,8} \(([^()]{1,60})\)")


def xid(code: int, text: str = "", classes: Mapping[int, XidClass] | None = None) -> Xid:
    """What the catalogue says of a code; of a 154, what its text says. `classes` go over the catalogue. Never raises: an unknown code is
    UNKNOWN."""
    known = catalogue().get(code) or Xid(code, "not in NVIDIA's catalogue", XidClass.UNKNOWN)
    if classes and code in classes:
        return Xid(code, known.mnemonic, classes[code])
    if known.kind is not XidClass.RECOVERY:
        return known
    asked = _RECOVERY.search(text[:512])
    return Xid(code, known.mnemonic, _recovery(asked[1].lower()) if asked else XidClass.IGNORE)


def _recovery(action: str) -> XidClass:
    """nvmlDeviceGpuRecoveryAction_t, as the kernel log spells it. One without text follows another Xid, which says more."""
    if action.startswith("none"):
        return XidClass.RECOVERED
    if "reboot" in action:
        return XidClass.REBOOT
    if "drain" in action:
        return XidClass.RESET_LATER
    if "reset" in action:
        return XidClass.RESET
    return XidClass.UNKNOWN
