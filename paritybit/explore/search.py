"""Breadth-first search over the schedules of a machine, where equal states are visited once.

A state is reached by replaying its path from the start, so that nothing an engine hides in its
objects is lost. Merging is sound because `Machine.key` holds everything on which later actions
depend. It renames only what the engine treats as opaque: block numbers are renamed by first
occurrence, so two states with the same key differ by a bijection that every action preserves.
Breadth first, the first path to a violation is a shortest one.
"""

import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Protocol

PROGRESS = 1.0
"""Seconds between two reports of progress."""


class ViolationError(Exception):
    """A law does not hold after an action."""


class Machine(Protocol):
    """The objects of an engine, in one state. A new machine is in the first state."""

    reached: set[str]

    def actions(self) -> list[str]:
        """Return the actions that the scheduler may perform in this state."""
        ...

    def act(self, action: str) -> None:
        """Perform an action. Raises ViolationError if a law does not hold during it."""
        ...

    def check(self) -> None:
        """Raise ViolationError if a law does not hold now."""
        ...

    def key(self) -> Hashable:
        """Return what the rest of a schedule depends on, with opaque names renamed."""
        ...


@dataclass
class Explored:
    """The result of a search. `depth` is the number of actions up to which it is complete.

    `closed` means that no state beyond `depth` is left.
    """

    states: int = 1
    transitions: int = 0
    depth: int = 0
    closed: bool = False
    interrupted: bool = False
    seconds: float = 0.0
    reached: set[str] = field(default_factory=set)
    path: tuple[str, ...] = ()
    violation: str | None = None


def replayed(make: Callable[[], Machine], path: tuple[str, ...]) -> Machine:
    """Return a machine after a path. Raises ViolationError as its actions do."""
    machine = make()
    for action in path:
        machine.act(action)
    return machine


def digest(machine: Machine) -> bytes:
    """Return 16 bytes that stand for the state of a machine."""
    return blake2b(repr(machine.key()).encode(), digest_size=16).digest()


def explore(
    make: Callable[[], Machine],
    depth: int,
    seconds: float,
    report: Callable[[Explored], None] = lambda found: None,
) -> Explored:
    """Visit every state up to a depth, until a violation is found or the time is over."""
    begun = told = time.monotonic()
    found = Explored()
    seen = {digest(make())}
    level: list[tuple[str, ...]] = [()]
    try:
        for number in range(1, depth + 1):
            following: list[tuple[str, ...]] = []
            for path in level:
                found.seconds = time.monotonic() - begun
                if found.seconds > seconds:
                    return found
                if found.seconds + begun - told > PROGRESS:
                    told = found.seconds + begun
                    report(found)
                following += expanded(make, path, seen, found)
                if found.violation is not None:
                    return found
            level, found.depth = following, number
            if not level:
                found.closed = True
                break
    except KeyboardInterrupt:
        found.interrupted = True
    found.seconds = time.monotonic() - begun
    return found


def expanded(
    make: Callable[[], Machine], path: tuple[str, ...], seen: set[bytes], found: Explored
) -> list[tuple[str, ...]]:
    """Return the paths to the new states that lie one action behind a path."""
    new: list[tuple[str, ...]] = []
    machine: Machine | None = replayed(make, path)
    assert machine is not None
    for action in machine.actions():
        longer = (*path, action)
        machine = machine or replayed(make, path)
        try:
            machine.act(action)
            machine.check()
        except ViolationError as error:
            found.path, found.violation = longer, str(error)
            return new
        finally:
            found.reached |= machine.reached
        found.transitions += 1
        state = digest(machine)
        if state not in seen:
            seen.add(state)
            found.states += 1
            new.append(longer)
        machine = None
    return new
