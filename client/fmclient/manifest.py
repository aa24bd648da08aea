"""What a caller may hand over as a manifest, as the text that travels."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fmclient.errors import InvalidManifest
from fmproto.v1.scheduler_pb2 import FieldViolation

MANIFEST_BYTES_MAX = 1024 * 1024

# str is the YAML itself, never a path: a guess would read files by accident.
Manifest = str | bytes | Path | Mapping[str, Any]


def manifest_text(manifest: Manifest) -> str:
    """YAML text of at most 1 MiB. InvalidManifest for more, or for bytes not UTF-8; OSError for an unreadable Path."""
    if isinstance(manifest, Path):
        manifest = manifest.read_bytes()
    if isinstance(manifest, bytes):
        manifest = _decoded(manifest)
    if not isinstance(manifest, str):
        manifest = json.dumps(manifest, indent=2)  # JSON is YAML
    size = len(manifest.encode())
    if size > MANIFEST_BYTES_MAX:
        raise _invalid(0, f"the manifest has {size:,} bytes; at most {MANIFEST_BYTES_MAX:,} (1 MiB) are allowed")
    return manifest


def _decoded(raw: bytes) -> str:
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise _invalid(line, f"byte 0x{raw[error.start]:02x} at offset {error.start:,} is not UTF-8 text") from None


def _invalid(line: int, message: str) -> InvalidManifest:
    return InvalidManifest(message, [FieldViolation(line=line, message=message)])
