"""Finds kernels whose warps race for a scalar, among the kernels that run on numpy.

Each warp of a program loads a scalar by itself, but one thread stores a scalar (`StoreOpConversion`
in Triton's LoadStoreOpToLLVM.cpp). If a program loads a scalar and then stores another value to its
address, with no barrier in between, a late warp loads the new value. On a CPU, a program is one
thread and never shows this. The program therefore runs again as the late warp, without writing
memory. It is a race if the late warp

- loads from memory outside of the tensor, or
- has other block stores or barriers, or in another order, or with other values.

A late warp executes no scalar stores. A counter that is loaded, incremented and stored is therefore
no race.

A barrier is `tl.debug_barrier`, a reduction or a product. The latter two pass values from warp to
warp through shared memory (Triton's ReduceOpToLLVM.cpp and Membar.cpp). It is not known here where
Triton omits that barrier because one warp holds all values, or adds one to change a layout.
"""

import functools
import importlib
import random
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

from paritybit.drive.stand_ins.language import LANGUAGE
from paritybit.watch.attach import when_imported, where
from paritybit.watch.boundary import Boundary
from paritybit.watch.checks.kernel_race import CHECK
from paritybit.watch.journal import of_process
from paritybit.watch.observations import KernelRace
from paritybit.watch.settings import active

INTERPRETER = "triton.runtime.interpreter"

DEFAULT_WARPS = 4
"""The number of warps of a launch that does not state it."""

ALWAYS, SOMETIMES = 512, 16
"""All of the first programs of a kernel are recorded, and then one in so many."""

MOST_TRIES = 256
"""The most tries of a kernel without a finding."""

LARGEST = 2**20
"""The most elements in the record of a program, and the most equal loads of a late warp."""

STORE = "a block store"

OWN = ("triton.", "paritybit.")
"""Modules with the frames between the line of a kernel and an operation."""


class OutsideError(BaseException):
    """A late warp loads from outside of the tensor."""


class UnknownError(BaseException):
    """What a late warp does from here on cannot be known."""


@dataclass(frozen=True)
class Overwritten:
    """A scalar that a program overwrote with `value`, at the line `source`.

    A late warp may get the value from the loads `first` to `until` - 1 of its address.
    """

    first: int
    until: int
    value: Any
    source: str


@dataclass
class Program:
    """The record of a program, with `size` elements.

    - `loads`: the addresses, mask and values of each load. Arrays of one element are scalars.
    - `effects`: block stores and barriers, each with the arrays that it depends on, and a late
      warp's line.
    - `since`: the number of loads before the last barrier.
    """

    loads: list[tuple[Any, Any, Any]] = field(default_factory=list)
    effects: list[tuple[str, Sequence[Any], str]] = field(default_factory=list)
    overwritten: list[Overwritten] = field(default_factory=list)
    since: int = 0
    size: int = 0
    stores: bool = False

    def load(self, pointers: Any, mask: Any, run: Callable[[], Any], other: Any) -> Any:
        """Make and record a load."""
        values = run()
        self.loads.append((pointers, mask, values))
        self.size += pointers.size
        return values

    def store(self, pointers: Any, mask: Any, value: Any) -> bool:
        """Record a store. Returns whether to make it."""
        if pointers.size > 1:
            self.effect(STORE, np.broadcast_arrays(mask, pointers, value))
        elif mask.all():
            self.overwrite(pointers, value)
        return True

    def overwrite(self, pointers: Any, value: Any) -> None:
        """Record a store of a scalar, and whether the program loaded another value before."""
        self.stores = True
        for number, (loaded, on, held) in enumerate(self.loads[self.since :], self.since):
            if loaded.size == 1 and on.all() and loaded.item() == pointers.item():
                new = np.asarray(value).astype(held.dtype).reshape(held.shape)
                if new.tobytes() != held.tobytes():
                    line = line_of_kernel()
                    self.overwritten.append(Overwritten(number, len(self.loads), new, line))
                return

    def exchange(self, what: str, operands: Sequence[Any]) -> None:
        """Record an operation that implies a barrier."""
        self.effect(what, operands)
        self.since = len(self.loads)

    def effect(self, what: str, operands: Sequence[Any]) -> None:
        """Record an effect."""
        self.effects.append((what, operands, ""))
        self.size += sum(one.size for one in operands)

    @property
    def has_both(self) -> bool:
        """Whether the program loads a scalar and stores a scalar."""
        return self.stores and any(where.size == 1 for where, _, _ in self.loads)


class LateWarp(Program):
    """The record of a program that runs again as the warp that loads a scalar late.

    A load gives what it gave the program, or the new value. `source` is the line of the late load.
    """

    def __init__(self, program: Program, given: Overwritten) -> None:
        super().__init__()
        self.program, self.given, self.source = program, given, ""
        self.raced = program.loads[given.first][0].item()
        self.known: dict[bytes, list[int]] = {}
        for number, (pointers, mask, _) in enumerate(program.loads):
            self.known.setdefault(name_of(pointers, mask), []).append(number)
        self.turns: Counter[bytes] = Counter()

    def effect(self, what: str, operands: Sequence[Any]) -> None:
        """Record an effect, with its line. The first one that the program lacks ends the warp."""
        self.effects.append((what, operands, line_of_kernel()))
        if len(self.effects) > len(self.program.effects):
            raise UnknownError

    def overwrite(self, pointers: Any, value: Any) -> None:
        """Do nothing."""

    def store(self, pointers: Any, mask: Any, value: Any) -> bool:
        """Record a store, which is not made."""
        super().store(pointers, mask, value)
        return False

    def load(self, pointers: Any, mask: Any, run: Callable[[], Any], other: Any) -> Any:
        """Return the result of a load."""
        name = name_of(pointers, mask)
        numbers = self.known.get(name)
        if numbers is None or not mask.any():
            try:
                return run()
            except IndexError:
                raise OutsideError(line_of_kernel()) from None
        self.turns[name] += 1
        if self.turns[name] > LARGEST:  # It would never end.
            raise UnknownError
        number = numbers[min(self.turns[name], len(numbers)) - 1]
        where_at, _, values = self.program.loads[number]
        if where_at.size == 1 and where_at.item() == self.raced:
            if number == self.given.first:
                self.source = line_of_kernel()
            if self.given.first <= number < self.given.until:
                values = self.given.value
        return values if other is None else np.where(mask, values, other).astype(values.dtype)

    def difference(self, *, ended: bool) -> tuple[str, str] | None:
        """Return the first effect that differs, and its line if known, or None."""
        for number, (what, operands, line) in enumerate(self.effects):
            if number == len(self.program.effects):
                return f"executes {what} more", line
            expected, arrays, _ = self.program.effects[number]
            if expected != what:
                return f"executes {what} in place of {expected}", line
            if bits(what, operands) != bits(what, arrays):
                return f"executes {what} with other operands", line
        missing = self.program.effects[len(self.effects) :]
        return (f"ends before {missing[0][0]}", "") if ended and missing else None


def bits(what: str, arrays: Sequence[Any]) -> list[bytes]:
    """Return the bits of an effect, without those that the mask of a store leaves out."""
    if what == STORE:
        mask = arrays[0]
        arrays = (mask, *(np.where(mask, one, np.zeros((), one.dtype)) for one in arrays[1:]))
    return [one.tobytes() for one in arrays]


def name_of(pointers: Any, mask: Any) -> bytes:
    """Return a name for the addresses of a load."""
    return bytes(np.where(mask, pointers, 0).tobytes() + mask.tobytes())


class Races:
    """The check in this process. `ran` tells which functions for Triton ran."""

    def __init__(self, boundary: Boundary) -> None:
        self.boundary, self.chance, self.ran = boundary, random.Random(0), dict[str, bool]()
        function: Any = importlib.import_module(INTERPRETER).InterpretedFunction
        for name, wrapper in (("__init__", self.define), ("rewrite", self.use)):
            setattr(function, name, around(getattr(function, name), wrapper))
        self.boundary.journal.watchers[self] = None

    def settled(self) -> None:
        """Report the functions that ran, and those that did not."""
        self.boundary.journal.once("kernels", ran=self.ran)

    def lose(self) -> None:
        """Forget what is known of the current program."""
        LANGUAGE.program = None

    def missed(self) -> None:
        """Do nothing, as no hook of a connector shows programs."""

    def define(self, run: Callable[..., Any], function: Any, fn: Any, **named: Any) -> None:
        """Note the definition of a function."""
        run(function, fn, **named)
        if not fn.__module__.startswith((*OWN, "torch.")):
            self.ran.setdefault(f"{fn.__module__}.{fn.__name__}", False)

    def use(self, run: Callable[..., Any], function: Any) -> Any:
        """Note that a kernel, or a function that it calls, runs."""
        name = f"{function.fn.__module__}.{function.fn.__name__}"
        if name in self.ran:
            self.ran[name] = True
        return run(function)


class RacesOf:
    """Watches the programs of a kernel."""

    def __init__(self, races: Races, name: str, run: Callable[..., None]) -> None:
        self.boundary, self.chance = races.boundary, races.chance
        self.name, self.run = name, run
        self.programs, self.tries, self.counted, self.found = 0, 0, False, set[str]()

    def program(self, arguments: Mapping[str, Any], warps: int) -> None:
        """Run a program of several warps, and maybe try what a late warp does."""
        self.programs += 1
        if self.programs > ALWAYS and self.chance.random() * SOMETIMES > 1:
            self.run(**arguments)
            return
        LANGUAGE.program = program = Program()
        try:
            self.run(**arguments)
        finally:
            LANGUAGE.program = None
        if program.has_both and program.size <= LARGEST:
            try:
                self.judge(program, arguments, warps)
            except Exception:
                self.boundary.undecided(f"an error in the sanitizer: {where()}")

    def judge(self, program: Program, arguments: Mapping[str, Any], warps: int) -> None:
        """Judge the scalars that a program overwrote."""
        of_process()  # A fork gets a journal of its own.
        if not self.counted:
            self.counted = True
            self.boundary.compared(CHECK.stage, 1)
        for given in program.overwritten:
            if given.source in self.found or self.tries >= MOST_TRIES:
                continue
            self.tries += 1
            late = LateWarp(program, given)
            if (difference := self.tried(late, arguments)) is not None:
                self.found.add(given.source)
                number = self.boundary.journal.counts.get("forwards", 0)
                race = KernelRace(number, self.name, warps, late.source, given.source, *difference)
                self.boundary.judge(CHECK.stage, race)

    def tried(self, late: LateWarp, arguments: Mapping[str, Any]) -> tuple[str, str] | None:
        """Run a program again as a late warp. Returns the difference, and its line."""
        LANGUAGE.program, ended = late, False
        try:
            self.run(**arguments)
            ended = True
        except OutsideError as error:
            effect = "loads from outside of the tensor", str(error)
            return late.difference(ended=False) or effect
        except (UnknownError, Exception):  # Such as a new value that the kernel cannot use.
            pass
        finally:
            LANGUAGE.program = None
        return late.difference(ended=ended)


def around(run: Callable[..., Any], wrapper: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function or a method that calls `wrapper` with what it replaces."""

    def call(*arguments: Any, **named: Any) -> Any:
        return wrapper(run, *arguments, **named)

    return call


def line_of_kernel() -> str:
    """Return the innermost line of a kernel, as a path from the top-level package."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__", "").startswith(OWN):
        frame = frame.f_back
    if frame is None:
        return ""
    package = frame.f_globals.get("__name__", "").partition(".")[0]
    parts = Path(frame.f_code.co_filename).parts
    first = len(parts) - 1 - parts[::-1].index(package) if package in parts else -1
    return f"{'/'.join(parts[first:])}:{frame.f_lineno}"


@functools.cache
def races_of_process() -> Races | None:
    """Return the check, if this process is watched with it."""
    journal, settings = of_process(), active()
    if journal is None or settings is None:
        return None
    boundary = Boundary(journal, settings)
    return Races(boundary) if CHECK in boundary.checks else None


def look_for_races() -> None:
    """Start the check when Triton's interpreter is imported."""
    if of_process() is not None:
        when_imported(INTERPRETER, races_of_process)
