"""Generated code is committed; it must be what the proto files say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from fmproto.generate import PROTO_ROOT


def test_generated_code_is_current(tmp_path: Path) -> None:
    # In a process of its own: protoc's C++ descriptors and those of a long test run do not mix.
    subprocess.run([sys.executable, "-m", "fmproto.generate", str(tmp_path)], check=True)
    made = {
        path.relative_to(tmp_path): path.read_text()
        for path in tmp_path.rglob("*_pb2*.py*")
        if path.suffix in (".py", ".pyi")
    }
    assert len(made) >= 12
    committed = {path: (PROTO_ROOT / path).read_text() for path in made}
    stale = [str(path) for path in made if made[path] != committed[path]]
    assert not stale, f"run `make proto`: {stale}"
