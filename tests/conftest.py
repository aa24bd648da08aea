"""What holds for every test."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
import structlog


def pytest_configure() -> None:
    # A shell starts its background jobs with SIGINT ignored, and what they start inherits that: then no test could interrupt anything.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _logs_as_before() -> Iterator[None]:
    """A program that a test ran in this process has pointed its logs at a stream that the next test no longer has."""
    yield
    structlog.reset_defaults()
