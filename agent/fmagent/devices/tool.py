"""One run of a tool of the node under a time limit (`ibstat`, `perfquery`, `amd-smi`), its output bounded."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

from fmagent.devices.killed import Killed

# `amd-smi metric --json` of 64 partitions below 2 MB.
OUTPUT_BYTES_MAX = 16 << 20
_CHUNK_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Said:
    """What it printed on standard output. `error`: it hung, and nothing is known; `absent`: there is no such tool."""

    output: str = ""
    error: str = ""
    absent: bool = False
    code: int = 0


async def run(
    command: Sequence[str], timeout_s: float, killed: Killed, name: str = "", bytes_max: int = OUTPUT_BYTES_MAX
) -> Said:
    """Never raises but for its own cancellation. While a killed run has not ended, none is started: `error` says so."""
    name = name or command[0]
    left = killed.left()
    if left:
        return Said(error=f"{name} hung: {left}")
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,  # so that what a wrapper started ends with it
        )
    except (OSError, ValueError):
        return Said(absent=True)
    try:
        output = await asyncio.wait_for(_read(process, killed, bytes_max), timeout_s)
    except TimeoutError:
        await _end(process, killed)
        return Said(error=f"{name} hung: no answer in {timeout_s:g} s")
    except asyncio.CancelledError:
        _kill(process, killed)
        raise
    if output is None:
        return Said(error=f"{name} printed more than {bytes_max:,} bytes")
    return Said(output.decode("utf-8", errors="replace"), code=process.returncode or 0)


async def _read(process: asyncio.subprocess.Process, killed: Killed, bytes_max: int) -> bytes | None:
    """All that it prints until it ends. None: that was too much, and it was killed."""
    assert process.stdout is not None
    content = bytearray()
    while chunk := await process.stdout.read(_CHUNK_BYTES):
        if len(content) <= bytes_max:
            content += chunk
            if len(content) > bytes_max:
                _kill(process, killed)
    await process.wait()
    return None if len(content) > bytes_max else bytes(content)


async def _end(process: asyncio.subprocess.Process, killed: Killed) -> None:
    """Killed, and what it had printed thrown away: asyncio only sees the end of a process whose pipe is read to its end."""
    assert process.stdout is not None
    rest = asyncio.create_task(_drain(process.stdout))
    try:
        await killed.end(process)
    finally:
        rest.cancel()


async def _drain(pipe: asyncio.StreamReader) -> None:
    while await pipe.read(_CHUNK_BYTES):
        pass


def _kill(process: asyncio.subprocess.Process, killed: Killed) -> None:
    with contextlib.suppress(ProcessLookupError):
        killed.kill(process)
