"""Rails are seen where they are, and not where they are not."""

from __future__ import annotations

from fmsched.model.fabric import Fabric, Link, Switch
from fmsched.topology.graph import build_topology
from fmsched.topology.rails import MIXED, rails_of
from tests.support.fabrics import node

LEAVES = (Switch("l0"), Switch("l1"))


def on(*links: tuple[str, str, str], down: bool = False) -> Fabric:
    return Fabric(LEAVES, tuple(Link(a, b, 400.0, hca=hca, down=down) for a, b, hca in links))


def test_each_adapter_on_a_leaf_of_its_own_is_a_rail() -> None:
    links = [(f"n{i}", f"l{r}", f"mlx5_{r}") for i in range(3) for r in range(2)]
    rails = rails_of(build_topology([node(f"n{i}") for i in range(3)], on(*links)))
    assert rails.names == ("mlx5_0", "mlx5_1")
    assert rails.optimised
    assert rails.rail_of == {"l0": "mlx5_0", "l1": "mlx5_1"}


def test_a_cut_cable_moves_nobody_to_another_rail() -> None:
    links = [("n0", "l0", "mlx5_0"), ("n0", "l1", "mlx5_1")]
    assert rails_of(build_topology([node("n0")], on(*links, down=True))).optimised


def test_a_leaf_that_serves_two_adapters_is_mixed() -> None:
    links = [("n0", "l0", "mlx5_0"), ("n0", "l1", "mlx5_1"), ("n1", "l0", "mlx5_1")]
    rails = rails_of(build_topology([node("n0"), node("n1")], on(*links)))
    assert rails.rail_of == {"l0": MIXED, "l1": "mlx5_1"}
    assert not rails.optimised


def test_one_leaf_for_all_and_unnamed_adapters_are_no_rails() -> None:
    assert not rails_of(build_topology([node("n0")], on(("n0", "l0", "mlx5_0")))).optimised
    assert rails_of(build_topology([node("n0")], on(("n0", "l0", ""), ("n0", "l1", "")))).names == ()


def test_a_host_that_is_no_node_does_not_count() -> None:
    rails = rails_of(build_topology([node("n0")], on(("n0", "l0", "mlx5_0"), ("stranger", "l0", "mlx5_9"))))
    assert rails.rail_of == {"l0": "mlx5_0"}
