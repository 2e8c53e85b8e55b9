"""Wraps functions of an engine. The engine continues, whatever error a connector raises."""

import functools
import importlib
import inspect
import pkgutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from types import FrameType, ModuleType
from typing import Any

from paritybit.watch import memory
from paritybit.watch.attach import of_signal, where
from paritybit.watch.journal import of_process
from paritybit.watch.stacks import first_line

HOOK = "_paritybit_hook"
"""The attribute of a function that is wrapped."""


class NotRecognisedError(Exception):
    """The connector does not know a part of the engine. The message names the part."""


@functools.cache
def defined(path: str) -> bool:
    """Return whether a dotted path exists and its owner defines the last name itself."""
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


def callers() -> Iterator[FrameType]:
    """Yield the frames of the callers, innermost first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def release_of(package: str) -> str:
    """Return the version of an engine, or of its module if the package is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return str(getattr(importlib.import_module(package), "__version__", "unknown"))


def guarded(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a hook that falls back to the original function if the connector fails.

    An error that the original function raises is the engine's own and is raised again. What the
    method gets as the original has its signature.
    """

    @functools.wraps(method)
    def hook(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        called: list[Any] = []
        raised: list[BaseException] = []

        def once(*args: Any, **kwargs: Any) -> Any:
            try:
                with memory.theirs():
                    called[:] = [original(*args, **kwargs)]
            except BaseException as error:
                raised.append(error)
                raise
            return called[0]

        once.__wrapped__ = original  # type: ignore[attr-defined]  # `inspect.signature` follows it.
        try:
            with memory.ours():
                return method(once, *args, **kwargs)
        except BaseException as error:
            if error in raised:
                raise
            journal = of_process()
            if journal is not None:
                journal.lose()
            if of_signal(error):
                raise
            if journal is not None:
                journal.undecided(f"the connector failed: {where()}")
            if called:
                return called[0]
            return original(*args, **kwargs)

    return hook


def place_of(function: Any, package: str) -> str | None:
    """Return the line where a function of an engine begins. None for a function of others."""
    return first_line(getattr(function, "__func__", function), package)


def passed(run: functools.partial[Any]) -> dict[str, Any]:
    """Return the arguments of a call by the names of its parameters, and all named ones."""
    bound = inspect.signature(run.func).bind(*run.args, **run.keywords)
    return {**bound.arguments, **run.keywords}


def wrap(owner: Any, name: str, method: Callable[..., Any]) -> None:
    """Replace a function of a module or class by a hook."""
    original, hook = getattr(owner, name), guarded(method)

    @functools.wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return hook(original, *args, **kwargs)

    setattr(wrapped, HOOK, method)
    setattr(owner, name, wrapped)


def install(
    targets: Mapping[str, Sequence[str]], method_of: Callable[[str], Callable[..., Any]]
) -> list[str]:
    """Wrap each target that a release of the engine has.

    `targets` has, by the name of a method, the paths of the functions that it wraps. `method_of`
    returns the method of a name. Returns the names without any target in this release.
    """
    lacking = []
    for name, paths in targets.items():
        found = [path for path in paths if defined(path)]
        for path in found:
            owner, _, function = path.rpartition(".")
            wrap(pkgutil.resolve_name(owner), function, method_of(name))
        if not found:
            lacking.append(name)
    return lacking
