"""Adapter ports: down, flapping, slower than the adapter can do, with many errors.

A port that is not Active and LinkUp carries nothing, whatever rate it still shows. One look at a flapping port may well find it up, and
a job placed on it hangs (ROCm/rccl#1423): it is held as failed until it has been quiet. Short flaps between two looks are counted by
link_downed. A tool that hangs is no port that goes down: what was known of the ports' past stays.
"""

from __future__ import annotations

from fmagent.health.findings import Finding, Kind, State
from fmagent.health.hold import Memory, Sign, Step, findings_of, settle
from fmagent.health.readings import PortReading, Readings
from fmagent.health.rules import PortRules, Rules
from fmagent.health.series import Series, counted, growth, number, within

CONCERN = "port"
TOOL = "ibstat"  # what an error is shown under where no port is known

# By their sysfs names: each is a packet or a symbol that arrived broken, or a link that was trained again.
ERRORS = (
    "symbol_error", "link_error_recovery", "port_rcv_errors", "port_rcv_remote_physical_errors", "local_link_integrity_errors",
    "excessive_buffer_overrun_errors",
)  # fmt: skip


def look(past: Memory, readings: Readings, rules: Rules, now_s: float) -> tuple[Memory, tuple[Finding, ...]]:
    if not rules.ports.enabled:
        return Memory(), ()
    series: dict[str, Series] = {}
    signs: list[Sign] = []
    for port in readings.ports:
        remembered, found = _look(port, past, rules.ports, now_s)
        series |= remembered
        signs += found
    present = {port.device for port in readings.ports}
    unknown: set[str] = set()
    if readings.ports_error:
        known = {name.removesuffix(_UP) for name in past.series if name.endswith(_UP)}
        unknown = known - present
        series |= {name: each for name, each in past.series.items() if name.rpartition(" ")[0] in unknown}
        signs += [_unread(device, readings.ports_error, State.FAILED) for device in sorted(unknown)]
        signs += [_unread(device, readings.ports_error, State.DEGRADED) for device in sorted(present)]
        if not known | present:
            present.add(TOOL)
            signs.append(_unread(TOOL, readings.ports_error, State.FAILED))
        present |= known
    # Of one that cannot be read it is not known any more that it is down.
    before = {name: each for name, each in past.held.items() if not (each.device in unknown and name.endswith(_DOWN))}
    held = settle(before, signs, now_s, present, unknown)
    # While a port is held unstable it goes up and down, which is no news.
    flapping = {each.device for name, each in held.items() if name.endswith(_UNSTABLE) and each.state > State.OK}
    told = {name: each for name, each in held.items() if not (name.endswith(_DOWN) and each.device in flapping)}
    return Memory(held, series), findings_of(CONCERN, told)


_DOWN, _UNSTABLE = " down", " unstable"
_UP, _DOWNED, _CHANGES, _ERRORS = " up", " downed", " changes", " errors"


def is_up(port: PortReading) -> bool:
    """Active and LinkUp, as ibstat or sysfs ("4: ACTIVE", "5: LinkUp") spell it."""
    return port.state.rpartition(" ")[2].lower() == "active" and port.physical_state.rpartition(" ")[2].lower() == "linkup"


def _look(port: PortReading, past: Memory, rules: PortRules, now_s: float) -> tuple[dict[str, Series], list[Sign]]:
    name, up = port.device, is_up(port)
    before = past.series.get(name + _UP, ())
    changed = float(bool(before) and before[-1][1] != up)
    downed = past.series.get(name + _DOWNED, ())
    if "link_downed" in port.counters:
        downed = counted(downed, now_s, float(port.counters["link_downed"]), rules.changes_window_s)
        # A link that is trained again goes down and up: two changes, of which this look may have seen none, or one.
        fresh = downed[-1][1] - downed[-2][1] if len(downed) > 1 and downed[-2][1] <= downed[-1][1] else 0.0
        changed = max(changed, min(2 * fresh, 2.0 * (rules.changes_max + 1)))
    changes = within(past.series.get(name + _CHANGES, ()), now_s, rules.changes_window_s)
    changes = (*changes, *((now_s, 1.0),) * int(changed))
    errors = past.series.get(name + _ERRORS, ())
    counts = [port.counters[each] for each in ERRORS if each in port.counters]
    if counts:
        errors = counted(errors, now_s, float(sum(counts)), rules.errors_window_s)
    kept = {name + _UP: ((now_s, float(up)),), name + _DOWNED: downed, name + _CHANGES: changes, name + _ERRORS: errors}
    signs = _state(port, up) + _slow(port, up, rules) + _faulty(port, growth(errors), rules)
    held = past.held.get(name + _UNSTABLE)
    if changed and (len(changes) > rules.changes_max or (held is not None and held.state > State.OK)):
        signs.append(_unstable(port, len(changes), rules))
    return {key: each for key, each in kept.items() if each}, signs


def _state(port: PortReading, up: bool) -> list[Sign]:
    if up:
        return []
    reason = f"port is {port.state or 'of unknown state'}/{port.physical_state or 'unknown'}"
    action = "check the cable and the switch port" + (
        "" if port.link_layer == "Ethernet" else "; is a subnet manager running?"
    )
    return [Sign(Kind.PORT, port.device, "down", (Step(State.FAILED),), reason, "", action)]


def _unstable(port: PortReading, changes: int, rules: PortRules) -> Sign:
    limit = f"more than {rules.changes_max} changes of state in {rules.changes_window_s:g} s"
    reason = f"unstable: {limit}; held until quiet for {rules.quiet_s:g} s"
    action = "check the cable and its transceivers"
    evidence = f"{changes} changes within {rules.changes_window_s:g} s, the last one to {port.state}/{port.physical_state}"
    return Sign(Kind.PORT, port.device, "unstable", (Step(State.FAILED),), reason, evidence, action, rules.quiet_s)


def _slow(port: PortReading, up: bool, rules: PortRules) -> list[Sign]:
    rate, most = number(port.rate_gbps) or 0.0, number(port.rate_max_gbps) or 0.0
    # A link that runs on fewer lanes or a lower speed loses a quarter at least; datasheets and drivers differ by less.
    if not up or rate <= 0 or rate > 0.9 * most:
        return []
    reason = f"runs at {rate:g} of {most:g} Gb/s"
    action = "check the cable, the switch port's speed and the adapter's settings"
    steps = (Step(State.DEGRADED, rules.rate_for_s),)
    return [
        Sign(
            Kind.PORT,
            port.device,
            "slow",
            steps,
            reason,
            f"rate {rate:g} Gb/s, the adapter can do {most:g}",
            action,
            rules.clear_s,
            most - rate,
        )
    ]


def _faulty(port: PortReading, grown: float, rules: PortRules) -> list[Sign]:
    if grown < rules.errors_degraded:
        return []
    told = ", ".join(f"{name} {port.counters[name]}" for name in ERRORS if port.counters.get(name))
    reason = f"errors come fast: {rules.errors_degraded} or more within {rules.errors_window_s:g} s"
    evidence = f"{grown:.0f} within {rules.errors_window_s:g} s; counters now: {told}"
    action = "clean or change the cable and its transceivers"
    return [Sign(Kind.PORT, port.device, "errors", (Step(State.DEGRADED),), reason, evidence, action, rules.clear_s)]


def _unread(device: str, error: str, state: State) -> Sign:
    return Sign(Kind.PORT, device, "unread", (Step(state),), error, "", "look at the adapter's driver (dmesg)")
