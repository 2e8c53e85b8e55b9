"""Breadth-first search over the schedules of a machine. Equal states are visited once.

Merging is sound because `Machine.key` contains everything that later actions depend on. It renames
only numbers that the engine treats as opaque, by first occurrence. Two states with the same key
differ by a bijection that every action preserves. The first path to a violation is a shortest one.

A state is a copy of a machine by `copy.deepcopy`. Some copies are compared with the state after the
replayed path. A violation counts only if replaying its path from the start also leads to one.
"""

import copy
import copyreg
import marshal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from hashlib import blake2b
from importlib import import_module
from types import ModuleType
from typing import Any, Protocol

from paritybit.connectors.failures import fault_of
from paritybit.harness.errors import CannotRunError, shorten
from paritybit.harness.machine.garbage import collect_rarely

PROGRESS = 1.0
"""Seconds between two reports of progress."""

MOST_COPIES = 4000
"""The most machines that a level keeps. Other states are reached by their paths."""

COMPARED = 200
"""The state after one in COMPARED actions is compared with its replayed path."""

REFERENCELESS = 2
"""The version of `marshal` in which equal values have equal bytes, as it has no references."""


class ViolationError(Exception):
    """A law is violated after an action."""


class CopyError(Exception):
    """A copy of a machine differs from the state at the end of its path."""


def perform(machine: "Machine", action: str) -> None:
    """Perform an action, and check the laws.

    Raises ViolationError also for an error that the engine's own code raises, and CannotRunError
    for any other one. A call with wrong arguments is no error of the engine. The first step of an
    engine must have succeeded before: see `search_of`.
    """
    try:
        machine.act(action)
        machine.check()
    except (ViolationError, CannotRunError):
        raise
    except Exception as error:
        found = fault_of(error, {"forwards": 1})
        said = f"{type(error).__name__}: {' '.join(str(error).split())}"
        if found is None:
            raise CannotRunError(f"the prefix cache is not recognised: {said}") from error
        raise ViolationError(f"engine error: {said} ({found.source})") from error


class Machine(Protocol):
    """The objects of an engine in one state. A new machine is in the initial state."""

    reached: set[str]

    def actions(self) -> list[str]:
        """Return the actions that the scheduler may perform in this state."""
        ...

    def act(self, action: str) -> None:
        """Perform an action. Raises ViolationError if it violates a law."""
        ...

    def check(self) -> None:
        """Raise ViolationError if a law is violated now."""
        ...

    def key(self) -> Any:
        """Return everything that later actions depend on, as lists, tuples and plain values."""
        ...


@dataclass
class Explored:
    """The result of a search.

    - `depth`: the number of actions up to which the search is complete.
    - `closed`: no unvisited state is left.
    - `late`: the time ended the search.
    - `reached`: the events in complete depths.
    - `path`, `violation`: the shortest schedule that violates a law, and the message.
    """

    states: int = 1
    transitions: int = 0
    depth: int = 0
    closed: bool = False
    late: bool = False
    interrupted: bool = False
    seconds: float = 0.0
    reached: set[str] = field(default_factory=set)
    path: tuple[str, ...] = ()
    violation: str | None = None


@dataclass(frozen=True)
class State:
    """A state: the path to it, and a machine if it was kept."""

    path: tuple[str, ...]
    machine: Machine | None


def share(kinds: Iterable[type]) -> None:
    """Make `copy.deepcopy` return the objects of immutable types, and modules, unchanged."""
    copyreg.pickle(ModuleType, lambda module: (import_module, (module.__name__,)))
    for kind in kinds:
        kind.__deepcopy__ = lambda one, memo: one  # type: ignore[attr-defined]


class Search:
    """A search over machines that `make` creates."""

    def __init__(self, make: Callable[[], Machine]) -> None:
        self.make = make
        self.found = Explored()
        self.seen = {digest(make())}
        self.kept = 0
        self.reached: set[str] = set()

    def run(
        self, depth: int, seconds: float, report: Callable[[Explored], None] = lambda found: None
    ) -> Explored:
        """Visit all states up to a depth, until a violation or the end of the time."""
        begun, told, level = time.monotonic(), 0.0, [State((), None)]
        found = self.found
        collect_rarely()
        try:
            for number in range(1, depth + 1):
                self.kept, following = 0, list[State]()
                for state in level:
                    found.seconds = time.monotonic() - begun
                    found.late = found.seconds > seconds
                    if found.late:
                        return found
                    if found.seconds - told > PROGRESS:
                        told = found.seconds
                        report(found)
                    following += self.expanded(state, last=number == depth)
                    if found.violation is not None:
                        return found
                level, found.depth = following, number
                found.reached |= self.reached
                found.closed = not level
                if found.closed:
                    break
        except KeyboardInterrupt:
            found.interrupted = True
        found.seconds = time.monotonic() - begun
        return found

    def expanded(self, state: State, *, last: bool) -> list[State]:
        """Return the new states that are one action after a state."""
        new: list[State] = []
        whole = state.machine or replayed(self.make, state.path)
        actions = whole.actions()
        for action in actions:
            path = (*state.path, action)
            machine = whole if action == actions[-1] else copy.deepcopy(whole)
            try:
                perform(machine, action)
            except ViolationError:
                self.found.path, self.found.violation = path, self.confirmed(path)
                return new
            finally:
                self.reached |= machine.reached
            self.found.transitions += 1
            if self.found.transitions % COMPARED == 0:
                self.compare(machine, path)
            key = digest(machine)
            if key not in self.seen:
                self.seen.add(key)
                self.found.states += 1
                keeps = not last and self.kept < MOST_COPIES
                self.kept += keeps
                new.append(State(path, machine if keeps else None))
        return new

    def compare(self, machine: Machine, path: tuple[str, ...]) -> None:
        """Raise CopyError if a machine is not in the state at the end of a path."""
        if digest(machine) != digest(replayed(self.make, path)):
            raise CopyError(f"the copy after {', '.join(path)} is another state")

    def confirmed(self, path: tuple[str, ...]) -> str:
        """Return the violation at the end of a path. Raises CopyError if there is none."""
        violation = violation_of(self.make(), path)
        if violation is None:
            raise CopyError(f"no violation at the end of {', '.join(path)}, from the start")
        return violation


def replayed(make: Callable[[], Machine], path: tuple[str, ...]) -> Machine:
    """Return a machine after a path. Raises as its actions do."""
    machine = make()
    for action in path:
        machine.act(action)
    return machine


def violation_of(machine: Machine, actions: tuple[str, ...]) -> str | None:
    """Perform actions and return the first violation, or None.

    Raises CannotRunError for an action that is not possible.
    """
    for action in actions:
        if action not in machine.actions():
            raise CannotRunError(f"the action {shorten(action)!r} is not possible in this state")
        try:
            perform(machine, action)
        except ViolationError as error:
            return str(error)
    return None


def digest(machine: Machine) -> bytes:
    """Return a hash of the state of a machine, 16 bytes."""
    return blake2b(marshal.dumps(machine.key(), REFERENCELESS), digest_size=16).digest()
