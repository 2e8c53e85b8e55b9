"""Importing this does once what Triton otherwise does in every process that loads a kernel.

That is: it hashes Triton's own files (hundreds of MB) and the source of every kernel that was
imported before, and imports what kernels may be given as arguments. Processes forked afterwards
need not do it again. No device is initialised.
"""

import importlib
import sys
from contextlib import suppress

from paritybit.reference.kernels.launch import Kernel
from triton.runtime.cache import triton_key

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
