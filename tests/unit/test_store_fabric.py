"""A fabric of any size fits into one value of the store, and comes back as it was."""

from __future__ import annotations

import pytest
from google.protobuf.message import DecodeError

from fmproto.etcd_rules import REQUEST_BYTES_MAX
from fmproto.v1 import hardware_pb2 as hw
from fmsched.model.fabric import Fabric, Link, Switch
from fmsched.model.job import GroupKind, Reach, ResourceGroup
from fmsched.store import codec


def fabric(links: int) -> hw.Fabric:
    return hw.Fabric(
        switches=[hw.Switch(name=f"leaf{i}") for i in range(links // 8)],
        links=[hw.Link(a=f"node{i:06}", b=f"leaf{i // 8}", gbps=400, count=1, hca=f"mlx5_{i % 8}") for i in range(links)],
        source="ibnetdiscover",
    )


def test_a_small_one_is_stored_as_it_is() -> None:
    small = fabric(16)
    assert codec.packed(small) == small
    assert codec.unpacked(small) == small


def test_a_hundred_thousand_links_fit_into_one_request() -> None:
    large = fabric(100_000)
    assert large.ByteSize() > REQUEST_BYTES_MAX
    stored = codec.packed(large)
    assert stored.ByteSize() < REQUEST_BYTES_MAX / 2
    assert codec.unpacked(hw.Fabric.FromString(stored.SerializeToString())) == large


@pytest.mark.parametrize("spoilt", [b"junk", codec.packed(fabric(20_000)).packed[:-10]], ids=["junk", "cut"])
def test_one_that_cannot_be_inflated_cannot_be_read(spoilt: bytes) -> None:
    with pytest.raises(DecodeError, match="packed"):
        codec.unpacked(hw.Fabric(packed=spoilt))


def test_reserved_and_measured_bandwidth_survive_the_store() -> None:
    group = ResourceGroup("dp", GroupKind.DATA_PARALLEL, 1, reach=Reach(max_hops=3, min_link_gbps=200, reserve_gbps=62.5))
    assert codec.group_of(codec.group_message(group)) == group
    fabric = Fabric((Switch("a"), Switch("s", 1)), (Link("a", "s", 400, 2, measured_gbps=31.5),))
    assert codec.fabric_of(codec.fabric_message(fabric, "map")) == fabric
