"""Finds kernels whose warps race for a scalar, in Triton's interpreter.

Each warp of a program loads a scalar by itself, but one thread stores a scalar (`StoreOpConversion`
in Triton's LoadStoreOpToLLVM.cpp). If a program loads a scalar and then stores another value to its
address, with no barrier in between, a late warp loads the new value. The interpreter runs a program
as one thread and never shows this. `LateWarp` decides whether it matters.

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
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch

from paritybit.drive.stand_ins.language import LANGUAGE
from paritybit.drive.stand_ins.late_warp import (
    LARGEST,
    Differs,
    LateWarp,
    Overwritten,
    Program,
    Unknown,
)
from paritybit.watch.attach import when_imported, where
from paritybit.watch.boundary import Boundary
from paritybit.watch.checks.kernel_race import CHECK
from paritybit.watch.journal import of_process
from paritybit.watch.observations import KernelRace
from paritybit.watch.settings import active

DEFAULT_WARPS = 4
"""The number of warps of a launch that does not state it."""

ALWAYS, SOMETIMES = 512, 16
"""All of the first programs of a kernel are recorded, and then one in so many, at random."""

MOST_TRIALS = 256
"""The most trials of a kernel without a finding."""

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

    `program` is the record of the program that runs, if it has several warps. `late` is the late
    warp that runs in its place.
    """

    def __init__(self, interpreter: Any, boundary: Boundary) -> None:
        self.interpreter, self.boundary = interpreter, boundary
        self.program: Program | None = None
        self.late: LateWarp | None = None
        self.kernels: dict[Any, Watched] = {}
        self.chance = random.Random(0)
        self.ran: dict[str, bool] = {}
        """The functions for Triton that were defined since, by module and name."""

    def hook(self) -> None:
        """Wrap the functions of the interpreter."""
        builder = self.interpreter.interpreter_builder
        builder.create_masked_load = self.load(builder.create_masked_load)
        builder.create_masked_store = self.store(builder.create_masked_store)
        for name, place in ATOMICS.items():
            setattr(builder, name, self.atomic(getattr(builder, name), place))
        for name, what in EXCHANGES.items():
            setattr(builder, name, self.exchange(getattr(builder, name), what))
        for kind, what in (("ReduceOps", "a reduction"), ("ScanOps", "a scan")):
            operation = getattr(self.interpreter, kind)
            operation.apply_impl = self.exchange(operation.apply_impl, what, of_tensors)
        function = self.interpreter.InterpretedFunction
        function.__init__ = self.defined(function.__init__)
        function.rewrite = self.used(function.rewrite)
        self.boundary.journal.watchers[self] = None
        executor = self.interpreter.GridExecutor
        executor.__call__ = self.launch(executor.__call__)

    def defined(self, define: Callable[..., None]) -> Callable[..., None]:
        """Return a definition that is noted."""

        def call(function: Any, fn: Any, **named: Any) -> None:
            define(function, fn, **named)
            if not fn.__module__.startswith((*OWN, "torch.")):
                self.ran.setdefault(f"{fn.__module__}.{fn.__name__}", False)

        return call

    def used(self, rewrite: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return the step of a launch, or of a call in a kernel, that says which function runs."""

        def call(function: Any) -> Any:
            name = f"{function.fn.__module__}.{function.fn.__name__}"
            if name in self.ran:
                self.ran[name] = True
            return rewrite(function)

        return call

    def settled(self) -> None:
        """Report the functions that ran, and those that did not."""
        self.boundary.journal.once("kernels", ran=self.ran)

    def lose(self) -> None:
        """Forget what is known of the current program."""
        self.program = None

    def missed(self) -> None:
        """Do nothing. What a program does is known from no hook of a connector."""

    def note(self, record: Callable[..., None], *given: Any) -> None:
        """Record what a program does. An error, or too large a record, ends it."""
        try:
            record(*given)
            if self.program is not None and self.program.size > LARGEST:
                self.program = None
        except Exception:
            self.program = None
            self.boundary.undecided(f"an error in the sanitizer: {where()}")

    def ask(self, answer: Callable[..., Any], *given: Any) -> Any:
        """Return what a late warp gets. An error ends the trial."""
        try:
            return answer(*given)
        except Exception as error:
            self.boundary.undecided(f"an error in the sanitizer: {where()}")
            raise Unknown from error

    def launch(self, launched: Callable[..., None]) -> Callable[..., None]:
        """Return a launch that watches each program if it has several warps."""

        def call(executor: Any, *arguments: Any, **named: Any) -> None:
            warps = named.get("num_warps") or DEFAULT_WARPS
            kernel = executor.fn
            if warps == 1:
                launched(executor, *arguments, **named)
                return
            if kernel not in self.kernels:
                self.kernels[kernel] = Watched(kernel, self.run)
            executor.fn = watched = self.kernels[kernel]
            watched.warps, watched.memory = warps, memory_of((*arguments, *named.values()))
            try:
                launched(executor, *arguments, **named)
            finally:
                executor.fn = kernel

        return call

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
            self.note(self.judge, watched, program, arguments)

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
            if (race := self.tried(watched, program, given, arguments)) is not None:
                watched.found.add(given.source)
                self.boundary.judge(CHECK.stage, race)

    def tried(
        self, watched: Watched, program: Program, given: Overwritten, arguments: dict[str, Any]
    ) -> KernelRace | None:
        """Run a program again as a late warp. Returns the race if it behaves in another way."""
        self.late = late = LateWarp(
            program, given, watched.memory, self.interpreter.TensorHandle, line_of_kernel
        )
        try:
            watched.kernel(**arguments)
            late.end()
        except Differs as difference:
            return KernelRace(
                number=self.boundary.journal.counts.get("forwards", 0),
                kernel=watched.__name__,
                warps=watched.warps,
                load=late.source,
                store=given.source,
                effect=difference.effect,
                place=difference.source,
            )
        except (Unknown, Exception):  # The new value is nothing that this kernel can compute with.
            return None
        finally:
            self.late = None
        return None

    def load(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """Return a load that is recorded, or that a late warp makes."""

        def call(pointers: Any, mask: Any, other: Any, *rest: Any) -> Any:
            if self.late is not None and np.any(mask.data):
                again = functools.partial(run, pointers, mask, other, *rest)
                return self.ask(self.late.load, pointers, mask, other, again)
            result = run(pointers, mask, other, *rest)
            if self.program is not None:  # Not by `note`: most operations are loads.
                self.program.load(pointers.data, mask.data, result.data)
            return result

        return call

    def store(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """Return a store that is recorded. A late warp stores nothing."""

        def call(pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
            if self.late is not None:
                return self.ask(self.late.store, pointers.data, value.data, mask.data)
            if self.program is not None:
                given = pointers.data, value.data, mask.data, line_of_kernel
                self.note(self.program.store, *given)
            return run(pointers, value, mask, *rest)

        return call

    def atomic(self, run: Callable[..., Any], place: int) -> Callable[..., Any]:
        """Return an atomic that is recorded. A late warp gets the recorded result."""

        def call(*arguments: Any) -> Any:
            pointers = arguments[place].data
            if self.late is not None:
                return self.ask(self.late.atomic, pointers, of_handles(arguments))
            result = run(*arguments)
            if self.program is not None:
                self.note(self.program.atomic, pointers, of_handles(arguments), result)
            return result

        return call

    def exchange(
        self,
        run: Callable[..., Any],
        what: str,
        arrays: Callable[[Sequence[Any]], Sequence[Any]] = of_handles,
    ) -> Callable[..., Any]:
        """Return an operation that is recorded as a barrier. It uses no memory."""

        def call(*arguments: Any) -> Any:
            if self.late is not None:
                self.ask(self.late.exchange, what, arrays(arguments))
            elif self.program is not None:
                self.note(self.program.exchange, what, arrays(arguments))
            return run(*arguments)

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


INTERPRETER = "triton.runtime.interpreter"


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
