"""Which etcd versions are warned about, and why."""

from __future__ import annotations

import pytest

from fmsched.maintenance import advice


@pytest.mark.parametrize(
    ("version", "word"),
    [
        ("3.5.1", "13766"), ("3.5.2", "13766"), ("3.5.3", "13435"), ("3.5.6", "13435"), ("3.5.7", ""), ("3.5.21", ""), ("3.6.0", ""),
        ("3.4.19", "13435"), ("3.4.20", ""), ("3.4.23", ""), ("3.6.0-rc.1", ""),
    ],
)  # fmt: skip
def test_advice(version: str, word: str) -> None:
    assert word in advice(version)
    assert bool(advice(version)) is bool(word)
