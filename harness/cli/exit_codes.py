"""Exit codes of the command line."""

import signal
from collections.abc import Mapping

OK = 0
FINDING = 1
MALFORMED = 2
CANNOT_RUN = 125
"""No verdict: it cannot run here, or an internal error. `git bisect run` skips this code."""

INTERRUPTED = 130
TERMINATED = 143
HUNG_UP = 129
"""Ended by Ctrl-C, SIGTERM, or a closed terminal. Finished results are saved."""

STOPPED: Mapping[int | None, int] = {
    signal.SIGINT: INTERRUPTED,
    signal.SIGTERM: TERMINATED,
    signal.SIGHUP: HUNG_UP,
}
"""Exit codes of what a signal interrupted."""
