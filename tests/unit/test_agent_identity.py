"""Two hosts differ, whatever they are called; a restarted agent does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from fmagent.identity import identity_of, session_of


@pytest.mark.parametrize(
    ("folder", "machine", "hostname"), [("b", "m1", "h1"), ("a", "m2", "h1"), ("a", "m1", "h2"), ("a", "", "h1")]
)
def test_another_folder_machine_or_host_is_another_identity(
    tmp_path: Path, folder: str, machine: str, hostname: str
) -> None:
    assert identity_of(tmp_path / folder, machine, hostname) != identity_of(tmp_path / "a", "m1", "h1")


def test_sessions_of_one_host_share_the_identity_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    first, second = session_of(tmp_path / "state"), session_of(Path("state"))
    assert first != second
    assert first.split("/")[0] == second.split("/")[0]
    assert [len(part) for part in first.split("/")] == [16, 16]
