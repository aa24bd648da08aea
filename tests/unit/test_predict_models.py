"""The catalogue of models, names and given sizes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fmsched.model.work import NOTHING_GIVEN, ModelSizes
from fmsched.predict import Model, Unpredicted, known_models, model_of
from fmsched.predict.sizes import published_parameters

PUBLISHED_WITHIN = 0.02


def found(name: str, given: ModelSizes = NOTHING_GIVEN) -> tuple[Model, tuple[str, ...]]:
    answer = model_of(name, given)
    assert not isinstance(answer, Unpredicted), answer
    return answer


@pytest.mark.parametrize("key", known_models())
def test_the_sizes_of_a_model_add_up_to_what_its_source_says(key: str) -> None:
    assert known_models()[key].parameters == pytest.approx(published_parameters(key), rel=PUBLISHED_WITHIN)


@pytest.mark.parametrize("key", known_models())
def test_a_key_finds_its_model_however_it_is_written(key: str) -> None:
    model = known_models()[key]
    for name in (key, key.upper(), key.replace("-", "_"), f"somebody/{key}-Instruct", f" {key} "):
        assert found(name) == (model, ())


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("meta-llama/Llama-3.1-70B-Instruct", "llama3-70b"),
        ("meta-llama/Meta-Llama-3-8B", "llama3-8b"),
        ("Llama-2-70b-chat-hf", "llama2-70b"),
        ("llama-405b", "llama3-405b"),
        ("gpt3", "gpt3-175b"),
        ("Mixtral-8x7B", "mixtral-8x7b"),
        ("deepseek-ai/DeepSeek-V3", "deepseek-v3"),
    ],
)
def test_other_names(name: str, key: str) -> None:
    assert found(name)[0] == known_models()[key]


def test_active_parameters_of_a_mixture() -> None:
    # 37e9 of DeepSeek-V3 (arXiv:2412.19437) and 12.9e9 of Mixtral 8x7B (arXiv:2401.04088) work on a token.
    for key, active in (("deepseek-v3", 37e9), ("mixtral-8x7b", 12.9e9)):
        model = known_models()[key]
        working = (model.layer_flops - model.attention_flops + model.head_flops) / 2
        assert working == pytest.approx(active, rel=0.04)


def test_flops_are_those_of_the_paper() -> None:
    """72·B·L·s·h²·(1 + s/6h + V/12hL) per step without recomputation, arXiv:2205.05198 appendix A, when nothing is masked."""
    layers, hidden, sequence, vocabulary = 96, 12288, 2048, 51200
    model = Model("gpt", layers, hidden, 4 * hidden, 96, 96, vocabulary, sequence, causal=False)
    bracket = 1 + sequence / (6 * hidden) + vocabulary / (12 * hidden * layers)
    assert model.step_flops * sequence == pytest.approx(72 * layers * sequence * hidden**2 * bracket, rel=1e-9)


def test_what_a_causal_model_masks_is_not_computed() -> None:
    model = known_models()["llama3-8b"]
    assert model.attention_flops == 32 * 2 * 8192 * 32 * (128 + 128) / 2
    assert replace(model, causal=False).attention_flops == 2 * model.attention_flops


def test_given_sequence_and_vocabulary_change_a_known_model() -> None:
    model, assumed = found("llama3-8b", ModelSizes(sequence_length=131072, vocabulary=32000, parameters=8e9))
    assert (model.sequence, model.vocabulary, model.hidden) == (131072, 32000, 4096)
    assert assumed == ()


@pytest.mark.parametrize("given", [ModelSizes(layers=20), ModelSizes(hidden_size=5000), ModelSizes(parameters=20e9)])
def test_other_sizes_are_another_model(given: ModelSizes) -> None:
    model, assumed = found("llama3-8b", given)
    assert model.layers == (given.layers or model.layers)
    assert model.hidden == (given.hidden_size or model.hidden)
    assert assumed


def test_a_size_in_an_unknown_name_is_taken_and_told() -> None:
    model, assumed = found("llama3-120b")
    assert model.parameters == pytest.approx(120e9, rel=0.02)
    assert any("from the name" in note for note in assumed)


@pytest.mark.parametrize("parameters", [1e8, 1e9, 7e9, 120e9, 2e12])
@pytest.mark.parametrize("experts", [0, 8, 64])
def test_a_number_of_parameters_alone_is_laid_out_to_that_sum(parameters: float, experts: int) -> None:
    model, _ = found("ours", ModelSizes(parameters=parameters, experts=experts, vocabulary=32000))
    assert model.parameters == pytest.approx(parameters, rel=0.25)


def test_all_sizes_given_leave_little_to_assume() -> None:
    given = ModelSizes(405e9, 126, 16384, 128, 128256, 8192)
    model, assumed = found("ours", given)
    assert model.parameters == pytest.approx(405e9, rel=0.01)
    assert assumed == ()


@pytest.mark.parametrize("name", ["ours", "", "8x7b", "v3", "a" * 100_000, "7" * 100_000, "9b" * 50_000, "\x00"])
def test_a_name_that_says_nothing_is_told(name: str) -> None:
    answer = model_of(name)
    assert isinstance(answer, Unpredicted)
    assert "not in the catalogue" in answer.reason
    assert len(answer.reason) < 600
