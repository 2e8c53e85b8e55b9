"""Triton's interpreter without work that it does anew at every launch, or for nobody.

Knows no engine. Kernels compute what they did, bit by bit, in less than half of the time.
Arithmetic that the interpreter cannot do raises an error, where it would give nonsense.
"""

import importlib
from collections.abc import Callable, Hashable
from dataclasses import replace
from functools import cache
from typing import Any


def quicken() -> None:
    """Let every launch of this process be quicker from here on."""
    interpreter: Any = importlib.import_module("triton.runtime.interpreter")
    core: Any = importlib.import_module("triton.language.core")
    builder = interpreter.interpreter_builder
    accept_masks()
    refuse_small_floats()
    if not builder.options.debug:
        # Every sum is checked for overflow by assertions, which are made for debugging alone.
        builder.options = replace(builder.options, sanitize_overflow=False)
    interpreter._patch_lang = once(interpreter._patch_lang, interpreter._LangPatchScope)
    interpreter._get_np_dtype = by_elements(interpreter._get_np_dtype)
    core.tensor.__init__ = remembered(core.tensor.__init__, key_of_type, ("handle", "type"))
    core.block_type.__init__ = remembered(core.block_type.__init__, key_of_block, ("element_ty",))


MASKED = {"create_masked_load": 1, "create_masked_store": 2, "create_atomic_rmw": 3}
"""Which argument of each access to memory is its mask."""


def accept_masks() -> None:
    """Convert the mask of every access to booleans.

    The interpreter of Triton 3.9 refuses integers as a mask, but broadcasts boolean scalars to
    integers itself.
    """
    builder = importlib.import_module("triton.runtime.interpreter").interpreter_builder
    for name, position in MASKED.items():
        setattr(builder, name, with_boolean_mask(getattr(builder, name), position))


def with_boolean_mask(access: Callable[..., Any], position: int) -> Callable[..., Any]:
    """Return an access to memory whose argument at `position` becomes a boolean mask."""

    def accessed(*arguments: Any, **named: Any) -> Any:
        mask = arguments[position]
        mask.data = mask.data.astype(bool, copy=False)
        return access(*arguments, **named)

    return accessed


SMALL_FLOATS = frozenset({"bf16", "fp8e4b15", "fp8e4b8", "fp8e4nv", "fp8e5", "fp8e5b16"})
"""Types that numpy lacks. The interpreter holds their bits as integers, and computes with those."""

ARITHMETIC = ("binary_op", "unary_op", "create_dot", "create_fma", "create_rsqrt", "create_erf")
"""What computes with numbers. Conversions, selections and accesses to memory are right."""


def refuse_small_floats() -> None:
    """Let arithmetic with small floats raise NotImplementedError."""
    interpreter: Any = importlib.import_module("triton.runtime.interpreter")
    builder, reducing = interpreter.interpreter_builder, interpreter.ReduceScanOpInterface
    for name in ARITHMETIC:
        setattr(builder, name, of_larger_floats(getattr(builder, name)))
    reducing.check_tensor = of_larger_floats(reducing.check_tensor)


def of_larger_floats(computed: Callable[..., Any]) -> Callable[..., Any]:
    """Return an operation that refuses small floats. An argument is an operand, or some of them."""

    def checked(*arguments: Any) -> Any:
        for given in arguments:
            for one in given if isinstance(given, tuple) else (given,):
                name = getattr(getattr(one, "dtype", None), "name", None)
                if name in SMALL_FLOATS:
                    raise NotImplementedError(f"Triton's interpreter cannot compute with {name}")
        return computed(*arguments)

    return checked


def once(patch: Callable[[Any], Any], scope: Callable[[], Any]) -> Callable[[Any], Any]:
    """Return what patches the language as a kernel sees it once, and leaves it patched."""
    known = cache(patch)

    def patched(kernel: Any) -> Any:
        known(kernel)
        return scope()

    return patched


def by_elements(numpy_of: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a function that gives the numpy type of a type, looked up once for its elements."""
    known = dict[str, Any]()

    def found(dtype: Any) -> Any:
        scalar = dtype.scalar
        if scalar.name not in known:
            known[scalar.name] = numpy_of(scalar)
        return known[scalar.name]

    return found


def key_of_type(handle: Any, dtype: Any) -> Hashable:
    """Return what tells the types of tensors apart; None for pointers, which are never shared."""
    return None if dtype.scalar.is_ptr() else dtype.name


def key_of_block(elements: Any, shape: Any) -> Hashable:
    """Return what tells types of blocks apart; None for those of pointers."""
    return None if elements.is_ptr() else (elements.name, *map(int, shape))


def remembered(
    described: Callable[..., None], key_of: Callable[..., Hashable], own: tuple[str, ...]
) -> Callable[..., None]:
    """Return an `__init__` that computes what describes objects of one key once.

    The first arguments, whose names are `own`, are every object's own.
    """
    known = dict[Hashable, dict[str, Any]]()

    def initialise(self: Any, *given: Any) -> None:
        key = key_of(*given)
        if key is None or key not in known:
            described(self, *given)
            if key is not None:
                known[key] = {name: held for name, held in vars(self).items() if name not in own}
            return
        vars(self).update(known[key])
        vars(self).update(zip(own, given, strict=False))

    return initialise
