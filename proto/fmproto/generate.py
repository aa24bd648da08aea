"""Generates the Python code of v1/*.proto beside them: `python -m fmproto.generate [OUT]`.

Needs grpcio-tools at the version that pyproject.toml pins; a test generates into a scratch folder and compares.
"""

from __future__ import annotations

import importlib.resources
import sys
from pathlib import Path

PROTO_ROOT = Path(__file__).resolve().parent.parent


def generate(out: Path) -> None:
    """Writes fmproto/v1/*_pb2.py, *_pb2.pyi and *_pb2_grpc.py under `out`. Raises RuntimeError if protoc refuses."""
    from grpc_tools import protoc

    sources = sorted(str(path) for path in (PROTO_ROOT / "fmproto" / "v1").glob("*.proto"))
    well_known = str(importlib.resources.files("grpc_tools") / "_proto")
    flags = [f"-I{PROTO_ROOT}", f"-I{well_known}", f"--python_out={out}", f"--pyi_out={out}", f"--grpc_python_out={out}"]
    if protoc.main(["protoc", *flags, *sources]) != 0:
        raise RuntimeError(f"protoc refused {', '.join(sources)}")


if __name__ == "__main__":
    generate(Path(sys.argv[1]) if len(sys.argv) > 1 else PROTO_ROOT)
