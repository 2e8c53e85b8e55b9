"""Finds the connectors of engines and starts them in this process.

A connector is an entry point in the group `paritybit.connectors`, named as the top-level package of
the engine. It loads as a function `connect()` that hooks the engine, and whose result is ignored.
It runs at most once per process and name.

- An engine with a plugin mechanism calls `connect(NAME)` of this module from its plugin.
- For any other engine, `install()` runs at the start of the process. It calls `connect(NAME)` as
  soon as the top-level package has been imported.

Both do nothing if `PARITYBIT_WATCH` is not set. If a connector fails, the run has no verdict, and
the engine continues.
"""

import dis
import functools
import signal
import sys
import textwrap
import traceback
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType
from typing import Any

from paritybit.watch.journal import of_process

GROUP = "paritybit.connectors"

_CONNECTED: set[str] = set()

RUN_HIDDEN = """\
import os
import sys


def run_hidden():
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    here = os.path.realpath(os.path.dirname(__file__))
    path = [os.path.realpath(entry or ".") for entry in sys.path]
    later = sys.path[path.index(here) + 1 :] if here in path else []
    spec = PathFinder.find_spec("sitecustomize", later)
    if spec is not None and spec.loader is not None:
        sys.modules["sitecustomize"] = module = module_from_spec(spec)
        spec.loader.exec_module(module)


try:
    run_hidden()
finally:
"""


def sitecustomize(then: str) -> str:
    """Return a module `sitecustomize` that runs statements at the start of a Python process.

    It first runs the next `sitecustomize` on the path, which it hides.
    """
    return RUN_HIDDEN + textwrap.indent(then, "    ")


def connectors() -> dict[str, EntryPoint]:
    """Return the installed connectors by name."""
    return {point.name: point for point in entry_points(group=GROUP)}


def connect(name: str) -> None:
    """Start the connector of the engine whose top-level package is `name`."""
    journal = of_process()
    if journal is None or name in _CONNECTED:
        return
    _CONNECTED.add(name)
    point = connectors().get(name)
    if point is None:
        journal.undecided(f"no connector is installed for {name}")
        return
    start(name, point.load)


def start(name: str, load: Callable[[], Callable[[], object]]) -> None:
    """Load the function that starts a connector, and call it. No error reaches the engine."""
    try:
        load()()
    except BaseException as error:
        if of_signal(error):
            raise
        if (journal := of_process()) is not None:
            journal.undecided(f"the connector of {name} failed: {where()}")


RAISE = dis.opmap["RAISE_VARARGS"]


def of_signal(error: BaseException) -> bool:
    """Return whether a signal caused an error, such as Ctrl-C or an engine's handler of SIGTERM.

    The sanitizer catches any other error of its own, also a SystemExit: it never ends the engine.
    """
    if isinstance(error, Exception):
        return False
    handlers = [signal.getsignal(number) for number in signal.valid_signals()]
    codes = [getattr(handler, "__code__", None) for handler in handlers]
    trace, last = error.__traceback__, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code in codes:
            return True
        trace, last = trace.tb_next, trace
    if last is None or not isinstance(error, KeyboardInterrupt):
        return False
    # Python's own handler raises at any instruction, and only a statement raises at this one.
    return last.tb_frame.f_code.co_code[last.tb_lasti] != RAISE


def where() -> str:
    """Return the error that is being handled, with the last modules and lines of its traceback."""
    kind, error, trace = sys.exc_info()
    frames = [
        f"{frame.f_globals.get('__name__', '?')}:{line}" for frame, line in traceback.walk_tb(trace)
    ]
    assert kind is not None
    return f"{kind.__name__}: {error} ({' > '.join(frames[-6:])})"


def install() -> None:
    """Arrange that each connector is called when the package of its engine has been imported."""
    if of_process() is None:
        return
    for name in set(connectors()) - _CONNECTED:
        when_imported(name, functools.partial(connect, name))


def when_imported(name: str, call: Callable[[], object]) -> None:
    """Call a function when a module has been imported, or now if it is imported already."""
    if name in sys.modules:
        call()
    else:
        sys.meta_path.insert(0, _Finder(name, call))


class _Finder(MetaPathFinder):
    """Finds one module as Python does, and calls a function when it has been imported."""

    def __init__(self, name: str, call: Callable[[], object]) -> None:
        self.name, self.call = name, call

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of the module, or None for any other module.

        A caller that only gets a spec does not cause the call.
        """
        if fullname != self.name:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            run = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                del loader.exec_module
                run(module)
                if self in sys.meta_path:
                    sys.meta_path.remove(self)
                self.call()

            loader.exec_module = exec_module
        return spec
