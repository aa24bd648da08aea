"""judge(): one node's silence is the node's, everybody's silence is the store's."""

from __future__ import annotations

from fmsched.lifecycle.liveness import LivenessLimits, Sign, judge
from fmsched.lifecycle.step import NodeState

LIMITS = LivenessLimits(unreachable_s=15, node_lost_s=120, mass_min=3, mass_share=0.5, mass_lost_s=600)


def test_states_by_silence() -> None:
    signs = {
        "a": Sign(True, 1),
        "b": Sign(True, 16),
        "c": Sign(True, 121),
        "d": Sign(True, 0),
        "e": Sign(True, 0),
        "f": Sign(True, 0),
    }
    states = judge(signs, LIMITS).states
    assert (states["a"], states["b"], states["c"]) == (NodeState.READY, NodeState.UNREACHABLE, NodeState.LOST)


def test_a_missing_key_closes_a_node_at_once_but_loses_it_only_in_time() -> None:
    signs = {"a": Sign(False, 1), "b": Sign(True, 0)}
    assert judge(signs, LIMITS).states["a"] is NodeState.UNREACHABLE
    assert judge({**signs, "a": Sign(False, 121)}, LIMITS).states["a"] is NodeState.LOST


def test_a_key_kept_alive_by_a_restarting_store_does_not_hide_a_dead_node() -> None:
    assert judge({"a": Sign(True, 121), "b": Sign(True, 0)}, LIMITS).states["a"] is NodeState.LOST


def test_all_leases_gone_at_once_is_the_stores_fault() -> None:
    everybody = {f"n{i}": Sign(False, 300) for i in range(100)}
    verdict = judge(everybody, LIMITS)
    assert verdict.holding
    assert set(verdict.states.values()) == {NodeState.UNREACHABLE}
    assert set(judge({node: Sign(False, 601) for node in everybody}, LIMITS).states.values()) == {NodeState.LOST}


def test_one_of_a_hundred_is_lost_in_the_normal_time() -> None:
    signs = {f"n{i}": Sign(True, 0) for i in range(99)} | {"dead": Sign(False, 121)}
    verdict = judge(signs, LIMITS)
    assert not verdict.holding
    assert verdict.states["dead"] is NodeState.LOST
