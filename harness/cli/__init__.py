"""The commands: with the parser they are the one place where harness and reports meet."""

import os
from pathlib import Path

OK, FINDING, MALFORMED, CANNOT_RUN, INTERRUPTED = 0, 1, 2, 125, 130
"""Exit codes."""

OUT = Path("reports/out")
"""Where what a run writes goes, if nothing else is said."""


def default_workers(device: str) -> int:
    """Return one process on cuda, where processes take turns, or one per core."""
    return 1 if device == "cuda" else os.cpu_count() or 1
