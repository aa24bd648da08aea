"""Sixteen A100 now, eight of each now, or wait for sixteen H100: what plan says beside its answer."""

from __future__ import annotations

from dataclasses import replace

from fmclient.cli.plan import choice_lines
from fmsched.model.job import Request
from fmsched.model.placement import Budget, Placement
from fmsched.model.snapshot import Snapshot
from fmsched.model.work import ModelSizes, Work
from fmsched.place.choices import HORIZON_S, Option, options, options_json
from fmsched.place.forecast import forecast
from fmsched.place.solve import solve
from fmsched.predict import Predicted
from tests.support import clusters
from tests.support.clusters import HGX_A100, HGX_H100, group

WORK = Work("llama-3-8b", ModelSizes(global_batch=64), (8, 1, 2, 1, 1))


def cluster() -> Snapshot:
    """Two A100 boxes free; one of two H100 boxes free. All under one leaf switch."""
    nodes = [*clusters.boxes(HGX_A100, 2, "a"), *clusters.boxes(HGX_H100, 2, "h")]
    return clusters.snapshot(clusters.tree({"leaf0": nodes}), {"other": [f"h1g{i}" for i in range(8)]})


def request(*families: str) -> Request:
    asked = clusters.request(group("tensor", "TP", 8, preferred=families, nvlink=600), replicas=2)
    return replace(asked, work=WORK)


def found(snapshot: Snapshot, asked: Request) -> tuple[Option, ...]:
    return options(snapshot, asked, Budget(), solve(snapshot, asked, Budget()))


def test_each_type_now_or_later_and_the_mixture() -> None:
    choices = found(cluster(), request("h100", "a100"))
    names = {(option.name, option.now) for option in choices}
    assert ("16 A100", True) in names
    assert ("8 A100 + 8 H100", True) in names, "one H100 box is free, and H100 is what the job would rather have"
    assert ("16 H100", False) in names
    assert [option.now for option in choices] == sorted((option.now for option in choices), reverse=True)
    now = max(option.tokens_per_s for option in choices if option.now)
    (later,) = [option for option in choices if not option.now]
    assert later.tokens_per_s > now
    # A day's work of the fastest present choice is done as soon by waiting exactly so long.
    work = HORIZON_S * now
    assert abs(later.pays_if_shorter_than_s + work / later.tokens_per_s - HORIZON_S) < 1e-6


def test_figures_are_those_of_the_same_placement() -> None:
    snapshot, asked = cluster(), request("a100")
    verdict = solve(snapshot, asked, Budget())
    assert isinstance(verdict, Placement)
    predicted = forecast(asked, snapshot.topology, verdict)
    assert isinstance(predicted, Predicted)
    (option,) = [each for each in found(snapshot, request("h100", "a100")) if each.name == "16 A100"]
    assert (option.step_s, option.tokens_per_s, option.nodes) == (predicted.step_s, predicted.tokens_per_s, 2)


def test_costs_where_prices_are_known() -> None:
    priced = replace(cluster(), prices={"a100": 1.5, "h100": 3.0})
    costs = {option.name: option.cost_per_hour for option in found(priced, request("h100", "a100"))}
    assert costs == {"16 A100": 24.0, "8 A100 + 8 H100": 36.0, "16 H100": 48.0}
    assert all(option.cost_per_hour is None for option in found(cluster(), request("h100", "a100")))


def test_one_way_or_no_model_is_no_choice() -> None:
    assert found(cluster(), request("a100")) == ()
    assert found(cluster(), replace(request("h100", "a100"), work=None)) == ()


def test_a_slower_type_that_is_taken_never_pays() -> None:
    snapshot = clusters.snapshot(
        clusters.tree({"leaf0": [*clusters.boxes(HGX_A100, 2, "a"), *clusters.boxes(HGX_H100, 2, "h")]}),
        {"other": [f"a{n}g{i}" for n in range(2) for i in range(8)]},
    )
    later = {option.name: option for option in found(snapshot, request("h100", "a100")) if not option.now}
    assert later["16 A100"].pays_if_shorter_than_s == 0
    lines = choice_lines([dict(each) for each in options_json(found(snapshot, request("h100", "a100")))])
    assert [line.split()[0] for line in lines] == ["choice", "16", "16"]
    assert lines[1].endswith("now")
    assert lines[2].endswith("not now")


def test_people_read_how_long_a_wait_pays() -> None:
    lines = choice_lines([dict(each) for each in options_json(found(cluster(), request("h100", "a100")))])
    assert len(lines) == 4
    assert "16 H100" in lines[-1]
    assert "with a day of work ahead, a wait of less than" in lines[-1]
