"""Hysteresis, the same for every concern: a state gets worse only after its condition has stood for so long, and better only after
so long without it. So a device that flaps does not flap jobs, and an event costs a few writes to the store however its readings move.
Pure: time is an argument.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from fmagent.health.findings import Finding, Kind, State
from fmagent.health.series import Series

# Of one concern. More conditions than this on one node are one trouble, not many: the oldest are kept.
HELD_MAX = 512
# Longer than any machine runs: only a reset, a reboot or an operator ends such a finding.
NEVER_S = 1e12


@dataclass(frozen=True, slots=True)
class Step:
    """The state that a condition leads to once it has stood for `for_s` seconds."""

    state: State
    for_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Sign:
    """A condition that one look shows. `key` tells the conditions of a device apart. `weight` measures how bad it is where that comes in
    steps (links lost): the words are renewed when it grows, and stay at the worst until it has been better for `clear_s`."""

    kind: Kind
    device: str
    key: str
    steps: tuple[Step, ...]
    reason: str
    evidence: str = ""
    action: str = ""
    clear_s: float = 0.0
    weight: float = 0.0

    @property
    def name(self) -> str:
        return f"{self.device} {self.key}"


@dataclass(frozen=True, slots=True)
class Held:
    """What is held of a condition. OK: it has not yet stood for long enough. Times are the looker's, seconds."""

    kind: Kind
    device: str
    since_s: float  # when the condition began
    seen_s: float  # when it was last seen as bad as it is held
    clear_s: float
    state: State = State.OK
    shown_s: float = 0.0
    reason: str = ""
    evidence: str = ""
    action: str = ""
    weight: float = 0.0


@dataclass(frozen=True, slots=True)
class Memory:
    """All that a concern remembers from look to look. `series` by a name of the concern's own. `told` is what the readings do not say
    and the shell knows: NVLink's GB/s of each GPU."""

    held: Mapping[str, Held] = field(default_factory=dict)
    series: Mapping[str, Series] = field(default_factory=dict)
    told: Mapping[str, float] = field(default_factory=dict)


def settle(
    held: Mapping[str, Held],
    signs: Iterable[Sign],
    now_s: float,
    present: Collection[str],
    unknown: Collection[str] = (),
) -> dict[str, Held]:
    """What is held after a look. Devices that are not `present` are forgotten. Of an `unknown` one nothing could be read: what is
    held of it stays, and the time does not count as quiet."""
    by_name = {sign.name: sign for sign in signs}
    after: dict[str, Held] = {}
    for name in (*held, *(name for name in by_name if name not in held)):
        before, sign = held.get(name), by_name.get(name)
        device = sign.device if sign is not None else before.device if before is not None else ""
        if device not in present:
            continue
        if sign is None and device in unknown:
            if before is not None and before.state > State.OK:
                after[name] = replace(before, seen_s=now_s)
            continue
        following = _next(before, sign, now_s)
        if following is not None and len(after) < HELD_MAX:
            after[name] = following
    return after


def _next(before: Held | None, sign: Sign | None, now_s: float) -> Held | None:
    if sign is None:
        if before is None or before.state is State.OK or now_s - before.seen_s >= before.clear_s:
            return None
        return before
    if before is None or before.state is State.OK:
        return _held(sign, now_s if before is None else before.since_s, now_s)
    if sign.weight < before.weight:
        if now_s - before.seen_s < before.clear_s:
            return before
        return _held(sign, before.since_s, now_s)
    state = max(before.state, _reached(sign, now_s - before.since_s))
    if state > before.state or sign.weight > before.weight:
        return replace(_held(sign, before.since_s, now_s), state=state)
    return replace(before, seen_s=now_s, clear_s=sign.clear_s)


def _held(sign: Sign, since_s: float, now_s: float) -> Held:
    return Held(
        kind=sign.kind,
        device=sign.device,
        since_s=since_s,
        seen_s=now_s,
        clear_s=sign.clear_s,
        state=_reached(sign, now_s - since_s),
        shown_s=now_s,
        reason=sign.reason,
        evidence=sign.evidence,
        action=sign.action,
        weight=sign.weight,
    )


def _reached(sign: Sign, lasted_s: float) -> State:
    return max((step.state for step in sign.steps if step.for_s <= lasted_s), default=State.OK)


def findings_of(concern: str, held: Mapping[str, Held]) -> tuple[Finding, ...]:
    return tuple(
        Finding(each.kind, each.device, concern, each.state, each.reason, each.evidence, each.action, each.shown_s)
        for each in held.values()
        if each.state > State.OK
    )


def forget(held: Mapping[str, Held], devices: Collection[str]) -> dict[str, Held]:
    """Without what is held of `devices`."""
    return {name: each for name, each in held.items() if each.device not in devices}
