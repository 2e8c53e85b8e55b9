"""Importing this module does once what Triton does in each process that loads a kernel.

Triton hashes its own files (hundreds of MB) and the source of every kernel, and imports the types
of possible arguments. Processes forked afterwards inherit the result. No device is initialised.
"""

import importlib
import sys
from contextlib import suppress

from paritybit.reference.kernels.launch import Kernel
from triton.runtime.cache import triton_key

GIVEN = "triton.tools.tensor_descriptor", "triton.experimental.gluon.nvidia.hopper"
"""Modules that Triton imports at the first kernel. Some releases lack some of them."""

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
