"""The fm-scheduler command: says in one line what is missing where fmsched was installed without its [scheduler] extra."""

from __future__ import annotations

import sys


def main() -> None:
    try:
        from fmsched.__main__ import app
    except ModuleNotFoundError as error:
        print(f"fm-scheduler needs: pip install 'fmsched[scheduler]' ({error})", file=sys.stderr)
        sys.exit(2)
    app()
