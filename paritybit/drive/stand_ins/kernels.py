"""Runs Triton kernels on numpy, which is much faster than Triton's own interpreter.

The Python code of a kernel runs unchanged, with a small replacement of Triton's language on numpy
arrays. Triton's interpreter runs kernels with other operations, and kernels whose first launches
have other results on numpy.
"""

import importlib
import inspect
import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paritybit.drive.stand_ins.installing import StandIn
from paritybit.drive.stand_ins.language import LANGUAGE, Eighths, Pointer, wrapped
from paritybit.drive.stand_ins.races import DEFAULT_WARPS, RacesOf, races_of_process

TRIED = 3
"""The number of first launches of a kernel that are compared with Triton's interpreter."""

LANGUAGE_MODULE = "triton.language"


class Kernel:
    """A kernel. `tried` counts compared launches. If `refused`, Triton's interpreter runs it."""

    def __init__(self, function: Callable[..., None], constants: Sequence[str]) -> None:
        self.tried, self.refused = 0, not _known(function)
        self.constants = frozenset(constants)
        self.signature = inspect.signature(function)
        self.run = _rebound(function)
        # Atomic operations put warps in order.
        races = None if "atomic_add" in function.__code__.co_names else races_of_process()
        self.races = None if races is None else RacesOf(races, function.__name__, self.run)

    def launch(self, grid: Any, arguments: Sequence[Any], named: dict[str, Any]) -> None:
        """Run all programs of a launch."""
        warps = named.get("num_warps") or DEFAULT_WARPS
        named = {key: held for key, held in named.items() if key in self.signature.parameters}
        bound = self.signature.bind(*arguments, **named)
        bound.apply_defaults()
        given = {
            name: held if name in self.constants else _argument(held)
            for name, held in bound.arguments.items()
        }
        sizes = tuple(grid(bound.arguments)) if callable(grid) else tuple(grid)
        sizes += (1,) * (3 - len(sizes))
        with np.errstate(all="ignore"):
            for place in itertools.product(*(range(int(size)) for size in sizes)):
                LANGUAGE.place, LANGUAGE.sizes = place, sizes
                if self.races is None or warps == 1:
                    self.run(**given)
                else:
                    self.races.program(given, warps)


def quicken_kernels() -> None:
    """Run all launches of this process on numpy if possible."""
    interpreter: Any = importlib.import_module("triton.runtime.interpreter")
    launches = interpreter.GridExecutor
    slowly, kernels = launches.__call__, dict[Any, Kernel]()

    def launched(executor: Any, *arguments: Any, **named: Any) -> None:
        kernel = kernels.get(executor.fn)
        if kernel is None:
            kernel = kernels[executor.fn] = Kernel(executor.fn, executor.constexprs)
        # Triton's interpreter rounds floats of eight bits wrongly.
        comparable = not any(map(of_eight_bits, (*arguments, *named.values())))
        if kernel.refused or executor.pre_run_hooks:
            slowly(executor, *arguments, **named)
        elif kernel.tried < TRIED and comparable:
            kernel.tried += 1
            _try(kernel, partial(slowly, executor), executor.grid, arguments, named)
        else:
            kernel.launch(executor.grid, arguments, named)

    launches.__call__ = launched


ON_NUMPY = StandIn(
    "Triton's interpreter: numpy for the engine's kernels, compared with it at first",
    "it takes most of the time of a step",
    quicken_kernels,
)


def _try(
    kernel: Kernel,
    slowly: Callable[..., None],
    grid: Any,
    arguments: Sequence[Any],
    named: dict[str, Any],
) -> None:
    """Launch a kernel in both ways. If the results differ, refuse it."""
    memory = list(_memory((*arguments, *named.values())))
    before = [held.clone() for held in memory]
    slowly(*arguments, **named)
    right = [held.clone() for held in memory]
    for held, kept in zip(memory, before, strict=True):
        held.copy_(kept)
    try:
        kernel.launch(grid, arguments, named)
        same = all(torch.equal(held, kept) for held, kept in zip(memory, right, strict=True))
    except Exception:  # Triton's interpreter has just succeeded.
        same = False
    if not same:
        kernel.refused = True
        for held, kept in zip(memory, right, strict=True):
            held.copy_(kept)


def _memory(given: Sequence[Any]) -> Iterator[Tensor]:
    """Yield the bytes of each storage of the tensors once."""
    seen = set()
    for one in given:
        if isinstance(one, Tensor) and one.untyped_storage().data_ptr() not in seen:
            storage = one.untyped_storage()
            seen.add(storage.data_ptr())
            yield torch.empty(0, dtype=torch.uint8).set_(storage)


def of_eight_bits(given: Any) -> bool:
    """Return whether an argument is a tensor of floats of eight bits."""
    return isinstance(given, Tensor) and given.is_floating_point() and given.element_size() == 1


def _argument(given: Any) -> Any:
    if isinstance(given, Tensor):
        size = given.untyped_storage().nbytes() // given.element_size()
        flat = torch.as_strided(given.detach(), (size,), (1,), 0)
        memory = Eighths(flat) if of_eight_bits(given) else flat.numpy()
        return Pointer(memory, np.int64(given.storage_offset()))
    return wrapped(given)


def _known(function: Callable[..., None]) -> bool:
    """Return whether all operations that a kernel uses are supported."""
    names = set(function.__code__.co_names)
    spoken = {
        name
        for name, held in function.__globals__.items()
        if isinstance(held, ModuleType) and held.__name__ == LANGUAGE_MODULE
    }
    if not names & spoken:
        return False
    language = importlib.import_module(LANGUAGE_MODULE)
    return all(hasattr(LANGUAGE, name) for name in names if hasattr(language, name))


def _rebound(function: Callable[..., None]) -> Callable[..., None]:
    """Return a kernel and its callees with this language in place of Triton's."""
    meant: dict[str, Any] = {}
    for name in function.__code__.co_names:
        held: Any = function.__globals__.get(name)
        if isinstance(held, ModuleType) and held.__name__ == LANGUAGE_MODULE:
            meant[name] = LANGUAGE
        elif type(held).__name__ == "InterpretedFunction":
            meant[name] = _rebound(held.rewrite())
        elif type(held).__name__ == "constexpr":
            meant[name] = held.value
    meant["interpreter_semantic"] = LANGUAGE
    return FunctionType(
        function.__code__,
        {**function.__globals__, **meant},
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
