"""`fmctl topo generate`: a Cluster file, or one message."""

from __future__ import annotations

import pytest

from fmsched.offline import topo
from fmsched.offline.errors import OfflineError
from fmsched.topology.clusterfile import ClusterFile, parse


def test_a_generated_cluster_is_one() -> None:
    text = topo.generate(pods=2, leaves=2, nodes_per_leaf=4, type="hgx-h100", busy=0.5, seed=3)
    assert isinstance(parse(text), ClusterFile)
    assert text == topo.generate(2, 2, 4, "hgx-h100", 0.5, 3)
    assert text != topo.generate(2, 2, 4, "hgx-h100", 0.5, 4)


def test_figures_that_cannot_be_give_one_line() -> None:
    with pytest.raises(OfflineError) as caught:
        topo.generate(pods=0, leaves=2, nodes_per_leaf=4, type="hgx-h100", busy=0.5, seed=3)
    assert caught.value.lines == ("pods: found 0; allowed: from 1 to 1000",)
