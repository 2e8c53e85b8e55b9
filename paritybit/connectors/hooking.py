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
from paritybit.watch.sources import line_of, wraps

CALLERS = 5
"""The number of calling lines that are reported."""


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


def calling(shown: Callable[[str], str | None], inner: Callable[[str], bool]) -> tuple[str, ...]:
    """Return the innermost calling lines of the engine, at most CALLERS, with their functions.

    `shown` returns the path of a file as the report shows it, or None for a file that does not
    count. What is in an `inner` file, such as an allocator's, acts on behalf of its caller: the
    first line is outside of them, and says what it calls there. A function that passes on whatever
    arguments it gets does not count.
    """
    found, within = list[str](), list[str]()
    for frame in callers():
        path = None if wraps(frame.f_code) else shown(frame.f_code.co_filename)
        if path is None:
            continue
        line = line_of(path, frame.f_lineno, frame.f_code)
        if not inner(frame.f_code.co_filename):
            found.append(line)
        elif not found:
            within.append(line)
        if len(found) == CALLERS:
            break
    if found and within:
        found[0] += f", which calls {', '.join(within[:-CALLERS:-1])}"
    return tuple(found)


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
    code = getattr(inspect.unwrap(getattr(function, "__func__", function)), "__code__", None)
    _, engine, file = ("" if code is None else code.co_filename).rpartition(f"/{package}/")
    if not engine or code is None:
        return None
    return line_of(f"{package}/{file}", code.co_firstlineno, code)


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
