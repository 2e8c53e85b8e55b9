"""Triton kernels on numpy, far quicker than Triton's own interpreter.

A kernel's Python is executed as it is, with a language of a few operations on numpy arrays. What
it needs beyond those goes to Triton's interpreter, as does a kernel whose first launches do not
leave in memory what Triton's interpreter leaves there.
"""

import importlib
import inspect
import itertools
from collections.abc import Callable, Iterator, Sequence
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paritybit.drive.stand_ins.language import LANGUAGE, Pointer, wrapped

TRIED = 3
"""First launches of a kernel that are compared with Triton's interpreter."""

LANGUAGE_MODULE = "triton.language"


class Kernel:
    """One kernel: how often it was tried, and whether Triton's interpreter must run it."""

    def __init__(self, function: Callable[..., None], constants: Sequence[str]) -> None:
        self.tried, self.refused = 0, not _known(function)
        self.constants = frozenset(constants)
        self.signature = inspect.signature(function)
        self.run = _rebound(function)

    def launch(self, grid: Any, arguments: Sequence[Any], named: dict[str, Any]) -> None:
        """Run all programs of a launch."""
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
                self.run(**given)


def quicken_kernels() -> None:
    """Let every launch of this process go to numpy where it can."""
    interpreter: Any = importlib.import_module("triton.runtime.interpreter")
    launches = interpreter.GridExecutor
    slowly, kernels = launches.__call__, dict[Any, Kernel]()

    def launched(executor: Any, *arguments: Any, **named: Any) -> None:
        kernel = kernels.get(executor.fn)
        if kernel is None:
            kernel = kernels[executor.fn] = Kernel(executor.fn, executor.constexprs)
        if kernel.refused or executor.pre_run_hooks:
            slowly(executor, *arguments, **named)
        elif kernel.tried < TRIED:
            kernel.tried += 1
            _try(kernel, executor.grid, slowly, executor, arguments, named)
        else:
            kernel.launch(executor.grid, arguments, named)

    launches.__call__ = launched


def _try(
    kernel: Kernel,
    grid: Any,
    slowly: Callable[..., None],
    executor: Any,
    arguments: Sequence[Any],
    named: dict[str, Any],
) -> None:
    """Launch a kernel in both ways, and refuse it from here on where they differ."""
    memory = list(_memory((*arguments, *named.values())))
    before = [held.clone() for held in memory]
    slowly(executor, *arguments, **named)
    right = [held.clone() for held in memory]
    for held, kept in zip(memory, before, strict=True):
        held.copy_(kept)
    try:
        kernel.launch(grid, arguments, named)
        same = all(torch.equal(held, kept) for held, kept in zip(memory, right, strict=True))
    except Exception:  # Whatever it lacks, Triton's interpreter has just done without an error.
        same = False
    if not same:
        kernel.refused = True
        for held, kept in zip(memory, right, strict=True):
            held.copy_(kept)


def _memory(given: Sequence[Any]) -> Iterator[Tensor]:
    """Yield the bytes of each storage that tensors lie in, once each."""
    seen = set()
    for one in given:
        if isinstance(one, Tensor) and one.untyped_storage().data_ptr() not in seen:
            storage = one.untyped_storage()
            seen.add(storage.data_ptr())
            yield torch.empty(0, dtype=torch.uint8).set_(storage)


def _argument(given: Any) -> Any:
    if isinstance(given, Tensor):
        size = given.untyped_storage().nbytes() // given.element_size()
        flat = torch.as_strided(given.detach(), (size,), (1,), 0)
        return Pointer(flat.numpy(), np.int64(given.storage_offset()))
    return wrapped(given)


def _known(function: Callable[..., None]) -> bool:
    """Whether all that a kernel takes from the language is there."""
    names = set(function.__code__.co_names)
    spoken = {
        name
        for name, held in function.__globals__.items()
        if isinstance(held, ModuleType) and held.__name__ == LANGUAGE_MODULE
    }
    if not names & spoken:
        return False
    return all(hasattr(LANGUAGE, name) for name in names if hasattr(_language(), name))


def _language() -> Any:
    return importlib.import_module(LANGUAGE_MODULE)


def _rebound(function: Callable[..., None]) -> Callable[..., None]:
    """Return a kernel, and what it calls, with our language in place of Triton's."""
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
