"""What a job trains, as its manifest says it: sizes and degrees as given, nothing derived. predict/ makes a Training of it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ModelSizes:
    """0: not given. Sequences in tokens, batches in sequences."""

    parameters: float = 0.0
    layers: int = 0
    hidden_size: int = 0
    attention_heads: int = 0
    vocabulary: int = 0
    sequence_length: int = 0
    experts: int = 0
    micro_batch: int = 0
    global_batch: int = 0


NOTHING_GIVEN = ModelSizes()


@dataclass(frozen=True, slots=True)
class Work:
    """`model` empty: not named. degrees: tensor, pipeline, data, expert, context of `parallelism`; None: they follow from the groups."""

    model: str = ""
    sizes: ModelSizes = NOTHING_GIVEN
    degrees: tuple[int, int, int, int, int] | None = None
