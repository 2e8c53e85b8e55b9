"""The engines that can be explored."""

import copy
import gc
import importlib
from contextlib import suppress
from typing import Any

from paritybit.engines import fetch
from paritybit.engines.packages import PACKAGES, SGLANG, VLLM
from paritybit.explore.bound import Bound
from paritybit.explore.search import Search, ViolationError, share
from paritybit.harness.errors import CannotRunError, headline

MODULES = {
    SGLANG.name: "paritybit.explore.sglang",
    VLLM.name: "paritybit.explore.vllm",
}
"""The module of each engine, which is imported when it is used. All have four functions:

- `require_room` raises MalformedError for a bound in which one request might not fit.
- `load` loads a release or a source tree into this process.
- `machines` returns a function that makes a machine in its initial state.
- `shared` returns the types of immutable objects.
"""

FIRST = "arrive 0", "step"
"""Actions that must raise no error. Later errors of the engine are then not due to its calls."""

EXPLORED = tuple(PACKAGES[name] for name in MODULES)
"""The engines that are explored."""


def search_of(spec: str, bound: Bound) -> tuple[str, Search]:
    """Return the name of an engine, and a search over its machines.

    Raises MalformedError for an unknown engine and for a bound in which no request fits. Raises
    CannotRunError for a release with unknown classes.
    """
    module: Any = importlib.import_module(MODULES[fetch.package_of(spec, EXPLORED).name])
    module.require_room(bound)
    found = fetch.find(spec)
    try:
        engine = module.load(found)
        make = module.machines(engine, bound)
        make().check()
        first = make()
        with suppress(ViolationError):  # The search finds it again, with its schedule.
            for action in FIRST:
                first.act(action)
        share(module.shared(engine))
        copy.deepcopy(make()).key()
        gc.freeze()  # The modules of the engine stay, so the collector can ignore them.
        return found.name, Search(make)
    except Exception as error:
        raise CannotRunError(
            f"the prefix cache of {found.name} is not recognised: {headline(repr(error))}"
        ) from error
