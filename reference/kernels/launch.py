"""Compiles a Triton kernel once per set of constants and dtypes, and launches it directly.

Nothing is specialised on a run-time value, because a kernel that is compiled again for one row or
for an aligned pointer may sum in another order.
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
    """Make `function` a kernel, or a function that kernels call, specialised on constants only."""
    parameters = inspect.signature(function).parameters.items()
    values = [name for name, value in parameters if value.annotation is not tl.constexpr]
    return triton.jit(function, do_not_specialize=values)


@dataclass(frozen=True)
class Compiled:
    """A compiled kernel with what a launch needs.

    `constants` are in the kernel's order. Looking these values up on `kernel` would make a launch a
    tenth slower.
    """

    kernel: Any
    run: Callable[..., None]
    function: int
    metadata: Any
    constants: tuple[Any, ...]


class Kernel:
    """A Triton kernel that is specialised only on its constants and the dtypes of its tensors.

    Once compiled, it is launched directly: Triton's own lookup takes longer than the kernels here
    run. Constants are passed by keyword.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        parameters = inspect.signature(function).parameters.items()
        self.constants = [name for name, value in parameters if value.annotation is tl.constexpr]
        self.function = jit(function)
        self.compiled: dict[tuple[Any, ...], Compiled] = {}

    def launch(self, grid: tuple[int, int, int], *values: Any, **constants: Any) -> None:
        """Run the kernel over `grid`. Compiles it if these constants and dtypes are new."""
        dtypes = [value.dtype for value in values if type(value) is Tensor]
        key = (*dtypes, *constants.values())
        compiled = self.compiled.get(key)
        if compiled is None:
            self._compile(key, grid, values, constants)
            return
        # The three None are launch hooks.
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
        """Run the kernel with Triton's launcher, and keep the compiled kernel."""
        kernel = self.function[grid](*values, **constants)
        if kernel is None:  # The interpreter compiles nothing.
            return
        ordered = tuple(constants[name] for name in self.constants)
        self.compiled[key] = Compiled(
            kernel, kernel.run, kernel.function, kernel.packed_metadata, ordered
        )
