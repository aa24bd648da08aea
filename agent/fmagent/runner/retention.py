"""How long the folders of released runs are kept: for their logs, by age and by number."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from fmagent.runner import rundir


def prune(runs_dir: Path, retention_s: float, runs_max: int) -> None:
    """Removes released runs older than `retention_s` seconds, and the oldest beyond `runs_max`."""
    released: list[tuple[float, Path]] = []
    for folder in runs_dir.iterdir():
        try:
            released.append(((folder / rundir.RELEASED_FILE).stat().st_mtime, folder))
        except OSError:
            continue  # not released
    released.sort(reverse=True)
    now_s = time.time()
    for place, (released_s, folder) in enumerate(released):
        if place >= runs_max or now_s - released_s > retention_s:
            shutil.rmtree(folder, ignore_errors=True)
