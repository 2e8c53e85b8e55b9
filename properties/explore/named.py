"""Whether actions name all that they change, in an engine that is loaded into this process.

A script: `python -m properties.explore.named ENGINE DEPTH`. It explores the engine, and compares
each snapshot as a whole after each action that names objects. Then it leaves out each named object
in turn, and prints for each of these searches what was changed and not named.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from paritybit.explore.bound import Bound
from paritybit.explore.engines import search_of
from paritybit.explore.search import Search
from paritybit.explore.snapshots import Objects, Part, Snapshot, Snapshots
from properties.support.places import say


class UnnamedError(Exception):
    """An action changed an object that it did not name."""


class WholeSnapshots(Snapshots):
    """Compares snapshots as a whole, too. `compared` counts how often."""

    compared = 0

    def changed(self, before: Snapshot, touched: Objects | None) -> dict[Part, list[int]]:
        """Do it. Raises UnnamedError if more has changed than what is named."""
        found = super().changed(before, touched)
        if touched is not None:
            self.compared += 1
            for part, places in super().changed(before, None).items():
                for place in sorted(set(places) - set(found.get(part, ()))):
                    live, content = before.kept[part][place]
                    raise UnnamedError(
                        f"{type(live).__name__}: {content!r:.60} is now {live!r:.60}"
                    )
        return found


def compared(search: Search, depth: int) -> int:
    """Search, and return how often a snapshot was compared. Raises UnnamedError."""
    whole = WholeSnapshots()
    whole.constant = search.snapshots.constant
    again = Search(search.make, whole)
    again.run(depth, 600.0)
    return whole.compared


@contextmanager
def without(kind: type, action: str, place: int) -> Iterator[None]:
    """Let a kind of machine leave out one of the objects that an action names."""
    whole: Any = vars(kind)["act"]

    def act(self: Any, asked: str) -> Any:
        named = whole(self, asked)
        left = asked.partition(" ")[0] == action and named is not None
        return (*named[:place], *named[place + 1 :]) if left else named

    setattr(kind, "act", act)  # noqa: B010
    try:
        yield
    finally:
        setattr(kind, "act", whole)  # noqa: B010


def main(engine: str, depth: int, *left: str) -> None:
    """Search with all names, then without one, for each of `left`, such as `end/2`."""
    _, search = search_of(engine, Bound())
    say(f"all {compared(search, depth)}")
    for one in left:
        action, place = one.split("/")
        with without(type(search.make()), action, int(place)):
            try:
                say(f"{one} {compared(search, depth)}")
            except UnnamedError as error:
                say(f"{one} changed {error}")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])
