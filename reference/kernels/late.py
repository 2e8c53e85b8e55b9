"""Imports modules with kernels when they are first needed. Imports none of them itself."""

import importlib
from functools import cache
from typing import Any


@cache
def imported_late(module: str) -> Any:
    """Return a module that may import Triton, by name.

    Importing Triton decides whether its interpreter is used, so it must not be imported too early.
    """
    return importlib.import_module(module)
