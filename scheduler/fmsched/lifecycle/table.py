"""The one table of transitions. What it does not list is illegal; ARCHITECTURE.md's diagram is made from it (`python -m
fmsched.lifecycle.table`), and a test walks every pair.
"""

from __future__ import annotations

from dataclasses import replace

from fmsched.model.record import Event, State, Status

# The newest events are kept: a job that is placed again and again must not outgrow its key.
EVENTS_MAX = 40

NEXT: dict[State, frozenset[State]] = {
    State.SUBMITTED: frozenset({State.QUEUED, State.CANCELLED}),
    State.QUEUED: frozenset({State.COMMITTED, State.CANCELLED, State.FAILED}),
    State.COMMITTED: frozenset({State.PREPARING, State.RECOVERING, State.STOPPING}),
    State.PREPARING: frozenset({State.RUNNING, State.RECOVERING, State.STOPPING}),
    State.RUNNING: frozenset({State.CHECKPOINTING, State.RECOVERING, State.STOPPING}),
    State.CHECKPOINTING: frozenset({State.PREEMPTED, State.RECOVERING, State.STOPPING}),
    State.PREEMPTED: frozenset({State.COMMITTED, State.CANCELLED, State.FAILED}),
    State.RECOVERING: frozenset({State.QUEUED, State.STOPPING, State.FAILED}),
    State.STOPPING: frozenset({State.SUCCEEDED, State.FAILED, State.CANCELLED}),
    State.SUCCEEDED: frozenset(),
    State.FAILED: frozenset(),
    State.CANCELLED: frozenset(),
}


class InvalidTransition(Exception):
    """A bug: the message carries the job's story."""

    def __init__(self, status: Status, to: State) -> None:
        story = " → ".join(f"{event.state}({event.reason})" for event in status.events)
        super().__init__(f"{status.state} → {to} is not in the table; the job's story: {story}")


def move(status: Status, to: State, now_ms: int, reason: str, **changes: object) -> Status:
    """`status` in state `to`, with an event that says why. Raises InvalidTransition for a pair the table does not list."""
    if to not in NEXT[status.state]:
        raise InvalidTransition(status, to)
    moved = replace(status, state=to, since_ms=now_ms, reason=reason, **changes)  # type: ignore[arg-type]
    event = Event(now_ms, to, moved.attempt, reason)
    return replace(moved, events=(*status.events, event)[-EVENTS_MAX:])


def submitted(now_ms: int) -> Status:
    """The status of a new job, already in the queue."""
    first = Status(State.SUBMITTED, now_ms, events=(Event(now_ms, State.SUBMITTED, 0, "accepted"),))
    return move(first, State.QUEUED, now_ms, "waits for its first placement")


def mermaid() -> str:
    """The table as a Mermaid state diagram."""
    lines = ["stateDiagram-v2", f"    [*] --> {State.SUBMITTED}"]
    lines += [f"    {a} --> {b}" for a in State for b in State if b in NEXT[a]]
    lines += [f"    {state} --> [*]" for state in State if state.ended]
    return "\n".join(lines)


if __name__ == "__main__":
    print(mermaid())
