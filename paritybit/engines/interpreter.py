"""Corrects Triton's interpreter, and avoids work that it repeats at each launch.

Kernels give the same bits in half of the time. Unsupported arithmetic raises an error.
"""

import importlib
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any


def quicken() -> None:
    """Make all launches of this process faster from now on."""
    interpreter: Any = importlib.import_module("triton.runtime.interpreter")
    builder = interpreter.interpreter_builder
    for name, position in MASKED.items():
        setattr(builder, name, with_boolean_mask(getattr(builder, name), position))
    count_in_tensors(interpreter)
    refuse_small_floats(interpreter)
    if not builder.options.debug:
        # Assertions, which only serve for debugging, would check every sum for overflow.
        builder.options = replace(builder.options, sanitize_overflow=False)
    interpreter._patch_lang = once(interpreter._patch_lang, interpreter._LangPatchScope)


MASKED = {"create_masked_load": 1, "create_masked_store": 2, "create_atomic_rmw": 3}
"""The index of the mask among the arguments of each memory access."""


def with_boolean_mask(access: Callable[..., Any], position: int) -> Callable[..., Any]:
    """Return a memory access with a boolean mask at `position`, as Triton 3.9 refuses integers."""

    def accessed(*arguments: Any, **named: Any) -> Any:
        mask = arguments[position]
        mask.data = mask.data.astype(bool, copy=False)
        return access(*arguments, **named)

    return accessed


def count_in_tensors(interpreter: Any) -> None:
    """Make `tl.range` accept and yield tensors, as in a compiled kernel, not integers."""
    patch_core = interpreter._patch_lang_core

    def patched(language: Any, scope: Any) -> None:
        patch_core(language, scope)
        counted = language.range

        def counting(*bounds: Any, **options: Any) -> Any:
            return map(interpreter._implicit_cvt, counted(*bounds, **options))

        scope.set_attr(language, "range", counting)
        scope.set_attr(language.tensor, "__index__", lambda number: number.handle.data.item())

    interpreter._patch_lang_core = patched


SMALL_FLOATS = frozenset({"bf16", "fp8e4b15", "fp8e4b8", "fp8e4nv", "fp8e5", "fp8e5b16"})
"""Types that numpy lacks. The interpreter would compute with their bits as integers."""

ARITHMETIC = ("binary_op", "unary_op", "create_dot", "create_fma", "create_rsqrt", "create_erf")
"""Arithmetic operations. Conversions, selections and memory accesses are correct."""


def refuse_small_floats(interpreter: Any) -> None:
    """Make arithmetic with small floats raise NotImplementedError."""
    builder, reducing = interpreter.interpreter_builder, interpreter.ReduceScanOpInterface
    for name in ARITHMETIC:
        setattr(builder, name, of_larger_floats(getattr(builder, name)))
    reducing.check_tensor = of_larger_floats(reducing.check_tensor)


def of_larger_floats(computed: Callable[..., Any]) -> Callable[..., Any]:
    """Return an operation that rejects small floats. An argument is an operand or a tuple."""

    def checked(*arguments: Any) -> Any:
        for given in arguments:
            for one in given if isinstance(given, tuple) else (given,):
                name = getattr(getattr(one, "dtype", None), "name", None)
                if name in SMALL_FLOATS:
                    raise NotImplementedError(f"Triton's interpreter cannot compute with {name}")
        return computed(*arguments)

    return checked


def once(patch: Callable[[Any], Any], scope: Callable[[], Any]) -> Callable[[Any], Any]:
    """Return a function that patches the language for each kernel once, and keeps it patched."""
    known = cache(patch)

    def patched(kernel: Any) -> Any:
        known(kernel)
        return scope()

    return patched
