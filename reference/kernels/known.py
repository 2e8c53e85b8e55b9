"""Importing this lets Triton read all of itself, a library of hundreds of MB: no device is begun.

A process that loads a kernel must know Triton by its bytes and the kernel by its source, and
imports what kernels may be given. One that is forked from a process that has done so, of the
kernels that it had imported, does it no more.
"""

import importlib
import sys
from contextlib import suppress

from triton.runtime.cache import triton_key

from reference.kernels.launch import Kernel

GIVEN = "triton.tools.tensor_descriptor", "triton.experimental.gluon.nvidia.hopper"
"""What Triton imports when it is first asked for a kernel; not every release has all of it."""

for name in GIVEN:
    with suppress(ImportError):
        importlib.import_module(name)
triton_key()
kernels = [
    value
    for module in list(sys.modules.values())
    for value in vars(module).values()
    if type(value) is Kernel
]
sources = [kernel.function.cache_key for kernel in kernels]
