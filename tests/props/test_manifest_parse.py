"""parse() never raises and never takes long, whatever it is given."""

from __future__ import annotations

import string
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fmsched.manifest import Fault, Manifest, parse
from tests.support.manifests import GOOD

LIMIT_S = 2.0  # of one small text
# Four times the text may take four times the time, and no more than noise above it; sixteen times would be quadratic.
GROWTH_MAX = 9.0
# Below this a ratio says nothing.
NOISE_S = 0.1


def judged(source: str | bytes) -> float:
    """The seconds of CPU that it took: the machine may be busy."""
    start_s = time.process_time()
    parsed = parse(source)
    taken_s = time.process_time() - start_s
    if not isinstance(parsed, Manifest):
        assert parsed
        assert all(isinstance(fault, Fault) and fault.message and "\n" not in str(fault) for fault in parsed)
    return taken_s


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=300) | st.binary(max_size=300))
def test_any_text_or_bytes(source: str | bytes) -> None:
    assert judged(source) < LIMIT_S


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="ab:-[]{}&*!|>'\"%@`#?,.~ \n\t0123\\xuU", max_size=120))
def test_text_that_looks_like_yaml(source: str) -> None:
    assert judged(source) < LIMIT_S


@settings(max_examples=300, deadline=None)
@given(st.integers(0, len(GOOD)), st.integers(0, 40), st.text(alphabet=string.printable, max_size=20))
def test_a_good_manifest_with_a_piece_cut_out_and_another_put_in(at: int, cut: int, put: str) -> None:
    assert judged(GOOD[:at] + put + GOOD[at + cut :]) < LIMIT_S


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
FIELDS = (
    "replicaCount",
    "resourceGroups",
    "tolerations",
    "parallelism",
    "template",
    "checkpoint",
    "elastic",
    "model",
    "priority",
)


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.sampled_from(FIELDS), JUNK))
def test_any_values_in_known_fields(spec: dict[str, object]) -> None:
    import json

    header = {"apiVersion": "ai.example.com/v1alpha1", "kind": "FoundationModelTrainingJob", "metadata": {"name": "x"}}
    assert judged(json.dumps({**header, "spec": spec})) < LIMIT_S


MEBIBYTE = 1 << 20


@pytest.mark.parametrize(
    "text",
    [
        "- a\n" * (MEBIBYTE // 4),
        "# comment\n" * (MEBIBYTE // 10),
        "a: " + "x" * (MEBIBYTE - 3),
        'a: "' + "x\\n" * (MEBIBYTE // 3 - 4) + '"',
        "a: |\n" + "  x\n" * (MEBIBYTE // 4 - 8),
        "[" * MEBIBYTE,
        "{" * MEBIBYTE,
        "[a," * (MEBIBYTE // 3),
        "- " * (MEBIBYTE // 2),
        "? " * (MEBIBYTE // 2),
        "\t" * MEBIBYTE,
        " " * MEBIBYTE,
        "\n" * MEBIBYTE,
        "&" + "a" * (MEBIBYTE - 1),
        "&a " * (MEBIBYTE // 3),
        "*" * MEBIBYTE,
        "'" * MEBIBYTE,
        "9" * MEBIBYTE,
        "a: " + "9" * (MEBIBYTE - 3),
        "!" * MEBIBYTE,
        "%" * MEBIBYTE,
        '{"a":' * (MEBIBYTE // 5),
        "---\n" * (MEBIBYTE // 4),
        GOOD + "  zzz: 1\n" * 100,
        GOOD + "".join(f"  z{i}: 1\n" for i in range(5000)),
    ],
    ids=lambda text: repr(text[:8]),
)
def test_a_mebibyte_of_anything(text: str) -> None:
    """Reading grows with the text, and not out of hand."""
    quarter_s = judged(text[: len(text) // 4])
    assert judged(text) < GROWTH_MAX * max(quarter_s, NOISE_S)
