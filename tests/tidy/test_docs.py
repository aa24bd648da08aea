"""What the documents show is what the code says."""

from __future__ import annotations

from pathlib import Path

from fmsched.lifecycle.table import mermaid

ROOT = Path(__file__).resolve().parents[2]


def test_the_state_diagram_is_made_from_the_table() -> None:
    assert mermaid() in (ROOT / "ARCHITECTURE.md").read_text()
