"""The engines that are explored: what each module of theirs offers."""

import gc
import importlib
from collections.abc import Callable
from typing import Any, Protocol

from paritybit.engines import fetch
from paritybit.engines.packages import PACKAGES, SGLANG, VLLM
from paritybit.explore.bound import Bound
from paritybit.explore.search import Machine, Search
from paritybit.explore.snapshots import Snapshots
from paritybit.harness.errors import CannotRunError, headline

MODULES = {
    SGLANG.name: "paritybit.explore.sglang",
    VLLM.name: "paritybit.explore.vllm",
}
"""The module of each engine, by name. It is imported when it is used."""

EXPLORED = tuple(PACKAGES[name] for name in MODULES)
"""The engines that are explored."""


class Explorable(Protocol):
    """An engine's module."""

    def require_room(self, bound: Bound) -> None:
        """Raise MalformedError for a bound in which one request might not fit."""
        ...

    def load(self, found: fetch.Found) -> Any:
        """Return a release or a source tree, loaded into this process."""
        ...

    def machines(self, engine: Any, bound: Bound) -> Callable[[], Machine]:
        """Return what makes a machine in its first state."""
        ...

    def shared(self, engine: Any) -> tuple[type, ...]:
        """Return the types of objects that never change."""
        ...


def search_of(spec: str, bound: Bound) -> tuple[str, Search]:
    """Return an engine's name, and a search over its machines.

    Raises MalformedError for what is no engine and for a bound in which no request fits, and
    CannotRunError for a release whose classes are not those that are known here.
    """
    module: Explorable = importlib.import_module(MODULES[fetch.package_of(spec, EXPLORED).name])
    module.require_room(bound)
    found = fetch.find(spec)
    try:
        engine = module.load(found)
        make = module.machines(engine, bound)
        make().check()
        snapshots = Snapshots(module.shared(engine))
        snapshots.save(make()).restore().key()
        gc.freeze()  # What the engine has loaded stays, so it need not be looked at again.
        return found.name, Search(make, snapshots)
    except Exception as error:
        raise CannotRunError(
            f"the prefix cache of {found.name} is not recognised: {headline(repr(error))}"
        ) from error
