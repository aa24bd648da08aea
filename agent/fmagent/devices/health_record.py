"""Where the past of the health rules is kept over restarts of the agent: STATE_DIR/health.json. A record that cannot be read is set aside
(health.json.bad)."""

from __future__ import annotations

import contextlib
from pathlib import Path

from fmagent.health import record
from fmagent.health.judge import Past
from fmagent.runner.files import read_regular, replace_file

NAME = "health.json"
BYTES_MAX = 16 * 1024 * 1024
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> str:
    """Of this boot of the machine; empty where the kernel does not say."""
    try:
        return BOOT_ID.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""


class HealthRecord:
    """`fault`: why the record could not be read, or empty."""

    def __init__(self, path: Path, boot: str | None = None) -> None:
        self._path = path
        self._boot = boot_id() if boot is None else boot
        self.fault = ""

    def load(self) -> Past:
        """Empty where there is none, or none of this boot."""
        try:
            return record.read(read_regular(str(self._path), BYTES_MAX, follow=True), self._boot)
        except FileNotFoundError:
            return Past()
        except (OSError, record.RecordError) as error:
            bad = self._path.with_suffix(".json.bad")
            self.fault = f"{self._path}: {error}; kept as {bad}"
            with contextlib.suppress(OSError):  # it stays, and is replaced by the first record that is written
                self._path.replace(bad)
            return Past()

    def save(self, past: Past) -> bool:
        """False: the disk did not take it; it stays in memory, and is to be written again."""
        try:
            replace_file(str(self._path), record.written(past, self._boot), durable=True)
        except OSError:
            return False
        return True
