"""Wraps functions of an engine so that a connector's own errors never reach it."""

import functools
from collections.abc import Callable
from typing import Any

from paritybit.watch.attach import where
from paritybit.watch.journal import of_process


def guarded(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a hook that falls back to the original where the connector itself fails.

    An error that the original raises is the engine's and is passed on.
    """

    @functools.wraps(method)
    def hook(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        called: list[Any] = []
        raised: list[BaseException] = []

        def once(*args: Any, **kwargs: Any) -> Any:
            try:
                called[:] = [original(*args, **kwargs)]
            except BaseException as error:
                raised.append(error)
                raise
            return called[0]

        try:
            return method(once, *args, **kwargs)
        except Exception as error:
            if error in raised:
                raise
            journal = of_process()
            if journal is not None:
                journal.undecided(f"the connector failed: {where()}")
            if called:
                return called[0]
            return original(*args, **kwargs)

    return hook
