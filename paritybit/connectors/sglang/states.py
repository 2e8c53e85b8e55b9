"""Interprets the state of the scheduler, and errors that end it."""

import functools
import inspect
import traceback
from collections.abc import Callable
from typing import Any

from paritybit.connectors.failures import OUT_OF_BOUNDS
from paritybit.watch.checks.engine_error import INDEX_ERRORS
from paritybit.watch.stacks import engine_file

OWN_CHECKS = "sglang/srt/mem_cache/"
"""The folder in which the engine checks its own pools and its prefix cache."""


def nothing_runs(scheduler: Any) -> bool:
    """Return whether no request runs. Requests may wait if the release can tell these apart."""
    function = getattr(scheduler.is_fully_idle, "__func__", scheduler.is_fully_idle)
    asked = {"ignore_waiting": True} if tells_waiting(function) else {}
    return bool(scheduler.is_fully_idle(**asked))


@functools.cache
def tells_waiting(function: Callable[..., Any]) -> bool:
    """Return whether a function has a parameter to ignore waiting requests."""
    return "ignore_waiting" in inspect.signature(function).parameters


def meaning(error: Exception) -> str | None:
    """Return the meaning of an error that ended the engine, or None if it may not concern KV."""
    codes = [frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)]
    names = {code.co_name for code in codes}
    says, raised = str(error).lower(), engine_file(codes[-1].co_filename, "sglang") or ""
    # Outside of a running batch, the engine also indexes other data.
    bounds = any(words in says for words in INDEX_ERRORS) and (
        "run_batch" in names or raised.startswith(OWN_CHECKS)
    )
    if bounds:
        return OUT_OF_BOUNDS
    asserts = isinstance(error, AssertionError) and raised.startswith(OWN_CHECKS)
    idle = isinstance(error, ValueError) and "on_idle" in names
    return "the engine's own check of its slots fails" if asserts or idle else None
