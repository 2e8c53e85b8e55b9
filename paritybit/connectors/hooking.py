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
from paritybit.watch.stacks import WRAPPERS, first_line, note_connector

HOOK = "_paritybit_hook"


class NotRecognisedError(Exception):
    """The connector does not know a part of the engine. The message names the part."""


def maybe(owner: Any, path: str) -> Any:
    """Return an attribute by its dotted path, or None if a release lacks a part of it."""
    for name in path.split("."):
        owner = getattr(owner, name, None)
    return owner


@functools.cache
def defined(path: str) -> bool:
    """Return whether a path exists and its owner defines the last name itself."""
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
    """Return the version of an engine, or of its module if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return str(getattr(importlib.import_module(package), "__version__", "unknown"))


class Call:
    """A call of a function of the engine. Called without arguments, it passes those of the call."""

    def __init__(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        self.function, self.args, self.kwargs = function, args, kwargs
        self.results: list[Any] = []
        self.raised: list[BaseException] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function, whose errors are the engine's own."""
        if not args and not kwargs:
            args, kwargs = self.args, dict(self.kwargs)
        try:
            with memory.Theirs():
                result = self.function(*args, **kwargs)
        except BaseException as error:
            self.raised.append(error)
            raise
        self.results.append(result)
        return result

    def result(self) -> Any:
        """Return the result of the call, which is made if it was not."""
        return self.results[0] if self.results else self()

    def made(self, method: Callable[..., Any]) -> Any:
        """Return what a hook returns, or else the result of the call, which it need not make."""
        found = method(self, *self.args, **self.kwargs)
        return self.result() if found is None else found

    def having(self, name: str) -> Any:
        """Return the first argument with an attribute, apart from the first of all, or None."""
        given = (*self.args[1:], *self.kwargs.values())
        return next((one for one in given if hasattr(one, name)), None)

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments by the names of the parameters, and all named ones."""
        bound = inspect.signature(self.function).bind(*self.args, **self.kwargs)
        return {**bound.arguments, **self.kwargs}


def fitting(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a hook that passes a method only the arguments that it has parameters for.

    A method with the parameter `original` gets the `Call` there, and makes it. One with `result`
    runs after the call, and gets its result. Any other method runs before the call.
    """
    parameters = inspect.signature(method).parameters
    kinds = [one.kind for one in parameters.values()]
    positional = kinds.count(inspect.Parameter.POSITIONAL_OR_KEYWORD)
    count = None if inspect.Parameter.VAR_POSITIONAL in kinds else positional
    any_name = inspect.Parameter.VAR_KEYWORD in kinds
    around, after = "original" in parameters, "result" in parameters

    def called(call: Call, *args: Any, **kwargs: Any) -> Any:
        if around:
            args = call, *args
        elif after:
            args = call.result(), *args
        if kwargs and not any_name:
            kwargs = {name: one for name, one in kwargs.items() if name in parameters}
        return method(*args[:count], **kwargs)

    return called


def guarded(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a hook that falls back to the original function if the connector fails.

    `fitting` says what the method gets. If it returns None, the result is that of the original.
    """
    fits, names = fitting(method), inspect.signature(method).parameters
    after = "result" in names and "original" not in names

    @functools.wraps(method)
    def hook(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        call = Call(original, args, kwargs)
        try:
            if after:
                call()
            with memory.Ours():
                found = fits(call, *args, **kwargs)
            # Here, the call need not leave the sanitizer and enter it again.
            return call.result() if found is None else found
        except BaseException as error:
            if error in call.raised:
                raise
            journal = of_process()
            if journal is not None:
                journal.lose()
            if of_signal(error):
                raise
            if journal is not None:
                journal.undecided(f"the connector failed: {where()}")
            return call.results[0] if call.results else original(*args, **kwargs)

    return hook


def place_of(function: Any) -> str | None:
    """Return the line where a function of an engine begins, or None for one of others."""
    package = str(getattr(function, "__module__", "")).partition(".")[0]
    return first_line(getattr(function, "__func__", function), package)


def wrap(owner: Any, name: str, method: Callable[..., Any]) -> None:
    """Replace a function of a class, or of each module that has it, by a hook."""
    original, hook = getattr(owner, name), guarded(method)
    note_connector(method, original)

    def call(*args: Any, **kwargs: Any) -> Any:
        return hook(original, *args, **kwargs)

    # Each has a code of its own, by which stacks find what it wraps.
    call.__code__ = call.__code__.replace(co_name=f"wrapped {len(WRAPPERS)}")
    WRAPPERS[call.__code__] = original
    wrapped = functools.wraps(original)(call)
    setattr(wrapped, HOOK, method)
    setattr(owner, name, wrapped)
    if isinstance(owner, ModuleType):
        for module in [*sys.modules.values()]:
            if getattr(module, "__dict__", {}).get(name) is original:
                setattr(module, name, wrapped)


def hook(kind: type, name: str, method: Callable[..., Any]) -> None:
    """Wrap a method of a class, which may be inherited, unless it is wrapped already."""
    if not hasattr(getattr(kind, name), HOOK):
        wrap(kind, name, method)


def install(
    targets: Mapping[str, Sequence[str]], method_of: Callable[[str], Callable[..., Any]]
) -> list[str]:
    """Wrap each target that a release has. Returns the names of `targets` without any.

    `method_of` returns the method of a name.
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
