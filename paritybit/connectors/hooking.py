"""Wrapping functions of an engine so that the engine goes on whatever a connector does."""

import functools
import pkgutil
from collections.abc import Callable
from types import ModuleType
from typing import Any

from paritybit.watch.attach import where
from paritybit.watch.journal import of_process


@functools.cache
def defined(path: str) -> bool:
    """Whether the object that a dotted path leads to exists and defines the last name itself."""
    owner, _, name = path.rpartition(".")
    try:
        there = pkgutil.resolve_name(owner)
    except (ImportError, AttributeError, ValueError):
        return False
    if path.startswith("torch."):
        return hasattr(there, name)
    if name not in vars(there):
        return False
    if isinstance(there, ModuleType):
        return getattr(vars(there)[name], "__module__", None) == owner
    return bool(there.__module__ == owner.rpartition(".")[0])


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
