"""A refusal's reasons hold: together they cannot be met, without any one of them they can, and every change offered helps."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random

import pytest

from fmsched.model.fabric import UNREACHABLE_HOPS
from fmsched.model.job import Reach, Request, ResourceGroup
from fmsched.model.placement import Budget, Placement, Unplaceable, Why
from fmsched.model.snapshot import Snapshot
from fmsched.place.solve import solve
from tests.support import random_cases

SEEDS_PER_BATCH = 60
BATCHES = 3
COUNTS = ("replicas", "GPU count")
RATES = {"minInfiniBandBandwidthGbps": "min_link_gbps", "reserveBandwidthGbps": "reserve_gbps"}
Case = Callable[[Random], tuple[Snapshot, Request]]


def fits(snapshot: Snapshot, request: Request) -> bool:
    return isinstance(solve(snapshot, request, Budget(explain_solves_max=0)), Placement)


def refusals(batch: int, make: Case) -> Iterator[tuple[int, Snapshot, Request, Unplaceable]]:
    for seed in range(50_000 + batch * SEEDS_PER_BATCH, 50_000 + (batch + 1) * SEEDS_PER_BATCH):
        snapshot, request = make(Random(seed))
        verdict = solve(snapshot, request, Budget())
        if isinstance(verdict, Unplaceable):
            yield seed, snapshot, request, verdict


def keep_only(snapshot: Snapshot, request: Request, whys: list[Why]) -> tuple[Snapshot, Request]:
    """The question with the constraints of these reasons and no others."""
    kept = {(why.constraint, why.group) for why in whys}
    snapshot = replace(
        snapshot,
        held=snapshot.held if ("free GPUs", "") in kept else {},
        unfit=snapshot.unfit if ("healthy GPUs", "") in kept else {},
        closed=snapshot.closed if ("open nodes", "") in kept else {},
        power=snapshot.power if ("power budget", "") in kept else (),
        links_held=snapshot.links_held if ("free links", "") in kept else {},
        links_measured=snapshot.links_measured if ("free links", "") in kept else {},
    )
    listed = ("node list", "") in kept
    request = replace(
        request,
        allowed_nodes=request.allowed_nodes if listed else None,
        denied_nodes=request.denied_nodes if listed else frozenset(),
        cpus_per_gpu=request.cpus_per_gpu if ("CPUs", "") in kept else 0.0,
        memory_gb_per_gpu=request.memory_gb_per_gpu if ("host memory", "") in kept else 0.0,
    )
    avoid = request.avoid_nodes if ("avoided nodes", "") in kept else frozenset[str]()
    groups = tuple(_keep(group, {constraint for constraint, of in kept if of == group.name}) for group in request.groups)
    return snapshot, replace(request, groups=groups, avoid_nodes=avoid)


def _keep(group: ResourceGroup, kept: set[str]) -> ResourceGroup:
    reach = group.reach
    if reach is not None:
        hops = reach.max_hops if "hops" in kept else UNREACHABLE_HOPS
        rate = reach.min_link_gbps if "link rate" in kept else 0.0
        reach = Reach(hops, rate, reach.reserve_gbps if "reserved bandwidth" in kept else 0.0)
    elif group.gpus > 1 and not kept & {"NVLink domain", "one node"} and group.kind in ("TensorParallel", "ExpertParallel"):
        reach = Reach(UNREACHABLE_HOPS)
    return replace(
        group,
        preferred=group.preferred if "GPU type" in kept else (),
        tolerated=group.tolerated if "GPU type" in kept else (),
        min_memory_gb=group.min_memory_gb if "memory" in kept else 0.0,
        min_nvlink_links=group.min_nvlink_links if "NVLink links" in kept else 0,
        min_nvlink_aggregate_gbytes_per_s=group.min_nvlink_aggregate_gbytes_per_s if "NVLink aggregate" in kept else 0.0,
        apart=group.apart if "anti-affinity" in kept else "",
        min_nvlink_gbytes_per_s=group.min_nvlink_gbytes_per_s if "NVLink" in kept else 0.0,
        reach=reach,
    )


def relaxed(snapshot: Snapshot, request: Request, why: Why) -> tuple[Snapshot, Request]:
    """The whole question with the one change that a reason offers, read from its words."""
    text = why.relax
    if found := re.fullmatch(r"the end of job (\S+), which (?:holds \d+ GPUs?|reserves \S+ Gb/s on \d+ links?)", text):
        return without(snapshot, {found[1]}), request
    if text.startswith("the end of jobs "):
        return without(snapshot, set(re.findall(r"(\S+) \((?:\d+ GPUs?|\S+ Gb/s)\)", text))), request
    if text == "the end of the traffic measured on links":
        return replace(snapshot, links_measured={}), request
    if text.startswith("the repair of "):
        return replace(snapshot, unfit={g: r for g, r in snapshot.unfit.items() if str(g) not in text}), request
    if found := re.fullmatch(r"nodes? (.*) open again.*", text):
        return replace(snapshot, closed={n: r for n, r in snapshot.closed.items() if n not in found[1]}), request
    if found := re.fullmatch(r"power budget (\S+) of (\d+) W", text):
        feeds = (replace(feed, watts=float(found[2])) if feed.name == found[1] else feed for feed in snapshot.power)
        return replace(snapshot, power=tuple(feeds)), request
    if text == "all power budgets lifted":
        return replace(snapshot, power=()), request
    if changed := _relaxed_job(request, text):
        return snapshot, changed
    if text.startswith("allow "):
        return snapshot, replace(request, avoid_nodes=frozenset())
    if changed := _fewer(request, text):
        return snapshot, changed
    groups = tuple(_relaxed(group, text) if group.name == why.group else group for group in request.groups)
    return snapshot, replace(request, groups=groups)


def _fewer(request: Request, text: str) -> Request | None:
    if found := re.fullmatch(r"(\d+) fewer spares?", text):
        return replace(request, spares=request.spares - int(found[1]))
    if found := re.fullmatch(r"no spares and (\d+) fewer replicas?", text):
        return replace(request, spares=0, replicas=request.replicas - int(found[1]))
    if found := re.fullmatch(r"(\d+) fewer replicas?", text):
        return replace(request, replicas=request.replicas - int(found[1]))
    return None


def _relaxed_job(request: Request, text: str) -> Request | None:
    """Changes of what the whole job asks."""
    if found := re.fullmatch(r"node (\S+) allowed by the lists", text):
        allowed = None if request.allowed_nodes is None else request.allowed_nodes | {found[1]}
        return replace(request, allowed_nodes=allowed, denied_nodes=request.denied_nodes - {found[1]})
    if text == "no node lists":
        return replace(request, allowed_nodes=None, denied_nodes=frozenset())
    if found := re.fullmatch(r"(?:no resources.cpus|resources.cpus (\S+))", text):
        return replace(request, cpus_per_gpu=float(found[1] or 0))
    if found := re.fullmatch(r"(?:no resources.memoryGB|resources.memoryGB (\S+))", text):
        return replace(request, memory_gb_per_gpu=float(found[1] or 0))
    return None


def without(snapshot: Snapshot, jobs: set[str]) -> Snapshot:
    return replace(
        snapshot,
        held={gpu: job for gpu, job in snapshot.held.items() if job not in jobs},
        links_held={job: links for job, links in snapshot.links_held.items() if job not in jobs},
    )


def _relaxed(group: ResourceGroup, text: str) -> ResourceGroup:
    word, _, value = text.partition(" ")
    reach = group.reach or Reach()
    match word:
        case "tolerate":
            return replace(group, tolerated=(*group.tolerated, value))
        case "minMemoryGB":
            return replace(group, min_memory_gb=float(value))
        case "minNVLinkBandwidthGbpsPerPair":
            return replace(group, min_nvlink_gbytes_per_s=float(value))
        case "maxHopCount":
            return replace(group, reach=replace(reach, max_hops=int(value)))
        case "minInfiniBandBandwidthGbps" | "reserveBandwidthGbps":
            return replace(group, reach=replace(reach, **{RATES[word]: float(value)}))  # type: ignore[arg-type]
        case "minNVLinksPerGPU":
            return replace(group, min_nvlink_links=int(value))
        case "minNVLinkBandwidthGbpsAggregate":
            return replace(group, min_nvlink_aggregate_gbytes_per_s=float(value))
        case "antiAffinity":
            return replace(group, apart=value)
        case "no" if value == "antiAffinity":
            return replace(group, apart="")
        case "no":
            return replace(group, min_nvlink_aggregate_gbytes_per_s=0.0)
        case "interNodeConnectivity,":
            return replace(group, reach=Reach())
        case _:
            raise AssertionError(f"not a known change: {text!r}")


@pytest.mark.parametrize("make", [random_cases.case, random_cases.reserving])
@pytest.mark.parametrize("batch", range(BATCHES))
def test_reasons_are_a_minimal_conflict_and_changes_help(batch: int, make: Case) -> None:
    seen = 0
    for seed, snapshot, request, verdict in refusals(batch, make):
        seen += 1
        whole = replace(snapshot.emptied(), revision=snapshot.revision)
        base, asked = (whole, replace(request, avoid_nodes=frozenset[str]())) if verdict.never else (snapshot, request)
        assert verdict.never is not fits(whole, replace(request, avoid_nodes=frozenset())), f"seed {seed}"
        reasons = [why for why in verdict.why if why.constraint not in COUNTS]
        assert verdict.why, f"seed {seed}"
        assert not fits(*keep_only(base, asked, reasons)), f"seed {seed}: {verdict} could be met together"
        for why in reasons:
            others = [other for other in reasons if other is not why]
            assert fits(*keep_only(base, asked, others)), (
                f"seed {seed}: {why.constraint} of {why.group} is not needed in {verdict}"
            )
        for why in verdict.why:
            if why.relax:
                assert fits(*relaxed(base, asked, why)), f"seed {seed}: {why.relax} does not help"
    assert seen >= 5
