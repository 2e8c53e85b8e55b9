"""Finds kernels whose warps race for a scalar, in Triton's interpreter.

Each warp of a program loads a scalar by itself, but one thread stores a scalar (`StoreOpConversion`
in Triton's LoadStoreOpToLLVM.cpp). If a program loads a scalar and then stores another value to its
address, with no barrier in between, a late warp loads the new value. The interpreter runs a program
as one thread and never shows this. The program therefore runs again as the late warp, without
writing memory. It is a race if the late warp

- loads from memory outside of all tensors of the launch, or
- has other effects: other block stores, atomics of blocks or barriers, or in another order, or with
  other values.

Scalar stores and scalar atomics are not compared: a late warp does not execute them. A counter that
is loaded, incremented and stored is no race, nor is a load whose value only decides what is stored
as a scalar.

A barrier is `tl.debug_barrier`, and any operation that passes values from warp to warp through
shared memory: reductions, scans, `tl.dot`, `tl.histogram`, `tl.gather` and atomics (Triton's
ReduceOpToLLVM.cpp, ScanOpToLLVM.cpp, HistogramOpToLLVM.cpp, GatherOpToLLVM.cpp, Membar.cpp and
`finalizeAtomicResults`). Triton omits the barrier where one warp holds all values, and may add one
to change a layout. Neither is known here: the former counts as a barrier, and the latter does not.
"""

import functools
import importlib
import inspect
import random
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch

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
"""All of the first programs of a kernel are recorded, and then one in so many, at random."""

MOST_TRIALS = 256
"""The most trials of a kernel without a finding."""

LARGEST = 2**20
"""The most elements in the record of a program, and the most equal accesses of a late warp."""

STORE, ATOMIC = "a block store", "a block atomic"

EXCHANGES = {
    "create_barrier": "a barrier",
    "create_dot": "a dot product",
    "create_histogram": "a histogram",
    "create_gather": "a gather",
}
"""The functions of the interpreter's builder that imply a barrier."""

ATOMICS = {"create_atomic_cas": 0, "create_atomic_rmw": 1}
"""The functions of the interpreter's builder for atomics, with the index of their pointers."""

OWN = ("triton.", "paritybit.")
"""Modules with the frames between the line of a kernel and an operation."""


class OutsideError(BaseException):
    """A late warp loads from outside of all tensors. The interpreter converts other exceptions."""


class UnknownError(BaseException):
    """What a late warp does from here on cannot be known, or does not matter."""


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
    """The record of a program.

    - `loads`: the addresses, mask and values of each load. Arrays of one element are scalars.
    - `effects`: block stores, atomics of blocks, and operations that imply a barrier, each with the
      arrays that it depends on, and a late warp's line.
    - `atomics`: the results of the atomics, by the addresses.
    - `since`: the number of loads before the last barrier.
    - `size`: the number of elements.
    """

    loads: list[tuple[Any, Any, Any]] = field(default_factory=list)
    effects: list[tuple[str, Sequence[Any], str]] = field(default_factory=list)
    atomics: dict[bytes, list[Any]] = field(default_factory=dict)
    overwritten: list[Overwritten] = field(default_factory=list)
    since: int = 0
    size: int = 0
    stores: bool = False

    def load(self, pointers: Any, mask: Any, values: Any) -> None:
        """Record a load."""
        self.loads.append((pointers, mask, values))
        self.size += pointers.size

    def store(self, pointers: Any, value: Any, mask: Any) -> None:
        """Record a store."""
        if pointers.size > 1:
            self.effect(STORE, (mask, pointers, value))
        elif mask.all():
            self.overwrite(pointers, value)

    def overwrite(self, pointers: Any, value: Any) -> None:
        """Record a store of a scalar, and whether the program loaded another value before."""
        self.stores = True
        for number, (loaded, on, held) in enumerate(self.loads[self.since :], self.since):
            if loaded.size == 1 and on.all() and loaded.item() == pointers.item():
                new = value.astype(held.dtype).reshape(held.shape)
                if new.tobytes() != held.tobytes():
                    line = line_of_kernel()
                    self.overwritten.append(Overwritten(number, len(self.loads), new, line))
                return

    def atomic(self, pointers: Any, operands: Sequence[Any], result: Any) -> None:
        """Record an atomic."""
        self.atomics.setdefault(pointers.tobytes(), []).append(result)
        if pointers.size > 1:
            self.effect(ATOMIC, operands)
        self.since = len(self.loads)

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

    A load gives what it gave the program, or the new value. A load that the program did not make
    reads the memory of the launch's tensors: `memory` has where the storage of each begins and
    ends. `source` is the line of the late load.
    """

    def __init__(
        self, program: Program, given: Overwritten, memory: Sequence[tuple[int, int]], handle: Any
    ) -> None:
        super().__init__()
        self.program, self.given, self.memory, self.handle = program, given, memory, handle
        self.raced = program.loads[given.first][0].item()
        self.source = ""
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

    def loaded(self, run: Callable[[], Any], pointers: Any, mask: Any, other: Any) -> Any:
        """Return the result of a load, which `run` makes."""
        if not mask.data.any():
            return run()
        name = name_of(pointers.data, mask.data)
        numbers = self.known.get(name)
        if numbers is None:
            if not self.holds(pointers.data[mask.data], pointers.get_element_ty()):
                raise OutsideError(line_of_kernel())
            return run()
        number = numbers[self.turn(name, len(numbers))]
        where, _, values = self.program.loads[number]
        if where.size == 1 and where.item() == self.raced:
            if number == self.given.first:
                self.source = line_of_kernel()
            if self.given.first <= number < self.given.until:
                values = self.given.value
        if other is not None:
            values = np.where(mask.data, values, other.data.astype(values.dtype))
        return self.handle(values, pointers.get_element_ty())

    def result(self, pointers: Any) -> Any:
        """Return what an atomic gave the program."""
        name = pointers.tobytes()
        if name not in self.program.atomics:
            raise UnknownError
        results = self.program.atomics[name]
        return results[self.turn(name, len(results))]

    def holds(self, addresses: Any, kind: Any) -> bool:
        """Return whether the memory of the launch has all addresses of a load."""
        size = kind.primitive_bitwidth // 8
        inside = [(addresses >= first) & (addresses + size <= end) for first, end in self.memory]
        return bool(np.any(inside, axis=0).all()) if inside else False

    def turn(self, name: bytes, count: int) -> int:
        """Return which of `count` equal accesses this is. Stops a warp that would never end."""
        self.turns[name] += 1
        if self.turns[name] > LARGEST:
            raise UnknownError
        return min(self.turns[name], count) - 1

    def difference(self, *, ended: bool) -> tuple[str, str] | None:
        """Return the first effect that differs, and its line, if known. Returns None for none."""
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
    """Return the bits that matter of an effect: none where the mask of a store is False."""
    if what == STORE:
        mask = arrays[0]
        arrays = (mask, *(np.where(mask, one, np.zeros((), one.dtype)) for one in arrays[1:]))
    return [one.tobytes() for one in arrays]


def name_of(pointers: Any, mask: Any) -> bytes:
    """Return a name for the addresses of a load."""
    return bytes(np.where(mask, pointers, 0).tobytes() + mask.tobytes())


def of_handles(arguments: Sequence[Any]) -> Sequence[Any]:
    """Return the arrays in the arguments of a function of the builder."""
    data = [getattr(one, "data", None) for one in arguments]
    return [one for one in data if isinstance(one, np.ndarray)]


def of_tensors(arguments: Sequence[Any]) -> Sequence[Any]:
    """Return the arrays that a reduction or a scan gets, as `(operation, tensors)`."""
    return [one.handle.data for one in arguments[1]]


def memory_of(arguments: Sequence[Any]) -> list[tuple[int, int]]:
    """Return where the storages of a launch's tensors begin and end."""
    tensors = [getattr(one, "base", one) for one in arguments]  # Triton wraps some.
    storages = [one.untyped_storage() for one in tensors if isinstance(one, torch.Tensor)]
    return [(one.data_ptr(), one.data_ptr() + one.nbytes()) for one in storages]


class Watched:
    """A kernel that reports the start of each program. It has the signature of the kernel."""

    def __init__(self, kernel: Any, run: Callable[..., None]) -> None:
        self.kernel, self.run, self.warps = kernel, run, DEFAULT_WARPS
        self.__name__, self.__globals__ = kernel.__name__, kernel.__globals__
        self.__signature__ = inspect.signature(kernel)
        self.programs, self.trials, self.counted, self.found = 0, 0, False, set[str]()
        self.memory = list[tuple[int, int]]()

    def __call__(self, **arguments: Any) -> None:
        """Run one program."""
        self.run(self, arguments)


class Races:
    """Watches the kernels that Triton's interpreter runs.

    `program` is the record of the program that runs, if it has several warps. `ran` tells which
    functions for Triton ran that were defined since.
    """

    def __init__(self, interpreter: Any, boundary: Boundary) -> None:
        self.interpreter, self.boundary = interpreter, boundary
        self.program: Program | None = None
        self.kernels: dict[Any, Watched] = {}
        self.chance = random.Random(0)
        self.ran: dict[str, bool] = {}

    def hook(self) -> None:
        """Wrap the functions of the interpreter."""
        builder, function = self.interpreter.interpreter_builder, "InterpretedFunction"
        wraps: list[tuple[Any, str, Callable[..., Any]]] = [
            (builder, "create_masked_load", self.load),
            (builder, "create_masked_store", self.store),
        ]
        for name, place in ATOMICS.items():
            wraps.append((builder, name, functools.partial(self.atomic, place)))
        for name, what in EXCHANGES.items():
            wraps.append((builder, name, functools.partial(self.exchange, what, of_handles)))
        for name, what in (("ReduceOps", "a reduction"), ("ScanOps", "a scan")):
            exchange = functools.partial(self.exchange, what, of_tensors)
            wraps.append((getattr(self.interpreter, name), "apply_impl", exchange))
        wraps.append((getattr(self.interpreter, function), "__init__", self.define))
        wraps.append((getattr(self.interpreter, function), "rewrite", self.use))
        wraps.append((self.interpreter.GridExecutor, "__call__", self.launch))
        for holder, name, wrapper in wraps:
            setattr(holder, name, around(getattr(holder, name), wrapper))
        self.boundary.journal.watchers[self] = None

    def settled(self) -> None:
        """Report the functions that ran, and those that did not."""
        self.boundary.journal.once("kernels", ran=self.ran)

    def lose(self) -> None:
        """Forget what is known of the current program."""
        self.program = None

    def missed(self) -> None:
        """Do nothing. What a program does is known from no hook of a connector."""

    def define(self, run: Callable[..., Any], function: Any, fn: Any, **named: Any) -> None:
        """Note the definition of a function."""
        run(function, fn, **named)
        if not fn.__module__.startswith((*OWN, "torch.")):
            self.ran.setdefault(f"{fn.__module__}.{fn.__name__}", False)

    def use(self, run: Callable[..., Any], function: Any) -> Any:
        """Note that a function runs: a kernel that is launched, or one that a kernel calls."""
        name = f"{function.fn.__module__}.{function.fn.__name__}"
        if name in self.ran:
            self.ran[name] = True
        return run(function)

    def launch(self, run: Callable[..., Any], executor: Any, *arguments: Any, **named: Any) -> None:
        """Launch a kernel, and watch each program if it has several warps."""
        warps, kernel = named.get("num_warps") or DEFAULT_WARPS, executor.fn
        if warps > 1:
            if kernel not in self.kernels:
                self.kernels[kernel] = Watched(kernel, self.run)
            executor.fn = watched = self.kernels[kernel]
            watched.warps, watched.memory = warps, memory_of((*arguments, *named.values()))
        try:
            run(executor, *arguments, **named)
        finally:
            executor.fn = kernel

    def run(self, watched: Watched, arguments: dict[str, Any]) -> None:
        """Run a program. If it is recorded, try what a late warp does."""
        watched.programs += 1
        if watched.programs > ALWAYS and self.chance.random() * SOMETIMES > 1:
            watched.kernel(**arguments)
            return
        self.program = program = Program()
        try:
            watched.kernel(**arguments)
        finally:
            recorded, self.program = self.program is program, None
        if recorded and program.has_both:
            self.guarded(self.judge, watched, program, arguments)

    def judge(self, watched: Watched, program: Program, arguments: dict[str, Any]) -> None:
        """Judge the scalars that a program overwrote."""
        of_process()  # A fork gets a journal of its own.
        if not watched.counted:
            watched.counted = True
            self.boundary.compared(CHECK.stage, 1)
        for given in program.overwritten:
            if given.source in watched.found or watched.trials >= MOST_TRIALS:
                continue
            watched.trials += 1
            late = LateWarp(program, given, watched.memory, self.interpreter.TensorHandle)
            if (difference := self.tried(watched, late, arguments)) is not None:
                watched.found.add(given.source)
                number = self.boundary.journal.counts.get("forwards", 0)
                race = KernelRace(
                    number, watched.__name__, watched.warps, late.source, given.source, *difference
                )
                self.boundary.judge(CHECK.stage, race)

    def tried(
        self, watched: Watched, late: LateWarp, arguments: dict[str, Any]
    ) -> tuple[str, str] | None:
        """Run a program again as a late warp. Returns what it does in another way, and where."""
        self.program, ended = late, False
        try:
            watched.kernel(**arguments)
            ended = True
        except OutsideError as error:
            return late.difference(ended=False) or (
                "loads from outside of all tensors",
                str(error),
            )
        except (UnknownError, Exception):  # Such as a new value that the kernel cannot use.
            pass
        finally:
            self.program = None
        return late.difference(ended=ended)

    def guarded(self, work: Callable[..., Any], *given: Any) -> Any:
        """Do work of the sanitizer. An error, or too large a record, ends the record."""
        late = isinstance(self.program, LateWarp)
        try:
            result = work(*given)
        except Exception as error:
            self.program = None
            self.boundary.undecided(f"an error in the sanitizer: {where()}")
            if late:
                raise UnknownError from error
            return None
        if self.program is not None and self.program.size > LARGEST:
            self.program = None
        return result

    def load(self, run: Callable[..., Any], pointers: Any, mask: Any, *rest: Any) -> Any:
        """Make a load, and record it."""
        program = self.program
        if isinstance(program, LateWarp):
            again = functools.partial(run, pointers, mask, *rest)
            return self.guarded(program.loaded, again, pointers, mask, rest[0])
        result = run(pointers, mask, *rest)
        if program is not None:  # Not guarded: most operations are loads.
            program.load(pointers.data, mask.data, result.data)
        return result

    def store(self, run: Callable[..., Any], *arguments: Any) -> Any:
        """Record a store, and make it. A late warp stores nothing."""
        late = isinstance(self.program, LateWarp)
        if self.program is not None:
            self.guarded(self.program.store, *(one.data for one in arguments[:3]))
        return None if late else run(*arguments)

    def atomic(self, place: int, run: Callable[..., Any], *arguments: Any) -> Any:
        """Make an atomic, and record it. A late warp gets the recorded result."""
        program, pointers, late = self.program, arguments[place].data, None
        if isinstance(program, LateWarp):
            late = program
        result = run(*arguments) if late is None else None
        if program is not None:
            self.guarded(program.atomic, pointers, of_handles(arguments), result)
        return result if late is None else self.guarded(late.result, pointers)

    def exchange(
        self,
        what: str,
        arrays: Callable[[Sequence[Any]], Sequence[Any]],
        run: Callable[..., Any],
        *arguments: Any,
    ) -> Any:
        """Run an operation, and record it as a barrier. It uses no memory."""
        if self.program is not None:
            self.guarded(self.program.exchange, what, arrays(arguments))
        return run(*arguments)


def around(run: Callable[..., Any], wrapper: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function, or a method, that calls `wrapper` with what it replaces."""

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
def hook() -> None:
    """Watch all kernels that this process interprets, if it is watched with this check."""
    journal, settings = of_process(), active()
    if journal is None or settings is None:
        return
    boundary = Boundary(journal, settings)
    if CHECK in boundary.checks:
        LANGUAGE.reads = set()
        Races(importlib.import_module(INTERPRETER), boundary).hook()


def look_for_races() -> None:
    """Call `hook` as soon as Triton's interpreter is imported, if this process is watched."""
    if of_process() is not None:
        when_imported(INTERPRETER, hook)
