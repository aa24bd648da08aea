"""What holds for every test."""

from __future__ import annotations

import signal


def pytest_configure() -> None:
    # A shell starts its background jobs with SIGINT ignored, and what they start inherits that: then no test could interrupt anything.
    signal.signal(signal.SIGINT, signal.default_int_handler)
