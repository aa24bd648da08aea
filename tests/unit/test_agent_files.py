"""Files that a job can replace: what is no regular file is an error, and never a wait."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from fmagent.logs import tail_offset
from fmagent.runner import files, rundir
from fmagent.runner.contact import ContactFile


def link(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, link])
def test_what_is_no_file_is_never_waited_for(tmp_path: Path, make: Callable[[Path], None]) -> None:
    path = tmp_path / "x"
    make(path)
    with pytest.raises(OSError, match=str(path)):
        files.read_json(str(path))
    with pytest.raises(OSError, match=str(path)):
        tail_offset(path, 1)
    contact = ContactFile(path)
    contact.write(0.0)
    assert contact.age_s() is None
    make(tmp_path / "rank-0.err")
    make(tmp_path / "lock")
    assert rundir.last_lines(tmp_path, 0) == ""
    assert files.read_json(str(tmp_path / "none")) is None


def test_something_in_the_temporary_files_place_hangs_no_writer(tmp_path: Path) -> None:
    path = tmp_path / "x"
    os.mkfifo(f"{path}.new")
    files.write_json(str(path), {"a": 1})
    assert files.read_json(str(path)) == {"a": 1}


def test_a_lock_that_is_a_fifo_is_nobodys(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / rundir.LOCK_FILE)
    assert not rundir.supervisor_lives(tmp_path)


@pytest.mark.parametrize("text", ["[" * 100_000, "{", "7", "\0"])
def test_what_is_no_record_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "x").write_text(text)
    assert files.read_json(str(tmp_path / "x")) is None
