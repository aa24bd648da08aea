"""Name ranges: what they stand for, and how names are folded."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fmproto.hostlist import EXPANDED_MAX, expand, fold


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n1", ("n1",)),
        ("n[1-3]", ("n1", "n2", "n3")),
        ("n[008-011]", ("n008", "n009", "n010", "n011")),
        ("n[9-11]", ("n9", "n10", "n11")),
        ("n[1,3,5-6]x", ("n1x", "n3x", "n5x", "n6x")),
        ("p[1-2]l[1-2]", ("p1l1", "p1l2", "p2l1", "p2l2")),
        ("a, b[1-2]", ("a", "b1", "b2")),
    ],
)
def test_expand(text: str, names: tuple[str, ...]) -> None:
    assert expand(text) == names


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not a name or a range"),
        ("n[1-", "is not a name or a range"),
        ("n]1[", "is not a name or a range"),
        ("a b", "is not a name or a range"),
        ("n[]", "is not a number or a range"),
        ("n[a-b]", "is not a number or a range"),
        ("n[5-1]", "runs backwards"),
        ("n[1-999999999]", f"more than {EXPANDED_MAX} names"),
        ("n[1-1000]m[1-1000]", f"more than {EXPANDED_MAX} names"),
    ],
)
def test_what_is_no_range_says_so(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message.replace("[", r"\[")):
        expand(text)


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (("n1", "n2", "n3"), "n[1-3]"),
        (("n08", "n09", "n10"), "n[08-10]"),
        (("n1", "n3", "n4"), "n[1,3-4]"),
        (("leaf",), "leaf"),
        (("a", "a"), "a,a"),
        (("a", "b"), "a,b"),
        (("p1-x", "p2-x", "p3-y"), "p[1-2]-x,p3-y"),
    ],
)
def test_fold(names: tuple[str, ...], text: str) -> None:
    assert fold(names) == text


@given(st.lists(st.from_regex(r"[a-z0-9.-]{1,6}", fullmatch=True), min_size=1, max_size=12))
def test_folded_names_expand_to_themselves(names: list[str]) -> None:
    assert expand(fold(names)) == tuple(names)
