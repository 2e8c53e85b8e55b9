"""Exit codes of the command line."""

from collections.abc import Mapping
from typing import Any

OK = 0
FINDING = 1
MALFORMED = 2
CANNOT_RUN = 125
"""Cannot run here, or an error of ours left no verdict: what `git bisect run` skips."""

INTERRUPTED = 130
TERMINATED = 143
HUNG_UP = 129
"""By Ctrl-C, by SIGTERM, and by a terminal that is gone: what has ended until then is kept."""


def code_of(figures: Mapping[str, Any]) -> int:
    """Return the exit code of a campaign's figures."""
    if figures["as_hoped"]:
        return OK
    return CANNOT_RUN if figures["undecided"] else FINDING
