"""matplotlib, where it is installed: the pictures of the benchmarks need it, and nothing else does."""

from __future__ import annotations

import sys
from typing import Any


def pyplot() -> Any:
    """matplotlib.pyplot without a display. Ends the process with code 2 and a line that says what is missing."""
    try:
        import matplotlib as mpl
    except ImportError as error:
        print(f"--picture needs: pip install 'fmsched[bench]' ({error})", file=sys.stderr)
        raise SystemExit(2) from error
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    return plt
