"""Who counts as alive. Only this scheduler's own monotonic clock is used: how long each node has been silent, not what it says
the time is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fmsched.lifecycle.step import NodeState
from fmsched.model.hardware import NodeName

# Two machines' clocks do not run at one rate, and SIGKILL takes a moment.
FENCE_MARGIN = 1.1


@dataclass(frozen=True, slots=True)
class LivenessLimits:
    """node_lost_s must exceed the agents' fence with its grace: then a lost node's ranks are stopped before its GPUs are given out.

    When many nodes fall silent at once the store is the likelier culprit (etcd-io/etcd#15247: a stalled leader revoked every
    lease): with at least `mass_min` silent nodes, and more than `mass_share` of all, none is declared lost before `mass_lost_s`.
    """

    unreachable_s: float = 15.0
    node_lost_s: float = 120.0
    mass_min: int = 3
    mass_share: float = 0.5
    mass_lost_s: float = 600.0


@dataclass(frozen=True, slots=True)
class Sign:
    """A node's signs of life: whether its leased key is there, the seconds since its beat last changed, and the seconds without
    contact after which its agent says that its ranks are gone (0: unknown)."""

    key: bool
    silent_s: float
    fence_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Liveness:
    states: Mapping[NodeName, NodeState]
    holding: bool  # too many silent at once: nobody is declared lost for now


def judge(signs: Mapping[NodeName, Sign], limits: LivenessLimits) -> Liveness:
    """The state of every node. Whatever the limits say, no node is lost before its own fence has ended its ranks."""
    # Those that have been gone for long say nothing about the store.
    recent = [node for node, sign in signs.items() if sign.silent_s <= limits.mass_lost_s]
    silent = [node for node, sign in signs.items() if not sign.key or sign.silent_s > limits.unreachable_s]
    recently_silent = len(set(silent).intersection(recent))
    holding = recently_silent >= limits.mass_min and recently_silent > limits.mass_share * len(recent)
    lost_s = limits.mass_lost_s if holding else limits.node_lost_s
    states = dict.fromkeys(signs, NodeState.READY)
    for node in silent:
        sign = signs[node]
        lost = sign.silent_s > max(lost_s, sign.fence_s * FENCE_MARGIN)
        states[node] = NodeState.LOST if lost else NodeState.UNREACHABLE
    return Liveness(states, holding)
