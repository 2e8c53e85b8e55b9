"""What the state of the scheduler, or an error that ended it, means."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

from paritybit.connectors.sglang.sources import lines_of, raised_in
from paritybit.watch.checks.engine_error import INDEX_ERRORS

OWN_CHECKS = "sglang/srt/mem_cache/"
"""Where the engine asserts what must hold of its pools and of its prefix cache."""

OUT_OF_BOUNDS = ("illegal memory access", "device-side assert")
"""What an error says, in lower case, of memory that is accessed out of bounds."""


def nothing_runs(scheduler: Any) -> bool:
    """Whether no request runs; some may wait, where the release can tell these apart."""
    function = getattr(scheduler.is_fully_idle, "__func__", scheduler.is_fully_idle)
    asked = {"ignore_waiting": True} if tells_waiting(function) else {}
    return bool(scheduler.is_fully_idle(**asked))


@functools.cache
def tells_waiting(function: Callable[..., Any]) -> bool:
    """Whether a function can leave requests that wait out of account."""
    return "ignore_waiting" in inspect.signature(function).parameters


def meaning(error: Exception) -> str | None:
    """Return what an error that ended an engine means, or None if it need not be about KV."""
    says, raised = str(error).lower(), lines_of(error)[-1]
    # Elsewhere than in a batch that runs, an engine indexes other data.
    bounds = any(words in says for words in INDEX_ERRORS) and (
        raised_in(error, "run_batch") or raised.startswith(OWN_CHECKS)
    )
    if bounds or any(words in says for words in OUT_OF_BOUNDS):
        return "a forward pass accesses memory out of bounds"
    asserts = isinstance(error, AssertionError) and raised.startswith(OWN_CHECKS)
    idle = isinstance(error, ValueError) and raised_in(error, "on_idle")
    return "the engine's own check of its slots fails" if asserts or idle else None
