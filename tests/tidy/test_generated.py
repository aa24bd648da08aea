"""Generated code is committed; it must be what the proto files say."""

from __future__ import annotations

from pathlib import Path

from fmproto.generate import PROTO_ROOT, generate


def test_generated_code_is_current(tmp_path: Path) -> None:
    generate(tmp_path)
    made = {
        path.relative_to(tmp_path): path.read_text()
        for path in tmp_path.rglob("*_pb2*.py*")
        if path.suffix in (".py", ".pyi")
    }
    assert len(made) >= 12
    committed = {path: (PROTO_ROOT / path).read_text() for path in made}
    stale = [str(path) for path in made if made[path] != committed[path]]
    assert not stale, f"run `make proto`: {stale}"
