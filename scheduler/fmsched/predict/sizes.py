"""What a model is: its sizes, its parameters, its FLOPs per token. The catalogue is models.toml, with the source of each row.

FLOPs follow arXiv:2104.04473 (appendix) and arXiv:2205.05198 (appendix A): a matrix of n parameters costs 2n FLOPs per token
forward and 4n backward; the attention matrices of a layer cost 2·s·heads·(key_dim + value_dim) per token forward. In a causal
model half of that is masked and not computed (FlashAttention, arXiv:2205.14135 section 4), so it is counted half.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from typing import Any

from fmsched.model.work import NOTHING_GIVEN, ModelSizes

NAME_MAX = 256  # characters of a model's name that are looked at
PARAMETERS_AGREE = 0.10  # a given number of parameters this near the catalogue's is the same model
HIDDEN_PER_LAYER = 128  # hidden = 128 × layers: GPT-3 175B has 128, Llama 3 405B 130, Llama 3 70B 102
HEAD_DIM = 128  # arXiv:2407.21783 table 3, arXiv:2005.14165 table 2.1
FFN_PER_HIDDEN = 4  # arXiv:1706.03762 section 3.3
VOCABULARY = 128_256  # Llama 3
SEQUENCE = 4096
EXPERTS_PER_TOKEN = 2  # Mixtral

_WORD = re.compile(r"[a-z]+|[0-9]+")
_SIZE_IN_NAME = re.compile(r"(?<![a-z0-9.])(\d{1,6}(?:\.\d{1,3})?)([bmt])(?![a-z0-9])")
_SIZE_UNITS = {"m": 1e6, "b": 1e9, "t": 1e12}
# fmt: off
_SAYS_NOTHING = frozenset((
    "base", "bf16", "chat", "finetune", "finetuning", "fp8", "hf", "instruct", "it", "lora", "meta", "pretrain", "pretraining", "sft",
))
# fmt: on


@dataclass(frozen=True, slots=True)
class Unpredicted:
    """Why there is no prediction: a value, not an error."""

    reason: str

    def __str__(self) -> str:
        return self.reason


@dataclass(frozen=True, slots=True)
class Model:
    """The sizes of a decoder (or, with causal off, an encoder). Counts, without units."""

    name: str
    layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    vocabulary: int
    sequence: int  # tokens
    head_dim: int = 0  # 0: hidden / heads
    key_dim: int = 0  # of one head; 0: head_dim
    value_dim: int = 0
    gated: bool = False
    tied: bool = False
    causal: bool = True
    experts: int = 0  # routed, per layer; 0: dense
    experts_per_token: int = 0
    expert_ffn: int = 0
    shared_experts: int = 0
    dense_layers: int = 0  # of a model with experts: layers without them
    attention_parameters: float = 0.0  # of one layer, where heads do not give them

    @property
    def dim(self) -> int:
        return self.head_dim or max(1, self.hidden // self.heads)

    @property
    def moe_layers(self) -> int:
        return self.layers - self.dense_layers if self.experts else 0

    @property
    def attention(self) -> float:
        """Parameters of one layer's attention."""
        return self.attention_parameters or 2.0 * self.hidden * self.dim * (self.heads + self.kv_heads)

    @property
    def mlp(self) -> float:
        """Parameters of one dense layer's MLP."""
        return float(self._matrices * self.hidden * self.ffn)

    @property
    def expert(self) -> float:
        """Parameters of one expert."""
        return float(self._matrices * self.hidden * self.expert_ffn)

    @property
    def _matrices(self) -> int:
        return 3 if self.gated else 2

    @property
    def expert_parameters(self) -> float:
        """Of all routed experts: what expert parallelism divides."""
        return self.moe_layers * self.experts * self.expert

    @property
    def layer_parameters(self) -> float:
        """Of all layers, without routed experts and without embeddings."""
        moe = self.moe_layers
        extra = moe * (self.shared_experts * self.expert + self.hidden * self.experts)
        return self.layers * self.attention + (self.layers - moe) * self.mlp + extra

    @property
    def embedding_parameters(self) -> float:
        return float((1 if self.tied else 2) * self.vocabulary * self.hidden)

    @property
    def parameters(self) -> float:
        """All of them; norms, biases and learned positions, less than 1 in 100, are left out."""
        return self.layer_parameters + self.expert_parameters + self.embedding_parameters

    @property
    def attention_flops(self) -> float:
        """Of the score and value products of all layers: forward, per token."""
        dims = (self.key_dim or self.dim) + (self.value_dim or self.dim)
        return self.layers * 2.0 * self.sequence * self.heads * dims * (0.5 if self.causal else 1.0)

    @property
    def layer_flops(self) -> float:
        """Of all layers: forward, per token."""
        active = self.layer_parameters + self.moe_layers * self.experts_per_token * self.expert
        return 2.0 * active + self.attention_flops

    @property
    def head_flops(self) -> float:
        """Of the output layer: forward, per token."""
        return 2.0 * self.vocabulary * self.hidden

    @property
    def step_flops(self) -> float:
        """Forward and backward, per token, nothing recomputed: what MFU is counted in."""
        return 3.0 * (self.layer_flops + self.head_flops)


def known_models() -> Mapping[str, Model]:
    """The catalogue, by key, in the order of the file."""
    return _catalogue()


def published_parameters(key: str) -> float:
    """What the source of a catalogue row says there are. Raises KeyError for an unknown key."""
    return float(_rows()[key]["published_parameters"])


def model_of(name: str, given: ModelSizes = NOTHING_GIVEN) -> tuple[Model, tuple[str, ...]] | Unpredicted:
    """The model that a name, given sizes, or both speak of; and what had to be assumed, in words.

    A known name decides, unless a given size says that it is another model; given vocabulary and sequence length are taken in
    any case. Without a known name, layers and hidden size decide, or else the number of parameters (given, or in the name:
    "llama3-120b" has 120e9), which is laid out as models of that size are.
    """
    base = _by_words().get(_words(name))
    if base is not None and not _another(base, given):
        changed = replace(
            base,
            sequence=given.sequence_length or base.sequence,
            vocabulary=given.vocabulary or base.vocabulary,
        )
        return changed, ()
    return _laid_out(name, given)


def _another(base: Model, given: ModelSizes) -> bool:
    pairs = ((given.layers, base.layers), (given.hidden_size, base.hidden), (given.experts, base.experts))
    if any(size and size != known for size, known in pairs):
        return True
    if given.attention_heads and given.attention_heads != base.heads:
        return True
    return bool(given.parameters) and abs(given.parameters / base.parameters - 1) > PARAMETERS_AGREE


def _laid_out(name: str, given: ModelSizes) -> tuple[Model, tuple[str, ...]] | Unpredicted:
    assumed: list[str] = []
    parameters = given.parameters
    layers, hidden = given.layers, given.hidden_size
    if not parameters and not (layers and hidden):
        parameters = _size_in(name)
        if not parameters:
            return Unpredicted(f"model {name[:80]!r} is not in the catalogue, and its sizes are not given")
        assumed.append(f"{parameters / 1e9:g}e9 parameters, from the name")
    copies = max(1, given.experts)
    if not (layers and hidden):
        layers, hidden = _shape(parameters / copies, layers, hidden)
        assumed.append(f"{layers} layers of hidden size {hidden}, as models with so many parameters have")
    heads = given.attention_heads
    if not heads:
        heads = max(1, hidden // HEAD_DIM)
        assumed.append(f"{heads} attention heads")
    vocabulary = given.vocabulary
    if not vocabulary:
        vocabulary = VOCABULARY
        assumed.append(f"a vocabulary of {vocabulary}")
    sequence = given.sequence_length
    if not sequence:
        sequence = SEQUENCE
        assumed.append(f"sequences of {sequence} tokens")
    model = Model(
        name=name,
        layers=layers,
        hidden=hidden,
        ffn=FFN_PER_HIDDEN * hidden,
        heads=heads,
        kv_heads=heads,
        vocabulary=vocabulary,
        sequence=sequence,
        tied=True,
        experts=given.experts if given.experts > 1 else 0,
        experts_per_token=min(EXPERTS_PER_TOKEN, given.experts) if given.experts > 1 else 0,
    )
    if model.experts:
        assumed.append(f"{model.experts_per_token} experts per token")
    ffn = _ffn(model, parameters)
    return replace(model, ffn=ffn, expert_ffn=ffn if model.experts else 0), tuple(assumed)


def _shape(parameters: float, layers: int, hidden: int) -> tuple[int, int]:
    """12 · layers · hidden² parameters (arXiv:2001.08361 section 2.1) with hidden = 128 · layers, or one of the two given."""
    if hidden:
        return max(1, round(parameters / (12.0 * hidden * hidden))), hidden
    if not layers:
        layers = max(1, round((parameters / (12.0 * HIDDEN_PER_LAYER**2)) ** (1 / 3)))
    return layers, max(HEAD_DIM, HEAD_DIM * round((parameters / (12.0 * layers)) ** 0.5 / HEAD_DIM))


def _ffn(model: Model, parameters: float) -> int:
    """The MLP width with which the sum of parameters is as given; four times hidden where that says nothing."""
    if not parameters:
        return model.ffn
    left = parameters - model.layers * model.attention - model.embedding_parameters
    width = left / (model.layers * max(1, model.experts) * 2.0 * model.hidden)
    return round(width) if width >= 1 else model.ffn


def _size_in(name: str) -> float:
    """Parameters that a name such as "llama3-120b" tells, or 0."""
    found = _SIZE_IN_NAME.findall(name[:NAME_MAX].lower())
    return float(found[-1][0]) * _SIZE_UNITS[found[-1][1]] if found else 0.0


def _words(name: str) -> str:
    """Letters and digits of a name without its owner ("meta-llama/…"), in words; words that tell no size are left out."""
    text = name[:NAME_MAX].lower().rsplit("/", maxsplit=1)[-1]
    parts = [part for part in re.split(r"[^a-z0-9.]+", text) if part and part not in _SAYS_NOTHING]
    return " ".join(_WORD.findall(" ".join(parts)))


@cache
def _rows() -> dict[str, dict[str, Any]]:
    text = resources.files("fmsched.predict").joinpath("models.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


@cache
def _catalogue() -> Mapping[str, Model]:
    left_out = {"names", "source", "published_parameters"}
    return {
        key: Model(name=key, **{field: value for field, value in row.items() if field not in left_out})
        for key, row in _rows().items()
    }


@cache
def _by_words() -> Mapping[str, Model]:
    found: dict[str, Model] = {}
    for key, row in _rows().items():
        for name in (key, *row["names"]):
            assert found.setdefault(_words(name), _catalogue()[key]) is _catalogue()[key], f"{name} names two models"
    return found
