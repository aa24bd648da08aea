"""Which of several placements finishes first."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from fmsched.predict import Degrees, Predicted, Training, choices_json, compare, known_models
from tests.support.clusters import HGX_A100, HGX_H100
from tests.support.predicting import cluster, foreseen, node, packed

JOB = Training(known_models()["llama3-8b"], Degrees(tensor=8, data=2), global_batch=64)
DAY_S = 86_400.0


def on_two(first: str, second: str) -> Predicted:
    kinds = {"A100": HGX_A100, "H100": HGX_H100}
    topology = cluster([(node("n0", kinds[first]), 0), (node("n1", kinds[second]), 0)])
    return foreseen(topology, packed(topology, 16), JOB)


@pytest.fixture(scope="module")
def predictions() -> dict[str, Predicted]:
    return {"16 A100": on_two("A100", "A100"), "8 + 8": on_two("A100", "H100"), "16 H100": on_two("H100", "H100")}


def test_half_fast_is_as_slow_as_all_slow(predictions: dict[str, Predicted]) -> None:
    assert predictions["8 + 8"].step_s == pytest.approx(predictions["16 A100"].step_s, rel=1e-6)
    assert predictions["16 H100"].step_s < predictions["16 A100"].step_s / 2


def test_long_work_waits_for_fast_gpus_and_short_work_does_not(predictions: dict[str, Predicted]) -> None:
    waits_s = {"16 H100": DAY_S}
    slow, fast = predictions["16 A100"].tokens_per_s, predictions["16 H100"].tokens_per_s
    even_tokens = DAY_S / (1 / slow - 1 / fast)  # where waiting a day and starting now finish together
    assert compare(predictions, waits_s, even_tokens * 0.99)[0].name == "16 A100"
    best = compare(predictions, waits_s, even_tokens * 1.01)[0]
    assert best.name == "16 H100"
    assert best.completion_s == pytest.approx(DAY_S + even_tokens * 1.01 / fast)
    assert best.gpu_hours == pytest.approx(16 * even_tokens * 1.01 / fast / 3600)


def test_the_answer_has_every_choice_in_order_with_its_numbers(predictions: dict[str, Predicted]) -> None:
    choices = compare(predictions, {"16 H100": 3600.0, "8 + 8": 0.0}, 1e9)
    assert {choice.name for choice in choices} == set(predictions)
    assert [choice.completion_s for choice in choices] == sorted(choice.completion_s for choice in choices)
    for choice in choices:
        assert choice.completion_s == pytest.approx(choice.wait_s + choice.run_s)
        assert choice.run_s == pytest.approx(1e9 / predictions[choice.name].tokens_per_s)
        assert choice.later_s == pytest.approx(choice.completion_s - choices[0].completion_s)
    printed = json.loads(json.dumps(choices_json(choices), allow_nan=False))
    assert [row["name"] for row in printed] == [choice.name for choice in choices]
    assert printed[0]["later_s"] == 0


def test_equal_ends_prefer_fewer_gpu_hours_then_the_name(predictions: dict[str, Predicted]) -> None:
    one = predictions["16 A100"]
    same = {"b": one, "a": one, "lean": replace(one, gpus=8)}
    assert [choice.name for choice in compare(same, {}, 1e6)] == ["lean", "a", "b"]


def test_nothing_to_choose_from() -> None:
    assert compare({}, {}, 1.0) == ()


@pytest.mark.parametrize(
    ("waits_s", "tokens"),
    [({"16 A100": -1.0}, 1.0), ({"other": 1.0}, 1.0), ({"16 A100": float("inf")}, 1.0), ({}, -1.0), ({}, float("nan"))],
)
def test_what_makes_no_sense_is_refused(
    predictions: dict[str, Predicted], waits_s: dict[str, float], tokens: float
) -> None:
    with pytest.raises(ValueError, match="found"):
        compare(predictions, waits_s, tokens)
