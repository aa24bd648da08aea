"""Rules that a manifest gives reach the request that is placed, offline and through what the service stores."""

from __future__ import annotations

from fmproto.v1 import scheduler_pb2 as pb
from fmsched.manifest import Manifest, parse
from fmsched.manifest import request as request_of
from fmsched.service.submit import spec_message
from fmsched.store import codec
from tests.support.manifests import GOOD

RULES = (
    GOOD.replace(
        "        minMemoryGB: 80\n",
        """\
        minMemoryGB: 80
        minNVLinksPerGPU: 4
        minNVLinkBandwidthGbpsAggregate: 1200
""",
    )
    .replace("      gpusPerGroup: 1\n", "      gpusPerGroup: 1\n      antiAffinity: leaf\n")
    .replace("maxHopCount: 1", "maxHopCount: 0")
    + """\
  nodes: {allow: "n[1-3]", deny: [n2, x9]}
  template: {command: "true", resources: {cpus: 12.5, memoryGB: 100}}
"""
)


def test_rules_reach_the_request() -> None:
    parsed = parse(RULES)
    assert isinstance(parsed, Manifest), parsed
    asked = request_of(parsed, "j.1")
    assert (asked.allowed_nodes, asked.denied_nodes) == ({"n1", "n2", "n3"}, {"n2", "x9"})
    assert (asked.cpus_per_gpu, asked.memory_gb_per_gpu) == (12.5, 100)
    tensor, helper = asked.groups
    assert (tensor.min_nvlink_links, tensor.min_nvlink_aggregate_gbytes_per_s) == (4, 1200)
    assert (tensor.apart, helper.apart) == ("", "leaf")
    assert tensor.reach is not None
    assert tensor.reach.max_hops == 0, "no switch may be crossed: not the same as no limit"
    message = spec_message(parsed, "j.1", RULES, 0, pb.SubmitRequest())
    assert codec.spec_of(message).request == asked
    share = codec.share_of(message)
    assert share is not None
    assert (share.cpus, share.memory_gb) == (12.5, 100)


def test_without_rules_nothing_is_asked() -> None:
    parsed = parse(GOOD)
    assert isinstance(parsed, Manifest)
    message = spec_message(parsed, "j.1", GOOD, 0, pb.SubmitRequest())
    asked = codec.spec_of(message).request
    assert asked == request_of(parsed, "j.1")
    assert asked.allowed_nodes is None
    assert not asked.denied_nodes
    assert codec.share_of(message) is None
