"""`fmctl validate`: every fault of a manifest, or the sum of its GPUs. Imports nothing heavy: it must answer at once."""

from __future__ import annotations

from fmproto.v1 import scheduler_pb2
from fmsched.manifest import Manifest, parse, summary


def run(text: bytes, where: str) -> scheduler_pb2.ValidateResponse:
    """Violations, or name, lines and their sum. `where` is for the caller's messages: violations carry line and path only."""
    del where
    manifest = parse(text)
    if not isinstance(manifest, Manifest):
        return scheduler_pb2.ValidateResponse(
            violations=[
                scheduler_pb2.FieldViolation(line=fault.line, path=fault.path, message=fault.message) for fault in manifest
            ]
        )
    return scheduler_pb2.ValidateResponse(
        name=manifest.name,
        lines=[
            scheduler_pb2.SumLine(
                group=line.group, gpus_per_group=line.gpus_per_group, replicas=line.replicas, gpus=line.gpus
            )
            for line in summary(manifest)
        ],
        gpus=manifest.gpus,
    )
