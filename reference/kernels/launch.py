"""Compiling a Triton kernel once per set of constants and dtypes, and launching it directly.

Nothing is specialised on a run-time value, because a kernel compiled anew for one row or for
an aligned pointer may sum in another order.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import triton
import triton.language as tl
from torch import Tensor
from triton.runtime import driver


def jit(function: Callable[..., Any]) -> Any:
    """Make `function` a kernel, or a part of kernels, specialised on its constants alone."""
    parameters = inspect.signature(function).parameters.items()
    values = [name for name, value in parameters if value.annotation is not tl.constexpr]
    return triton.jit(function, do_not_specialize=values)


@dataclass(frozen=True)
class Compiled:
    """A compiled kernel as it is launched: by what, and with which constants, in their order.

    To ask `kernel` for the others at each launch costs a tenth of it.
    """

    kernel: Any
    run: Callable[..., None]
    function: int
    metadata: Any
    constants: tuple[Any, ...]


class Kernel:
    """A Triton kernel specialised on its constants and its tensors' dtypes alone.

    Once compiled for a set of them it is launched directly: Triton's own look-up costs
    more than the kernels here run for. Constants are passed by keyword.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        parameters = inspect.signature(function).parameters.items()
        self.constants = [name for name, value in parameters if value.annotation is tl.constexpr]
        self.function = jit(function)
        self.compiled: dict[tuple[Any, ...], Compiled] = {}

    def launch(self, grid: tuple[int, int, int], *values: Any, **constants: Any) -> None:
        """Run the kernel over `grid`, compiling it if it is new."""
        dtypes = [value.dtype for value in values if type(value) is Tensor]
        key = (*dtypes, *constants.values())
        compiled = self.compiled.get(key)
        if compiled is None:
            self._compile(key, grid, values, constants)
            return
        # What follows the metadata are launch hooks, of which there are none.
        compiled.run(
            *grid,
            driver.active.get_current_stream(values[0].get_device()),
            compiled.function,
            compiled.metadata,
            None,
            None,
            None,
            *values,
            *compiled.constants,
        )

    def _compile(
        self,
        key: tuple[Any, ...],
        grid: tuple[int, int, int],
        values: tuple[Any, ...],
        constants: dict[str, Any],
    ) -> None:
        """Run the kernel by Triton's own launcher, and keep what it has compiled."""
        kernel = self.function[grid](*values, **constants)
        if kernel is None:  # The interpreter compiles nothing: it is called anew every time.
            return
        ordered = tuple(constants[name] for name in self.constants)
        self.compiled[key] = Compiled(
            kernel, kernel.run, kernel.function, kernel.packed_metadata, ordered
        )
