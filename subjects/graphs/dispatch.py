"""What this project puts between torch and its callers: dispatch modes and replaced functions.

A dispatch mode sees every aten call. A mode for torch functions is not used, because its Python
call takes longer than most functions.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

Place = tuple[Any, str]
"""A module or class, and the name of a function in it."""

ALLOCATORS: tuple[Place, ...] = (
    *((torch, name) for name in ("empty", "empty_like", "empty_strided")),
    *((Tensor, name) for name in ("new_empty", "new_empty_strided")),
)
"""Torch functions that return uninitialised memory."""

ALLOCATIONS = frozenset(f"aten::{name}" for _, name in ALLOCATORS)
"""The calls that they make."""

HOST_READS: tuple[Place, ...] = tuple(
    (Tensor, name) for name in ("item", "tolist", "numpy", "__array__", "__bool__")
)
"""Torch functions that read values into Python. Some of them never reach a dispatch mode."""


@contextmanager
def replaced(
    places: Sequence[Place], other: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> Iterator[None]:
    """Replace the function at each place by the result of `other` for it, in all threads.

    A reference to the function that was taken earlier still leads to the function itself.
    """
    inherited = object()
    before = [vars(holder).get(name, inherited) for holder, name in places]
    others = [other(getattr(holder, name)) for holder, name in places]
    try:
        for (holder, name), function in zip(places, others, strict=True):
            setattr(holder, name, function)
        yield
    finally:
        for (holder, name), function in zip(places, before, strict=True):
            if function is inherited:
                delattr(holder, name)
            else:
                setattr(holder, name, function)


class UncompiledMode(TorchDispatchMode):
    """A dispatch mode in a program that compiles nothing."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # The base class would import torch's compiler, which takes seconds.
        return False
