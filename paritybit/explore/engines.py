"""The search over the schedules of an engine's prefix cache."""

import copy
from contextlib import suppress

from paritybit.engines import fetch
from paritybit.engines.packages import SGLANG
from paritybit.explore.bound import Bound
from paritybit.explore.search import Search, ViolationError, share
from paritybit.explore.sglang.machine import machines, shared
from paritybit.explore.sglang.world import load, require_room
from paritybit.harness.errors import CannotRunError, headline

FIRST = "arrive 0", "step"
"""Actions that must raise no error. Later errors of the engine are then not due to its calls."""


def search_of(spec: str, bound: Bound) -> tuple[str, Search]:
    """Return the name of an engine, and a search over its machines.

    Raises MalformedError for an unknown engine and for a bound that no request fits, and
    CannotRunError for a release with unknown classes.
    """
    fetch.package_of(spec, (SGLANG,))
    require_room(bound)
    found = fetch.find(spec)
    try:
        engine = load(found)
        make = machines(engine, bound)
        make().check()
        first = make()
        with suppress(ViolationError):  # The search finds it again, with its schedule.
            for action in FIRST:
                first.act(action)
        share(shared(engine))
        copy.deepcopy(make()).key()
        return found.name, Search(make)
    except Exception as error:
        raise CannotRunError(
            f"the prefix cache of {found.name} is not recognised: {headline(repr(error))}"
        ) from error
